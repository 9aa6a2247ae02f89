"""The steps that can start, the one with the longest chain of steps behind it first.

Knows steps, who waits for whom, and how long each is expected to take; starts nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import Enum

from hidet_build.action import Artifact, Step


class Phase(Enum):
    """The life of a step, in order; FAILED and SKIPPED end it early."""

    KNOWN = "declared, but nobody asked for it"
    WAITING = "its inputs are not all made"
    READY = "it can start"
    RUNNING = "a thread has it"
    DONE = "its outputs are there"
    FAILED = "it ran and failed"
    SKIPPED = "something it needs failed"


class Node:
    """A step in the schedule; changed by the loop thread alone."""

    __slots__ = ("attempts", "chain", "dependents", "phase", "step", "unmet")

    def __init__(self, step: Step) -> None:
        self.step = step
        self.phase = Phase.KNOWN
        self.unmet = 0
        self.attempts = 0
        self.chain: float | None = None  # seconds from its start to the end of all that waits for it
        self.dependents: list[tuple[Node, Artifact]] = []


class Ready:
    """A queue of nodes. Who is alone in it is not compared, so a build with one chain asks for no durations."""

    def __init__(self, seconds: Callable[[Step], float]) -> None:
        """`seconds` says how long a step is expected to take."""
        self._seconds = seconds
        self._first: list[Node] = []  # the last one goes next
        self._arrived: list[Node] = []
        self._sorted: list[tuple[float, int, Node]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._first or self._arrived or self._sorted)

    def add(self, node: Node) -> None:
        """Queue a node by its chain, and behind equal ones."""
        self._arrived.append(node)

    def add_first(self, node: Node) -> None:
        """Queue a node before all others."""
        self._first.append(node)

    def peek(self) -> Node:
        """The next node."""
        if self._first:
            return self._first[-1]
        if len(self._arrived) == 1 and not self._sorted:
            return self._arrived[0]
        for node in self._arrived:
            self._count += 1
            heapq.heappush(self._sorted, (-self._chain(node), self._count, node))
        self._arrived.clear()
        return self._sorted[0][2]

    def pop(self) -> Node:
        """Take the next node out."""
        node = self.peek()
        if self._first:
            self._first.pop()
        elif self._arrived:
            self._arrived.pop()
        else:
            heapq.heappop(self._sorted)
        return node

    def _chain(self, node: Node) -> float:
        """The node's chain, found from its ends; not by recursion, for chains may be long."""
        waiting = [node]
        while waiting:
            one = waiting[-1]
            unknown = [user for user, _ in one.dependents if user.chain is None] if one.chain is None else []
            if unknown:
                waiting += unknown
                continue
            waiting.pop()
            if one.chain is None:
                behind = max((user.chain or 0.0 for user, _ in one.dependents), default=0.0)
                one.chain = self._seconds(one.step) + behind
        assert node.chain is not None
        return node.chain
