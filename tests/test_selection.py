"""Which targets patterns mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidet_build.errors import BuildError, ErrorGroup
from hidet_build.label import parse_pattern
from hidet_build.loader import Loader
from hidet_build.platform import parse_target
from hidet_build.selection import Selection, select
from hidet_build.workspace import Workspace


def entry(name: str, more: str = "") -> str:
    """One target."""
    return f"  - {{rule: filegroup, name: {name}{more}}}\n"


FILES = {
    "BUILD.yaml": "workspace: {name: w}\ntargets:\n" + entry("top"),
    "a/BUILD.yaml": "targets:\n"
    + entry("a")
    + entry("b", ", tags: [manual]")
    + entry("gpu", ", compatible_with: [cuda]")
    + entry("v4", ', compatible_with: ["cpu --arch=x86-64-v4"]')
    + entry("any_cpu", ", compatible_with: [cpu]"),
    "a/sub/BUILD.yaml": "targets:\n" + entry("c", ", matrix: {n: [1, 2]}"),
    "a/sub/deep/BUILD.yaml": "targets:\n" + entry("d"),
    "broken/BUILD.yaml": "targets: [\n",
    "empty/BUILD.yaml": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace of a few packages, one of them broken."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def chosen(root: Path, *patterns: str, platform: str = "cpu", package: str = "", keep_going: bool = False) -> Selection:
    """What the patterns come to when typed in the folder of `package`."""
    workspace = Workspace(str(root))
    parsed = [parse_pattern(text, package) for text in patterns]
    return select(parsed, Loader(workspace).package, workspace, parse_target(platform), keep_going)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["//a"], ["//a:a"]),
        (["//a:b", "//a:b"], ["//a:b"]),
        (["//a:all"], ["//a:a", "//a:any_cpu"]),
        (["//a/sub/..."], ["//a/sub:c_1", "//a/sub:c_2", "//a/sub:c", "//a/sub/deep:d"]),
        (["//a/...", "-//a/sub/..."], ["//a:a", "//a:any_cpu"]),
        (["//a/...", "-//a/sub:all", "-//a"], ["//a:any_cpu", "//a/sub/deep:d"]),
        (["-//a", "//a"], ["//a:a"]),
        (["//a:all", "-//a:all", "//a:b"], ["//a:b"]),
        (
            ["//a/sub:c_2", "//:top", "//a/sub/..."],
            ["//a/sub:c_2", "//:top", "//a/sub:c_1", "//a/sub:c", "//a/sub/deep:d"],
        ),
    ],
)
def test_patterns_are_taken_in_order(root: Path, patterns: list[str], expected: list[str]) -> None:
    """Each target once, where it was named first; a minus takes away from what stands before it."""
    assert expected == [str(label) for label in chosen(root, *patterns).labels]


def test_patterns_start_where_the_user_is(root: Path) -> None:
    """Without slashes, or with a colon in front, they are about the package one stands in."""
    found = chosen(root, "a", ":any_cpu", "...", package="a").labels

    assert ["//a:a", "//a:any_cpu", "//a/sub:c_1", "//a/sub:c_2", "//a/sub:c", "//a/sub/deep:d"] == list(
        map(str, found)
    )


@pytest.mark.parametrize(
    ("platform", "expected", "skipped"),
    [
        ("cpu", ["//a:a", "//a:any_cpu"], 2),
        ("cpu --arch=x86-64-v4", ["//a:a", "//a:v4", "//a:any_cpu"], 1),
        ("cuda --arch=sm_90", ["//a:a", "//a:gpu"], 2),
    ],
)
def test_wildcards_pass_over_what_is_for_other_platforms(
    root: Path, platform: str, expected: list[str], skipped: int
) -> None:
    """And say how many that were."""
    selection = chosen(root, "//a:all", platform=platform)

    assert (expected, skipped) == (list(map(str, selection.labels)), selection.skipped)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("//a:gpu", "//a:gpu is for cuda, not for cpu-x86-64-v3"),
        ("//a:c", "no target 'c' in package //a (a/BUILD.yaml)"),
        ("//b:c", "no such package '//b': there is no folder 'b'"),
        ("//b/...", "//b/...: there is no folder b"),
        ("//empty:all", "//empty:all: 0 targets match"),
        ("//broken/...", "not valid YAML: did not find expected node content"),
    ],
)
def test_what_names_nothing_is_an_error(root: Path, pattern: str, message: str) -> None:
    """A typing mistake must not end as a success that built nothing."""
    with pytest.raises(BuildError) as caught:
        chosen(root, "//:top", pattern)

    assert message == caught.value.message


def test_all_mistakes_come_at_once(root: Path) -> None:
    """Each once, though two patterns meet the broken package; without a place first, then by place."""
    with pytest.raises(ErrorGroup) as caught:
        chosen(root, "//a:c", "//broken:x", "//b:c", "//broken/...")

    assert ["no target 'c'", "no such package", "not valid YAML"] == [
        " ".join(error.message.split()[:3]).rstrip(":") for error in caught.value.errors
    ]


def test_keep_going_leaves_out_what_is_wrong(root: Path) -> None:
    """And reports it."""
    selection = chosen(root, "//a:c", "//...", "//b:c", keep_going=True)

    assert ["//:top", "//a:a", "//a:any_cpu"] == list(map(str, selection.labels))[:3]
    assert 3 == len(selection.errors)


@pytest.mark.parametrize("name", ["cuda", "cuda-sm_90", "cuda-sm_90a", "cuda --arch=sm_90", "cuda --arch=sm_90a"])
def test_every_spelling_of_a_platform_counts(tmp_path: Path, name: str) -> None:
    """A target is compatible with its platforms however they are written."""
    (tmp_path / "BUILD.yaml").write_text(
        "workspace: {name: w}\ntargets:\n" + entry("hopper", f", compatible_with: [{name!r}]")
    )

    hopper, ampere = (chosen(tmp_path, "//:all", platform=f"cuda --arch={arch}") for arch in ("sm_90", "sm_80"))

    assert 0 == hopper.skipped
    assert (0 if name == "cuda" else 1) == ampere.skipped
