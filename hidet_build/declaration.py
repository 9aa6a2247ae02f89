"""From a request to a plan: select, load, analyze. Knows everything before anything runs; runs nothing itself.

Imported only where no saved plan will do: it brings yaml and networkx.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable

from hidet_build import quick
from hidet_build.action import Action
from hidet_build.advice import Adviser
from hidet_build.analysis import Analysis, analyze
from hidet_build.errors import AnalysisError, BuildError, Location, UsageError, error_list
from hidet_build.graph import TargetGraph, action_graph, load, once
from hidet_build.label import Label, parse_pattern
from hidet_build.loader import Loader
from hidet_build.plan import YOUNG, Evidence, Plan, Wanted
from hidet_build.platform import Platform, parse_target
from hidet_build.request import Request
from hidet_build.ruleset import built_in_folder
from hidet_build.selection import Selection, select
from hidet_build.survey import evidence
from hidet_build.toolchain.registry import Toolchains
from hidet_build.workspace import Workspace


def declare(request: Request, keep_going: bool, toolchains: Toolchains) -> Plan:
    """The plan of a request; raises all errors of the first phase that has some."""
    began = time.time_ns()
    workspace = Workspace(request.root, request.output_base, request.symlink_prefix)
    loader = Loader(workspace)
    settings = loader.settings()
    text, origin = (request.platform, None) if request.platform else (settings.platform, settings.location)
    resolve = functools.partial(_resolve, toolchains)
    platform = resolve(text or "cpu", origin)
    patterns = [parse_pattern(one, request.package) for one in request.patterns]
    selection = select(patterns, loader.package, workspace, platform, keep_going)

    def analyzed(labels: Iterable[Label]) -> tuple[TargetGraph, Analysis]:
        graph = load([(label, None) for label in labels], loader.package, workspace, platform)
        return graph, analyze(graph, platform, resolve, built_in_folder())

    try:
        graph, analysis = analyzed(selection.labels)
    except BuildError:
        if not keep_going:
            raise
        _keep_sound(selection, analyzed)
        graph, analysis = analyzed(selection.labels)
    steps = tuple(step for declared in analysis.steps.values() for step in declared)
    named = ((graph.targets[label], analysis.default(label).files) for label in analysis.providers)
    # Emptied, for a graph of networkx is in a cycle with its views.
    action_graph(steps, ((target, file) for target, files in named for file in files)).clear()
    loader.forget()
    wanted = []
    for label in selection.labels:
        info = analysis.default(label)
        wanted.append(Wanted(label, info.files, info.folder, info.note))
    renewed = functools.partial(_evidence, loader, workspace, toolchains, began)
    errors = tuple(selection.errors)
    return Plan(platform, tuple(wanted), steps, renewed(), selection.skipped, errors, renewed)


def _resolve(toolchains: Toolchains, text: str, location: Location | None) -> Platform:
    """The platform of a target string; one that stands in a file is not the command line's mistake."""
    try:
        return toolchains.resolve(parse_target(text, location), location)
    except UsageError as error:
        if location is None:
            raise
        raise AnalysisError(error.message, location=location, hint=error.hint) from None


def _keep_sound(selection: Selection, analyzed: Callable[[Iterable[Label]], object]) -> None:
    """Leave in the selection the targets that can be analyzed, each tried by itself, and the errors of the others."""
    sound = []
    for label in selection.labels:
        try:
            analyzed([label])
            sound.append(label)
        except BuildError as error:
            selection.errors += error_list(error)
    selection.labels, selection.errors = sound, once(selection.errors)


def advise(request: Request, action: Action, output: bytes) -> str | None:
    """What to add to a BUILD.yaml so that a failed action finds what it missed, or None."""
    workspace = Workspace(request.root, request.output_base, request.symlink_prefix)
    return Adviser(workspace, Loader(workspace).package).advise(action, output)


def _evidence(loader: Loader, workspace: Workspace, toolchains: Toolchains, began: int) -> Evidence:
    """What was read since `began`, and what the toolchains decided."""
    files, folders = evidence(loader, workspace, began)
    if toolchains.asked_for_device:  # nothing on disk says which GPU is here
        files = dict.fromkeys(files, YOUNG)
    machine = ""
    if toolchains.asked_for_cpu:  # then the compiler decided what the CPU is called
        machine = quick.machine()
        files.update(part for toolchain in toolchains.found() for part in toolchain.parts)
    return Evidence(tuple(files.items()), tuple(folders.items()), machine)
