"""Does work in forked children, several at a time, so that it leaves no trace in this process. Knows not what work."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class Slots:
    """How many children may run at once, counted for the process that made it and all that are forked from it.

    Whoever forks may always run one child, and takes a slot for each further one: so N steps at once run N children
    and as many more as there are slots. A process that is killed takes its slots along; the others get slower, and
    never stuck.
    """

    def __init__(self, number: int) -> None:
        self.free, self._given = os.pipe()
        os.set_blocking(self.free, False)
        os.write(self._given, b"." * max(0, number))

    def __enter__(self) -> Slots:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up this process's part in it."""
        os.close(self.free)
        os.close(self._given)

    def take(self) -> bool:
        """Take a slot; False where none is free."""
        try:
            return bool(os.read(self.free, 1))
        except BlockingIOError:
            return False

    def give(self) -> None:
        """Give a slot back."""
        os.write(self._given, b".")


def in_children(works: Sequence[Callable[[], str]], slots: Slots) -> list[str]:
    """Do each work in a child of its own; for each what it returned.

    For one that raised, its traceback; for one whose process ended otherwise, how. What children print on standard
    error is lost: hidet draws progress bars there.
    """
    said = [""] * len(works)
    running: dict[int, tuple[int, int]] = {}  # the pipe a child answers on -> the work's number and the child's pid
    waiting = list(range(len(works)))[::-1]
    taken = 0  # one child less than run, for the first needs no slot
    try:
        while waiting or running:
            while waiting and (not running or slots.take()):
                taken += bool(running)
                number = waiting.pop()
                pid, answers = _fork(works[number])
                running[answers] = (number, pid)
            for answers in running.keys() & _readable([*running, *([slots.free] if waiting else [])]):
                number, pid = running.pop(answers)
                said[number] = _collect(pid, answers)
                if taken:
                    slots.give()
                    taken -= 1
    finally:
        for answers, (_, pid) in running.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _collect(pid, answers)
        for _ in range(taken):
            slots.give()
    return said


def _readable(descriptors: Sequence[int]) -> set[int]:
    """Those that can be read from, once there is one. select(2) cannot do that above 1024."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return {key.fd for key, _ in selector.select()}


def in_child(work: Callable[[], str]) -> str:
    """Do one work in a child; what it returned, as `in_children` says it."""
    return _collect(*_fork(work))


def _fork(work: Callable[[], str]) -> tuple[int, int]:
    """Do `work` in a child; its pid and the pipe on which it says what came of it."""
    answers, ours = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed, or there is no console
            stream.flush()
    prctl = ctypes.CDLL(None).prctl  # looked up here: after a fork another thread's lock may be held for ever
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(ours)
        return pid, answers
    # The child: nothing of the caller's may run here again, neither its handlers nor what it does at exit.
    code = 1
    gc.freeze()  # what is alive stays: collecting here would only copy its pages
    try:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        os.close(answers)
        if os.getppid() == parent:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _answer(ours, work)
            code = 0
    finally:
        os._exit(code)


def _answer(pipe: int, work: Callable[[], str]) -> None:
    try:
        said = work()
    except BaseException:  # whatever it is, Ctrl-C too: whoever waits is told
        said = traceback.format_exc()
    with open(pipe, "wb") as file:
        file.write(said.encode("utf-8", "replace"))


def _collect(pid: int, answers: int) -> str:
    with open(answers, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return said or "somebody else collected the exit status of a child of ours: SIGCHLD must not be ignored here"
    if status and not said:
        return f"the process that did it ended with status {os.waitstatus_to_exitcode(status)}"
    return said
