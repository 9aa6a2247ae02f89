"""What the program says: failures, reasons, commands to paste, warnings, colours, and the live display."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.space import PROGRAM, Ended, Space, targets


def script(name: str, text: str, rest: str = "outputs: [out.txt]") -> str:
    """A target that runs a line of shell, which must hold no double quotes."""
    return f'{{rule: command, name: {name}, arguments: [sh, -c, "{text}"], {rest}}}'


def one(space: Space, text: str, rest: str = "outputs: [out.txt]") -> None:
    """The package `k` with one target `t`."""
    space.write("k/BUILD.yaml", targets(script("t", text, rest)))


def pasted(line: str) -> subprocess.CompletedProcess[bytes]:
    """What a shell makes of a line that was printed for pasting; our own environment has nothing of the build's."""
    return subprocess.run(["sh", "-c", line], env={}, cwd="/", capture_output=True, timeout=120, check=False)


def reproducer(done: Ended) -> str:
    """The line that reproduces a failure."""
    found = re.search(r"^to reproduce: (.*?)\nERROR: ", done.err, re.MULTILINE | re.DOTALL)
    assert found, done.err
    return found.group(1)


def log_of(done: Ended) -> Path:
    """The log of a failure."""
    found = re.search(r"^log: (.*)$", done.err, re.MULTILINE)
    assert found, done.err
    return Path(found.group(1))


def on_terminal(space: Space, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """All that a run writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *words],
        cwd=space.root,
        env={**space.environment, "TERM": "xterm", **(environment or {})},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(ours, 1 << 16):
            pieces.append(piece)
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    process.wait(timeout=60)
    return b"".join(pieces).decode()


# ---- failures


def test_failure_says_all_one_needs(space: Space) -> None:
    """A failed action shows the place, label, mnemonic, what the tool said, its log, and a line to reproduce it."""
    one(space, "echo 'm.cc:3:1: error: no' >&2; cat a.txt; exit 3", "inputs: [a.txt], outputs: [out.txt]")
    space.write("k/a.txt", "from the input\n")

    done = space.run("//k:t")

    assert 1 == done.code
    assert "ERROR: k/BUILD.yaml:2:5: //k:t: Command failed (exit code 3)\nm.cc:3:1: error: no\nfrom the" in done.err
    assert "m.cc:3:1: error: no\nfrom the input\n" == log_of(done).read_text()
    again = pasted(reproducer(done))
    assert (3, b"from the input\n", b"m.cc:3:1: error: no\n") == (again.returncode, again.stdout, again.stderr)


def test_reproducer_survives_quotes_and_blanks(tmp_path: Path) -> None:
    """The line can be pasted whatever the arguments, the environment and the folders hold."""
    space = Space(tmp_path / "it's a $HOME")
    space.write(
        "k/BUILD.yaml",
        """\
        targets:
          - rule: command
            name: t
            arguments: [sh, -c, 'printf "%s|" "$@" "$V"; exit 5', zero, "two words", "it's", '$HOME "x"', "a\\nb", "*"]
            env: {V: "a 'b' $c"}
            outputs: [out.txt]
        """,
    )

    done = space.run("//k:t")
    again = pasted(reproducer(done))

    assert (5, log_of(done).read_bytes()) == (again.returncode, again.stdout)
    assert b'two words|it\'s|$HOME "x"|a' in again.stdout
    assert again.stdout.endswith(b"|*|a 'b' $c|")


@pytest.mark.hidet
@pytest.mark.parametrize(
    ("mnemonic", "entry", "said"),
    [
        ("HidetLower", "{rule: ir_module, name: t, src: m.py, entry: entry}", b"ZeroDivisionError"),
        ("CppCompile", "{rule: cc_object, name: t, src: m.cc}", b"m.cc:1:"),
    ],
)
def test_reproducer_of_real_steps(space: Space, mnemonic: str, entry: str, said: bytes) -> None:
    """The line reproduces a failed step of hidet, which ran in the worker, and a failed compilation."""
    space.write("k/BUILD.yaml", targets(entry))
    space.write("k/m.py", "def entry():\n    return 1 / 0\n")
    space.write("k/m.cc", "int f() { return nothing; }\n")

    done = space.run("//k:t")
    again = pasted(reproducer(done))

    assert 1 == done.code
    assert f"//k:t: {mnemonic} failed" in done.err
    assert said.decode() in done.err
    assert 0 != again.returncode
    assert said in again.stdout + again.stderr


def test_signal_is_named(space: Space) -> None:
    """A command that was ended by a signal is told from one that failed."""
    one(space, "kill -SEGV $$")

    done = space.run("//k:t")

    assert "//k:t: Command failed (signal 11)" in done.err


def test_same_failure_each_time(space: Space) -> None:
    """Failures are not results: the same command fails the same way again, with and without the cache."""
    log = space.base / "runs"
    one(space, f"echo run >> {log}; echo broken; exit 1")

    ends = [space.run("//k:t"), space.run("//k:t"), space.run("--nocache", "//k:t")]

    said = {one.err.replace(one.err.rpartition(" in ")[2], "") for one in ends}
    assert [1, 1, 1] == [one.code for one in ends]
    assert 1 == len(said)
    assert 3 == len(log.read_text().split())


def test_output_missing(space: Space) -> None:
    """A command that ends well without its output has failed, and the next build tries again."""
    one(space, "true")

    done, again = space.run("//k:t"), space.run("//k:t")

    assert (1, 1) == (done.code, again.code)
    assert "//k:t: Command ended well, but its output out.txt is missing" in done.err


def test_no_such_program(space: Space) -> None:
    """A program that is not there is named, with the exit code for what is wrong with the machine."""
    space.write("k/BUILD.yaml", targets("{rule: command, name: t, arguments: [no-such-tool], outputs: [o]}"))

    done = space.run("//k:t")

    assert 36 == done.code
    assert "no-such-tool" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("code", [0, 1])
def test_output_that_is_not_utf8(space: Space, code: int) -> None:
    """A tool may write any bytes: they are shown with replacement characters, and the log has them as they were."""
    one(space, f"printf 'warn \\\\377\\\\316 ing\\\\n'; touch out.txt; exit {code}")

    done = space.run("//k:t")

    assert code == done.code, done.err
    assert "warn \ufffd\ufffd ing\n" in done.err
    if code:
        assert b"warn \xff\xce ing\n" == log_of(done).read_bytes()


def test_huge_output_of_a_failure(space: Space) -> None:
    """Of very much text the screen gets the beginning, the log all; --verbose_failures shows more."""
    one(space, "i=0; while test $i -lt 3000; do echo line $i; i=$((i+1)); done; exit 1")

    done, verbose = space.run("//k:t"), space.run("--verbose_failures", "//k:t")

    assert 3000 == len(log_of(done).read_text().splitlines())
    assert "line 29\n... 2970 more lines in the log\n" in done.err
    assert "line 30\n" not in done.err
    assert "line 2999\n" in verbose.err


def test_huge_output_of_a_success(space: Space) -> None:
    """A command that says megabytes and succeeds does not flood the screen, nor break the build."""
    one(space, "i=0; while test $i -lt 300; do printf '%01000d' $i; echo; i=$((i+1)); done; touch out.txt")

    done = space.build("//k:t")

    assert 100_000 > len(done.err)
    assert "more lines" in done.err


def test_equal_warnings_are_folded(space: Space) -> None:
    """Fifty targets that raise one warning show it once, with a count."""
    entries = [
        script(f"t{n}", "echo warning: old header; echo $N > o", f'env: {{N: "{n}"}}, outputs: [o]') for n in range(50)
    ]
    space.write("k/BUILD.yaml", targets(*entries))

    done = space.build("//k:all")

    assert 50 == len(done.actions)
    assert 1 == done.err.count("\nwarning: old header\n")
    assert "repeated 49 times: warning: old header" in done.err


def test_warnings_of_cached_actions_are_shown(space: Space) -> None:
    """A warning is not lost because somebody else ran the command."""
    one(space, "echo warning: old header; touch out.txt")
    space.build("//k:t")
    space.build("clean")

    done = space.build("//k:t")

    assert [] == done.actions
    assert "warning: old header" in done.err


# ---- reasons and commands


def reasons(done: Ended) -> list[str]:
    """What --explain said."""
    return re.findall(r"^EXPLAIN: (.*)$", done.err, re.MULTILINE)


def test_explain_first_time_and_nocache(space: Space) -> None:
    """An action that has no past says so, and --nocache is a reason."""
    one(space, "touch out.txt")

    assert ["Command //k:t: it was not built here before"] == reasons(space.build("--explain", "//k:t"))
    assert [] == reasons(space.build("--explain", "//k:t"))
    assert ["Command //k:t: --nocache was given"] == reasons(space.build("--explain", "--nocache", "//k:t"))


EXPLAINED = [
    ("k/a.txt", "two\n", r"input k/a\.txt changed: [0-9a-f]{12} -> [0-9a-f]{12}"),
    (
        "k/BUILD.yaml",
        ("cat a.txt", "cat  a.txt"),
        r"argument 2 changed: cat a\.txt > out\.txt -> cat  a\.txt > out\.txt",
    ),
    ("k/BUILD.yaml", ('{V: "1"}', '{V: "2"}'), r"variable V changed: 1 -> 2"),
    ("k/BUILD.yaml", ('{V: "1"}', '{V: "1", W: x}'), r"variable W is new: x"),
    ("k/BUILD.yaml", ("[a.txt]", "[a.txt, b.txt]"), r"input k/b\.txt is new: [0-9a-f]{12}"),
]


@pytest.mark.parametrize(("path", "change", "reason"), EXPLAINED, ids=[one[2] for one in EXPLAINED])
def test_explain(space: Space, path: str, change: str | tuple[str, str], reason: str) -> None:
    """One reason an action: which input, argument or variable changed, from what to what."""
    one(space, "cat a.txt > out.txt", 'inputs: [a.txt], env: {V: "1"}, outputs: [out.txt]')
    space.write("k/a.txt", "one\n")
    space.write("k/b.txt", "b\n")
    space.build("//k:t")
    space.write(path, change if isinstance(change, str) else space.read(path).replace(*change))

    found = reasons(space.build("--explain", "//k:t"))

    assert 1 == len(found)
    assert re.fullmatch(rf"Command //k:t: {reason}", found[0]), found


def test_explain_outputs(space: Space) -> None:
    """A deleted and an edited output are reasons."""
    one(space, "touch out.txt")
    space.build("//k:t")
    output = space.root / "hidet-bin/k/t/out.txt"
    output.unlink()
    gone = reasons(space.build("--explain", "//k:t"))
    output.unlink()
    output.write_text("mine")

    assert ["Command //k:t: output out.txt is gone"] == gone
    assert ["Command //k:t: output out.txt was changed"] == reasons(space.build("--explain", "//k:t"))
    assert "" == output.read_text()


def test_explain_tool(space: Space) -> None:
    """Another program of the same name is a reason, and the tool is named."""
    folder = space.base / "tools"
    folder.mkdir()
    tool = folder / "my-tool"
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    space.write("k/BUILD.yaml", targets("{rule: command, name: t, arguments: [my-tool], outputs: [out.txt]}"))
    tool.write_text("#!/bin/sh\necho one > out.txt\n")
    tool.chmod(0o755)
    space.build("//k:t", environment=environment)
    tool.write_text("#!/bin/sh\necho two > out.txt\n")

    done = space.build("--explain", "//k:t", environment=environment)

    assert re.fullmatch(r"Command //k:t: tool command:my-tool changed: .* -> .*", reasons(done)[0])
    assert "two\n" == space.read("hidet-bin/k/t/out.txt")


def test_subcommands_can_be_pasted(space: Space) -> None:
    """-s prints each command, and after the build the line still runs and does the same."""
    one(space, "cat a.txt a.txt > out.txt; cat out.txt", "inputs: [a.txt], outputs: [out.txt]")
    space.write("k/a.txt", "one\n")

    done = space.build("-s", "//k:t")
    lines = [line for line in done.err.splitlines() if line.startswith("cd ")]
    again = pasted(lines[0])

    assert 1 == len(lines)
    assert (0, b"one\none\n", b"") == (again.returncode, again.stdout, again.stderr)
    assert "INFO: 1 target up to date" == space.build("//k:t").summary


# ---- the summary


def test_summary_counts_by_kind(space: Space) -> None:
    """The last line says how many actions were executed, came from a cache, or were up to date."""
    space.write("k/a.txt", "one\n")
    entries = [
        script(f"t{n}", "cat a.txt > o; echo $N >> o", f'inputs: [a.txt], env: {{N: "{n}"}}, outputs: [o]')
        for n in range(4)
    ]
    space.write("k/BUILD.yaml", targets(*entries))
    space.build("//k:t0", "//k:t1", "//k:t2")
    for name in ("t1", "t2"):
        (space.root / f"hidet-bin/k/{name}/o").unlink()

    done = space.build("//k:all")

    assert "INFO: built 4 targets: 4 actions: 1 executed, 2 cached, 1 up to date" == done.summary


def test_paths_of_outputs_are_told(space: Space) -> None:
    """A build of few targets ends with where the outputs are, as paths from where one stands."""
    one(space, "touch out.txt")

    assert "INFO: //k:t\n  hidet-bin/k/t/out.txt\n" in space.build("//k:t").err
    from_below = re.search(r"^  (.*out\.txt)$", space.run(":t", cwd="k").err, re.MULTILINE)
    assert from_below is not None
    assert (space.root / "k" / from_below.group(1)).is_file()


# ---- colours and the terminal

COLOURS = [
    (["--color=yes"], {}, False, True),
    (["--color=no"], {}, True, False),
    ([], {}, False, False),
    ([], {}, True, True),
    ([], {"NO_COLOR": "1"}, True, False),
    ([], {"TERM": "dumb"}, True, False),
    ([], {"CI": "true"}, True, False),
    ([], {"FORCE_COLOR": "1"}, False, True),
    (["--color=yes"], {"NO_COLOR": "1"}, False, True),
]


@pytest.mark.parametrize(("words", "environment", "terminal", "coloured"), COLOURS)
def test_colours(space: Space, words: list[str], environment: dict[str, str], terminal: bool, coloured: bool) -> None:
    """Colours: the flag decides, then the variables people set, then whether it is a terminal."""
    one(space, "touch out.txt")

    if terminal:
        text = on_terminal(space, *words, "//k:t", environment=environment)
    else:
        text = space.build(*words, "//k:t", environment=environment).err

    assert coloured == ("\x1b[32mINFO:\x1b[0m" in text), repr(text)


def test_errors_before_the_build_are_coloured_alike(space: Space) -> None:
    """--color counts for what is wrong with the request, too."""
    assert "\x1b[" not in space.run("--color=no", "//nope:x").err
    assert "\x1b[" not in on_terminal(space, "--color=no", "//nope:x")


def test_live_progress(space: Space) -> None:
    """On a terminal one sees what runs, where and for how long, and counts by kind; at the end only the summary."""
    gate = space.base / "gate"
    entries = [
        script("a", f"while ! test -e {gate}; do sleep 0.02; done; touch o", "outputs: [o]"),
        script("b", f"sleep 0.5; touch {gate} o", "outputs: [o]"),
    ]
    space.write("k/BUILD.yaml", targets(*entries))

    text = on_terminal(space, "--jobs=2", "//k:all")

    assert "[0/2] 0 executed, 0 cached, 0 up to date; 2 running" in text
    assert "  Command //k:a; 0 s, local" in text
    assert re.search(r"\x1b\[\d+A\x1b\[J", text)
    last = text.rstrip().rpartition("\x1b[J")[2]
    assert re.fullmatch(r"\x1b\[32mINFO:\x1b\[0m built 2 targets: 2 actions: 2 executed in [\d.]+ s", last), repr(last)


@pytest.mark.parametrize("environment", [{"CI": "1"}, {"TERM": "dumb"}])
def test_plain_lines_where_the_cursor_must_not_move(space: Space, environment: dict[str, str]) -> None:
    """In CI and on a dumb terminal there are plain lines."""
    one(space, "sleep 0.3; touch out.txt")

    text = on_terminal(space, "//k:t", environment=environment)

    assert "\x1b" not in text
    assert re.search(r"^\[1/1\] Command //k:t \([\d.]+ s\)", text, re.MULTILINE)


def test_live_progress_on_request(space: Space) -> None:
    """--curses decides."""
    one(space, "sleep 0.3; touch out.txt")

    assert "\x1b[" in space.build("--curses=yes", "//k:t").err
    assert "running" not in on_terminal(space, "--curses=no", "--nocache", "//k:t")


def test_terminal_is_whole_after_an_error(space: Space) -> None:
    """A failure is printed above the block, and nothing of the block remains."""
    one(space, "sleep 0.3; echo broken; exit 1")

    text = on_terminal(space, "//k:t", environment={"NO_COLOR": "1"})

    after = text.rpartition("\x1b[J")[2]
    assert after.startswith("ERROR: "), repr(text)
    assert "running" not in after


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_any_encoding_of_the_terminal(space: Space, encoding: str) -> None:
    """Names and texts beyond what the streams can say are escaped, not a crash."""
    space.write("k\u00fc\u8a2d/BUILD.yaml", targets(script("t", "echo \u8a2d; exit 1")))
    environment = {"PYTHONIOENCODING": encoding}

    build, query = (space.run(*words, environment=environment) for words in (["//..."], ["query", "//..."]))

    assert (1, 0) == (build.code, query.code), build.err + query.err
    assert "\\u8a2d" in build.err
    assert "\\u8a2d" in query.out
