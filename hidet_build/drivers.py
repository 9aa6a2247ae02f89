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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from hidet_build.action import Artifact, Step
from hidet_build.build import find_toolchains
from hidet_build.cache.disk import DiskCache
from hidet_build.engine import Engine
from hidet_build.errors import ActionFailed, BuildError, ErrorGroup, Location, UsageError
from hidet_build.execution import Layout
from hidet_build.files import Placer, write_atomic
from hidet_build.label import Label
from hidet_build.local import LocalRunner
from hidet_build.lock import KeyLocks, exclusive
from hidet_build.performer import Notice, Options, Performer
from hidet_build.platform import Platform, parse_target
from hidet_build.process import Processes
from hidet_build.progress import Reporter, SilentReporter, choose_reporter
from hidet_build.rule import Context
from hidet_build.rules.ir_module import compile_module, join_modules, link
from hidet_build.settings import default_jobs, disk_cache, user_cache
from hidet_build.state import State
from hidet_build.worker.pool import WorkerPool

if TYPE_CHECKING:
    from hidet.ir.module import IRModule
    from hidet.ir.target import Target

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

    def build(self, requests: Sequence[_Request], platform: Platform, output_kind: str) -> None:
        """Lower, generate, compile and publish all requests; raises what went wrong, together."""
        failures = self._lower(requests, platform)
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

    def _lower(self, requests: Sequence[_Request], platform: Platform) -> dict[int, BuildError]:
        """Generate the source of every module; the failures by request."""
        from hidet_build.worker import live  # hidet, which the caller has imported

        options = {"cpu.arch": platform.cpu_arch} if platform.kind == "cpu" else {"cuda.arch": platform.arch}
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
            folder = f"{number}/{index}"
            part = {name: Artifact(f"{folder}/{name}") for name in _PARTS}
            parts.append((f"parts/{index}/", part))
            with open(os.path.join(self._layout.root, folder, "functions.json"), encoding="utf-8") as file:
                table = json.load(file)
            described.append(table)
            found_headers, found_others = self._given_files(folder, table)
            headers.update(found_headers)
            others.update(found_others)
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
        options = Options(jobs=self._jobs, keep_going=True, nocache=self._force)
        state = State(self._layout.state, self._layout.root)
        workers = WorkerPool(self._processes, sys.executable)

        def cancelled() -> bool:
            return self._processes.stopped

        def locks(waiting: Callable[..., None]) -> KeyLocks:
            return KeyLocks(os.path.join(self._store, "locks"), waiting, cancelled=cancelled)

        def performer(tell: Callable[[Notice], None]) -> Performer:
            return Performer(
                layout=self._layout,
                options=options,
                state=state,
                cache=DiskCache(self._store, Placer()),
                locks=locks,
                runner=LocalRunner(self._processes, workers, self._toolchains),
                cancelled=cancelled,
                advise=lambda _, __: None,
                tell=tell,
            )

        with contextlib.closing(workers), contextlib.closing(reporter):
            yield Engine(self._layout, options, state, self._toolchains, reporter, cancelled, performer)

    def _publish(self, number: int, request: _Request, library: Artifact, platform: Platform, output_kind: str) -> None:
        """Put what hidet leaves in an output folder there, each file at once, under hidet's lock, the library last."""
        source = "source.cc" if platform.kind == "cpu" else "source.cu"
        os.makedirs(request.folder, exist_ok=True)
        with exclusive(os.path.join(request.folder, ".lock")):
            _put(request.folder, source, self._source(number, request))
            _put(request.folder, "compile.sh", _script(source, platform, output_kind))
            if output_kind == ".so":
                types = os.path.join(self._layout.root, str(number), "func_types.pickle")
                _put(request.folder, "func_types.pickle", _content(types))
            _put(request.folder, f"lib{output_kind}", _content(self._layout.path(library)))

    def _source(self, number: int, request: _Request) -> bytes:
        """The generated source of all modules for people to read, the headers where they belong."""
        text = []
        for index, _ in enumerate(request.modules):
            for name in ("prelude.h", "module.cc"):
                with open(os.path.join(self._given(number, index), name), encoding="utf-8") as file:
                    text.append(file.read().removeprefix('#include "prelude.h"\n'))
        return "".join(text).encode()


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
    """The error with the module it is about, where there are several."""
    if len(requests) > 1:
        error.message = f"module {number} ({requests[number].folder}): {error.message}"
    return error


def _script(source: str, platform: Platform, output_kind: str) -> bytes:
    """A command line that compiles the source by hand, as hidet leaves one."""
    from hidet_build.worker import live

    kind = ["-shared"] if output_kind == ".so" else ["-c"]
    folders = [f"-I{folder}" for folder in live.include_folders()]
    command = ["g++", *folders, "-O3", "-std=c++11", "-mavx2", "-m64", "-ffast-math", *platform.march]
    command += ["-fPIC", "-fopenmp", *kind, source, "-o", f"lib{output_kind}"]
    return f"#!/bin/bash\n\n{shlex.join(command)}\n".encode()
