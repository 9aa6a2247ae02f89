"""The null build: it imports next to nothing, survives other verbs and flags, and is never wrong."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.space import Space, targets

# What a build that has nothing to do must not pay for; the first group not even where it must look twice.
HEAVY = ("yaml", "networkx", "filelock", "google.protobuf", "hidet", "torch", "numpy")
LIGHT = ("argparse", "dataclasses", "subprocess", "typing", "enum", "re", "threading", "hidet_build.cli")
YOUNG = 2.1  # seconds until a file that was just written is trusted by its time


def copies(space: Space) -> None:
    """Two steps in package `k`, the first on all `*.txt` of it."""
    space.write(
        "k/BUILD.yaml",
        """\
        targets:
          - rule: command
            name: a
            arguments: [sh, -c, "cat *.txt > a.out"]
            inputs: [{glob: ["*.txt"]}]
            outputs: [a.out]
          - rule: command
            name: b
            arguments: [cp, a/a.out, b.out]
            inputs: [":a"]
            outputs: [b.out]
        """,
    )
    space.write("k/one.txt", "one\n")


def imported(space: Space, *words: str) -> set[str]:
    """The modules that a run imports, packages by each of their names."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hidet_build", *words],
        cwd=space.root,
        env=space.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE))


def is_null(space: Space, *words: str) -> bool:
    """Whether the run was answered from the snapshot alone."""
    return "hidet_build.cli" not in imported(space, *words)


@pytest.fixture
def settled(space: Space) -> Space:
    """The package `k`, built, and old enough to be answered at once."""
    copies(space)
    time.sleep(YOUNG)
    space.build("//...")
    space.build("//...")
    return space


def test_imports(settled: Space) -> None:
    """What is up to date is told with no import beyond those Python starts with."""
    bare = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import runpy"],
        env=settled.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    at_start = set(re.findall(r"^import time: .*\| +(\S+)$", bare.stderr, re.MULTILINE))

    found = imported(settled, "//...") - at_start

    assert set() == found & {*HEAVY, *LIGHT}
    assert found <= {"hidet_build", "hidet_build.quick", "collections.abc", "gc", "marshal", "time", "zlib"}


def test_second_look_imports_nothing_heavy(settled: Space) -> None:
    """A build after an edit imports neither yaml nor networkx nor hidet: what was declared is known."""
    settled.write("k/one.txt", "two\n")

    found = imported(settled, "//...")

    assert "hidet_build.cli" in found
    assert set() == found & {"yaml", "networkx", "hidet", "torch", "numpy"}
    assert "two\n" == settled.read("hidet-bin/k/b/b.out")


@pytest.mark.parametrize("words", [["--help"], ["version"], ["help", "build"], ["info", "output_base"]])
def test_help_is_cheap(space: Space, words: list[str]) -> None:
    """Help and the like import none of the heavy libraries."""
    assert set() == imported(space, *words) & set(HEAVY)


def test_says_what_a_build_says(settled: Space) -> None:
    """The quick answer reads like that of a build with nothing to do, on stderr."""
    quick = settled.run("//...")
    (settled.root / "hidet-out/.state/quick.v2").rename(settled.base / "gone")
    real = settled.run("//...")

    def plain(text: str) -> str:
        return re.sub(r"in [\d.]+ s", "", text)

    assert (0, "") == (quick.code, quick.out)
    assert plain(real.err) == plain(quick.err)


def test_other_verbs_and_flags_between(settled: Space) -> None:
    """Queries and flags that change no action do not cost the next build anything."""
    log: list[list[str]] = []
    for words in (
        ["query", "deps(//k:b)"],
        ["--color=no", "//..."],
        ["-k", "//..."],
        ["-j3", "//..."],
        ["//k:a"],
        ["--explain", "//..."],
        ["--nobuild", "//..."],
        ["--check_up_to_date", "//..."],
        ["info"],
    ):
        log.append(settled.build(*words).actions)

    assert [[]] * 9 == log
    assert is_null(settled, "//...")


def test_each_command_line_has_its_own_answer(settled: Space) -> None:
    """From another folder, with other patterns or flags, the answer is that of this command line."""
    settled.write("x/BUILD.yaml", targets("{rule: command, name: x, arguments: [touch, x.out], outputs: [x.out]}"))
    settled.build("//...")
    settled.build("//...")

    assert "INFO: 1 target up to date" == settled.build("//k:a").summary
    below = settled.run("...", cwd="x")
    assert "INFO: 1 target up to date" == below.summary, below.err
    assert "INFO: 2 targets up to date" == settled.run("...", cwd="k").summary
    assert "INFO: 2 targets up to date" == settled.run("...", cwd="k").summary
    assert "INFO: 3 targets up to date" == settled.run("...").summary


# ---- never wrong: each change is seen by the next build

SOURCES = {
    "edited source": lambda root: (root / "k/one.txt").write_text("two\n"),
    "edited source of equal size and old time": lambda root: keep_time(root / "k/one.txt", "eno\n"),
    "replaced source with an older time": lambda root: replace_old(root / "k/one.txt", "old\n"),
    "new file in a glob": lambda root: (root / "k/two.txt").write_text("two\n"),
    "file that left a glob": lambda root: (root / "k/one.txt").rename(root / "k/one.bak"),
    "source that is a link now": lambda root: become_link(root / "k/one.txt"),
}


def keep_time(path: Path, text: str) -> None:
    """Write, and put the old modification time back."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_old(path: Path, text: str) -> None:
    """Put another file of the year 2000 in the place of the file, as unpacking does."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.utime(other, (946_684_800, 946_684_800))
    other.replace(path)


def become_link(path: Path) -> None:
    """Put a link to another file in the place of the file."""
    (path.parent / "target.bin").write_text("linked\n")
    path.unlink()
    path.symlink_to("target.bin")


@pytest.mark.parametrize("change", SOURCES)
def test_changed_sources_are_seen(settled: Space, change: str) -> None:
    """However a source changes, the next build notices; and the one after is null or right, too."""
    assert is_null(settled, "//...")
    if change == "file that left a glob":
        settled.write("k/zero.txt", "zero\n")
        settled.build("//...")
    SOURCES[change](settled.root)
    expected = "".join(path.read_text() for path in sorted((settled.root / "k").glob("*.txt")))

    for _ in range(2):
        settled.build("//...")

        assert expected == settled.read("hidet-bin/k/b/b.out")


def test_changed_declaration_is_seen(settled: Space) -> None:
    """An edit of a BUILD.yaml counts, also one that keeps its size and its time."""
    text = settled.read("k/BUILD.yaml")
    keep_time(settled.root / "k/BUILD.yaml", text.replace("cat *.txt >", "cat ?ne.* >"))

    done = settled.build("//...")

    assert "Command //k:a" in done.actions


def test_broken_declaration_is_seen(settled: Space) -> None:
    """A BUILD.yaml that became wrong is an error, and no longer one when it is mended."""
    text = settled.read("k/BUILD.yaml")
    settled.write("k/BUILD.yaml", "targets: [")
    broken = settled.run("//...")
    settled.write("k/BUILD.yaml", text)

    assert 1 == broken.code
    assert "INFO: 2 targets up to date" == settled.build("//...").summary


NEW = "targets:\n  - {rule: command, name: n, arguments: [touch, n.out], outputs: [n.out]}\n"


@pytest.mark.parametrize("folder", ["new", "k/new", "k/deep/er/new"])
def test_new_package_is_seen(settled: Space, folder: str) -> None:
    """A package that appears under `//...` is built, also in a folder that was there before."""
    (settled.root / "k/deep/er").mkdir(parents=True)
    settled.build("//...")
    settled.build("//...")
    settled.write(f"{folder}/BUILD.yaml", NEW)

    assert [f"Command //{folder}:n"] == settled.build("//...").actions


def test_package_that_went_is_seen(settled: Space) -> None:
    """A package that was deleted, and one that became a workspace of its own, are no longer counted."""
    settled.write("x/BUILD.yaml", NEW)
    settled.write("y/BUILD.yaml", NEW)
    three = [settled.build("//...").summary for _ in range(2)][1]
    (settled.root / "x/BUILD.yaml").unlink()
    two = settled.build("//...").summary
    settled.write("y/BUILD.yaml", "workspace: {name: other}\n" + NEW)

    assert "INFO: 4 targets up to date" == three
    assert "INFO: 3 targets up to date" == two
    assert "INFO: 2 targets up to date" == settled.build("//...").summary


WAYS = {
    "deleted": [],
    "replaced": [],
    "replaced by a folder": [],
    "link gone": [],
    "truncated": ["Command //k:a"],  # with it the blob it was linked from, which is also the output of the other step
}


@pytest.mark.parametrize("way", WAYS)
def test_changed_output_is_restored(settled: Space, way: str) -> None:
    """Outputs that were deleted or changed by hand come back, and so does the link to them."""
    output = settled.root / "hidet-bin/k/b/b.out"
    if way == "link gone":
        (settled.root / "hidet-bin").unlink()
    elif way == "truncated":
        output.chmod(0o644)
        output.write_bytes(b"")
    else:
        output.unlink()
        if way == "replaced":
            output.write_text("one\n")  # the same content, but we cannot know
        elif way == "replaced by a folder":
            output.mkdir()

    done = settled.build("//...")

    assert "one\n" == settled.read("hidet-bin/k/b/b.out")
    assert WAYS[way] == done.actions
    assert is_null(settled, "//...")


def test_other_programs_are_seen(settled: Space) -> None:
    """A program of another name first on PATH changes nothing, one with the name of a tool does."""
    folder = settled.base / "bin"
    folder.mkdir()
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    (folder / "other").write_text("#!/bin/sh\n")
    (folder / "other").chmod(0o755)
    same = settled.build("//...", environment=environment)
    (folder / "cp").write_text('#!/bin/sh\necho mine > "$2"\n')
    (folder / "cp").chmod(0o755)

    assert [] == same.actions
    assert ["Command //k:b"] == settled.build("//...", environment=environment).actions
    assert "mine\n" == settled.read("hidet-bin/k/b/b.out")
    settled.build("//...")
    assert "one\n" == settled.read("hidet-bin/k/b/b.out")


def test_other_compiler_is_seen(space: Space) -> None:
    """CXX counts for what is compiled."""
    compiler = space.base / "my-g++"
    compiler.write_text('#!/bin/sh\nexec g++ -DMINE "$@"\n')
    compiler.chmod(0o755)
    space.write("k/BUILD.yaml", targets("{rule: cc_object, name: t, src: m.cc}"))
    space.write("k/m.cc", "int f() { return 1; }\n")
    time.sleep(YOUNG)
    space.build("//...")
    space.build("//...")

    done = space.build("//...", environment={"CXX": str(compiler)})

    assert ["CppCompile //k:t"] == done.actions


def test_changed_rule_module_is_seen(space: Space) -> None:
    """An edit of a rule module, and of what it imports, counts."""
    space.write("rules/__init__.py", "")
    space.write("rules/words.py", "WORD = 'one'\n")
    space.write(
        "rules/say.py",
        """\
        from hidet_build.rule import DefaultInfo, rule

        from .words import WORD


        @rule()
        def say(ctx):
            out = ctx.output("out.txt")
            arguments = ["sh", "-c", f"echo {WORD} > out.txt"]
            ctx.action("Say", tool="command:sh", arguments=arguments, inputs={}, outputs={"out.txt": out})
            return [DefaultInfo((out,))]
        """,
    )
    space.write("k/BUILD.yaml", 'load: ["//rules:say.py"]\n' + targets("{rule: say, name: s}"))
    time.sleep(YOUNG)
    space.build("//...")
    space.build("//...")
    null = is_null(space, "//...")
    keep_time(space.root / "rules/words.py", "WORD = 'two'\n")
    space.build("//...")
    helper = space.read("hidet-bin/k/s/out.txt")
    space.write("rules/say.py", space.read("rules/say.py").replace("echo {WORD}", "echo {WORD} again"))
    space.build("//...")

    assert (True, "two\n", "two again\n") == (null, helper, space.read("hidet-bin/k/s/out.txt"))


def test_edits_right_after_a_build(space: Space) -> None:
    """Edits that fall into the same tick of the clock as a build are seen, with and without a moment between."""
    copies(space)
    space.build("//...")
    moments = random.Random(7)
    path = space.root / "k/one.txt"
    wrong = []
    for number in range(20):
        text = f"{number:04}\n"
        path.write_text(text)
        time.sleep(moments.uniform(0, 0.03))
        space.build("//...")
        if space.read("hidet-bin/k/b/b.out") != text:
            wrong.append(number)

    assert [] == wrong


def test_declarations_edited_right_after_a_build(space: Space) -> None:
    """The same for BUILD.yaml, at equal size."""
    copies(space)
    space.build("//...")
    text = space.read("k/BUILD.yaml")
    moments = random.Random(8)
    wrong = []
    for number in range(20):
        word = f"{number:04}"
        (space.root / "k/BUILD.yaml").write_text(text.replace("cat *.txt >", f"echo {word} >"))
        time.sleep(moments.uniform(0, 0.03))
        space.build("//...")
        if space.read("hidet-bin/k/b/b.out") != word + "\n":
            wrong.append(number)

    assert [] == wrong


DURING = {
    "BUILD.yaml": ("k/BUILD.yaml", lambda text: text.replace("echo one", "echo two")),
    "new package": ("new/BUILD.yaml", lambda _: NEW),
}


@pytest.mark.parametrize("what", DURING)
def test_edits_during_a_build(space: Space, what: str) -> None:
    """What changes while a build runs is seen by the next one, though that build saved its findings later."""
    started, gate = space.base / "started", space.base / "gate"
    script = f"echo one > out; touch {started}; while ! test -e {gate}; do sleep 0.02; done"
    entry = f'{{rule: command, name: t, arguments: [sh, -c, "{script}"], outputs: [out]}}'
    space.write("k/BUILD.yaml", targets(entry))
    time.sleep(YOUNG)
    process = space.start("//...")
    while not started.exists() and process.poll() is None:
        time.sleep(0.01)
    path, change = DURING[what]
    space.write(path, change(space.read(path) if (space.root / path).exists() else ""))
    gate.touch()
    process.communicate(timeout=60)

    done = space.build("//...")

    assert 0 == process.returncode
    assert 1 == len(done.actions), done.err


@pytest.mark.parametrize("what", ["BUILD.yaml", "new package"])
def test_edits_while_loading(space: Space, what: str) -> None:
    """What changes while packages are being loaded is seen by the next build."""
    started, gate = space.base / "started", space.base / "gate"
    space.write(
        "z/slow.py",
        f"""\
        import pathlib
        import time

        from hidet_build.rule import rule

        pathlib.Path({str(started)!r}).touch()
        while not pathlib.Path({str(gate)!r}).exists():
            time.sleep(0.01)


        @rule()
        def nothing(ctx):
            return []
        """,
    )
    space.write("a/BUILD.yaml", NEW)
    space.write("z/BUILD.yaml", 'load: ["//z:slow.py"]\n' + NEW)
    time.sleep(YOUNG)
    process = space.start("//...")
    while not started.exists() and process.poll() is None:
        time.sleep(0.01)
    if what == "BUILD.yaml":
        space.write("a/BUILD.yaml", NEW.replace("n.out", "m.out"))
    else:
        space.write("a/new/BUILD.yaml", NEW.replace("n.out", "m.out"))
    gate.touch()
    process.communicate(timeout=60)

    space.build("//...")

    assert 0 == process.returncode
    assert 1 == len([*space.root.glob("hidet-bin/**/m.out")])
