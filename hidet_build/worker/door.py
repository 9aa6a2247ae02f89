"""The door of a lasting worker: takes in commands of its user, and says when it has stayed long enough.

Knows a socket, the folder it is in, and clocks; knows no step and no hidet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import sys
import time

from hidet_build.errors import EnvironmentFailure, LockHeld
from hidet_build.lock import exclusive
from hidet_build.worker.protocol import LOCK, SOCKET

_LOG_LIMIT = 1 << 20  # bytes of what a worker may leave in its log


class Door:
    """Where commands come in: the socket that whoever started this worker made, and gave it as standard input."""

    def __init__(self, folder: str, workspace: str) -> None:
        """`folder` is the worker's own; `workspace` is the one it works for."""
        self._listener = socket.socket(fileno=os.dup(0))
        self._listener.setblocking(False)
        self._folder = folder
        self._workspace = workspace
        self._made = identity(os.path.join(folder, SOCKET))
        self._seconds = 0.0  # until a command says how long to stay
        self._since = time.monotonic()
        self._ending = False

    def fileno(self) -> int:
        """What to select on."""
        return self._listener.fileno()

    def accept(self) -> socket.socket | None:
        """The next command that wants in; None where nobody does, or it is another user's."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None
        if peer_user(connection) != os.geteuid():
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    def stay(self, seconds: float) -> None:
        """Wait so long for the next command, from when the last one left."""
        self._seconds = seconds

    def left(self) -> None:
        """A command has gone."""
        self._since = time.monotonic()

    def is_over(self, alone: bool) -> bool:
        """Whether the door should be shut: that was wanted before, or the worker is alone and nobody came for long,
        its workspace is gone, or another worker took its place.
        """
        with contextlib.suppress(OSError):
            if os.fstat(2).st_size > _LOG_LIMIT:
                os.ftruncate(2, 0)
        waited = time.monotonic() - self._since
        if self._ending or not alone:
            return self._ending
        return waited >= self._seconds or not os.path.isdir(self._workspace) or not self._is_ours()

    def shut(self) -> bool:
        """Let nobody else find the door; those who already knocked can still be let in.

        False where somebody is about to start or end a worker: ask again.
        """
        self._ending = True
        try:
            if self._is_ours():
                with exclusive(os.path.join(os.path.dirname(self._folder), LOCK), block=False):
                    if self._is_ours():
                        shutil.rmtree(self._folder, ignore_errors=True)
        except LockHeld:
            return False
        except EnvironmentFailure as error:  # the folder went this moment, or nobody may write to it any more
            print(error.message, file=sys.stderr)
        return True

    def close(self) -> None:
        """Give the socket up: who knocks in vain sees it."""
        self._listener.close()

    def _is_ours(self) -> bool:
        return self._made is not None and identity(os.path.join(self._folder, SOCKET)) == self._made


def peer_user(connection: socket.socket) -> int:
    """The user at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def identity(path: str) -> tuple[int, int] | None:
    """Which file is at a path, as long as there is one."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
