"""The filelock room: locks by key that name their holder, and a plain lock on one file.

Knows folders, keys as hex and what to call them; nothing of actions. Layout:

    <folder>/<key>.lock         the lock of a key that somebody holds: another name of a claim of the holder's
    <folder>/claims/<random>    a claim for each thread that holds keys: JSON {"label", "pid", "host", "since"}

A claim is locked (`flock`) as long as its process lives: the kernel frees it when that one dies, however it dies. So a
lock whose claim is free is a dead holder's, and whoever gets to lock that claim may remove it. Making a name for a file
that is there costs a fourth of what making a file does, and nothing has to stay for ever.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from hidet_build.errors import EnvironmentFailure, Interrupted, LockHeld

_FIRST_POLL, _LAST_POLL = 0.005, 0.05
_TELL_AFTER = 0.5  # seconds of waiting that need no explanation
# The file system has no hard links, or no more of them.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class Holder(NamedTuple):
    """Who holds a lock, as it says of itself; an empty label and pid 0 where that is not known."""

    label: str = ""
    pid: int = 0
    host: str = ""
    since: float = 0.0  # seconds since the epoch

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        clock = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host} ({self.label}, since {clock})"


class KeyLocks:
    """One lock for each action key, shared by everybody who uses the same folder.

    `waiting(holder, seconds)` is called once a wait, within a second, from the thread that waits. `timeout` limits a
    wait, `block=False` forbids it, `cancelled` ends it. Threads of one process exclude each other like processes do.
    """

    def __init__(
        self,
        folder: str,
        waiting: Callable[[Holder, float], None],
        timeout: float | None = None,
        block: bool = True,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder
        self._waiting = waiting
        self._timeout = timeout
        self._block = block
        self._cancelled = cancelled
        self._host = os.uname().nodename
        self._free: list[_Claim] = []
        self._swept = False

    @contextmanager
    def hold(self, key_hash: str, label: str) -> Iterator[None]:
        """Hold the lock of a key while the body runs; `label` is what others are told meanwhile.

        Raises LockHeld when we may not wait (any longer), Interrupted when cancelled, EnvironmentFailure when the
        folder cannot hold locks.
        """
        path = f"{self._folder}/{key_hash}.lock"
        with _explained(self._folder):
            claim = self._acquire(path, label)
        try:
            yield
        finally:
            claim.withdraw(path)
            self._free.append(claim)

    def close(self) -> None:
        """Remove the claims that hold nothing now; later ones are made anew."""
        while self._free:
            self._free.pop().close()

    def _acquire(self, path: str, label: str) -> _Claim:
        started = time.monotonic()
        claim = self._claim()
        try:
            while True:
                claim.sign(label, self._host)
                try:
                    if claim.put(path):
                        return claim
                except FileNotFoundError:  # somebody cleaned the folder
                    fresh = _Claim(f"{self._folder}/claims")
                    claim.close()
                    claim = fresh
                    continue
                self._wait(path, label, started)
        except BaseException:
            self._free.append(claim)
            raise

    def _claim(self) -> _Claim:
        try:
            return self._free.pop()
        except IndexError:
            claim = _Claim(f"{self._folder}/claims")
        if not self._swept:
            self._swept = True
            _sweep(f"{self._folder}/claims")
        return claim

    def _wait(self, path: str, label: str, started: float) -> None:
        """Wait until nobody has the lock."""
        if not self._cancelled() and _is_left(path, _try_lock):
            return
        from filelock import lock_descriptor  # 30 ms, only for who has to wait

        pause, told = _FIRST_POLL, False
        while True:
            if self._cancelled():
                raise Interrupted(f"stopped while waiting for the lock of {label}")
            if _is_left(path, lambda descriptor: lock_descriptor(descriptor, blocking=False)):
                return
            waited = time.monotonic() - started
            left = float("inf") if self._timeout is None else self._timeout - waited
            if not self._block or left <= 0:
                raise self._refusal(label, _read_holder(path, self._host), waited)
            if not told and waited >= _TELL_AFTER:
                told = True
                self._waiting(_read_holder(path, self._host), waited)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_POLL)

    def _refusal(self, label: str, holder: Holder, waited: float) -> LockHeld:
        if self._block:
            return LockHeld(
                f"{label} is locked by {holder}; gave up after {waited:.1f} s",
                hint="wait longer with --lock_timeout=SECONDS, or see what that process is doing",
            )
        return LockHeld(
            f"{label} is locked by {holder}",
            hint="--block_for_lock waits for it; --lock_timeout=SECONDS waits that long",
        )


class _Claim:
    """A file of ours that is locked while we live, and becomes the lock of a key by getting its name, too."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._path, self._descriptor = _new_claim(folder)
        self._stand_in = -1  # where there are no hard links: the lock itself, while we hold one
        self._text = b""

    def sign(self, label: str, host: str) -> None:
        """Say who we are and what we hold a lock for."""
        text = {"label": label, "pid": os.getpid(), "host": host, "since": time.time()}
        # Spaces hide the end of a longer text from before.
        self._text = json.dumps(text).encode().ljust(len(self._text))
        os.pwrite(self._descriptor, self._text, 0)

    def put(self, path: str) -> bool:
        """Make this the lock at `path`; false where there is one. FileNotFoundError where a folder is gone."""
        try:
            os.link(self._path, path)
            return True
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        return self._put_stand_in(path)

    def _put_stand_in(self, path: str) -> bool:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return False
        # Until it is locked it looks like a dead holder's, and may be removed.
        if not _try_lock(descriptor) or not os.fstat(descriptor).st_nlink:
            os.close(descriptor)
            return False
        os.pwrite(descriptor, self._text, 0)
        self._stand_in = descriptor
        return True

    def withdraw(self, path: str) -> None:
        """Give the lock at `path` back."""
        descriptor = self._descriptor if self._stand_in < 0 else self._stand_in
        with suppress(OSError):
            if _is_at(path, descriptor):  # nobody cleaned the folder
                os.unlink(path)
        if self._stand_in >= 0:
            os.close(self._stand_in)
            self._stand_in = -1

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            os.unlink(self._path)
        os.close(self._descriptor)


def _new_claim(folder: str) -> tuple[str, int]:
    while True:
        path = f"{folder}/{os.urandom(8).hex()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            # Whoever sweeps may have been here before us.
            if _try_lock(descriptor) and os.fstat(descriptor).st_nlink:
                return path, descriptor
        except BaseException:
            os.close(descriptor)
            os.unlink(path)
            raise
        os.close(descriptor)


def _sweep(folder: str) -> None:
    """Remove the claims of the dead."""
    for name in os.listdir(folder):
        with suppress(OSError):
            _is_left(f"{folder}/{name}", _try_lock)


def _is_left(path: str, lock: Callable[[int], bool]) -> bool:
    """Whether nobody has the lock at `path`; what a dead holder left is removed. `lock` locks, or says no."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    # Closing gives the lock of the file back.
    try:
        if not lock(descriptor):
            return False
        # Only who has locked the file may take this name of it away, so nobody can have put another there since.
        if _is_at(path, descriptor):
            os.unlink(path)
        return True
    except FileNotFoundError:  # given back this moment
        return True
    finally:
        os.close(descriptor)


def _is_at(path: str, descriptor: int) -> bool:
    return os.path.samestat(os.lstat(path), os.fstat(descriptor))


def _try_lock(descriptor: int) -> bool:
    """Lock a file if nobody has: what filelock would do first, without its import."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(path: str, host: str) -> Holder:
    # Between taking the lock and writing the text the file says what a killed holder left: a dead pid gives it away.
    try:
        with open(path, "rb") as file:
            text = json.loads(file.read(4096))
        holder = Holder(str(text["label"]), int(text["pid"]), str(text["host"]), float(text["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Holder()
    if holder.host == host and not os.path.exists(f"/proc/{holder.pid}"):
        return Holder()
    return holder


@contextmanager
def exclusive(path: str, block: bool = True) -> Iterator[None]:
    """Hold the lock of the file `path` alone while the body runs; the file is made and stays.

    It costs no import and names no holder. Raises LockHeld when somebody holds it and `block` is false.
    """
    with _flock(path, fcntl.LOCK_EX, block):
        yield


@contextmanager
def shared(path: str, block: bool = True) -> Iterator[None]:
    """Hold the lock of the file `path` together with others that share it, and with no `exclusive` one."""
    with _flock(path, fcntl.LOCK_SH, block):
        yield


@contextmanager
def _flock(path: str, kind: int, block: bool) -> Iterator[None]:
    folder = os.path.dirname(path) or "."
    with _explained(folder):
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            with _explained(folder):
                fcntl.flock(descriptor, kind if block else kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockHeld(f"another process holds {path}", hint="--block_for_lock waits for it") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _explained(folder: str) -> Iterator[None]:
    # A lock that cannot be had must stop the build: going on without it is how two builds write one file.
    try:
        yield
    except (BlockingIOError, TimeoutError):
        raise  # somebody holds it: not a trouble of the folder
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise EnvironmentFailure(
                f"the file system of {folder} has no locks (flock: {error.strerror})",
                hint="move it to a local disk: --output_base=FOLDER for outputs, --disk_cache=FOLDER for the store",
            ) from error
        raise EnvironmentFailure(
            f"cannot lock in {folder}: {error.strerror}",
            hint="it must be a folder we may write to; --output_base=FOLDER or --disk_cache=FOLDER moves it",
        ) from error
