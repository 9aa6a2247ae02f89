"""Saved plans: every kind of step comes back as it was, and a plan is only taken up while what it rests on holds."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hidet_build.action import Action, Artifact, Continuation, Reader, Step, Text
from hidet_build.errors import LoadError, Location
from hidet_build.files import mark
from hidet_build.label import Label
from hidet_build.plan import Evidence, Plan, PlanStale, Wanted, content_digest, listing, recall, save
from hidet_build.platform import Platform, parse_target

REQUEST = ("//k:x", "", 1, None)
OWNER = Label("k", "x")
PLACE = Location("k/BUILD.yaml", 2, 5, "  - {rule: mine, name: ä}")


def made(name: str, directory: bool = False) -> Artifact:
    """An output of //k:x."""
    return Artifact(f"k/x/{name}", "cpu-x86-64-v3", directory)


ACTION = Action(
    owner=OWNER,
    mnemonic="Copy",
    platform="cpu-x86-64-v3",
    tool="command:cp",
    arguments=("cp", "a", "ü", ""),
    inputs=(("a", Artifact("k/a.txt")), ("b", made("folder", directory=True)), ("c", Text("content\n"))),
    outputs=(("d", made("d")), ("e", made("e", directory=True))),
    environment=(("LC_ALL", "C"),),
    working_directory="k",
    trees=("hidet/include",),
    tags=("local", "no-cache"),
    location=PLACE,
)
BARE = Action(OWNER, "Bare", "cpu-x86-64-v3", "cxx", ("g++",), (), (("o", made("o")),))


def continuation(inputs: tuple[Artifact, ...], outputs: tuple[Artifact, ...], *steps: Step) -> Continuation:
    """One that declares these steps whatever it reads."""
    return Continuation(OWNER, "cpu-x86-64-v3", inputs, outputs, lambda _: steps, PLACE)


def plan(*steps: Step, evidence: Evidence | None = None) -> Plan:
    """A plan of these steps."""
    wanted = (Wanted(OWNER, (made("d"), Artifact("k/a.txt")), made("", True)), Wanted(Label("", "y"), (), None))
    return Plan(parse_target("cpu"), wanted, steps, evidence or Evidence(), 3)


def contents(artifact: Artifact) -> bytes:
    """What there is to read."""
    return f"content of {artifact.path}".encode()


def seen(step: Continuation) -> str:
    """The digest of that."""
    return content_digest(map(contents, step.inputs))


def test_actions_come_back(tmp_path: Path) -> None:
    """With every field, text inputs and folders, and without what is not there."""
    before = plan(ACTION, BARE)
    save(str(tmp_path), REQUEST, before, {})

    assert before == recall(str(tmp_path), REQUEST)


@pytest.mark.parametrize(
    "platform",
    [
        parse_target("cuda --arch=sm_90"),
        Platform("cpu-native", "cpu", "", "native", ("-march=znver4", "-mno-avx")),
    ],
)
def test_platforms_come_back(tmp_path: Path, platform: Platform) -> None:
    """A GPU's, and what `native` was resolved to."""
    before = replace(plan(BARE), platform=platform)
    save(str(tmp_path), REQUEST, before, {})

    assert before == recall(str(tmp_path), REQUEST)


def test_continuations_come_back_with_what_they_declared(tmp_path: Path) -> None:
    """Nested ones too, each under the digest of what it read."""
    inner = continuation((made("b"), made("c")), (made("d"),), ACTION)
    outer = continuation((made("a"),), (made("d"),), BARE, inner)
    save(
        str(tmp_path),
        REQUEST,
        plan(outer),
        {outer.id: (seen(outer), (BARE, inner)), inner.id: (seen(inner), (ACTION,))},
    )
    found = recall(str(tmp_path), REQUEST)
    assert found is not None
    (step,) = found.steps
    assert isinstance(step, Continuation)
    bare, nested = step.function(contents)
    assert isinstance(nested, Continuation)

    assert (outer.id, outer.owner, outer.location) == (step.id, step.owner, step.location)
    assert (BARE, inner.id) == (bare, nested.id)
    assert (ACTION,) == nested.function(contents)


def test_a_continuation_that_reads_something_else_is_stale(tmp_path: Path) -> None:
    """What it declared then no longer counts."""
    outer = continuation((made("a"), made("b")), (made("d"),), ACTION)
    save(str(tmp_path), REQUEST, plan(outer), {outer.id: (seen(outer), (ACTION,))})
    function = _recalled(tmp_path)

    def changed(artifact: Artifact) -> bytes:
        return b"other" if artifact == made("b") else contents(artifact)

    with pytest.raises(PlanStale):
        function(changed)

    assert (ACTION,) == function(contents)


def test_a_continuation_that_never_ran_is_stale(tmp_path: Path) -> None:
    """A build that failed before it is saved without its steps: they are not none, they are unknown."""
    outer = continuation((made("a"),), (made("d"),), ACTION)
    save(str(tmp_path), REQUEST, plan(outer), {})
    function = _recalled(tmp_path)

    with pytest.raises(PlanStale):
        function(lambda _: b"")


def _recalled(state: Path) -> Callable[[Reader], tuple[Step, ...]]:
    found = recall(str(state), REQUEST)
    assert found is not None
    (step,) = found.steps
    assert isinstance(step, Continuation)
    return step.function


def test_another_request_has_another_plan(tmp_path: Path) -> None:
    """Requests are compared whole, whatever their place on disk."""
    save(str(tmp_path), REQUEST, plan(BARE), {})
    (place,) = (tmp_path / "plans.v2").iterdir()
    other = ("//k:y", "", 1, None)
    save(str(tmp_path), other, plan(ACTION), {})
    (place_of_other,) = set((tmp_path / "plans.v2").iterdir()) - {place}
    os.replace(place_of_other, place)

    assert None is recall(str(tmp_path), REQUEST)
    assert None is recall(str(tmp_path), other)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"garbage",
        b"\x00" * 100,
        marshal.dumps(None),
        marshal.dumps(5),
        marshal.dumps(()),
        marshal.dumps((REQUEST,)),
        marshal.dumps((REQUEST, ((), ()))),
        marshal.dumps((REQUEST, ((), ()), (), (), (), 0)),
        marshal.dumps((REQUEST, ((), ()), ("a", "b"), (("x",),), (), 0)),
        marshal.dumps((REQUEST, ((), ()), ("a", "b"), (), ((1, 2),), 0)),
        marshal.dumps((REQUEST, ((), ()), ("a", "b"), (), (1,), 0)),
        marshal.dumps((REQUEST, 7, ("a", "b"), (), (), 0)),
        marshal.dumps((REQUEST, ((1,), ()), ("a", "b"), (), (), 0)),
    ],
    ids=range(14),
)
def test_garbage_is_no_plan(tmp_path: Path, garbage: bytes) -> None:
    """It costs planning anew, and nothing else."""
    save(str(tmp_path), REQUEST, plan(BARE), {})
    (place,) = (tmp_path / "plans.v2").iterdir()
    place.write_bytes(garbage)

    assert None is recall(str(tmp_path), REQUEST)


def test_a_plan_cut_short_is_no_plan(tmp_path: Path) -> None:
    """At whatever byte."""
    save(str(tmp_path), REQUEST, plan(ACTION, continuation((made("a"),), (made("d"),))), {})
    (place,) = (tmp_path / "plans.v2").iterdir()
    whole = place.read_bytes()
    found = []
    for length in range(len(whole)):
        place.write_bytes(whole[:length])
        found.append(recall(str(tmp_path), REQUEST))

    assert [None] * len(whole) == found


def test_a_plan_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    """A read-only or full output folder must not fail a build that succeeded."""
    (tmp_path / "plans.v2").write_text("a file where the folder should be")
    save(str(tmp_path), REQUEST, plan(BARE), {})

    assert None is recall(str(tmp_path), REQUEST)


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        (lambda _: None, True),
        (lambda root: (root / "BUILD.yaml").write_text("other content"), False),
        (lambda root: (root / "BUILD.yaml").unlink(), False),
        (lambda root: _touch(root / "BUILD.yaml"), False),
        (lambda root: (root / "ignore").write_text(""), False),
        (lambda root: (root / "k" / "BUILD.yaml").write_text(""), False),
        (lambda root: (root / "k" / "b.py").write_text(""), False),
        (lambda root: (root / "k" / "a.py").unlink(), False),
        (lambda root: (root / "k" / "a.py").write_text("other content"), True),
        (lambda root: (root / "k" / "deep").mkdir(), False),
        (lambda root: (root / "other.txt").write_text(""), True),
        (lambda root: (root / "k" / "hidet-out").mkdir(), True),
    ],
    ids=range(12),
)
def test_evidence(tmp_path: Path, change: Callable[[Path], object], holds: bool) -> None:
    """Files count by their stat data, missing ones too; folders by what they hold, not by their time."""
    (tmp_path / "k").mkdir()
    (tmp_path / "BUILD.yaml").write_text("content")
    (tmp_path / "k" / "a.py").write_text("content")
    files = tuple((path, mark(path)) for path in (str(tmp_path / "BUILD.yaml"), str(tmp_path / "ignore")))
    evidence = Evidence(files, ((str(tmp_path / "k"), listing(str(tmp_path / "k"))),))
    state = tmp_path / "state"
    before = plan(BARE, evidence=evidence)
    save(str(state), REQUEST, before, {})
    change(tmp_path)

    assert holds is evidence.holds()
    assert (before if holds else None) == recall(str(state), REQUEST)


def test_errors_do_not_travel() -> None:
    """A plan with errors is for this build alone: nothing of a saved one could say them again."""
    assert () == plan(BARE).errors
    assert [LoadError] == [type(error) for error in replace(plan(BARE), errors=(LoadError("x"),)).errors]
