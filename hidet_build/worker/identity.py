"""Bytes that say all of an IR module or a task that lives in this process, for keys. Knows hidet's IR, no files.

They are its pickle, which holds every attribute of every object. It is not canonical: the same module made after other
ones may have another. So an equal pickle is an equal module, and an unequal one may be too; then it is lowered again.
Classes and functions are in it by name only, so it counts only where these are hidet's own, whose code is in hidet's
identity; and what a module calls by name, a primitive function, is added with its content. A program that has put
functions of its own into hidet (`is_patched`) has a hidet whose code no key knows.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from hidet.ir.expr import Call
from hidet.ir.module import IRModule
from hidet.ir.primitives.func import primitive_func_pool
from hidet.ir.tools import collect

from hidet_build.worker import hidet_tools

# What a key that holds hidet's identity covers; hidet's pickles name no other module.
_COVERED = frozenset(("hidet", "builtins", "collections", "functools", "numpy", "torch", "_codecs"))

# Whose functions stand in hidet's modules and classes: its own, those it imports, and our hooks.
_WRITERS = (
    sys.stdlib_module_names | _COVERED | {"hidet_build", "cuda", "hip", "packaging", "tabulate", "tqdm", "filelock"}
)


def is_patched() -> bool:
    """Whether a function in one of hidet's modules, classes or registries was put there by somebody else."""
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "hidet":
            for function in _functions(list(vars(module).values()), seen):
                writer = (function.__module__ or "").partition(".")[0]
                # Of a named tuple, or made of text as a dataclass's are: it has no module of its own.
                if writer not in _WRITERS and not function.__code__.co_filename.startswith("<"):
                    return True
    return False


def _functions(values: list[Any], seen: set[int]) -> Iterator[FunctionType]:
    """The functions among values, in hidet's classes among them, and in lists and dicts."""
    for value in values:
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, (staticmethod, classmethod)):
            yield from _functions([value.__func__], seen)
        elif isinstance(value, property):
            yield from _functions([value.fget, value.fset, value.fdel], seen)
        elif id(value) not in seen and (inner := _inside(value)):
            seen.add(id(value))
            yield from _functions(inner, seen)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, type):
        return list(vars(value).values()) if value.__module__.partition(".")[0] == "hidet" else []
    if type(value) is dict:
        return list(value.values())
    return list(value) if type(value) in (list, tuple, set) else []


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
