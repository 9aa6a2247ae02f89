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
import io
import json
import os
import pickle
import shutil
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hidet.runtime.compiled_module import load_compiled_module
from hidet.runtime.compiled_task import compiled_task_cache, load_compiled_task
from hidet.runtime.utils.dispatch_table import PointsDispachTable

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
                pid, answers = _fork(functools.partial(_lower, job))
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


def _fork(work: Callable[[], str]) -> tuple[int, int]:
    """Do `work` in a child; its pid and the pipe on which it says what went wrong."""
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
        # hidet draws progress bars there; whatever is wrong comes back as text.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        said = work()
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
            # The name of the job's folder keeps apart what two modules of one library ask for.
            prefix = f"given/{os.path.basename(job.folder)}/{len(given)}"
            name = known.get(absolute, f"{prefix}/{os.path.basename(absolute)}")
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


# Tasks

CANDIDATE = "candidate"  # the namespace of every candidate, so that equal candidates of two tasks have equal source


def task_identity(task: Any) -> bytes | None:
    """Bytes that say all of a task, or None where there are none that can be relied on.

    Its pickle: the same in every process, unlike that of a module. It names classes instead of holding their code, so
    it counts only where all of them are hidet's (or of what hidet's identity covers), whose code the key covers.
    """
    try:
        content = pickle.dumps(task, hidet_tools.PICKLE_PROTOCOL)
        names = _Names(io.BytesIO(content))
        names.load()
    except Exception:  # local functions, locks, C objects: whatever cannot be pickled has its own kind of error
        return None
    known = ("hidet", "builtins", "collections", "numpy", "torch", "_codecs")
    return content if all(name.partition(".")[0] in known for name in names.modules) else None


class _Names(pickle.Unpickler):
    """Reads a pickle of our own process to see which modules it names."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)


def generate_task(task: Any, kind: str, options: Mapping[str, Any], folder: str, parallel: int) -> str:
    """Implement a task and generate the source of its candidates and of the module that calls them.

        <folder>/files/              what hidet puts into a task's folder beside the library
        <folder>/main/               what codegen writes, of the module with launch_0, launch_1, ...
        <folder>/candidates/<i>/     the same of each candidate, where there are several

    What went wrong, as text; empty where nothing did. Runs in a child, as `generate` does.
    """
    work = functools.partial(_generate_task, task, kind, options, folder, parallel)
    if may_fork():
        return _collect(*_fork(work))
    with _options_kept(), _environment_kept():
        return work()


def _generate_task(task: Any, kind: str, options: Mapping[str, Any], folder: str, parallel: int) -> str:
    import hidet

    theirs = importlib.import_module("hidet.drivers.build_task")  # as an attribute it is the function of that name
    try:
        hidet_tools.pin_environment()
        for name, value in {**options, "num_local_workers": 1}.items():
            hidet.option.set_option(name, value)
        files = os.path.join(folder, "files")
        os.makedirs(files)
        theirs.write_task_files(task, str(task), files)
        candidates = task.implement(target=kind, working_dir=files)
        theirs.generate_meta_data(task, files, kind, len(candidates))
        builders = _Builders(folder, kind, parallel)
        # hidet's own function declares the module that calls the candidates; it is given builders that stop at source.
        declare = types.FunctionType(
            theirs.build_task_module.__code__,
            {
                **theirs.build_task_module.__globals__,
                "build_ir_module": builders.build_ir_module,
                "build_ir_module_batch": builders.build_ir_module_batch,
            },
            closure=theirs.build_task_module.__closure__,
        )
        declare(task, candidates, files, kind)
        shutil.rmtree(os.path.join(files, "candidates"), ignore_errors=True)
        return builders.said
    except BaseException:  # hidet, the task, or Ctrl-C: the caller is told, whatever it is
        return traceback.format_exc() or "failed"


class _Builders:
    """Stand in for hidet's drivers while a task's module is declared, and generate source instead of libraries."""

    def __init__(self, folder: str, kind: str, parallel: int) -> None:
        self.said = ""
        self._folder = folder
        self._kind = kind
        self._parallel = parallel

    def build_ir_module_batch(
        self, ir_modules: Sequence[Any], output_dirs: Sequence[str], output_kind: str, target: str
    ) -> list[str]:
        """Generate the candidates."""
        del output_kind, target  # an object file for the kind of target we were made for
        jobs = []
        for number, module in enumerate(ir_modules):
            module.namespace = CANDIDATE
            jobs.append(Job(module, os.path.join(self._folder, "candidates", str(number)), self._kind))
        said = generate(jobs, self._parallel)
        self.said += "".join(f"candidate {number}: {text}\n" for number, text in enumerate(said) if text)
        return list(output_dirs)

    def build_ir_module(self, ir_module: Any, output_dir: str, output_kind: str, target: str) -> None:
        """Generate the module that calls the candidates."""
        del output_kind, target
        ours = os.path.join(output_dir, "candidates") + os.sep
        ir_module.object_files = [path for path in ir_module.object_files if not path.startswith(ours)]
        self.said += _lower(Job(ir_module, os.path.join(self._folder, "main"), self._kind))


def kind_of_module(module: Any) -> str:
    """What a module is for, as `IRModule.build` sees it: by the kinds of its functions."""
    kinds = {function.kind.partition("_")[0] for function in module.functions.values()}
    return "cuda" if "cuda" in kinds else "hip" if "hip" in kinds else "cpu"


def module_folder(name: str) -> str:
    """A folder of hidet's cache for a module of this name."""
    import hidet.utils

    folder: str = hidet.utils.cache_dir("ir_modules", name)
    return folder


def load_module(folder: str) -> Any:
    """Load a built module."""
    return load_compiled_module(folder)


def task_folder(task: Any, kind: str) -> str:
    """Where hidet's cache keeps a task, for the search space its options name."""
    import hidet

    theirs = importlib.import_module("hidet.drivers.build_task")
    space = hidet.option.get_option("search_space")
    base = os.path.join(os.path.abspath(hidet.option.get_option("cache_dir")), "ops")
    folder: str = theirs.prepare_cache_paths(base, f"{kind}_space_{space}", task)[0]
    return folder


def options_text() -> str:
    """The options of hidet's that can change what a task becomes, as they are set in this process."""
    import hidet

    return json.dumps({name: hidet.option.get_option(name) for name in hidet_tools.OPTIONS}, sort_keys=True)


def remembered_task(kind: str, key: str) -> Any:
    """The compiled task that this process has loaded for a key, or None."""
    return compiled_task_cache.get(kind, 0, key)


def load_task(folder: str, kind: str, key: str | None) -> Any:
    """Load a built task; it is remembered under `key`."""
    compiled = load_compiled_task(_loadable(folder))
    if kind == "cpu" and len(compiled.candidates) > 1:
        compiled.dispatch_table = _CpuDispatchTable(compiled)
    if key is not None:
        compiled_task_cache.add(kind, 0, key, compiled)
    return compiled


def _loadable(folder: str) -> str:
    """The folder, or a copy: the loader gives a library that was replaced after it was loaded back as it was."""
    library = os.path.realpath(os.path.join(folder, "lib.so"))
    inode = os.stat(library).st_ino
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        loaded = {line.split(maxsplit=5)[4] for line in maps if library in line}
    if loaded <= {str(inode)}:
        return folder
    copied = tempfile.mkdtemp(prefix="hidet-build-task-")
    atexit.register(shutil.rmtree, copied, ignore_errors=True)
    return shutil.copytree(folder, copied, dirs_exist_ok=True)


class _CpuDispatchTable(PointsDispachTable):  # type: ignore[misc]
    """Picks the fastest candidate of a CPU task; hidet would time it with a CUDA stream."""

    def __init__(self, compiled: Any) -> None:
        super().__init__(compiled.candidates, compiled.task_dir, compiled.meta_data.symbols, compiled.meta_data.name)

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
