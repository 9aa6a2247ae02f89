"""Names, links, devices and folders: what commands may leave behind, and what is never written where."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.space import PROGRAM, Ended, Space, targets


def command(space: Space, *entries: str) -> None:
    """Package `k` with commands written in flow style, without their `rule`."""
    space.write("k/BUILD.yaml", targets(*(f"{{rule: command, {entry}}}" for entry in entries)))


def script(name: str, text: str, more: str = "outputs: [out]") -> str:
    """A target whose command is a line of shell."""
    quoted = text.replace("'", "''")
    return f"name: {name}, arguments: [sh, -c, '{quoted}'], {more}"


def is_one_located_error(done: Ended) -> bool:
    """Whether a run ended with an error that names a place in the BUILD.yaml, and no traceback."""
    return done.code == 1 and "ERROR: k/BUILD.yaml:" in done.err and "Traceback" not in done.err


# ---- names


@pytest.mark.parametrize(
    "name",
    ["naïve kernel$1.txt", "设备.txt", "a b.txt", "it's.txt", "50%.txt", "#1.txt", "[x].txt", "a;b&c.txt", "..a", "~a"],
)
def test_unusual_file_names_work(space: Space, name: str) -> None:
    """Names with blanks, `$`, accents and Chinese characters are names like any other."""
    quoted = name.replace("'", "''")
    command(
        space,
        f"name: copy, arguments: [cp, '{quoted}', './{quoted}.out'], inputs: ['{quoted}'], outputs: ['{quoted}.out']",
    )
    space.write(f"k/{name}", "text\n")

    space.build("//k:copy")

    assert "text\n" == space.read(f"hidet-bin/k/copy/{name}.out")


@pytest.mark.parametrize("name", ["a:b.txt", "a*b.txt", r"a\\b.txt", r"a\nb.txt", "@a.txt", ":a"])
def test_names_that_cannot_be_labels_are_located_errors(space: Space, name: str) -> None:
    """A file that no label can name is refused where it is written."""
    command(space, f'name: copy, arguments: [cp, x, out], inputs: ["{name}"], outputs: [out]')

    done = space.run("//k:copy")

    assert is_one_located_error(done), done.err


@pytest.mark.parametrize("name", ["a:b.txt", "a\nb.txt", os.fsdecode(b"\xff.txt")])
def test_names_that_a_glob_matches_and_no_label_can_name(space: Space, name: str) -> None:
    """A glob that matches such a file says so, and how to leave it out."""
    command(space, "name: copy, arguments: [touch, out], inputs: [glob: ['*.txt']], outputs: [out]")
    (space.root / "k" / name).write_text("")

    done = space.run("//k:copy")

    assert is_one_located_error(done), done.err
    assert "rename the file" in done.err


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", ".", "a//b"])
def test_outputs_stay_in_their_folder(space: Space, name: str) -> None:
    """An output is a path below the target's own folder."""
    command(space, script("make", "touch out", f"outputs: ['{name}']"))

    done = space.run("//k:make")

    assert is_one_located_error(done), done.err


def test_package_and_target_names_with_blanks(space: Space) -> None:
    """Packages and targets may have such names too, and their failures can be pasted into a shell."""
    space.write(
        "my kérnels/BUILD.yaml", targets("{rule: command, name: it's $1, arguments: [cat, no], outputs: [out]}")
    )

    done = space.run("//...")
    line = done.err.partition("to reproduce: ")[2].partition("\n")[0]

    assert 1 == done.code
    assert "//my kérnels:it's $1" in done.err
    assert 1 == os.waitstatus_to_exitcode(os.system(f"({line}) 2>/dev/null"))


def test_failure_in_a_deep_package(space: Space) -> None:
    """A path too long for one file name does not hide what went wrong."""
    package = "/".join(["a_package_with_a_long_name"] * 12)
    space.write(
        f"{package}/BUILD.yaml", targets("{rule: command, name: a, arguments: [sh, -c, 'exit 3'], outputs: [out]}")
    )

    done = space.run("//...")

    assert 1 == done.code
    assert "failed (exit code 3)" in done.err
    assert "Traceback" not in done.err


# ---- links


def test_links_that_go_in_circles(space: Space) -> None:
    """A link to a parent folder, and one to itself, neither hang a glob nor hide what is beside them."""
    command(space, script("list", "find -L . -name '*.py' | sort > out", "inputs: [glob: ['**/*.py']], outputs: [out]"))
    for path in ("k/a.py", "k/sub/b.py"):
        space.write(path, "")
    (space.root / "k/loop").symlink_to("..")
    (space.root / "k/sub/up").symlink_to("../..")
    (space.root / "k/self").symlink_to("self")
    (space.root / "k/nowhere.py").symlink_to("no/such/file")

    space.build("//...")

    assert "./a.py\n./sub/b.py\n" == space.read("hidet-bin/k/list/out")


def test_source_that_is_a_link(space: Space) -> None:
    """A source may be a link; the content it leads to counts."""
    command(space, "name: copy, arguments: [cp, a.txt, out], inputs: [a.txt], outputs: [out]")
    outside = space.base / "outside.txt"
    outside.write_text("one\n")
    (space.root / "k/a.txt").symlink_to(outside)
    space.build("//k:copy")
    outside.write_text("two\n")

    space.build("//k:copy")

    assert "two\n" == space.read("hidet-bin/k/copy/out")


def test_workspace_reached_through_a_link(space: Space) -> None:
    """A workspace is the same by another path."""
    command(space, "name: copy, arguments: [cp, a.txt, out], inputs: [a.txt], outputs: [out]")
    space.write("k/a.txt", "one\n")
    space.build("//k:copy")
    link = space.base / "link"
    link.symlink_to(space.root)

    done = space.run("//k:copy", cwd=str(link))

    assert (0, "INFO: 1 target up to date") == (done.code, done.summary)


# ---- what commands leave behind


def test_output_folder(space: Space) -> None:
    """A folder of outputs is published whole, program and all, and can be an input."""
    command(
        space,
        script(
            "make",
            "mkdir d/sub; echo 1 > d/sub/x; printf '#!/bin/sh\\necho hi' > d/tool; chmod +x d/tool",
            "outputs: [d/]",
        ),
        script("use", "make/d/tool > out; cat make/d/sub/x >> out", "inputs: [':make'], outputs: [out]"),
    )

    space.build("//k:use")

    assert "hi\n1\n" == space.read("hidet-bin/k/use/out")
    assert os.access(space.root / "hidet-bin/k/make/d/tool", os.X_OK)


def test_output_folder_holds_nothing_old(space: Space) -> None:
    """Files that a command does not make any more disappear from its output folder, and strangers do."""
    command(space, script("make", "cp *.txt d", "inputs: [glob: ['*.txt']], outputs: [d/]"))
    for name in ("a", "b"):
        space.write(f"k/{name}.txt", "")
    space.build("//k:make")
    (space.root / "k/b.txt").unlink()
    folder = (space.root / "hidet-bin/k/make/d").resolve()
    (folder / "stranger").mkdir()
    (folder / "stranger/c.txt").write_text("")

    space.build("//k:make")

    assert ["a.txt"] == [path.name for path in folder.rglob("*") if path.is_file()]


def test_output_folder_replaced_by_a_link(space: Space) -> None:
    """A link that somebody put in place of an output folder goes; what it led to stays."""
    command(space, script("make", "touch d/a", "outputs: [d/]"))
    space.build("//k:make")
    folder = (space.root / "hidet-bin/k/make/d").resolve()
    shutil.rmtree(folder)
    (space.base / "mine").mkdir()
    (space.base / "mine/file").write_text("precious")
    folder.symlink_to(space.base / "mine")

    space.build("//k:make")

    assert (False, ["a"]) == (folder.is_symlink(), os.listdir(folder))
    assert ["file"] == os.listdir(space.base / "mine")


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("true", "out"),
        ("mkdir out", "out"),
        ("mkfifo out", "out"),
        ("rmdir d", "d/"),
        ("rmdir d; touch d", "d/"),
        ("ln -s /etc/passwd out", "out"),
        ("ln -s nowhere out", "out"),
        ("ln -s {mine} out", "out"),
        ("rmdir d; ln -s {mine} d", "d/"),
        ("ln -s {mine} d/inner", "d/"),
        ("ln -s {mine}/file d/inner", "d/"),
        ("rmdir d; ln -s {mine} d", "d/file"),
    ],
)
def test_output_that_is_not_what_was_declared(space: Space, text: str, outputs: str) -> None:
    """An output that is missing, of another kind, or a link to elsewhere is an error; nothing outside is touched."""
    mine = space.base / "mine"
    mine.mkdir()
    (mine / "file").write_text("precious")
    before = (mine / "file").stat()
    command(space, script("make", text.format(mine=mine), f"outputs: ['{outputs}']"))

    done = space.run("//k:make")

    after = (mine / "file").stat()
    assert is_one_located_error(done), done.err
    assert (before.st_mode, before.st_mtime_ns, 1) == (after.st_mode, after.st_mtime_ns, after.st_nlink)


@pytest.mark.parametrize("tag", ["", "tags: [no-cache], "])
def test_output_with_another_name_outside(space: Space, tag: str) -> None:
    """A hard link to somebody's file becomes an output; the file stays as it is."""
    mine = space.base / "mine"
    mine.write_text("precious")
    before = mine.stat()
    command(space, script("make", f"ln {mine} out", f"{tag}outputs: [out]"))

    space.build("//k:make")

    after = mine.stat()
    assert "precious" == space.read("hidet-bin/k/make/out")
    assert (before.st_mode, before.st_mtime_ns) == (after.st_mode, after.st_mtime_ns)


def test_links_to_inputs_become_files(space: Space) -> None:
    """`cp -r` of sources copies the links they are; the outputs are files all the same."""
    command(space, "name: copy, arguments: [cp, -r, docs, d], inputs: [glob: ['docs/**']], outputs: [d/]")
    space.write("k/docs/a.txt", "a\n")
    space.write("k/docs/sub/b.txt", "b\n")

    space.build("//k:copy")

    copied = space.root / "hidet-bin/k/copy/d/docs/sub/b.txt"
    assert (False, "b\n") == (copied.is_symlink(), copied.read_text())


def test_link_to_another_output_becomes_a_file(space: Space) -> None:
    """Of two outputs one may be a link to the other, as with `libx.so -> libx.so.1`."""
    command(space, script("make", "echo 1 > out.1; ln -s out.1 out", "outputs: [out, out.1]"))

    space.build("//k:make")

    out = space.root / "hidet-bin/k/make/out"
    assert (False, "1\n") == (out.is_symlink(), out.read_text())


def test_executable_bit_is_kept(space: Space) -> None:
    """Programs stay programs: as sources, as outputs, and from the cache."""
    command(
        space,
        script("make", "./tool > out && cp tool copy", "inputs: [tool], outputs: [out, copy]"),
        script("use", "make/copy > out", "inputs: [':make'], outputs: [out]"),
    )
    tool = space.write("k/tool", "#!/bin/sh\necho hi\n")
    tool.chmod(0o755)
    space.build("//k:use")
    shutil.rmtree(space.root / "hidet-out")

    space.build("//k:use")

    copy = space.root / "hidet-bin/k/make/copy"
    assert ("hi\n", True) == (space.read("hidet-bin/k/use/out"), bool(copy.stat().st_mode & stat.S_IXUSR))
    tool.chmod(0o644)
    assert 1 == space.run("//k:make").code


def test_read_only_folder_left_by_a_command(space: Space) -> None:
    """A command may leave a folder without write permission; its execution root goes all the same."""
    command(space, script("make", "mkdir d/x; touch d/x/f; chmod 555 d/x d", "outputs: [d/]"))

    space.build("//k:make")

    assert (space.root / "hidet-bin/k/make/d/x/f").exists()
    assert [] == os.listdir(space.root / "hidet-out/.state/exec")


def test_process_left_by_a_command(space: Space) -> None:
    """What a command started in the background ends with it."""
    command(space, script("make", f"(sleep 3; touch {space.base}/late) & touch out"))

    space.build("//k:make")
    time.sleep(3.5)

    assert not (space.base / "late").exists()


# ---- inputs


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_command_that_changes_an_input_made_before(space: Space, kind: str) -> None:
    """A made file is shared by everybody who reads it; a command that changes it fails, and the file is made anew."""
    output = "f" if kind == "file" else "d/"
    path = "make/f" if kind == "file" else "make/d/f"
    command(
        space,
        script("make", f"echo 1 > {path.removeprefix('make/')}", f"outputs: ['{output}']"),
        script("spoil", f"chmod u+w {path}; echo 2 > {path}; touch out", "inputs: [':make'], outputs: [out]"),
        script("use", f"cp {path} out", "inputs: [':make'], outputs: [out]"),
    )

    done = space.run("//k:spoil")
    space.build("//k:use")

    assert is_one_located_error(done), done.err
    assert f"changed its own input k/{path}" in done.err
    assert "1\n" == space.read("hidet-bin/k/use/out")


def test_command_that_replaces_an_input(space: Space) -> None:
    """`sed -i` puts a new file in the place of an input: that is the command's own affair."""
    command(space, script("make", "sed -i s/1/2/ a.txt; cp a.txt out", "inputs: [a.txt], outputs: [out]"))
    space.write("k/a.txt", "1\n")

    space.build("//k:make")

    assert ("1\n", "2\n") == (space.read("k/a.txt"), space.read("hidet-bin/k/make/out"))


def test_command_that_writes_to_a_source(space: Space) -> None:
    """A command that writes to a source fails, and is told to copy it."""
    command(space, script("make", "date +%N >> a.txt; touch out", "inputs: [a.txt], outputs: [out]"))
    space.write("k/a.txt", "")

    done = space.run("//k:make")

    assert is_one_located_error(done), done.err
    assert "copy it first" in done.err


@pytest.mark.parametrize("inputs", ["[a.txt]", "[glob: ['*.txt']]"])
def test_output_that_is_an_input_is_an_error(space: Space, inputs: str) -> None:
    """A command cannot write its output over a source."""
    command(space, script("make", "echo 2 > a.txt", f"inputs: {inputs}, outputs: [a.txt]"))
    space.write("k/a.txt", "1\n")

    done = space.run("//k:make")

    assert is_one_located_error(done), done.err
    assert "1\n" == space.read("k/a.txt")


def test_source_where_another_target_puts_its_file(space: Space) -> None:
    """Two inputs with one path are an error, not a choice."""
    command(
        space,
        script("make", "echo made > x", "outputs: [x]"),
        script("use", "cp make/x out", "inputs: [':make', make/x], outputs: [out]"),
    )
    space.write("k/make/x", "source")

    done = space.run("//k:use")

    assert is_one_located_error(done), done.err
    assert "k/make/x" in done.err


def test_undeclared_source_is_not_there(space: Space) -> None:
    """A command sees what it declares, and nothing else of the workspace."""
    command(space, script("make", "ls -A > out; ls -A .. >> out", "inputs: [a.txt], outputs: [out]"))
    for name in ("a.txt", "b.txt"):
        space.write(f"k/{name}", "")

    space.build("//k:make")

    assert "a.txt\nout\nk\n" == space.read("hidet-bin/k/make/out").replace("BUILD.yaml\n", "")


# ---- where a command runs


def test_working_directory_and_environment(space: Space) -> None:
    """A command runs in its package's folder, with the variables it declares and none of the user's."""
    command(
        space, script("make", "basename $PWD > out; env | sed s/=.*// | sort >> out", "env: {WORD: x}, outputs: [out]")
    )

    space.build("//k:make", environment={"SECRET": "1", "LD_PRELOAD": "", "CPATH": "/x", "BASH_ENV": "/x"})

    names = space.read("hidet-bin/k/make/out").split()
    assert ("k", True) == (names[0], "WORD" in names)
    assert set(names[1:]) <= {"HOME", "LC_ALL", "OLDPWD", "PATH", "PWD", "SHLVL", "TMPDIR", "WORD", "_"}


def test_exclusive_action_runs_alone(space: Space) -> None:
    """While an action tagged `exclusive` runs, nothing else does."""
    alone = f"ls {space.base}/running | wc -l > out; sleep 0.2; ls {space.base}/running | wc -l >> out"
    busy = [
        script(f"busy{i}", f"touch {space.base}/running/{i}; sleep 0.1; rm {space.base}/running/{i}; touch out")
        for i in range(6)
    ]
    (space.base / "running").mkdir()
    command(space, *busy[:3], script("alone", alone, "tags: [exclusive], outputs: [out]"), *busy[3:])

    space.build("//k:all", "-j4")

    assert "0\n0\n" == space.read("hidet-bin/k/alone/out")


def test_no_cache_keeps_a_result_out_of_the_store(space: Space) -> None:
    """A target tagged `no-cache` is up to date like any other, and is made anew when its outputs are gone."""
    command(space, script("make", "echo unlikely-content > out", "tags: [no-cache], outputs: [out]"))
    space.build("//k:make")
    again = space.build("//k:make")
    stored = [path for path in (space.cache / "hidet-build/cas").rglob("*") if path.is_file()]
    shutil.rmtree(space.root / "hidet-out")

    done = space.build("//k:make")

    assert ([], ["Command //k:make"]) == (again.actions, done.actions)
    assert [] == [path for path in stored if b"unlikely-content" in path.read_bytes()]


def test_manual_target_is_built_by_name_alone(space: Space) -> None:
    """Wildcards pass over targets tagged `manual`."""
    command(space, script("a", "touch out"), script("b", "echo > out", "tags: [manual], outputs: [out]"))

    every, named = space.build("//..."), space.build("//k:b")

    assert (["Command //k:a"], ["Command //k:b"]) == (every.actions, named.actions)


# ---- folders we may and may not write to


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and folder below, with mode, size and time."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def test_workspace_that_may_not_be_written_to(space: Space) -> None:
    """With the outputs elsewhere, nothing is written into the workspace: no link, no state, no pycache."""
    rule = """\
        from hidet_build.rule import DefaultInfo, rule


        @rule()
        def say(ctx):
            out = ctx.output("out")
            ctx.action("Say", tool="command:sh", arguments=["sh", "-c", "echo > out"], inputs={}, outputs={"out": out})
            return [DefaultInfo((out,))]
        """
    space.write("k/BUILD.yaml", 'load: ["//rules:say.py"]\n' + targets("{rule: say, name: a}"))
    space.write("rules/BUILD.yaml", "targets: []\n")
    space.write("rules/say.py", rule)
    folders = [space.root, *(path for path in space.root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    before = listing(space.root)
    flags = [f"--output_base={space.base}/out", "--symlink_prefix=/"]

    try:
        first = space.build("//...", *flags)
        second = space.build("//...", *flags)
        after = listing(space.root)
    finally:
        for folder in folders:
            folder.chmod(0o755)

    assert before == after
    assert (1, "INFO: 1 target up to date") == (len(first.actions), second.summary)
    assert 1 == len(list((space.base / "out").glob("cpu-*/k/a/out")))


def test_outputs_on_another_device(space: Space) -> None:
    """Where the store cannot be linked to, outputs are copies, and as safe as links."""
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == space.root.stat().st_dev:
        pytest.skip("there is no other device")
    command(space, script("make", "mkdir d/s; echo 1 > d/s/x; echo 2 > out", "outputs: [d/, out]"))
    base = elsewhere / f"hidet-build-test-{os.getpid()}-{time.monotonic_ns()}"
    flags = [f"--output_base={base}"]
    try:
        space.build("//k:make", *flags)
        again = space.build("//k:make", *flags)
        out = next(base.glob("cpu-*/k/make/out"))
        out.unlink()
        out.write_text("3\n")
        shutil.rmtree(out.parent / "d")
        restored = space.build("//k:make", *flags)

        assert (["INFO: 1 target up to date"], []) == ([again.summary], restored.actions)
        assert ("2\n", "1\n", 1) == (out.read_text(), (out.parent / "d/s/x").read_text(), out.stat().st_nlink)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def test_nothing_is_left_outside_outputs_and_cache(space: Space) -> None:
    """After builds that succeed and fail, TMPDIR and HOME are empty, and no execution root is left but the failed."""
    command(space, script("good", "mktemp; touch out"), script("bad", "mktemp; exit 1"))
    (space.base / "tmp").mkdir()

    space.run("//k:all", "-k", environment={"TMPDIR": str(space.base / "tmp")})

    assert [[], []] == [os.listdir(space.base / name) for name in ("tmp", "home")]
    assert [] == os.listdir(space.root / "hidet-out/.state/exec")
    assert {"BUILD.yaml", "hidet-bin", "hidet-out", "k"} == set(os.listdir(space.root))
    assert ["BUILD.yaml"] == os.listdir(space.root / "k")


def test_files_of_the_workspace_do_not_get_in_the_way(space: Space) -> None:
    """A workspace may hold a queue.py, a yaml.py or a folder `hidet`: the program never imports them."""
    command(space, script("make", "touch out"))
    for name in ("queue.py", "yaml.py", "networkx/__init__.py", "hidet/__init__.py", "google/__init__.py", "site.py"):
        space.write(name, "raise SystemExit('imported from the workspace')\n")

    space.build("//k:make")

    assert [] == list(space.root.rglob("*.pyc"))


def test_file_where_an_output_folder_must_be(space: Space) -> None:
    """A file that stands where the folder of a target must be gives way."""
    command(space, script("make", "touch out"))
    space.build("//k:make")
    folder = (space.root / "hidet-bin/k/make").resolve()
    shutil.rmtree(folder)
    folder.write_text("a file where a folder must be")

    space.build("//k:make")

    assert (folder / "out").is_file()


@pytest.mark.parametrize("base", [".", "..", "/"])
def test_output_base_that_holds_the_workspace(space: Space, base: str) -> None:
    """Outputs among the sources, or above them, are refused before anything is written."""
    command(space, script("make", "touch out"))
    before = listing(space.root)

    done = space.run("//k:make", f"--output_base={base}")

    assert (2, before) == (done.code, listing(space.root))
    assert "holds the workspace" in done.err


def test_output_base_that_holds_something_else(space: Space) -> None:
    """A folder with other things in it gets no .gitignore that would hide them."""
    command(space, script("make", "touch out"))
    space.write("mine/file", "")

    space.build("//k:make", "--output_base=mine")

    assert {"file", ".state", "cpu-x86-64-v3"} == set(os.listdir(space.root / "mine"))


def test_deleted_current_folder(space: Space) -> None:
    """A shell may stand in a folder that is gone."""
    folder = space.base / "gone"
    folder.mkdir()
    words = ["sh", "-c", 'cd "$1"; rmdir "$1"; shift; exec "$@"', "sh", str(folder), *PROGRAM, "//k:make"]

    done = subprocess.run(words, env=space.environment, capture_output=True, text=True, check=False)

    assert (2, "ERROR: the folder you are in was deleted\nhint: go to your project\n") == (done.returncode, done.stderr)


def test_full_output_folder(space: Space) -> None:
    """A device without space for the outputs is told as such, at the target."""
    command(space, "name: copy, arguments: [cp, a.bin, out], inputs: [a.bin], outputs: [out]")
    (space.root / "k/a.bin").write_bytes(os.urandom(1 << 20))
    space.build("//k:copy")
    full = space.base / "full"
    full.mkdir()
    mount = [
        "unshare",
        "-m",
        "sh",
        "-c",
        'mount -t tmpfs -o size=512k none "$1" && shift && exec "$@"',
        "sh",
        str(full),
    ]
    if subprocess.run([*mount, "true"], check=False, capture_output=True).returncode:
        pytest.skip("may not mount here")
    words = [*mount, *PROGRAM, "//k:copy", f"--output_base={full}"]

    done = subprocess.run(words, cwd=space.root, env=space.environment, capture_output=True, text=True, check=False)

    assert 36 == done.returncode
    assert "ERROR: k/BUILD.yaml:2:5: //k:copy: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
