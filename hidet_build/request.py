"""What the user asked for, as the command line says it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hidet_build.quick import Changes


@dataclass(frozen=True)
class Request:
    """What to build and where."""

    root: str  # the workspace
    package: str  # the package (or folder) the command was typed in
    patterns: tuple[str, ...]
    output_base: str
    disk_cache: str  # the folder of the store; "" keeps one in the output base
    user_cache: str  # where findings about this machine are remembered
    platform: str = ""  # a hidet target string; "" is the workspace's
    symlink_prefix: str = "hidet-"
    lock_timeout: float | None = None  # seconds; None waits as long as it takes
    block_for_lock: bool = True
    nobuild: bool = False
    worker_idle_timeout: float = 0.0  # seconds a worker waits for the next command; with 0 it ends with this one
    worker_folders: tuple[str, ...] = ()  # where one that waits may be met
    arguments: tuple[str, ...] = ()  # the command line as typed, for the next null build; none if it was no build
    changes: Changes | None = None  # all that differs from when it was last answered, where that is known

    @property
    def store(self) -> str:
        """The folder of the store."""
        return self.disk_cache or os.path.join(self.output_base, ".state", "cache")


@dataclass(frozen=True)
class Options:
    """What the command line said about running."""

    jobs: int = 1
    keep_going: bool = False
    explain: bool = False
    subcommands: bool = False
    verbose_failures: bool = False
    check_up_to_date: bool = False
    nocache: bool = False  # run every action, whatever caches and earlier builds hold
    require_cached: bool = False  # run none
    memory: int = 0  # bytes that running actions may take together; 0: what the machine leaves us
