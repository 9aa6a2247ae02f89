"""Workspaces on disk: roots, walks and globs, and what is left out of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hidet_build.errors import ErrorGroup, LoadError, Location
from hidet_build.workspace import Workspace, find_root

Make = Callable[..., Workspace]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes files into the workspace (a path that ends with / is a folder) and gives it."""

    def write(*files: str, **contents: str) -> Workspace:
        for name in files:
            path = tmp_path / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_text("")
        for name, content in contents.items():
            (tmp_path / name.replace("__", "/").replace("_dot_", ".")).write_text(content)
        return Workspace(str(tmp_path))

    return write


@pytest.mark.parametrize(
    "content",
    [
        b"workspace:\n  name: x\n",
        b"workspace: {name: x}",
        b"\xef\xbb\xbfworkspace:\n  name: x\n",
        b"# first\r\npackage: {}\r\nworkspace:\r\n  name: x\r\n",
        b'"workspace": {name: x}\n',
        b'{"workspace": {"name": "x"}}',
        b"{workspace: {name: x}}",
    ],
)
def test_the_root_is_found_upward(tmp_path: Path, content: bytes) -> None:
    """From a folder below, past packages that are no roots, in every spelling of the key."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "BUILD.yaml").write_bytes(content)
    (tmp_path / "a" / "BUILD.yaml").write_text("targets:\n  - rule: x\n    workspace: y\n")

    assert str(tmp_path) == find_root(str(tmp_path / "a" / "b"))


def test_the_nearest_root_counts(tmp_path: Path) -> None:
    """A workspace inside another is one of its own."""
    (tmp_path / "inner" / "a").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "inner"):
        (folder / "BUILD.yaml").write_text("workspace: {name: x}\n")

    assert str(tmp_path / "inner") == find_root(str(tmp_path / "inner" / "a"))


def test_no_root_is_none(tmp_path: Path) -> None:
    """A word of that name elsewhere in a file is no section."""
    (tmp_path / "BUILD.yaml").write_text("targets: []\n# workspace:\nx: workspace\nworkspaces: 1\n  workspace: 2\n")

    assert find_root(str(tmp_path)) is None


def test_a_walk_finds_packages_and_leaves_out_what_is_none(make: Make, tmp_path: Path) -> None:
    """Hidden folders, environments, outputs, ignored folders and other workspaces are never packages."""
    workspace = make(
        "BUILD.yaml",
        "a/BUILD.yaml",
        "a/deep/er/BUILD.yaml",
        "b/plain.txt",
        ".git/BUILD.yaml",
        "env/pyvenv.cfg",
        "env/lib/BUILD.yaml",
        "hidet-out/cpu/BUILD.yaml",
        "__pycache__/BUILD.yaml",
        "other/BUILD.yaml",
        "other/sub/BUILD.yaml",
        "third/one/BUILD.yaml",
        "third/two/BUILD.yaml",
        other__BUILD_dot_yaml="workspace: {name: other}\n",
        _dot_hidetbuildignore="# not ours\nthird/one/\n",
    )
    os.symlink(tmp_path / "hidet-out" / "cpu", tmp_path / "hidet-bin")
    walk = workspace.walk_packages()

    assert (
        ("", "a", "a/deep/er", "third/two"),
        ("", "a", "a/deep", "a/deep/er", "b", "env", "other", "third", "third/two"),
        (".hidetbuildignore", "other/BUILD.yaml"),
    ) == walk


def test_a_walk_starts_where_it_is_told(make: Make) -> None:
    """Below a folder, below nothing, and below a folder that is no part of the workspace."""
    workspace = make("BUILD.yaml", "a/b/BUILD.yaml", ".venv/x/BUILD.yaml")
    actual = [workspace.walk_packages(start).packages for start in ("a", "missing", ".venv")]

    assert [("a/b",), (), ()] == actual


def test_a_walk_ends_in_spite_of_links(make: Make, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder is a package under its own name, and one outside of the workspace under the name of its link."""
    workspace = make("BUILD.yaml", "a/BUILD.yaml", "b/")
    outside = tmp_path_factory.mktemp("outside")
    (outside / "BUILD.yaml").write_text("")
    os.symlink("..", tmp_path / "a" / "loop")
    os.symlink("../a", tmp_path / "b" / "again")
    os.symlink(outside, tmp_path / "b" / "far")
    os.symlink(outside, outside / "self")
    os.symlink("/", tmp_path / "b" / "root")
    os.symlink("nowhere", tmp_path / "b" / "dangling")

    assert ("", "a", "b/far") == workspace.walk_packages().packages


def test_outputs_elsewhere_in_the_workspace_are_left_out(make: Make, tmp_path: Path) -> None:
    """`--output_base` and `--symlink_prefix` move them."""
    make("BUILD.yaml", "build/cpu/BUILD.yaml", "hidet-example/BUILD.yaml")
    os.symlink("build/cpu", tmp_path / "my-bin")
    os.symlink("build/cpu", tmp_path / "stale")
    workspace = Workspace(str(tmp_path), output_base=str(tmp_path / "build"), symlink_prefix="my-")

    assert ("", "hidet-example") == workspace.walk_packages().packages


FILES = (
    "k/BUILD.yaml",
    "k/a.py",
    "k/b.py",
    "k/B.py",
    "k/c.cc",
    "k/.hidden.py",
    "k/sub/d.py",
    "k/sub/deep/e.py",
    "k/pkg/BUILD.yaml",
    "k/pkg/f.py",
    "k/.git/g.py",
    "k/env/pyvenv.cfg",
    "k/env/h.py",
    "k/__pycache__/a.py",
    "k/[x].txt",
)


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["*.py"], [], "B.py a.py b.py"),
        (["**/*.py"], [], "B.py a.py b.py sub/d.py sub/deep/e.py"),
        (["**/*.py"], ["**/[ab].py"], "B.py sub/d.py sub/deep/e.py"),
        (["**/*.py"], ["sub/**"], "B.py a.py b.py"),
        (["sub/**"], [], "sub/d.py sub/deep/e.py"),
        (["sub/**/*.py"], [], "sub/d.py sub/deep/e.py"),
        (["**/deep/*"], [], "sub/deep/e.py"),
        (["**/**/e.py"], [], "sub/deep/e.py"),
        (["sub/*"], [], "sub/d.py"),
        (["?.py", "c.*"], [], "B.py a.py b.py c.cc"),
        (["[!a-b].py"], [], "B.py"),
        (["[[]x].txt"], [], "[x].txt"),
        ([".*.py"], [], ".hidden.py"),
        (["*.py", "a.py"], [], "B.py a.py b.py"),
        (["a.py"], ["*"], ""),
        (["BUILD.yaml", "pkg/f.py", ".git/g.py", "env/h.py", "__pycache__/a.py"], [], ""),
        (["missing/**"], [], ""),
    ],
)
def test_a_glob_matches_files_of_its_package(make: Make, include: list[str], exclude: list[str], expected: str) -> None:
    """Sorted, relative to the package, and never across its border."""
    actual = make(*FILES).glob("k", include, exclude).files

    assert tuple(expected.split()) == actual


def test_a_glob_says_which_folders_it_listed(make: Make) -> None:
    """Only those that could hold a match, and those where another package began."""
    workspace = make(*FILES)
    actual = [workspace.glob("k", ["*.py"]).folders, workspace.glob("k", ["**/*.py"]).folders]

    assert [("k",), ("k", "k/env", "k/pkg", "k/sub", "k/sub/deep")] == actual


def test_a_glob_follows_links_but_no_cycle(make: Make, tmp_path: Path) -> None:
    """Linked files count, a linked folder counts once, and what leads back up is not entered."""
    workspace = make("shared/s.py", "k/BUILD.yaml", "k/a.py", "k/sub/b.py")
    os.symlink("..", tmp_path / "k" / "loop")
    os.symlink(".", tmp_path / "k" / "self")
    os.symlink("../sub", tmp_path / "k" / "sub" / "again")
    os.symlink("../shared", tmp_path / "k" / "shared")
    os.symlink("../k", tmp_path / "shared" / "back")
    os.symlink("a.py", tmp_path / "k" / "link.py")
    os.symlink("nowhere.py", tmp_path / "k" / "dangling.py")

    assert ("a.py", "link.py", "shared/s.py", "sub/b.py") == workspace.glob("k", ["**/*.py"]).files


def test_a_glob_of_the_root_leaves_out_outputs_and_what_is_ignored(make: Make, tmp_path: Path) -> None:
    """Files can be named in the ignore file too."""
    workspace = make("a.py", "gen/b.py", "hidet-out/c.py", "x/d.tmp.py", _dot_hidetbuildignore="/gen\n\n**/*.tmp.py\n")
    os.symlink("hidet-out", tmp_path / "hidet-bin")
    actual = (workspace.glob("", ["**/*.py"]).files, workspace.listed())

    assert (("a.py",), ("", "x")) == actual


@pytest.mark.parametrize(
    "pattern", ["", "/a", "a/", "a//b", "../a", "./a", "a**", "a/**b/c", "[a", "[z-a]", "a\\b", ":a", "//k:a"]
)
def test_what_is_no_pattern_is_refused_at_its_place(make: Make, pattern: str) -> None:
    """A pattern that can match nothing by its form is a mistake."""
    place = Location("k/BUILD.yaml", 2, 3)

    with pytest.raises(LoadError) as caught:
        make().glob("k", [pattern], location=place)

    assert place == caught.value.location


def test_the_ignore_file_tells_of_every_bad_line(make: Make) -> None:
    """With line numbers."""
    workspace = make(_dot_hidetbuildignore="ok\n../up\n# fine\na**\n")

    with pytest.raises(ErrorGroup) as caught:
        workspace.walk_packages()

    assert [".hidetbuildignore:2:1", ".hidetbuildignore:4:1"] == [str(error.location) for error in caught.value.errors]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/b.py", None),
        ("a/.hidden.py", None),
        ("missing/x", None),
        ("", None),
        (".git/x", "is in a hidden folder (.git)"),
        ("a/env/lib/x.py", "is in a virtual environment (a/env)"),
        ("hidet-out/x", "is in an output folder (hidet-out)"),
        ("other/x/y.py", "is in another workspace (other)"),
        ("gen/x.py", "is named in .hidetbuildignore (gen)"),
        ("a/secret.py", "is named in .hidetbuildignore (a/secret.py)"),
        ("a/__pycache__/x", "is in a folder of Python's (a/__pycache__)"),
    ],
)
def test_what_is_excluded_says_why(make: Make, path: str, expected: str | None) -> None:
    """For packages and for files named outright."""
    workspace = make(
        "a/b.py",
        "a/secret.py",
        "a/env/pyvenv.cfg",
        "hidet-out/x",
        "other/BUILD.yaml",
        "a/__pycache__/x",
        ".git/x",
        "gen/x.py",
        other__BUILD_dot_yaml="workspace: {name: x}",
        _dot_hidetbuildignore="gen\na/secret.py\n",
    )

    assert expected == workspace.excluded(path)


def test_a_root_that_is_a_virtual_environment_is_still_a_root(make: Make) -> None:
    """`python -m venv .` happens."""
    workspace = make("BUILD.yaml", "pyvenv.cfg", "a.py", "k/BUILD.yaml")

    assert (("", "k"), ("a.py",)) == (workspace.walk_packages().packages, workspace.glob("", ["*.py"]).files)


def test_the_owner_of_a_file_is_the_nearest_package(make: Make) -> None:
    """Upward from the file, None where nobody owns it."""
    workspace = make("a/BUILD.yaml", "a/b/c/x.py", "a/d/BUILD.yaml", "loose.py")
    actual = [workspace.owner(path) for path in ("a/b/c/x.py", "a/d/y.py", "loose.py")]

    assert ["a", "a/d", None] == actual


def test_near_matches(make: Make) -> None:
    """Names close by, and the same name elsewhere."""
    workspace = make("kernels/BUILD.yaml", "kernels/matmul.py", "kernels/sub/tiles.py", "attention/fwd/BUILD.yaml")
    actual = [
        workspace.near_packages("kernel"),
        workspace.near_packages("fwd"),
        workspace.near_files("kernels/matmull.py"),
        workspace.near_files("kernels/tiles.py"),
        workspace.near_files("kernels/[odd\\.py"),
        workspace.near_packages("zzz"),
    ]

    assert [
        ("kernels",),
        ("attention/fwd",),
        ("kernels/matmul.py",),
        ("kernels/sub/tiles.py",),
        (),
        (),
    ] == actual


def test_folders_are_listed_once_in_a_build(make: Make, tmp_path: Path) -> None:
    """One workspace object sees one state; the next build's object sees the next."""
    workspace = make("a.py")
    before = workspace.glob("", ["*.py"]).files
    (tmp_path / "b.py").write_text("")

    assert (before, ("a.py", "b.py")) == (
        workspace.glob("", ["*.py"]).files,
        Workspace(str(tmp_path)).glob("", ["*.py"]).files,
    )
