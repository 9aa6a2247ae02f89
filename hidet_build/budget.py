"""The memory that running actions may take together: each holds what it is expected to take while it runs.

Knows amounts and who waits for one; neither actions nor how the amounts were found.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hidet_build.errors import Interrupted

_PATIENCE = 0.1  # seconds between two looks at whether the build was stopped


class MemoryBudget:
    """A number of bytes to share. Safe to use from several threads at once."""

    def __init__(self, limit: Callable[[], int], cancelled: Callable[[], bool]) -> None:
        """`limit` gives the bytes; it is asked once, when a second one comes."""
        self._ask = limit
        self._cancelled = cancelled
        self._limit: int | None = None
        self._held = 0
        self._holders = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """The bytes there are to share."""
        if self._limit is None:
            self._limit = self._ask()
        return self._limit

    @contextmanager
    def hold(self, amount: int, waiting: Callable[[int, int], None]) -> Iterator[None]:
        """Hold `amount` bytes while the body runs, first come, first served; whoever is alone gets any amount.

        `waiting` is called once where others must end first, with the amount and the limit. Raises Interrupted where
        the build is stopped meanwhile.
        """
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                if not self._may_have(ticket, amount):
                    waiting(amount, self.limit)
                while not self._may_have(ticket, amount):
                    if self._cancelled():
                        raise Interrupted("interrupted")
                    self._changed.wait(_PATIENCE)
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
            self._held += amount
            self._holders += 1
        try:
            yield
        finally:
            with self._changed:
                self._held -= amount
                self._holders -= 1
                self._changed.notify_all()

    def _may_have(self, ticket: object, amount: int) -> bool:
        if self._queue[0] is not ticket:
            return False
        return not self._holders or self._held + amount <= self.limit
