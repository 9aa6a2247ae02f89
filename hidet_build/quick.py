"""The null build: answers a command line that was answered before and of which nothing has changed since.

Compares stat data with what the last successful build of the same command line saved; imports nothing but what Python
starts with. Knows no action, no target and no cache, so whatever it is not sure of it leaves to the real build; but
where nothing except sources and outputs differs, it says which, and the build looks at no others.

    <output_base>/.state/quick.v2/<CRC of the command line>     a marshalled dictionary:

        request     the command line, and what else makes it (see `identity`)
        lines       what was said;  targets, actions: how many it was about
        plan        the stamp of the plan that was carried out;  machine: see `Evidence`
        programs    name -> the first of that name on PATH
        files       path -> mark: what must be the same by its stat data
        folders     path -> (names, mark): what must hold the same; looked into where the mark, if any, differs
        sources     path -> (mark, SHA-256, mode bit): the content counts
        outputs     path -> (size, time, mode bit): sealed files
        made        folders that must be there;  links: path -> target
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from time import monotonic, time_ns
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:  # without the import of typing
    from typing import Any

    Snapshot = dict[str, Any]  # as drawn above; a plain dictionary, for it is marshalled
    Mark = tuple[int, int, int, int]  # mtime_ns, ctime_ns, size, inode

ROOT_FILE = "BUILD.yaml"
OURS = ("hidet-out", "hidet-bin", "hidet-testlogs")
# What decides which tools are found, and so what is planned with them.
TOOL_VARIABLES = ("PATH", "CXX", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "PYTHONPATH")
# All that a build can be told through the environment. Another value is another command line.
VARIABLES = (
    *TOOL_VARIABLES,
    "HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "HIDET_BUILD_DISK_CACHE",
    "HIDET_BUILD_OUTPUT_BASE",
    "HIDET_BUILD_REQUIRE_CACHED",
)


_BEFORE_ROOT = b"\xef\xbb\xbf{'\" \t\r\n"  # what may stand before the key in the first line, a byte order mark too
_ROOT_SIGNS = (b"\nworkspace", b"\rworkspace", b'\n"workspace', b'\r"workspace', b"\n'workspace", b"\r'workspace")

_LOOKED_INTO = 100  # sources that are hashed here; with more than that changed, it will be for work


class Changes:
    """What differs from a saved answer, where that is sources and outputs alone, by path as the snapshot has them."""

    def __init__(self, snapshot: Snapshot, sources: Sequence[str], outputs: Sequence[str]) -> None:
        self.snapshot = snapshot
        self.sources = sources
        self.outputs = outputs


def answer(arguments: Sequence[str]) -> int | Changes | None:
    """Answer this command line if that can be done at once: print what a build prints, return 0.

    Else return what changed, if that is known, or None.
    """
    started = monotonic()
    try:
        root = find_root(os.getcwd())
    except OSError:  # the folder is gone
        return None
    if root is None or any(argument.startswith("--output_base") for argument in arguments):
        return None
    base = os.environ.get("HIDET_BUILD_OUTPUT_BASE") or f"{root}/hidet-out"
    request = identity(arguments, root)
    try:
        with open(place(base, request), "rb") as file:
            snapshot = marshal.loads(file.read())
        if snapshot["request"] != request or not _holds(snapshot):
            return None
        sources = _changed_sources(snapshot, root)
        changes = Changes(snapshot, sources, _changed_outputs(snapshot, base))
        renewed = _renew(snapshot, sources, root)
    except (OSError, ValueError, EOFError, TypeError, LookupError):
        return None
    if changes.sources or changes.outputs:
        return changes
    if renewed:
        save(place(base, request), snapshot)
    took = monotonic() - started
    targets = snapshot["targets"]
    for line in snapshot["lines"]:
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
    return f"{output_base}/.state/quick.v2/{crc32(repr(request).encode()):08x}"


def save(path: str, snapshot: Snapshot) -> None:
    """Keep a snapshot; where it cannot be written, the next null build is a real one."""
    write(path, marshal.dumps(snapshot))


def write(path: str, *parts: bytes) -> None:
    """Put a file of these parts there, whole, if that can be done."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(temporary, "wb") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except OSError:
        return


def find_root(folder: str) -> str | None:
    """The nearest folder upward whose BUILD.yaml may declare a workspace: where it does not, nothing was saved."""
    while True:
        try:
            with open(f"{folder}/{ROOT_FILE}", "rb") as file:
                text = file.read()
            if text.lstrip(_BEFORE_ROOT).startswith(b"workspace") or any(sign in text for sign in _ROOT_SIGNS):
                return folder
        except OSError:
            pass
        if folder in ("/", ""):
            return None
        folder = folder.rpartition("/")[0] or "/"


def _holds(snapshot: Snapshot) -> bool:
    """Whether everything but sources and outputs still is what it was."""
    if snapshot["machine"] and snapshot["machine"] != machine():
        return False
    if not unchanged(snapshot["files"], snapshot["folders"]):
        return False
    if not all(map(os.path.isdir, snapshot["made"])):
        return False
    if any(os.readlink(path) != target for path, target in snapshot["links"].items()):
        return False
    search = os.environ.get("PATH", "").split(":")
    return all(which(name, search) == program for name, program in snapshot["programs"].items())


def unchanged(files: dict[str, Mark | None], folders: dict[str, tuple[list[str], Mark | None]]) -> bool:
    """Whether files have the marks they had, and folders hold what they held."""
    for path, seen in files.items():
        if mark(path) != seen:
            return False
    for path, (names, seen) in folders.items():
        if seen is None or mark(path) != seen:
            try:
                found = listing(path)
            except OSError:  # one that must stay missing is in the list, too
                found = []
            if found != names:
                return False
    return True


def _changed_sources(snapshot: Snapshot, root: str) -> list[str]:
    """The sources whose stat data is not what it was."""
    stat, changed = os.stat, []
    start = "" if os.getcwd() == root else f"{root}/"  # short paths are found sooner
    for path, (seen, _, _) in snapshot["sources"].items():
        try:
            found = stat(start + path)
        except OSError:
            changed.append(path)
            continue
        if (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino) != seen:
            changed.append(path)
    return changed


def _changed_outputs(snapshot: Snapshot, base: str) -> list[str]:
    """The outputs that are gone, or were written to."""
    lstat, changed = os.lstat, []
    here = os.getcwd()
    start = f"{base[len(here) + 1 :] if base.startswith(here + '/') else base}/"
    for path, (size, mtime, mode) in snapshot["outputs"].items():
        try:
            found = lstat(start + path)
        except OSError:
            changed.append(path)
            continue
        if found.st_mtime_ns != mtime or found.st_size != size or found.st_mode & 0o100 != mode:
            changed.append(path)
    return changed


def _renew(snapshot: Snapshot, changed: list[str], root: str) -> bool:
    """Take off the list the sources that only were touched; whether there is a mark that can be trusted from now on."""
    renewed = False
    if len(changed) <= _LOOKED_INTO:
        for path in tuple(changed):
            _, content_hash, mode = snapshot["sources"][path]
            seen = _same_content(f"{root}/{path}", content_hash, mode)
            if seen is None:
                continue
            changed.remove(path)
            if not is_young(seen):
                snapshot["sources"][path] = (seen, content_hash, mode)
                renewed = True
    if changed:
        return False
    return renew_folders(snapshot["folders"]) or renewed


def renew_folders(folders: dict[str, tuple[list[str], Mark | None]]) -> bool:
    """Mark the folders that can be known by a mark from now on; whether there are any."""
    renewed = False
    for path, (names, known) in folders.items():
        seen = mark_of_folder(path, names) if known is None else None
        if seen is not None:
            folders[path] = (names, seen)
            renewed = True
    return renewed


def _same_content(path: str, content_hash: str, mode: int) -> Mark | None:
    """The mark of a source that has this content, from before it was read; None where it has another."""
    from hashlib import sha256  # 3 ms, only where something was touched

    try:
        found = os.stat(path)
        if found.st_mode & 0o170100 != 0o100000 | mode:  # a regular file: opening a pipe would wait for a writer
            return None
        with open(path, "rb", buffering=0) as file:
            if sha256(file.read()).hexdigest() != content_hash:
                return None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def mark(path: str) -> Mark | None:
    """What `stat` says of what is there, links followed; None where nothing is."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def is_young(seen: Mark) -> bool:
    """Whether something changed so shortly ago that it may change again without a trace: FAT keeps even seconds."""
    return max(seen[0], seen[1]) > time_ns() - 2_000_000_000


def mark_of_folder(path: str, names: list[str]) -> Mark | None:
    """A mark that says the folder holds these names; None where that takes a look.

    What a link leads to can change without a trace in its folder.
    """
    seen = mark(path)
    try:
        if seen is None or is_young(seen) or any("@" in name for name in names) or listing(path) != names:
            return None
    except OSError:
        return None
    return seen


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
