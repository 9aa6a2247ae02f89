"""The filelock room: locks by key that name their holder, and a plain lock on one file.

Knows folders, keys as hex and what to call them; nothing of actions. Layout:

    <folder>/<first two digits of the key>/<key>.lock     JSON {"label", "pid", "host", "since"} of the holder

A lock is an `flock`: the kernel frees it when its holder dies, however it dies. The file stays for ever (unlinking it
would let two in), what it says counts only while the lock is held, and is emptied when it is given back.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from hidet_build.errors import EnvironmentFailure, Interrupted, LockHeld

_FIRST_POLL, _LAST_POLL = 0.005, 0.05
_TELL_AFTER = 0.5  # seconds of waiting that need no explanation


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

    @contextmanager
    def hold(self, key_hash: str, label: str) -> Iterator[None]:
        """Hold the lock of a key while the body runs; `label` is what others are told meanwhile.

        Raises LockHeld when we may not wait (any longer), Interrupted when cancelled, EnvironmentFailure when the
        folder cannot hold locks.
        """
        descriptor = self._acquire(f"{self._folder}/{key_hash[:2]}/{key_hash}.lock", label)
        try:
            yield
        finally:
            # Closing gives the lock back. A command being started this moment has the descriptor until it runs, and
            # with it the lock, hence the explicit unlocking.
            try:
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def _acquire(self, path: str, label: str) -> int:
        # One descriptor for the whole wait; a new one when the file went while we waited (somebody cleaned the folder).
        started = time.monotonic()
        while True:
            descriptor = self._open(path)
            try:
                self._wait(descriptor, path, label, started)
                if os.fstat(descriptor).st_nlink:
                    self._sign(descriptor, label)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _open(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with _explained(self._folder):
            try:
                return os.open(path, flags, 0o666)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                return os.open(path, flags, 0o666)

    def _wait(self, descriptor: int, path: str, label: str, started: float) -> None:
        # filelock's call on our own descriptor: the same lock as its FileLock, which costs ten times as much, and no
        # way to fall back to something weaker. It gives us the holder's text to write, too.
        if not self._cancelled() and self._is_free(descriptor):
            return
        from filelock import lock_descriptor  # 30 ms, only for who has to wait

        pause, told = _FIRST_POLL, False
        while True:
            if self._cancelled():
                raise Interrupted(f"stopped while waiting for the lock of {label}")
            with _explained(self._folder):
                if lock_descriptor(descriptor, blocking=False):
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

    def _is_free(self, descriptor: int) -> bool:
        """Take the lock if nobody has it: what filelock would do first, without its import."""
        try:
            with _explained(self._folder):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _sign(self, descriptor: int, label: str) -> None:
        text = {"label": label, "pid": os.getpid(), "host": self._host, "since": time.time()}
        with _explained(self._folder):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(text).encode(), 0)

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
