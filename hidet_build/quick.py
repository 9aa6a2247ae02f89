"""The null build: answers a command line that was answered before and of which nothing has changed since.

Compares stat data with what the last successful build of the same command line saved; imports nothing but what Python
starts with. Knows no action, no target and no cache, so whatever it is not sure of it leaves to the real build.

    <output_base>/.state/quick.v1/<CRC of the command line>     a marshalled Snapshot
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from time import monotonic
from zlib import crc32

ROOT_FILE = "BUILD.yaml"
OURS = ("hidet-out", "hidet-bin", "hidet-testlogs")
# All that a build can be told through the environment. Another value is another command line.
VARIABLES = (
    "PATH",
    "CXX",
    "HOME",
    "PYTHONPATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "HIDET_BUILD_DISK_CACHE",
    "HIDET_BUILD_OUTPUT_BASE",
    "HIDET_BUILD_REQUIRE_CACHED",
)


def answer(arguments: Sequence[str]) -> int | None:
    """Answer this command line if that can be done at once: print what a build prints, return 0. Else return None."""
    started = monotonic()
    try:
        root = _root(os.getcwd())
    except OSError:  # the folder is gone
        return None
    if root is None or any(argument.startswith("--output_base") for argument in arguments):
        return None
    base = os.environ.get("HIDET_BUILD_OUTPUT_BASE") or f"{root}/hidet-out"
    request = identity(arguments, root)
    try:
        with open(place(base, request), "rb") as file:
            snapshot = marshal.load(file)
        if snapshot[0] != request or not _unchanged(snapshot, base):
            return None
    except (OSError, ValueError, EOFError, TypeError, IndexError):
        return None
    lines, targets = snapshot[1], snapshot[2]
    took = monotonic() - started
    for line in lines:
        print(f"INFO: {line}", file=sys.stderr)
    print(f"INFO: {targets} target{'' if targets == 1 else 's'} up to date in {took:.2f} s", file=sys.stderr)
    return 0


def identity(arguments: Sequence[str], root: str) -> tuple[object, ...]:
    """What makes two command lines the same request."""
    return (
        tuple(arguments),
        os.getcwd()[len(root) :],
        root,
        sys.version,
        sys.prefix,
        tuple(os.environ.get(name) for name in VARIABLES),
    )


def place(output_base: str, request: tuple[object, ...]) -> str:
    """Where the snapshot of a request is kept."""
    return f"{output_base}/.state/quick.v1/{crc32(repr(request).encode()):08x}"


def save(path: str, snapshot: tuple[object, ...]) -> None:
    """Keep a snapshot; where it cannot be written, the next null build is a real one."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(marshal.dumps(snapshot))  # type: ignore[arg-type]
        os.replace(temporary, path)
    except OSError:
        return


def _root(folder: str) -> str | None:
    """The nearest folder upward whose BUILD.yaml declares a workspace."""
    while True:
        try:
            with open(f"{folder}/{ROOT_FILE}", "rb") as file:
                text = file.read()
            if text.startswith(b"workspace:") or b"\nworkspace:" in text or b"\xbfworkspace:" in text:
                return folder
        except OSError:
            pass
        if folder in ("/", ""):
            return None
        folder = folder.rpartition("/")[0] or "/"


def _unchanged(snapshot: tuple[object, ...], base: str) -> bool:
    """Whether every file and folder the saved answer rests on still is what it was."""
    _, _, _, only_on, programs, files, folders, outputs, made, links = snapshot
    if only_on and only_on != machine():
        return False
    stat, lstat = os.stat, os.lstat
    for path, mark in files:  # type: ignore[attr-defined]
        try:
            found = stat(path)
        except OSError:
            if mark is not None:
                return False
            continue
        if mark is None or (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino) != mark:
            return False
    for path, size, mtime, mode in outputs:  # type: ignore[attr-defined]
        found = lstat(f"{base}/{path}")
        if found.st_size != size or found.st_mtime_ns != mtime or found.st_mode & 0o100 != mode:
            return False
    if not all(map(os.path.isdir, made)):  # type: ignore[call-overload]
        return False
    for path, target in links:  # type: ignore[attr-defined]
        if os.readlink(path) != target:
            return False
    for path, names in folders:  # type: ignore[attr-defined]
        if listing(path) != names:
            return False
    search = os.environ.get("PATH", "").split(":")
    return all(which(name, search) == program for name, program in programs)  # type: ignore[attr-defined]


def listing(folder: str) -> list[str]:
    """What a folder holds, folders and links marked as such; what we put there ourselves left out."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in OURS:
                continue
            name = entry.name
            if entry.is_symlink():
                # Where it leads, and to what: a glob matches a link by that.
                kind = "/" if entry.is_dir() else "" if entry.is_file() else "?"
                name += f"@{os.readlink(entry.path)}{kind}"
            elif entry.is_dir(follow_symlinks=False):
                name += "/"
            found.append(name)
    return sorted(found)


def machine() -> str:
    """This machine, for what follows from its CPU: its name, and the CPU as the kernel describes it."""
    with open("/proc/cpuinfo", "rb") as file:
        first = file.read(1 << 16).partition(b"\n\n")[0]
    lines = [line for line in first.splitlines() if line.startswith((b"model", b"flags", b"vendor", b"cpu family"))]
    return f"{os.uname().nodename} {crc32(b''.join(lines)):08x}"


def which(name: str, folders: Sequence[str]) -> str | None:
    """The first executable of this name in `folders`."""
    for folder in folders:
        path = f"{folder or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None
