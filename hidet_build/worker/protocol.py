"""What is said between the front end and a worker: command lines, JSON lines, exit codes, failures. Imports no hidet.

    us -> worker    {"id": 1, "argv": ["lower", ...], "cwd": ..., "environment": {...}, "output": FILE}
                    {"id": 1, "cancel": true}
                    {"ping": true}                                                 are you there?
                    {"stay": 600}         to a lasting worker: how many seconds to wait for the next command
                    {"shutdown": true}    to a lasting worker: take in nobody else, and end when you are alone
    worker -> us    {"event": "ready", "seconds": 2.0, "max_rss": 280000000}       hidet is imported
                    {"event": "pong"}
                    {"event": "ending", "others": 1}       told to shut down: for so many others it goes on
                    {"event": "refused", "message": ...}                           it cannot be; the worker exits with 4
                    {"event": "started", "id": 1, "pid": 4242}
                    {"event": "finished", "id": 1, "exit_code": 0, "seconds": 0.1, "cpu_seconds": 0.1,
                     "max_rss": 290000000}                exit_code is -9 where signal 9 ended it

A step that fails because of what the user wrote ends its output with one line that starts with `FAILURE_MARK`; the
rest of that line is a `Failure` as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

# How an action that a worker can serve begins; what follows is the step with its arguments.
COMMAND = ("python3", "-m", "hidet_build.worker")
FAILURE_MARK = "hidet-build-failure: "
# In the folder of a lasting worker and beside it: where it listens, what it said, and what is held to start or end one.
SOCKET, LOG, LOCK = "socket", "log", "lock"


class StepExit(IntEnum):
    """How a step, or the worker program itself, ended."""

    OK = 0
    USER = 1  # the kernel is wrong; the output ends with a failure line
    USAGE = 2  # the step's own command line is wrong
    BUG = 3  # ours: the output has the whole traceback
    NO_HIDET = 4  # hidet cannot be imported


@dataclass(frozen=True)
class Failure:
    """What the user did wrong, for a front end that knows targets.

    `kind` is `undeclared-import` (`subject` is the module), `undeclared-file` (`subject` is the path) or `kernel`.
    `file` is a path from the execution root, "" where the place is not known; `line` and `column` are 1-based and 0
    where unknown; `text` is the line.
    """

    kind: str
    message: str
    subject: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    text: str = ""
    hint: str = ""

    def as_line(self) -> str:
        """The line that ends the output of the failed step."""
        return FAILURE_MARK + json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Request:
    """One step to run: its arguments, the folder it runs in, its whole environment, the file its output goes to."""

    id: int
    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    output: str

    def as_message(self) -> dict[str, Any]:
        """The request as it is sent."""
        return {**asdict(self), "environment": dict(self.environment)}


def step_arguments(arguments: Sequence[str]) -> tuple[str, ...] | None:
    """The step and its arguments, of a command line that a worker can serve; None for any other."""
    if tuple(arguments[: len(COMMAND)]) != COMMAND:
        return None
    return tuple(arguments[len(COMMAND) :])


def split_failure(output: bytes) -> tuple[bytes, Failure | None]:
    """A step's output without its failure line, and the failure."""
    start = output.rfind(b"\n" + FAILURE_MARK.encode()) + 1
    if not start and not output.startswith(FAILURE_MARK.encode()):
        return output, None
    line, _, rest = output[start:].partition(b"\n")
    return output[:start] + rest, Failure(**json.loads(line.decode()[len(FAILURE_MARK) :]))


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as one line."""
    return json.dumps(message).encode() + b"\n"


class Lines:
    """Puts lines together again from the pieces in which a pipe delivers them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]
