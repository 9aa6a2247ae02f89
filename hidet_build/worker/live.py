"""Lowers modules that live in this process and generates their source, and leaves them and the process as they were.

hidet's `lower` changes what it is given and reads process-wide options. So each module is lowered in a forked child,
which sees the live module and whose changes nobody sees; where a fork is not safe, on a deep copy, with the options
put back. Knows hidet; knows nothing of compilers and caches.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import importlib
import json
import os
import pickle
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from hidet.runtime.compiled_module import load_compiled_module
from hidet.runtime.compiled_task import compiled_task_cache, load_compiled_task
from hidet.runtime.utils.dispatch_table import PointsDispachTable

from hidet_build.worker import candidates, hidet_tools, steps
from hidet_build.worker.fork import Slots, in_child, in_children

_NO_PART_IN_RESULTS = (
    *("cache_dir", "cache_operator", "compile_server", "num_local_workers", "parallel_build", "parallel_tune"),
    *("bench_config", "dispatch_table", "fix_gpu_frequency_for_tuning", "save_lower_ir"),
)
GIVEN = "given.json"  # beside what codegen writes: {path in a compile action's execution root: path on this machine}


@dataclass(frozen=True)
class Job:
    """One module to lower: where its files go, and what of hidet's options its target says."""

    module: Any  # an IRModule
    folder: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


def generate(jobs: Sequence[Job], parallel: int, tick: Callable[[int], None] = lambda _: None) -> list[str]:
    """Write for each job what the worker's codegen step writes, into its folder.

    For each job what went wrong, as text; empty where nothing did. At most `parallel` children run at once. `tick` is
    called by and by with the number of jobs that are done.
    """
    if not may_fork():
        said = []
        for number, job in enumerate(jobs):
            tick(number)
            said.append(_in_this_process(job))
        return said
    with Slots(parallel - 1) as slots:
        return in_children([functools.partial(_lower, job) for job in jobs], slots, tick)


def option(name: str) -> Any:
    """What one of hidet's options is set to in this process."""
    import hidet

    return hidet.option.get_option(name)


def include_folders() -> list[str]:
    """Where hidet's own headers are."""
    from hidet.libinfo import get_include_dirs

    found: list[str] = get_include_dirs()
    return found


def on_this_machine(place: str, given: Mapping[str, str]) -> str:
    """Where a path of a compile action's execution root is on this machine; `given` is what GIVEN says."""
    return given.get(place) or os.path.join(hidet_tools.PACKAGE, place.removeprefix("external/hidet/"))


def may_fork() -> bool:
    """Whether a forked child of this process can lower: a CUDA context does not survive a fork."""
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


def _in_this_process(job: Job) -> str:
    with _kept():
        return _lower(Job(copy.deepcopy(job.module), job.folder, job.kind, job.options))


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Leave hidet's options as they are, and what `pin_environment` changes."""
    import hidet

    undo = hidet_tools.pin_environment()
    try:
        with hidet.option.context():
            yield
    finally:
        undo()


def _lower(job: Job) -> str:
    """Lower and generate; what went wrong, with the whole traceback, or nothing."""
    import hidet

    try:
        hidet_tools.pin_environment(job.kind)
        for name, value in job.options.items():
            hidet.option.set_option(name, value)
        given: dict[str, str] = {}
        _by_name(job.module)
        with hidet.transforms.PassContext(instruments=_instruments(job)):
            lowered = hidet_tools.lowered(job.module)

        def place(path: str) -> str:
            absolute = os.path.abspath(path)
            if absolute.startswith(hidet_tools.PACKAGE + os.sep):
                return f"external/hidet/{os.path.relpath(absolute, hidet_tools.PACKAGE)}"
            known = {there: here for here, there in given.items()}
            # The name of the job's folder keeps apart what two modules of one library ask for.
            prefix = f"given/{os.path.basename(job.folder)}/{len(given)}"
            name = known.get(absolute, f"{prefix}/{os.path.basename(absolute)}")
            given[name] = absolute
            return name

        steps.write_generated(lowered, job.kind, job.folder, place)
        with open(os.path.join(job.folder, GIVEN), "w", encoding="utf-8") as file:
            json.dump(given, file)
        return ""
    except Exception:  # hidet or the module: whatever it is, the caller is told
        return traceback.format_exc()


def _by_name(module: Any) -> None:
    """Let a module ask for its headers by name in a folder, where it does so by a path of this machine.

    What lies in a folder is an input of the compile; the path would lead past all keys.
    """
    for number, header in enumerate(module.include_headers):
        named = [header] if isinstance(header, str) else list(header)
        elsewhere = [one for one in named if os.path.isabs(one) and not one.startswith(hidet_tools.PACKAGE + os.sep)]
        module.include_dirs += [os.path.dirname(one) for one in elsewhere]
        named = [os.path.basename(one) if one in elsewhere else one for one in named]
        module.include_headers[number] = named[0] if isinstance(header, str) else named


def _instruments(job: Job) -> list[Any]:
    """What hidet's option `save_lower_ir` asks for: <folder>/ir/<namespace>/ gets the IR after each pass, and times."""
    theirs = importlib.import_module("hidet.drivers.build_module")
    found: list[Any] = theirs.create_instruments(job.folder, job.module)
    return found


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


# Tasks


def generate_task(
    task: Any,
    kind: str,
    options: Mapping[str, Any],
    folder: str,
    parallel: int,
    tick: Callable[[int], None] = lambda _: None,
) -> str:
    """Implement a task and generate the source of its candidates and of the module that calls them.

        <folder>/files/              what hidet puts into a task's folder beside the library
        <folder>/main/               what codegen writes, of the module with launch_0, launch_1, ...
        <folder>/candidates/<i>/     the same of each candidate, where there are several

    What went wrong, as text; empty where nothing did. Runs in a child, as `generate` does; `tick` is called by and by.
    """
    work = functools.partial(_generate_task, task, kind, options, folder, parallel)
    if may_fork():
        return in_child(work, tick)
    with _kept():
        return work()


def _generate_task(task: Any, kind: str, options: Mapping[str, Any], folder: str, parallel: int) -> str:
    import hidet

    try:
        hidet_tools.pin_environment(kind)
        for name, value in {**options, "num_local_workers": 1}.items():
            hidet.option.set_option(name, value)
        files = os.path.join(folder, "files")
        os.makedirs(files)
        with contextlib.suppress(Exception):  # hidet leaves it out where the task cannot be pickled
            content = pickle.dumps(task)
            with open(os.path.join(files, "task.pickle"), "wb") as file:
                file.write(content)
        found = candidates.implement(task, kind, files)
        jobs = [Job(found.main, os.path.join(folder, "main"), kind)]
        for number, module in enumerate(found.candidates):
            jobs.append(Job(module, os.path.join(folder, "candidates", str(number)), kind))
        said, *others = generate(jobs, parallel)
        for number, text in enumerate(others):
            said += f"candidate {number} ({found.choices[number]}): {text}\n" if text else ""
        return said
    except candidates.NoImplementation as error:
        return str(error)
    except Exception:  # hidet or the task: whatever it is, the caller is told
        return traceback.format_exc()


def kind_of_module(module: Any) -> str:
    """What a module is for, as `IRModule.build` sees it: by the kinds of its functions."""
    kinds = {function.kind.partition("_")[0] for function in module.functions.values()}
    return "cuda" if "cuda" in kinds else "hip" if "hip" in kinds else "cpu"


def module_folder(name: str) -> str:
    """Where hidet's cache keeps a module of this name."""
    return os.path.join(cache_folder(), "ir_modules", name)


def cache_folder() -> str:
    """hidet's own cache."""
    folder: str = os.path.abspath(option("cache_dir"))
    return folder


def load_module(folder: str) -> Any:
    """Load a built module."""
    return load_compiled_module(_loadable(folder))


def task_folder(task: Any, kind: str) -> str:
    """Where hidet's cache keeps a task, for the search space its options name."""
    import hidet

    theirs = importlib.import_module("hidet.drivers.build_task")
    space = hidet.option.get_option("search_space")
    base = os.path.join(cache_folder(), "ops")
    folder: str = theirs.prepare_cache_paths(base, f"{kind}_space_{space}", task)[0]
    return folder


def options_text() -> str:
    """hidet's options as they are set in this process, without those that only say where and how fast to work."""
    import hidet

    registered = sorted(hidet.option.OptionRegistry.registered_options)
    names = [name for name in registered if not name.startswith(_NO_PART_IN_RESULTS)]
    return json.dumps({name: repr(hidet.option.get_option(name)) for name in names}, sort_keys=True)


def remembered_task(kind: str, key: str) -> Any:
    """The compiled task that this process has loaded for a key, or None."""
    return compiled_task_cache.get(kind, 0, key)


def remember_task(kind: str, key: str, compiled: Any) -> None:
    """Keep a compiled task for `remembered_task`."""
    compiled_task_cache.add(kind, 0, key, compiled)


def load_task(folder: str, tables: str | None = None) -> Any:
    """Load a built task.

    `tables` is the folder that keeps which of several candidates is the fastest, "" to forget it; by default the
    task's own, as with hidet.
    """
    # hidet keeps what it measures beside the library, whether there is something to choose or not.
    compiled = load_compiled_task(_loadable(folder) if os.access(folder, os.W_OK) else _copied(folder))
    if len(compiled.candidates) > 1 and type(compiled.dispatch_table) is PointsDispachTable:
        table = _CpuDispatchTable if compiled.meta_data.target == "cpu" else PointsDispachTable
        place = compiled.task_dir if tables is None else tables
        known = compiled.meta_data
        compiled.dispatch_table = table(compiled.candidates, place, known.symbols, known.name)
    return compiled


def hardware(kind: str) -> str:
    """A name for what candidates are timed on: the model of the processor, and for CUDA those of the GPUs."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = {line for line in file if line.startswith("model name")}
    gpus = []
    if kind == "cuda":  # asking starts CUDA in this process
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return sha256(repr((sorted(models), gpus)).encode()).hexdigest()[:16]


def _loadable(folder: str) -> str:
    """The folder, or a copy: the loader gives a library that was replaced after it was loaded back as it was."""
    library = os.path.realpath(os.path.join(folder, "lib.so"))
    inode = os.stat(library).st_ino
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        loaded = {line.split(maxsplit=5)[4] for line in maps if library in line}
    if loaded <= {str(inode)}:
        return folder
    return _copied(folder)


def _copied(folder: str) -> str:
    """A copy of a folder that is there, and may be written to, as long as we live."""
    copied = tempfile.mkdtemp(prefix="hidet-build-task-")
    atexit.register(shutil.rmtree, copied, ignore_errors=True)
    shutil.copytree(folder, copied, copy_function=shutil.copyfile, dirs_exist_ok=True)
    os.chmod(copied, 0o700)  # the folder may be read-only, and so may its files
    return copied


class _CpuDispatchTable(PointsDispachTable):  # type: ignore[misc]
    """Picks the fastest candidate of a CPU task; hidet would time it with a CUDA stream."""

    def pick_best_candidate(self, inputs: Any, outputs: Any) -> int:
        """The candidate for the current values of the symbols, timed the first time; outputs are left as they are."""
        key = self._get_symbol_values()
        if key not in self.dispatch_table:
            # Copies of torch's: hidet cannot copy a tensor on the CPU.
            scratch = [(one if hasattr(one, "clone") else one.torch()).clone() for one in outputs]
            seconds = [self._seconds(candidate, [*inputs, *scratch]) for candidate in self.candidates]
            self.dispatch_table[key] = seconds.index(min(seconds))
            self._append_dispatch_table_entry(key, self.dispatch_table[key])
        best: int = self.dispatch_table[key]
        return best

    @staticmethod
    def _seconds(candidate: Any, arguments: Sequence[Any]) -> float:
        candidate(*arguments)
        times = []
        for _ in range(3):
            started = time.perf_counter()
            candidate(*arguments)
            times.append(time.perf_counter() - started)
        return min(times)
