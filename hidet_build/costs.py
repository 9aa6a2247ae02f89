"""What actions cost when they last ran: seconds, and bytes of memory. Decides nothing.

    <output_base>/.state/costs.v1       journal: action id, or mnemonic (what its actions cost on average) -> Cost

It is a memory of this machine, in no key: it changes the order of a build and how much runs at once, never what comes
of it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from hidet_build.action import Action, Step
from hidet_build.state import Journal


class Cost(NamedTuple):
    """What one run took: seconds of the wall clock, and the most bytes of memory at a time."""

    seconds: float
    memory: int


UNKNOWN = Cost(1.0, 256 << 20)  # of a mnemonic that never ran here


class Costs:
    """What is remembered in one state folder; used by one thread."""

    def __init__(self, folder: str) -> None:
        self._journal = Journal(os.path.join(folder, "costs.v1"))
        self._learned: dict[str, Cost] = {}
        self._runs: dict[str, list[Cost]] = {}

    def seconds(self, step: Step) -> float:
        """How long a step may be expected to take; a continuation takes none."""
        return self.of(step).seconds if isinstance(step, Action) else 0.0

    def of(self, action: Action) -> Cost:
        """What an action may be expected to cost: as the last time, else as its like, else as anything."""
        for name in (action.id, action.mnemonic):
            found = self._learned.get(name) or self._journal.get(name)
            if found:
                return Cost(*found)
        return UNKNOWN

    def learn(self, action: Action, cost: Cost) -> None:
        """Remember what an action cost; on disk with `save`."""
        self._learned[action.id] = cost
        self._runs.setdefault(action.mnemonic, []).append(cost)

    def save(self) -> None:
        """Write what was learned, and the averages of this build."""
        for mnemonic, runs in self._runs.items():
            seconds, memory = (sum(figures) for figures in zip(*runs, strict=True))
            self._learned[mnemonic] = Cost(seconds / len(runs), int(memory) // len(runs))
        self._journal.append({name: tuple(cost) for name, cost in self._learned.items()})
        self._journal.compact()
        self._learned, self._runs = {}, {}
