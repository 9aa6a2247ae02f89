"""What rules get for their attributes, and what dependents get of rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidet_build.action import Action
from hidet_build.errors import AnalysisError, LoadError
from hidet_build.label import Label
from tests.declared import analyzed

HEAD = "workspace: {name: w}\npackage: {visibility: ['//visibility:public']}\n"
RULES = '''\
from dataclasses import dataclass

from hidet_build.rule import Context, DefaultInfo, Provider, attr, rule


@dataclass(frozen=True)
class ShownInfo(Provider):
    shown: str


@rule(
    text=attr.string(),
    number=attr.integer(default=3),
    flag=attr.boolean(),
    words=attr.strings(),
    file=attr.file(),
    files=attr.files(),
    label=attr.label(),
    labels=attr.labels(),
    shown=attr.labels(provides=ShownInfo),
    map=attr.string_map(),
    data=attr.data(),
)
def show(ctx: Context):
    """Says in an action what it was given."""
    attrs = ctx.attrs
    told = {
        "label": attrs.label and str(attrs.label.label),
        "labels": [str(one.label) for one in attrs.labels],
        "shown": [str(one.label) for one in attrs.shown],
        "file": attrs.file and attrs.file.id,
        "files": [one.id for one in attrs.files],
    }
    told |= {name: getattr(attrs, name) for name in ("text", "number", "flag", "words", "map", "data")}
    out = ctx.output("out.txt")
    ctx.action("Show", tool="command:sh", arguments=["sh", repr(told)], inputs={}, outputs={"out.txt": out})
    return [DefaultInfo((out,)), ShownInfo(repr(told))]
'''


def shown(root: Path, text: str, name: str = "x", platform: str = "cpu") -> dict[str, object]:
    """What the rule `show` got for the target `name`."""
    for path in ("a.txt", "b.txt", "sub/c.txt"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    (root / "show.py").write_text(RULES)
    (root / "BUILD.yaml").write_text(f'{HEAD}load: [":show.py"]\ntargets:\n{text}')
    (step,) = analyzed(root, f"//:{name}", platform=platform).steps[Label("", name)]
    assert isinstance(step, Action)
    told: dict[str, object] = eval(step.arguments[1])
    return told


def test_defaults(tmp_path: Path) -> None:
    """Every attribute is there, whether or not it is written."""
    strings = {"text": "", "words": (), "map": ()}
    labels = {"label": None, "labels": [], "shown": [], "file": None, "files": []}

    assert {**strings, **labels, "number": 3, "flag": False, "data": {}} == shown(
        tmp_path, "  - {rule: show, name: x}\n"
    )


def test_values(tmp_path: Path) -> None:
    """Scalars by the attribute's type, files and labels resolved."""
    found = shown(
        tmp_path,
        "  - {rule: filegroup, name: g, srcs: [a.txt, sub/c.txt]}\n  - {rule: show, name: y}\n"
        "  - {rule: show, name: x, text: 1.10, number: 7, flag: true, words: [no, 010], file: ':y', label: ':g',\n"
        "     files: [b.txt, ':g', a.txt], labels: [':y', ':g'], map: {a: 1.0}, data: {a: 1.0, b: [on, null]}}\n",
    )

    assert ("1.10", 7, True, ("no", "010"), (("a", "1.0"),), {"a": 1.0, "b": ["on", None]}) == tuple(
        found[name] for name in ("text", "number", "flag", "words", "map", "data")
    )
    assert ("/cpu-x86-64-v3/y/out.txt", "//:g", ["//:y", "//:g"]) == (found["file"], found["label"], found["labels"])
    assert ["b.txt", "a.txt", "sub/c.txt"] == found["files"]


def test_an_alias_is_what_it_stands_for(tmp_path: Path) -> None:
    """Over any number of names, for files and for providers; the rule sees the name that was written."""
    found = shown(
        tmp_path,
        "  - {rule: show, name: y}\n  - {rule: alias, name: one, actual: ':y'}\n"
        "  - {rule: alias, name: two, actual: ':one'}\n"
        "  - {rule: show, name: x, files: [':two'], shown: [':two'], label: ':one'}\n",
    )

    assert (["/cpu-x86-64-v3/y/out.txt"], ["//:two"], "//:one") == (found["files"], found["shown"], found["label"])


MATRIX = """\
  - rule: show
    name: tile
    matrix:
      m: [64, 128]
      fast: [true]
      kind: [f16, 010x]
      exclude: [{m: 128, kind: 010x}]
      include: [{m: 1, fast: false, kind: last}]
    text: "${kind}"
    number: "${m}"
    flag: "${fast}"
    words: ["m${m}", "${kind}"]
    data: {m: "${m}", text: "m=${m}", fast: "${fast}"}
"""


@pytest.mark.parametrize(
    ("name", "text", "m", "fast"),
    [
        ("tile_64_true_f16", "f16", 64, True),
        ("tile_64_true_010x", "010x", 64, True),
        ("tile_128_true_f16", "f16", 128, True),
        ("tile_1_false_last", "last", 1, False),
    ],
)
def test_a_matrix_keeps_types(tmp_path: Path, name: str, text: str, m: int, fast: bool) -> None:
    """A value that stands alone is what it was in the matrix; inside a text it is its own text."""
    found = shown(tmp_path, MATRIX, name)

    assert (text, m, fast, (f"m{m}", text)) == tuple(found[one] for one in ("text", "number", "flag", "words"))
    assert {"m": m, "text": f"m={m}", "fast": fast} == found["data"]


def test_a_group_stands_for_all_instances(tmp_path: Path) -> None:
    """Where a list of labels or files is wanted, also through an alias and in a group of its own, each once."""
    tiles = ["//:tile_64_true_f16", "//:tile_64_true_010x", "//:tile_128_true_f16", "//:tile_1_false_last"]
    found = shown(
        tmp_path,
        MATRIX + "  - {rule: alias, name: other, actual: ':tile'}\n"
        "  - {rule: group, name: more, members: [':other', ':y']}\n  - {rule: show, name: y}\n"
        "  - {rule: show, name: x, shown: [':more', ':tile'], labels: [':other'], files: [':tile']}\n",
    )

    assert ([*tiles, "//:y"], tiles) == (found["shown"], found["labels"])
    assert [f"/cpu-x86-64-v3/{label[3:]}/out.txt" for label in tiles] == found["files"]


def test_an_excluded_instance_does_not_exist(tmp_path: Path) -> None:
    """It can be named as little as any other target there is not."""
    with pytest.raises(LoadError) as caught:
        shown(tmp_path, MATRIX, "tile_128_true_010x")

    assert "no target 'tile_128_true_010x' in package // (BUILD.yaml)" == caught.value.message


SELECT = """\
  - rule: show
    name: x
    text: {select: {cuda: gpu, cuda-sm_90: hopper, "cpu --arch=x86-64-v4": wide, cpu: narrow}}
    files: {select: {cuda: [a.txt], default: [b.txt, ":y"]}}
  - {rule: show, name: y}
"""


@pytest.mark.parametrize(
    ("platform", "text", "files"),
    [
        ("cpu", "narrow", ["b.txt", "/cpu-x86-64-v3/y/out.txt"]),
        ("cpu --arch=x86-64-v4", "wide", ["b.txt", "/cpu-x86-64-v4/y/out.txt"]),
        ("cuda --arch=sm_80", "gpu", ["a.txt"]),
        ("cuda --arch=sm_90", "hopper", ["a.txt"]),
    ],
)
def test_a_select_takes_the_most_specific_branch(tmp_path: Path, platform: str, text: str, files: list[str]) -> None:
    """The default where no other fits."""
    found = shown(tmp_path, SELECT, platform=platform)

    assert (text, files) == (found["text"], found["files"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "  - {rule: show, name: x, shown: [':g']}\n",
            "//:g is a filegroup; `shown` takes show targets",
        ),
        ("  - {rule: show, name: x, file: ':g'}\n", "file: //:g makes 2 files, not one"),
        ("  - {rule: show, name: x, file: ':none'}\n", "//:none (rule filegroup) makes no files"),
        (
            "  - {rule: show, name: x, shown: [':both']}\n",
            "//:g is a filegroup; `shown` takes show targets",
        ),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_named(tmp_path: Path, text: str, message: str) -> None:
    """A member of a group too: it is named by the group's name."""
    more = (
        "  - {rule: filegroup, name: g, srcs: [a.txt, b.txt]}\n  - {rule: filegroup, name: none}\n"
        "  - {rule: group, name: both, members: [':g']}\n"
    )
    with pytest.raises(AnalysisError) as caught:
        shown(tmp_path, text + more)

    assert (message, 5) == (caught.value.message[: len(message)], caught.value.location and caught.value.location.line)


def test_what_needs_a_broken_target_says_nothing(tmp_path: Path) -> None:
    """One mistake is told once, however many targets are above it."""
    with pytest.raises(AnalysisError) as caught:
        shown(
            tmp_path,
            "  - {rule: show, name: x, labels: [':y']}\n  - {rule: show, name: y, labels: [':z']}\n"
            "  - {rule: show, name: z, file: ':g'}\n  - {rule: filegroup, name: g}\n",
        )

    assert "//:g (rule filegroup) makes no files" == caught.value.message
