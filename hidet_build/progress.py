"""Tells people how a build goes: `Reporter`, and the two that write, line by line or with a live status block.

Knows actions and outcomes by their data only. Writes to the stream it is given, never to stdout or stderr by itself.
All events come from one thread, the engine's loop; nothing is drawn but within a call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol, TextIO

from hidet_build.action import Action, ActionResult, Step
from hidet_build.errors import BuildError


class Outcome(Enum):
    """How an action ended; the value is the word people read."""

    EXECUTED = "executed"
    CACHED = "cached"
    UP_TO_DATE = "up to date"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Summary:
    """A finished build: how many actions ended how, how many targets were asked for, which of them failed."""

    counts: Mapping[Outcome, int]
    seconds: float
    targets: int
    failed: tuple[str, ...] = ()  # labels of the targets that cannot be built
    unreached: int = 0  # further targets that were not finished when the build stopped
    interrupted: bool = False
    only_analyzed: bool = False
    only_checked: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether all that was asked for is built."""
        return not (self.failed or self.unreached or self.interrupted or self.counts.get(Outcome.FAILED))

    def text(self) -> str:
        """The build in one line."""
        took = f"in {self.seconds:.{2 if self.seconds < 1 else 1}f} s"
        ended = {outcome: count for outcome, count in self.counts.items() if count}
        actions = _plural(sum(ended.values()), "action") + (f": {_counted(ended)}" if ended else "")
        if self.interrupted:
            return f"ERROR: interrupted: {actions} {took}"
        if not self.succeeded:
            named = ", ".join(self.failed[:3]) + (f" and {len(self.failed) - 3} more" if len(self.failed) > 3 else "")
            what = f"{len(self.failed)} of {_plural(self.targets, 'target')} not "
            what += "up to date" if self.only_checked else "built"
            what += f": {named}" if named else ""
            what += f", {self.unreached} not finished (-k goes on)" if self.unreached else ""
            return f"ERROR: {what}: {actions} {took}"
        if not self.targets:
            return f"INFO: nothing to build {took}"
        if self.only_analyzed:
            return f"INFO: {_plural(self.targets, 'target')} analyzed, nothing was run {took}"
        if not self.counts.get(Outcome.EXECUTED) and not self.counts.get(Outcome.CACHED):
            return f"INFO: {_plural(self.targets, 'target')} up to date {took}"
        return f"INFO: built {_plural(self.targets, 'target')}: {actions} {took}"


class Reporter(Protocol):
    """Hears what happens in a build, in the order in which it happens."""

    def build_started(self, total_known: int) -> None:
        """A build begins; so many actions are known."""
        ...

    def actions_added(self, count: int) -> None:
        """So many more are."""
        ...

    def started(self, action: Action, how: str) -> None:
        """An action runs; `how` says where in a word (`local`, `worker`, `remote`)."""
        ...

    def finished(self, action: Action, outcome: Outcome, result: ActionResult | None) -> None:
        """An action ended, started or not. The output in `result` is shown to the user; failures come by `failed`."""
        ...

    def failed(self, step: Step, error: BuildError) -> None:
        """What went wrong, in full: the error names the step. `finished` comes besides, with Outcome.FAILED."""
        ...

    def error(self, error: BuildError) -> None:
        """Something is wrong that is no action's failure: a package that could not be loaded."""
        ...

    def waiting(self, label: str, pid: int, host: str, since: float) -> None:
        """Process `pid` on `host` builds what we need for `label`; it does since that POSIX time (0: unknown)."""
        ...

    def waited(self, label: str) -> None:
        """The waiting for `label` is over. An action of it that starts or ends says so too."""
        ...

    def message(self, text: str) -> None:
        """Something worth a line."""
        ...

    def warning(self, text: str) -> None:
        """Something to mend that does not stop the build; equal ones may come any number of times."""
        ...

    def command(self, line: str) -> None:
        """The command line of an action that starts, ready to paste."""
        ...

    def explained(self, action: Action, reason: str) -> None:
        """Why an action runs."""
        ...

    def tick(self) -> None:
        """Time went by. To be called a few times a second."""
        ...

    def build_finished(self, summary: Summary) -> None:
        """The last event."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; for the way out after an error. May be called at any time, and twice."""
        ...


@dataclass
class _Running:
    """An action that runs, as the status block shows it."""

    description: str
    how: str
    start: float
    mentioned: float


@dataclass
class _State:
    """What all reporters keep count of."""

    total: int = 0
    counts: dict[Outcome, int] = field(default_factory=dict)
    running: dict[str, _Running] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)
    outputs: dict[bytes, int] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return sum(self.counts.values())


class SilentReporter:
    """Says nothing: for callers who are told by exceptions, and whose standard error is not ours."""

    def build_started(self, total_known: int) -> None:
        """See Reporter; so for all below."""

    def actions_added(self, count: int) -> None: ...  # noqa: D102
    def started(self, action: Action, how: str) -> None: ...  # noqa: D102
    def finished(self, action: Action, outcome: Outcome, result: ActionResult | None) -> None: ...  # noqa: D102
    def failed(self, step: Step, error: BuildError) -> None: ...  # noqa: D102
    def error(self, error: BuildError) -> None: ...  # noqa: D102
    def waiting(self, label: str, pid: int, host: str, since: float) -> None: ...  # noqa: D102
    def waited(self, label: str) -> None: ...  # noqa: D102
    def message(self, text: str) -> None: ...  # noqa: D102
    def warning(self, text: str) -> None: ...  # noqa: D102
    def command(self, line: str) -> None: ...  # noqa: D102
    def explained(self, action: Action, reason: str) -> None: ...  # noqa: D102
    def tick(self) -> None: ...  # noqa: D102
    def build_finished(self, summary: Summary) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class PlainReporter:
    """One line an event that matters: for logs, pipes and plain terminals.

    An action that runs for a minute is mentioned every minute, since CI systems end silent jobs.
    """

    def __init__(self, stream: TextIO, *, colour: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._colour = colour
        self._clock = clock
        self._state = _State()
        self._broken = False

    @property
    def warnings(self) -> int:
        """How many warnings were heard, repeats included."""
        return sum(self._state.warnings.values())

    def build_started(self, total_known: int) -> None:
        """See Reporter."""
        self._state.total = total_known

    def actions_added(self, count: int) -> None:
        """See Reporter."""
        self._state.total += count

    def started(self, action: Action, how: str) -> None:
        """See Reporter."""
        now = self._clock()
        self._state.waiting.pop(str(action.owner), None)
        self._state.running[action.id] = _Running(_describe(action), how, now, now)

    def finished(self, action: Action, outcome: Outcome, result: ActionResult | None) -> None:
        """See Reporter. Only what ran gets a line; the summary counts the others."""
        counts = self._state.counts
        counts[outcome] = counts.get(outcome, 0) + 1
        running = self._state.running.pop(action.id, None)
        self._state.waiting.pop(str(action.owner), None)
        if outcome is Outcome.EXECUTED:
            seconds = result.seconds if result else self._clock() - running.start if running else 0.0
            self._executed(f"[{self._state.done}/{self._state.total}] {_describe(action)} ({seconds:.1f} s)")
        if result and result.output.strip() and outcome in (Outcome.EXECUTED, Outcome.CACHED):
            self._show_output(action, result.output)

    def failed(self, step: Step, error: BuildError) -> None:
        """See Reporter."""
        self._state.running.pop(step.id, None)
        self._say("ERROR", error.render())

    def error(self, error: BuildError) -> None:
        """See Reporter."""
        self._say("ERROR", error.render())

    def waiting(self, label: str, pid: int, host: str, since: float) -> None:
        """See Reporter."""
        text = _waiting(label, pid, host, since)
        if self._state.waiting.get(label) != text:
            self._state.waiting[label] = text
            self._say("INFO", text)

    def waited(self, label: str) -> None:
        """See Reporter."""
        self._state.waiting.pop(label, None)

    def message(self, text: str) -> None:
        """See Reporter."""
        self._say("INFO", text)

    def warning(self, text: str) -> None:
        """See Reporter. The first of equal ones is shown at once, a count of the others at the end."""
        heard = self._state.warnings.get(text, 0)
        self._state.warnings[text] = heard + 1
        if not heard:
            self._say("WARNING", text)

    def command(self, line: str) -> None:
        """See Reporter."""
        self._print(line)

    def explained(self, action: Action, reason: str) -> None:
        """See Reporter."""
        self._say("EXPLAIN", f"{_describe(action)}: {reason}")

    def tick(self) -> None:
        """See Reporter."""
        now = self._clock()
        for running in self._state.running.values():
            if now - running.mentioned >= 60:
                running.mentioned = now
                self._say("INFO", f"still running: {running.description} ({_elapsed(now - running.start)})")

    def build_finished(self, summary: Summary) -> None:
        """See Reporter."""
        outputs = {output.decode(errors="replace").strip(): count for output, count in self._state.outputs.items()}
        for severity, texts in (("INFO", outputs), ("WARNING", self._state.warnings)):
            for text, count in texts.items():
                if count > 1:
                    times = "once" if count == 2 else f"{count - 1} times"
                    self._say(severity, f"repeated {times}: {text.partition(chr(10))[0]}")
        severity, _, text = summary.text().partition(": ")
        self._say(severity, text)

    def close(self) -> None:
        """See Reporter."""

    def _executed(self, line: str) -> None:
        self._print(line)

    def _show_output(self, action: Action, output: bytes) -> None:
        """Let a tool's warnings be seen, each text once: fifty modules that include one header give it fifty times."""
        heard = self._state.outputs.get(output, 0)
        self._state.outputs[output] = heard + 1
        if not heard:
            self._say("INFO", f"output of {_describe(action)}:\n{_shortened(output.decode(errors='replace').rstrip())}")

    def _say(self, severity: str, text: str) -> None:
        if self._colour:
            severity = f"\x1b[{_COLOURS.get(severity, '36')}m{severity}:\x1b[0m"
        else:
            severity += ":"
        self._print(f"{severity} {text}")

    def _print(self, text: str) -> None:
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        """Write and flush. A reader that has gone (`| head`), or a full disk there, is no reason to end a build."""
        if self._broken:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except OSError:
            self._broken = True


class LiveReporter(PlainReporter):
    """Keeps a status block at the bottom of a terminal: what runs and for how long, and counts by kind.

    The cursor always rests below the block and is never hidden, so that there is nothing to restore even after a
    SIGKILL. Everything else is printed above: the block is wiped, the text written, the block drawn again.
    """

    INTERVAL = 0.1  # seconds between two drawings
    LINES = 10  # the most the block has

    def __init__(
        self,
        stream: TextIO,
        *,
        colour: bool = True,
        clock: Callable[[], float] = time.monotonic,
        size: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """`size` gives columns and lines; by default the stream's terminal is asked at each drawing."""
        super().__init__(stream, colour=colour, clock=clock)
        self._size = size or (lambda: _terminal_size(stream))
        self._shown: tuple[str, ...] = ()
        self._drawn_at = float("-inf")
        self._active = False

    def build_started(self, total_known: int) -> None:
        """See Reporter."""
        super().build_started(total_known)
        self._active = True
        self._drawn_at = self._clock()  # a build that is done within the interval shows its summary alone

    def started(self, action: Action, how: str) -> None:
        """See Reporter."""
        super().started(action, how)
        self.tick()

    def finished(self, action: Action, outcome: Outcome, result: ActionResult | None) -> None:
        """See Reporter."""
        super().finished(action, outcome, result)
        self.tick()

    def waiting(self, label: str, pid: int, host: str, since: float) -> None:
        """See Reporter. It stands in the block for as long as it is true."""
        self._state.waiting[label] = _waiting(label, pid, host, since)
        self.tick()

    def tick(self) -> None:
        """See Reporter."""
        now = self._clock()
        if self._active and now - self._drawn_at >= self.INTERVAL:
            self._drawn_at = now
            self._draw(now)

    def build_finished(self, summary: Summary) -> None:
        """See Reporter."""
        self.close()
        super().build_finished(summary)

    def close(self) -> None:
        """See Reporter."""
        self._active = False
        if self._shown:
            self._write(self._wipe())
            self._shown = ()

    def _executed(self, line: str) -> None:
        """No line for each: the block shows them while they run."""

    def _print(self, text: str) -> None:
        columns, _ = self._size()
        before, self._shown = self._wipe(), tuple(_fit(line, columns) for line in self._shown)
        again = "".join(f"{line}\n" for line in self._shown)
        self._write(f"{before}{text}\n{again}")

    def _draw(self, now: float) -> None:
        columns, lines = self._size()
        block = tuple(_fit(line, columns) for line in self._block(now, min(self.LINES, max(1, lines - 1))))
        if block != self._shown:
            before, self._shown = self._wipe(), block
            self._write(before + "".join(f"{line}\n" for line in block))

    def _block(self, now: float, height: int) -> list[str]:
        """The head, then the oldest first: what takes long is what people wonder about."""
        state = self._state
        running = sorted(state.running.values(), key=lambda action: action.start)
        lines = [f"  {each.description}; {_elapsed(now - each.start)}, {each.how}" for each in running]
        lines += [f"  {text}" for text in state.waiting.values()]
        if len(lines) >= height:
            hidden = len(lines) - max(0, height - 2)
            lines = [*lines[: max(0, height - 2)], f"  ... and {hidden} more"][: height - 1]
        shown = {outcome: state.counts.get(outcome, 0) for outcome in _ALWAYS} | state.counts
        head = f"[{state.done}/{state.total}] {_counted(shown)}; {len(running)} running"
        return [head, *lines]

    def _wipe(self) -> str:
        """Up to the block's first row, and clear from there.

        A terminal that became narrower has wrapped the lines it showed, so they are counted at today's width.
        """
        if not self._shown:
            return ""
        columns, _ = self._size()
        rows = sum(max(1, -(-_width(line) // max(1, columns))) for line in self._shown)
        return f"\r\x1b[{rows}A\x1b[J"


def choose_reporter(
    stream: TextIO,
    environment: Mapping[str, str],
    colour: Literal["yes", "no", "auto"] = "auto",
    live: Literal["yes", "no", "auto"] = "auto",
) -> PlainReporter | LiveReporter:
    """The reporter for this stream: `auto` is live on a terminal that can move its cursor, and plain in CI."""
    tty = stream.isatty()
    coloured = wants_colour(colour, environment, tty)
    able = tty and environment.get("TERM", "dumb") != "dumb"
    if live == "yes" or (live == "auto" and able and not _is_ci(environment)):
        return LiveReporter(stream, colour=coloured)
    return PlainReporter(stream, colour=coloured)


def wants_colour(setting: Literal["yes", "no", "auto"], environment: Mapping[str, str], stream_is_tty: bool) -> bool:
    """Whether to colour: the flag decides, then NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE, then what the stream is."""
    if setting != "auto":
        return setting == "yes"
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if environment.get("TERM") == "dumb" or environment.get("CLICOLOR") == "0" or _is_ci(environment):
        return False
    return stream_is_tty


def _is_ci(environment: Mapping[str, str]) -> bool:
    return environment.get("CI", "").lower() not in ("", "0", "false", "no")


_COLOURS = {"ERROR": "31;1", "WARNING": "35", "INFO": "32"}
_MOST_TEXT = 10_000  # characters shown of what a tool said that succeeded
_ALWAYS = (Outcome.EXECUTED, Outcome.CACHED, Outcome.UP_TO_DATE)


def _describe(action: Action) -> str:
    return f"{action.mnemonic} {action.owner}"


def _shortened(text: str) -> str:
    """The beginning of a very long text, in whole lines where it has some."""
    if len(text) <= _MOST_TEXT:
        return text
    shown = text[:_MOST_TEXT].rpartition("\n")[0] or text[:_MOST_TEXT]
    return f"{shown}\n... {len(text[len(shown) :].splitlines())} more lines"


def _counted(counts: Mapping[Outcome, int]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if outcome in counts)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _waiting(label: str, pid: int, host: str, since: float) -> str:
    begun = f" since {time.strftime('%H:%M:%S', time.localtime(since))}" if since else ""
    builder = f"process {pid} on {host}" if pid else "another process"
    return f"waiting for {label}: {builder} builds it{begun}"


def _elapsed(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Asked of the terminal alone: COLUMNS stays as it was when somebody pulls at the window."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return columns or 80, lines or 24


def _fit(line: str, columns: int) -> str:
    """The line in one row of the terminal; the last column stays free, since some wrap there."""
    line = "".join(character if character.isprintable() else "?" for character in line)
    room = max(1, columns - 1)
    if _width(line) <= room:
        return line
    while line and _width(line) > max(0, room - 3):
        line = line[:-1]
    return (line + "...")[:room]


def _width(line: str) -> int:
    """How many columns the line takes."""
    if line.isascii():
        return len(line)
    from unicodedata import combining, east_asian_width  # a shared library, for few

    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in line)
