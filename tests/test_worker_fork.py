"""Work in forked children: what comes back, how many run at once, and what becomes of those that end otherwise."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hidet_build.worker.fork import Slots, in_child, in_children


def note(folder: Path, number: int) -> str:
    """Say how many others are at work, oneself included, once a second one had time to come."""
    mine = folder / str(number)
    mine.touch()
    for _ in range(200):
        os.sched_yield()
    count = len(list(folder.iterdir()))
    mine.unlink()
    return str(count)


def test_answers_come_in_order() -> None:
    """Each work has its own answer, however long, and leaves no trace here."""
    changed: list[int] = []
    works = [functools.partial(lambda number: changed.append(number) or str(number) * 100_000, n) for n in range(5)]
    with Slots(2) as slots:
        said = in_children(works, slots)

    assert [str(number) * 100_000 for number in range(5)] == said
    assert [] == changed


@pytest.mark.parametrize(("slots", "most"), [(0, 1), (1, 2), (3, 4)])
def test_as_many_as_there_are_slots(slots: int, most: int, tmp_path: Path) -> None:
    """One child runs without a slot, each further one takes one."""
    with Slots(slots) as shared:
        said = in_children([functools.partial(note, tmp_path, number) for number in range(12)], shared)
        left = sum(shared.take() for _ in range(10))

    assert most >= max(map(int, said))
    assert slots == left


def test_slots_are_shared_with_children(tmp_path: Path) -> None:
    """A child that forks in turn takes from the same slots, and needs none for its first."""

    def inner() -> str:
        works = [functools.partial(note, tmp_path, number) for number in range(6)]
        return max(in_children(works, shared))

    with Slots(1) as shared:
        alone = shared.take()
        said = in_child(inner)
        shared.give()

    assert (True, "1") == (alone, said)


def test_other_ends_are_told() -> None:
    """A child that raises gives its traceback, one that is killed its signal; the others do not mind."""

    def raise_it() -> str:
        raise ValueError("no")

    def die() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    with Slots(1) as slots:
        raised, died, fine = in_children([raise_it, die, lambda: "fine"], slots)
        left = slots.take()

    assert raised.endswith("ValueError: no\n")
    assert "the process that did it ended with status -9" == died
    assert ("fine", True) == (fine, left)


FORKING = """
    import os, signal
    from hidet_build.worker.fork import Slots, in_children

    # A module that does something after each fork, as `logging` does; Ctrl-C comes in the middle of it.
    os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
    with Slots(1) as slots:
        try:
            in_children([lambda: signal.pause()] * 2, slots)
            print("lost")
        except KeyboardInterrupt:
            print("interrupted")
    try:
        os.waitpid(-1, os.WNOHANG)
        print("a child is left")
    except ChildProcessError:
        pass
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """


def test_interrupt_in_a_fork() -> None:
    """Ctrl-C while a child is forked is not lost, and ends the child; the handlers are as before."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKING)], capture_output=True, text=True, timeout=60, check=False
    )

    assert ("interrupted\nTrue\n", "") == (done.stdout, done.stderr)


def test_children_leave_interrupts_to_their_parent() -> None:
    """A handler of the caller's does not run in a child, which goes on: its parent decides what Ctrl-C means."""
    heard: list[int] = []

    def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return f"{len(heard)} heard"

    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        said = in_child(work)
    finally:
        signal.signal(signal.SIGINT, before)

    assert "0 heard" == said


def test_time_is_told() -> None:
    """Whoever waits is called by and by with the number of works that are done."""
    told: list[int] = []
    with Slots(0) as slots:
        in_children([lambda: time.sleep(0.7) or ""] * 2, slots, told.append)

    assert sorted(told) == told
    assert {0, 1} == set(told)
    assert told.count(0) > 1
