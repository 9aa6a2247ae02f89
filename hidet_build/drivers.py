"""hidet.drivers on our engine: the same functions, keyed by content, with every cache and lock of `hidet-build`.

    from hidet_build.drivers import build_ir_module          instead of: from hidet.drivers import build_ir_module

A module that lives in the caller's process has no printed identity, so each call lowers it and generates its source
(worker/live.py); the source decides what is compiled. Knows how a call becomes actions and where hidet expects files.

    <user cache>/drivers/<pid>-<random>/     one for each call, gone when it returns
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Union

from hidet_build.action import ActionResult, Artifact, OutputFile, Step
from hidet_build.build import find_toolchains, local_engine
from hidet_build.cache.disk import DiskCache
from hidet_build.digest import Digest, of_bytes
from hidet_build.engine import Engine
from hidet_build.errors import ActionFailed, BuildError, ErrorGroup, Location, UsageError
from hidet_build.execution import Layout
from hidet_build.files import Placer, write_atomic
from hidet_build.label import Label
from hidet_build.lock import KeyLocks, exclusive
from hidet_build.performer import Options, Waiting
from hidet_build.platform import Platform, parse_target
from hidet_build.process import Processes
from hidet_build.progress import Reporter, SilentReporter, choose_reporter
from hidet_build.rule import Context
from hidet_build.rules.cc_object import exported, list_symbols
from hidet_build.rules.ir_module import Read, compile_module, join_modules, link, rename_symbols
from hidet_build.settings import default_jobs, disk_cache, user_cache
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
_PARTS = ("module.cc", "prelude.h", "functions.json", "func_types.pickle", "compile.args", "link.args")


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
    return live.load_task(folder, kind, name) if load else None


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
    if output_kind not in _KINDS:
        raise ValueError(f"Invalid output kind: {output_kind}: expected {' or '.join(_KINDS)}")
    with _Session(force) as session:
        platform = session.platform(target)
        session.build(requests, platform, output_kind)


class _Session:
    """What one call needs of the engine, in a folder of its own."""

    def __init__(self, force: bool) -> None:
        self._force = force
        self._jobs = default_jobs(os.environ)
        self._store = disk_cache(None, os.environ) or user_cache(os.environ)
        self._folder = os.path.join(user_cache(os.environ), "drivers", f"{os.getpid()}-{os.urandom(4).hex()}")
        self._layout = Layout(os.path.join(self._folder, "given"), os.path.join(self._folder, "made"))
        self._processes = Processes()
        self._toolchains = find_toolchains(user_cache(os.environ), os.environ, self._processes, self._layout)

    def __enter__(self) -> _Session:
        os.makedirs(self._layout.root)
        os.makedirs(self._layout.state)
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.terminate_all(grace=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def platform(self, target: str | Target) -> Platform:
        """The platform of a target, what it leaves open taken from hidet's options as hidet's own driver does."""
        from hidet_build.worker import live  # hidet, which the caller has imported

        text = target if isinstance(target, str) else _target_text(target)
        kind = text.split()[0] if text.split() else ""
        if kind == "cpu" and "--arch" not in text:
            chosen = live.option("cpu.arch")
            text += f" --arch={'native' if chosen == 'auto' else chosen}"
        if kind in ("cuda", "hip"):
            raise UsageError(f"target {text!r} cannot be built yet: only cpu can")
        return self._toolchains.resolve(parse_target(text))

    def lowered_name(self, request: _Request, platform: Platform) -> str:
        """Lower and generate one request; a name for what came out, the platform included. Raises ActionFailed."""
        failures = self._lower([request], platform)
        if failures:
            raise failures[0]
        contents = [_content(os.path.join(self._given(0, 0), name)) for name in _PARTS]
        return sha256(repr((platform.target, platform.march, contents)).encode()).hexdigest()[:16]

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
            result = engine.build(steps, wanted.values())
            for failure in result.failures:
                failures.setdefault(int(failure.action.owner.package), failure.error)
            for number, library in wanted.items():
                if engine.made(library):
                    self._publish(number, requests[number], library, platform, output_kind)
        if failures:
            errors = [_named(failures[number], requests, number) for number in sorted(failures)]
            raise errors[0] if len(errors) == 1 else ErrorGroup(errors)

    def task_key(self, task: Task, platform: Platform) -> Digest | None:
        """The key of everything a task becomes, or None where the task itself cannot be told from another."""
        from hidet_build import reapi  # protobuf
        from hidet_build.worker import live

        identity = live.task_identity(task)
        if identity is None:
            return None
        tools = [self._toolchains.get(name).identity for name in ("hidet", "cxx", "binutils")]
        return reapi.action_key(
            arguments=["build_task", platform.target, *platform.march],
            environment=[("options", live.options_text())],
            output_paths=["lib.so"],
            working_directory="",
            inputs=[("task.pickle", of_bytes(identity), False)],
            trees=[],
            salt=" ".join(tools).encode(),
        ).digest

    def build_task(self, task: Task, key: Digest | None, folder: str, platform: Platform) -> None:
        """Make what a task becomes, or take it from the store, and put it into its folder of hidet's cache."""
        cache = DiskCache(self._store, Placer())
        contents = self._stored(cache, key)
        if not contents:
            places = self._make_task(task, platform)
            contents = {name: _content(path) for name, path in places.items()}
            if key is not None:
                files = [OutputFile(name, of_bytes(content), False) for name, content in sorted(contents.items())]
                cache.put(key, ActionResult(tuple(files)), places)
        _publish_task(folder, contents)

    @staticmethod
    def _stored(cache: DiskCache, key: Digest | None) -> dict[str, bytes]:
        """The files of a task that the store has under this key; none where it has not all of them."""
        result = cache.get(key) if key is not None else None
        contents: dict[str, bytes] = {}
        for file in result.files if result else ():
            content = cache.read(file.digest)
            if content is None:
                return {}
            contents[file.path] = content
        return contents

    def _make_task(self, task: Task, platform: Platform) -> dict[str, str]:
        """Build a task; the files of its folder by name, where they are now."""
        from hidet_build.worker import live

        root = os.path.join(self._layout.root, "task")
        said = live.generate_task(task, platform.kind, self._options(platform), root, self._jobs)
        if said:
            raise ActionFailed(f"the task {task.name} could not be lowered", detail=said.rstrip())
        steps, library = self._declare_task(root, platform)
        with self._engine() as engine:
            result = engine.build(steps, [library])
            if result.failures:
                error = result.failures[0].error
                message = error.message.replace("//task:task", f"the task {task.name}")
                raise ActionFailed(message, hint=error.hint, detail=getattr(error, "detail", ""))
        places = {name: os.path.join(root, "files", name) for name in os.listdir(os.path.join(root, "files"))}
        places["func_types.pickle"] = os.path.join(root, "main", "func_types.pickle")
        places["source.cc"] = os.path.join(root, "source.cc")
        places["compile.sh"] = os.path.join(root, "compile.sh")
        write_atomic(places["source.cc"], _source([os.path.join(root, "main")]))
        write_atomic(places["compile.sh"], _script("source.cc", platform, ".so"))
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
            objects.append(_renamed_candidate(context, own, number))
            arguments.append(part["link.args"])
            others.update(more)
        library = context.output("lib.so")
        link(context, library, objects, arguments, others, hidet=True)
        return context.steps(), library

    def _part(
        self, folder: str
    ) -> tuple[dict[str, Artifact], dict[str, Any], dict[str, Artifact], dict[str, Artifact]]:
        """What codegen wrote into a folder: the artifacts, functions.json, and the given headers and other files."""
        with open(os.path.join(self._layout.root, folder, "functions.json"), encoding="utf-8") as file:
            table: dict[str, Any] = json.load(file)
        return {name: Artifact(f"{folder}/{name}") for name in _PARTS}, table, *self._given_files(folder, table)

    @staticmethod
    def _options(platform: Platform) -> dict[str, str]:
        """What hidet's options must say of the architecture while it lowers."""
        return {"cpu.arch": platform.cpu_arch} if platform.kind == "cpu" else {"cuda.arch": platform.arch}

    def _lower(self, requests: Sequence[_Request], platform: Platform) -> dict[int, BuildError]:
        """Generate the source of every module; the failures by request."""
        from hidet_build.worker import live  # hidet, which the caller has imported

        options = self._options(platform)
        jobs, owners = [], []
        for number, request in enumerate(requests):
            for index, module in enumerate(request.modules):
                jobs.append(live.Job(module, self._given(number, index), platform.kind, options))
                owners.append(number)
        failures: dict[int, BuildError] = {}
        for number, said in zip(owners, live.generate(jobs, self._jobs), strict=True):
            if said:
                failures.setdefault(number, ActionFailed("lowering failed", detail=said.rstrip()))
        return failures

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
        link(context, library, [compiled], arguments, others, hidet=True)
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
        with open(os.path.join(self._layout.root, folder, "given.json"), encoding="utf-8") as file:
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

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Engine]:
        tty = sys.stderr.isatty()
        reporter: Reporter = choose_reporter(sys.stderr, os.environ) if tty else SilentReporter()
        options = Options(jobs=self._jobs, keep_going=True, verbose_failures=True, nocache=self._force)
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
                reporter,
                self._store,
                locks,
                advise=lambda _, __: None,
            )

    def _publish(self, number: int, request: _Request, library: Artifact, platform: Platform, output_kind: str) -> None:
        """Put what hidet leaves in an output folder there, each file at once, under hidet's lock, the library last."""
        source = "source.cc" if platform.kind == "cpu" else "source.cu"
        os.makedirs(request.folder, exist_ok=True)
        with exclusive(os.path.join(request.folder, ".lock")):
            folders = [self._given(number, index) for index, _ in enumerate(request.modules)]
            _put(request.folder, source, _source(folders))
            _put(request.folder, "compile.sh", _script(source, platform, output_kind))
            if output_kind == ".so":
                types = os.path.join(self._layout.root, str(number), "func_types.pickle")
                _put(request.folder, "func_types.pickle", _content(types))
            _put(request.folder, f"lib{output_kind}", _content(self._layout.path(library)))


def _source(folders: Sequence[str]) -> bytes:
    """The generated source in these folders for people to read, the headers where they belong."""
    text = []
    for folder in folders:
        for name in ("prelude.h", "module.cc"):
            text.append(_content(os.path.join(folder, name)).decode().removeprefix('#include "prelude.h"\n'))
    return "".join(text).encode()


def _renamed_candidate(ctx: Context, compiled: Artifact, number: int) -> Artifact:
    """Declare a candidate's object with its namespace changed to the one that the task's module calls.

    The source has one namespace for all candidates, so that tasks which share a candidate share its object.
    """
    from hidet_build.worker.live import CANDIDATE  # hidet, which the caller has imported

    symbols = ctx.output(f"candidates/{number}/symbols.txt")
    out = ctx.output(f"candidates/{number}/renamed.o")
    list_symbols(ctx, compiled, symbols)
    before = f"_ZN{len(CANDIDATE)}{CANDIDATE}"
    name = f"candidate_{number}"

    def rename(later: Context, read: Read) -> None:
        found = [symbol for symbol in exported(read(symbols).decode()) if symbol.startswith(before)]
        renames = {symbol: f"_ZN{len(name)}{name}{symbol.removeprefix(before)}" for symbol in found}
        rename_symbols(later, compiled, out, [], renames)

    ctx.then([symbols], [out], rename)
    return out


def _publish_task(folder: str, contents: Mapping[str, bytes]) -> None:
    """Write a task's folder: to hidet it holds a task when version.txt, the library and its types are there."""
    os.makedirs(folder, exist_ok=True)
    with exclusive(os.path.join(folder, ".lock")):
        with contextlib.suppress(OSError):
            if all(_content(os.path.join(folder, name)) == content for name, content in contents.items()):
                return
        for name in ("version.txt", "dispatch_table.txt"):  # what was measured of another library
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        for name in sorted(contents, key=lambda name: (name == "version.txt", name == "lib.so", name)):
            _put(folder, name, contents[name])


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


def _target_text(target: Target) -> str:
    """hidet's Target as the string it was made of."""
    return " ".join([target.name, *target.flags, *(f"--{name}={value}" for name, value in target.attrs.items())])


def _files(folder: str) -> list[str]:
    found = [
        os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names
    ]
    return sorted(found)


def _named(error: BuildError, requests: Sequence[_Request], number: int) -> BuildError:
    """The error in the words of the caller, who knows modules and folders; our own folder is gone when he reads it."""
    message = error.message.removeprefix(f"//{number}:launch: ")
    if len(requests) > 1:
        message = f"module {number} ({requests[number].folder}): {message}"
    return ActionFailed(message, hint=error.hint, detail=getattr(error, "detail", ""))


def _script(source: str, platform: Platform, output_kind: str) -> bytes:
    """A command line that compiles the source by hand, as hidet leaves one."""
    from hidet_build.worker import live

    kind = ["-shared"] if output_kind == ".so" else ["-c"]
    folders = [f"-I{folder}" for folder in live.include_folders()]
    command = ["g++", *folders, "-O3", "-std=c++11", "-mavx2", "-m64", "-ffast-math", *platform.march]
    command += ["-fPIC", "-fopenmp", *kind, source, "-o", f"lib{output_kind}"]
    return f"#!/bin/bash\n\n{shlex.join(command)}\n".encode()
