"""The error family, the places errors point at, and the exit codes of the program. Knows nothing of who raises what.

    BuildError                  something stopped the build, and we know what            exit 1
    +- UsageError               the command line is wrong: a flag, a pattern             exit 2
    +- LoadError                a BUILD.yaml or a rule module is wrong                   exit 1
    +- AnalysisError            a rule refused a target                                  exit 1
    +- ActionFailed             an action ran and failed                                 exit 1
    |  +- NotCached             an action would have to run, and none may                exit 1
    +- QueryError               a query expression is wrong                              exit 7
    +- Interrupted              the user asked to stop                                   exit 8
    +- LockHeld                 somebody else holds a lock and we may not wait           exit 9
    +- EnvironmentFailure       this machine lacks something: compiler, disk, hidet      exit 36
    +- ErrorGroup               several of the above from one run                        the worst of theirs

Anything else that escapes is a bug of ours: it keeps its traceback and exits 37.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple


class ExitCode(IntEnum):
    """Bazel's exit codes, as far as we use them."""

    SUCCESS = 0
    BUILD_FAILED = 1
    USAGE = 2
    TESTS_FAILED = 3
    NO_TESTS = 4
    QUERY_FAILED = 7
    INTERRUPTED = 8
    LOCK_HELD = 9
    ENVIRONMENT = 36
    INTERNAL = 37


class Location(NamedTuple):
    """A place in a file: the path as it is shown to the user, 1-based line and column, and the text of that line."""

    path: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    def caret(self) -> str:
        """The line with a caret below the column, indented for a terminal; empty when the text is not known."""
        if not self.text:
            return ""
        before = "".join("\t" if character == "\t" else " " for character in self.text[: self.column - 1])
        return f"    {self.text}\n    {before}^"


class BuildError(Exception):
    """Base of all errors a user can meet: what happened, where, and what to do about it.

    `related` names further places that belong to the message ("first declared here").
    """

    exit_code = ExitCode.BUILD_FAILED

    def __init__(
        self,
        message: str,
        *,
        location: Location | None = None,
        hint: str | None = None,
        related: Sequence[tuple[str, Location]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
        self.hint = hint
        self.related = tuple(related)

    def render(self) -> str:
        """The whole error as lines of text, without a trailing newline."""
        lines = [f"{self.location}: {self.message}" if self.location else self.message]
        if self.location and self.location.text:
            lines.append(self.location.caret())
        for note, location in self.related:
            lines.append(f"  {location}: {note}")
            if location.text:
                lines.append(location.caret())
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()


class UsageError(BuildError):
    """The command line cannot be understood."""

    exit_code = ExitCode.USAGE


class LoadError(BuildError):
    """A BUILD.yaml, or a rule module it loads, is wrong."""


class AnalysisError(BuildError):
    """A rule refused a target, or targets do not fit together."""


class ActionFailed(BuildError):
    """An action ran and did not do what it promised.

    `detail` is what the tool said, `log` the file that has all of it, `command` a line to paste that fails as this did.
    """

    def __init__(
        self,
        message: str,
        *,
        location: Location | None = None,
        hint: str | None = None,
        detail: str = "",
        log: str = "",
        command: str = "",
    ) -> None:
        # The place is where the target is declared; what is wrong is elsewhere, so no caret.
        super().__init__(message, location=location and location._replace(text=""), hint=hint)
        self.detail = detail
        self.log = log
        self.command = command

    def render(self) -> str:
        """The error, what the tool said, and how to see it again."""
        head, *hint = super().render().split("\nhint: ")
        lines = [head, self.detail] if self.detail else [head]
        if hint:
            lines.append(f"hint: {hint[0]}")
        if self.log:
            lines.append(f"log: {self.log}")
        if self.command:
            lines.append(f"to reproduce: {self.command}")
        return "\n".join(lines)


class NotCached(ActionFailed):
    """No cache has the result of an action, and the user wants nothing to run."""


class QueryError(BuildError):
    """A query expression is wrong."""

    exit_code = ExitCode.QUERY_FAILED


class Interrupted(BuildError):
    """The user asked us to stop."""

    exit_code = ExitCode.INTERRUPTED


class LockHeld(BuildError):
    """A lock is held by somebody else and waiting was not allowed, or took too long."""

    exit_code = ExitCode.LOCK_HELD


class EnvironmentFailure(BuildError):
    """The machine lacks something the build needs."""

    exit_code = ExitCode.ENVIRONMENT


class ErrorGroup(BuildError):
    """Several errors of one run, shown one after the other."""

    def __init__(self, errors: Iterable[BuildError]) -> None:
        self.errors = tuple(errors)
        super().__init__(f"{len(self.errors)} errors")
        self.exit_code = max((error.exit_code for error in self.errors), default=ExitCode.BUILD_FAILED)

    def render(self) -> str:
        """All errors, a blank line between them."""
        return "\n\n".join(error.render() for error in self.errors)


def error_list(error: BuildError) -> tuple[BuildError, ...]:
    """The errors of a group, or the one error."""
    return error.errors if isinstance(error, ErrorGroup) else (error,)


def by_place(error: BuildError) -> tuple[str, int, int]:
    """Sorts errors as somebody meets their places who reads the files; those without a place come first."""
    location = error.location
    return (location.path, location.line, location.column) if location else ("", 0, 0)


def raise_all(errors: Sequence[BuildError]) -> None:
    """Raise nothing, the one error, or a group of them."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ErrorGroup(errors)


def nearest(word: str, choices: Iterable[str], count: int = 3, least: float = 0.6) -> list[str]:
    """Those of `choices` that are most like `word`; each at least so much, of 1."""
    from difflib import get_close_matches  # 2 ms, and only where something is wrong

    return get_close_matches(word, list(choices), count, least)


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """A hint that names the nearest of `choices`, or None where nothing is near."""
    near = nearest(word, choices, 1)
    return f"did you mean {near[0]!r}?" if near else None
