"""hidet.drivers on our engine: the same functions, keyed by content, with every cache and lock of `hidet-build`.

    from hidet_build.drivers import build_ir_module          instead of: from hidet.drivers import build_ir_module

A module that lives in the caller's process is lowered there (worker/live.py), unless its identity says that it was
before; the source that comes out decides what is compiled. Where the target names no CPU, hidet's option `cpu.arch`
does, by default the one of this machine. What takes longer than two seconds is told on standard error, unless
HIDET_BUILD_QUIET=1. Knows how a call becomes actions; what lies where in a caller's folder, output_folder.py knows.

    <user cache>/drivers/<pid>-<random>/     one for each call, gone when it returns; the next call deletes what a
                                             killed one left. Where that cannot be: in a folder for temporary files
        given/<i>/                           what lowering and codegen wrote for module i
        made/<i>/                            its outputs and the engine's state
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hidet_build.action import Artifact, Step
from hidet_build.build import find_toolchains, local_engine
from hidet_build.call import (
    Modules,
    Request,
    instead,
    refuse_other_devices,
    refuse_shared_folders,
    request_of,
    target_text,
    told,
    who,
)
from hidet_build.digest import Digest, of_file
from hidet_build.engine import Engine, Failure, Result
from hidet_build.errors import (
    ActionFailed,
    AnalysisError,
    BuildError,
    EnvironmentFailure,
    Location,
    NotCached,
    UsageError,
    raise_all,
)
from hidet_build.execution import Layout, OwnFolder
from hidet_build.files import write_atomic
from hidet_build.kept import KeptResults, key_of
from hidet_build.label import Label
from hidet_build.lock import KeyLocks
from hidet_build.narrator import Narrator
from hidet_build.output_folder import (
    TYPES,
    content_of,
    in_joined_source,
    joined_source,
    publish,
    publish_task,
    refusal,
    source_name,
)
from hidet_build.performer import Waiting
from hidet_build.plan import outputs_of
from hidet_build.platform import Platform, parse_target
from hidet_build.precompiled import PRECOMPILED, PrecompiledHeaders
from hidet_build.process import Processes
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
from hidet_build.settings import (
    REQUIRE_CACHED,
    default_jobs,
    disk_cache,
    quiet,
    require_cached,
    user_cache,
)
from hidet_build.state import State
from hidet_build.worker.pool import WorkerPool

if TYPE_CHECKING:
    from hidet.ir.module import IRModule
    from hidet.ir.target import Target
    from hidet.ir.task import Task
    from hidet.runtime.compiled_module import CompiledModule
    from hidet.runtime.compiled_task import CompiledTask
    from hidet.runtime.device import Device

__all__ = ["build_and_load", "build_ir_module", "build_ir_module_batch", "build_task", "load_task"]

_KINDS = (".so", ".o")
_HERE = Location("hidet_build.drivers", 1, 1)
_HIDETS_CACHE = (
    "that is in hidet's own cache: hidet.option.cache_dir('FOLDER') in the program, or cache_dir = \"FOLDER\" in "
    "~/.config/hidet/hidet.toml, names another"
)
# hidet's options that decide how CUDA code is compiled, and not what is generated.
_COMPILE_OPTIONS = {"cuda.build.ftz": True, "cuda.build.prec_div": False}


def build_ir_module(
    ir_module: Modules, output_dir: str, target: str | Target, output_kind: str = ".so", force: bool = False
) -> None:
    """Build an IR module, or several into one, to a shared library or an object file in `output_dir`.

    As `hidet.drivers.build_ir_module`, with these differences: a changed module, target or option rebuilds though the
    library exists; several modules make one `.so` too; the caller's modules and hidet's options stay as they were. A
    file `.lock` in `output_dir` serialises writers, hidet's own driver included. Raises BuildError.

    The source and `compile.sh` in the folder are of the last call, also where its compile failed: the error names them
    then. As with hidet, a library of an earlier call stays beside them where this one made none (a failure, `.o`).
    """
    _build([request_of(ir_module, output_dir)], target, output_kind, force)


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
    requests = [request_of(module, folder) for module, folder in zip(ir_modules, output_dirs, strict=True)]
    _build(requests, target, output_kind, force)
    return list(output_dirs)


def build_and_load(ir_module: IRModule) -> CompiledModule:
    """Build a module into a folder of hidet's cache named by its content, and load it: what `IRModule.build` does."""
    from hidet_build.worker import live  # hidet, which the caller has imported

    kind = live.kind_of_module(ir_module)
    with _session(force=False) as session:
        platform = session.platform(kind)
        request = Request(ir_module, "")
        session.begin([request], platform)
        folder = live.module_folder(session.lowered_name(request, platform))
        session.build([Request(ir_module, folder)], platform, ".so", lowered=True)
    return live.load_module(folder)


def build_task(task: Task, target: str | Device = "cuda", load: bool = True) -> CompiledTask | None:
    """Build a task, all its candidates in the search space that hidet's options name, into a compiled function.

    As `hidet.drivers.build_task`, and into the same folder of hidet's cache; with these differences: everything that
    decides what is compiled counts (architecture, options, compilers, constants), not the printed task alone; each
    candidate is a cached action of its own. Returns None where `load` is false. Raises BuildError.
    """
    from hidet_build.worker import live  # hidet, which the caller has imported

    if not hasattr(task, "implement"):
        raise UsageError(f"expected a hidet Task, not {type(task).__name__}")
    text = target_text(target)
    kind = next(iter(text.split()), "")
    with _session(force=False) as session:
        platform = session.platform(text)
        folder = live.task_folder(task, kind)
        key = session.task_key(task, platform)
        name = f"{key.hash} {folder}" if key else None
        if load and name and (known := live.remembered_task(kind, name)) is not None:
            return known
        session.begin(task, platform)
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

    missing = [name for name in ("lib.so", TYPES, "meta.json") if not _is_file(folder, name)]
    if missing:
        raise UsageError(
            f"{folder} holds no built task: there is no {missing[0]} in it",
            hint="give it the output folder of a target of the rule task",
        )
    try:
        kind = json.loads(content_of(os.path.join(folder, "meta.json")))["target"]
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


def _build(requests: Sequence[Request], target: str | Target, output_kind: str, force: bool) -> None:
    if output_kind not in _KINDS:
        raise ValueError(f"Invalid output kind: {output_kind}: expected {' or '.join(_KINDS)}")
    refuse_shared_folders(requests)
    with _session(force) as session:
        platform = session.platform(target)
        refuse_other_devices(requests, platform)
        session.begin(requests, platform)
        session.build(requests, platform, output_kind)


class _Place(NamedTuple):
    """Where a call may write: what stays for later calls, and a folder of its own."""

    home: str
    own: str


@contextlib.contextmanager
def _session(force: bool) -> Iterator[_Session]:
    """What one call needs, for as long as it takes."""
    try:
        with _place() as place:
            session = _Session(force, place)
            try:
                yield session
                session.narrator.close()
            finally:
                session.close()
    except EnvironmentFailure as error:
        raise EnvironmentFailure(error.message, hint=instead(error.hint)) from error


@contextlib.contextmanager
def _place() -> Iterator[_Place]:
    """In the user's cache; where that cannot be written to, as in an image, among temporary files."""
    home = user_cache(os.environ)
    try:
        own = OwnFolder(os.path.join(home, "drivers"))
    except (EnvironmentFailure, OSError) as refused:
        try:
            home = _temporary_home()
            own = OwnFolder(os.path.join(home, "drivers"))
        except (EnvironmentFailure, OSError) as error:
            raise EnvironmentFailure(
                f"there is no folder to work in: {refusal(home, refused)}; {error}",
                hint="XDG_CACHE_HOME=FOLDER or TMPDIR=FOLDER names one that can be written to",
            ) from error
    with contextlib.closing(own):
        yield _Place(home, own.path)


def _temporary_home() -> str:
    """A folder for temporary files that no other user can reach into."""
    home = os.path.join(tempfile.gettempdir(), f"hidet-build-{os.geteuid()}")
    os.makedirs(home, mode=0o700, exist_ok=True)
    status = os.lstat(home)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise EnvironmentFailure(f"{home} is not ours alone")
    return home


class _Session:
    """What one call needs of the engine."""

    def __init__(self, force: bool, place: _Place) -> None:
        self._force = force
        self._require_cached = require_cached(None, os.environ)
        if force and self._require_cached:
            raise UsageError(f"force=True compiles anew, and {REQUIRE_CACHED} is set: nothing may be compiled")
        self._jobs = default_jobs(os.environ)
        self._home = place.home
        # Switched off, the store is one for this call alone.
        self._store = disk_cache(None, os.environ) or os.path.join(place.own, "store")
        self._kept = KeptResults(self._store, read_only=self._require_cached)
        self._layout = Layout(os.path.join(place.own, "given"), os.path.join(place.own, "made"))
        os.makedirs(self._layout.root)
        os.makedirs(self._layout.state)
        self._hidet_is_patched: bool | None = None
        self._processes = Processes()
        self._toolchains = find_toolchains(self._home, os.environ, self._processes, self._layout)
        self.narrator = Narrator("", None)

    def begin(self, given: Sequence[Request] | Task, platform: Platform) -> None:
        """Let the narrator know what is to be made."""
        if not isinstance(given, Sequence):
            what = f"the task {given.signature()}"
        else:
            what = given[0].title if len(given) == 1 else f"{len(given)} modules"
        self.narrator = Narrator(f"{what} for {platform.target}", None if quiet(os.environ) else sys.stderr)

    def close(self) -> None:
        """End what still runs."""
        self._processes.terminate_all(grace=0)

    def platform(self, target: str | Target) -> Platform:
        """The platform of a target, what it leaves open taken from hidet's options as hidet's own driver does."""
        from hidet_build.worker import live  # hidet, which the caller has imported

        text = target_text(target)
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

    def lowered_name(self, request: Request, platform: Platform) -> str:
        """Lower and generate one request; a name for what came out, the platform included. Raises ActionFailed."""
        failures = self._lower([request], platform)
        if failures:
            raise told(failures[0], who([request], 0), "//0:launch", platform)
        from hidet_build.worker import live  # hidet, which the caller has imported

        folder = self._given(0, 0)
        contents = [content_of(os.path.join(folder, name)) for name in generated_files(platform.kind)]
        given = json.loads(content_of(os.path.join(folder, live.GIVEN)))
        found = [(place, _digests(path)) for place, path in sorted(given.items())]
        tools = self._identities(platform)
        rows = (platform.target, platform.march, platform.options, contents, found, tools)
        return sha256(repr(rows).encode()).hexdigest()[:16]

    def build(self, requests: Sequence[Request], platform: Platform, output_kind: str, lowered: bool = False) -> None:
        """Lower and generate unless that is done; compile and publish everything. Raises what went wrong, together."""
        failures = {} if lowered else self._lower(requests, platform)
        plans: dict[int, tuple[tuple[Step, ...], Artifact]] = {}
        for number, request in enumerate(requests):
            if number not in failures:
                try:
                    plans[number] = self._declare(number, request, platform, output_kind)
                except AnalysisError as error:
                    failures[number] = error
        steps = [step for steps, _ in plans.values() for step in steps]
        with self._engine() as engine:
            result = self._run(engine, steps, [library for _, library in plans.values()])
            for failure in result.failures:
                number = int(failure.action.owner.package)
                if number not in failures:
                    failures[number] = self._uncompiled(number, requests[number], failure, platform, output_kind)
            for number, (_, library) in plans.items():
                if engine.made(library):
                    try:
                        self._publish(number, requests[number], library, platform, output_kind)
                    except (BuildError, OSError) as error:
                        failures[number] = _unwritten(requests[number].folder, error)
        raise_all(
            [
                told(error, who(requests, number), f"//{number}:launch", platform)
                for number, error in sorted(failures.items())
            ]
        )

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
                missing = NotCached(
                    f"it is not cached, so it would have to be built: the store {self._store} has no whole result "
                    f"under its key {key.hash[:12]}"
                )
                raise told(missing, f"the task {task.signature()}", "", platform)
            places = self._make_task(task, folder, platform)
            if key is not None:
                contents = self._kept.put(key, places)
            else:
                contents = {name: content_of(path) for name, path in places.items()}
        try:
            publish_task(folder, contents, self.narrator.say)
        except (BuildError, OSError) as error:
            raise told(_unwritten(folder, error), f"the task {task.name}", "", platform) from error

    def _make_task(self, task: Task, folder: str, platform: Platform) -> dict[str, str]:
        """Build a task; the files of its folder by name, where they are now."""
        from hidet_build.worker import live

        root = os.path.join(self._layout.root, "task")
        said = live.generate_task(
            task, platform.kind, self._options(platform), root, self._jobs, lambda _: self.narrator.lowering(0, 0)
        )
        if said:
            raise ActionFailed(f"the task {task.name} could not be lowered", detail=said.rstrip())
        steps, library = self._declare_task(root, platform)
        with self._engine() as engine:
            result = self._run(engine, steps, [library])
        if result.failures:
            error, part = self._uncompiled_task(result.failures[0], root, folder, platform)
            raise told(error, f"the task {task.name}{part}", "//task:task", platform)
        places = {name: os.path.join(root, "files", name) for name in os.listdir(os.path.join(root, "files"))}
        places[TYPES] = os.path.join(root, "main", TYPES)
        for name, content in self._source([os.path.join(root, "main")], platform, ".so").items():
            places[name] = os.path.join(root, name)
            write_atomic(places[name], content)
        places["lib.so"] = self._layout.path(library)
        return places

    def _uncompiled_task(self, failure: Failure, root: str, folder: str, platform: Platform) -> tuple[BuildError, str]:
        """What went wrong with a task, and with which part of it; its source is put where hidet leaves it."""
        found = re.search(r"/(candidates/(\d+))/", _made_by(failure))
        if not found:
            return self._left(failure, [os.path.join(root, "main")], 0, folder, platform, ".so"), ""
        part = os.path.join(root, found[1])
        error = self._left(failure, [part], 0, os.path.join(folder, found[1]), platform, ".o")
        return error, f", candidate {found[2]}"

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

    def _lower(self, requests: Sequence[Request], platform: Platform) -> dict[int, BuildError]:
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
        said = live.generate(jobs, self._jobs, lambda done: self.narrator.lowering(done, len(jobs)))
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

        if json.loads(content_of(os.path.join(folder, live.GIVEN))) == {}:
            self._kept.put(key, {name: os.path.join(folder, name) for name in os.listdir(folder)})

    def _given(self, number: int, index: int) -> str:
        return os.path.join(self._layout.root, str(number), str(index))

    def _declare(
        self, number: int, request: Request, platform: Platform, output_kind: str
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

        with contextlib.closing(workers):
            yield local_engine(
                self._layout,
                options,
                state,
                self._toolchains,
                self._processes,
                workers,
                PrecompiledHeaders(os.path.join(self._home, PRECOMPILED), self._processes),
                self.narrator,
                self._store,
                locks,
                advise=lambda _, __: None,
            )

    def _publish(self, number: int, request: Request, library: Artifact, platform: Platform, output_kind: str) -> None:
        """Put what hidet leaves in an output folder there, each file at once, under hidet's lock, the library last."""
        folders = self._folders(number, request)
        contents = self._source(folders, platform, output_kind)
        if output_kind == ".so":
            contents[TYPES] = content_of(os.path.join(self._layout.root, str(number), TYPES))
        contents[f"lib{output_kind}"] = content_of(self._layout.path(library))
        saved = [f"{folder}/ir" for folder in folders if os.path.isdir(f"{folder}/ir")]  # hidet's option save_lower_ir
        publish(request.folder, contents, self.narrator.say, saved)

    def _uncompiled(
        self, number: int, request: Request, failure: Failure, platform: Platform, output_kind: str
    ) -> BuildError:
        """What went wrong with a library; its source is put where hidet leaves it."""
        found = re.search(r"/parts/(\d+)/", _made_by(failure))
        index = int(found[1]) if found else 0
        return self._left(failure, self._folders(number, request), index, request.folder, platform, output_kind)

    def _left(
        self, failure: Failure, folders: Sequence[str], index: int, folder: str, platform: Platform, output_kind: str
    ) -> BuildError:
        """The error of a failed step, whose source was in one of the folders; for the user it is left in `folder`."""
        error = failure.error
        if not isinstance(error, ActionFailed) or isinstance(error, NotCached):
            return error
        try:
            publish(folder, self._source(folders, platform, output_kind), self.narrator.say)
        except (BuildError, OSError):  # then what the compiler says has to do
            return error
        detail = in_joined_source(error.detail, folders, index, generated_files(platform.kind)[0])
        again = f"cd {shlex.quote(os.path.abspath(folder))} && sh compile.sh"
        return ActionFailed(error.message, hint=error.hint, detail=detail, command=again)

    def _folders(self, number: int, request: Request) -> list[str]:
        """Where the generated source of each module of a request is."""
        return [self._given(number, index) for index, _ in enumerate(request.modules)]

    @staticmethod
    def _source(folders: Sequence[str], platform: Platform, output_kind: str) -> dict[str, bytes]:
        """The generated source and the command line that compiles it, under hidet's names for them."""
        generated = generated_files(platform.kind)[0]
        source = source_name(generated)
        return {source: joined_source(folders, generated), "compile.sh": _script(folders, platform, output_kind)}


def _hip_hint() -> str:
    return "" if shutil.which("hipcc") else "there is no hipcc on PATH either"


def _compile_options() -> tuple[tuple[str, str], ...]:
    """Those of hidet's options that decide how CUDA code is compiled, where the caller changed them."""
    from hidet_build.worker import live  # hidet, which the caller has imported

    chosen = {name: bool(live.option(name)) for name in _COMPILE_OPTIONS}
    return tuple((name, str(value).lower()) for name, value in chosen.items() if value != _COMPILE_OPTIONS[name])


def _made_by(failure: Failure) -> str:
    """The path of what a failed step should have made."""
    return outputs_of(failure.action)[0].path


def _unwritten(folder: str, error: BuildError | OSError) -> BuildError:
    """Why a folder of the caller's, or of hidet's cache, could not be written to."""
    from hidet_build.worker import live  # hidet, which the caller has imported

    is_hidets = os.path.abspath(folder).startswith(live.cache_folder() + os.sep)
    return EnvironmentFailure(refusal(folder, error), hint=_HIDETS_CACHE if is_hidets else None)


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


def _script(folders: Sequence[str], platform: Platform, output_kind: str) -> bytes:
    """A command line that compiles the source generated in these folders by hand, as hidet leaves one."""
    from hidet_build.worker import live

    include, objects, libraries, standards = list(live.include_folders()), [], [], []
    for folder in folders:
        table, given = (json.loads(content_of(os.path.join(folder, name))) for name in ("functions.json", live.GIVEN))
        include += [live.on_this_machine(place, given) for place in table["include_dirs"]]
        objects += [live.on_this_machine(place, given) for place in table["object_files"]]
        libraries += [f"-L{live.on_this_machine(place, given)}" for place in table["library_dirs"]]
        libraries += [f"-l{name}" for name in table["libraries"]]
        standards.append(table["standard"])
    first = [*(f"-I{folder}" for folder in dict.fromkeys(include)), f"-std={max(standards)}"]
    if platform.kind == "cuda":
        flags = [word for word in nvcc_flags(platform) if word not in ("-c", "--options-file", "compile.args")]
        command = ["nvcc", *first, *flags, "--cudart", "shared"]
    else:
        command = ["g++", *first, *CPU_FLAGS, *platform.march, "-fPIC", "-fopenmp"]
    source = source_name(generated_files(platform.kind)[0])
    kind = ["-shared", source, *objects, *libraries] if output_kind == ".so" else ["-c", source]
    return f"#!/bin/sh\n\n{shlex.join([*command, *kind, '-o', f'lib{output_kind}'])}\n".encode()
