"""Workers that outlive a command, from our side: finds the one that fits what we are, or starts it, or ends it.

    <folder>/lock                    held by whoever starts or ends a worker
    <folder>/<workspace>-<digest>/   one worker: socket, log, and its home

Knows folders, sockets and what a worker depends on; knows no step and nothing of what is said. Whatever goes wrong
here means that there is no lasting worker, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import shutil
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hidet_build.errors import BuildError, LockHeld
from hidet_build.lock import exclusive
from hidet_build.process import start_apart
from hidet_build.worker.door import identity, peer_user
from hidet_build.worker.protocol import COMMAND, LOCK, LOG, SOCKET, encode

_CONNECT_SECONDS = 1.0
_LOCK_SECONDS = 1.0
_SEND_SECONDS = 5
_START_SECONDS = 120.0
_END_SECONDS = 5.0
_POLL = 0.02
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BESIDE = ("__init__", "errors", "lock")  # our modules that a worker imports, besides its own
_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}")
# What a process inherits and a child of another process would not have: lines of /proc/self/status.
_INHERITED = re.compile(
    r"^(?:Umask|Uid|Gid|Groups|Cap\w+|NoNewPrivs|Seccomp|Cpus_allowed|Mems_allowed):.*$", re.MULTILINE
)


@dataclass(frozen=True)
class Wanted:
    """A worker that fits: for which workspace, how it is started, and what hidet is (`identity`)."""

    workspace: str
    python: str
    environment: Mapping[str, str]
    identity: str

    @property
    def name(self) -> str:
        """The name of its folder: workers of one name are as good as each other."""
        facts = (
            # A virtual environment has Python under several names.
            *(sys.prefix, os.path.realpath(self.python), sys.version),
            *(self.identity, sorted(self.environment.items())),
            *(_own_code(), _site_packages(sys.path), _surroundings()),
        )
        return f"{_workspace_name(self.workspace)}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"


class Connection:
    """A connection to a lasting worker. It may be stuck, and we must not be: so we lose patience with it."""

    patience = 10.0  # seconds without a word, not even to say that it is there

    def __init__(self, connected: socket.socket, place: str, found: bool) -> None:
        """`place` is the worker's folder; `found` says that it was there before us."""
        self._socket = connected
        self._place = place
        self._made = identity(os.path.join(place, SOCKET))
        # One that was found may still be importing hidet, but hardly longer than this.
        self.start_patience = self.patience if found else _START_SECONDS
        # A stopped worker reads nothing: whoever sends must come back all the same.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
        self.replies = os.dup(connected.fileno())  # of whoever reads

    def send(self, line: bytes) -> bool:
        """Send a whole message; False where that cannot be done."""
        try:
            self._socket.sendall(line)
        except OSError:
            return False
        return True

    def hang_up(self, stuck: bool = False) -> None:
        """End the conversation: the worker ends what we asked for, and reading `replies` comes to its end.

        Nobody shall find one that is `stuck`. When it wakes up it sees that, and ends.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if stuck:
            with contextlib.suppress(BuildError, OSError), _held(os.path.dirname(self._place)):
                if self._made == identity(os.path.join(self._place, SOCKET)):
                    shutil.rmtree(self._place, ignore_errors=True)

    def end(self) -> str:
        """Hang up for the last time, and say how it ended."""
        self.hang_up()
        self._socket.close()
        return "went away"


def connect(folders: Sequence[str], wanted: Wanted) -> Connection | None:
    """A connection to the worker that is wanted, which is started where it is not there.

    The first of the `folders` is used that is, or can be made, the user's alone; None where none can, or where somebody
    has held it for long.
    """
    for folder in folders:
        try:
            with _private(folder) as way:
                return _reach(folder, way, wanted)
        except LockHeld:
            return None
        except (OSError, BuildError):
            continue
    return None


def shut_down(folders: Sequence[str], workspace: str) -> tuple[int, int]:
    """End the workers of a workspace: how many have ended, and how many will when their builds have.

    Waits some seconds at most. A worker that does not answer is no longer found by any build, and counts as one of
    the latter.
    """
    asked: list[Connection] = []
    ended = 0
    for folder in folders:
        with contextlib.suppress(OSError, BuildError), _private(folder) as way:
            for name in _workers(folder):
                if name.startswith(_workspace_name(workspace)):
                    with contextlib.suppress(OSError):
                        asked.append(Connection(_open(f"{way}/{name}/{SOCKET}"), os.path.join(folder, name), True))
    for connection in asked:
        connection.send(encode({"shutdown": True}))
    deadline = time.monotonic() + _END_SECONDS
    for connection in asked:
        ended += _ends(connection, deadline)
        connection.end()
    return ended, len(asked) - ended


def _ends(connection: Connection, deadline: float) -> bool:
    """Whether a worker that was told to end did, rather than go on for others."""
    heard = b""
    with open(connection.replies, "rb", buffering=0) as replies:
        while select.select([replies], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = replies.read(1 << 16)
            if not piece:
                return b'"ending"' in heard and json.loads(heard.splitlines()[-1])["others"] == 0
            heard += piece
    connection.hang_up(stuck=True)
    return False


def _reach(folder: str, way: str, wanted: Wanted) -> Connection:
    name = wanted.name
    path, place = f"{way}/{name}/{SOCKET}", os.path.join(folder, name)
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        return Connection(_open(path), place, found=True)
    with _held(folder):
        # Somebody may have been quicker.
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return Connection(_open(path), place, found=True)
        _sweep(folder, way)
        _start(path, place, wanted)
        return Connection(_open(path), place, found=False)


def _open(path: str) -> socket.socket:
    """Connect; OSError where nobody listens, nobody answers in time, or it is not our own user who does."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(_CONNECT_SECONDS)
        connected.connect(path)
        connected.settimeout(None)
        if peer_user(connected) != os.geteuid():
            raise PermissionError(f"{path} is another user's")
    except BaseException:
        connected.close()
        raise
    return connected


def _start(path: str, place: str, wanted: Wanted) -> None:
    """Start a worker that listens at `path`: from now on one can connect, though it will take seconds to answer."""
    os.mkdir(place, 0o700)
    command = [wanted.python, *COMMAND[1:], "--lasting", place, wanted.workspace]
    environment = {**wanted.environment, "HOME": place, "TMPDIR": place}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(128)
        start_apart(command, environment, place, listener.fileno(), os.path.join(place, LOG))


def _sweep(folder: str, way: str) -> None:
    """Delete what dead workers left. Our lock is held, so none is about to start."""
    for name in _workers(folder):
        try:
            _open(f"{way}/{name}/{SOCKET}").close()
        except (FileNotFoundError, ConnectionRefusedError):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        except OSError:
            continue


def _workers(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if _NAME.fullmatch(name)]


@contextlib.contextmanager
def _private(folder: str) -> Iterator[str]:
    """A short way into a folder that is our user's alone, for the path of a socket has at most 107 bytes.

    It is made where it is not there. OSError where it is anything else, or /proc is not there.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{folder} is open to others")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    """Hold the folder's lock; LockHeld where somebody else does for long: it may have been stopped."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(exclusive(os.path.join(folder, LOCK), block=False))
                break
            except LockHeld:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL)
        yield


def _workspace_name(workspace: str) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(workspace))).hexdigest()[:16]


def _own_code() -> str:
    """The digest of our own code that a worker runs."""
    worker = os.path.join(_PACKAGE, "worker")
    files = [os.path.join(worker, name) for name in sorted(os.listdir(worker)) if name.endswith(".py")]
    digest = hashlib.sha256()
    for path in (*files, *(os.path.join(_PACKAGE, f"{name}.py") for name in BESIDE)):
        with open(path, "rb") as file:
            digest.update(f"{os.path.relpath(path, _PACKAGE)} ".encode() + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def _site_packages(path: Sequence[str]) -> list[tuple[str, int, int]]:
    """What a starting Python finds installed: another distribution may bring a finder or a path of its own."""
    found = []
    for folder in path:
        if os.path.basename(folder) in ("site-packages", "dist-packages"):
            with contextlib.suppress(OSError):
                files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".pth")]
                seen = [(file, os.stat(file)) for file in (folder, *files)]
                found += [(file, one.st_mtime_ns, one.st_size) for file, one in seen]
    return found


def _surroundings() -> list[object]:
    """What a child inherits: user, rights, umask, limits, priority, cores, control groups, namespaces, root folder."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        status: Iterable[str] = _INHERITED.findall(file.read())
    texts = []
    for name in ("limits", "cgroup", "oom_score_adj"):
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", encoding="utf-8", errors="replace") as file:
            texts.append(file.read())
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))]
    root = os.stat("/")
    return [*status, *texts, *spaces, os.getpriority(os.PRIO_PROCESS, 0), root.st_dev, root.st_ino]
