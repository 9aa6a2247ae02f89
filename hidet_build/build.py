"""The story of one build: patterns -> packages -> target graph -> actions -> outputs. Knows both halves, does neither.

select    which targets the patterns mean                 selection.py
load      their packages and all they depend on           graph.py (package.py, node.py, ruleset.py)
analyze   what their rules declare                        analysis.py
run       what of it is not up to date                    engine.py
report    what was made and how to use it
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import hidet_build
from hidet_build import quick
from hidet_build.action import Artifact, Step
from hidet_build.advice import Adviser
from hidet_build.analysis import Analysis, analyze
from hidet_build.cache.disk import DiskCache
from hidet_build.engine import Engine, Options, Result
from hidet_build.errors import BuildError, EnvironmentFailure, ExitCode, Location
from hidet_build.execution import Layout
from hidet_build.files import Placer, seal_time_ns
from hidet_build.graph import TargetGraph, action_graph, load
from hidet_build.label import Label, parse_pattern
from hidet_build.loader import Loader
from hidet_build.local import LocalRunner
from hidet_build.lock import KeyLocks
from hidet_build.platform import Platform, parse_target
from hidet_build.process import Processes
from hidet_build.progress import Reporter, Summary
from hidet_build.ruleset import built_in_folder
from hidet_build.selection import select
from hidet_build.state import State
from hidet_build.toolchain import Toolchains
from hidet_build.worker.pool import WorkerPool
from hidet_build.workspace import Workspace

BUILT_IN_RULES = built_in_folder()


@dataclass(frozen=True)
class Request:
    """What to build and where, as the command line says it."""

    root: str  # the workspace
    package: str  # the package (or folder) the command was typed in
    patterns: tuple[str, ...]
    output_base: str
    disk_cache: str  # the folder of the store; "" keeps one in the output base
    user_cache: str  # where findings about this machine are remembered
    platform: str = ""  # a hidet target string; "" is the workspace's
    symlink_prefix: str = "hidet-"
    lock_timeout: float | None = None
    block_for_lock: bool = True
    nobuild: bool = False
    arguments: tuple[str, ...] = ()  # the command line as typed, for the next null build


@dataclass(frozen=True)
class Loaded:
    """Everything known before anything runs."""

    platform: Platform
    labels: tuple[Label, ...]
    graph: TargetGraph
    analysis: Analysis
    errors: tuple[BuildError, ...]  # of packages that -k does without
    skipped: int


def build(
    request: Request, options: Options, environment: Mapping[str, str], processes: Processes, reporter: Reporter
) -> tuple[Summary, int]:
    """Build what the request names: the summary and the exit code.

    Raises BuildError where it never came to running.
    """
    started = time.monotonic()
    layout = Layout(request.root, request.output_base)
    _prepare_folders(request, layout)
    workspace = Workspace(request.root, request.output_base, request.symlink_prefix)
    toolchains = find_toolchains(request, environment, processes, layout)
    loader = Loader(workspace)
    loaded = load_targets(request, options.keep_going, workspace, loader, toolchains)
    for error in loaded.errors:
        reporter.error(error)
    if loaded.skipped:
        reporter.message(f"{loaded.skipped} targets are not for {loaded.platform.name} and were skipped")
    steps = [step for declared in loaded.analysis.steps.values() for step in declared]
    action_graph(steps)
    if request.nobuild:
        return Summary({}, time.monotonic() - started, len(loaded.labels)), _exit_code(loaded.errors)
    reporter.build_started(0)
    state = State(layout.state, request.root)
    with contextlib.closing(WorkerPool(processes, sys.executable)) as workers:
        engine = _engine(request, options, layout, state, toolchains, processes, workers, reporter, loader, workspace)
        wanted = {label: loaded.analysis.default(label).files for label in loaded.labels}
        result = engine.build(steps, (file for files in wanted.values() for file in files))
    summary = _summary(result, engine, wanted, loaded, started, options)
    if not options.check_up_to_date:
        _link(request, layout, loaded.platform)
    if summary.succeeded and not result.not_up_to_date:
        lines = tuple(_described(request, layout, loaded))
        for line in lines:
            reporter.message(line)
        if not loaded.errors and not options.nocache:
            _save_snapshot(request, lines, workspace, loader, toolchains, state, engine, len(loaded.labels))
    for action, reason in result.not_up_to_date:
        reporter.message(f"not up to date: {action.owner} ({action.mnemonic}): {reason}")
    errors = [*loaded.errors, *(failure.error for failure in result.failures)]
    code = _exit_code(errors)
    if result.interrupted:
        code = ExitCode.INTERRUPTED
    elif result.not_up_to_date or not summary.succeeded:
        code = code or ExitCode.BUILD_FAILED
    return summary, code


def _exit_code(errors: Sequence[BuildError]) -> int:
    """That of the gravest error; 0 where there is none."""
    return max((error.exit_code for error in errors), default=0)


def find_toolchains(
    request: Request, environment: Mapping[str, str], processes: Processes, layout: Layout
) -> Toolchains:
    """The toolchains of this machine, found by short commands when they are asked for."""

    def probe(arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[int, bytes]:
        path = os.path.join(layout.state, f"probe-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            ended = processes.run(arguments, cwd=layout.state, environment=variables, output_path=path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return ended.exit_code, ended.output

    return Toolchains(environment, request.user_cache, probe)


def load_targets(
    request: Request, keep_going: bool, workspace: Workspace, loader: Loader, toolchains: Toolchains
) -> Loaded:
    """Select, load and analyze; raises all errors of the phase that has some."""
    settings = loader.settings()
    text, origin = (request.platform, None) if request.platform else (settings.platform, settings.location)
    platform = toolchains.resolve(parse_target(text or "cpu", origin), origin)
    patterns = [parse_pattern(one, request.package) for one in request.patterns]
    selection = select(patterns, loader.package, workspace, platform, keep_going)
    graph = load([(label, None) for label in selection.labels], loader.package, workspace, platform)

    def resolve(target: str, location: Location) -> Platform:
        return toolchains.resolve(parse_target(target, location), location)

    analysis = analyze(graph, platform, resolve, BUILT_IN_RULES)
    return Loaded(platform, tuple(selection.labels), graph, analysis, tuple(selection.errors), selection.skipped)


def _engine(
    request: Request,
    options: Options,
    layout: Layout,
    state: State,
    toolchains: Toolchains,
    processes: Processes,
    workers: WorkerPool,
    reporter: Reporter,
    loader: Loader,
    workspace: Workspace,
) -> Engine:
    store = request.disk_cache or os.path.join(layout.state, "cache")

    def locks(waiting: Callable[..., None]) -> KeyLocks:
        return KeyLocks(
            os.path.join(store, "locks"),
            waiting,
            timeout=request.lock_timeout,
            block=request.block_for_lock,
            cancelled=lambda: processes.stopped,
        )

    return Engine(
        layout=layout,
        options=options,
        state=state,
        toolchains=toolchains,
        cache=DiskCache(store, Placer()),
        locks=locks,
        runner=LocalRunner(processes, workers, toolchains),
        reporter=reporter,
        cancelled=lambda: processes.stopped,
        advise=Adviser(workspace, loader.package).advise,
    )


def _prepare_folders(request: Request, layout: Layout) -> None:
    """Make the output folder, and the file that keeps git away from it."""
    try:
        os.makedirs(layout.state, exist_ok=True)
        for name, content in ((".gitignore", "*\n"), ("CACHEDIR.TAG", _CACHE_TAG)):
            path = os.path.join(request.output_base, name)
            if not os.path.exists(path):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write to {request.output_base}: {error.strerror}",
            hint="--output_base=FOLDER puts outputs elsewhere",
        ) from None


_CACHE_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by hidet-build; see https://bford.info/cachedir/\n"


def _link(request: Request, layout: Layout, platform: Platform) -> None:
    """Point `hidet-bin` to the outputs of this platform; a workspace we may not write to does without."""
    if not request.symlink_prefix or request.symlink_prefix == "/":
        return
    link = os.path.join(request.root, request.symlink_prefix + "bin")
    target = os.path.join(layout.output_base, platform.name)
    if target.startswith(request.root + os.sep):
        target = os.path.relpath(target, os.path.dirname(link))
    with contextlib.suppress(OSError):
        if os.path.islink(link) and os.readlink(link) == target:
            return
        if os.path.lexists(link) and not os.path.islink(link):
            return
        temporary = f"{link}.{os.getpid()}"
        os.symlink(target, temporary)
        os.replace(temporary, link)


def _summary(
    result: Result,
    engine: Engine,
    wanted: Mapping[Label, Sequence[Artifact]],
    loaded: Loaded,
    started: float,
    options: Options,
) -> Summary:
    failed = tuple(str(label) for label, files in wanted.items() if not all(engine.made(file) for file in files))
    counts = {outcome: count for outcome, count in result.counts.items() if count}
    failed += tuple(error.message for error in loaded.errors if not options.keep_going)
    return Summary(counts, time.monotonic() - started, len(wanted), failed, result.interrupted)


def _described(request: Request, layout: Layout, loaded: Loaded) -> Iterable[str]:
    """Where the outputs are and how to load them, for requests of a few targets."""
    if len(loaded.labels) > 3:
        return
    for label in loaded.labels:
        info = loaded.analysis.default(label)
        made = [file for file in info.files if not file.is_source]
        if not made:
            continue
        lines = [str(label), *(f"  {_shown(request, layout, loaded.platform, file)}" for file in made)]
        if info.folder is not None:
            folder = _shown(request, layout, loaded.platform, info.folder)
            lines.append(f'  load it: hidet.runtime.load_compiled_module("{folder}")')
        yield "\n".join(lines)


def _shown(request: Request, layout: Layout, platform: Platform, artifact: Artifact) -> str:
    """The path of an output as short as it can be typed from where the command was typed."""
    path = layout.path(artifact)
    link = os.path.join(request.root, request.symlink_prefix + "bin")
    if artifact.platform == platform.name and request.symlink_prefix and os.path.islink(link):
        path = os.path.join(link, artifact.path)
    here = os.getcwd()
    return os.path.relpath(path, here) if path.startswith(here + os.sep) else path


def _save_snapshot(
    request: Request,
    lines: Sequence[str],
    workspace: Workspace,
    loader: Loader,
    toolchains: Toolchains,
    state: State,
    engine: Engine,
    targets: int,
) -> None:
    """Keep what this answer rests on, for `quick`."""
    files: dict[str, tuple[int, ...] | None] = {}
    for path in (*loader.files(), *workspace.looked_into()):
        files[workspace.absolute(path)] = _mark(workspace.absolute(path))
    for path, (mark, _) in state.sources().items():
        files[workspace.absolute(path)] = mark
    for path in _own_sources():
        files[path] = _mark(path)
    programs: list[tuple[str, str]] = []
    for toolchain in toolchains.found():
        files.update(toolchain.parts)
        programs += [(os.path.basename(path), path) for path in toolchain.looked_up]
    folders = []
    for folder in workspace.listed():
        path = workspace.absolute(folder)
        with contextlib.suppress(OSError):
            folders.append((path, None, quick.listing(path)))
    outputs = []
    for name, found in engine.contents().items():
        outputs.append((name[1:], found.size, seal_time_ns(found.hash)))
    identity = quick.identity(request.arguments, request.root)
    snapshot = (identity, tuple(lines), targets, programs, list(files.items()), folders, outputs)
    quick.save(quick.place(request.output_base, identity), snapshot)


def _mark(path: str) -> tuple[int, ...] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)


def describe_tools(
    root: str, output_base: str, user_cache: str, environment: Mapping[str, str], processes: Processes, name: str
) -> str:
    """The version and place of a toolchain of this machine, or why there is none."""
    request = Request(root, "", (), output_base, "", user_cache)
    layout = Layout(root, output_base)
    os.makedirs(layout.state, exist_ok=True)
    try:
        toolchain = find_toolchains(request, environment, processes, layout).get(name)
    except BuildError as error:
        return f"none: {error.message}"
    where = next(iter(toolchain.executables.values()), "")
    return f"{toolchain.version} ({where}), identity {toolchain.identity[:12]}"


def _own_sources() -> Iterable[str]:
    for top in (os.path.dirname(os.path.abspath(hidet_build.__file__)), BUILT_IN_RULES):
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names if name.endswith(".py"))
