"""Puts back outputs that are gone or were written to, where nothing else has changed: no plan is needed for that.

Knows outputs by path, what earlier builds recorded of them, and the store; no actions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from hidet_build.cache.base import Cache
from hidet_build.digest import Digest
from hidet_build.files import seal_time_ns
from hidet_build.state import State


def put_back(
    paths: Iterable[str], expected: Mapping[str, tuple[int, int, int]], output_base: str, state: State, cache: Cache
) -> bool:
    """Put the outputs at `paths` back from the store; false where one is not known well enough, or not to be had.

    `expected` is what a null build expects of each (size, time, mode bit). The record of an action has the name of its
    first output, so an action with more than one, or with a folder, is left to the engine; so is what fails here, and
    the engine finds in place what was put back before.
    """
    for path in paths:
        record = state.record(f"/{path}")
        if record is None or record.directories or len(record.files) != 1:
            return False
        _, hash_, size, executable = record.files[0]
        if expected[path] != (size, seal_time_ns(hash_), 0o100 if executable else 0):
            return False
        try:
            if not cache.place(Digest(hash_, size), executable, os.path.join(output_base, path)):
                return False
        except OSError:  # the engine will say what is wrong
            return False
    return True
