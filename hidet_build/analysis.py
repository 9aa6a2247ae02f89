"""Calls each target's rule, dependencies first, and collects what it declared: steps and providers.

Knows rules and targets; knows nothing of how steps run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hidet_build.action import Artifact, Step
from hidet_build.errors import AnalysisError, BuildError, Location, by_place, raise_all
from hidet_build.graph import TargetGraph, providing_rules
from hidet_build.label import Label
from hidet_build.package import Select, Target, resolve_select
from hidet_build.platform import Platform
from hidet_build.rule import (
    DATA,
    FILE,
    FILES,
    LABEL,
    Attribute,
    Context,
    DefaultInfo,
    Dependency,
    GroupInfo,
    Provider,
    Reference,
    rule_failure,
)

Providers = Mapping[type[Provider], Provider]


@dataclass
class Analysis:
    """What the rules declared, by target."""

    steps: dict[Label, tuple[Step, ...]] = field(default_factory=dict)
    providers: dict[Label, Providers] = field(default_factory=dict)

    def default(self, label: Label) -> DefaultInfo:
        """What is made when `label` is asked for."""
        found = self.providers[label].get(DefaultInfo)
        return found if isinstance(found, DefaultInfo) else DefaultInfo()


def analyze(
    graph: TargetGraph, platform: Platform, resolve: Callable[[str, Location], Platform], built_in: str
) -> Analysis:
    """Run the rules of all targets of `graph` for `platform`.

    `resolve` reads a target string found in a BUILD.yaml; `built_in` is the folder of our own rules, whose exceptions
    are our bugs. Targets whose dependencies failed are passed over; all errors are raised together.
    """
    analysis = Analysis()
    errors: list[BuildError] = []
    failed: set[Label] = set()
    for target in graph.in_order():
        if any(needed in failed for needed in graph.needs(target.label)):
            failed.add(target.label)
            continue
        try:
            _analyze(target, graph, platform, resolve, built_in, analysis)
        except BuildError as error:
            failed.add(target.label)
            errors.append(error)
    raise_all(sorted(errors, key=by_place))
    return analysis


def _analyze(
    target: Target,
    graph: TargetGraph,
    platform: Platform,
    resolve: Callable[[str, Location], Platform],
    built_in: str,
    analysis: Analysis,
) -> None:
    attrs = {
        name: _value(name, attribute, target, graph, platform, analysis)
        for name, attribute in target.rule.attributes.items()
    }
    context = Context(target.label, attrs, target.locations, target.location, platform, target.tags, resolve)
    try:
        providers = target.rule.implementation(context)
    except BuildError:
        raise
    except Exception as error:  # the workspace's own rule is the user's code: its mistakes are located errors
        if target.rule.path.startswith(built_in):
            raise
        raise rule_failure(target.label, target.location, target.rule.path, error) from error
    found = _checked(target, providers)
    _check_files(target, found.get(DefaultInfo))
    analysis.steps[target.label] = context.steps()
    analysis.providers[target.label] = found


def _value(
    name: str, attribute: Attribute, target: Target, graph: TargetGraph, platform: Platform, analysis: Analysis
) -> Any:
    """What the rule gets for one attribute: see `Kind.value`."""
    value, kind = target.values.get(name, attribute.default), attribute.kind
    if isinstance(value, Select):
        value = resolve_select(value, platform, name)
    if kind is DATA:
        return dict(value or {})
    if value is None or not kind.refers:
        return value
    if kind is FILE:
        files = _files(value, attribute, graph, analysis)
        if len(files) != 1:
            raise AnalysisError(f"{name}: {value.label} makes {len(files)} files, not one", location=value.location)
        return files[0]
    if kind is FILES:
        return tuple(dict.fromkeys(file for one in value for file in _files(one, attribute, graph, analysis)))
    if kind is LABEL:
        dependency = _dependency(value, analysis)
        _check_provides(dependency, name, attribute, graph)
        return dependency
    found = [member for one in value for member in _members(_dependency(one, analysis))]
    for dependency in found:
        _check_provides(dependency, name, attribute, graph)
    return tuple({dependency.label: dependency for dependency in found}.values())


def _files(reference: Reference, attribute: Attribute, graph: TargetGraph, analysis: Analysis) -> tuple[Artifact, ...]:
    label = reference.label
    if label in graph.targets:
        files = analysis.default(label).files
        if not files:
            raise AnalysisError(
                f"{label} (rule {graph.targets[label].rule.name}) makes no files", location=reference.location
            )
    else:
        files = (Artifact(label.path),)
    for file in files:
        if attribute.suffixes and not file.path.endswith(attribute.suffixes):
            raise AnalysisError(
                f"{file.path}: expected a file that ends with {' or '.join(attribute.suffixes)}",
                location=reference.location,
            )
    return files


def _dependency(reference: Reference, analysis: Analysis) -> Dependency:
    return Dependency(reference.label, reference.location, analysis.providers[reference.label])


def _members(dependency: Dependency) -> Sequence[Dependency]:
    """The targets a group stands for, at the place where the group was named; else the dependency itself."""
    group = dependency.get(GroupInfo)
    if group is None:
        return (dependency,)
    return [
        Dependency(member.label, dependency.location, member.providers)
        for one in group.members
        for member in _members(one)
    ]


def _check_provides(dependency: Dependency, name: str, attribute: Attribute, graph: TargetGraph) -> None:
    if not attribute.provides or any(kind in dependency.providers for kind in attribute.provides):
        return
    rules = providing_rules(attribute.provides)
    wanted = " or ".join(rules or (kind.__name__ for kind in attribute.provides))
    takes = f"{wanted} targets" if rules else f"targets that provide {wanted}"
    raise AnalysisError(
        f"{dependency.label} is {_rule_of(dependency.label, graph)}; `{name}` takes {takes}",
        location=dependency.location,
    )


def _rule_of(label: Label, graph: TargetGraph) -> str:
    """`a py_library`; of another name for a target also what that target is."""
    rule = graph.targets[label].rule
    article = "an" if rule.name[0] in "aeiou" else "a"
    if rule.name == "alias":
        (needed,) = graph.needs(label)
        return f"an alias of {needed}, which is {_rule_of(needed, graph)}"
    return f"{article} {rule.name}"


def _checked(target: Target, providers: object) -> Providers:
    """What the rule returned, if it is what a rule must return."""
    found: dict[type[Provider], Provider] = {}
    given = () if providers is None else providers
    if not isinstance(given, (list, tuple)):
        raise _no_providers(target, type(given).__name__)
    for provider in given:
        if not isinstance(provider, Provider):
            raise _no_providers(target, f"{type(provider).__name__} in it")
        if type(provider) in found:
            raise _no_providers(target, f"{type(provider).__name__} twice")
        found[type(provider)] = provider
    return found


def _no_providers(target: Target, instead: str) -> AnalysisError:
    return AnalysisError(
        f"{target.label}: rule {target.rule.name} must return a list of providers, one of each type; "
        f"it returned {instead}",
        location=target.location,
        hint="a rule ends with: return [DefaultInfo((output,))]",
    )


def _check_files(target: Target, info: Provider | None) -> None:
    files: object = info.files if isinstance(info, DefaultInfo) else ()
    whole = isinstance(files, (list, tuple)) and not isinstance(files, Artifact)
    if not whole or not all(isinstance(file, Artifact) for file in files):  # type: ignore[attr-defined]
        raise AnalysisError(
            f"{target.label}: rule {target.rule.name} must give DefaultInfo a tuple of artifacts; it gave {files!r}",
            location=target.location,
            hint="DefaultInfo((output,))",
        )
