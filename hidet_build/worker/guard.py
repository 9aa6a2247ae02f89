"""Keeps a kernel's Python to what it may read: an audit hook that refuses files, programs and connections.

It hears `open`, not `stat`: a kernel can still ask whether some absolute path exists. Knows folders, not hidet.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from hidet_build.worker.failure import UndeclaredFile

# Part of the machine, like the compiler and the kernel: what is here is not the workspace's.
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev", "/sys", "/nix/store", "/gnu/store")
_FILE_EVENTS = ("open", "os.listdir", "os.scandir", "ctypes.dlopen")
_PROGRAM_EVENTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")


def install(root: str, temporary: str, modules: Iterable[str]) -> None:
    """From now on, and for good, this process reads only what the step may read.

    `modules` are the top-level modules that may be imported; the folders of those that do not lie under a Python
    prefix (editable installs) are readable too.
    """
    sys.addaudithook(_hook(_readable(root, temporary, modules), frozenset(sys.path)))


def _hook(folders: tuple[str, ...], listable: frozenset[str]) -> Callable[[str, tuple[Any, ...]], None]:
    # Called for every audited event of the process, so the common case is two lookups. It must not import or open.
    events = frozenset((*_FILE_EVENTS, *_PROGRAM_EVENTS, "socket.connect"))
    join, normpath, fsdecode, getcwd = os.path.join, os.path.normpath, os.fsdecode, os.getcwd

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in events:
            return
        if event in _PROGRAM_EVENTS:
            program = arguments[0]
            raise UndeclaredFile(str(program), f"the kernel runs a program: {program}")
        if event == "socket.connect":
            raise UndeclaredFile(str(arguments[1]), f"the kernel opens a connection: {arguments[1]}")
        path = arguments[0]
        if path is None or isinstance(path, int):
            return  # the current folder, or a descriptor that is open already
        if event == "ctypes.dlopen" and "/" not in fsdecode(path):
            return  # looked for where the system has its libraries
        full = normpath(join(getcwd(), fsdecode(path)))
        if full.startswith(folders) or full + "/" in folders or full in listable:
            return
        raise UndeclaredFile(full, f"the kernel reads undeclared file {full}")

    return hook


def _readable(root: str, temporary: str, modules: Iterable[str]) -> tuple[str, ...]:
    """The folders that may be read, each ending in a slash, as they are called and as they really are."""
    prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__)]
    sites = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    folders = [root, temporary, *_SYSTEM, *prefixes, *sites]
    for name in modules:
        folders += _folders_of(name) if name not in sys.stdlib_module_names else ()
    paths = {os.path.abspath(folder) for folder in folders} | {os.path.realpath(folder) for folder in folders}
    return tuple(sorted(path.rstrip("/") + "/" for path in paths if path != "/"))


def _folders_of(module: str) -> list[str]:
    """Where the files of a package are."""
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None) or (None if loaded else _find(module))
    if spec is None:
        return []
    return [str(folder) for folder in spec.submodule_search_locations or ()]


def _find(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
