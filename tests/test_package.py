"""BUILD.yaml files to packages: typed values, selects, globs, matrices, and the text of every mistake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hidet_build.errors import BuildError, LoadError, Location
from hidet_build.label import Label
from hidet_build.node import FASTEST_LOADER
from hidet_build.package import PRIVATE, PUBLIC, Package, Select, load_package, load_settings, resolve_select
from hidet_build.platform import Platform, parse_target
from hidet_build.rule import Context, Provider, Reference, attr, rule
from hidet_build.ruleset import RuleLoader, RuleSet
from hidet_build.workspace import Workspace

GOLDEN = Path(__file__).parent / "golden" / "load"
# Where the words are the YAML parser's own.
PARSER_WORDS = ("tab", "variable_without_quotes")


@rule(srcs=attr.files(), deps=attr.labels())
def library(ctx: Context) -> Sequence[Provider]:
    """Files and dependencies."""
    return ctx.steps() and []


@rule(
    src=attr.file(required=True, doc="the file that holds the entry"),
    entry=attr.string(default="main"),
    stages=attr.integer(default=2),
    fast=attr.boolean(),
    args=attr.data(),
    deps=attr.labels(),
    defines=attr.string_map(),
    copts=attr.strings(),
    target=attr.string(),
    output_kind=attr.string(default=".so", choices=(".so", ".o")),
)
def module(ctx: Context) -> Sequence[Provider]:
    """One attribute of nearly every kind."""
    return ctx.steps() and []


@rule(actual=attr.label(required=True))
def alias(ctx: Context) -> Sequence[Provider]:
    """One label."""
    return ctx.steps() and []


@rule(members=attr.labels())
def group(ctx: Context) -> Sequence[Provider]:
    """What a matrix is called as a whole."""
    return ctx.steps() and []


RULES = {found.name: found for found in (library, module, alias, group)}


def load(root: Path, package: str = "") -> Package:
    """The package as a new build loads it."""
    workspace = Workspace(str(root))
    return load_package(workspace, package, RuleLoader(workspace, RULES).load)


def load_text(root: Path, text: str) -> Package:
    """The root package with this BUILD.yaml."""
    (root / "BUILD.yaml").write_text(text)
    return load(root)


def target(root: Path, attributes: str, kind: str = "module") -> Any:
    """The values of one target with these attributes."""
    body = "".join(f"    {line}\n" for line in attributes.splitlines())
    return load_text(root, f"targets:\n  - rule: {kind}\n    name: x\n{body}").targets["x"]


@pytest.mark.parametrize("mistake", sorted(path.name for path in GOLDEN.iterdir()))
def test_each_mistake_is_explained(mistake: str, update_golden: bool) -> None:
    """One tiny broken package a mistake; its whole message, and all mistakes of a file in it, are a golden file."""
    if mistake in PARSER_WORDS and FASTEST_LOADER is yaml.SafeLoader:
        pytest.skip("PyYAML has no C parser here")
    with pytest.raises(BuildError) as caught:
        load(GOLDEN / mistake)
    actual = f"{caught.value}\n"
    golden = GOLDEN / mistake / "expected.txt"
    if update_golden:
        golden.write_text(actual)

    assert golden.read_text() == actual


def test_values_are_typed_by_their_attributes(tmp_path: Path) -> None:
    """Each kind as its rule gets it, with places, and defaults for the rest."""
    found = target(
        tmp_path,
        "src: matmul.py\nentry: no\nstages: 3\nfast: true\nargs: {m: 512, scale: 1.10, name: 1.2.3, on: null}\n"
        "deps: [':tiles', '//a/b', '//a:c', plain]\ndefines: {A: 010, B: ''}\ncopts: [-O3, 1.10, 12:30]",
    )
    labels = [reference.label for reference in found.values["deps"]]

    assert {
        "entry": "no",
        "stages": 3,
        "fast": True,
        "args": {"m": 512, "scale": 1.1, "name": "1.2.3", "on": None},
        "defines": (("A", "010"), ("B", "")),
        "copts": ("-O3", "1.10", "12:30"),
        "target": "",
        "output_kind": ".so",
    } == {key: value for key, value in found.values.items() if key not in ("src", "deps")}
    assert Reference(Label("", "matmul.py"), Location("BUILD.yaml", 4, 10, "    src: matmul.py")) == found.values["src"]
    assert [Label("", "tiles"), Label("a/b", "b"), Label("a", "c"), Label("", "plain")] == labels


def test_what_is_not_written_has_its_default_and_no_place(tmp_path: Path) -> None:
    """Defaults are not shared between targets, and only what is written has a place."""
    found = target(tmp_path, "src: a.py\ntags: [mine, manual]\ncompatible_with: [cpu, cuda-sm_90]")
    other = target(tmp_path, "src: a.py")

    assert {} == found.values["args"]
    assert found.values["args"] is not other.values["args"]
    assert ["compatible_with", "name", "rule", "src", "tags"] == sorted(found.locations)
    assert (("mine", "manual"), ("cpu", "cuda-sm_90"), (PRIVATE,)) == (
        found.tags,
        found.compatible_with,
        found.visibility,
    )


def test_a_package_says_what_it_was_made_of(tmp_path: Path) -> None:
    """Its files, the folders its globs listed, its loads and its settings."""
    (tmp_path / "k" / "sub").mkdir(parents=True)
    (tmp_path / "k" / "sub" / "a.py").write_text("")
    (tmp_path / "k" / "own.py").write_text("from hidet_build.rule import rule\n@rule()\ndef own(ctx): ...\n")
    (tmp_path / "k" / "BUILD.yaml").write_text(
        'package: {visibility: ["//a:__subpackages__"]}\nload: [own.py]\ntargets:\n'
        "  - {rule: own, name: one}\n"
        '  - {rule: library, name: two, srcs: [{glob: ["**/*.py"]}], visibility: ["//visibility:public"]}\n'
    )
    package = load(tmp_path, "k")

    assert ("k", "k/BUILD.yaml", ("//a:__subpackages__",)) == (package.name, package.path, package.default_visibility)
    assert (("k", "k/sub"), (".hidetbuildignore", "k/BUILD.yaml")) == (package.folders, package.files)
    assert [Label("k", "own.py")] == [reference.label for reference in package.loads]
    assert [("//a:__subpackages__",), (PUBLIC,)] == [found.visibility for found in package.targets.values()]
    assert [Label("k", "own.py"), Label("k", "sub/a.py")] == [
        reference.label for reference in package.targets["two"].values["srcs"]
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "\ufefftargets: []\r\n", "targets: []\nload: []\n"])
def test_an_empty_package_is_fine(tmp_path: Path, text: str) -> None:
    """A folder may be a package without targets."""
    assert {} == load_text(tmp_path, text).targets


def test_settings_are_read_without_the_targets(tmp_path: Path) -> None:
    """The name and platform of a workspace do not wait for its targets to be right."""
    (tmp_path / "BUILD.yaml").write_text("workspace: {name: w, platform: cuda --arch=sm_90}\ntargets: [wrong]\n")
    settings = load_settings(Workspace(str(tmp_path)))

    assert ("w", "cuda --arch=sm_90", 1) == (settings.name, settings.platform, settings.location.line)


@pytest.mark.parametrize(
    ("package", "message", "hint"),
    [
        ("kernel", "no such package '//kernel': there is no folder 'kernel'", "did you mean '//kernels'?"),
        ("fwd", "no such package '//fwd': there is no folder 'fwd'", "did you mean '//kernels/fwd'?"),
        ("plain", "no such package '//plain': there is no file plain/BUILD.yaml", None),
        (
            "yml",
            "no such package '//yml': there is no file yml/BUILD.yaml",
            "the file must be called BUILD.yaml, not BUILD.yml",
        ),
        ("inner/a", "no such package '//inner/a': it is in another workspace (inner)", None),
        (".git", "no such package '//.git': it is in a hidden folder (.git)", None),
    ],
)
def test_a_missing_package_says_what_is_missing(tmp_path: Path, package: str, message: str, hint: str | None) -> None:
    """At the place that asked for it, with names nearby."""
    for name in ("kernels/BUILD.yaml", "kernels/fwd/BUILD.yaml", "plain/x", "yml/BUILD.yml", "inner/a/BUILD.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "inner" / "BUILD.yaml").write_text("workspace: {name: inner}\n")
    (tmp_path / ".git").mkdir()
    place = Location("BUILD.yaml", 7, 9)

    with pytest.raises(LoadError) as caught:
        load_package(Workspace(str(tmp_path)), package, lambda _modules, _errors: RuleSet(RULES), place)

    assert (message, hint, place) == (caught.value.message, caught.value.hint, caught.value.location)


def test_a_glob_stands_for_files_in_lists(tmp_path: Path) -> None:
    """As a whole value or an element, of files and of strings, once with what is written out."""
    for name in ("a.py", "b.py", "c.cc"):
        (tmp_path / name).write_text("")
    text = "srcs: [b.py, {glob: ['*.py']}, ':gen', {glob: ['*.x'], allow_empty: true}]\ndeps: {glob: ['*.cc']}"
    found = target(tmp_path, text, "library").values
    strings = target(tmp_path, "src: a.py\ncopts: [-x, glob: ['*.py'], -y]").values

    assert ["b.py", "a.py", "gen"] == [reference.label.name for reference in found["srcs"]]
    assert ["c.cc"] == [reference.label.name for reference in found["deps"]]
    assert ("-x", "a.py", "b.py", "-y") == strings["copts"]


CPU = parse_target("cpu --arch=x86-64-v4")
HOPPER = parse_target("cuda --arch=sm_90")


@pytest.mark.parametrize(
    ("branches", "platform", "expected"),
    [
        ("cpu: 1, default: 2", CPU, 1),
        ("cpu: 1, default: 2", HOPPER, 2),
        ("default: 2, cpu: 1, cpu-x86-64-v4: 3", CPU, 3),
        ("cpu: 1, 'cpu   --arch=x86-64-v4': 3", CPU, 3),
        ("cpu: 1, cpu-x86-64-v3: 3", CPU, 1),
        ("cuda: 1, cuda --arch=sm_90: 3", HOPPER, 3),
        ("cuda: 1, cuda-sm_80: 3", HOPPER, 1),
        ("cuda: 1, cuda-sm_90: 3", parse_target("cuda --arch=sm_90 --cpu_arch=x86-64-v4"), 3),
        ("cuda: 1, cuda --arch=sm_90 --cpu_arch=x86-64-v4: 3", HOPPER, 1),
        ("cuda: 1, cuda --arch=sm_90a: 3", HOPPER, 3),
        ("cuda: 1, cuda-sm_90a: 3", HOPPER, 3),
        ("cpu: 1, cpu-x86-64-v4: 3", Platform("mine", "cpu", "", "x86-64-v4"), 3),
    ],
)
def test_the_most_specific_branch_is_taken(tmp_path: Path, branches: str, platform: Platform, expected: int) -> None:
    """A platform in full before its kind, its kind before `default`, in any order and spelling."""
    select = target(tmp_path, f"src: a.py\nstages: {{select: {{{branches}}}}}").values["stages"]

    assert expected == resolve_select(select, platform, "stages")


def test_a_select_without_a_branch_says_what_there_is(tmp_path: Path) -> None:
    """The platform, the branches, and what to add."""
    text = "src: a.py\nstages: {select: {cuda-sm_90: 1, //p:big: 2}}"
    select = target(tmp_path, text).values["stages"]

    with pytest.raises(LoadError) as caught:
        resolve_select(select, CPU, "stages")

    assert (
        "'stages' has no branch for the platform cpu-x86-64-v4 (cpu --arch=x86-64-v4), only cuda-sm_90, //p:big",
        "add a branch `default:` or `cpu:`",
        Location("BUILD.yaml", 5, 13, "    stages: {select: {cuda-sm_90: 1, //p:big: 2}}"),
    ) == (caught.value.message, caught.value.hint, caught.value.location)


def test_a_select_may_stand_for_any_value(tmp_path: Path) -> None:
    """Branches are typed as the attribute is; in data, `select` beside other keys is a key like any other."""
    values = target(
        tmp_path,
        "src: {select: {cpu: a.py, default: b.py}}\ndeps: {select: {default: [':a']}}\n"
        "args: {select: {cpu: {m: 1}, default: {}}}\ndefines: {select: x, A: b}\nfast: {select: {default: true}}",
    ).values
    taken = {key: resolve_select(value, CPU, key) for key, value in values.items() if isinstance(value, Select)}

    assert (Label("", "a.py"), [Label("", "a")]) == (
        taken["src"].label,
        [reference.label for reference in taken["deps"]],
    )
    assert ({"m": 1}, True, (("select", "x"), ("A", "b"))) == (taken["args"], taken["fast"], values["defines"])


def test_data_may_have_an_argument_called_select(tmp_path: Path) -> None:
    """Only a mapping of branches is a select there."""
    assert {"select": 5} == target(tmp_path, "src: a.py\nargs: {select: 5}").values["args"]


def test_a_matrix_makes_a_target_for_each_combination(tmp_path: Path) -> None:
    """Names in the order of the keys, values with their types, and a group of all."""
    package = load_text(
        tmp_path,
        "targets:\n  - rule: module\n    name: mm\n    src: mm.py\n    visibility: ['//visibility:public']\n"
        "    tags: [manual]\n"
        "    matrix:\n      tile: [64, 1.10]\n      dtype: [float16, float32]\n"
        "      exclude: [{tile: 64, dtype: float16}]\n      include: [{dtype: on, tile: '8'}]\n"
        "    args: {m: '${tile}', t: '${dtype}', both: '${tile}x'}\n    copts: ['$${x}', '-D${dtype}']\n",
    )
    args = {name: found.values["args"] for name, found in package.targets.items() if name != "mm"}
    whole = package.targets["mm"]

    assert {
        "mm_64_float32": {"m": 64, "t": "float32", "both": "64x"},
        "mm_1.10_float16": {"m": 1.1, "t": "float16", "both": "1.10x"},
        "mm_1.10_float32": {"m": 1.1, "t": "float32", "both": "1.10x"},
        "mm_8_on": {"m": "8", "t": "on", "both": "8x"},
    } == args
    assert ("group", list(args), (PUBLIC,), ("manual",)) == (
        whole.rule.name,
        [member.label.name for member in whole.values["members"]],
        whole.visibility,
        whole.tags,
    )
    assert ("${x}", "-Dfloat32") == package.targets["mm_64_float32"].values["copts"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [("", ["a64", "a8"]), ("group: many", ["a64", "a8", "many"])],
)
def test_instances_may_be_named_by_the_user(tmp_path: Path, extra: str, expected: list[str]) -> None:
    """Then there is a group only where it has a name."""
    package = load_text(
        tmp_path,
        "targets:\n  - rule: library\n    name: a${tile}\n    matrix: {tile: [64, 8]}\n"
        f"    deps: [':b${{tile}}']\n    {extra}\n",
    )

    assert expected == list(package.targets)


def test_an_exclude_may_be_partial_and_include_may_be_all(tmp_path: Path) -> None:
    """A partial mapping takes all that agree; without variables the included combinations are the matrix."""
    partial = load_text(
        tmp_path,
        "targets:\n  - {rule: library, name: p, matrix: {a: [1, 2], b: [3, 4], exclude: [{a: 1}]}}\n"
        "  - {rule: library, name: i, matrix: {include: [{a: 1, b: 2}, {b: 4, a: 3}]}}\n",
    )

    assert ["p_2_3", "p_2_4", "p", "i_1_2", "i_3_4", "i"] == list(partial.targets)


def test_shared_options_come_by_anchor(tmp_path: Path) -> None:
    """Own keys win over merged ones, and one mistake behind an anchor is told once."""
    package = load_text(
        tmp_path,
        "targets:\n  - &base {rule: module, name: a, src: a.py, stages: 3}\n  - {<<: *base, name: b, stages: 4}\n",
    )
    with pytest.raises(BuildError) as caught:
        load_text(
            tmp_path,
            "targets:\n  - {rule: module, name: a, src: a.py, args: &x {m: 010}}\n  - &b {rule: module,"
            " name: b, src: a.py, args: *x}\n",
        )

    assert [("a", 3), ("b", 4)] == [(name, found.values["stages"]) for name, found in package.targets.items()]
    assert 1 == str(caught.value).count("BUILD.yaml:2:")


def test_loading_follows_from_the_files_alone(tmp_path: Path) -> None:
    """Two loads of the same files are equal, whatever lies elsewhere."""
    text = "targets:\n  - {rule: library, name: a, srcs: [{glob: ['*.py']}]}\n"
    (tmp_path / "a.py").write_text("")
    first = load_text(tmp_path, text)
    (tmp_path / "other").mkdir()

    assert first == load_text(tmp_path, text)
