"""The story of one build: a request -> a plan -> outputs. Knows both halves, does neither.

plan      which steps make what was asked for, saved or declared anew     plan.py, declaration.py
run       what of it is not up to date                                    engine.py
report    what was made and how to use it; keep what the next build can use
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hidet_build import plan as plans
from hidet_build import quick
from hidet_build.action import Action, Artifact
from hidet_build.cache.disk import DiskCache
from hidet_build.engine import Engine, Result
from hidet_build.errors import BuildError, EnvironmentFailure, ExitCode
from hidet_build.execution import Layout, is_output_link, link_path
from hidet_build.files import Placer, seal_time_ns
from hidet_build.local import LocalRunner
from hidet_build.lock import KeyLocks, shared
from hidet_build.performer import Notice, Performer, Waiting
from hidet_build.plan import Plan, PlanStale
from hidet_build.precompiled import PRECOMPILED, PrecompiledHeaders
from hidet_build.process import Processes
from hidet_build.progress import Outcome, Reporter, Summary
from hidet_build.request import Options, Request
from hidet_build.state import State
from hidet_build.toolchain.registry import Toolchains
from hidet_build.worker.pool import Lasting, WorkerPool

# Files that a build puts into its output folder: keep git away from it, and backups.
MARKERS = {
    ".gitignore": "*\n",
    "CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n# Made by hidet-build; see https://bford.info/cachedir/\n",
}
_SHOWN = 3  # requests of more targets than this do not list what was made


def build(
    request: Request, options: Options, environment: Mapping[str, str], processes: Processes, reporter: Reporter
) -> tuple[Summary, int]:
    """Build what the request names: the summary and the exit code.

    Raises BuildError where it never came to running.
    """
    started = time.monotonic()
    layout = Layout(request.root, request.output_base)
    _prepare_folders(request, layout)
    toolchains = find_toolchains(request.user_cache, environment, processes, layout)
    identity = (
        *(request.patterns, request.package, request.root, request.output_base),
        *(request.platform, request.symlink_prefix, sys.version, *map(environment.get, quick.TOOL_VARIABLES)),
    )
    earlier = PlanStale()
    lasting = Lasting(
        *(request.root, request.worker_idle_timeout, request.worker_folders),
        identity=lambda: toolchains.get("hidet").identity,
    )
    with shared(layout.lock), contextlib.closing(WorkerPool(processes, sys.executable, lasting)) as workers:
        _prepare_folders(request, layout)  # once more: we may have waited for a `clean`
        plan = _recall(request, options, layout, identity)
        carry_out = functools.partial(
            _carry_out, identity, request, options, layout, processes, workers, reporter, started
        )
        try:
            if plan is not None and not request.nobuild:
                return carry_out(plan, toolchains, earlier)
        except PlanStale as stale:  # what was declared depends on what was built, and that came out differently
            earlier = stale
            toolchains = find_toolchains(request.user_cache, environment, processes, layout)
        from hidet_build.declaration import declare  # yaml and networkx, only when the graph may have changed

        plan = declare(request, options.keep_going, toolchains)
        if not request.nobuild:
            return carry_out(plan, toolchains, earlier)
    for error in plan.errors:
        reporter.error(error)
    summary = Summary({}, time.monotonic() - started, plan.targets, only_analyzed=True)
    return summary, _exit_code(plan.errors)


def _collect_garbage() -> None:
    """Begin to, as a build may be long; what was planned is no garbage, and need not be looked at ever again."""
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()


def _recall(request: Request, options: Options, layout: Layout, identity: tuple[object, ...]) -> Plan | None:
    """The saved plan of the request, or the part of it that is not known to be up to date."""
    if request.changes is not None and not request.nobuild and not options.nocache:
        part = plans.recall_part(layout.state, identity, request.changes)
        if part is not None:
            return part
    return plans.recall(layout.state, identity)


def _carry_out(
    identity: tuple[object, ...],
    request: Request,
    options: Options,
    layout: Layout,
    processes: Processes,
    workers: WorkerPool,
    reporter: Reporter,
    started: float,
    plan: Plan,
    toolchains: Toolchains,
    earlier: PlanStale,
) -> tuple[Summary, int]:
    """Run a plan, say what was made, and keep what spares the next build work.

    `earlier` is what was done of a plan that turned out not to fit any more.
    """
    for error in plan.errors:
        reporter.error(error)
    if plan.skipped:
        reporter.message(f"{plan.skipped} targets are not for {plan.platform.name} and were skipped")
    reporter.build_started(len(earlier.finished) + len(earlier.failed))
    state = State(layout.state, request.root)
    engine = _engine(request, options, layout, state, toolchains, processes, workers, reporter)
    _collect_garbage()
    with processes.watching():
        wanted = (file for target in plan.wanted for file in target.files)
        result = engine.build(plan.steps, wanted, earlier, plan.part.settled if plan.part else None)
    if plan.renewed is not None:
        plan = replace(plan, evidence=plan.renewed(), renewed=None)
        if not plan.errors:
            plan = replace(plan, stamp=plans.save(layout.state, identity, plan, engine.expansions()))
    if not options.check_up_to_date:
        _link(request, layout, plan)
    summary = _summary(result, engine, plan, started, options, request)
    if summary.succeeded and not result.not_up_to_date:
        # What is said of a part is what was said of all.
        lines = (
            request.changes.snapshot["lines"] if plan.part and request.changes else _described(request, layout, plan)
        )
        for line in lines:
            reporter.message(line)
        if request.arguments and not plan.errors and not options.nocache and not options.explain:
            _save_snapshot(request, lines, plan, toolchains, state, engine, summary)
    for action, reason in result.not_up_to_date:
        reporter.message(f"not up to date: {action.owner} ({action.mnemonic}): {reason}")
    code = _exit_code([*plan.errors, *(failure.error for failure in result.failures)])
    if result.interrupted:
        code = ExitCode.INTERRUPTED
    elif result.not_up_to_date or not summary.succeeded:
        code = code or ExitCode.BUILD_FAILED
    return summary, code


def _exit_code(errors: Sequence[BuildError]) -> int:
    """That of the gravest error; 0 where there is none."""
    return max((error.exit_code for error in errors), default=0)


def find_toolchains(
    user_cache: str, environment: Mapping[str, str], processes: Processes, layout: Layout
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

    return Toolchains(environment, user_cache, probe)


def describe_tool(
    name: str, root: str, output_base: str, user_cache: str, environment: Mapping[str, str], processes: Processes
) -> str:
    """The version and place of a toolchain of this machine, or why there is none."""
    layout = Layout(root, output_base)
    os.makedirs(layout.state, exist_ok=True)
    try:
        toolchain = find_toolchains(user_cache, environment, processes, layout).get(name)
    except BuildError as error:
        return f"none: {error.message}"
    where = next(iter(toolchain.executables.values()), "")
    return f"{toolchain.version} ({where}), identity {toolchain.identity[:12]}"


def _engine(
    request: Request,
    options: Options,
    layout: Layout,
    state: State,
    toolchains: Toolchains,
    processes: Processes,
    workers: WorkerPool,
    reporter: Reporter,
) -> Engine:
    store = request.store

    def advise(action: Action, output: bytes) -> str | None:
        from hidet_build.declaration import advise  # loads packages, only after a failure

        return advise(request, action, output)

    def locks(waiting: Waiting) -> KeyLocks:
        folder = os.path.join(store, "locks")
        return KeyLocks(folder, waiting, request.lock_timeout, request.block_for_lock, lambda: processes.stopped)

    headers = PrecompiledHeaders(os.path.join(request.user_cache, PRECOMPILED), processes)
    return local_engine(layout, options, state, toolchains, processes, workers, headers, reporter, store, locks, advise)


def local_engine(
    layout: Layout,
    options: Options,
    state: State,
    toolchains: Toolchains,
    processes: Processes,
    workers: WorkerPool,
    headers: PrecompiledHeaders,
    reporter: Reporter,
    store: str,
    locks: Callable[[Waiting], KeyLocks],
    advise: Callable[[Action, bytes], str | None],
) -> Engine:
    """An engine that runs actions on this machine and keeps results in the folder `store`."""

    def cancelled() -> bool:
        return processes.stopped

    def performer(tell: Callable[[Notice], None]) -> Performer:
        return Performer(
            layout=layout,
            options=options,
            state=state,
            cache=DiskCache(store, Placer(), read_only=options.require_cached),
            locks=locks,
            runner=LocalRunner(processes, workers, toolchains, headers),
            cancelled=cancelled,
            advise=advise,
            tell=tell,
        )

    return Engine(layout, options, state, toolchains, reporter, cancelled, performer)


def _prepare_folders(request: Request, layout: Layout) -> None:
    """Make the output folder and the files that mark it; a folder that holds something else goes unmarked."""
    base = request.output_base
    try:
        fresh = not os.path.lexists(base) or not os.listdir(base)
        os.makedirs(layout.state, exist_ok=True)
        for name, content in MARKERS.items():
            path = os.path.join(base, name)
            if fresh and not os.path.exists(path):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write to {request.output_base}: {error.strerror}",
            hint="--output_base=FOLDER puts outputs elsewhere",
        ) from None


def _link(request: Request, layout: Layout, plan: Plan) -> None:
    """Point `hidet-bin` to the outputs of this platform; a workspace we may not write to does without."""
    link = link_path(request.root, request.symlink_prefix)
    if not link:
        return
    target = os.path.join(layout.output_base, plan.platform.name)
    if target.startswith(request.root + os.sep):
        target = os.path.relpath(target, os.path.dirname(link))
    with contextlib.suppress(OSError):
        if os.path.lexists(link) and (not is_output_link(link) or os.readlink(link) == target):
            return
        temporary = f"{link}.{os.getpid()}"
        os.symlink(target, temporary)
        os.replace(temporary, link)


def _summary(result: Result, engine: Engine, plan: Plan, started: float, options: Options, request: Request) -> Summary:
    if plan.part and request.changes:  # the actions that were left out
        result.counts[Outcome.UP_TO_DATE] += request.changes.snapshot["actions"] - result.actions
    missing = [target for target in plan.wanted if not all(engine.made(file) for file in target.files)]
    # A step that failed while it declared others leaves none of them failed.
    failed = [target for target in missing if any(engine.given_up(file) for file in target.files)] or missing
    counts = {outcome: count for outcome, count in result.counts.items() if count}
    return Summary(
        counts,
        time.monotonic() - started,
        plan.targets,
        tuple(str(target.label) for target in failed),
        len(missing) - len(failed),
        result.interrupted,
        only_checked=options.check_up_to_date,
    )


def _described(request: Request, layout: Layout, plan: Plan) -> list[str]:
    """Where the outputs are and how to load them, for requests of a few targets."""
    found = []
    for target in plan.wanted if len(plan.wanted) <= _SHOWN else ():
        made = [file for file in target.files if not file.is_source]
        if not made:
            continue
        lines = [str(target.label), *(f"  {_shown(request, layout, file)}" for file in made)]
        if target.folder is not None:
            folder = _shown(request, layout, target.folder)
            note = target.note or 'load it: hidet.runtime.load_compiled_module("{folder}")'
            lines.append(f"  {note.replace('{folder}', folder)}")
        found.append("\n".join(lines))
    return found


def _shown(request: Request, layout: Layout, artifact: Artifact) -> str:
    """The path of an output as short as it can be typed from where the command was typed."""
    path = layout.path(artifact)
    link = link_path(request.root, request.symlink_prefix)
    if link and os.path.realpath(link) == os.path.realpath(os.path.join(layout.output_base, artifact.platform)):
        path = os.path.join(link, artifact.path)
    here = os.getcwd()
    return os.path.relpath(path, here) if path.startswith(here + os.sep) else path


def _save_snapshot(
    request: Request,
    lines: Sequence[str],
    plan: Plan,
    toolchains: Toolchains,
    state: State,
    engine: Engine,
    summary: Summary,
) -> None:
    """Keep what this answer rests on, for `quick`."""
    if plan.part and request.changes:
        snapshot = request.changes.snapshot
        _forget(snapshot, request.changes, engine)
    else:
        snapshot = _new_snapshot(request, lines, plan, toolchains, summary)
    for path, (seen, found, executable) in state.sources().items():
        snapshot["sources"][path] = (seen or plans.YOUNG, found.hash, 0o100 if executable else 0)
    for name, (found, executable) in engine.contents().items():
        snapshot["outputs"][name[1:]] = (found.size, seal_time_ns(found.hash), 0o100 if executable else 0)
    made = (os.path.join(request.output_base, name[1:]) for name in engine.folders())
    snapshot["made"] = list(dict.fromkeys([*snapshot["made"], *made]))
    identity = quick.identity(request.arguments, request.root)
    quick.save(quick.place(request.output_base, identity), snapshot)


def _forget(snapshot: quick.Snapshot, changes: quick.Changes, engine: Engine) -> None:
    """Take out of a snapshot the outputs that are made anew: an output folder may hold other files now."""
    folders = tuple(f"{name[1:]}/" for name in engine.folders())
    gone = set(changes.outputs)
    if folders:
        gone.update(path for path in snapshot["outputs"] if path.startswith(folders))
    for path in gone:
        del snapshot["outputs"][path]


def _new_snapshot(
    request: Request, lines: Sequence[str], plan: Plan, toolchains: Toolchains, summary: Summary
) -> quick.Snapshot:
    """What an answer rests on but for sources and outputs."""
    files = dict(plan.evidence.files)
    programs: dict[str, str] = {}
    for toolchain in toolchains.found():
        files.update(toolchain.parts)
        programs.update((os.path.basename(path), path) for path in toolchain.looked_up)
    folders = {}
    for path, names in plan.evidence.folders:
        folders[path] = (list(names), quick.mark_of_folder(path, list(names)))
    link = link_path(request.root, request.symlink_prefix)
    return {
        "request": quick.identity(request.arguments, request.root),
        "lines": list(lines),
        "targets": plan.targets,
        "actions": sum(summary.counts.values()),
        "plan": plan.stamp,
        "machine": plan.evidence.machine,
        "programs": programs,
        "files": files,
        "folders": folders,
        "sources": {},
        "outputs": {},
        "made": [],
        "links": {link: os.readlink(link)} if os.path.islink(link) else {},  # the lines name paths through it
    }
