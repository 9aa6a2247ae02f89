"""Files on disk: sealing, fingerprints, atomic writing, and putting stored content at an output path.

Knows paths and digests; nothing of actions, caches or which folders are whose.

A *sealed* file is read-only and carries a modification time made from its digest, so one `stat` says whether it still
holds that content: whatever writes to it moves the time. Hard links keep the seal, which is why an output and the blob
it was linked from are checked alike, and why an edited output can never be taken for the stored content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable
from enum import Enum

from hidet_build.digest import Digest

Fingerprint = tuple[int, int, int, int]
"""What `stat` says of a file: mtime_ns, ctime_ns, size, inode."""

RACY_NS = 2_000_000_000  # FAT keeps even seconds; everything else is finer

_SEAL_START = 978_307_200  # 2001-01-01: old enough that no tool takes a sealed file for a new one
_SEAL_SPAN = 757_382_400  # up to 2025-01-01

_TEMPORARY = ".hidet-build-"
_FICLONE = 0x40049409  # linux/fs.h; the fcntl module names it only from Python 3.12 on
_CHUNK = 1 << 22
# The file systems cannot do it at all, in contrast to "not with this file".
_UNSUPPORTED = frozenset(
    {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY, errno.EINVAL, errno.EBADF}
)
_NOT_THIS_FILE = frozenset({errno.EMLINK, errno.EPERM, errno.EACCES})


def fingerprint(path: str) -> Fingerprint:
    """The fingerprint of the file at `path` (links followed); OSError as `os.stat` raises it."""
    return fingerprint_of(os.stat(path))


def mark(path: str) -> Fingerprint | None:
    """The fingerprint of the file at `path`, or None where there is none that can be seen."""
    try:
        return fingerprint(path)
    except OSError:
        return None


def fingerprint_of(status: os.stat_result) -> Fingerprint:
    """The same from a `stat` that was already made."""
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def is_racy(mark: Fingerprint, now_ns: int | None = None) -> bool:
    """Whether a file hashed at `now_ns` changed so shortly before that it may change again without a trace.

    Such a fingerprint proves nothing next time: a second edit could fall into the same tick of the clock. Times in
    the future count too, they will be "shortly before" one day.
    """
    now = time.time_ns() if now_ns is None else now_ns
    return max(mark[0], mark[1]) > now - RACY_NS


def seal_time_ns(content_hash: str) -> int:
    """The modification time that says "this is the content of that SHA-256", between 2001 and 2025.

    Seconds and fraction come from different digits of the hash, so tools that compare whole seconds see other content
    as changed. Whole microseconds, because some file systems keep no more.
    """
    seconds = _SEAL_START + int(content_hash[:12], 16) % _SEAL_SPAN
    return seconds * 1_000_000_000 + int(content_hash[12:24], 16) % 1_000_000 * 1000


def is_sealed(status: os.stat_result, digest: Digest) -> bool:
    """Whether `status` is that of a file which was sealed as `digest` and not written to since."""
    return status.st_size == digest.size and status.st_mtime_ns == seal_time_ns(digest.hash)


def seal(path: str, digest: Digest, executable: bool) -> None:
    """Make the file read-only and give it the time of its digest; the caller knows that the digest is right."""
    os.chmod(path, 0o555 if executable else 0o444)
    moment = seal_time_ns(digest.hash)
    os.utime(path, ns=(moment, moment))


def temporary_path(folder: str) -> str:
    """A path in `folder` that nobody else uses, hidden, and short enough for any file system."""
    return f"{folder}/{_TEMPORARY}{os.urandom(8).hex()}"


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that somebody is writing."""
    return name.startswith(_TEMPORARY)


def write_atomic(path: str, content: bytes, executable: bool = False) -> None:
    """Put `content` at `path` so that readers see the old file or the new one, whole. Parents are made as needed."""
    folder = os.path.dirname(path) or "."
    temporary = temporary_path(folder)
    mode = 0o777 if executable else 0o666
    try:
        write_new(temporary, content, mode)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        write_new(temporary, content, mode)
    _rename(temporary, path)


def write_new(path: str, content: bytes, mode: int, mtime_ns: int | None = None) -> None:
    """Create `path`, which must not exist, with all of `content`; nothing is left there when that fails.

    The umask limits `mode`, so what a user keeps private stays so.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if mtime_ns is not None:
                os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(descriptor)
    except BaseException:
        os.unlink(path)
        raise


def make_folder(path: str) -> None:
    """Make the folder and its parents; a file or dangling link that stands in the way is removed.

    Meant for paths below a folder that is ours and exists: then nothing outside it can be in the way.
    """
    for _ in range(3):  # another thread may be clearing the same way
        try:
            os.makedirs(path, exist_ok=True)
            return
        except (FileExistsError, FileNotFoundError, NotADirectoryError):
            _clear_way(path)
    os.makedirs(path, exist_ok=True)


def _clear_way(path: str) -> None:
    while path:
        if os.path.isdir(path):
            return
        try:
            os.unlink(path)
            return
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)


def is_closed(path: str) -> bool:
    """Whether no process has the file at `path` open; false where that cannot be told, OSError where there is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # The kernel gives a lease for writing to who alone has a file open, until he closes it. Who opens the file this
        # moment has us sent a signal: one that does nothing, not the usual one, which ends a process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Remove what is at `path`: a file, a link (not what it points to), a folder with all it holds, or nothing."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except IsADirectoryError:
        _remove_folder(path)


def _remove_folder(path: str) -> None:
    # Not shutil.rmtree: its import costs more than most builds remove, and it stops at a read-only folder.
    try:
        os.rmdir(path)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for child, is_folder in found:
        if is_folder:
            _remove_folder(child)
        else:
            remove(child)
    os.rmdir(path)


class Placed(Enum):
    """How a blob got to its output path."""

    KEPT = "kept"  # the path already was this very file
    REFLINK = "reflink"
    HARDLINK = "hardlink"
    COPY = "copy"


class Placer:
    """Puts sealed blobs at output paths, and remembers for each pair of devices what works between them.

    Safe to use from several threads: the worst that can happen is that two of them find out the same thing.
    """

    def __init__(self) -> None:
        self._methods: dict[tuple[int, int], Placed] = {}
        self._linking: set[int] = set()  # devices of blobs to which hard links were made

    def place(
        self,
        blob_path: str,
        target_path: str,
        digest: Digest,
        executable: bool,
        blob: os.stat_result | None = None,
    ) -> Placed:
        """Make `target_path` a sealed file with the blob's content, at once or not at all.

        The caller knows the blob to be intact. What stood at the target is replaced: a file, a link (never followed),
        a folder with all it holds; so is a file where a parent folder must be (see `make_folder`). Hard links share
        one mode, so a blob whose executable bit is not the wanted one is copied. `blob` is what `stat` just said of
        it, if the caller has asked. OSError when it cannot be done, FileNotFoundError when the blob is gone.
        """
        blob = blob or os.stat(blob_path)
        may_link = bool(blob.st_mode & 0o111) == executable
        if may_link and blob.st_dev in self._linking:
            how = _link_at_once(blob_path, blob, target_path)
            if how:
                return how
        pair = (blob.st_dev, _device(os.path.dirname(target_path) or "."))
        method = self._methods.get(pair, Placed.REFLINK)
        if method is Placed.REFLINK:
            try:
                _fill(blob_path, target_path, digest, executable, _clone)
                return Placed.REFLINK
            except OSError as error:
                method = self._next(pair, error, Placed.HARDLINK)
        if method is Placed.HARDLINK and may_link:
            try:
                how = _hard_link(blob_path, blob, target_path)
                self._linking.add(blob.st_dev)
                return how
            except OSError as error:
                method = self._next(pair, error, Placed.COPY)
        # Where blocks cannot be shared, trying to would be one call more for each file.
        transfer = _send if self._methods.get(pair) is Placed.COPY else _clone_or_send
        _fill(blob_path, target_path, digest, executable, transfer)
        return Placed.COPY

    def _next(self, pair: tuple[int, int], error: OSError, method: Placed) -> Placed:
        # What to try after `error`; for good where the devices cannot do it, else for this file only.
        if error.errno in _UNSUPPORTED:
            self._methods[pair] = method
        elif error.errno not in _NOT_THIS_FILE:
            raise error
        return method


def _device(folder: str) -> int:
    try:
        status = os.stat(folder)
        if stat.S_ISDIR(status.st_mode):
            return status.st_dev
    except FileNotFoundError:
        with contextlib.suppress(OSError):  # more than this one is missing, or something is in the way
            os.mkdir(folder)
            return os.stat(folder).st_dev
    except NotADirectoryError:
        pass
    make_folder(folder)
    return os.stat(folder).st_dev


def _link_at_once(blob_path: str, blob: os.stat_result, target_path: str) -> Placed | None:
    # Most targets are on the device of those before: then a link is all there is to do, or a folder and a link.
    try:
        return _hard_link(blob_path, blob, target_path)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            os.mkdir(target_path.rpartition("/")[0])
            return _hard_link(blob_path, blob, target_path)
    except OSError:
        pass
    return None


def _hard_link(blob_path: str, blob: os.stat_result, target_path: str) -> Placed:
    try:
        os.link(blob_path, target_path)
        return Placed.HARDLINK
    except FileExistsError:
        if os.path.samestat(blob, os.lstat(target_path)):
            return Placed.KEPT
    temporary = temporary_path(os.path.dirname(target_path) or ".")
    os.link(blob_path, temporary)
    _rename_over(temporary, target_path)
    # rename(2) does nothing, successfully, when both names already are the same file; then the temporary one stays.
    remove(temporary)
    return Placed.HARDLINK


def copy(source_path: str, target_path: str, digest: Digest, executable: bool) -> None:
    """Copy a file's content (links followed) to a new sealed file, whose folder must exist; see `Placer.place`.

    Unlike `place` it never makes another name of the same file, though it shares the blocks where the file system can.
    The digest is taken at the caller's word.
    """
    _fill(source_path, target_path, digest, executable, _clone_or_send)


def duplicate(source_path: str, target_path: str) -> None:
    """Copy a file's content and mode to a new file."""
    with open(source_path, "rb", buffering=0) as source, open(target_path, "xb", buffering=0) as target:
        _clone_or_send(source.fileno(), target.fileno())
        os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o777)


def _clone_or_send(source: int, target: int) -> None:
    try:
        _clone(source, target)
    except OSError:  # another device, or no such file system: nothing was written
        _send(source, target)


def _clone(source: int, target: int) -> None:
    fcntl.ioctl(target, _FICLONE, source)


def _send(source: int, target: int) -> None:
    while os.sendfile(target, source, None, _CHUNK):
        pass


def _fill(
    blob_path: str, target_path: str, digest: Digest, executable: bool, transfer: Callable[[int, int], None]
) -> None:
    # A temporary file is filled, sealed and renamed; `transfer(source, target)` moves the bytes.
    temporary = temporary_path(os.path.dirname(target_path) or ".")
    moment = seal_time_ns(digest.hash)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    source = os.open(blob_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(temporary, flags, 0o600)
        try:
            transfer(source, target)
            os.fchmod(target, 0o555 if executable else 0o444)
            os.utime(target, ns=(moment, moment))
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(target)
    finally:
        os.close(source)
    _rename_over(temporary, target_path)


def _rename_over(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except IsADirectoryError:
        remove(path)
        _rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _rename(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
