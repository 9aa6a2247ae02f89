"""What earlier builds left in an output folder: which actions ran with what, and the digests of source files.

Knows files and records; does not know what an action is or whether anything should run.

    <output_base>/.state/
        actions.v2        journal: action id -> Record, source path -> (fingerprint, hash, size)
        described.v2      journal: action id -> the description last executed, for --explain alone
        *.lock            held while a journal is appended to or rewritten

A journal is a sequence of frames, each a mark, a length, a CRC and a marshalled dictionary of names and marshalled
values; the last value of a name counts. Values are unmarshalled when they are asked for: a build looks at few. What is
no frame (the machine went down in mid-write) is passed over.
"""

from __future__ import annotations

import errno
import marshal
import os
import struct
import time
from collections.abc import Iterable, Mapping
from stat import S_ISLNK, S_ISREG
from typing import Any, NamedTuple
from zlib import crc32

from hidet_build import digest
from hidet_build.digest import Digest
from hidet_build.files import Fingerprint, fingerprint_of, is_racy
from hidet_build.lock import exclusive

_MARK = b"\xf5hb\x02"
_FRAME = struct.Struct("<4sII")
_COMPACT_BYTES = 1 << 20  # smaller journals are not worth rewriting
_COMPACT_ROWS = 1000  # in a frame
_DESCRIPTIONS = 8  # times larger than the other journal is too much for the one with descriptions
_UNWRITTEN_SECONDS = 0.1  # so much of what was done may be unknown here after a kill; the cache has it then


class Record(NamedTuple):
    """What one action made when it last ran: its signature, its key, and each output file."""

    signature: str
    key: str
    files: tuple[tuple[str, str, int, bool], ...]  # path from the working directory, hash, size, executable
    directories: tuple[str, ...]


class Journal:
    """A name -> value map on disk that survives being killed at any moment; read when something is asked of it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._entries: dict[str, bytes] = {}
        self._read = 0  # how far into the file `_entries` reflects it
        self._inode = 0
        self._rows = 0  # entries read or written, those that were replaced later too
        self._known = False

    def get(self, name: str) -> Any:
        """The value of a name, or None."""
        found = self._all().get(name)
        return None if found is None else marshal.loads(found)

    def names(self) -> Iterable[str]:
        """Every name that has a value."""
        return self._all().keys()

    def append(self, items: Mapping[str, Any]) -> None:
        """Set these entries, here and on disk."""
        if not items:
            return
        fresh = {name: marshal.dumps(value) for name, value in items.items()}
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with exclusive(self._path + ".lock"):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                before = os.fstat(descriptor)
                frame = memoryview(_frame(fresh))
                size = len(frame)
                while frame:
                    frame = frame[os.write(descriptor, frame) :]
            finally:
                os.close(descriptor)
        self._entries.update(fresh)
        self._rows += len(fresh)
        if self._read == before.st_size and self._inode in (before.st_ino, 0):  # nobody else has written meanwhile
            self._inode, self._read = before.st_ino, self._read + size

    def compact(self, larger_than: int = 0) -> None:
        """Rewrite the file with each entry once, when it is large and most of it is history.

        One that is written to and hardly ever read is read for that when it is `larger_than` so many bytes.
        """
        if self.size() < max(larger_than, _COMPACT_BYTES) or len(self._all()) > self._rows // 2:
            return
        with exclusive(self._path + ".lock"):
            self._catch_up()
            temporary = f"{self._path}.{os.getpid()}.tmp"
            items = list(self._entries.items())
            with open(temporary, "wb") as file:
                for start in range(0, len(items), _COMPACT_ROWS):
                    file.write(_frame(dict(items[start : start + _COMPACT_ROWS])))
            os.replace(temporary, self._path)
            status = os.stat(self._path)
            self._read, self._inode, self._rows = status.st_size, status.st_ino, len(items)

    def size(self) -> int:
        """Bytes on disk."""
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _all(self) -> dict[str, bytes]:
        if not self._known:
            self._known = True
            self._catch_up()
        return self._entries

    def _catch_up(self) -> None:
        """Read what the file holds beyond what we know."""
        try:
            with open(self._path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # another process rewrote it, with what we wrote in it
                    self._inode, self._read, self._rows = inode, 0, 0
                    self._entries = {}
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            self._inode = self._read = self._rows = 0
            return
        known, position = 0, 0
        while (position := content.find(_MARK, position)) >= 0:
            end, found = _frame_at(content, position)
            if found is None:
                position += 1
                continue
            self._entries.update(found)
            self._rows += len(found)
            known = position = end
        self._read += known  # the rest may be a frame that is being written


def _frame(entries: dict[str, bytes]) -> bytes:
    payload = marshal.dumps(entries)
    return _FRAME.pack(_MARK, len(payload), crc32(payload)) + payload


def _frame_at(content: bytes, position: int) -> tuple[int, dict[str, bytes] | None]:
    """Where the frame at `position` ends and what it holds; None where it is not whole."""
    start = position + _FRAME.size
    if start > len(content):
        return start, None
    _, length, check = _FRAME.unpack_from(content, position)
    payload = content[start : start + length]
    if not length or len(payload) != length or crc32(payload) != check:
        return start, None
    found: dict[str, bytes] = marshal.loads(payload)
    return start + length, found


def built_platforms(folder: str) -> set[str]:
    """The names of the output folders beside the state folder that builds have filled."""
    made = Journal(os.path.join(folder, "actions.v2")).names()
    return {name.split("/")[1] for name in made if name.startswith("/")}


class State:
    """The memory of one output folder."""

    def __init__(self, folder: str, root: str) -> None:
        self.folder = folder
        self._root = root
        self._actions = Journal(os.path.join(folder, "actions.v2"))
        self._described = Journal(os.path.join(folder, "described.v2"))
        self._sources: dict[str, tuple[Fingerprint, Digest, bool]] = {}  # of this build
        self._fresh: dict[str, tuple[Fingerprint | None, str, int]] = {}
        self._young: set[str] = set()  # sources that may change again without a trace
        self._links: dict[str, int] = {}
        self._made: dict[str, tuple[Any, ...]] = {}  # records that are not written yet, by action
        self._made_of: dict[str, tuple[Any, ...]] = {}  # and descriptions
        self._written = time.monotonic()

    def record(self, action: str) -> Record | None:
        """What the action of this id made last."""
        found = self._made.get(action) or self._actions.get(action)
        return Record(*found) if found else None

    def remember(self, action: str, record: Record, description: tuple[Any, ...] | None) -> None:
        """Keep what an action made, and from what when it was executed or fetched; on disk with the next `write`."""
        self._made[action] = tuple(record)
        if description is not None:
            self._made_of[action] = description
        if time.monotonic() - self._written > _UNWRITTEN_SECONDS:
            self.write()

    def write(self) -> None:
        """Write what was remembered: one by one it would cost more than many a step."""
        if self._made:
            self._actions.append(self._made)
            self._made = {}
        if self._made_of:
            self._described.append(self._made_of)
            self._made_of = {}
        self._written = time.monotonic()

    def description(self, action: str) -> tuple[Any, ...] | None:
        """What went into the action when it last ran."""
        found: tuple[Any, ...] | None = self._made_of.get(action) or self._described.get(action)
        return found

    def source(self, path: str) -> tuple[Digest, bool]:
        """The digest of a source file as it is in this build, and whether it may be executed.

        `path` is from the workspace root. It is hashed only when its stat says it may have changed. Raises OSError
        where it cannot be read.
        """
        known = self._sources.get(path)
        if known:
            return known[1], known[2]
        absolute = os.path.join(self._root, path)
        stat = os.stat(absolute)
        if not S_ISREG(stat.st_mode):  # opening a pipe would wait for a writer
            raise OSError(errno.EINVAL, "not a regular file", absolute)
        self._links[path] = _link_time(absolute)
        now = fingerprint_of(stat)
        remembered = self._actions.get(path)
        if remembered and remembered[0] == now:
            found = Digest(remembered[1], remembered[2])
        else:
            # The stat from before the hashing: what is written meanwhile shows as a change later.
            hashed_at = time.time_ns()
            found = digest.of_file(absolute)
            # A file written in the last moments may change again without a new time stamp: hash it again next time.
            trusted = None if is_racy(now, hashed_at) else now
            self._fresh[path] = (trusted, found.hash, found.size)
            if trusted is None:
                self._young.add(path)
        executable = bool(stat.st_mode & 0o100)
        self._sources[path] = (now, found, executable)
        return found, executable

    def source_changed(self, path: str) -> bool:
        """Whether a source file was touched since `source` read it in this build."""
        absolute = os.path.join(self._root, path)
        try:
            if _link_time(absolute) != self._links[path]:  # it may have led elsewhere for a while
                return True
            return fingerprint_of(os.stat(absolute)) != self._sources[path][0]
        except OSError:
            return True

    def forget_source(self, path: str) -> None:
        """Read this source file again when it is next asked for."""
        self._sources.pop(path, None)
        self._fresh.pop(path, None)
        self._young.discard(path)

    def sources(self) -> Mapping[str, tuple[Fingerprint | None, Digest, bool]]:
        """Every source file read in this build: its fingerprint (None where it is too young to trust), its digest, and
        whether it may be executed."""
        return {
            path: (None if path in self._young else seen, found, executable)
            for path, (seen, found, executable) in self._sources.items()
        }

    def save(self) -> None:
        """Write what is not written yet."""
        self.write()
        self._actions.append(self._fresh)
        self._fresh = {}
        self._actions.compact()
        self._described.compact(larger_than=_DESCRIPTIONS * self._actions.size())


def _link_time(path: str) -> int:
    """When a symbolic link was made; 0 for anything else."""
    status = os.lstat(path)
    return status.st_ctime_ns if S_ISLNK(status.st_mode) else 0
