"""The command line: verbs, flags, patterns, help, exit codes; and `clean`, which deletes only what is ours."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.space import Space, targets


def copy(name: str, source: str = "a.txt", extra: str = "") -> str:
    """A target that copies a file."""
    inputs = f'"{source}"'
    path = f"{source[1:]}/out.txt" if source.startswith(":") else source
    return (
        f"{{rule: command, name: {name}, arguments: [cp, {path}, out.txt], inputs: [{inputs}], "
        f'env: {{N: "{name}"}}, outputs: [out.txt]{extra}}}'
    )


def fail(name: str) -> str:
    """A target whose command fails."""
    return f"{{rule: command, name: {name}, arguments: [sh, -c, 'echo no; exit 3'], outputs: [out.txt]}}"


@pytest.fixture
def tree(space: Space) -> Space:
    """Packages `a` (c, d), `a/b` (b, c) and `x` (x)."""
    space.write("a/BUILD.yaml", targets(copy("c"), copy("d", ":c")))
    space.write("a/b/BUILD.yaml", targets(copy("b"), copy("c")))
    space.write("x/BUILD.yaml", targets(copy("x"), copy("hand", extra=", tags: [manual]")))
    for folder in ("a", "a/b", "x"):
        space.write(f"{folder}/a.txt", "one\n")
    return space


def built(done_actions: list[str]) -> list[str]:
    """The labels of what ran, sorted."""
    return sorted(action.partition(" ")[2] for action in done_actions)


PATTERNS = [
    ("", ["//a:c"], ["//a:c"]),
    ("", ["a:c"], ["//a:c"]),
    ("", ["a/b:c"], ["//a/b:c"]),
    ("", ["//a/b"], ["//a/b:b"]),
    ("", ["a/b"], ["//a/b:b"]),
    ("", ["//a:all"], ["//a:c", "//a:d"]),
    ("", ["//a:*"], ["//a:c", "//a:d"]),
    ("", ["//a/..."], ["//a/b:b", "//a/b:c", "//a:c", "//a:d"]),
    ("", ["//..."], ["//a/b:b", "//a/b:c", "//a:c", "//a:d", "//x:x"]),
    ("", ["//...", "-//a/..."], ["//x:x"]),
    ("", ["//...", "-//a/b/...", "-//a:d"], ["//a:c", "//x:x"]),
    ("", ["--", "//a/...", "-//a/b/..."], ["//a:c", "//a:d"]),
    ("", ["--", "//a/...", "-a/b/..."], ["//a:c", "//a:d"]),
    ("", ["-k", "--", "//x", "-//a/..."], ["//x:x"]),
    ("", ["//x:hand"], ["//x:hand"]),
    ("", ["//a/b:b", "//a/b:b"], ["//a/b:b"]),
    ("", ["//x", "//x/...", "//x:all"], ["//x:x"]),
    ("a", [":c"], ["//a:c"]),
    ("a", ["..."], ["//a/b:b", "//a/b:c", "//a:c", "//a:d"]),
    ("a", ["...", "-:d", "-//a/b:c"], ["//a/b:b", "//a:c"]),
    ("a", ["a/b:c"], ["//a/b:c"]),
    ("a", ["build", "d"], ["//a:c", "//a:d"]),
    ("a/b", [":all"], ["//a/b:b", "//a/b:c"]),
]


@pytest.mark.parametrize(("cwd", "words", "expected"), PATTERNS, ids=[f"{c}: {' '.join(w)}" for c, w, _ in PATTERNS])
def test_patterns(tree: Space, cwd: str, words: list[str], expected: list[str]) -> None:
    """What each form of pattern means, also from a sub folder; `manual` targets only by name."""
    done = tree.run(*words, cwd=cwd)

    assert 0 == done.code, done.err
    assert expected == built(done.actions)


WORDS_ANYWHERE = [
    ["-j", "4", "//a:c"],
    ["-j4", "//a:c"],
    ["--jobs", "4", "//a:c"],
    ["--jobs=4", "build", "//a:c"],
    ["--jobs", "auto", "build", "//a:c"],
    ["--color", "no", "-k", "//a:c"],
    ["--keep-going", "//a:c"],
    ["--lock_timeout", "5", "//a:c"],
    ["//a:c", "-k", "//a:c"],
    ["//a:c", "--jobs", "2"],
    ["build", "//a:c", "--noexplain", "--", "//a:c"],
    ["--platforms", "cpu --arch=x86-64-v3", "//a:c"],
    ["--output_base", "elsewhere", "//a:c"],
]


@pytest.mark.parametrize("words", WORDS_ANYWHERE, ids=" ".join)
def test_flags_anywhere(tree: Space, words: list[str]) -> None:
    """Flags stand before and after the verb and the patterns, with `=` or a blank, with `-` or `_`."""
    done = tree.run(*words)

    assert 0 == done.code, done.err
    assert ["//a:c"] == built(done.actions)


MISTAKES = [
    (["biuld", "//a:c"], 2, "unknown verb 'biuld'", "did you mean 'build'?"),
    (["help", "qurey"], 2, "'qurey' is neither a verb nor a rule", "did you mean 'query'?"),
    (["matmul"], 2, "unknown verb 'matmul'", "hidet-build :matmul"),
    (["--keepgoing", "//a:c"], 2, "unknown flag --keepgoing", "did you mean '--keep_going'?"),
    (["//a:c", "--verbose-failure"], 2, "unknown flag --verbose_failure", "did you mean '--verbose_failures'?"),
    (["-x", "//a:c"], 2, "unknown flag -x", "--help lists the flags"),
    (["-j", "0", "//a:c"], 2, "expected a positive number or auto, not '0'", ""),
    (["-j", "many", "//a:c"], 2, "expected a positive number or auto, not 'many'", ""),
    (["--color=blue", "//a:c"], 2, "invalid choice: 'blue'", ""),
    (["--lock_timeout=soon", "//a:c"], 2, "expected a number of seconds, not 'soon'", ""),
    (["build"], 2, "which targets?", "hidet-build //..."),
    (["-k"], 2, "which targets?", "hidet-build //..."),
    (["query"], 2, "the following arguments are required: EXPRESSION", ""),
    (["info", "output_bas"], 2, "unknown key 'output_bas'", "did you mean 'output_base'?"),
    (["clean", "//a:c"], 2, "unrecognized arguments: //a:c", ""),
    (["//aa:c"], 1, "no such package '//aa': there is no folder 'aa'", ""),
    (["//a:cc"], 1, "no target 'cc' in package //a", "did you mean 'c'?"),
    (["//a/"], 1, "no target 'a' in package //a", "the package has c, d"),
    (["//:nope"], 1, "no target 'nope' in package //", ""),
    (["//nope/..."], 1, "//nope/...: there is no folder nope", ""),
    (["//empty/..."], 1, "//empty/...: no folder there holds a BUILD.yaml", ""),
    (["//manual:all"], 2, "//manual:all: 0 targets match", "tagged `manual`"),
    (["//a/.../c"], 2, "//a/.../c", ""),
    (["///a"], 2, "///a", ""),
    (["//a:"], 2, "has no name after the ':'", ""),
    (["--platforms=gpu", "//a:c"], 2, "gpu", ""),
    (["query", "deps("], 7, "", ""),
]


@pytest.mark.parametrize(("words", "code", "said", "hint"), MISTAKES, ids=[" ".join(one[0]) for one in MISTAKES])
def test_mistakes(tree: Space, words: list[str], code: int, said: str, hint: str) -> None:
    """Each mistake has its exit code, says what is wrong, and what to write instead."""
    tree.write("empty/note.txt", "")
    tree.write("manual/BUILD.yaml", targets(copy("m", extra=", tags: [manual]")))

    done = tree.run(*words)

    assert (code, "") == (done.code, done.out), done.err
    assert said in done.err
    assert hint in done.err
    assert done.err.startswith("ERROR: ")
    assert "Traceback" not in done.err


def test_alone(space: Space) -> None:
    """The program alone says on stderr what it is and how to use it, exit code 2; no workspace is needed for help."""
    outside = space.run(cwd="..")

    assert 2 == outside.code
    assert "usage: hidet-build [VERB] [FLAGS] PATTERNS..." in outside.err
    assert "" == outside.out


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help(space: Space, words: list[str]) -> None:
    """The overview goes to stdout and lists all verbs."""
    done = space.run(*words, cwd="..")

    assert (0, "") == (done.code, done.err)
    for verb in ("build", "query", "clean", "info", "version", "help"):
        assert re.search(rf"^  {verb} ", done.out, re.MULTILINE)


@pytest.mark.parametrize("verb", ["build", "query", "clean", "info", "version", "help"])
def test_help_pages(space: Space, verb: str) -> None:
    """`help VERB`, `VERB --help` and `--help VERB` are one page."""
    pages = {space.run(*words, cwd="..").out for words in (["help", verb], [verb, "--help"], ["--help", verb])}

    assert 1 == len(pages)
    assert f"usage: hidet-build {verb}" in pages.pop()


def test_version(space: Space) -> None:
    """`version` and `--version` print one line on stdout."""
    ends = [space.run(word, cwd="..") for word in ("version", "--version")]

    assert re.fullmatch(r"hidet-build \d+\.\d+\S*\n", ends[0].out)
    assert ends[0] == ends[1]


def test_info(space: Space) -> None:
    """`info` lists keys and values, `info KEY ...` prints values alone; every listed key can be asked for."""
    everything = space.run("info")
    rows = dict(line.split(": ", 1) for line in everything.out.splitlines())
    alone = space.run("info", *rows)

    assert 0 == everything.code == alone.code
    assert list(rows.values()) == alone.out.splitlines()
    assert str(space.root) == rows["workspace"]
    assert str(space.root / "hidet-out") == rows["output_base"]
    assert str(space.cache / "hidet-build") == rows["disk_cache"]
    assert sys.executable == rows["python"]


def test_info_follows_flags_and_variables(space: Space) -> None:
    """The places `info` names are those a build with the same flags and variables uses; flags win."""
    variables = {"HIDET_BUILD_OUTPUT_BASE": "/v/out", "HIDET_BUILD_DISK_CACHE": "/v/cache"}
    asked = ("info", "output_base", "disk_cache")

    assert "/v/out\n/v/cache\n" == space.run(*asked, environment=variables).out
    flags = ("--output_base=/f/out", "--disk_cache=/f/cache")
    assert "/f/out\n/f/cache\n" == space.run(*asked, *flags, environment=variables).out


def test_no_workspace(space: Space) -> None:
    """Outside of a workspace one is told what makes one."""
    done = space.run("//...", cwd="..")

    assert 2 == done.code
    assert "no workspace here" in done.err
    assert "workspace: {name: my_kernels}" in done.err


def test_keep_going(space: Space) -> None:
    """With -k all that does not depend on the failure is built; the exit code stays 1 and the summary counts."""
    space.write("k/BUILD.yaml", targets(fail("a"), copy("b", ":a"), copy("c", ":b"), copy("d"), copy("e", ":d")))
    space.write("k/a.txt", "one\n")

    done = space.run("-k", "--jobs=1", "//k:all")

    assert 1 == done.code
    assert ["//k:d", "//k:e"] == built(done.actions)
    expected = "ERROR: 3 of 5 targets not built: //k:a, //k:b, //k:c: 5 actions: 2 executed, 1 failed, 2 skipped"
    assert expected == done.summary


def test_without_keep_going(space: Space) -> None:
    """Without -k nothing starts after the first failure."""
    space.write("k/BUILD.yaml", targets(fail("a"), copy("b", ":a"), copy("d"), copy("e")))
    space.write("k/a.txt", "one\n")

    done = space.run("--jobs=1", "//k:all")

    assert (1, []) == (done.code, done.actions)
    expected = (
        "ERROR: 2 of 4 targets not built: //k:a, //k:b, 2 not finished (-k goes on): 2 actions: 1 failed, 1 skipped"
    )

    assert expected == done.summary


def test_keep_going_without_a_broken_package(tree: Space) -> None:
    """A package that cannot be loaded stops a wildcard, and -k does without it but does not hide it."""
    tree.write("bad/BUILD.yaml", "targets: 7\n")

    stopped, went_on = tree.run("//..."), tree.run("-k", "//...")

    assert (1, []) == (stopped.code, stopped.actions)
    assert (1, 5) == (went_on.code, len(went_on.actions))
    assert "bad/BUILD.yaml:1:10" in went_on.err


def test_jobs_limit(space: Space) -> None:
    """Never more commands at once than -j allows; MAX_JOBS is the default for it."""
    log = space.base / "log"
    script = f"echo + >> {log}; sleep 0.1; echo - >> {log}; touch o"
    entries = [
        f'{{rule: command, name: t{n}, arguments: [sh, -c, "{script}"], env: {{N: "{n}"}}, outputs: [o]}}'
        for n in range(4)
    ]
    space.write("k/BUILD.yaml", targets(*entries))

    def most(*words: str, environment: dict[str, str] | None = None) -> int:
        log.unlink(missing_ok=True)
        space.build(*words, "--nocache", "//k:all", environment=environment)
        running, found = 0, 0
        for word in log.read_text().split():
            running += 1 if word == "+" else -1
            found = max(found, running)
        return found

    assert 1 == most("--jobs=1")
    assert 4 == most("--jobs=4")
    assert 1 == most(environment={"MAX_JOBS": "1"})
    assert 4 == most("-j4", environment={"MAX_JOBS": "1"})


def test_nobuild(tree: Space) -> None:
    """--nobuild finds mistakes, runs nothing, and does not claim that anything is up to date."""
    done, wrong = tree.run("--nobuild", "//a:d"), tree.run("--nobuild", "//a:e")

    assert (0, []) == (done.code, done.actions)
    assert "INFO: 1 target analyzed, nothing was run" == done.summary
    assert not (tree.root / "hidet-bin/a").exists()
    assert 1 == wrong.code


def test_check_up_to_date(tree: Space) -> None:
    """--check_up_to_date runs nothing, and exits 1 with the reason where a build would run something."""
    fresh = tree.run("--check_up_to_date", "//a:d")
    tree.build("//a:d")
    right = tree.run("--check_up_to_date", "//a:d")
    tree.write("a/a.txt", "two\n")
    stale = tree.run("--check_up_to_date", "//a:d")

    assert (1, 0, 1) == (fresh.code, right.code, stale.code)
    assert "not up to date: //a:c (Command): it was not built here before" in fresh.err
    assert re.search(r"not up to date: //a:c \(Command\): input a/a.txt changed: \w+ -> \w+", stale.err)
    assert [] == [*fresh.actions, *right.actions, *stale.actions]
    assert "one\n" == tree.read("hidet-bin/a/d/out.txt")


def test_check_up_to_date_looks_at_everything(tree: Space) -> None:
    """All that is stale is named, and nothing else: what needs it is counted, and what does not stays up to date."""
    tree.write("b/BUILD.yaml", targets(copy("c"), copy("d")))
    tree.write("b/a.txt", "one\n")
    tree.build("//a:d", "//b:c")
    tree.write("a/a.txt", "two\n")

    done = tree.run("--check_up_to_date", "//a:d", "//b:c", "//b:d")

    assert ["//a:c", "//b:d"] == re.findall(r"INFO: not up to date: (\S+)", done.err)
    expected = "ERROR: 2 of 3 targets not up to date: //a:d, //b:d: 4 actions: 1 up to date, 3 skipped"
    assert expected == done.summary


def test_help_on_rules(tree: Space) -> None:
    """`help rules` lists the rules, `help RULE` the attributes of one."""
    rules, one = tree.run("help", "rules"), tree.run("help", "cc_object")

    assert (0, 0) == (rules.code, one.code)
    assert "  ir_module       A hidet kernel." in rules.out
    assert "  hdrs      every header of this workspace that the source includes" in one.out


def test_nocache(tree: Space) -> None:
    """--nocache runs every action again, and what it made is up to date afterwards."""
    tree.build("//a:d")

    again, after = tree.build("--nocache", "//a:d"), tree.build("//a:d")

    assert ["//a:c", "//a:d"] == built(again.actions)
    assert [] == after.actions


def test_output_base(tree: Space) -> None:
    """--output_base moves all that is written, and the link points there; the workspace gets no other file."""
    before = {*tree.root.rglob("*")}
    tree.build("--output_base=../elsewhere", "//a:c")

    link = tree.root / "hidet-bin"
    assert "one\n" == (tree.base / "elsewhere/cpu-x86-64-v3/a/c/out.txt").read_text()
    assert tree.base / "elsewhere/cpu-x86-64-v3" == link.readlink()
    assert {*before, link} == {*tree.root.rglob("*")} - {*link.rglob("*")}


def test_symlink_prefix(tree: Space) -> None:
    """--symlink_prefix names the link, and `/` makes none."""
    tree.build("--symlink_prefix=my-", "//a:c")
    tree.build("--symlink_prefix=/", "//a:d")

    assert "one\n" == tree.read("my-bin/a/c/out.txt")
    assert ["BUILD.yaml", "a", "hidet-out", "my-bin", "x"] == sorted(path.name for path in tree.root.iterdir())


def test_link_follows_the_platform(tree: Space) -> None:
    """The link points to the outputs of the last build, also when that one had nothing to do."""
    tree.build("//a:c")
    tree.build("--platforms=cpu --arch=x86-64", "//a:c")
    pointed = (tree.root / "hidet-bin").readlink().name
    tree.build("//a:c")
    tree.build("//a:c")

    assert ("cpu-x86-64", "cpu-x86-64-v3") == (pointed, (tree.root / "hidet-bin").readlink().name)


def test_link_that_is_not_ours_stays(tree: Space) -> None:
    """A file or a link of the user where ours would go is left as it is, by builds and by `clean`."""
    (tree.root / "hidet-bin").symlink_to(tree.base / "home")
    tree.write("my-bin", "mine\n")

    done = tree.build("//a:c")
    tree.build("--symlink_prefix=my-", "//a:c")
    tree.build("clean")
    tree.build("clean", "--symlink_prefix=my-")

    assert "hidet-out/cpu-x86-64-v3/a/c/out.txt" in done.err
    assert tree.base / "home" == (tree.root / "hidet-bin").readlink()
    assert "mine\n" == tree.read("my-bin")


def test_clean(tree: Space) -> None:
    """`clean` deletes outputs, state and the link; the next build takes what the cache has."""
    tree.build("//...")

    cleaned = tree.run("clean")
    left = sorted(path.name for path in tree.root.iterdir())
    again = tree.build("//...")

    assert (0, "", "") == cleaned
    assert ["BUILD.yaml", "a", "x"] == left
    assert [] == again.actions
    assert "INFO: built 5 targets: 5 actions: 5 cached" == again.summary
    assert 0 == tree.run("clean").code == tree.run("clean").code


def test_clean_leaves_what_is_not_ours(tree: Space) -> None:
    """In an output folder that holds other things `clean` deletes ours alone."""
    base = tree.base / "shared"
    (base / "cpu-notes").mkdir(parents=True)
    (base / "cpu-notes/keep.txt").write_text("mine")
    (base / ".gitignore").write_text("*.tmp\n")
    (base / "cuda-list").write_text("mine")
    tree.build(f"--output_base={base}", "//a:c")
    tree.build("clean", f"--output_base={base}")

    assert [".gitignore", "cpu-notes", "cuda-list"] == sorted(path.name for path in base.iterdir())
    assert "mine" == (base / "cpu-notes/keep.txt").read_text()
    assert "*.tmp\n" == (base / ".gitignore").read_text()


def test_clean_while_building(space: Space) -> None:
    """`clean` does not pull the floor from under a running build: exit code 9, and who it is."""
    started, gate = space.base / "started", space.base / "gate"
    script = f"touch {started}; while ! test -e {gate}; do sleep 0.02; done; touch o"
    space.write("k/BUILD.yaml", targets(f'{{rule: command, name: t, arguments: [sh, -c, "{script}"], outputs: [o]}}'))
    process = space.start("//k:t")
    while not started.exists() and process.poll() is None:
        pass

    refused = space.run("clean")
    gate.touch()
    process.communicate(timeout=60)

    assert (9, 0) == (refused.code, process.returncode)
    assert f"process {process.pid} is building here" in refused.err


def test_answers_and_news_are_apart(tree: Space) -> None:
    """stdout is for answers: a build writes nothing there, a query nothing else."""
    build, query = tree.run("//a:c"), tree.run("query", "//a:all")

    assert "" == build.out
    assert ("//a:c\n//a:d\n", "") == (query.out, query.err)


def test_reader_that_leaves_early(tree: Space) -> None:
    """`| head -1` of a long answer is no error."""
    tree.write("many/BUILD.yaml", targets(*(copy(f"t{number:04}") for number in range(3000))))
    tree.write("many/a.txt", "one\n")
    line = f"{sys.executable} -m hidet_build query //many:all | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=tree.root, env=tree.environment, capture_output=True, check=False
    )

    assert (0, b"//many:t0000\n", b"") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0>&- 1>&- 2>&-"])
@pytest.mark.parametrize("words", ["//a:c", "query //a:all"])
def test_closed_streams(tree: Space, closed: str, words: str) -> None:
    """A standard stream that was closed before we started is no reason to fail, and no file of ours takes its place."""
    line = f"{sys.executable} -m hidet_build {words} {closed}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tree.root, env=tree.environment, capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stderr
    assert "Traceback" not in done.stderr


def test_full_disk_behind_stdout(tree: Space) -> None:
    """An answer that cannot be written is an error of the machine."""
    line = f"{sys.executable} -m hidet_build query //a:all > /dev/full"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tree.root, env=tree.environment, capture_output=True, text=True, check=False
    )

    assert (36, "ERROR: No space left on device: where the answer goes\n") == (done.returncode, done.stderr)


def test_relative_cache_home_is_ignored(tree: Space) -> None:
    """XDG_CACHE_HOME counts when it is absolute, as its specification says: nothing is made where one stands."""
    tree.build("//a:c", environment={"XDG_CACHE_HOME": "relative"})

    assert not (tree.root / "relative").exists()
    assert (tree.base / "home/.cache/hidet-build/ac").is_dir()
