"""Which targets a request means: patterns from the command line -> labels. Knows packages, not rules or actions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hidet_build.errors import BuildError, LoadError, UsageError, did_you_mean, raise_all
from hidet_build.graph import Packages, find_target, once
from hidet_build.label import Label, Pattern
from hidet_build.package import Package, Target
from hidet_build.platform import Platform, canonical_name
from hidet_build.workspace import BUILD_FILE, Workspace


@dataclass
class Selection:
    """What the patterns came to.

    `skipped` counts the targets a wildcard passed over because they are not for this platform; `errors` say which
    patterns and packages came to nothing, and `-k` lets us do without them.
    """

    labels: list[Label] = field(default_factory=list)
    files: list[Label] = field(default_factory=list)
    skipped: int = 0
    errors: list[BuildError] = field(default_factory=list)


def select(
    patterns: Sequence[Pattern],
    packages: Packages,
    workspace: Workspace,
    platform: Platform,
    keep_going: bool = False,
) -> Selection:
    """The targets the patterns name, in the order they were named, each once.

    Wildcards pass over targets tagged `manual` and those not compatible with `platform`; naming the latter is an
    error. Negative patterns take away from those before them. Without `keep_going` all errors are raised together.
    """
    selection = Selection()
    chosen: dict[Label, None] = {}
    passed_over: set[Label] = set()
    for pattern in patterns:
        if pattern.negative:
            for label in [label for label in chosen if pattern.covers(label)]:
                del chosen[label]
            continue
        if pattern.kind == "target":
            try:
                chosen[_named(pattern, packages, platform).label] = None
            except BuildError as error:
                selection.errors.append(error)
            continue
        errors, matched = len(selection.errors), False
        for package in _packages_of(pattern, packages, workspace, selection.errors):
            for target in package.targets.values():
                if "manual" in target.tags:
                    continue
                if not compatible(target, platform):
                    passed_over.add(target.label)
                else:
                    chosen[target.label] = None
                matched = True
        if not matched and errors == len(selection.errors):
            selection.errors.append(_nothing(pattern, workspace))
    if not chosen and not passed_over and not selection.errors:
        # Whoever asked for something and gets nothing must notice, in CI above all.
        selection.errors.append(
            UsageError("0 targets are left: the patterns with a minus took away all that the others named")
        )
    selection.errors = once(selection.errors)
    if not keep_going:
        raise_all(selection.errors)
    selection.labels = list(chosen)
    selection.skipped = len(passed_over)
    return selection


def _named(pattern: Pattern, packages: Packages, platform: Platform) -> Target:
    target = find_target(Label(pattern.package, pattern.name), None, packages)
    if not compatible(target, platform):
        raise LoadError(
            f"{target.label} is for {', '.join(target.compatible_with)}, not for {platform.name}",
            location=target.locations.get("compatible_with", target.location),
        )
    return target


def compatible(target: Target, platform: Platform) -> bool:
    """Whether a target can be built for `platform`."""
    allowed = target.compatible_with
    return not allowed or any(canonical_name(name) in platform.names for name in allowed)


def _packages_of(
    pattern: Pattern, packages: Packages, workspace: Workspace, errors: list[BuildError]
) -> Iterator[Package]:
    names = (pattern.package,) if pattern.kind == "package" else workspace.walk_packages(pattern.package).packages
    for name in names:
        try:
            yield packages(name, None)
        except BuildError as error:
            errors.append(error)


def _nothing(pattern: Pattern, workspace: Workspace) -> BuildError:
    if pattern.package and not os.path.isdir(workspace.absolute(pattern.package)):
        return LoadError(
            f"{pattern.text}: there is no folder {pattern.package}",
            hint=did_you_mean(pattern.package, workspace.walk_packages().packages),
        )
    if not workspace.walk_packages(pattern.package).packages:
        return LoadError(f"{pattern.text}: no folder there holds a {BUILD_FILE}")
    return UsageError(f"{pattern.text}: 0 targets match", hint="targets tagged `manual` must be named one by one")
