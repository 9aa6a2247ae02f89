"""What is run again, and what is not: edits, spoiled outputs, spoiled caches, and what clocks say."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hidet_build.files import RACY_NS
from tests.space import PROGRAM, Space, targets

# Drops comments, then case, then copies: each step can come out the same though its input did not.
CHAIN = """\
    targets:
      - rule: command
        name: plain
        arguments: [sh, -c, "grep -v '^#' a.txt > out.txt"]
        inputs: [a.txt]
        outputs: [out.txt]
      - rule: command
        name: upper
        arguments: [sh, -c, "tr a-z A-Z < plain/out.txt > out.txt"]
        inputs: [":plain"]
        outputs: [out.txt]
      - rule: command
        name: copy
        arguments: [sh, -c, "cat upper/out.txt upper/out.txt > out.txt; echo 'echo hi' > run; chmod +x run"]
        inputs: [":upper"]
        outputs: [out.txt, run]
    """
OUT = "hidet-bin/k/copy/out.txt"
RUN = "hidet-bin/k/copy/run"


def chain(space: Space) -> None:
    """Three commands in package `k`, built."""
    space.write("k/BUILD.yaml", CHAIN)
    space.write("k/a.txt", "# note\none\n")
    space.build("//k:copy")


def settle(space: Space, *arguments: str) -> None:
    """Build until the answer can be given from stat data alone: files must first be old enough to be trusted."""
    time.sleep(RACY_NS / 1e9 + 0.1)
    space.build(*arguments)


# ---- early cutoff


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("# another note\none\n", ["plain"]),
        ("# note\nOne\n", ["plain", "upper"]),
        ("# note\ntwo\n", ["plain", "upper", "copy"]),
    ],
)
def test_rebuild_ends_where_outputs_are_the_same(space: Space, text: str, run: list[str]) -> None:
    """An edit runs the steps whose inputs came out different, and no more."""
    chain(space)
    space.write("k/a.txt", text)

    done = space.build("//k:copy")

    assert [f"Command //k:{name}" for name in run] == done.actions


def test_edit_that_is_taken_back_is_a_hit(space: Space) -> None:
    """Going back to content that was built before runs nothing."""
    chain(space)
    space.write("k/a.txt", "two\n")
    space.build("//k:copy")
    space.write("k/a.txt", "# note\none\n")

    done = space.build("//k:copy")

    assert [] == done.actions
    assert "ONE\nONE\n" == space.read(OUT)


def test_changed_arguments_run_again(space: Space) -> None:
    """An edit of a command line runs the command, and what comes after it only where that made a difference."""
    chain(space)
    space.write("k/BUILD.yaml", CHAIN.replace("grep -v '^#' a.txt", "grep -v '^#' -- a.txt"))

    done = space.build("//k:copy")

    assert ["Command //k:plain"] == done.actions


def test_explain_names_the_input(space: Space) -> None:
    """`--explain` says which input changed."""
    chain(space)
    space.write("k/a.txt", "# note\ntwo\n")

    done = space.build("//k:copy", "--explain")

    assert "input k/a.txt changed" in done.err


# ---- spoiled outputs


def append(path: Path) -> None:
    """Edit in place."""
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"!")


def same_size(path: Path) -> None:
    """Edit in place, with as many bytes."""
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)


def truncate(path: Path) -> None:
    """Leave nothing of it."""
    path.chmod(0o644)
    os.truncate(path, 0)


def replace(path: Path) -> None:
    """Put another file there."""
    path.unlink()
    path.write_text("other\n")


def make_folder(path: Path) -> None:
    """Put a folder with a file there."""
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


def link_elsewhere(path: Path) -> None:
    """Put a link to a file of somebody else's there."""
    precious = path.parents[4] / "precious.txt"
    precious.write_text("mine\n")
    path.unlink()
    path.symlink_to(precious)


def link_nowhere(path: Path) -> None:
    """Put a dangling link there."""
    path.unlink()
    path.symlink_to("nowhere")


SPOILERS = [Path.unlink, append, same_size, truncate, replace, make_folder, link_elsewhere, link_nowhere]


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda one: one.__name__)
def test_spoiled_output_is_restored(space: Space, spoil: Callable[[Path], None]) -> None:
    """Whatever became of an output, the next build puts it right, and follows no link."""
    chain(space)
    output = (space.root / OUT).resolve()
    spoil(output)

    space.build("//k:copy")

    assert (False, "ONE\nONE\n") == (output.is_symlink(), output.read_text())
    precious = output.parents[4] / "precious.txt"
    assert "mine\n" == (precious.read_text() if precious.exists() else "mine\n")


@pytest.mark.parametrize("spoil", [append, same_size, replace], ids=lambda one: one.__name__)
def test_spoiled_output_in_between_is_restored(space: Space, spoil: Callable[[Path], None]) -> None:
    """An output that other actions read is put right before they could read it."""
    chain(space)
    spoil((space.root / "hidet-bin/k/plain/out.txt").resolve())
    space.write("k/BUILD.yaml", CHAIN.replace("tr a-z A-Z", "tr -- a-z A-Z"))

    done = space.build("//k:copy")

    assert "Command //k:upper" in done.actions
    assert ("one\n", "ONE\nONE\n") == (space.read("hidet-bin/k/plain/out.txt"), space.read(OUT))


@pytest.mark.parametrize("spoil", [Path.unlink, append, same_size], ids=lambda one: one.__name__)
def test_spoiled_output_is_noticed_at_once(space: Space, spoil: Callable[[Path], None]) -> None:
    """The answer from stat data alone looks at outputs too."""
    chain(space)
    settle(space, "//k:copy")
    spoil((space.root / OUT).resolve())

    space.build("//k:copy")

    assert "ONE\nONE\n" == space.read(OUT)


def test_lost_executable_bit_is_restored(space: Space) -> None:
    """A program that was made stays one."""
    chain(space)
    settle(space, "//k:copy")
    (space.root / RUN).chmod(0o444)

    done = space.build("//k:copy", "--explain")

    assert [] == done.actions
    assert b"hi\n" == subprocess.run(["sh", "-c", space.root / RUN], stdout=subprocess.PIPE, check=True).stdout


def test_restored_time_hides_an_edit_of_an_output(space: Space) -> None:
    """BUG: an edit of an output with its old size and time goes unseen; ctime would tell, but links change it too."""
    chain(space)
    output = (space.root / OUT).resolve()
    before = output.stat()
    same_size(output)
    os.utime(output, ns=(before.st_atime_ns, before.st_mtime_ns))

    space.build("//k:copy")

    assert "xxxxxxxx" == output.read_text()


def test_deleted_output_folder_is_restored_from_the_cache(space: Space) -> None:
    """Without hidet-out, state and all, everything comes out of the cache."""
    chain(space)
    shutil.rmtree(space.root / "hidet-out")

    done = space.build("//k:copy")

    assert [] == done.actions
    assert "INFO: built 1 target: 3 actions: 3 cached" == done.summary
    assert "ONE\nONE\n" == space.read(OUT)


def test_deleted_link_is_restored(space: Space) -> None:
    """The link to the outputs comes back, also when nothing else is to be done."""
    chain(space)
    settle(space, "//k:copy")
    (space.root / "hidet-bin").unlink()

    space.build("//k:copy")

    assert "ONE\nONE\n" == space.read(OUT)


def test_link_follows_the_platform_asked_for(space: Space) -> None:
    """After a build for another platform the link comes back to the first one."""
    chain(space)
    settle(space, "//k:copy")
    space.build("//k:copy", "--platforms=cpu --arch=x86-64-v4")
    other = os.readlink(space.root / "hidet-bin")

    space.build("//k:copy")

    assert ("hidet-out/cpu-x86-64-v4", "hidet-out/cpu-x86-64-v3") == (other, os.readlink(space.root / "hidet-bin"))


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"garbage" * 999], ids=["empty", "zeros", "garbage"])
def test_spoiled_state_is_no_obstacle(space: Space, content: bytes) -> None:
    """State files that hold anything else are as good as none."""
    chain(space)
    for path in (space.root / "hidet-out/.state").rglob("*"):
        if path.is_file():
            path.write_bytes(content)
    space.write("k/a.txt", "two\n")

    space.build("//k:copy")

    assert "TWO\nTWO\n" == space.read(OUT)
    assert "INFO: 1 target up to date" == space.build("//k:copy").summary


# ---- spoiled caches


def flip(path: Path) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.chmod(0o644)
    path.write_bytes(content)


def garble(path: Path) -> None:
    """Write something else."""
    path.chmod(0o644)
    path.write_bytes(os.urandom(1000))


def halve(path: Path) -> None:
    """Cut the second half off."""
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size // 2)


def forbid(path: Path) -> None:
    """Make it unreadable."""
    path.chmod(0)


def cache_files(space: Space, kind: str) -> list[Path]:
    """The files of the disk cache: results (`ac`) or content (`cas`)."""
    return [path for path in (space.cache / "hidet-build" / kind).rglob("*") if path.is_file() and path.stat().st_size]


@pytest.mark.parametrize("kind", ["ac", "cas"])
@pytest.mark.parametrize(
    "spoil", [flip, garble, halve, truncate, forbid, link_nowhere, Path.unlink], ids=lambda one: one.__name__
)
def test_spoiled_cache_is_never_served(space: Space, kind: str, spoil: Callable[[Path], None]) -> None:
    """A cache in which every file is damaged costs time, and nothing else."""
    chain(space)
    shutil.rmtree(space.root / "hidet-out")
    for path in cache_files(space, kind):
        spoil(path)

    space.build("//k:copy")

    assert "ONE\nONE\n" == space.read(OUT)
    shutil.rmtree(space.root / "hidet-out")
    assert "INFO: built 1 target: 3 actions: 3 cached" == space.build("//k:copy").summary


def test_blob_edited_through_an_output_is_never_served(space: Space, tmp_path: Path) -> None:
    """An output may be another name of the stored file; what is written to it reaches nobody else."""
    chain(space)
    same_size((space.root / OUT).resolve())
    other = Space(tmp_path / "other")
    other.write("k/BUILD.yaml", CHAIN)
    other.write("k/a.txt", "# note\none\n")

    done = other.build("//k:copy", environment={"XDG_CACHE_HOME": str(space.cache)})

    assert "ONE\nONE\n" == other.read(OUT)
    assert len(done.actions) <= 1


def test_foreign_result_is_not_taken(space: Space) -> None:
    """A result that has not this action's outputs is a miss, whatever entry it stands in."""
    chain(space)
    entries = cache_files(space, "ac")
    contents = [path.read_bytes() for path in entries]
    for path, content in zip(entries, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    shutil.rmtree(space.root / "hidet-out")

    done = space.run("//k:copy", "--nocache")

    assert 0 == done.code
    assert "ONE\nONE\n" == space.read(OUT)


@pytest.mark.parametrize("place", ["/proc/self/cache", "{base}/file/cache"])
def test_unwritable_cache_is_an_error_that_says_what_to_do(space: Space, place: str) -> None:
    """A cache that cannot be written to is named, with the flag that puts it elsewhere."""
    (space.base / "file").write_text("")
    chain(space)
    folder = place.format(base=space.base)

    done = space.run("//k:copy", f"--disk_cache={folder}", "--nocache")

    assert 36 == done.code
    assert folder in done.err
    assert "--disk_cache" in done.err


def test_build_goes_on_when_the_cache_is_full(space: Space) -> None:
    """On a full device nothing is stored, and the build is right all the same."""
    space.write(
        "k/BUILD.yaml",
        targets("{rule: command, name: big, arguments: [cp, a.bin, b.bin], inputs: [a.bin], outputs: [b.bin]}"),
    )
    content = os.urandom(1 << 20)
    (space.root / "k/a.bin").write_bytes(content)
    full = space.base / "full"
    full.mkdir()
    script = 'mount -t tmpfs -o size=256k none "$1" && shift && exec "$@"'
    if subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", full, "true"], check=False, capture_output=True
    ).returncode:
        pytest.skip("may not mount here")
    words = ["unshare", "-m", "sh", "-c", script, "sh", str(full), *PROGRAM, "//k:big", f"--disk_cache={full}"]

    done = subprocess.run(words, cwd=space.root, env=space.environment, capture_output=True, check=False)

    assert (0, content) == (done.returncode, (space.root / "hidet-bin/k/big/b.bin").read_bytes()), done.stderr


# ---- clocks


def test_touch_runs_nothing(space: Space) -> None:
    """A new time without new content changes nothing."""
    chain(space)
    os.utime(space.root / "k/a.txt")
    os.utime(space.root / "k/BUILD.yaml")

    done = space.build("//k:copy")

    assert "INFO: 1 target up to date" == done.summary


def test_old_time_does_not_hide_an_edit(space: Space) -> None:
    """A file that came back from an archive is older than what was built from it, and counts."""
    chain(space)
    settle(space, "//k:copy")
    path = space.write("k/a.txt", "two\n")
    os.utime(path, (946684800, 946684800))

    space.build("//k:copy")

    assert "TWO\nTWO\n" == space.read(OUT)


@pytest.mark.parametrize("settled", [False, True])
def test_same_size_and_time_do_not_hide_an_edit(space: Space, settled: bool) -> None:
    """An edit right after a build, with the old size and time, counts."""
    chain(space)
    if settled:
        settle(space, "//k:copy")
    path = space.root / "k/a.txt"
    before = path.stat()
    path.write_text("# note\ntwo\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    space.build("//k:copy")

    assert "TWO\nTWO\n" == space.read(OUT)


def test_time_in_the_future_does_not_hide_an_edit(space: Space) -> None:
    """A file from a machine whose clock is ahead counts like any other."""
    chain(space)
    path = space.root / "k/a.txt"
    for text in ("# note\ntwo\n", "# note\nsix\n"):
        path.write_text(text)
        os.utime(path, (4102444800, 4102444800))
        space.build("//k:copy")

    assert "SIX\nSIX\n" == space.read(OUT)


# ---- edits while a build runs


def gated(space: Space) -> None:
    """A command that reads `a.txt`, says that it has, and waits for `go`."""
    gate = f"touch {space.base}/started; while [ ! -e {space.base}/go ]; do sleep 0.02; done"
    space.write(
        "k/BUILD.yaml",
        f"""\
        targets:
          - rule: command
            name: slow
            arguments: [sh, -c, "cat *.txt > out; {gate}"]
            inputs: [glob: ["*.txt"]]
            outputs: [out]
        """,
    )
    space.write("k/a.txt", "one\n")


def edit_meanwhile(space: Space, edit: Callable[[], object]) -> int:
    """Start a build, make an edit when its command has read its inputs, and let it end."""
    build = space.start("//k:slow")
    deadline = time.monotonic() + 60
    while not (space.base / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    edit()
    (space.base / "go").touch()
    build.communicate(timeout=60)
    return build.returncode


def test_source_edited_while_an_action_runs(space: Space) -> None:
    """The action runs again, and what it made of the old content is not kept for the new one, or the other way."""
    gated(space)

    code = edit_meanwhile(space, lambda: space.write("k/a.txt", "two\n"))

    assert (0, "two\n") == (code, space.read("hidet-bin/k/slow/out"))
    space.write("k/a.txt", "one\n")
    space.build("//k:slow")
    assert "one\n" == space.read("hidet-bin/k/slow/out")


def test_source_edited_and_restored_while_an_action_runs(space: Space) -> None:
    """An edit that was taken back, times and all, still makes the action run again."""
    gated(space)
    path = space.root / "k/a.txt"

    def edit() -> None:
        before = path.stat()
        path.write_text("two\n")
        path.write_text("one\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    code = edit_meanwhile(space, edit)

    assert (0, "one\n") == (code, space.read("hidet-bin/k/slow/out"))


def test_declaration_edited_while_a_build_runs(space: Space) -> None:
    """An edit of BUILD.yaml during a build counts in the next one."""
    gated(space)

    def edit() -> None:
        path = space.root / "k/BUILD.yaml"
        path.write_text(path.read_text().replace("cat *.txt", "cat *.txt *.txt"))

    edit_meanwhile(space, edit)
    space.build("//k:slow")

    assert "one\none\n" == space.read("hidet-bin/k/slow/out")


def test_file_added_to_a_glob_while_a_build_runs(space: Space) -> None:
    """A file that a glob matches and that came during a build counts in the next one."""
    gated(space)

    edit_meanwhile(space, lambda: space.write("k/b.txt", "two\n"))
    space.build("//k:slow")

    assert "one\ntwo\n" == space.read("hidet-bin/k/slow/out")


def test_output_made_anew_by_another_build_meanwhile(space: Space) -> None:
    """A build goes on with what it saw, whatever a later one makes of newer sources; neither spoils the cache."""
    gated(space)
    space.write("k/b.md", "one\n")
    more = """\
          - {rule: command, name: first, arguments: [cp, b.md, out], inputs: [b.md], outputs: [out]}
          - {rule: command, name: second, arguments: [cp, first/out, out], inputs: [":first"], outputs: [out]}
        """
    path = space.root / "k/BUILD.yaml"
    path.write_text(path.read_text() + textwrap.indent(textwrap.dedent(more), "  "))
    build = space.start("//k:second", "//k:slow", "-j1")
    deadline = time.monotonic() + 60
    while not (space.base / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    before = ((space.root / "hidet-out/cpu-x86-64-v3/k/first/out").exists(), (space.root / "hidet-bin").exists())
    space.write("k/b.md", "two\n")
    space.build("//k:first")
    (space.base / "go").touch()
    build.communicate(timeout=60)
    old = space.read("hidet-bin/k/second/out")
    space.build("//k:second")
    new = space.read("hidet-bin/k/second/out")
    space.write("k/b.md", "one\n")
    space.build("//k:second")

    assert ((True, False), 0) == (before, build.returncode)
    assert ("one\n", "two\n", "one\n") == (old, new, space.read("hidet-bin/k/second/out"))


# ---- declarations


def test_file_added_to_and_deleted_from_a_glob(space: Space) -> None:
    """What a glob matches is looked up anew in each build."""
    (space.base / "go").touch()
    gated(space)
    space.build("//k:slow")
    settle(space, "//k:slow")
    space.write("k/b.txt", "two\n")

    added = space.build("//k:slow")

    assert ["Command //k:slow"] == added.actions
    assert "one\ntwo\n" == space.read("hidet-bin/k/slow/out")
    (space.root / "k/a.txt").unlink()
    space.build("//k:slow")
    assert "two\n" == space.read("hidet-bin/k/slow/out")


def test_package_added_and_removed(space: Space) -> None:
    """A wildcard sees packages come and go."""
    chain(space)
    space.build("//...")
    settle(space, "//...")
    space.write("new/BUILD.yaml", targets("{rule: command, name: a, arguments: [touch, o], outputs: [o]}"))

    added = space.build("//...")
    shutil.rmtree(space.root / "new")
    removed = space.build("//...")

    assert ["Command //new:a"] == added.actions
    assert "INFO: 3 targets up to date" == removed.summary


def test_package_that_takes_files_from_a_glob(space: Space) -> None:
    """A new BUILD.yaml in a folder takes its files away from the package above."""
    (space.base / "go").touch()
    space.write(
        "k/BUILD.yaml",
        """\
        targets:
          - rule: command
            name: list
            arguments: [sh, -c, "find . -name '*.txt' | sort > out"]
            inputs: [glob: ["**/*.txt"]]
            outputs: [out]
        """,
    )
    space.write("k/a.txt", "")
    space.write("k/sub/b.txt", "")
    space.build("//k:list")
    settle(space, "//k:list")
    before = space.read("hidet-bin/k/list/out")
    space.write("k/sub/BUILD.yaml", "targets: []\n")

    space.build("//k:list")

    assert ("./a.txt\n./sub/b.txt\n", "./a.txt\n") == (before, space.read("hidet-bin/k/list/out"))


OWN_RULE = '''\
    """A rule of this workspace."""

    from hidet_build.rule import DefaultInfo, rule

    from .words import WORD


    @rule()
    def say(ctx):
        """Writes a word."""
        out = ctx.output("out")
        line = f"echo {WORD} > out"
        ctx.action("Say", tool="command:sh", arguments=["sh", "-c", line], inputs={}, outputs={"out": out})
        return [DefaultInfo((out,))]
    '''


def test_edited_rule_module_counts(space: Space) -> None:
    """An edit of a rule module, or of what it imports, is seen."""
    space.write("rules/BUILD.yaml", "targets: []\n")
    space.write("rules/say.py", OWN_RULE)
    space.write("rules/words.py", 'WORD = "one"\n')
    space.write("k/BUILD.yaml", 'load: ["//rules:say.py"]\ntargets: [{rule: say, name: a}]\n')
    space.build("//k:a")
    settle(space, "//k:a")
    first = space.read("hidet-bin/k/a/out")
    space.write("rules/words.py", 'WORD = "two"\n')
    space.build("//k:a")
    second = space.read("hidet-bin/k/a/out")
    space.write("rules/say.py", OWN_RULE.replace("{WORD}", "{WORD} {WORD}"))
    space.build("//k:a")

    assert ("one\n", "two\n", "two two\n") == (first, second, space.read("hidet-bin/k/a/out"))
    assert [] == list((space.root / "rules").rglob("*.pyc"))


def test_deleted_source_is_an_error(space: Space) -> None:
    """A source that is gone is not up to date, however young the last build."""
    chain(space)
    (space.root / "k/a.txt").unlink()

    done = space.run("//k:copy")

    assert 1 == done.code
    assert "a.txt" in done.err


@pytest.mark.parametrize(
    ("before", "after"), [("x", "x/"), ("x/", "x"), ("x", "x/y"), ("x/y", "x"), ("x/", "x/y"), ("x/y", "x/")]
)
def test_output_that_becomes_another_kind(space: Space, before: str, after: str) -> None:
    """A file may become a folder of that name, and the other way round."""
    lines = {"x": "echo 1 > x", "x/": "echo 1 > x/f", "x/y": "echo 1 > x/y"}
    paths = {"x": "x", "x/": "x/f", "x/y": "x/y"}
    found = []
    for output in (before, after, before):
        entry = f"{{rule: command, name: a, arguments: [sh, -c, '{lines[output]}'], outputs: ['{output}']}}"
        space.write("k/BUILD.yaml", targets(entry))
        space.build("//k:a")
        found.append(space.read(f"hidet-bin/k/a/{paths[output]}"))

    assert ["1\n"] * 3 == found


def test_moved_workspace_is_up_to_date(space: Space) -> None:
    """A workspace that was renamed with its outputs needs no build."""
    chain(space)
    space.root = space.root.rename(space.base / "moved")

    assert "INFO: 1 target up to date" == space.build("//k:copy").summary


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_edits_end_as_a_clean_build_would(space: Space, seed: int) -> None:
    """After each of a dozen random edits and spoilings, the outputs are those of the sources as they are."""
    choice = random.Random(seed)
    lines, word = {"a.txt": ["one"]}, "end"

    def write() -> None:
        for name, text in lines.items():
            space.write(f"k/{name}", "".join(f"{line}\n" for line in text))
        space.write(
            "k/BUILD.yaml",
            targets(
                "{rule: command, name: whole, arguments: [sh, -c, 'cat *.txt > out'], "
                "inputs: [glob: ['*.txt']], outputs: [out]}",
                "{rule: command, name: split, arguments: [split, -l1, -a1, whole/out, d/], "
                "inputs: [':whole'], outputs: [d/]}",
                f"{{rule: command, name: join, arguments: [sh, -c, 'cat split/d/* > out; echo {word} >> out'], "
                "inputs: [':split'], outputs: [out]}",
            ),
        )

    def spoil(folder: Path) -> None:
        made = [path for path in folder.rglob("*") if path.is_file() and not {".state", "locks"} & set(path.parts)]
        for path in choice.sample(made, min(3, len(made))):
            choice.choice([append, truncate, Path.unlink])(path)

    for step in range(12):
        write()
        space.build("//k:join", *choice.choice([[], [], ["--platforms=cpu --arch=x86-64-v4"]]))
        expected = [line for name in sorted(lines) for line in lines[name]]
        actual = space.read("hidet-bin/k/join/out").split()
        parts = list((space.root / "hidet-bin/k/split/d").iterdir())

        assert ([*expected, word], len(expected)) == (actual, len(parts)), f"step {step}"
        edit = choice.randrange(7)
        if edit == 0:
            lines[choice.choice(["a.txt", "b.txt", "c.txt"])] = [f"{step}", "two"][: choice.randint(1, 2)]
        elif edit == 1 and len(lines) > 1:
            gone = choice.choice(sorted(lines))
            del lines[gone]
            (space.root / "k" / gone).unlink()
        elif edit == 2:
            word = f"end{step}"
        elif edit == 3:
            spoil(space.root / "hidet-out")
        elif edit == 4:
            spoil(space.cache / "hidet-build/cas")
        elif edit == 5:
            shutil.rmtree(
                space.root / "hidet-out" / choice.choice([".", ".state", "cpu-x86-64-v3"]), ignore_errors=True
            )
        else:
            shutil.rmtree(space.cache / "hidet-build" / choice.choice(["ac", "cas"]))
