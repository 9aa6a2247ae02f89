"""The queue of steps that can start, and the memory that running ones share."""

from __future__ import annotations

import threading

import pytest

from hidet_build.action import Artifact, Continuation, Step
from hidet_build.budget import MemoryBudget
from hidet_build.errors import Interrupted
from hidet_build.label import Label
from hidet_build.schedule import Node, Ready


def node(seconds: int, *users: Node) -> Node:
    """A step that takes so long, which others wait for."""
    made = Artifact(str(seconds), "cpu")
    found = Node(Continuation(Label("k", str(seconds)), "cpu", (), (made,), lambda _: ()))
    found.dependents = [(user, made) for user in users]
    return found


def seconds(step: Step) -> float:
    """How long a step of ours takes: its name."""
    return float(step.owner.name)


def drained(ready: Ready) -> list[float]:
    """How long the nodes take, in the order in which they come."""
    found = []
    while ready:
        assert ready.peek() is ready.peek()
        found.append(seconds(ready.pop().step))
    return found


def test_by_chain() -> None:
    """The sum along the longest way to the end counts; of equal ones the first that came."""
    end = node(5)
    ready = Ready(seconds)
    for one in (node(7), node(3, node(1), end), node(8), node(6, node(1))):
        ready.add(one)

    assert [3.0, 8.0, 7.0, 6.0] == drained(ready)


def test_those_that_go_first() -> None:
    """A node may be put before all others, also between those that are known."""
    ready = Ready(seconds)
    ready.add(node(2))
    ready.add(node(3))

    assert seconds(ready.pop().step) == 3.0
    ready.add_first(node(1))
    ready.add(node(4))

    assert [1.0, 4.0, 2.0] == drained(ready)


def test_alone_costs_nothing() -> None:
    """Where there is no choice nobody asks how long things take."""

    def never(_: Step) -> float:
        raise AssertionError

    ready = Ready(never)
    for number in (1, 2):
        ready.add(node(number))

        assert seconds(ready.pop().step) == number


def test_long_chains() -> None:
    """A chain may be longer than Python's stack, and have more ways through it than could be counted."""
    ends = [node(1), node(1)]
    for _ in range(5000):
        ends = [node(1, *ends), node(1, *ends)]
    ready = Ready(seconds)
    for one in ends:
        ready.add(one)

    assert ready.pop() is ends[0]
    assert ends[0].chain == 5001.0


def no_matter(_: int, __: int) -> None:
    """Nobody is told."""


def test_budget_first_come_first_served() -> None:
    """Who asks for much waits for others to end, and those behind it do not overtake it."""
    budget = MemoryBudget(lambda: 10, lambda: False)
    order: list[str] = []
    queued = {name: threading.Event() for name in ("large", "small")}

    def take(name: str, amount: int) -> None:
        with budget.hold(amount, lambda *_: queued[name].set()):
            order.append(name)

    threads = [threading.Thread(target=take, args=arguments) for arguments in (("large", 8), ("small", 1))]
    with budget.hold(5, no_matter):
        for thread, name in zip(threads, queued, strict=True):
            thread.start()

            assert queued[name].wait(60)
        assert order == []
    for thread in threads:
        thread.join()

    assert order == ["large", "small"]


def test_budget_of_a_stopped_build() -> None:
    """Who waits when the build is stopped is told, and leaves the queue."""
    stopped = threading.Event()
    budget = MemoryBudget(lambda: 10, stopped.is_set)
    with budget.hold(8, no_matter):
        stopped.set()
        with pytest.raises(Interrupted), budget.hold(8, no_matter):
            pass
        with budget.hold(2, no_matter):
            pass


def test_budget_asks_late() -> None:
    """How much there is, is not asked for one action."""

    def never() -> int:
        raise AssertionError

    budget = MemoryBudget(never, lambda: False)
    for _ in range(2):
        with budget.hold(1 << 60, no_matter):
            pass
