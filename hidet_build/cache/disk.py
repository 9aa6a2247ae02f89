"""The disk cache: a folder of results and content that all workspaces of a user share. Knows no action, only keys.

The layout is the one Bazel's disk cache has, so either can read the other's entries:

    ac/01/0123...     an ActionResult message, named by the digest of its Action; written after all it names
    cas/ab/abcd...    content, named by its digest; read-only and sealed (see `files`), 0555 if stored as executable
    tmp/              what is being written; one rename takes it from here to its name

Nothing is locked: names are digests, so whoever writes one writes the same, and a reader sees all of it or nothing. A
process killed at any point leaves a file in tmp/, and tmp/ is emptied of what is older than a day. There is no fsync:
after a power failure a blob may be short or empty, and then its seal (size and time) does not fit.

A blob whose seal fits is taken as intact. One without (Bazel wrote or read it, somebody edited an output that is a
hard link to it) is hashed before it is used: right, it is sealed again; wrong, it is dropped.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from hidet_build import digest as digests
from hidet_build import reapi
from hidet_build.action import ActionResult
from hidet_build.cache.base import Stored
from hidet_build.digest import Digest
from hidet_build.errors import EnvironmentFailure
from hidet_build.files import Placer, copy, is_sealed, remove, seal, seal_time_ns, temporary_path, write_new

_STALE = 24 * 3600  # seconds after which nobody is writing a file in tmp/ any more
_USED = 3600  # seconds between two notes that an entry was of use
_UNREADABLE = (errno.EIO, errno.ESTALE)
_NAME = re.compile(r"[0-9a-f]{64}\Z")


class Unsound(Exception):
    """A file of a cache folder that is not what its name says; the text says what is wrong with it."""


@dataclass(frozen=True)
class Verified:
    """What `verify` found: how many entries and blobs are right, and the paths of what it dropped."""

    entries: int
    blobs: int
    size: int
    dropped: tuple[str, ...]


class DiskCache:
    """The cache in `folder`, which is made as needed; EnvironmentFailure when we cannot write there."""

    name = "disk"

    def __init__(self, folder: str, placer: Placer, read_only: bool = False) -> None:
        """A cache in `folder`, which is made as needed; with `read_only` it only gives, as one in an image has to.

        EnvironmentFailure where it cannot be written to.
        """
        self.folder = folder
        self._placer = placer
        self._temporary = f"{folder}/tmp"
        self._read_only = read_only
        if read_only:
            return
        try:
            os.makedirs(self._temporary, exist_ok=True)
            probe = temporary_path(self._temporary)
            write_new(probe, b"disk cache\n", 0o600)
            os.unlink(probe)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot write to the disk cache {folder}: {error.strerror}",
                hint="--disk_cache=FOLDER puts it elsewhere, --disk_cache= does without",
            ) from error
        self._clean_temporary()

    def _clean_temporary(self) -> None:
        oldest = time.time() - _STALE
        with suppress(OSError), os.scandir(self._temporary) as entries:
            for entry in entries:
                with suppress(OSError):
                    # Not by mtime: that of a sealed file follows from its content.
                    if entry.stat(follow_symlinks=False).st_ctime < oldest:
                        remove(entry.path)

    def get(self, key: Digest, working_directory: str = "") -> ActionResult | None:
        """The result stored under `key`, if all its content is here and intact. An entry that is garbage goes."""
        path = self._path("ac", key.hash)
        content = self._read_entry(path)
        if content is None:
            return None
        from hidet_build import messages  # protobuf: 40 ms, and a build that runs all it has to needs none

        try:
            result = messages.decode_result(content, self.read, working_directory)
        except messages.BadMessage:
            # Gone content is no fault of the entry, but then it is of no use either: the next `put` writes it anew.
            with suppress(OSError):
                os.unlink(path)
            return None
        if all(self._has(file.digest) for file in result.files):
            return result
        return None

    def place(self, digest: Digest, executable: bool, target_path: str) -> bool:
        """Put a blob at an output path; false when it is gone, wrong or not ours to read."""
        blob = self._sound(digest)
        if blob is None:
            return False
        path = self._path("cas", digest.hash)
        try:
            self._placer.place(path, target_path, digest, executable, blob)
        except OSError as error:
            if error.errno in _UNREADABLE or not os.access(path, os.R_OK):  # dropped by another process just now
                return False
            raise  # the trouble is at the target
        return True

    def read(self, digest: Digest) -> bytes | None:
        """The content of a blob, hashed; None when it is gone, wrong or not ours to read."""
        path = self._path("cas", digest.hash)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:
            return b"" if digest == digests.EMPTY else None
        found = digests.of_bytes(content)
        if found == digest:
            return content
        if found.hash != digest.hash:  # an entry that says a wrong size is no fault of the blob
            with suppress(OSError):
                os.unlink(path)
        return None

    def put(
        self,
        key: Digest,
        result: ActionResult,
        files: Mapping[str, str],
        messages: Iterable[bytes] = (),  # noqa: ARG002
        working_directory: str = "",
    ) -> Stored:
        """Store a result: its files become sealed and are linked in (copied from another device), its entry is last.

        The messages that belong to the key are not kept: nobody asks a folder to run a command, and they would be two
        of five files that an action costs.

        The files stay where they are; the caller places outputs from the cache or renames them.
        """
        if self._read_only:
            return Stored(False, f"nothing is kept in {self.folder}, for all is required to be there")
        try:
            encoded = reapi.encode_result(result, working_directory)
            for file in result.files:
                self._add_file(files[file.path], file.digest, file.executable)
            for tree in encoded.trees:
                self._add(tree)
            self._write("ac", key.hash, encoded.content, 0o644, None)
        except OSError as error:
            return Stored(False, f"{error.strerror or error}: {error.filename2 or error.filename or self.folder}")
        return Stored(True)

    def adopt(self, path: str, content_hash: str) -> int | None:
        """Copy in a file that is said to hold the content of this name: its size in bytes, or None where we have it.

        It is hashed on either side of the copying, whatever its seal says. It becomes no second name of the file:
        who edits an exported folder must not reach into the store, nor the other way round. Raises Unsound when the
        file is something else or cannot be read, OSError when it cannot be written here.
        """
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
                raise Unsound("it is not a regular file")
            digest = digests.of_file(path)
        except OSError as error:
            raise Unsound(f"it cannot be read ({error.strerror})") from None
        if digest.hash != content_hash:
            raise Unsound("its content is not what its name says")
        if self._has(digest):
            return None
        self._copy(path, digest, bool(status.st_mode & 0o111))
        return digest.size

    def adopt_entry(self, key_hash: str, content: bytes) -> bool:
        """Store an encoded result whose content was adopted before; false where there is a whole one for this key.

        Raises Unsound when it is no result, or what it needs is not all here; OSError when it cannot be written.
        """
        self.needs(content)
        known = self._read_entry(self._path("ac", key_hash))
        with suppress(Unsound):
            if known is not None and self.needs(known) is not None:
                return False
        self._write("ac", key_hash, content, 0o644, None)
        return True

    def needs(self, content: bytes) -> tuple[Digest, ...]:
        """All content that an encoded result names, in its folders too.

        Raises Unsound when it is no result of a success, or when some of that content is not here.
        """
        from hidet_build import messages  # as in `get`

        try:
            named = dict.fromkeys(messages.references(content))
            self._require(named)
            named.update(dict.fromkeys(file.digest for file in messages.decode_result(content, self.read).files))
        except messages.BadMessage as error:
            raise Unsound(f"it is no result that we can use ({error})") from None
        self._require(named)
        return tuple(named)

    def _require(self, named: Iterable[Digest]) -> None:
        for digest in named:
            if not self._has(digest):
                raise Unsound(f"it names the content {digest.hash[:12]}..., which is missing or wrong")

    def verify(self) -> Verified:
        """Hash everything, drop what is wrong, then drop entries that cannot be read or name content that is gone.

        Others may use the cache meanwhile. Blobs that no entry names are left alone, they are not wrong.
        """
        from hidet_build import messages  # as in `get`

        dropped: list[str] = []
        blobs = entries = size = 0
        for name, path in walk(self.folder, "cas"):
            with suppress(OSError):
                digest = digests.of_file(path)
                if digest.hash != name:
                    os.unlink(path)
                    dropped.append(path)
                    continue
                _reseal(path, digest)
                blobs, size = blobs + 1, size + digest.size
        for _, path in walk(self.folder, "ac"):
            with suppress(OSError):
                try:
                    with open(path, "rb") as file:
                        named = messages.references(file.read())
                    intact = all(self._has(digest) for digest in named)
                except messages.BadMessage:
                    intact = False
                if intact:
                    entries += 1
                else:
                    os.unlink(path)
                    dropped.append(path)
        return Verified(entries, blobs, size, tuple(dropped))

    def _path(self, kind: str, content_hash: str) -> str:
        return path_of(self.folder, kind, content_hash)

    def _read_entry(self, path: str) -> bytes | None:
        # The time of an entry says when it was last of use, for whoever has to choose what to drop. (A blob's time is
        # its seal.)
        try:
            with open(path, "rb") as file:
                content = file.read()
                if time.time() - os.fstat(file.fileno()).st_mtime > _USED:
                    with suppress(OSError):
                        os.utime(file.fileno())
                return content
        except OSError:
            return None

    def _has(self, digest: Digest) -> bool:
        return self._sound(digest) is not None

    def _sound(self, digest: Digest) -> os.stat_result | None:
        # What `stat` says of the blob, if it is here, intact, and readable.
        path = self._path("cas", digest.hash)
        try:
            status = os.stat(path)
            if is_sealed(status, digest):
                return status if status.st_uid == os.geteuid() or os.access(path, os.R_OK) else None
            if not stat.S_ISREG(status.st_mode):
                return None
            found = digests.of_file(path)
            if found == digest:
                _reseal(path, digest)
                return status
            if found.hash != digest.hash:  # an entry that says a wrong size is no fault of the blob
                os.unlink(path)
            return None
        except OSError:
            return os.stat(path) if digest == digests.EMPTY and self._add_empty() else None

    def _add_empty(self) -> bool:
        # Remote caches and Bazel never store the empty blob: everybody has it.
        with suppress(OSError):
            self._add(b"")
            return True
        return False

    def _add_file(self, path: str, digest: Digest, executable: bool) -> None:
        if self._has(digest):
            return
        status = os.lstat(path)
        if status.st_size != digest.size and stat.S_ISREG(status.st_mode):
            raise OSError(0, "the file changed after it was hashed", path)
        # What has other names already may be somebody's source file; sealing would change that one, too.
        if stat.S_ISREG(status.st_mode) and (status.st_nlink == 1 or is_sealed(status, digest)):
            seal(path, digest, executable)
            if self._link(path, digest):
                return
        self._copy(path, digest, executable)

    def _link(self, path: str, digest: Digest) -> bool:
        # False on another device, without hard links, and when a blob that we cannot use has the name: then a copy
        # takes its place.
        blob_path = self._path("cas", digest.hash)
        with suppress(FileNotFoundError):
            return _try_link(path, blob_path)
        with suppress(OSError):
            os.makedirs(os.path.dirname(blob_path), exist_ok=True)
            return _try_link(path, blob_path)
        return False

    def _copy(self, path: str, digest: Digest, executable: bool) -> None:
        def fill(temporary: str) -> None:
            copy(path, temporary, digest, executable)
            if digests.of_file(temporary) != digest:
                raise OSError(0, "the file changed after it was hashed", path)

        self._put("cas", digest.hash, fill)

    def _add(self, content: bytes) -> None:
        digest = digests.of_bytes(content)
        try:
            if is_sealed(os.stat(self._path("cas", digest.hash)), digest):
                return
        except OSError:
            pass
        self._write("cas", digest.hash, content, 0o444, seal_time_ns(digest.hash))

    def _write(self, kind: str, content_hash: str, content: bytes, mode: int, mtime_ns: int | None) -> None:
        self._put(kind, content_hash, lambda temporary: write_new(temporary, content, mode, mtime_ns))

    def _put(self, kind: str, content_hash: str, fill: Callable[[str], None]) -> None:
        # Have a file filled in tmp/, and give it its name.
        try:
            self._put_once(kind, content_hash, fill)
        except FileNotFoundError:
            # Who ends an export takes tmp/ away, when it is empty. If it is a source that is gone, this says so.
            os.makedirs(self._temporary, exist_ok=True)
            self._put_once(kind, content_hash, fill)

    def _put_once(self, kind: str, content_hash: str, fill: Callable[[str], None]) -> None:
        temporary = temporary_path(self._temporary)
        try:
            fill(temporary)
            self._rename(kind, content_hash, temporary)
        except BaseException:
            remove(temporary)
            raise

    def _rename(self, kind: str, content_hash: str, temporary: str) -> None:
        path = self._path(kind, content_hash)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(temporary, path)


def path_of(folder: str, kind: str, content_hash: str) -> str:
    """Where a cache in `folder` has an entry (kind "ac") or content ("cas")."""
    return f"{folder}/{kind}/{content_hash[:2]}/{content_hash}"


def walk(folder: str, kind: str) -> Iterator[tuple[str, str]]:
    """Every entry ("ac") or blob ("cas") of the cache in `folder`, its name and its path; other files are passed over.

    Needs no right to write there. What cannot be listed is passed over too.
    """
    for first in range(256):
        digits = f"{first:02x}"
        try:
            names = sorted(os.listdir(f"{folder}/{kind}/{digits}"))
        except OSError:
            continue
        yield from ((name, path_of(folder, kind, name)) for name in names if _NAME.match(name) and name[:2] == digits)


def _try_link(path: str, blob_path: str) -> bool:
    try:
        os.link(path, blob_path)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _reseal(path: str, digest: Digest) -> None:
    # Somebody else's file stays as it is, and is hashed again the next time.
    status = os.stat(path)
    if not is_sealed(status, digest) or status.st_mode & 0o222:
        with suppress(OSError):
            seal(path, digest, bool(status.st_mode & 0o111))
