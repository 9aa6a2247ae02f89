"""Bytes that say all of an IR module or a task that lives in this process, for keys. Knows hidet's IR, no files.

They are its pickle, which holds every attribute of every object. It is not canonical: the same module made after other
ones may have another. So an equal pickle is an equal module, and an unequal one may be too; then it is lowered again.
Classes and functions are in it by name only, so it counts only where these are hidet's own, whose code is in hidet's
identity; and what a module calls by name, a primitive function, is added with its content.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

from hidet.ir.expr import Call
from hidet.ir.module import IRModule
from hidet.ir.primitives.func import primitive_func_pool
from hidet.ir.tools import collect

from hidet_build.worker import hidet_tools

# What a key that holds hidet's identity covers; hidet's pickles name no other module.
_COVERED = frozenset(("hidet", "builtins", "collections", "functools", "numpy", "torch", "_codecs"))


def identity(value: Any) -> bytes | None:
    """Bytes that say all of an IRModule or a Task, or None where there are none that can be relied on."""
    try:
        content = pickle.dumps((value, list(_called(value))), hidet_tools.PICKLE_PROTOCOL)
        names = _Names(io.BytesIO(content))
        names.load()
    except Exception:  # local functions, locks, C objects: whatever cannot be pickled has its own kind of error
        return None
    return content if names.modules <= _COVERED else None


def _called(value: Any) -> Iterator[tuple[str, Any]]:
    """The primitive functions that are called, over any number of others: name and content.

    A primitive of the user's own is found by its name alone when a module is lowered.
    """
    seen: set[str] = set()
    waiting = list(value.functions.values()) if isinstance(value, IRModule) else [value]
    while waiting:
        for call in collect(waiting.pop(), Call):
            for name in sorted(_names(call.func_var) - seen):
                seen.add(name)
                entry = primitive_func_pool.name2func[name]
                yield name, (entry.codegen_name, entry.func_type, entry.function, entry.generic)
                if entry.function is not None:
                    waiting.append(entry.function)


def _names(variable: Any) -> set[str]:
    """What a called variable can mean among the primitive functions."""
    return {name for name in (variable.name, variable.hint) if name in primitive_func_pool.name2func}


class _Names(pickle.Unpickler):
    """Reads a pickle of our own process to see which packages it names."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module.partition(".")[0])
        return super().find_class(module, name)
