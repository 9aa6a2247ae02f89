"""Puts back outputs that are gone or were written to, where nothing else has changed: no plan is needed for that.

Knows outputs by path, what earlier builds recorded of them, and the store; neither actions nor the engine, whose import
would take a third of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from os import mkdir
from typing import NamedTuple

from hidet_build.cache.base import Cache
from hidet_build.cache.disk import DiskCache
from hidet_build.digest import Digest
from hidet_build.execution import Layout
from hidet_build.files import Placer, seal_time_ns
from hidet_build.lock import shared
from hidet_build.progress import Outcome, Reporter, Summary
from hidet_build.quick import Changes
from hidet_build.request import Options, Request
from hidet_build.state import State

_ENOUGH = 100  # outputs that are worth another thread


class _Output(NamedTuple):
    """What belongs at a path."""

    path: str
    digest: Digest
    executable: bool


def restore(request: Request, options: Options, reporter: Reporter) -> Summary | None:
    """Restore outputs, where they alone differ; None where that is not all there is to do.

    What fails here is left to the build, which finds in place what was put back before.
    """
    changes = request.changes
    if changes is None or changes.sources or request.nobuild:
        return None
    if options.nocache or options.require_cached or options.check_up_to_date or options.explain:
        return None
    started = time.monotonic()
    layout = Layout(request.root, request.output_base)
    with shared(layout.lock):
        outputs = _known(changes, layout, State(layout.state, request.root))
        if outputs is None or not _put_back(outputs, DiskCache(request.store, Placer()), options.jobs):
            return None
    for line in changes.snapshot["lines"]:
        reporter.message(line)
    counts = {Outcome.CACHED: len(outputs), Outcome.UP_TO_DATE: changes.snapshot["actions"] - len(outputs)}
    shown = {outcome: number for outcome, number in counts.items() if number}
    return Summary(shown, time.monotonic() - started, changes.snapshot["targets"])


def _known(changes: Changes, layout: Layout, state: State) -> list[_Output] | None:
    """What was at the paths that changed; None where one is not known well enough.

    The record of an action has the name of its first output, so an action with more than one, or with a folder, is left
    to the engine.
    """
    outputs = []
    for path in changes.outputs:
        record = state.record(f"/{path}")
        if record is None or record.directories or len(record.files) != 1:
            return None
        _, hash_, size, executable = record.files[0]
        if changes.snapshot["outputs"][path] != (size, seal_time_ns(hash_), 0o100 if executable else 0):
            return None
        outputs.append(_Output(f"{layout.output_base}/{path}", Digest(hash_, size), executable))
    return outputs


def _put_back(outputs: Sequence[_Output], cache: Cache, jobs: int) -> bool:
    """Put outputs back from the store, on up to `jobs` threads; false where one is not to be had."""
    share = max(_ENOUGH, -(-len(outputs) // jobs))
    pieces = [_Piece(outputs[start : start + share], cache) for start in range(0, len(outputs), share)]
    for piece in pieces[1:]:
        piece.start()
    for piece in pieces[:1]:
        piece.run()
    for piece in pieces[1:]:
        piece.join()
    return all(piece.succeeded for piece in pieces)


class _Piece(threading.Thread):
    """Some of the outputs to put back."""

    def __init__(self, outputs: Sequence[_Output], cache: Cache) -> None:
        super().__init__(name="restoration", daemon=True)
        self._outputs = outputs
        self._cache = cache
        self.succeeded = False

    def run(self) -> None:
        """Put them back, until one cannot be."""
        last = ""
        with suppress(OSError):  # the engine will say what is wrong
            for output in self._outputs:
                folder = output.path.rpartition("/")[0]
                if folder != last:  # gone with what was in it, as a rule
                    last = folder
                    with suppress(OSError):
                        mkdir(folder)
                if not self._cache.place(output.digest, output.executable, output.path):
                    return
            self.succeeded = True
