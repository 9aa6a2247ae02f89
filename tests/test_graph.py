"""The graphs of targets and of steps: their edges, their order, and what may not be in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidet_build.action import Action, Artifact, Continuation, Step
from hidet_build.errors import AnalysisError, LoadError
from hidet_build.graph import TargetGraph, action_graph, load
from hidet_build.label import Label, parse_label
from hidet_build.loader import Loader
from hidet_build.platform import parse_target
from hidet_build.workspace import Workspace

BUILD = """\
workspace: {name: w}
targets:
  - {rule: filegroup, name: top, srcs: [":left", ":right", a.txt]}
  - {rule: filegroup, name: left, srcs: [":bottom"]}
  - {rule: filegroup, name: right, srcs: [":bottom", a.txt]}
  - {rule: filegroup, name: bottom, srcs: {select: {cpu: [a.txt], cuda: [":gpu"], default: ["//none:x"]}}}
  - {rule: filegroup, name: gpu}
"""


def loaded(root: Path, *labels: str, platform: str | None = "cpu") -> TargetGraph:
    """The graph below these targets."""
    (root / "BUILD.yaml").write_text(BUILD)
    (root / "a.txt").write_text("")
    workspace = Workspace(str(root))
    roots = [(parse_label(label, ""), None) for label in labels]
    return load(roots, Loader(workspace).package, workspace, platform and parse_target(platform))


def test_a_graph_holds_what_is_needed(tmp_path: Path) -> None:
    """Targets, source files, and where each edge was written."""
    graph = loaded(tmp_path, ":right")
    edge = graph.edges().edges[Label("", "right"), Label("", "a.txt")]

    assert ({"right", "bottom"}, {Label("", "a.txt")}) == ({label.name for label in graph.targets}, graph.sources)
    assert ("srcs", "BUILD.yaml:5:54") == (edge["attribute"], str(edge["location"]))
    assert [Label("", "bottom"), Label("", "a.txt")] == graph.needs(Label("", "right"))


def test_dependencies_come_first(tmp_path: Path) -> None:
    """Whatever order they were asked for in."""
    for roots in ([":top", ":bottom"], [":bottom", ":left", ":top"]):
        names = [target.label.name for target in loaded(tmp_path, *roots).in_order()]

        assert {"bottom", "left", "right", "top"} == set(names)
        assert ("bottom", "top") == (names[0], names[-1])


def test_a_select_counts_by_its_branch(tmp_path: Path) -> None:
    """The others may name what there is not; without a platform, none may."""
    on_cpu = loaded(tmp_path, ":bottom")
    on_gpu = loaded(tmp_path, ":bottom", platform="cuda --arch=sm_90")
    with pytest.raises(LoadError) as caught:
        loaded(tmp_path, ":bottom", platform=None)

    assert [Label("", "a.txt")] == on_cpu.needs(Label("", "bottom"))
    assert [Label("", "gpu")] == on_gpu.needs(Label("", "bottom"))
    assert "no such package '//none': there is no folder 'none'" == caught.value.message


LIBRARIES = """\
workspace: {name: w}
targets:
  - {rule: filegroup, name: files, srcs: [k/tiles.py, k/free.py]}
  - {rule: ir_module, name: matmul, src: k/tiles.py}
  - {rule: py_library, name: tiles, srcs: [k/tiles.py]}
  - {rule: py_library, name: uses, srcs: [k/free.py], deps: [k/tiles.py]}
  - {rule: py_library, name: itself, srcs: [k/free.py], deps: [k/free.py]}
  - {rule: shared_library, name: so, modules: [k/tiles.py]}
  - {rule: alias, name: other, actual: k/free.py}
"""


@pytest.mark.parametrize(
    ("name", "attribute", "hint"),
    [
        ("uses", "deps", "k/tiles.py is in srcs of //:tiles: write ':tiles'"),
        ("itself", "deps", "k/free.py is in srcs of //:uses: write ':uses'"),
        ("so", "modules", "k/tiles.py is in src of //:matmul: write ':matmul'"),
        ("other", "actual", "k/free.py is in srcs of //:files: write ':files'"),
    ],
)
def test_a_file_where_a_target_belongs(tmp_path: Path, name: str, attribute: str, hint: str) -> None:
    """The target to write instead is one that has the file, and that the attribute takes."""
    (tmp_path / "k").mkdir()
    for file in ("tiles.py", "free.py"):
        (tmp_path / "k" / file).write_text("")
    (tmp_path / "BUILD.yaml").write_text(LIBRARIES)
    workspace = Workspace(str(tmp_path))
    with pytest.raises(LoadError) as caught:
        load([(Label("", name), None)], Loader(workspace).package, workspace, parse_target("cpu"))

    assert f"is a file, and `{attribute}` takes targets" in caught.value.message
    assert hint == caught.value.hint


def made(path: str, directory: bool = False) -> Artifact:
    """An output."""
    return Artifact(path, "cpu", directory)


def step(inputs: list[Artifact], *outputs: Artifact, owner: str = "x") -> Action:
    """An action with these inputs and outputs."""
    return Action(
        owner=Label("k", owner),
        mnemonic="Step",
        platform="cpu",
        tool="cxx",
        arguments=("g++",),
        inputs=tuple((artifact.path, artifact) for artifact in inputs),
        outputs=tuple((artifact.path, artifact) for artifact in outputs),
    )


def later(inputs: list[Artifact], *outputs: Artifact) -> Continuation:
    """A continuation with these inputs and outputs."""
    return Continuation(Label("k", "x"), "cpu", tuple(inputs), outputs, lambda _: ())


def test_steps_need_who_makes_their_inputs() -> None:
    """Action or continuation, by name or as a file in a folder; sources are made by nobody."""
    folder = step([Artifact("a.txt")], made("k/x/folder", directory=True))
    waits = later([made("k/x/folder").child("b")], made("k/x/c"), made("k/x/d"))
    last = step([made("k/x/d"), made("k/x/folder", directory=True)], made("k/x/e"))
    graph = action_graph([last, waits, folder])

    assert {(waits.id, folder.id), (last.id, waits.id), (last.id, folder.id)} == set(graph.edges)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([step([], made("k/x/a")), step([], made("k/x/a"), owner="y")], "//k:x and //k:y both make k/x/a"),
        ([step([], made("k/x/a")), later([made("k/x/a")], made("k/x/a"))], "//k:x makes k/x/a twice"),
        ([step([], made("k/x/a", True)), step([], made("k/x/a/b"), owner="y")], "//k:x and //k:y both make k/x/a/b"),
        ([step([], made("k/x/a")), step([], made("k/x/a/b"))], "//k:x makes k/x/a/b twice"),
        ([step([], made("k/x/a", True), made("k/x/a/b"))], "//k:x makes k/x/a/b twice"),
        ([step([made("k/y/a")], made("k/x/a"))], "//k:x: nothing makes k/y/a"),
        ([step([Artifact("k/x/a", "other")], made("k/x/a"))], "//k:x: nothing makes k/x/a"),
        ([later([made("k/x/b")], made("k/x/a"))], "//k:x: nothing makes k/x/b"),
        ([step([made("a")], made("b")), step([made("b")], made("a"))], "//k:x: its actions form a cycle: "),
    ],
)
def test_steps_that_do_not_fit_together(steps: list[Step], message: str) -> None:
    """Refused before anything runs."""
    with pytest.raises(AnalysisError) as caught:
        action_graph(steps)

    assert caught.value.message.startswith(message)
