"""What earlier builds left in an output folder: which actions ran with what, and the digests of source files.

Knows files and records; does not know what an action is or whether anything should run.

    <output_base>/.state/
        actions.v1        journal: action id -> Record, source path -> (fingerprint, hash, size)
        described.v1      journal: action id -> the description last executed, for --explain alone
        *.lock            held while a journal is appended to or rewritten

A journal is a sequence of frames, each a length, a CRC and a marshalled pair; the last frame for a name counts. A
torn tail (the machine went down in mid-write) is cut off by the next append.
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

_FRAME = struct.Struct("<II")
_COMPACT_BYTES = 1 << 20  # smaller journals are not worth rewriting


class Record(NamedTuple):
    """What one action made when it last ran: its signature, its key, and each output file."""

    signature: str
    key: str
    files: tuple[tuple[str, str, int, bool], ...]  # path from the working directory, hash, size, executable
    directories: tuple[str, ...]


class Journal:
    """A name -> value map on disk that survives being killed at any moment."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.entries: dict[str, Any] = {}
        self._read = 0  # how far into the file `entries` reflects it
        self._inode = 0
        self._frames = 0
        self._catch_up()

    def append(self, items: Iterable[tuple[str, Any]]) -> None:
        """Set these entries, here and on disk."""
        frames = []
        for name, value in items:
            self.entries[name] = value
            payload = marshal.dumps((name, value))
            frames.append(_FRAME.pack(len(payload), crc32(payload)) + payload)
        if not frames:
            return
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with exclusive(self._path + ".lock"):
            mine = dict(self.entries) if self._moved() else None
            self._catch_up()
            if mine is not None:
                self.entries.update(mine)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(descriptor, self._read)  # a torn tail would hide what follows it
                os.pwrite(descriptor, b"".join(frames), self._read)
                self._inode = os.fstat(descriptor).st_ino
            finally:
                os.close(descriptor)
            self._read += sum(map(len, frames))
            self._frames += len(frames)

    def compact(self) -> None:
        """Rewrite the file with one frame an entry, when most of it is history."""
        if self._read < _COMPACT_BYTES or self._frames < 2 * len(self.entries):
            return
        with exclusive(self._path + ".lock"):
            self._catch_up()
            temporary = f"{self._path}.{os.getpid()}.tmp"
            with open(temporary, "wb") as file:
                for item in self.entries.items():
                    payload = marshal.dumps(item)
                    file.write(_FRAME.pack(len(payload), crc32(payload)) + payload)
            os.replace(temporary, self._path)
            self._read = os.path.getsize(self._path)
            self._inode = os.stat(self._path).st_ino
            self._frames = len(self.entries)

    def _moved(self) -> bool:
        """Whether another process rewrote the file since we read it."""
        try:
            return os.stat(self._path).st_ino != self._inode
        except FileNotFoundError:
            return self._inode != 0

    def _catch_up(self) -> None:
        """Read what the file holds beyond what we know, up to the first bad frame."""
        try:
            with open(self._path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._read, self._frames = inode, 0, 0
                    self.entries.clear()
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            self._inode = self._read = self._frames = 0
            return
        position = 0
        while position + _FRAME.size <= len(content):
            length, check = _FRAME.unpack_from(content, position)
            payload = content[position + _FRAME.size : position + _FRAME.size + length]
            # Zeros, which a power failure leaves at the end of a file, would pass for an empty frame.
            if not length or len(payload) != length or crc32(payload) != check:
                break
            name, value = marshal.loads(payload)
            self.entries[name] = value
            position += _FRAME.size + length
            self._frames += 1
        self._read += position


def built_platforms(folder: str) -> set[str]:
    """The names of the output folders beside the state folder that builds have filled."""
    made = Journal(os.path.join(folder, "actions.v1")).entries
    return {name.split("/")[1] for name in made if name.startswith("/")}


class State:
    """The memory of one output folder."""

    def __init__(self, folder: str, root: str) -> None:
        self.folder = folder
        self._root = root
        self._actions = Journal(os.path.join(folder, "actions.v1"))
        self._described: Journal | None = None
        self._sources: dict[str, tuple[Fingerprint, Digest, bool]] = {}  # of this build
        self._fresh: dict[str, tuple[Fingerprint | None, str, int]] = {}
        self._links: dict[str, int] = {}

    def record(self, action: str) -> Record | None:
        """What the action of this id made last."""
        found = self._actions.entries.get(action)
        return Record(*found) if found else None

    def remember(self, action: str, record: Record, description: tuple[Any, ...] | None) -> None:
        """Keep what an action made, and from what when it was executed or fetched."""
        self._actions.append([(action, tuple(record))])
        if description is not None:
            self._descriptions().append([(action, description)])

    def description(self, action: str) -> tuple[Any, ...] | None:
        """What went into the action when it last ran."""
        found: tuple[Any, ...] | None = self._descriptions().entries.get(action)
        return found

    def _descriptions(self) -> Journal:
        if self._described is None:
            self._described = Journal(os.path.join(self.folder, "described.v1"))
        return self._described

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
        remembered = self._actions.entries.get(path)
        if remembered and remembered[0] == now:
            found = Digest(remembered[1], remembered[2])
        else:
            # The stat from before the hashing: what is written meanwhile shows as a change later.
            hashed_at = time.time_ns()
            found = digest.of_file(absolute)
            # A file written in the last moments may change again without a new time stamp: hash it again next time.
            trusted = None if is_racy(now, hashed_at) else now
            self._fresh[path] = (trusted, found.hash, found.size)
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

    def sources(self) -> Mapping[str, tuple[Fingerprint | None, Digest]]:
        """Every source file read in this build: its fingerprint (None where it is too young to trust) and digest."""
        return {
            path: (None if path in self._fresh and self._fresh[path][0] is None else seen, found)
            for path, (seen, found, _) in self._sources.items()
        }

    def save(self) -> None:
        """Write what is not written yet."""
        self._actions.append(self._fresh.items())
        self._fresh = {}
        self._actions.compact()
        if self._described is not None:
            self._described.compact()


def _link_time(path: str) -> int:
    """When a symbolic link was made; 0 for anything else."""
    status = os.lstat(path)
    return status.st_ctime_ns if S_ISLNK(status.st_mode) else 0
