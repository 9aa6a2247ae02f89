"""Does work in forked children, several at a time, so that it leaves no trace in this process. Knows not what work."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import selectors
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_TICK = 0.5  # seconds between two calls of `tick`


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


def in_children(
    works: Sequence[Callable[[], str]], slots: Slots, tick: Callable[[int], None] = lambda _: None
) -> list[str]:
    """Do each work in a child of its own; for each what it returned.

    For one that raised, its traceback; for one whose process ended otherwise, how. What children print on standard
    error is lost: hidet draws progress bars there. `tick` is called by and by with the number of works that are done.
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
                with _signals_later():  # until somebody knows of the child, who ends it if we are interrupted
                    pid, answers = _fork(works[number])
                    running[answers] = (number, pid)
            tick(len(works) - len(waiting) - len(running))
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
    """Those that can be read from, once there is one or time went by. select(2) cannot do that above 1024."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return {key.fd for key, _ in selector.select(_TICK)}


def in_child(work: Callable[[], str], tick: Callable[[int], None] = lambda _: None) -> str:
    """Do one work in a child; what it returned, as `in_children` says it."""
    with Slots(0) as slots:
        return in_children([work], slots, tick)[0]


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Let Python's signal handlers run after the body: what one raises in the middle of a fork is lost.

    Python calls them wherever the main thread is, in what other modules do around a fork too, where exceptions are
    printed and forgotten. A signal mask would not help: another thread takes the signal then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    ours = [number for number, handler in handlers.items() if callable(handler)]
    ours.sort(key=lambda number: number == signal.SIGINT)  # last: what it raises must not keep another from coming back
    try:
        for number in ours:
            signal.signal(number, lambda *caught: came.append(caught))
        yield
    finally:
        for number in ours:
            signal.signal(number, handlers[number])
    for caught, frame in came:
        handler = handlers[signal.Signals(caught)]
        if callable(handler):
            handler(caught, frame)


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
        _drop_handlers()
        os.close(answers)
        if os.getppid() == parent:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _answer(ours, work)
            code = 0
    finally:
        os._exit(code)


def _drop_handlers() -> None:
    """Run no handler of the caller's. Ctrl-C, which comes to us too, is his to answer: he ends us if it ends him."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


def _answer(pipe: int, work: Callable[[], str]) -> None:
    try:
        said = work()
    except BaseException:  # whatever it is: whoever waits is told
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
