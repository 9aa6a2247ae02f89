"""What was declared for a request, and its plain form, which the next build takes up while nothing it rests on changed.

Loading and analysis make a plan (declaration.py); running needs nothing else. The saved form spares a build the
import of yaml and networkx, and reading what did not change. Knows steps, not how they came about or run.

    <output_base>/.state/plans.v2/<CRC of the request>     8 bytes, how long the head is
                                                           head, a marshalled dictionary: see `_head`
                                                           rows, each marshalled: the steps, then what is wanted

A build that knows which sources changed reads the head, and of the rows those of the steps these sources lead to.
"""

from __future__ import annotations

import functools
import itertools
import marshal
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import IO, Any
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
class Part:
    """What is left out of a plan whose `steps` and `wanted` are those that a change can reach: it is up to date.

    `settled` are the actions whose outputs the steps take, `targets` counts those asked for in all.
    """

    settled: tuple[Action, ...]
    targets: int


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
    stamp: str = field(default="", compare=False)  # tells it from other plans that were saved for the same request
    part: Part | None = None

    @property
    def targets(self) -> int:
        """How many targets were asked for."""
        return self.part.targets if self.part else len(self.wanted)


# What a continuation declared: the digest of what it read, and the steps.
Expansions = Mapping[str, tuple[str, tuple[Step, ...]]]


class PlanStale(Exception):
    """A saved continuation read something new, so what it declared then no longer counts.

    `finished` are the actions that were done by then, and what became of each; `failed` those that had run and failed:
    their signature, and why.
    """

    def __init__(
        self,
        finished: Mapping[str, Outcome] | None = None,
        failed: Mapping[str, tuple[str, BuildError]] | None = None,
    ) -> None:
        super().__init__()
        self.finished = finished or {}
        self.failed = failed or {}


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
            head = _read_head(file)
            if head["request"] != request or not Evidence(*head["evidence"]).holds():
                return None
            rows = memoryview(file.read())
        found = [marshal.loads(rows[start:]) for start in head["starts"][:-1]]
        count = len(head["needs"])
        return _plan(head, map(_step, found[:count]), map(_wanted, found[count:]), None)
    except _UNREADABLE:
        return None


def recall_part(state: str, request: tuple[Any, ...], changes: quick.Changes) -> Plan | None:
    """The part of the saved plan that changes of sources and outputs can reach.

    None where there is no such plan, or it is not the one that was carried out when all else was as it is now.
    """
    try:
        with open(_place(state, request), "rb") as file:
            head = _read_head(file)
            reached = _reached(head, changes)
            if head["request"] != request or head["stamp"] != changes.snapshot["plan"] or reached is None:
                return None
            first, starts, count = file.tell(), head["starts"], len(head["needs"])

            def rows(numbers: Iterable[int]) -> list[Any]:
                size = {number: starts[number + 1] - starts[number] for number in sorted(numbers)}
                return [marshal.loads(os.pread(file.fileno(), size[one], first + starts[one])) for one in size]

            needed = {one for number in reached for one in head["needs"][number]} - reached
            asked = {count + one for number in reached for one in head["askers"].get(number, ())}
            settled = tuple(action for row in rows(needed) for action in _actions(row))
            steps, wanted = map(_step, rows(reached)), map(_wanted, rows(asked))
            return _plan(head, steps, wanted, Part(settled, len(starts) - 1 - count))
    except _UNREADABLE:
        return None


_UNREADABLE = (OSError, ValueError, EOFError, TypeError, LookupError)


def _read_head(file: IO[bytes]) -> dict[str, Any]:
    length = int.from_bytes(file.read(8), "little")
    if length > os.fstat(file.fileno()).st_size:
        raise ValueError("not a plan")
    head: dict[str, Any] = marshal.loads(file.read(length))
    return head


def _plan(head: Mapping[str, Any], steps: Iterable[Step], wanted: Iterable[Wanted], part: Part | None) -> Plan:
    platform, evidence = Platform(*head["platform"]), Evidence(*head["evidence"])
    return Plan(platform, tuple(wanted), tuple(steps), evidence, head["skipped"], stamp=head["stamp"], part=part)


def _reached(head: Mapping[str, Any], changes: quick.Changes) -> set[int] | None:
    """The numbers of the steps that take, directly or not, what changed; None where it is not theirs."""
    waiting: list[int] = []
    for path in changes.sources:
        if path not in head["readers"]:
            return None
        waiting += head["readers"][path]
    if changes.outputs:
        makers = marshal.loads(head["makers"])
        for path in changes.outputs:
            maker = _maker(makers, f"/{path}")
            if maker is None:
                return None
            waiting.append(maker)
    found: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += head["users"][number]
    return found


def save(state: str, request: tuple[Any, ...], plan: Plan, expansions: Expansions) -> str:
    """Keep a plan for `recall`, with what its continuations declared; where it cannot be written, do without.

    Gives its stamp.
    """
    rows = [marshal.dumps(_row(step, expansions)) for step in plan.steps]
    rows += [
        marshal.dumps((tuple(one.label), _plain(one.files), tuple(one.folder) if one.folder else None, one.note))
        for one in plan.wanted
    ]
    stamp = os.urandom(8).hex()
    head = marshal.dumps(_head(request, stamp, plan, expansions, [0, *itertools.accumulate(map(len, rows))]))
    quick.write(_place(state, request), len(head).to_bytes(8, "little"), head, *rows)
    return stamp


def _head(
    request: tuple[Any, ...], stamp: str, plan: Plan, expansions: Expansions, starts: Sequence[int]
) -> dict[str, Any]:
    """What is known of a plan without its rows.

    Steps are numbers here: `needs` are the steps that make what each takes, `users` the other way round, `readers`
    those that take a source, `makers` those that make an artifact, by its id, and `askers` the numbers of the wanted
    targets whose files each makes. A continuation stands for all that it declared.
    """
    platform = plan.platform
    makers = {
        artifact.id: number
        for number, step in enumerate(plan.steps)
        for one in _with_declared(step, expansions)
        for artifact in outputs_of(one)
    }
    readers: dict[str, list[int]] = {}
    users: list[list[int]] = [[] for _ in plan.steps]
    needs = []
    for number, step in enumerate(plan.steps):
        taken = {artifact for one in _with_declared(step, expansions) for artifact in inputs_of(one)}
        for path in {artifact.path for artifact in taken if artifact.is_source}:
            readers.setdefault(path, []).append(number)
        made_by = {_maker(makers, artifact.id) for artifact in taken if not artifact.is_source} - {number, None}
        needs.append(sorted(one for one in made_by if one is not None))
        for one in needs[-1]:
            users[one].append(number)
    askers: dict[int, list[int]] = {}
    for number, target in enumerate(plan.wanted):
        for maker in {_maker(makers, file.id) for file in target.files if not file.is_source} - {None}:
            if maker is not None:
                askers.setdefault(maker, []).append(number)
    return {
        "request": request,
        "stamp": stamp,
        "evidence": (plan.evidence.files, plan.evidence.folders, plan.evidence.machine),
        "platform": (
            *(platform.name, platform.kind, platform.arch, platform.cpu_arch, platform.cpu_flags, platform.options),
        ),
        "skipped": plan.skipped,
        "starts": starts,
        "needs": needs,
        "users": users,
        "readers": readers,
        "askers": askers,
        "makers": marshal.dumps(makers),
    }


def inputs_of(step: Step) -> list[Artifact]:
    """What a step takes, but for text."""
    if isinstance(step, Action):
        return [content for _, content in step.inputs if isinstance(content, Artifact)]
    return list(step.inputs)


def outputs_of(step: Step) -> list[Artifact]:
    """What a step makes, or promises."""
    return [artifact for _, artifact in step.outputs] if isinstance(step, Action) else list(step.outputs)


def _with_declared(step: Step, expansions: Expansions) -> Iterator[Step]:
    """A step, and those it declared."""
    yield step
    if isinstance(step, Continuation) and step.id in expansions:
        for one in expansions[step.id][1]:
            yield from _with_declared(one, expansions)


def _maker(makers: Mapping[str, int], artifact: str) -> int | None:
    """Which step makes an artifact, or the folder around it."""
    while artifact:
        if artifact in makers:
            return makers[artifact]
        artifact = artifact.rpartition("/")[0]
    return None


def content_digest(contents: Iterable[bytes]) -> str:
    """One digest for the contents a continuation reads."""
    return sha256(b"".join(sha256(content).digest() for content in contents)).hexdigest()


def _place(state: str, request: tuple[Any, ...]) -> str:
    return f"{state}/plans.v2/{crc32(repr(request).encode()):08x}"


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


def _actions(row: tuple[Any, ...]) -> Iterator[Action]:
    """The action of a row, or those that a continuation declared."""
    if len(row) == 6:
        for one in row[5][1]:
            yield from _actions(one)
        return
    step = _step(row)
    assert isinstance(step, Action)
    yield step


def _wanted(row: tuple[Any, ...]) -> Wanted:
    label, files, folder, note = row
    return Wanted(Label(*label), tuple(Artifact(*one) for one in files), Artifact(*folder) if folder else None, note)


def _input(content: tuple[Any, ...]) -> Input:
    return Artifact(*content) if len(content) == 3 else Text(*content)


def _expand(inputs: Sequence[Artifact], seen: str, steps: Sequence[tuple[Any, ...]], read: Reader) -> tuple[Step, ...]:
    """What a continuation declared when it last ran, provided it would read the same now."""
    if content_digest(map(read, inputs)) != seen:
        raise PlanStale
    return tuple(map(_step, steps))
