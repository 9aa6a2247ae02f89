"""Builds that know what changed look at nothing else, and are as right as those that look at everything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.bench.workspace import Workspace
from tests.space import PROGRAM, Space, targets

YOUNG = 2.1  # seconds until a file that was just written is trusted by its time


def step(name: str, script: str, inputs: str, outputs: str) -> str:
    """A target that runs a shell script."""
    return f'{{rule: command, name: {name}, arguments: [sh, -c, "{script}"], inputs: [{inputs}], outputs: [{outputs}]}}'


def two_chains(space: Space) -> None:
    """Two chains `a1` -> `a2` and `b1` -> `b2`, each on a source that the first drops comments of, and `c` on both."""
    space.write(
        "k/BUILD.yaml",
        targets(
            step("a1", "grep -v '^#' a.src > o", "a.src", "o"),
            step("a2", "cat a1/o a1/o > o", '":a1"', "o"),
            step("b1", "grep -v '^#' b.src > o", "b.src", "o"),
            step("b2", "cat b1/o b1/o > o", '":b1"', "o"),
            step("c", "cat a2/o b2/o > o", '":a2", ":b2"', "o"),
        ),
    )
    space.write("k/a.src", "a\n")
    space.write("k/b.src", "b\n")


@pytest.fixture
def settled(space: Space) -> Space:
    """The two chains, built, and old enough to be answered at once."""
    two_chains(space)
    time.sleep(YOUNG)
    space.build("//...")
    space.build("//...")
    return space


def imported(space: Space, *words: str, cwd: str = "") -> set[str]:
    """The modules that a run imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *PROGRAM[1:], *words],
        cwd=space.root / cwd,
        env=space.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE))


def test_touched_source_is_no_change(settled: Space) -> None:
    """A source with a new time and its old content costs its hashing, once it is old enough only one more time."""
    os.utime(settled.root / "k/a.src", ns=(10**18, 10**18))
    first = imported(settled, "//...")
    time.sleep(YOUNG)
    imported(settled, "//...")

    assert "hashlib" in first
    assert "hidet_build.cli" not in first
    assert "hashlib" not in imported(settled, "//...")


def test_source_made_executable_is_a_change(settled: Space) -> None:
    """The executable bit of a source is part of what an action sees."""
    (settled.root / "k/a.src").chmod(0o755)

    assert ["Command //k:a1"] == settled.build("//...").actions


def test_edit_runs_what_it_reaches(settled: Space) -> None:
    """An edit runs the steps downstream of it; the summary counts the others as up to date."""
    settled.write("k/a.src", "x\n")

    done = settled.build("//...")

    assert ["Command //k:a1", "Command //k:a2", "Command //k:c"] == done.actions
    assert "INFO: built 5 targets: 5 actions: 3 executed, 2 up to date" == done.summary
    assert "x\nx\nb\nb\n" == settled.read("hidet-bin/k/c/o")


def test_comment_stops_where_nothing_differs(settled: Space) -> None:
    """A comment edit runs one step."""
    settled.write("k/a.src", "# why\na\n")

    done = settled.build("//...")

    assert ["Command //k:a1"] == done.actions
    assert "INFO: built 5 targets: 5 actions: 1 executed, 4 up to date" == done.summary


def test_edits_one_after_the_other(settled: Space) -> None:
    """Edits, deletions and other command lines between builds leave no trace in what is made."""
    for number in range(6):
        settled.write("k/a.src" if number % 2 else "k/b.src", f"{number}\n")
        if number % 3 == 0:
            (settled.root / "hidet-bin/k/a2/o").unlink()
        if number % 3 == 1:
            settled.build("-j3", "//k:a2")
        settled.build("//...")
        a, b = settled.read("k/a.src"), settled.read("k/b.src")

        assert a + a + b + b == settled.read("hidet-bin/k/c/o")
        assert "INFO: 5 targets up to date" == settled.build("//...").summary


def test_failure_is_told_again(settled: Space) -> None:
    """A step that fails after an edit fails again in the next build, and the way out is to edit once more."""
    settled.write("k/a.src", "# nothing that grep lets through\n")
    codes = [settled.run("//...").code for _ in range(2)]
    settled.write("k/a.src", "y\n")
    settled.build("//...")

    assert [1, 1] == codes
    assert "y\ny\nb\nb\n" == settled.read("hidet-bin/k/c/o")


def test_deleted_output_comes_back_without_a_plan(settled: Space) -> None:
    """Outputs that are gone are put back from the store, and nothing else is asked."""
    shutil.rmtree(settled.root / "hidet-out/.state/plans.v2")
    (settled.root / "hidet-bin/k/a2/o").unlink()

    done = settled.build("//...")

    assert "INFO: built 5 targets: 5 actions: 1 cached, 4 up to date" == done.summary
    assert "a\na\n" == settled.read("hidet-bin/k/a2/o")
    assert not (settled.root / "hidet-out/.state/plans.v2").exists()


def test_deleted_output_that_no_store_has_is_made(settled: Space) -> None:
    """Where the store has lost it too, the step runs."""
    (settled.root / "hidet-bin/k/a2/o").unlink()
    shutil.rmtree(settled.cache / "hidet-build/cas")

    done = settled.build("//...")

    assert ["Command //k:a2"] == done.actions
    assert "a\na\n" == settled.read("hidet-bin/k/a2/o")


def test_check_does_not_restore(settled: Space) -> None:
    """--check_up_to_date says what is missing and puts nothing back, though the same flag was answered before."""
    settled.build("--check_up_to_date", "//...")
    (settled.root / "hidet-bin/k/a2/o").unlink()

    done = settled.run("--check_up_to_date", "//...")

    assert 1 == done.code
    assert not (settled.root / "hidet-bin/k/a2/o").exists()


def test_output_folder_that_holds_less(space: Space) -> None:
    """After an edit that leaves an output folder with other files, the build after it has nothing to do."""
    script = "for name in `cat names`; do echo x > d/$name; done"
    space.write("k/BUILD.yaml", targets(step("t", script, "names", "d/"), step("u", "ls t/d > o", '":t"', "o")))
    space.write("k/names", "one two\n")
    time.sleep(YOUNG)
    space.build("//...")
    space.build("//...")
    space.write("k/names", "two three\n")
    time.sleep(YOUNG)
    space.build("//...")

    assert "three\ntwo\n" == space.read("hidet-bin/k/u/o")
    assert "hidet_build.cli" not in imported(space, "//...")


LEFT = {
    "a file": "echo x > left",
    "a file above": "echo x > ../left",
    "a file beside the root": "echo x > ../../left",
    "a folder": "mkdir -p deep/er; echo x > deep/er/left",
    "a read-only folder": "chmod 555 .",
    "a link in the place of the folder": "mv ../k ../moved; ln -s / ../k",
    "files in TMPDIR": "echo x > $TMPDIR/left",
    "a changed input": "rm f.txt; echo x > f.txt",
}


@pytest.mark.parametrize("way", LEFT)
def test_steps_find_nothing_of_others(space: Space, way: str) -> None:
    """Whatever a step leaves where it ran, the next one finds its inputs and nothing else."""
    see = "(cd ..; find . | sort; cat */f.txt; ls -A $TMPDIR; ls -A ..; stat -c %A . ..) > ../k/o"
    space.write(
        "k/BUILD.yaml",
        targets(
            step("a", f"echo a > o; {LEFT[way]}", "f.txt", "o"),
            step("b", see, "f.txt", "o"),
        ),
    )
    space.write("k/f.txt", "one\n")
    space.build("-j1", "//k:b")
    alone = space.read("hidet-bin/k/b/o")
    space.build("clean")
    shutil.rmtree(space.cache / "hidet-build/ac")
    space.run("-j1", "-k", "//k:a", "//k:b")

    assert alone == space.read("hidet-bin/k/b/o")
    assert "left" not in alone


# ---- queries


LIBRARIES = {"yaml", "networkx", "argparse", "subprocess"}


def test_second_query_loads_nothing(settled: Space) -> None:
    """A query about what was asked before, in other words too, imports no library and reads no flag with argparse."""
    first = settled.build("query", "deps(//k:c)").out
    again = imported(settled, "query", "deps(//k:c)") & LIBRARIES
    other = imported(settled, "query", "rdeps(//k:c, k/a.src)") & LIBRARIES
    below = imported(settled, "query", "somepath(b2, b.src)", cwd="k") & LIBRARIES

    assert [set(), set(), set()] == [again, other, below]
    assert first == settled.build("query", "deps(//k:c)").out
    assert "//k:a.src\n//k:a1\n//k:a2\n//k:c\n" == settled.build("query", "rdeps(//k:c, k/a.src)").out
    assert "//k:a1\n" in settled.build("query", "kind(command, deps(//k:c))").out
    assert "//k:a2\n" == settled.build("query", "attr(outputs, o, //k:a2)").out
    assert set() == imported(settled, "query", "--output=location", "attr(outputs, o, //k:a2)") & LIBRARIES


@pytest.mark.parametrize(
    "words",
    [
        *(["deps(//k:c"], ["deps(//k:cc)"], ["//k:c + /..."], ["//kk:all"], ["//kk/..."], ["k/a.srs"], ["set(-//k:c)"]),
        *(["--output=lable", "//k:c"], ["--output", "location", "//k:c"], ["-k", "//k:c"], ["--", "//k:c"], []),
    ],
)
def test_what_is_known_changes_no_word(settled: Space, words: list[str]) -> None:
    """Mistakes and other flags are told as they are where nothing was asked before."""
    fresh = settled.run("query", *words)
    shutil.rmtree(settled.root / "hidet-out/.state/queries.v2", ignore_errors=True)
    settled.build("query", "deps(//...)")

    assert fresh == settled.run("query", *words)


def test_known_targets_are_not_all_of_a_package(settled: Space) -> None:
    """What one query reached of a package is not taken for the package, and a broken target there is met as before."""
    settled.write("top/BUILD.yaml", targets(step("t", "true", '"//k:a2"', "o")))
    public = 'package: {visibility: ["//visibility:public"]}\n'
    settled.write("k/BUILD.yaml", public + settled.read("k/BUILD.yaml"))
    settled.build("query", "deps(//top:t)")

    assert "//k:a1\n//k:a2\n//k:b1\n//k:b2\n//k:c\n" == settled.build("query", "//k:all").out
    assert "//k:b1\n" == settled.build("query", "//k:b1").out
    settled.write("k/BUILD.yaml", settled.read("k/BUILD.yaml") + "  - " + step("d", "true", "gone.src", "o") + "\n")
    for _ in range(2):
        assert "//k:a.src\n//k:a1\n" == settled.build("query", "deps(//k:a1)").out
        assert 7 == settled.run("query", "//k:all").code
        settled.build("query", "deps(//top:t)")


def test_files_of_a_package_are_those_it_names(settled: Space) -> None:
    """`:*` holds the files that the package's own targets name, whatever else is asked or was asked before."""
    settled.write("k/other.src", "other\n")
    settled.write("top/BUILD.yaml", targets(step("t", "true", '"//k:other.src"', "o")))
    alone = settled.build("query", "//k:* - //k:all").out
    beside = settled.build("query", "set(//k:* //top:t k/other.src) - //k:all - //top:t - k/other.src").out
    settled.build("query", "//...")

    assert ["//k:a.src\n//k:b.src\n"] * 3 == [alone, beside, settled.build("query", "//k:* - //k:all").out]


RULE = """\
from hidet_build.rule import attr, rule

@rule(notes=attr.strings())
def noted(ctx):
    return []
"""
DECLARED = {
    "edited package": lambda root: (root / "k/BUILD.yaml").write_text(
        (root / "k/BUILD.yaml").read_text().replace("name: c", "name: d")
    ),
    "new package": lambda root: write(root / "n/BUILD.yaml", targets(step("n", "cat //k:a1", '"//k:a1"', "o"))),
    "deleted package": lambda root: (root / "x/BUILD.yaml").unlink(),
    "edited rule module": lambda root: (root / "rules/noted.py").write_text(RULE.replace("strings", "files")),
}


def write(path: Path, text: str) -> None:
    """A file in a new folder."""
    path.parent.mkdir()
    path.write_text('package: {visibility: ["//visibility:public"]}\n' + text)


@pytest.mark.parametrize("words", ["deps(//...)", "rdeps(//..., k/a.src) + deps(//y/...)"])
@pytest.mark.parametrize("change", DECLARED)
def test_query_sees_what_changed(settled: Space, change: str, words: str) -> None:
    """The answer is that of the packages as they are, in the words that were asked before and in others."""
    public = 'package: {visibility: ["//visibility:public"]}\n'
    settled.write("k/BUILD.yaml", public + settled.read("k/BUILD.yaml"))
    settled.write("x/BUILD.yaml", targets(step("x", "true", '"//k:a2"', "o")))
    settled.write("rules/noted.py", RULE)
    settled.write("y/BUILD.yaml", 'load: ["//:rules/noted.py"]\n' + targets("{rule: noted, name: y, notes: [y.txt]}"))
    settled.write("y/y.txt", "")
    time.sleep(YOUNG)
    settled.build("query", "deps(//...)")
    before = settled.build("query", words).out
    DECLARED[change](settled.root)
    kept = settled.build("query", words).out
    shutil.rmtree(settled.root / "hidet-out/.state/queries.v2")

    assert settled.build("query", words).out == kept != before


def test_query_sees_a_file_that_appears(settled: Space) -> None:
    """A word that named nothing is the path of a file as soon as that is there."""
    refused = settled.run("query", "k/new.src").code
    settled.write("k/new.src", "new\n")

    assert 7 == refused
    assert "//k:new.src\n" == settled.build("query", "k/new.src").out


# ---- how much is asked of the kernel

CALLS = ("stat", "open", "exec")


def calls(base: Path, toolchains: Path, kernels: int, change: str) -> Counter[str]:
    """What a build asks the kernel about packages after a change in a workspace of so many kernels: calls by kind."""
    space = Space(base / f"{kernels}{change}")
    shutil.copytree(toolchains, space.cache / "hidet-build/toolchains-1")
    shutil.rmtree(space.root)
    tree = Workspace(space.root, kernels)
    tree.write_sources()
    tree.write_build_files()
    time.sleep(YOUNG)
    space.build("-j1", "//:whole")
    space.build("-j1", "//:whole")
    if change == "comment":
        with tree.source(3).open("a") as file:
            file.write("# a comment\n")
    log = base / "calls"
    subprocess.run(
        ["strace", "-f", "-o", log, "-e", "trace=%%stat,openat,execve", *PROGRAM, "-j1", "//:whole"],
        cwd=space.root,
        env=space.environment,
        capture_output=True,
        check=True,
    )
    names = re.findall(r'^\d+ +(\w+)\(.*"\S*pkg\d{4}.*"', log.read_text(), re.MULTILINE)
    return Counter(kind for name in names for kind in CALLS if kind in name)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="there is no strace")
@pytest.mark.parametrize("change", ["none", "comment"])
def test_calls_grow_as_files_do(tmp_path: Path, toolchain_memory: Path, change: str) -> None:
    """100 kernels in 5 packages more cost one stat for each file they have, and nothing else."""
    small, large = (calls(tmp_path, toolchain_memory, kernels, change) for kernels in (20, 120))

    sources, outputs, packages = 100 + 5, 300 + 5, 5
    declarations = 2 * packages  # the BUILD.yaml and its folder
    beside = packages if change == "comment" else 0  # the libraries that the last step joins with the one looked into
    grown = {kind: large[kind] - small[kind] for kind in CALLS}

    assert {"stat": sources + outputs + declarations + beside, "open": 0, "exec": 0} == grown
