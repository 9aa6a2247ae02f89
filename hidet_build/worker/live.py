"""Lowers modules that live in this process and generates their source, and leaves them and the process as they were.

hidet's `lower` changes what it is given and reads process-wide options. So each module is lowered in a forked child,
which sees the live module and whose changes nobody sees; where a fork is not safe, on a deep copy, with the options
put back. Knows hidet; knows nothing of compilers and caches.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hidet_build.worker import hidet_tools, steps

GIVEN = "given.json"  # beside what codegen writes: {path in a compile action's execution root: path on this machine}


@dataclass(frozen=True)
class Job:
    """One module to lower: where its files go, and what of hidet's options its target says."""

    module: Any  # an IRModule
    folder: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


def generate(jobs: Sequence[Job], parallel: int) -> list[str]:
    """Write for each job what the worker's codegen step writes, into its folder.

    For each job what went wrong, as text; empty where nothing did. At most `parallel` children run at once.
    """
    if not may_fork():
        return [_in_this_process(job) for job in jobs]
    said = [""] * len(jobs)
    running: dict[int, tuple[int, int]] = {}  # the child's pid -> the job and the pipe it answers on
    waiting = list(enumerate(jobs))[::-1]
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                number, job = waiting.pop()
                pid, answers = _fork(job)
                running[pid] = (number, answers)
            pid = next(iter(running))
            number, answers = running.pop(pid)
            said[number] = _collect(pid, answers)
    finally:
        for pid, (_, answers) in running.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
            _collect(pid, answers)
    return said


def option(name: str) -> Any:
    """What one of hidet's options is set to in this process."""
    import hidet

    return hidet.option.get_option(name)


def include_folders() -> list[str]:
    """Where hidet's own headers are."""
    from hidet.libinfo import get_include_dirs

    found: list[str] = get_include_dirs()
    return found


def may_fork() -> bool:
    """Whether a forked child of this process can lower: a CUDA context does not survive a fork."""
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


def _fork(job: Job) -> tuple[int, int]:
    answers, ours = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(ours)
        return pid, answers
    # The child: nothing of the caller's may run here again, neither its handlers nor what it does at exit.
    code = 1
    try:
        os.close(answers)
        said = _lower(job)
        os.write(ours, said.encode("utf-8", "replace"))
        code = 0
    finally:
        os._exit(code)


def _collect(pid: int, answers: int) -> str:
    with open(answers, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    if status and not said:
        return f"the process that lowered the module ended with status {os.waitstatus_to_exitcode(status)}"
    return said


def _in_this_process(job: Job) -> str:
    with _options_kept(), _environment_kept():
        return _lower(Job(copy.deepcopy(job.module), job.folder, job.kind, job.options))


@contextlib.contextmanager
def _options_kept() -> Iterator[None]:
    import hidet

    with hidet.option.context():
        yield


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Undo `pin_environment`."""
    import hidet

    passes = (hidet.transforms.instantiate_symbols, hidet.transforms.import_primitive_functions)
    devices = [(one, name, getattr(one, name)) for one in (hidet.cuda, hidet.hip) for name in ("available",)]
    devices += [(one.device, "available", one.device.available) for one in (hidet.cuda, hidet.hip)]
    try:
        yield
    finally:
        for one in passes:
            vars(one).pop("set", None)
        for one, name, value in devices:
            setattr(one, name, value)


def _lower(job: Job) -> str:
    """Lower and generate; what went wrong, with the whole traceback, or nothing."""
    import hidet

    try:
        hidet_tools.pin_environment()
        for name, value in job.options.items():
            hidet.option.set_option(name, value)
        given: dict[str, str] = {}
        lowered = hidet_tools.lowered(job.module)

        def place(path: str) -> str:
            absolute = os.path.abspath(path)
            if absolute.startswith(hidet_tools.PACKAGE + os.sep):
                return f"external/hidet/{os.path.relpath(absolute, hidet_tools.PACKAGE)}"
            known = {there: here for here, there in given.items()}
            name = known.get(absolute, f"given/{len(given)}/{os.path.basename(absolute)}")
            given[name] = absolute
            return name

        steps.write_generated(lowered, job.kind, job.folder, place)
        with open(os.path.join(job.folder, GIVEN), "w", encoding="utf-8") as file:
            json.dump(given, file)
        return ""
    except BaseException:  # hidet, the module, or Ctrl-C: the caller is told, whatever it is
        return traceback.format_exc() or "failed"


def merge_types(pickles: Sequence[str], rows: Sequence[Mapping[str, Any]], out: str) -> None:
    """Merge files of function types as the worker's step does; here, for the caller has hidet imported."""
    merged: dict[str, Any] = {}
    for path, row in zip(pickles, rows, strict=True):
        with open(path, "rb") as file:
            types = pickle.load(file)
        merged.update(
            {row["rename"].get(name, name): value for name, value in types.items() if name not in row["drop"]}
        )
    with open(out, "wb") as file:
        file.write(hidet_tools.dump_types(merged))
