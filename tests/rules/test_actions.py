"""What each built-in rule declares: golden action lists, and the same ones wherever and whenever the rule is called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hidet_build.label import Label
from tests.declared import analyzed, text_of

GOLDEN = Path(__file__).parent.parent / "golden" / "actions"
REPOSITORY = Path(__file__).parent.parent.parent

BUILD = """\
workspace: {name: kernels}
targets:
  - {rule: py_library, name: tiles, srcs: [lib/tiles.py], imports: [lib]}
  - {rule: py_library, name: rows, srcs: [rows.py], deps: [":tiles"], imports: [.], requires: [einops]}
  - rule: ir_module
    name: matmul
    src: matmul.py
    args: {m: 512, scale: 1.50, name: "a b", shape: [2, null, true]}
    deps: [":rows"]
    tags: [no-cache]
  - rule: ir_module
    name: softmax
    src: softmax.py
    entry: fused
    deps: [":tiles", ":blur"]
    target: cpu --arch=x86-64-v4
    output_kind: .o
  - {rule: ir_module, name: several, src: softmax.py, data: [table.txt]}
  - {rule: task, name: tuned, src: softmax.py, args: {rows: 8}, search_space: 1, deps: [":rows", ":blur"]}
  - {rule: cc_object, name: image, src: image.cc, hdrs: [image.h], includes: [include], defines: [A=1]}
  - {rule: cc_object, name: blur, src: blur.cc, hdrs: [blur.h], deps: [":image"], copts: [-funroll-loops]}
  - {rule: shared_library, name: kernels, modules: [":matmul", ":several", ":blur"]}
  - {rule: shared_library, name: handwritten, modules: [":blur"]}
  - rule: command
    name: table
    arguments: [sh, -c, "sort table.txt > sorted.txt; cp * all"]
    inputs: [table.txt, ":files"]
    outputs: [sorted.txt, all/]
    env: {LC_ALL: C, A: "1"}
  - {rule: filegroup, name: files, srcs: [rows.py, ":table_too"]}
  - {rule: filegroup, name: table_too, srcs: [matmul.py]}
  - {rule: alias, name: other_name, actual: ":kernels"}
  - {rule: alias, name: third_name, actual: ":other_name"}
  - {rule: filegroup, name: tile, matrix: {size: [64, 128]}, srcs: ["${size}.txt"]}
"""
FILES = (
    *("lib/tiles.py", "rows.py", "matmul.py", "softmax.py", "table.txt", "64.txt", "128.txt"),
    *("image.cc", "image.h", "blur.cc", "blur.h", "include/more.h"),
)
TARGETS = (
    *("tiles", "rows", "matmul", "softmax", "several", "image", "blur", "kernels", "handwritten", "table", "files"),
    *("third_name", "tile", "tile_64", "tuned"),
)


def fill(root: Path) -> Path:
    """A workspace with targets of every built-in rule."""
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "BUILD.yaml").write_text(BUILD)
    return root


@pytest.mark.parametrize("name", TARGETS)
def test_actions_are_pinned(name: str, tmp_path: Path, update_golden: bool) -> None:
    """A change of what a rule declares is a change somebody looked at: it builds everybody's targets anew."""
    actual = text_of(analyzed(fill(tmp_path), f"//:{name}"), Label("", name))
    golden = GOLDEN / f"{name}.txt"
    if update_golden:
        golden.write_text(actual)

    assert golden.read_text() == actual


def test_every_rule_is_pinned() -> None:
    """The workspace above has a target of each built-in rule."""
    rules = {path.stem for path in (REPOSITORY / "rules").glob("*.py")} - {"__init__", "grouping"}
    used = {line.partition("rule: ")[2].split(",")[0].strip() for line in BUILD.splitlines() if "rule: " in line}

    assert rules | {"alias", "filegroup"} == used
    assert len(TARGETS) == len(list(GOLDEN.iterdir()))


def test_rules_are_pure(tmp_path: Path) -> None:
    """Another folder, environment, hash seed, language and working directory make no difference to any rule."""
    told = []
    for number, variables in enumerate(({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "CC": "x", "LANG": "de_DE"})):
        root = fill(tmp_path / ("a" * (number + 1)) / "kernels")
        told.append(_in_another_process(root, variables, cwd=root if number else tmp_path))

    assert told[0] == told[1]
    assert "CppLink with cxx" in told[0]


def test_a_workspaces_own_rule_is_called_alike(tmp_path: Path) -> None:
    """The same holds for the rule in the examples."""
    told = []
    for number in range(2):
        root = tmp_path / str(number)
        shutil.copytree(REPOSITORY / "examples" / "own_rule", root)
        (root / "BUILD.yaml").write_text(f"workspace: {{name: own}}\n{(root / 'BUILD.yaml').read_text()}")
        told.append(_in_another_process(root, {"PYTHONHASHSEED": str(number + 1)}, cwd=root))

    assert told[0] == told[1]
    assert "LookupTable with command:python3" in told[0]


def _in_another_process(root: Path, variables: dict[str, str], cwd: Path) -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "tests.declared", str(root)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
    )

    assert "" == done.stderr
    return done.stdout
