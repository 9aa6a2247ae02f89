"""What a Task becomes: its candidates, the module that calls them, and the files hidet's loader reads beside a library.

Knows hidet's tasks and how its drivers put them together; lowers and builds nothing, and knows no entry of the user's.
"""

from __future__ import annotations

import importlib
import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import hidet

from hidet_build.worker.hidet_tools import without_addresses

# The namespace of every candidate, so that equal candidates of two tasks have equal source. What calls candidate 3
# calls candidate_3::launch; the object is renamed to fit.
CANDIDATE = "candidate"
# In a task's folder. hidet leaves a task.pickle too, which its loader does not read.
FILES = ("candidates.json", "candidates.txt", "meta.json", "task.txt", "version.txt")


class NoImplementation(Exception):
    """The task cannot be implemented for this kind of target, and says so."""


@dataclass(frozen=True)
class Implementation:
    """The modules of a task, not lowered yet.

    `main` has the functions hidet's loader calls: launch_0, launch_1, ..., get_input_shape, get_output_shape. It calls
    `candidates`; there are none where the only one is `main` itself. `choices` says what tells each candidate from the
    others: `nthreads=8`.
    """

    main: Any
    candidates: tuple[Any, ...]
    choices: tuple[str, ...]


def implement(task: Any, kind: str, folder: str) -> Implementation:
    """Implement a task in the search space that hidet's options name, and write `FILES` into a folder.

    Raises NoImplementation, and whatever the task raises.
    """
    theirs = importlib.import_module("hidet.drivers.build_task")  # as an attribute it is the function of that name
    os.makedirs(folder, exist_ok=True)
    found = _modules(task, kind, folder)
    _write(folder, "task.txt", without_addresses(str(task)))
    _write(folder, "version.txt", str(hidet.__version__))
    theirs.generate_meta_data(task, folder, kind, len(found))
    settings = [_settings(module) for module in found]
    builders = _Builders(settings)
    # hidet's own function declares the module that calls the candidates; it is given builders that only take note.
    declare = types.FunctionType(
        theirs.build_task_module.__code__,
        {
            **theirs.build_task_module.__globals__,
            "build_ir_module": builders.build_ir_module,
            "build_ir_module_batch": builders.build_ir_module_batch,
            "_generate_candidate_summary": builders.summarize,
        },
        closure=theirs.build_task_module.__closure__,
    )
    declare(task, found, folder, kind)
    choices = tuple(", ".join(f"{name}={value}" for name, value in one.items()) for one in settings)
    return Implementation(builders.main, tuple(builders.candidates), choices)


def _modules(task: Any, kind: str, folder: str) -> list[Any]:
    try:
        found: list[Any] = task.implement(target=kind, working_dir=folder)
    except NotImplementedError as error:
        said = f": {error}" if str(error) else ""
        raise NoImplementation(f"the task {task.name!r} has no implementation for {kind}{said}") from error
    if not found:
        raise NoImplementation(f"the task {task.name!r} has no candidate for {kind} in this search space")
    return found


def _settings(module: Any) -> dict[str, str]:
    """What the search chose for a candidate, by name."""
    settings: Mapping[str, Any] = getattr(module, "_tuning_kwargs", {})
    return {name: without_addresses(str(value)) for name, value in settings.items()}


class _Builders:
    """Stand in for hidet's drivers while a task's module is declared: they keep what they are to build."""

    def __init__(self, settings: Sequence[Mapping[str, str]]) -> None:
        self.main: Any = None
        self.candidates: list[Any] = []
        self._settings = settings

    def build_ir_module_batch(
        self, ir_modules: Sequence[Any], output_dirs: Sequence[str], output_kind: str, target: str
    ) -> list[str]:
        """Take note of the candidates."""
        del output_kind, target
        for module in ir_modules:
            module.namespace = CANDIDATE
        self.candidates = list(ir_modules)
        return list(output_dirs)

    def build_ir_module(self, ir_module: Any, output_dir: str, output_kind: str, target: str) -> None:
        """Take note of the module that calls the candidates, without the objects a build would have made of them."""
        del output_kind, target
        made = os.path.join(output_dir, "candidates") + os.sep
        ir_module.object_files = [path for path in ir_module.object_files if not path.startswith(made)]
        self.main = ir_module

    def summarize(self, candidates: Sequence[Any], folder: str) -> None:
        """Write candidates.txt and candidates.json, the same on every run."""
        del candidates
        theirs = importlib.import_module("hidet.drivers.build_task")
        theirs._generate_candidate_summary([SimpleNamespace(_tuning_kwargs=one) for one in self._settings], folder)


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)
