"""hidet.drivers on our engine: the same functions, keyed by content, with every cache and lock of `hidet-build`.

    from hidet_build.drivers import build_ir_module          instead of: from hidet.drivers import build_ir_module

A module that lives in the caller's process is lowered there (worker/live.py), unless its identity says that it was
before; the source that comes out decides what is compiled. Knows how a call becomes actions and where hidet expects
files.

    <user cache>/drivers/<pid>-<random>/     one for each call, gone when it returns; the next call deletes what a
                                             killed one left
        given/<i>/                           what lowering and codegen wrote for module i
        made/<i>/                            its outputs and the engine's state
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Union, cast

from hidet_build.action import Artifact, Step
from hidet_build.build import find_toolchains, local_engine
from hidet_build.digest import Digest, of_file
from hidet_build.engine import Engine, Result
from hidet_build.errors import ActionFailed, BuildError, ErrorGroup, Location, LockHeld, NotCached, UsageError
from hidet_build.execution import Layout, OwnFolder
from hidet_build.files import remove, write_atomic
from hidet_build.kept import KeptResults, key_of
from hidet_build.label import Label
from hidet_build.lock import KeyLocks, exclusive
from hidet_build.performer import Waiting
from hidet_build.platform import Platform, parse_target
from hidet_build.precompiled import PRECOMPILED, PrecompiledHeaders
from hidet_build.process import Processes
from hidet_build.progress import Reporter, SilentReporter, choose_reporter
from hidet_build.request import Options
from hidet_build.rule import Context
from hidet_build.rules.ir_module import (
    CPU_FLAGS,
    compile_module,
    generated_files,
    join_modules,
    link,
    nvcc_flags,
)
from hidet_build.rules.task import rename_candidate
from hidet_build.settings import REQUIRE_CACHED, default_jobs, disk_cache, require_cached, user_cache
from hidet_build.state import State
from hidet_build.worker.pool import WorkerPool

if TYPE_CHECKING:
    from hidet.ir.module import IRModule
    from hidet.ir.target import Target
    from hidet.ir.task import Task
    from hidet.runtime.compiled_module import CompiledModule
    from hidet.runtime.compiled_task import CompiledTask
    from hidet.runtime.device import Device

Modules = Union["IRModule", Sequence["IRModule"]]
_KINDS = (".so", ".o")
_HERE = Location("hidet_build.drivers", 1, 1)
_FILL = f"run the program without {REQUIRE_CACHED} where the store is filled; export the store after that"
_TYPES = "func_types.pickle"
# hidet's options that decide how CUDA code is compiled, and not what is generated.
_COMPILE_OPTIONS = {"cuda.build.ftz": True, "cuda.build.prec_div": False}


def build_ir_module(
    ir_module: Modules, output_dir: str, target: str | Target, output_kind: str = ".so", force: bool = False
) -> None:
    """Build an IR module, or several into one, to a shared library or an object file in `output_dir`.

    As `hidet.drivers.build_ir_module`, with these differences: a changed module, target or option rebuilds though the
    library exists; several modules make one `.so` too; the caller's modules and hidet's options stay as they were. A
    file `.lock` in `output_dir` serialises writers, hidet's own driver included. Raises BuildError.
    """
    _build([_Request(ir_module, output_dir)], target, output_kind, force)


def build_ir_module_batch(
    ir_modules: Sequence[Modules],
    output_dirs: Sequence[str],
    output_kind: str,
    target: str | Target,
    force: bool = False,
) -> list[str]:
    """Build the i-th module into the i-th folder, in parallel; returns the folders.

    As `hidet.drivers.build_ir_module_batch`, with these differences: the list of modules is left in its order, every
    module gets its own folder, and all failures are raised together.
    """
    if len(ir_modules) != len(output_dirs):
        raise UsageError(f"there are {len(ir_modules)} modules and {len(output_dirs)} folders for them")
    requests = [_Request(module, folder) for module, folder in zip(ir_modules, output_dirs, strict=True)]
    _build(requests, target, output_kind, force)
    return list(output_dirs)


def build_and_load(ir_module: IRModule) -> CompiledModule:
    """Build a module into a folder of hidet's cache named by its content, and load it: what `IRModule.build` does."""
    from hidet_build.worker import live  # hidet, which the caller has imported

    kind = live.kind_of_module(ir_module)
    with _Session(force=False) as session:
        platform = session.platform(kind)
        request = _Request(ir_module, "")
        folder = live.module_folder(session.lowered_name(request, platform))
        session.build([_Request(ir_module, folder)], platform, ".so", lowered=True)
    return live.load_module(folder)


def build_task(task: Task, target: str | Device = "cuda", load: bool = True) -> CompiledTask | None:
    """Build a task, all its candidates in the search space that hidet's options name, into a compiled function.

    As `hidet.drivers.build_task`, and into the same folder of hidet's cache; with these differences: everything that
    decides what is compiled counts (architecture, options, compilers, constants), not the printed task alone; each
    candidate is a cached action of its own. Returns None where `load` is false. Raises BuildError.
    """
    from hidet_build.worker import live  # hidet, which the caller has imported

    kind = target if isinstance(target, str) else str(target.kind)
    folder = live.task_folder(task, kind)
    with _Session(force=False) as session:
        platform = session.platform(kind)
        key = session.task_key(task, platform)
        name = f"{key.hash} {folder}" if key else None
        if load and name and (known := live.remembered_task(kind, name)) is not None:
            return known
        session.build_task(task, key, folder, platform)
    if not load:
        return None
    compiled = live.load_task(folder)
    if name:
        live.remember_task(kind, name, compiled)
    return cast("CompiledTask", compiled)


def load_task(folder: str) -> CompiledTask:
    """Load a built task: the output folder of a `task` target, or any that `hidet.runtime.load_compiled_task` takes.

    As that function, with these differences: a CPU task of several candidates needs no CUDA to pick one; which is the
    fastest is remembered in the user's cache, for this very library on such a machine, and nothing is written into
    the folder. Raises UsageError where the folder holds no task.
    """
    from hidet_build.worker import live  # hidet; importing this module must not take seconds

    missing = [name for name in ("lib.so", "func_types.pickle", "meta.json") if not _is_file(folder, name)]
    if missing:
        raise UsageError(
            f"{folder} holds no built task: there is no {missing[0]} in it",
            hint="give it the output folder of a target of the rule task",
        )
    try:
        kind = json.loads(_content(os.path.join(folder, "meta.json")))["target"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{folder} holds no built task: its meta.json is damaged") from None
    library = of_file(os.path.join(folder, "lib.so")).hash
    # A home may be shared by machines on which another candidate is the fastest.
    tables = os.path.join(user_cache(os.environ), "dispatch", library, live.hardware(kind))
    try:
        os.makedirs(tables, exist_ok=True)
        kept = os.access(tables, os.W_OK)
    except OSError:  # a machine whose home cannot be written to: then the candidates are timed in each process
        kept = False
    return cast("CompiledTask", live.load_task(os.path.abspath(folder), tables if kept else ""))


def _is_file(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, name))


@dataclass(frozen=True)
class _Request:
    """One library to build: its modules and its folder."""

    given: Modules
    folder: str

    @property
    def modules(self) -> list[Any]:
        """The modules, of one too."""
        return list(self.given) if isinstance(self.given, Sequence) else [self.given]


def _build(requests: Sequence[_Request], target: str | Target, output_kind: str, force: bool) -> None:
    for request in requests:
        if not request.modules:
            raise UsageError(f"there is no module to build into {request.folder}")
        for module in request.modules:
            if not hasattr(module, "functions"):
                raise UsageError(f"expected an IRModule, or a sequence of them, not {type(module).__name__}")
    if output_kind not in _KINDS:
        raise ValueError(f"Invalid output kind: {output_kind}: expected {' or '.join(_KINDS)}")
    with _Session(force) as session:
        platform = session.platform(target)
        session.build(requests, platform, output_kind)


class _Session:
    """What one call needs of the engine, in a folder of its own."""

    def __init__(self, force: bool) -> None:
        self._force = force
        self._require_cached = require_cached(None, os.environ)
        if force and self._require_cached:
            raise UsageError(f"force=True compiles anew, and {REQUIRE_CACHED} is set: nothing may be compiled")
        self._jobs = default_jobs(os.environ)
        self._own = OwnFolder(os.path.join(user_cache(os.environ), "drivers"))
        # Switched off, the store is one for this call alone.
        self._store = disk_cache(None, os.environ) or os.path.join(self._own.path, "store")
        self._kept = KeptResults(self._store, read_only=self._require_cached)
        self._layout = Layout(os.path.join(self._own.path, "given"), os.path.join(self._own.path, "made"))
        self._hidet_is_patched: bool | None = None
        self._processes = Processes()
        self._toolchains = find_toolchains(user_cache(os.environ), os.environ, self._processes, self._layout)

    def __enter__(self) -> _Session:
        os.makedirs(self._layout.root)
        os.makedirs(self._layout.state)
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.terminate_all(grace=0)
        self._own.close()

    def platform(self, target: str | Target) -> Platform:
        """The platform of a target, what it leaves open taken from hidet's options as hidet's own driver does."""
        from hidet_build.worker import live  # hidet, which the caller has imported

        text = target if isinstance(target, str) else _target_text(target)
        kind = text.split()[0] if text.split() else ""
        if kind == "hip":
            raise UsageError(f"target {text!r} cannot be built: only cpu and cuda can", hint=_hip_hint())
        left_open = {"cpu": {"arch": "cpu.arch"}, "cuda": {"arch": "cuda.arch", "cpu_arch": "cpu.arch"}}
        for attribute, option in left_open.get(kind, {}).items():
            if f"--{attribute}=" not in text:
                chosen = live.option(option)
                text += f" --{attribute}={'native' if chosen == 'auto' else chosen}"
        platform = self._toolchains.resolve(parse_target(text))
        return replace(platform, options=_compile_options() if kind == "cuda" else ())

    def lowered_name(self, request: _Request, platform: Platform) -> str:
        """Lower and generate one request; a name for what came out, the platform included. Raises ActionFailed."""
        failures = self._lower([request], platform)
        if failures:
            raise failures[0]
        from hidet_build.worker import live  # hidet, which the caller has imported

        folder = self._given(0, 0)
        contents = [_content(os.path.join(folder, name)) for name in generated_files(platform.kind)]
        given = json.loads(_content(os.path.join(folder, live.GIVEN)))
        found = [(place, _digests(path)) for place, path in sorted(given.items())]
        tools = self._identities(platform)
        rows = (platform.target, platform.march, platform.options, contents, found, tools)
        return sha256(repr(rows).encode()).hexdigest()[:16]

    def build(self, requests: Sequence[_Request], platform: Platform, output_kind: str, lowered: bool = False) -> None:
        """Lower and generate unless that is done; compile and publish everything. Raises what went wrong, together."""
        failures = {} if lowered else self._lower(requests, platform)
        plans = {
            number: self._declare(number, request, platform, output_kind)
            for number, request in enumerate(requests)
            if number not in failures
        }
        steps = [step for steps, _ in plans.values() for step in steps]
        wanted = {number: library for number, (_, library) in plans.items()}
        with self._engine() as engine:
            result = self._run(engine, steps, wanted.values())
            for failure in result.failures:
                failures.setdefault(int(failure.action.owner.package), failure.error)
            for number, library in wanted.items():
                if engine.made(library):
                    try:
                        self._publish(number, requests[number], library, platform, output_kind)
                    except (BuildError, OSError) as error:
                        failures[number] = _unwritten(requests[number].folder, error)
        if failures:
            errors = [_named(failures[number], requests, number) for number in sorted(failures)]
            raise errors[0] if len(errors) == 1 else ErrorGroup(errors)

    def task_key(self, task: Task, platform: Platform) -> Digest | None:
        """The key of everything a task becomes, or None where the task itself cannot be told from another."""
        from hidet_build.worker import live

        said = self._identity(task)
        if said is None:
            return None
        compile_options = [f"{key}={value}" for key, value in platform.options]
        arguments = ["build_task", platform.target, *platform.march, *compile_options]
        return key_of(arguments, live.options_text(), said, self._identities(platform))

    def _identities(self, platform: Platform) -> list[str]:
        """What the tools are that make a library for a platform."""
        names = ("hidet", "cxx", "binutils", *(["nvcc"] if platform.kind == "cuda" else []))
        return [self._toolchains.get(name).identity for name in names]

    def _identity(self, value: IRModule | Task) -> bytes | None:
        """Bytes that say all of a module or a task, or None where there are none that can be relied on."""
        from hidet_build.worker import identity

        if self._hidet_is_patched is None:  # asked once a call, for it takes some time
            self._hidet_is_patched = identity.is_patched()
        return None if self._hidet_is_patched else identity.identity(value)

    def _lowering_key(self, module: IRModule, platform: Platform) -> Digest | None:
        """The key of what lowering a module writes, or None where it cannot be told from another."""
        from hidet_build.worker import live

        if self._force or live.option("save_lower_ir"):
            return None
        said = self._identity(module)
        tools = [self._toolchains.get("hidet").identity]
        return None if said is None else key_of(["lower", platform.target], live.options_text(), said, tools)

    def build_task(self, task: Task, key: Digest | None, folder: str, platform: Platform) -> None:
        """Make what a task becomes, or take it from the store, and put it into its folder of hidet's cache."""
        contents = self._kept.get(key)
        if not contents:
            if key is not None and self._require_cached:
                raise NotCached(
                    f"the task {task.signature()} is not cached, so it would have to be built: the store {self._store} "
                    f"has no whole result under its key {key.hash[:12]}",
                    hint=_FILL,
                )
            places = self._make_task(task, platform)
            if key is not None:
                contents = self._kept.put(key, places)
            else:
                contents = {name: _content(path) for name, path in places.items()}
        _publish_task(folder, contents)

    def _make_task(self, task: Task, platform: Platform) -> dict[str, str]:
        """Build a task; the files of its folder by name, where they are now."""
        from hidet_build.worker import live

        root = os.path.join(self._layout.root, "task")
        said = live.generate_task(task, platform.kind, self._options(platform), root, self._jobs)
        if said:
            raise ActionFailed(f"the task {task.name} could not be lowered", detail=said.rstrip())
        steps, library = self._declare_task(root, platform)
        with self._engine() as engine:
            result = self._run(engine, steps, [library])
            if result.failures:
                error = result.failures[0].error
                message = error.message.replace("//task:task", f"the task {task.name}")
                missed = isinstance(error, NotCached)
                if missed:  # it names what would have been made
                    message = message.replace("task/task/", "")
                raise (NotCached if missed else ActionFailed)(
                    message, hint=_FILL if missed else error.hint, detail=getattr(error, "detail", "")
                )
        places = {name: os.path.join(root, "files", name) for name in os.listdir(os.path.join(root, "files"))}
        places["func_types.pickle"] = os.path.join(root, "main", "func_types.pickle")
        source = _source_name(platform)
        places[source] = os.path.join(root, source)
        places["compile.sh"] = os.path.join(root, "compile.sh")
        write_atomic(places[source], _source([os.path.join(root, "main")], platform))
        write_atomic(places["compile.sh"], _script(source, platform, ".so"))
        places["lib.so"] = self._layout.path(library)
        return places

    def _declare_task(self, root: str, platform: Platform) -> tuple[tuple[Step, ...], Artifact]:
        """The steps that compile the candidates, each for itself, and link them with the module that calls them."""
        context = Context(Label("task", "task"), {}, {}, _HERE, platform, (), lambda _, __: platform)
        main, table, headers, others = self._part("task/main")
        compiled = context.output("module.o")
        compile_module(context, platform, "", main, table, headers, compiled, {})
        objects, arguments = [compiled], [main["link.args"]]
        candidates = os.path.join(root, "candidates")
        for number in range(len(os.listdir(candidates)) if os.path.isdir(candidates) else 0):
            part, table, found, more = self._part(f"task/candidates/{number}")
            where = f"candidates/{number}/"
            own = context.output(where + "module.o")
            compile_module(context, platform, where, part, table, found, own, {})
            renamed = context.output(where + "candidate.o")
            rename_candidate(context, platform, where, own, table["namespace"], renamed)
            objects.append(renamed)
            arguments.append(part["link.args"])
            others.update(more)
        library = context.output("lib.so")
        link(context, library, objects, arguments, others, hidet=True, cuda=platform.kind == "cuda")
        return context.steps(), library

    def _part(
        self, folder: str
    ) -> tuple[dict[str, Artifact], dict[str, Any], dict[str, Artifact], dict[str, Artifact]]:
        """What codegen wrote into a folder: the artifacts, functions.json, and the given headers and other files."""
        with open(os.path.join(self._layout.root, folder, "functions.json"), encoding="utf-8") as file:
            table: dict[str, Any] = json.load(file)
        found = {name: Artifact(f"{folder}/{name}") for name in os.listdir(os.path.join(self._layout.root, folder))}
        return found, table, *self._given_files(folder, table)

    @staticmethod
    def _options(platform: Platform) -> dict[str, str]:
        """What hidet's options must say of the architecture while it lowers."""
        # hidet adds the letter of sm_90a by itself, and cannot read it.
        device = {"cuda.arch": platform.arch.rstrip("af")} if platform.kind == "cuda" else {}
        return {**device, "cpu.arch": platform.cpu_arch}

    def _lower(self, requests: Sequence[_Request], platform: Platform) -> dict[int, BuildError]:
        """Generate the source of every module; the failures by request."""
        from hidet_build.worker import live  # hidet, which the caller has imported

        options = self._options(platform)
        jobs, owners, keys = [], [], []
        for number, request in enumerate(requests):
            for index, module in enumerate(request.modules):
                folder = self._given(number, index)
                key = self._lowering_key(module, platform)
                if not self._restore(key, folder):
                    jobs.append(live.Job(module, folder, platform.kind, options))
                    owners.append(number)
                    keys.append(key)
        failures: dict[int, BuildError] = {}
        said = live.generate(jobs, self._jobs)
        for number, job, key, failure in zip(owners, jobs, keys, said, strict=True):
            if failure:
                failures.setdefault(number, ActionFailed("lowering failed", detail=failure.rstrip()))
            elif key is not None:
                self._keep(key, job.folder)
        return failures

    def _restore(self, key: Digest | None, folder: str) -> bool:
        """Write what lowering wrote before; whether the store had it."""
        contents = self._kept.get(key)
        if contents:
            os.makedirs(folder)
        for name, content in contents.items():
            write_atomic(os.path.join(folder, name), content)
        return bool(contents)

    def _keep(self, key: Digest, folder: str) -> None:
        """Keep what lowering wrote, unless it names files of this machine."""
        from hidet_build.worker import live

        if json.loads(_content(os.path.join(folder, live.GIVEN))) == {}:
            self._kept.put(key, {name: os.path.join(folder, name) for name in os.listdir(folder)})

    def _given(self, number: int, index: int) -> str:
        return os.path.join(self._layout.root, str(number), str(index))

    def _declare(
        self, number: int, request: _Request, platform: Platform, output_kind: str
    ) -> tuple[tuple[Step, ...], Artifact]:
        """The steps that make one library from generated sources, and the library."""
        # The package is the number of the request, so that a failed step says whose it is; the name is what the
        # launch functions of several modules are called by: launch_0, launch_1.
        context = Context(Label(str(number), "launch"), {}, {}, _HERE, platform, (), lambda _, __: platform)
        parts, described, headers, others = [], [], {}, {}
        for index, _ in enumerate(request.modules):
            part, table, found, more = self._part(f"{number}/{index}")
            parts.append((f"parts/{index}/", part))
            described.append(table)
            headers.update(found)
            others.update(more)
        compiled = context.output("module.o")
        if len(parts) == 1:
            compile_module(context, platform, "", parts[0][1], described[0], headers, compiled, {})
            rows = None
        else:
            _, rows = join_modules(context, platform, parts, described, headers, compiled)
        self._write_types(number, rows)
        if output_kind == ".o":
            return context.steps(), compiled
        library = context.output("lib.so")
        arguments = [part["link.args"] for _, part in parts]
        link(context, library, [compiled], arguments, others, hidet=True, cuda=platform.kind == "cuda")
        return context.steps(), library

    def _write_types(self, number: int, rows: Sequence[Mapping[str, Any]] | None) -> None:
        """The function types of the whole library, beside what was generated."""
        from hidet_build.worker import live

        out = os.path.join(self._layout.root, str(number), "func_types.pickle")
        if rows is None:
            shutil.copyfile(os.path.join(self._given(number, 0), "func_types.pickle"), out)
            return
        pickles = [os.path.join(self._given(number, index), "func_types.pickle") for index in range(len(rows))]
        live.merge_types(pickles, rows, out)

    def _given_files(self, folder: str, table: Mapping[str, Any]) -> tuple[dict[str, Artifact], dict[str, Artifact]]:
        """The headers a module asks for, and the objects and libraries: path in an execution root -> artifact."""
        from hidet_build.worker import live

        with open(os.path.join(self._layout.root, folder, live.GIVEN), encoding="utf-8") as file:
            given: dict[str, str] = json.load(file)
        headers: dict[str, Artifact] = {}
        others: dict[str, Artifact] = {}
        for place, path in given.items():
            link_path = os.path.join(self._layout.root, folder, place)
            os.makedirs(os.path.dirname(link_path), exist_ok=True)
            os.symlink(path, link_path)
            if place in table["object_files"]:
                others[place] = Artifact(f"{folder}/{place}")
            if place in table["include_dirs"]:
                headers.update({f"{place}/{name}": Artifact(f"{folder}/{place}/{name}") for name in _files(path)})
            if place in table["library_dirs"]:
                names = [f"lib{name}{end}" for name in table["libraries"] for end in (".so", ".a")]
                found = [name for name in names if os.path.isfile(os.path.join(path, name))]
                others.update({f"{place}/{name}": Artifact(f"{folder}/{place}/{name}") for name in found})
        return headers, others

    def _run(self, engine: Engine, steps: Sequence[Step], wanted: Iterable[Artifact]) -> Result:
        """Build in a thread of its own: Ctrl-C, or what a signal handler of the caller's raises, comes to this one.

        It would leave the engine waiting for its compilers to end; so they are ended first.
        """
        with ThreadPoolExecutor(1) as pool:
            built = pool.submit(engine.build, steps, wanted)
            try:
                return built.result()
            except BaseException:
                self._processes.terminate_all()
                raise

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Engine]:
        tty = sys.stderr.isatty()
        reporter: Reporter = choose_reporter(sys.stderr, os.environ) if tty else SilentReporter()
        options = Options(
            jobs=self._jobs,
            keep_going=True,
            verbose_failures=True,
            nocache=self._force,
            require_cached=self._require_cached,
        )
        state = State(self._layout.state, self._layout.root)
        workers = WorkerPool(self._processes, sys.executable)

        def locks(waiting: Waiting) -> KeyLocks:
            return KeyLocks(os.path.join(self._store, "locks"), waiting, cancelled=lambda: self._processes.stopped)

        with contextlib.closing(workers), contextlib.closing(reporter):
            yield local_engine(
                self._layout,
                options,
                state,
                self._toolchains,
                self._processes,
                workers,
                PrecompiledHeaders(os.path.join(user_cache(os.environ), PRECOMPILED), self._processes),
                reporter,
                self._store,
                locks,
                advise=lambda _, __: None,
            )

    def _publish(self, number: int, request: _Request, library: Artifact, platform: Platform, output_kind: str) -> None:
        """Put what hidet leaves in an output folder there, each file at once, under hidet's lock, the library last."""
        source = _source_name(platform)
        with _held(request.folder):
            folders = [self._given(number, index) for index, _ in enumerate(request.modules)]
            for folder in folders:
                if os.path.isdir(f"{folder}/ir"):  # hidet's option save_lower_ir
                    shutil.copytree(f"{folder}/ir", f"{request.folder}/ir", dirs_exist_ok=True)
            _put(request.folder, source, _source(folders, platform))
            _put(request.folder, "compile.sh", _script(source, platform, output_kind))
            if output_kind == ".so":
                _put_types(request.folder, _content(os.path.join(self._layout.root, str(number), _TYPES)))
            _put(request.folder, f"lib{output_kind}", _content(self._layout.path(library)))


def _source_name(platform: Platform) -> str:
    """What hidet calls the generated source in an output folder."""
    return "source.cu" if platform.kind == "cuda" else "source.cc"


def _source(folders: Sequence[str], platform: Platform) -> bytes:
    """The generated source in these folders for people to read, the headers where they belong."""
    text = []
    for folder in folders:
        for name in ("prelude.h", generated_files(platform.kind)[0]):
            text.append(_content(os.path.join(folder, name)).decode().removeprefix('#include "prelude.h"\n'))
    return "".join(text).encode()


def _publish_task(folder: str, contents: Mapping[str, bytes]) -> None:
    """Write a task's folder: to hidet it holds a task when version.txt, the library and its types are there."""
    with _held(folder):
        with contextlib.suppress(OSError):
            if all(_content(os.path.join(folder, name)) == content for name, content in contents.items()):
                return
        for name in ("version.txt", "dispatch_table.txt"):  # what was measured of another library
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        for name in sorted(contents, key=lambda name: (name == "version.txt", name == "lib.so", name)):
            _put(folder, name, contents[name])


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    """Hold the lock of an output folder, which hidet's own driver takes too; a wait for it is said."""
    with contextlib.ExitStack() as stack:
        path = os.path.join(folder, ".lock")
        if not _enter_soon(stack, path):
            sys.stderr.write(f"waiting for {path}: another process writes to this folder\n")
            stack.enter_context(exclusive(path))
        yield


def _enter_soon(stack: contextlib.ExitStack, path: str) -> bool:
    """Take a lock unless somebody holds it for longer than needs an explanation; whether we have it."""
    for pause in (0.02, 0.05, 0.1, 0.3, 0.0):
        try:
            stack.enter_context(exclusive(path, block=False))
            return True
        except LockHeld:
            time.sleep(pause)
    return False


def _put_types(folder: str, content: bytes) -> None:
    """Write the types of a library that comes next; one that they do not fit goes first.

    Who is killed in between leaves no library then, which hidet's own driver too takes for work to be done.
    """
    with contextlib.suppress(OSError):
        if _content(os.path.join(folder, _TYPES)) == content:
            return
    remove(os.path.join(folder, "lib.so"))
    _put(folder, _TYPES, content)


def _put(folder: str, name: str, content: bytes) -> None:
    """Write a file at once, unless it has this content: whoever has the library mapped keeps it."""
    path = os.path.join(folder, name)
    with contextlib.suppress(OSError):
        if _content(path) == content:
            return
    write_atomic(path, content)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _hip_hint() -> str:
    return "" if shutil.which("hipcc") else "there is no hipcc on PATH either"


def _compile_options() -> tuple[tuple[str, str], ...]:
    """Those of hidet's options that decide how CUDA code is compiled, where the caller changed them."""
    from hidet_build.worker import live  # hidet, which the caller has imported

    chosen = {name: bool(live.option(name)) for name in _COMPILE_OPTIONS}
    return tuple((name, str(value).lower()) for name, value in chosen.items() if value != _COMPILE_OPTIONS[name])


def _target_text(target: Target) -> str:
    """hidet's Target as the string it was made of."""
    return " ".join([target.name, *target.flags, *(f"--{name}={value}" for name, value in target.attrs.items())])


def _unwritten(folder: str, error: BuildError | OSError) -> BuildError:
    """Why a folder of the caller's could not be written."""
    reason = error.message if isinstance(error, BuildError) else error.strerror or str(error)
    return ActionFailed(f"cannot write to {folder}: {reason}")


def _digests(path: str) -> list[tuple[str, str]]:
    """What a file or a folder that a module asks for holds."""
    if os.path.isfile(path):
        return [("", of_file(path).hash)]
    return [(name, of_file(os.path.join(path, name)).hash) for name in _files(path)]


def _files(folder: str) -> list[str]:
    found = [
        os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names
    ]
    return sorted(found)


def _named(error: BuildError, requests: Sequence[_Request], number: int) -> BuildError:
    """The error in the words of the caller, who knows modules and folders; our own folder is gone when he reads it."""
    message = error.message.removeprefix(f"//{number}:launch: ")
    missed = isinstance(error, NotCached)
    if missed:  # it names what would have been made
        message = message.replace(f"{number}/launch/", "")
    if len(requests) > 1 or missed:
        message = f"module {number} ({requests[number].folder}): {message}"
    return (NotCached if missed else ActionFailed)(
        message, hint=_FILL if missed else error.hint, detail=getattr(error, "detail", "")
    )


def _script(source: str, platform: Platform, output_kind: str) -> bytes:
    """A command line that compiles the source by hand, as hidet leaves one."""
    from hidet_build.worker import live

    kind = ["-shared"] if output_kind == ".so" else ["-c"]
    folders = [f"-I{folder}" for folder in live.include_folders()]
    if platform.kind == "cuda":
        flags = [word for word in nvcc_flags(platform) if word not in ("-c", "--options-file", "compile.args")]
        command = ["nvcc", *folders, *flags, "-std=c++17", "--cudart", "shared"]
    else:
        flags = ["-std=c++11", *CPU_FLAGS, *platform.march, "-fPIC", "-fopenmp"]
        command = ["g++", *folders, *flags]
    command += [*kind, source, "-o", f"lib{output_kind}"]
    return f"#!/bin/bash\n\n{shlex.join(command)}\n".encode()
