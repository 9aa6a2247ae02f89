"""What was declared for a request, and its plain form, which the next build takes up while nothing it rests on changed.

Loading and analysis make a plan (declaration.py); running needs nothing else. The saved form spares a build the
import of yaml and networkx, and reading what did not change. Knows steps, not how they came about or run.

    <output_base>/.state/plans.v1/<CRC of the request>     a marshalled plan
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from zlib import crc32

from hidet_build import quick
from hidet_build.action import Action, Artifact, Continuation, Input, Reader, Step, Text
from hidet_build.errors import BuildError, Location
from hidet_build.files import mark
from hidet_build.label import Label
from hidet_build.platform import Platform
from hidet_build.progress import Outcome


@dataclass(frozen=True)
class Wanted:
    """A target that was asked for and what is made for it; `folder` is the one to load, if there is one.

    `note` says how to use it, with `{folder}` for its path; empty where that is what most targets say.
    """

    label: Label
    files: tuple[Artifact, ...]
    folder: Artifact | None
    note: str = ""


@dataclass(frozen=True)
class Evidence:
    """What a plan rests on: files by the stat data they had (None: there was none), folders by what they held.

    `machine` is the name of the only one it is right for, where it depends on the CPU.
    """

    files: tuple[tuple[str, tuple[int, int, int, int] | None], ...] = ()
    folders: tuple[tuple[str, tuple[str, ...]], ...] = ()
    machine: str = ""

    def holds(self) -> bool:
        """Whether all of it still is as it was."""
        return (
            (not self.machine or self.machine == quick.machine())
            and all(mark(path) == seen for path, seen in self.files)
            and all(listing(path) == names for path, names in self.folders)
        )


@dataclass(frozen=True)
class Plan:
    """Everything a build needs to know to run.

    `errors` are those of packages that -k does without; a plan with errors is not saved. `skipped` counts the targets
    a wildcard passed over because they are not for the platform.
    """

    platform: Platform
    wanted: tuple[Wanted, ...]
    steps: tuple[Step, ...]
    evidence: Evidence
    skipped: int = 0
    errors: tuple[BuildError, ...] = ()
    # Takes the evidence again: a continuation of a workspace's rule may read what nobody had read before it ran.
    renewed: Callable[[], Evidence] | None = None


# What a continuation declared: the digest of what it read, and the steps.
Expansions = Mapping[str, tuple[str, tuple[Step, ...]]]


class PlanStale(Exception):
    """A saved continuation read something new, so what it declared then no longer counts.

    `finished` are the actions that were done by then, and what became of each.
    """

    def __init__(self, finished: Mapping[str, Outcome] | None = None) -> None:
        super().__init__()
        self.finished = finished or {}


# The mark of a file that may have been written after it was read; no file ever has it.
YOUNG = (0, 0, 0, 0)


def listing(path: str) -> tuple[str, ...]:
    """What a folder holds, as `quick` compares it; nothing where it cannot be read."""
    try:
        return tuple(quick.listing(path))
    except OSError:
        return ()


def recall(state: str, request: tuple[Any, ...]) -> Plan | None:
    """The plan saved for this request, if nothing it rests on has changed."""
    try:
        with open(_place(state, request), "rb") as file:
            saved, evidence, *rest = marshal.load(file)
        if saved != request or not Evidence(*evidence).holds():
            return None
        platform, wanted, steps, skipped = rest
        return Plan(
            Platform(*platform),
            tuple(
                Wanted(
                    Label(*label), tuple(Artifact(*file) for file in files), Artifact(*folder) if folder else None, note
                )
                for label, files, folder, note in wanted
            ),
            tuple(map(_step, steps)),
            Evidence(*evidence),
            skipped,
        )
    except (OSError, ValueError, EOFError, TypeError):
        return None


def save(state: str, request: tuple[Any, ...], plan: Plan, expansions: Expansions) -> None:
    """Keep a plan for `recall`, with what its continuations declared; where it cannot be written, do without."""
    platform = plan.platform
    row = (
        request,
        (plan.evidence.files, plan.evidence.folders, plan.evidence.machine),
        (platform.name, platform.kind, platform.arch, platform.cpu_arch, platform.cpu_flags, platform.options),
        tuple(
            (tuple(one.label), _plain(one.files), tuple(one.folder) if one.folder else None, one.note)
            for one in plan.wanted
        ),
        tuple(_row(step, expansions) for step in plan.steps),
        plan.skipped,
    )
    quick.save(_place(state, request), row)


def content_digest(contents: Iterable[bytes]) -> str:
    """One digest for the contents a continuation reads."""
    return sha256(b"".join(sha256(content).digest() for content in contents)).hexdigest()


def _place(state: str, request: tuple[Any, ...]) -> str:
    return f"{state}/plans.v1/{crc32(repr(request).encode()):08x}"


def _plain(artifacts: Sequence[Artifact]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, artifacts))


def _row(step: Step, expansions: Expansions) -> tuple[Any, ...]:
    location = tuple(step.location) if step.location else None
    if isinstance(step, Action):
        return (
            tuple(step.owner),
            step.mnemonic,
            step.platform,
            step.tool,
            step.arguments,
            tuple((where, tuple(content)) for where, content in step.inputs),
            tuple((where, tuple(artifact)) for where, artifact in step.outputs),
            step.environment,
            step.working_directory,
            step.trees,
            step.tags,
            location,
        )
    found = expansions.get(step.id)
    expansion = (found[0], tuple(_row(one, expansions) for one in found[1])) if found else ("", ())
    return (tuple(step.owner), step.platform, _plain(step.inputs), _plain(step.outputs), location, expansion)


def _step(row: tuple[Any, ...]) -> Step:
    if len(row) == 6:
        owner, platform, inputs, outputs, location, (seen, steps) = row
        waited = tuple(Artifact(*one) for one in inputs)
        return Continuation(
            Label(*owner),
            platform,
            waited,
            tuple(Artifact(*one) for one in outputs),
            functools.partial(_expand, waited, seen, steps),
            Location(*location) if location else None,
        )
    owner, mnemonic, platform, tool, arguments, inputs, outputs, environment, where, trees, tags, location = row
    return Action(
        Label(*owner),
        mnemonic,
        platform,
        tool,
        arguments,
        tuple((path, _input(content)) for path, content in inputs),
        tuple((path, Artifact(*artifact)) for path, artifact in outputs),
        environment,
        where,
        trees,
        tags,
        Location(*location) if location else None,
    )


def _input(content: tuple[Any, ...]) -> Input:
    return Artifact(*content) if len(content) == 3 else Text(*content)


def _expand(inputs: Sequence[Artifact], seen: str, steps: Sequence[tuple[Any, ...]], read: Reader) -> tuple[Step, ...]:
    """What a continuation declared when it last ran, provided it would read the same now."""
    if content_digest(map(read, inputs)) != seen:
        raise PlanStale
    return tuple(map(_step, steps))
