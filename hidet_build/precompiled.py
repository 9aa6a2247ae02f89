"""Precompiled headers for generated code: most of a small kernel's compile are the headers it shares with others.

A local accelerator and nothing more: an object is the same, byte for byte, with and without, so it is in no key and no
cache that others see. Made when the same compile was seen a few times, for making one costs as much as five compiles.
g++ does not notice when a header behind a precompiled one changes, so its name is a digest of all it was made of.

    <folder>/<digest>.gch       what g++ made of prelude.h: some 40 MB
    <folder>/<digest>.seen      a byte for each compile that could have used it
    <folder>/<digest>.not       g++ had something to say when it was made: not tried again
    <folder>/<digest>.lock      held by who makes it

Knows how g++ is called for a generated source; not why.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from hashlib import sha256

from hidet_build.action import Action, Text
from hidet_build.errors import BuildError
from hidet_build.execution import ExecutionRoot
from hidet_build.files import make_folder, write_atomic
from hidet_build.lock import exclusive
from hidet_build.process import Processes
from hidet_build.toolchain.base import Toolchain

PRECOMPILED = "precompiled-1"  # the folder in a user's cache
HEADER = "prelude.h"
SOURCE = "module.cc"
_ARGUMENTS = "compile.args"
_WORTH_IT = 4  # compiles without, before one is made
_ABANDONED = 600  # seconds without a change, after which nobody writes any more
_KEPT = 12  # precompiled headers; the ones used last


class PrecompiledHeaders:
    """The precompiled headers of this user."""

    def __init__(self, folder: str, processes: Processes) -> None:
        self._folder = folder
        self._processes = processes

    def attach(
        self,
        action: Action,
        toolchain: Toolchain,
        place: ExecutionRoot,
        environment: Mapping[str, str],
        trees: Callable[[str], str],
    ) -> str:
        """Put a precompiled header beside the header of a staged compile, if there is one or it is time for one.

        `trees` gives the identity of a toolchain folder. Returns what was put there. Whatever goes wrong, the compile
        does without.
        """
        if not _could_use(action, toolchain):
            return ""
        with contextlib.suppress(OSError, BuildError):
            if _leads_elsewhere(os.path.join(place.root, HEADER)):
                return ""
            name = _name(action, toolchain, place, trees)
            made = os.path.join(self._folder, f"{name}.gch")
            missing = not os.path.exists(made)
            if missing and not (self._is_due(name) and self._make(made, action, toolchain, place, environment)):
                return ""
            os.utime(made)
            os.symlink(made, _beside(place))
            return made
        return ""

    @staticmethod
    def detach(place: ExecutionRoot) -> None:
        """Take the precompiled header away again."""
        os.unlink(_beside(place))

    @staticmethod
    def discard(made: str) -> None:
        """Forget one with which a compile failed that succeeds without."""
        with contextlib.suppress(OSError):
            os.unlink(made)

    def _is_due(self, name: str) -> bool:
        """Count this compile; whether there were enough of its kind."""
        make_folder(self._folder)
        if os.path.exists(os.path.join(self._folder, f"{name}.not")):
            return False
        with open(os.path.join(self._folder, f"{name}.seen"), "ab", buffering=0) as file:
            file.write(b".")
            return file.tell() > _WORTH_IT

    def _make(
        self, made: str, action: Action, toolchain: Toolchain, place: ExecutionRoot, environment: Mapping[str, str]
    ) -> bool:
        """Have g++ make it, unless somebody does already; whether it is there now."""
        lock = made.removesuffix(".gch") + ".lock"
        with contextlib.ExitStack() as stack:
            stack.enter_context(exclusive(lock, block=False))
            if os.path.exists(made):
                return True
            temporary = f"{made}.{os.getpid()}"
            flags = action.arguments[1 : action.arguments.index(SOURCE)]
            command = (toolchain.executable("g++"), *flags, "-x", "c++-header", HEADER, "-o", temporary)
            ended = self._processes.run(command, cwd=place.root, environment=environment, output_path=place.log)
            # What g++ says of a header it would say in each compile; precompiled, it says it once.
            if ended.exit_code == 0 and not ended.output:
                os.replace(temporary, made)
                self._trim()
                return True
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            if not self._processes.stopped:
                write_atomic(made.removesuffix(".gch") + ".not", b"")
        return False

    def _trim(self) -> None:
        """Keep those used last, and nothing that a process left which was killed while it made one."""
        for entry in os.scandir(self._folder):
            if ".gch." in entry.name and entry.stat().st_mtime < time.time() - _ABANDONED:
                os.unlink(entry.path)
        headers = [entry for entry in os.scandir(self._folder) if entry.name.endswith(".gch")]
        headers.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in headers[_KEPT:]:
            for suffix in (".gch", ".seen"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path.removesuffix(".gch") + suffix)


def _beside(place: ExecutionRoot) -> str:
    """Where g++ looks for it before it reads the header."""
    return os.path.join(place.root, f"{HEADER}.gch")


def _could_use(action: Action, toolchain: Toolchain) -> bool:
    """Whether it is g++ that compiles a generated source, and only the toolchain's headers can lie behind prelude.h."""
    wanted = {HEADER, SOURCE, _ARGUMENTS}
    return (
        action.arguments[0] == "g++"
        and toolchain.version.startswith("g++ ")
        and {where for where, _ in action.inputs} == wanted
        and not any(isinstance(content, Text) for _, content in action.inputs)
        and SOURCE in action.arguments
    )


def _leads_elsewhere(header: str) -> bool:
    """Whether a header includes others by a path that no digest of ours covers."""
    with open(header, encoding="utf-8", errors="surrogateescape") as file:
        return re.search(r'^\s*#\s*include\s*[<"](/|.*\.\./)', file.read(), re.MULTILINE) is not None


def _name(action: Action, toolchain: Toolchain, place: ExecutionRoot, trees: Callable[[str], str]) -> str:
    """A digest of all that decides what a precompiled header is."""
    hasher = sha256(repr((toolchain.identity, action.arguments, [trees(name) for name in action.trees])).encode())
    for name in (HEADER, _ARGUMENTS):
        with open(os.path.join(place.root, name), "rb") as file:
            hasher.update(sha256(file.read()).digest())
    return hasher.hexdigest()[:32]
