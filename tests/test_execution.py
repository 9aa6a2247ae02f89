"""Execution roots: used again only as they were made, and what is said of a process that lives on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hidet_build.action import Action, Artifact, Text
from hidet_build.execution import ExecutionRoots, Layout
from hidet_build.label import Label


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[ExecutionRoots]:
    """The execution roots of one invocation."""
    made = ExecutionRoots(str(tmp_path / "state"))
    yield made
    made.close()


def reading(*paths: str) -> Action:
    """An action with texts at these paths and an output at the top."""
    inputs = tuple((path, Text(path)) for path in sorted(paths))
    outputs = (("out.txt", Artifact("k/x/out.txt", "cpu")),)
    return Action(Label("k", "x"), "Copy", "cpu", "command:cp", ("cp",), inputs, outputs)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["a/1", "b/2"], ["a/1", "c/2"]),
        (["a/deep/1"], ["b/1"]),
        (["a/1"], ["a/deep/1"]),
        (["a/deep/1"], ["a/1"]),
        (["a/1"], ["b/deep/er/1"]),
        (["a/deep/1", "b/1"], ["b/deep/1", "b/1"]),
        ([], ["a/1"]),
        (["a/1"], ["1"]),
    ],
)
def test_root_used_again_holds_the_inputs(
    roots: ExecutionRoots, tmp_path: Path, before: list[str], after: list[str]
) -> None:
    """Whatever the action before had, the next one finds its own inputs and folders and nothing else."""
    layout = Layout(str(tmp_path), str(tmp_path / "out"))
    place = roots.new()
    place.stage(reading(*before), layout, {}, {})
    Path(place.root, "left over").write_text("")
    Path(place.log).write_text("")
    roots.give_back(place)
    again = roots.new()
    again.stage(reading(*after), layout, {}, {})
    found = {str(path.relative_to(again.root)) for path in Path(again.root).rglob("*")}
    folders = {str(folder) for path in after for folder in Path(path).parents} - {"."}

    assert place is again
    assert {*after, *folders} == found
    assert all(path == Path(again.root, path).read_text() for path in after)


def test_log_is_used_again(roots: ExecutionRoots) -> None:
    """The file of what a command said is that of the next one, when nobody can write to it any more."""
    place = roots.new()
    Path(place.log).write_text("said\n")
    inode = os.stat(place.log).st_ino
    roots.give_back(place)

    assert inode == os.stat(roots.new().log).st_ino


def test_log_of_a_process_that_lives_on(roots: ExecutionRoots, tmp_path: Path) -> None:
    """What a process says after its action has ended reaches no other action's text."""
    place = roots.new()
    with open(place.log, "wb") as log:
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
    roots.give_back(place)
    again = roots.new()
    Path(again.log).write_text("of the next\n")
    process.communicate(b"said late\n")

    assert "of the next\n" == Path(again.log).read_text()
    assert ["said late\n"] == [path.read_text() for path in tmp_path.glob("state/exec/*/logs/*")]


def test_root_with_something_beside_it_is_not_used_again(roots: ExecutionRoots) -> None:
    """A command that wrote outside its root leaves nothing to the next action."""
    place = roots.new()
    Path(place.log).write_text("")
    Path(place.folder, "beside").write_text("")
    roots.give_back(place)

    assert place.folder != roots.new().folder
