"""The persistent worker: imports hidet once, then forks a child for each request. Knows no step.

The process that forks never builds IR and never runs a torch operator or an OpenMP kernel: threads those start do not
survive a fork, and children would wait for them for ever. It serves the one command that started it, or, behind a
door, all that come. What a command asked for ends with it; nothing of one request is left for the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from hidet_build.worker import child, distribution
from hidet_build.worker.door import Door
from hidet_build.worker.fork import Slots
from hidet_build.worker.protocol import Lines, Request, StepExit, encode

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_PIECE = 1 << 16
_TICK = 2.0  # seconds between two looks at whether a lasting worker should go


def serve() -> int:
    """Serve the command on standard input and output until it goes; returns the program's exit code."""
    requests, replies = os.dup(0), os.dup(1)
    _free_standard_streams()
    return _serve(_Client(requests, replies), None)


def serve_all(folder: str, workspace: str) -> int:
    """Serve all that connect to the socket on standard input, until nobody came for long; returns the exit code."""
    door = Door(folder, workspace)
    _free_standard_streams()
    os.chdir("/")  # so that no folder is kept from being unmounted
    return _serve(None, door)


def _free_standard_streams() -> None:
    """Nothing else can read or write where the protocol is spoken."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)


def _serve(client: _Client | None, door: Door | None) -> int:
    started, clock = time.monotonic(), time.time()
    home = child.make_private()
    server = _Server(client, door)
    try:
        refusal = child.import_hidet()
        if refusal:
            print(refusal, file=sys.stderr)
            server.refuse(refusal)
            return StepExit.NO_HIDET
        changed = door is not None and _changed_since(clock)
        server.run(distribution.modules_of_hidet(), time.monotonic() - started, changed)
        return StepExit.OK
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _changed_since(clock: float) -> bool:
    """Whether a file that was imported is younger than this process, which may then be half of one version."""
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        with contextlib.suppress(OSError):
            if path and os.stat(path).st_ctime >= clock:
                return True
    return False


def _max_rss(who: int) -> int:
    return resource.getrusage(who).ru_maxrss * 1024


class _Client:
    """A command that this worker serves: where it is heard and answered."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests = requests
        self.lines = Lines()
        # For the children of its steps, beside the steps. A killed child takes its slots along: with the client that
        # had it killed, they are made up for.
        self.slots = Slots(len(os.sched_getaffinity(0)) - 1)
        self._replies = replies

    def reply(self, **message: Any) -> bool:
        """Send one message; False where it cannot be sent whole and at once."""
        line = encode(message)
        try:
            return os.write(self._replies, line) == len(line)
        except OSError:
            return False

    def leave(self) -> None:
        """Close what it is heard and answered on, in this process."""
        for descriptor in {self.requests, self._replies}:
            os.close(descriptor)


@dataclass(frozen=True)
class _Child:
    client: _Client
    id: int
    started: float
    output: str  # the file it writes to


# How a child says that the step came to its end. Whatever a kernel exits with by itself, it is not that.
_DONE = 100


def _exit_code(status: int, output: str) -> int:
    """A child's exit code as that of its step: a process that the kernel ended early did not do it."""
    code = os.waitstatus_to_exitcode(status)
    if code == _DONE:
        return StepExit.OK
    if code == StepExit.OK:
        with contextlib.suppress(OSError), open(output, "ab") as file:
            file.write(b"the kernel ended the process (os._exit) before the step was done\n")
        return StepExit.USER
    return code


class _Server:
    """The loop that owns the children."""

    def __init__(self, client: _Client | None, door: Door | None) -> None:
        self._clients = {client.requests: client} if client else {}
        self._door = door
        self._greeting: dict[str, Any] = {}
        self._modules: frozenset[str] = frozenset()
        self._children: dict[int, _Child] = {}  # by pid, which is the process group too
        self._libc = ctypes.CDLL(None)
        self._wakeup, self._wake = os.pipe()
        for descriptor in (self._wakeup, self._wake):
            os.set_blocking(descriptor, False)
        self._stopped = False

    def refuse(self, refusal: str) -> None:
        """Tell everybody why there will be no worker."""
        self._greeting = {"event": "refused", "message": refusal}
        for client in self._clients.values():
            client.reply(**self._greeting)
        if self._door:
            self._door.shut()
            self._let_in(self._door)

    def run(self, modules: frozenset[str], seconds: float, changed: bool) -> None:
        """Until every client has gone and the door is shut, or a SIGTERM: start what is asked for, report what ended.

        `modules` come with hidet; it took `seconds` to get ready; one that `changed` meanwhile does not last.
        """
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever started us may have blocked some
        # What is alive now stays: collecting in a child would only copy its pages.
        gc.collect()
        gc.freeze()
        self._modules = modules
        self._greeting = {"event": "ready", "seconds": seconds, "max_rss": _max_rss(resource.RUSAGE_SELF)}
        for client in self._clients.values():
            client.reply(**self._greeting)
        if changed:
            self._shut()
        while not self._stopped and (self._clients or self._door):
            self._turn()
        for pid in self._children:
            _kill_group(pid)
        self._shut()

    def _turn(self) -> None:
        """Wait for something to happen, and do what follows from it."""
        door = self._door
        watched: list[Any] = [self._wakeup, *self._clients, *([door] if door else [])]
        ready, _, _ = select.select(watched, [], [], _TICK if door else None)
        if self._wakeup in ready:
            os.read(self._wakeup, _PIECE)
            self._reap()
        for client in [self._clients[descriptor] for descriptor in ready if descriptor in self._clients]:
            self._listen(client)
        if door and door in ready:
            self._let_in(door)
        elif door and door.is_over(alone=not self._clients):
            self._shut()

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _let_in(self, door: Door) -> None:
        while connection := door.accept():
            descriptor = connection.detach()
            client = self._clients[descriptor] = _Client(descriptor, descriptor)
            self._tell(client, **self._greeting)

    def _shut(self) -> None:
        """Close the door behind those who are in or came just before."""
        if self._door and self._door.shut():
            self._let_in(self._door)
            self._door.close()
            self._door = None

    def _listen(self, client: _Client) -> None:
        """Do what a client says; one that has gone, or makes no sense, is forgotten."""
        try:
            piece = os.read(client.requests, _PIECE)
            for message in client.lines.feed(piece):
                self._handle(client, message)
        except ConnectionError:
            piece = b""
        except (OSError, ValueError, KeyError):
            traceback.print_exc()
            piece = b""
        if not piece:
            self._forget(client)

    def _handle(self, client: _Client, message: Mapping[str, Any]) -> None:
        if message.get("ping"):
            self._tell(client, event="pong")
        elif message.get("cancel"):
            for pid, running in self._children.items():
                if running.client is client and running.id == message["id"]:
                    _kill_group(pid)
        elif message.get("shutdown"):
            self._tell(client, event="ending", others=len(self._clients) - 1)
            self._shut()
            self._forget(client)
        elif "stay" in message:
            if self._door:
                self._door.stay(message["stay"])
        else:
            self._start(
                client,
                Request(
                    message["id"], tuple(message["argv"]), message["cwd"], message["environment"], message["output"]
                ),
            )

    def _start(self, client: _Client, request: Request) -> None:
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._be_child(client, request, parent)
        self._children[pid] = _Child(client, request.id, time.monotonic(), request.output)
        self._tell(client, event="started", id=request.id, pid=pid)

    def _tell(self, client: _Client, **message: Any) -> None:
        """Send one message to a client; one that does not take it is forgotten, lest all others wait for it."""
        if self._clients.get(client.requests) is client and not client.reply(**message):
            self._forget(client)

    def _forget(self, client: _Client) -> None:
        """Take leave of a client, and end what it asked for."""
        if self._clients.get(client.requests) is not client:
            return
        del self._clients[client.requests]
        client.leave()
        client.slots.close()
        for pid, running in self._children.items():
            if running.client is client:
                _kill_group(pid)
        if self._door:
            self._door.left()

    def _reap(self) -> None:
        for pid in list(self._children):
            # Looked at before it is collected: as long as it is a zombie nobody else can have its number.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            running = self._children.pop(pid)
            self._tell(
                running.client,
                event="finished",
                id=running.id,
                exit_code=_exit_code(status, running.output),
                seconds=time.monotonic() - running.started,
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                max_rss=usage.ru_maxrss * 1024,
            )

    def _be_child(self, client: _Client, request: Request, parent: int) -> NoReturn:
        code = StepExit.BUG
        try:
            self._separate(client, request, parent)
            code = child.perform(request.argv, self._modules, client.slots)
        except BaseException:  # a forked child must never return into the server's loop
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(_DONE if code == StepExit.OK else code)

    def _separate(self, client: _Client, request: Request, parent: int) -> None:
        """Leave everything of the server's behind: its group, signals, channels, folder, output and environment."""
        os.setsid()
        self._libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(StepExit.BUG)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for other in self._clients.values():
            other.leave()
            if other is not client:
                other.slots.close()
        if self._door:
            self._door.close()
        for descriptor in (self._wakeup, self._wake):
            os.close(descriptor)
        output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        # Both go to one file: what is printed must come in the order in which it was printed.
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.cwd)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
