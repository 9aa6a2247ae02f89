"""What people see of a build: lines in a log, a status block on a terminal, one line at the end."""

import contextlib
import io
import os
import pty
import re
import struct
import termios
from collections.abc import Mapping
from fcntl import ioctl

import pytest

from hidet_build.action import Action, ActionResult, Artifact
from hidet_build.errors import ActionFailed, Location
from hidet_build.label import Label
from hidet_build.progress import LiveReporter, Outcome, PlainReporter, Reporter, Summary, choose_reporter, wants_colour


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """What it shows."""
        return self.now


class Screen(io.StringIO):
    """A terminal, as far as the status block needs one: it wraps, moves the cursor up and clears below it."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        super().__init__()
        self.columns, self.lines = columns, lines
        self.rows = [""]
        self.row = 0
        self.drawings = 0

    def write(self, text: str) -> int:
        """Do what the text says."""
        self.drawings += 1
        for part in re.findall(r"\x1b\[\d*[A-Za-z]|\x1b\[[\d;]+m|[^\x1b]", text):
            self._do(part)
        return len(text)

    def isatty(self) -> bool:
        """It is one."""
        return True

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return self.columns, self.lines

    def resize(self, columns: int) -> None:
        """Wrap what is shown anew, as terminals do when the window changes."""
        old, self.rows, self.row, self.columns = self.rows, [""], 0, columns
        for part in "\n".join(old):
            self._do(part)

    def shown(self) -> list[str]:
        """The rows that are not empty."""
        return [row for row in self.rows if row]

    def _do(self, part: str) -> None:
        if part == "\n":
            self.row += 1
            self.rows += [""] * (self.row + 1 - len(self.rows))
        elif re.fullmatch(r"\x1b\[\d+A", part):
            self.row = max(0, self.row - int(part[2:-1]))
        elif part == "\x1b[J":
            del self.rows[self.row + 1 :]
            self.rows[self.row] = ""
        elif part.isprintable():
            if len(self.rows[self.row]) == self.columns:
                self._do("\n")
            self.rows[self.row] += part


def action(name: str, mnemonic: str = "Compile") -> Action:
    """An action of the target //k:name."""
    output = Artifact(f"k/{name}/{mnemonic}.o", "cpu-x86-64-v3")
    return Action(Label("k", name), mnemonic, "cpu-x86-64-v3", "cxx", ("g++",), (), (("module.o", output),))


def result(output: bytes = b"", seconds: float = 0.9) -> ActionResult:
    """What an execution left."""
    return ActionResult((), (), output, seconds)


def plain(colour: bool = False) -> tuple[PlainReporter, io.StringIO, Clock]:
    """A plain reporter, what it wrote, and its clock."""
    stream, clock = io.StringIO(), Clock()
    return PlainReporter(stream, colour=colour, clock=clock), stream, clock


def live(columns: int = 80, lines: int = 24) -> tuple[LiveReporter, Screen, Clock]:
    """A live reporter, its screen and its clock."""
    screen, clock = Screen(columns, lines), Clock()
    return LiveReporter(screen, colour=False, clock=clock, size=screen.size), screen, clock


def test_both_are_reporters() -> None:
    """Both implement the protocol; mypy sees it here."""
    reporters: list[Reporter] = [plain()[0], live()[0]]

    assert len(reporters) == 2


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (Summary({Outcome.UP_TO_DATE: 12}, 0.041, 3), "INFO: 3 targets up to date in 0.04 s"),
        (Summary({}, 0.041, 1), "INFO: 1 target up to date in 0.04 s"),
        (Summary({}, 0.041, 0), "INFO: nothing to build in 0.04 s"),
        (
            Summary({Outcome.EXECUTED: 4, Outcome.CACHED: 6, Outcome.UP_TO_DATE: 2, Outcome.FAILED: 0}, 3.21, 3),
            "INFO: built 3 targets: 12 actions: 4 executed, 6 cached, 2 up to date in 3.2 s",
        ),
        (Summary({Outcome.CACHED: 1}, 1.0, 1), "INFO: built 1 target: 1 action: 1 cached in 1.0 s"),
        (
            Summary({Outcome.EXECUTED: 4, Outcome.FAILED: 1, Outcome.SKIPPED: 3}, 3.21, 3, ("//k:a", "//k:b")),
            "ERROR: 2 of 3 targets not built: //k:a, //k:b: 8 actions: 4 executed, 1 failed, 3 skipped in 3.2 s",
        ),
        (
            Summary({Outcome.FAILED: 5}, 3.21, 9, ("//:a", "//:b", "//:c", "//:d", "//:e")),
            "ERROR: 5 of 9 targets not built: //:a, //:b, //:c and 2 more: 5 actions: 5 failed in 3.2 s",
        ),
        (
            Summary({Outcome.EXECUTED: 2}, 61.0, 9, interrupted=True),
            "ERROR: interrupted: 2 actions: 2 executed in 61.0 s",
        ),
    ],
)
def test_summary(summary: Summary, expected: str) -> None:
    """One line says what was done, and whether all was."""
    assert summary.text() == expected
    assert summary.succeeded == expected.startswith("INFO")


def test_plain_build() -> None:
    """What ran has a line each; what was cached or up to date is only counted."""
    reporter, stream, _ = plain()
    reporter.build_started(2)
    reporter.actions_added(1)
    reporter.explained(action("a"), "k/a.py changed")
    reporter.command("g++ -c module.cc")
    reporter.started(action("a"), "local")
    reporter.finished(action("b"), Outcome.UP_TO_DATE, None)
    reporter.finished(action("a"), Outcome.EXECUTED, result(b"module.cc:1: warning: odd\n"))
    reporter.finished(action("c"), Outcome.CACHED, result())
    reporter.message("hello")
    reporter.build_finished(Summary({Outcome.EXECUTED: 1, Outcome.CACHED: 1, Outcome.UP_TO_DATE: 1}, 2.0, 3))

    assert stream.getvalue().splitlines() == [
        "EXPLAIN: Compile //k:a: k/a.py changed",
        "g++ -c module.cc",
        "[2/3] Compile //k:a (0.9 s)",
        "INFO: output of Compile //k:a:",
        "module.cc:1: warning: odd",
        "INFO: hello",
        "INFO: built 3 targets: 3 actions: 1 executed, 1 cached, 1 up to date in 2.0 s",
    ]


def test_equal_warnings_and_outputs_are_folded() -> None:
    """Fifty equal warnings are one line and a count."""
    reporter, stream, _ = plain()
    reporter.build_started(3)
    for _ in range(50):
        reporter.warning("hidet.toml is ignored\nsee the manual")
    reporter.warning("once only")
    for name in ("a", "b", "c"):
        reporter.finished(action(name), Outcome.CACHED, result(b"note: same\n"))
    reporter.build_finished(Summary({Outcome.CACHED: 3}, 2.0, 3))

    assert stream.getvalue().splitlines() == [
        "WARNING: hidet.toml is ignored",
        "see the manual",
        "WARNING: once only",
        "INFO: output of Compile //k:a:",
        "note: same",
        "INFO: repeated 2 times: note: same",
        "WARNING: repeated 49 times: hidet.toml is ignored",
        "INFO: built 3 targets: 3 actions: 3 cached in 2.0 s",
    ]
    assert reporter.warnings == 51


def test_failure_is_shown_in_full() -> None:
    """The error's own text, with its place; the tool's output is part of it and not shown twice."""
    reporter, stream, _ = plain()
    reporter.build_started(1)
    reporter.started(action("a"), "local")
    reporter.finished(action("a"), Outcome.FAILED, result(b"error: x"))
    error = ActionFailed("Compile //k:a failed: exit code 1", location=Location("k/BUILD.yaml", 2, 5), hint="see log")
    reporter.failed(action("a"), error)

    assert stream.getvalue() == "ERROR: k/BUILD.yaml:2:5: Compile //k:a failed: exit code 1\nhint: see log\n"


def test_waiting_is_said_once() -> None:
    """However often the engine says so, a log has one line for one holder."""
    reporter, stream, _ = plain()
    for _ in range(3):
        reporter.waiting("//k:a", 123, "box", 0)
    reporter.waited("//k:a")
    reporter.waiting("//k:a", 124, "box", 0)

    assert stream.getvalue() == (
        "INFO: waiting for //k:a: process 123 on box builds it\nINFO: waiting for //k:a: process 124 on box builds it\n"
    )


def test_long_action_is_mentioned_each_minute() -> None:
    """A silent CI job would be ended."""
    reporter, stream, clock = plain()
    reporter.started(action("a"), "local")
    for clock.now in (130.0, 160.0, 161.0, 225.0):
        reporter.tick()

    assert stream.getvalue().splitlines() == [
        "INFO: still running: Compile //k:a (1 min 0 s)",
        "INFO: still running: Compile //k:a (2 min 5 s)",
    ]


def test_colour_goes_with_severity() -> None:
    """Red is kept for what fails the build."""
    reporter, stream, _ = plain(colour=True)
    reporter.warning("w")
    reporter.failed(action("a"), ActionFailed("e"))
    reporter.build_finished(Summary({}, 0.0, 1))

    assert stream.getvalue() == (
        "\x1b[35mWARNING:\x1b[0m w\n\x1b[31;1mERROR:\x1b[0m e\n\x1b[32mINFO:\x1b[0m 1 target up to date in 0.00 s\n"
    )


def test_stream_that_cannot_say_it() -> None:
    """A log in ASCII gets escapes, not a traceback."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    PlainReporter(stream).message("käse \udcff")

    assert raw.getvalue() == b"INFO: k\\xe4se \\udcff\n"


def test_reader_that_has_gone() -> None:
    """A closed pipe ends the text, not the build."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    reporter = PlainReporter(stream)
    reporter.message("one")
    reporter.message("two")
    with pytest.raises(BrokenPipeError):
        stream.close()

    assert stream.closed


def test_live_block() -> None:
    """The block shows counts by kind, the oldest action first, and whom we wait for."""
    reporter, screen, clock = live()
    reporter.build_started(6)
    reporter.started(action("a"), "local")
    clock.now = 102.5
    reporter.started(action("b", "Lower"), "worker")
    reporter.finished(action("c"), Outcome.CACHED, result())
    reporter.waiting("//k:d", 123, "box", 0)
    clock.now = 103.0
    reporter.tick()
    block = screen.shown()
    reporter.waited("//k:d")
    reporter.waiting("//k:b", 124, "box", 0)
    reporter.started(action("b", "Codegen"), "worker")
    reporter.finished(action("b", "Codegen"), Outcome.CACHED, None)
    reporter.finished(action("a"), Outcome.EXECUTED, result())
    clock.now = 104.0
    reporter.tick()

    assert block == [
        "[1/6] 0 executed, 1 cached, 0 up to date; 2 running",
        "  Compile //k:a; 3 s, local",
        "  Lower //k:b; 0 s, worker",
        "  waiting for //k:d: process 123 on box builds it",
    ]
    assert screen.shown() == [
        "[3/6] 1 executed, 2 cached, 0 up to date; 1 running",
        "  Lower //k:b; 1 s, worker",
    ]


def test_text_stands_above_the_block() -> None:
    """Other text never mixes with the block, and the end leaves text only, the cursor below it."""
    reporter, screen, clock = live()
    reporter.build_started(1)
    clock.now = 101.0
    reporter.started(action("a"), "local")
    reporter.warning("first")
    reporter.message("second\nthird")
    during = screen.shown()
    reporter.build_finished(Summary({Outcome.EXECUTED: 1}, 1.5, 1))

    assert during == [
        "WARNING: first",
        "INFO: second",
        "third",
        "[0/1] 0 executed, 0 cached, 0 up to date; 1 running",
        "  Compile //k:a; 0 s, local",
    ]
    assert screen.shown() == [
        "WARNING: first",
        "INFO: second",
        "third",
        "INFO: built 1 target: 1 action: 1 executed in 1.5 s",
    ]
    assert screen.row == 4


def test_quick_build_draws_no_block() -> None:
    """A null build of a thousand actions writes its summary and nothing else."""
    reporter, screen, _ = live()
    reporter.build_started(1000)
    for index in range(1000):
        reporter.finished(action(f"n{index}"), Outcome.UP_TO_DATE, None)
        reporter.tick()
    reporter.build_finished(Summary({Outcome.UP_TO_DATE: 1000}, 0.05, 3))

    assert screen.shown() == ["INFO: 3 targets up to date in 0.05 s"]
    assert screen.drawings == 1


def test_drawn_ten_times_a_second_at_most() -> None:
    """However many events come."""
    reporter, screen, clock = live()
    reporter.build_started(1000)
    for index in range(1000):
        clock.now = 100.0 + index / 1000
        reporter.finished(action(f"n{index}"), Outcome.CACHED, None)

    assert 9 <= screen.drawings <= 10


@pytest.mark.parametrize(("columns", "lines"), [(20, 24), (5, 5), (1, 1), (80, 3)])
def test_small_terminals(columns: int, lines: int) -> None:
    """A row never wraps and the block never scrolls; it goes away without a trace."""
    reporter, screen, clock = live(columns, lines)
    reporter.build_started(20)
    for index in range(20):
        reporter.started(action(f"name{index}"), "local")
    for clock.now in (101.0, 102.0, 103.0):
        reporter.tick()
    rows = screen.shown()
    reporter.close()
    reporter.close()

    assert 1 <= len(rows) <= max(1, lines - 1)
    assert all(len(row) < max(2, columns) for row in rows)
    assert screen.shown() == []


def test_many_actions_are_cut_to_a_count() -> None:
    """Ten rows at most."""
    reporter, screen, clock = live()
    reporter.build_started(20)
    for index in range(20):
        reporter.started(action(f"n{index}"), "local")
    clock.now = 101.0
    reporter.tick()

    assert len(screen.shown()) == 10
    assert screen.shown()[-1] == "  ... and 12 more"


@pytest.mark.parametrize("columns", [30, 12, 200])
def test_resize(columns: int) -> None:
    """After the window changed, the old block is wiped whole, however it was wrapped."""
    reporter, screen, clock = live(60)
    reporter.message("above")
    reporter.build_started(2)
    reporter.started(action("a_rather_long_name_for_a_target"), "local")
    clock.now = 101.0
    reporter.tick()
    screen.resize(columns)
    clock.now = 102.0
    reporter.tick()
    during = screen.shown()
    reporter.close()

    assert len(during) == 3
    assert screen.shown() == ["INFO: above"]


def test_wide_characters_take_two_columns() -> None:
    """A label in Chinese is cut where the terminal would wrap."""
    reporter, screen, clock = live(20)
    reporter.build_started(1)
    reporter.started(action("矩阵乘法矩阵乘法"), "local")
    clock.now = 101.0
    reporter.tick()

    assert screen.shown()[1] == "  Compile //k:矩..."


@pytest.mark.parametrize(
    ("setting", "environment", "tty", "expected"),
    [
        ("yes", {"NO_COLOR": "1"}, False, True),
        ("no", {"FORCE_COLOR": "1"}, True, False),
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"CLICOLOR_FORCE": "1"}, False, True),
        ("auto", {"CLICOLOR": "0"}, True, False),
        ("auto", {"CLICOLOR": "1"}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"CI": "true"}, True, False),
        ("auto", {"CI": "false"}, True, True),
        ("auto", {"CI": "true", "FORCE_COLOR": "1"}, True, True),
    ],
)
def test_colour(setting: str, environment: Mapping[str, str], tty: bool, expected: bool) -> None:
    """The flag first, then the variables people know, then the stream."""
    assert wants_colour(setting, environment, tty) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "tty", "expected"),
    [
        ({"TERM": "xterm"}, True, LiveReporter),
        ({"TERM": "xterm"}, False, PlainReporter),
        ({"TERM": "xterm", "CI": "1"}, True, PlainReporter),
        ({"TERM": "dumb"}, True, PlainReporter),
        ({}, True, PlainReporter),
    ],
)
def test_choice_of_reporter(environment: Mapping[str, str], tty: bool, expected: type) -> None:
    """Live on a terminal that can, outside CI."""
    stream = Screen() if tty else io.StringIO()

    assert type(choose_reporter(stream, environment)) is expected


def test_on_a_real_terminal() -> None:
    """The size is the terminal's own, asked anew at each drawing, and the cursor is never hidden."""
    master, slave = pty.openpty()
    clock = Clock()
    with os.fdopen(slave, "w") as stream:
        reporter = LiveReporter(stream, colour=False, clock=clock)
        reporter.build_started(1)
        for columns in (30, 20):
            ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            clock.now += 1
            reporter.tick()
        reporter.close()
    written = ""
    with contextlib.suppress(OSError):  # how Linux says that nobody has the terminal open any more
        while piece := os.read(master, 4096).decode():  # it hands over what was written in pieces of its own
            written += piece
    os.close(master)

    assert written == "[0/1] 0 executed, 0 cached...\r\n\r\x1b[2A\x1b[J[0/1] 0 executed...\r\n\r\x1b[1A\x1b[J"
