"""The graphs of record: targets with their dependencies, and the steps they declared. The networkx room.

Knows packages and labels, not what a rule does. Edges point from the dependent to what it needs and carry the place
in the BUILD.yaml that says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import networkx

from hidet_build.action import Action, Artifact, Step
from hidet_build.errors import AnalysisError, BuildError, LoadError, Location, by_place, did_you_mean, raise_all
from hidet_build.label import Label
from hidet_build.package import Package, Select, Target, resolve_select
from hidet_build.platform import Platform
from hidet_build.rule import FILE, FILES, Provider, Reference, Rule
from hidet_build.workspace import Workspace

Packages = Callable[[str, "Location | None"], Package]


@dataclass
class TargetGraph:
    """The targets a request reaches and the source files they name.

    `named` are the references of each target, one for each label it depends on; `order` has each label after all it
    depends on.
    """

    targets: dict[Label, Target] = field(default_factory=dict)
    sources: set[Label] = field(default_factory=set)
    named: dict[Label, tuple[Reference, ...]] = field(default_factory=dict)
    order: list[Label] = field(default_factory=list)

    def in_order(self) -> Iterator[Target]:
        """Every target after all it depends on."""
        return (self.targets[label] for label in self.order if label in self.targets)

    def needs(self, label: Label) -> list[Label]:
        """What `label` depends on directly."""
        return [reference.label for reference in self.named.get(label, ())]

    def edges(self) -> networkx.DiGraph[Label]:
        """The graph over labels; each edge knows the `attribute` and the `location` that made it.

        It is made when somebody asks, for it takes as much memory as all targets.
        """
        graph: networkx.DiGraph[Label] = networkx.DiGraph()
        for label, target in self.targets.items():
            graph.add_node(label)
            attributes = {id(reference): attribute for attribute, reference, _ in references(target, None, [])}
            for reference in self.named[label]:
                attribute = attributes[id(reference)]
                graph.add_edge(label, reference.label, attribute=attribute, location=reference.location)
        return graph


def load(
    roots: Sequence[tuple[Label, Location | None]],
    packages: Packages,
    workspace: Workspace,
    platform: Platform | None,
) -> TargetGraph:
    """The graph below `roots`: every target is there, may be used where it is used, and there is no cycle.

    With a platform each `select` counts by the branch it takes there, without one by all of its branches. Raises all
    errors found, together.
    """
    graph = TargetGraph()
    errors: list[BuildError] = []
    waiting: list[Label] = []

    def reach(label: Label, target: Target) -> None:
        if label not in graph.targets:
            graph.targets[label] = target
            waiting.append(label)

    for label, origin in roots:
        try:
            reach(label, find_target(label, origin, packages))
        except BuildError as error:
            errors.append(error)
    while waiting:
        user = graph.targets[waiting.pop()]
        named: dict[Label, Reference] = {}
        for attribute, reference, may_be_file in references(user, platform, errors):
            try:
                found = _resolve(user, attribute, reference, may_be_file, packages, workspace)
            except BuildError as error:
                errors.append(error)
                continue
            if isinstance(found, Target):
                if not _visible(found, user.label):
                    errors.append(_invisible(user, reference, found))
                reach(found.label, found)
            else:
                graph.sources.add(found)
            named.setdefault(reference.label, reference)
        graph.named[user.label] = tuple(named.values())
    raise_all(once(errors))
    graph.order = _order(graph)
    return graph


def once(errors: Iterable[BuildError]) -> list[BuildError]:
    """The errors by place and without repetitions: a broken package is met again by each target that needs it."""
    seen: dict[str, BuildError] = {}
    for error in errors:
        seen.setdefault(error.render(), error)
    return sorted(seen.values(), key=by_place)


def references(
    target: Target, platform: Platform | None, errors: list[BuildError]
) -> Iterator[tuple[str, Reference, bool]]:
    """Each label a target names: the attribute, the reference, and whether it may be a source file."""
    for name, attribute in target.rule.attributes.items():
        if not attribute.kind.refers or name not in target.values:
            continue
        value, may_be_file = target.values[name], attribute.kind in (FILE, FILES)
        values: Sequence[object] = (value,)
        if isinstance(value, Select):
            if platform is None:
                values = [branch for _, _, branch in value.branches]
            else:
                try:
                    values = [resolve_select(value, platform, name)]
                except BuildError as error:
                    errors.append(error)
                    continue
        for one in values:
            for reference in one if isinstance(one, tuple) and not isinstance(one, Reference) else (one,):
                if isinstance(reference, Reference):
                    yield name, reference, may_be_file


def find_target(label: Label, origin: Location | None, packages: Packages) -> Target:
    """The target of this name; LoadError, at the `origin` that named it, where there is none."""
    package = packages(label.package, origin)
    if label.name in package.targets:
        return package.targets[label.name]
    users = [f"{attribute} of {target.label}" for target, attribute in holders(label, package)]
    if users:
        raise LoadError(
            f"{label} is a source file, not a target",
            location=origin,
            hint=f"it is in {' and in '.join(users[:3])}",
        )
    raise LoadError(
        f"no target {label.name!r} in package //{label.package} ({package.path})",
        location=origin,
        hint=did_you_mean(label.name, package.targets) or _has(package),
    )


def _has(package: Package) -> str:
    names = sorted(package.targets)
    if not names:
        return "the package has no targets"
    return "the package has " + ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _resolve(
    user: Target,
    attribute: str,
    reference: Reference,
    may_be_file: bool,
    packages: Packages,
    workspace: Workspace,
) -> Target | Label:
    """The target a reference means, or the label itself for a source file."""
    label = reference.label
    try:
        package = packages(label.package, reference.location)
    except LoadError as error:
        owner = workspace.owner(label.path)
        if owner is None or error.location != reference.location or not os.path.isfile(workspace.absolute(label.path)):
            raise
        raise _belongs(label, owner, reference.location) from None
    if not may_be_file and label.name not in package.targets and os.path.isfile(workspace.absolute(label.path)):
        wanted = providing_rules(user.rule.attributes[attribute].provides)
        raise LoadError(
            f"{label} is a file, and `{attribute}` takes targets",
            location=reference.location,
            hint=_target_of_file(label, user, package, wanted or ["filegroup"]),
        )
    if not may_be_file:
        return find_target(label, reference.location, packages)
    if label.name in package.targets:
        return package.targets[label.name]
    owner = workspace.owner(label.path)
    if owner is not None and owner != label.package:
        raise _belongs(label, owner, reference.location)
    why = workspace.excluded(label.path)
    if why is not None:
        raise LoadError(f"{label.path} is no part of the workspace: it {why}", location=reference.location)
    if os.path.isfile(workspace.absolute(label.path)):
        return label
    near = [path.removeprefix(f"{label.package}/") for path in workspace.near_files(label.path)]
    if os.path.isdir(workspace.absolute(label.path)):
        raise LoadError(
            f"{label.path} is a folder, and no target {label} exists",
            location=reference.location,
            hint=f'name its files, or write {{glob: ["{label.name}/**"]}}',
        )
    raise LoadError(
        f"no file {label.path} and no target {label}",
        location=reference.location,
        hint=did_you_mean(label.name, [*near, *package.targets]),
    )


def _target_of_file(label: Label, user: Target, package: Package, rules: Sequence[str]) -> str:
    """How to name a target in place of a file: one of these rules that has the file, else what to add."""
    for target, attribute in holders(label, package):
        if target.rule.name in rules and target.label != user.label:
            name = f":{target.label.name}" if label.package == user.label.package else target.label.short
            return f"{label.path} is in {attribute} of {target.label}: write {name!r}"
    return f"make a target of it with rule: {' or '.join(rules)}, and name that"


def holders(file: Label, package: Package) -> list[tuple[Target, str]]:
    """The targets of the file's own package that name it, each with the attribute that does."""
    return [
        (target, attribute)
        for target in package.targets.values()
        for attribute, reference, may_be_file in references(target, None, [])
        if may_be_file and reference.label == file
    ]


def providing_rules(kinds: Sequence[type[Provider]]) -> list[str]:
    """The rules whose targets provide one of these types: the one rule in the module that defines the type.

    Empty where some module has several, for then it cannot be known.
    """
    found = []
    for kind in kinds:
        module = sys.modules[kind.__module__]
        rules = [value for value in vars(module).values() if isinstance(value, Rule)]
        own = [rule.name for rule in rules if rule.implementation.__module__ == kind.__module__]
        if len(own) != 1:
            return []
        found += own
    return found


def _belongs(label: Label, owner: str, location: Location) -> LoadError:
    inside = label.path.removeprefix(f"{owner}/")
    return LoadError(
        f"{label.path} belongs to package //{owner}, not to //{label.package}",
        location=location,
        hint=f"write //{owner}:{inside}",
    )


def _visible(target: Target, user: Label) -> bool:
    if target.label.package == user.package:
        return True
    for entry in target.visibility:
        where, _, which = entry.removeprefix("//").partition(":")
        if entry == "//visibility:public":
            return True
        if which == "__pkg__" and where == user.package:
            return True
        if which == "__subpackages__" and (not where or f"{user.package}/".startswith(f"{where}/")):
            return True
    return False


def _invisible(user: Target, reference: Reference, target: Target) -> BuildError:
    return LoadError(
        f"{user.label} may not depend on {target.label}: its visibility is {', '.join(target.visibility)}",
        location=reference.location,
        related=[("the target is declared here", target.location)],
        hint=f'add "//{user.label.package}:__pkg__" to its visibility',
    )


def _order(graph: TargetGraph) -> list[Label]:
    """The labels, each after all it depends on; LoadError where they go round in a circle."""
    bare: networkx.DiGraph[Label] = _BareGraph()
    bare.add_nodes_from(graph.targets)
    bare.add_edges_from((label, needed.label) for label, named in graph.named.items() for needed in named)
    try:
        return list(networkx.topological_sort(bare))[::-1]
    except networkx.NetworkXUnfeasible:
        raise _cycle(graph) from None
    finally:
        bare.clear()  # a graph of networkx is in a cycle with its views: nothing in it is freed before it is empty


def _cycle(graph: TargetGraph) -> LoadError:
    edges = graph.edges()
    cycle = [(user, needed) for user, needed, *_ in networkx.find_cycle(edges)]
    start = cycle.index(min(cycle))
    cycle = cycle[start:] + cycle[:start]
    related = [
        (f"{user} needs {needed} ({edges.edges[user, needed]['attribute']})", edges.edges[user, needed]["location"])
        for user, needed in cycle
    ]
    path = " -> ".join(str(user) for user, _ in cycle) + f" -> {cycle[0][0]}"
    return LoadError(
        f"dependency cycle: {path}", location=related[0][1], related=related, hint="remove one of these edges"
    )


class _BareGraph(networkx.DiGraph):  # type: ignore[type-arg]
    """A graph whose nodes and edges know nothing: one dictionary for all of them, in place of as many."""

    def __init__(self) -> None:
        self._nothing: dict[str, object] = {}
        super().__init__()

    def node_attr_dict_factory(self) -> dict[str, object]:
        """networkx asks for the dictionary of a new node."""
        return self._nothing

    edge_attr_dict_factory = node_attr_dict_factory


def action_graph(steps: Iterable[Step], wanted: Iterable[tuple[Target, Artifact]] = ()) -> networkx.DiGraph[str]:
    """The graph of declared steps over their ids, an edge from each step to every one whose output it needs.

    Raises AnalysisError where two steps make one file, a file is made inside another's, nothing makes a file that a
    step needs or a target names as `wanted`, or steps form a cycle.
    """
    graph: networkx.DiGraph[str] = _BareGraph()
    steps = list(steps)
    makers: dict[str, Step] = {}
    folders = set()
    for step in steps:
        for artifact in outputs(step):
            other = makers.setdefault(artifact.id, step)
            if other is not step:
                raise _claimed_twice(artifact, other, step)
            if artifact.directory:
                folders.add(artifact.id)
    graph.add_nodes_from(step.id for step in steps)
    for step in steps:
        for artifact in outputs(step):
            parent = artifact.id
            while parent := parent.rpartition("/")[0]:
                if parent in makers and (parent in folders or makers[parent] is not step):
                    raise _claimed_twice(artifact, makers[parent], step)
        for artifact in inputs(step):
            maker = producer(artifact, makers)
            if maker is not None:
                graph.add_edge(step.id, maker.id)
            elif not artifact.is_source:
                raise AnalysisError(f"{step.owner}: nothing makes {artifact.path}", location=step.location)
    for target, artifact in wanted:
        if not artifact.is_source and producer(artifact, makers) is None:
            raise AnalysisError(
                f"{target.label}: rule {target.rule.name} names {artifact.path}, and no action makes it",
                location=target.location,
            )
    if not networkx.is_directed_acyclic_graph(graph):
        named = {step.id: step for step in steps}
        cycle = [named[user] for user, *_ in networkx.find_cycle(graph)]
        names = [next(outputs(step)).path for step in (*cycle, cycle[0])]
        raise AnalysisError(
            f"{cycle[0].owner}: its actions form a cycle: {' needs '.join(names)}", location=cycle[0].location
        )
    return graph


def inputs(step: Step) -> Iterator[Artifact]:
    """The artifacts a step needs."""
    if isinstance(step, Action):
        for _, content in step.inputs:
            if isinstance(content, Artifact):
                yield content
    else:
        yield from step.inputs


def outputs(step: Step) -> Iterator[Artifact]:
    """The artifacts a step makes, or promises."""
    if isinstance(step, Action):
        for _, artifact in step.outputs:
            yield artifact
    else:
        yield from step.outputs


def producer(artifact: Artifact, makers: dict[str, Step]) -> Step | None:
    """Who makes `artifact`: the step with that output, or the one with a folder around it."""
    if artifact.is_source:
        return None
    where = artifact.id
    while where:
        if where in makers:
            return makers[where]
        where = where.rpartition("/")[0]
    return None


def _claimed_twice(artifact: Artifact, first: Step, second: Step) -> AnalysisError:
    related = [(f"and {second.owner} too", second.location)] if second.location and first.owner != second.owner else []
    return AnalysisError(
        f"{first.owner} and {second.owner} both make {artifact.path}"
        if first.owner != second.owner
        else f"{first.owner} makes {artifact.path} twice",
        location=first.location,
        related=related,
    )
