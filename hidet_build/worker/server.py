"""The persistent worker: imports hidet once, then forks a child for each request. Knows no step.

The process that forks never builds IR and never runs a torch operator or an OpenMP kernel: threads those start do not
survive a fork, and children would wait for them for ever.
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
from hidet_build.worker.fork import Slots
from hidet_build.worker.protocol import Lines, Request, StepExit, encode

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_PIECE = 1 << 16


def serve() -> int:
    """Serve until standard input ends; returns the program's exit code."""
    started = time.monotonic()
    requests, replies = _take_channels()
    home = child.make_private()
    try:
        refusal = child.import_hidet()
        if refusal:
            print(refusal, file=sys.stderr)
            os.write(replies, encode({"event": "refused", "message": refusal}))
            return StepExit.NO_HIDET
        server = _Server(requests, replies, distribution.modules_of_hidet())
        server.reply(event="ready", seconds=time.monotonic() - started, max_rss=_max_rss(resource.RUSAGE_SELF))
        server.run()
        return StepExit.OK
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _take_channels() -> tuple[int, int]:
    """Keep standard input and output for the protocol, so that nothing else can read or write there."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def _max_rss(who: int) -> int:
    return resource.getrusage(who).ru_maxrss * 1024


@dataclass(frozen=True)
class _Child:
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
        with open(output, "ab") as file:
            file.write(b"the kernel ended the process (os._exit) before the step was done\n")
        return StepExit.USER
    return code


class _Server:
    """The loop that owns the children."""

    def __init__(self, requests: int, replies: int, modules: frozenset[str]) -> None:
        self._requests = requests
        self._replies = replies
        self._modules = modules
        self._children: dict[int, _Child] = {}  # by pid, which is the process group too
        self._libc = ctypes.CDLL(None)
        self._slots = Slots(len(os.sched_getaffinity(0)) - 1)  # for the children of steps, beside the steps
        self._wakeup, self._wake = os.pipe()
        for descriptor in (self._wakeup, self._wake):
            os.set_blocking(descriptor, False)
        self._stopped = False

    def reply(self, **message: Any) -> None:
        """Send one message."""
        # Shorter than PIPE_BUF, so it is written whole.
        os.write(self._replies, encode(message))

    def run(self) -> None:
        """Until the other side closes its end, or a SIGTERM: start what is asked for, report what ended."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        # What is alive now stays: collecting in a child would only copy its pages.
        gc.collect()
        gc.freeze()
        lines = Lines()
        while not self._stopped:
            ready, _, _ = select.select([self._requests, self._wakeup], [], [])
            if self._wakeup in ready:
                os.read(self._wakeup, _PIECE)
                self._reap()
            if self._requests in ready:
                piece = os.read(self._requests, _PIECE)
                if not piece:
                    break
                for message in lines.feed(piece):
                    self._handle(message)
        for pid in self._children:
            _kill_group(pid)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _handle(self, message: Mapping[str, Any]) -> None:
        if message.get("cancel"):
            for pid, running in self._children.items():
                if running.id == message["id"]:
                    _kill_group(pid)
            return
        request = Request(
            message["id"], tuple(message["argv"]), message["cwd"], message["environment"], message["output"]
        )
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._be_child(request, parent)
        self._children[pid] = _Child(request.id, time.monotonic(), request.output)
        self.reply(event="started", id=request.id, pid=pid)

    def _reap(self) -> None:
        for pid in list(self._children):
            # Looked at before it is collected: as long as it is a zombie nobody else can have its number.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            running = self._children.pop(pid)
            self.reply(
                event="finished",
                id=running.id,
                exit_code=_exit_code(status, running.output),
                seconds=time.monotonic() - running.started,
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                max_rss=usage.ru_maxrss * 1024,
            )

    def _be_child(self, request: Request, parent: int) -> NoReturn:
        code = StepExit.BUG
        try:
            self._separate(request, parent)
            code = child.perform(request.argv, self._modules, self._slots)
        except BaseException:  # a forked child must never return into the server's loop
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(_DONE if code == StepExit.OK else code)

    def _separate(self, request: Request, parent: int) -> None:
        """Leave everything of the server's behind: its group, signals, channels, folder, output and environment."""
        os.setsid()
        self._libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(StepExit.BUG)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in (self._requests, self._replies, self._wakeup, self._wake):
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
