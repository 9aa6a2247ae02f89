"""Tells a program that calls the drivers what a call is at, a line now and then; nothing where it is soon done.

Knows the counts of a call and a stream to write to; nothing of modules and actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from hidet_build.action import Action, ActionResult
from hidet_build.progress import Outcome, SilentReporter

FIRST = 2.0  # seconds of work that need no word
INTERVAL = 15.0  # seconds between two lines after that


class Narrator(SilentReporter):
    """Hears of lowering by `lowering`, of what comes after as a Reporter. Is told of time by whoever works."""

    def __init__(self, what: str, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` the call makes: `8 modules for cpu --arch=x86-64-v3`. A `stream` of None says nothing."""
        self._what = what
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._due = self._started + FIRST
        self._told = False
        self._added = self._finished = 0
        self._waiting: dict[str, str] = {}  # for whom, by whose step waits

    def lowering(self, done: int, count: int) -> None:
        """Time went by: so many of `count` modules are lowered; a count of 0 where nobody knows how many there are."""
        self._tell_if_due(f"lowering, {done} of {count} done" if count else "lowering")

    def actions_added(self, count: int) -> None:
        """See Reporter; so for all below."""
        self._added += count

    def finished(self, action: Action, outcome: Outcome, result: ActionResult | None) -> None:  # noqa: D102
        del outcome, result
        self._finished += 1
        self.waited(str(action.owner))
        self.tick()

    def tick(self) -> None:  # noqa: D102
        state = f"compiling, {self._finished} of {self._added} steps done"
        self._tell_if_due(", ".join([state, *dict.fromkeys(self._waiting.values())]))

    def waiting(self, label: str, pid: int, host: str, since: float) -> None:  # noqa: D102
        del since
        self._waiting[label] = f"waiting for process {pid} on {host}, which compiles the same"

    def waited(self, label: str) -> None:  # noqa: D102
        self._waiting.pop(label, None)

    def close(self) -> None:
        """Say the end of a call that took long. May be called twice."""
        if self._told and self._clock() - self._started >= INTERVAL:
            self._tell("done")
        self._told = False

    def say(self, text: str) -> None:
        """Say something at once. A stream that is closed or full is no reason to end a build."""
        try:
            if self._stream is not None:
                self._stream.write(f"hidet-build: {text}\n")
                self._stream.flush()
        except (OSError, ValueError):
            self._stream = None

    def _tell_if_due(self, state: str) -> None:
        if self._clock() >= self._due:
            self._told = True
            self._tell(state)

    def _tell(self, state: str) -> None:
        now = self._clock()
        self._due = now + INTERVAL
        self.say(f"{self._what}: {state} ({now - self._started:.0f} s)")
