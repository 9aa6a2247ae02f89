"""Our side of the persistent worker: gets one when the first step comes, and hands steps to it from many threads.

It may be a process of ours, or one that outlives us (`lasting`). Knows the protocol and processes; imports no hidet and
knows no step.
"""

from __future__ import annotations

import contextlib
import os
import site
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hidet_build.errors import EnvironmentFailure, Interrupted
from hidet_build.files import remove
from hidet_build.process import OUTPUT_LIMIT, Processes, ProcessResult
from hidet_build.worker.protocol import COMMAND, Lines, Request, StepExit, encode

_ATTEMPTS = 2
_PIECE = 1 << 16
_POLL = 0.05  # seconds between two looks at whether a step is still wanted
_ASK = 2.0  # seconds of silence after which we ask whether a worker is there
_CANCEL_PATIENCE = 0.5  # seconds of silence of a worker that was told to end a step
_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class Lasting:
    """That the worker may outlive us, and be there before us."""

    workspace: str  # it goes when this folder does
    seconds: float  # how long it waits for the next command; with 0 it is a process of ours all the same
    folders: tuple[str, ...]  # where it may be met, the best first
    identity: Callable[[], str]  # what hidet is


class WorkerPool:
    """The one worker of a build. Safe to use from several threads at once.

    It is started, or found, by the first `run`, and started again when it dies, then as a process of ours; a step that
    was running then is run once more.
    """

    def __init__(self, processes: Processes, python: str, lasting: Lasting | None = None) -> None:
        """`python` is the interpreter that has hidet."""
        self._processes = processes
        self._python = python
        self._lasting = lasting if lasting and lasting.seconds else None
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._folder = ""
        self._closed = False

    @property
    def startup_seconds(self) -> float:
        """How long importing hidet took; 0 where no worker was needed or it is not ready."""
        server = self._server
        return server.startup_seconds if server else 0.0

    @property
    def startup_max_rss(self) -> int:
        """The bytes a worker that has only imported hidet takes."""
        server = self._server
        return server.startup_max_rss if server else 0

    def environment(self, environment: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment in which a worker, or a step as a plain command line, finds this package.

        `environment` is the action's, for a plain command.
        """
        found = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **(environment or {}),
            # Not part of what a step does: no litter, one encoding, and one order of a kernel's own sets.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
            "PYTHONHASHSEED": "0",
        }
        # A folder of site-packages must not come before the standard library, and need not.
        folders = [] if os.path.basename(_PACKAGE_ROOT) in ("site-packages", "dist-packages") else [_PACKAGE_ROOT]
        # hidet is looked for, and counts in keys, where we ourselves would import it from.
        folders += [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
        if folders:
            found["PYTHONPATH"] = ":".join(dict.fromkeys(folders))
        if site.ENABLE_USER_SITE and self._python == sys.executable:
            # HOME is another one in there; hidet may be in the user's site-packages all the same.
            found["PYTHONUSERBASE"] = site.getuserbase()
        return found

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        environment: Mapping[str, str],
        output_path: str,
        cancelled: Callable[[], bool] | None = None,
    ) -> ProcessResult:
        """Do the step `argv` in `cwd`; all it prints goes to `output_path` and into the result.

        The step's environment is `environment` and nothing else. Raises Interrupted when the build was stopped or
        `cancelled()` became true, EnvironmentFailure when hidet cannot be imported or the worker died twice.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            server = self._running()
            outcome = server.run(argv, cwd, environment, output_path, lambda: self._unwanted(cancelled))
            if outcome is not None:
                return _result(outcome, output_path)
            self._raise_if_stopped(cancelled)
            end = self._forget(server)
            if attempt == _ATTEMPTS:
                raise EnvironmentFailure(
                    f"the hidet worker {end} while it ran `{' '.join(argv[:1])}`, {_ATTEMPTS} times",
                    hint="is there enough memory for this many jobs? (--jobs=N)" if "signal 9" in end else None,
                )
        raise AssertionError  # the loop returns or raises

    def close(self) -> None:
        """End the worker with all its children; steps that still run raise Interrupted."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
        if server is not None:
            server.stop()
        if self._folder:
            with contextlib.suppress(OSError):
                remove(self._folder)

    terminate = close

    def _unwanted(self, cancelled: Callable[[], bool] | None) -> bool:
        return self._closed or self._processes.stopped or (cancelled is not None and cancelled())

    def _raise_if_stopped(self, cancelled: Callable[[], bool] | None) -> None:
        if self._unwanted(cancelled):
            raise Interrupted("a step of hidet was stopped")

    def _running(self) -> _Server:
        with self._lock:
            self._raise_if_stopped(None)
            if self._server is None:
                self._server = _Server(self._lasting_link() or self._own_link())
            return self._server

    def _lasting_link(self) -> _Link | None:
        """A way to a lasting worker; tried once in a build."""
        wanted, self._lasting = self._lasting, None
        if wanted is None:
            return None
        from hidet_build.worker import lasting  # sockets, only for builds that have a step

        worker = lasting.Wanted(wanted.workspace, self._python, self.environment(), wanted.identity())
        connection = lasting.connect(wanted.folders, worker)
        if connection is None:
            return None
        connection.send(encode({"stay": wanted.seconds}))
        return connection

    def _own_link(self) -> _Link:
        # Its home and working folder: nothing in them, so no configuration and no module is found there.
        import tempfile  # 5 ms with what it imports, and most builds start no worker

        self._folder = self._folder or tempfile.mkdtemp(prefix="hidet-build-worker-")
        log = os.path.join(self._folder, "log")
        environment = {**self.environment(), "HOME": self._folder, "TMPDIR": self._folder}
        home = os.path.join(self._folder, "empty")
        os.makedirs(home, exist_ok=True)
        process = self._processes.start([self._python, *COMMAND[1:], "--persistent"], environment, home, log)
        return _OwnLink(self._processes, process, log)

    def _forget(self, server: _Server) -> str:
        """Take leave of a dead worker, and say how it ended. Raises EnvironmentFailure where a new one would too."""
        with self._lock:
            if self._server is server:
                self._server = None
            end = server.stop()
        if server.refusal:
            raise _refused(server.refusal)
        return end


def _refused(refusal: str) -> EnvironmentFailure:
    message, _, hint = refusal.partition(": pip install ")
    return EnvironmentFailure(message, hint=f"pip install {hint}" if hint else None)


def _result(outcome: Mapping[str, Any], output_path: str) -> ProcessResult:
    code = outcome["exit_code"]
    return ProcessResult(
        exit_code=code if code >= 0 else 128 - code,
        output=_read_output(output_path),
        seconds=outcome["seconds"],
        cpu_seconds=outcome["cpu_seconds"],
        max_rss=outcome["max_rss"],
        signal=-code if code < 0 else None,
    )


def _read_output(path: str) -> bytes:
    """What the step printed; of very much, the beginning and the end, where a failure is told."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= OUTPUT_LIMIT:
            return file.read()
        half = OUTPUT_LIMIT // 2
        head = file.read(half)
        file.seek(size - half)
        return head + f"\n[... {size - 2 * half} bytes left out ...]\n".encode() + file.read()


@dataclass
class _Pending:
    """A request that was sent; `done` is set when `outcome` is there or the server is gone."""

    done: threading.Event = field(default_factory=threading.Event)
    outcome: Mapping[str, Any] | None = None
    pid: int = 0


class _Link(Protocol):
    """A way to a worker."""

    replies: int  # a descriptor, of whoever reads from it
    start_patience: float  # seconds it may be silent before it is ready
    patience: float  # and afterwards

    def send(self, line: bytes) -> bool:
        """Send a whole message; False where the worker is gone, which reading `replies` tells too."""

    def hang_up(self, stuck: bool) -> None:
        """The worker is silent: bring reading `replies` to its end. Nobody shall find one that is `stuck`."""

    def end(self) -> str:
        """End the worker, or the conversation with it, and say how it ended."""


class _OwnLink:
    """The pipes to a worker that is a process of ours: it ends when it must, and is not silent but at work."""

    start_patience = patience = float("inf")

    def __init__(self, processes: Processes, process: subprocess.Popen[bytes], log: str) -> None:
        self._processes = processes
        self._process = process
        self._log = log
        # A descriptor of the reader's own: `end` closes the pipe while it may still be reading.
        self.replies = os.dup(process.stdout.fileno()) if process.stdout else -1

    def send(self, line: bytes) -> bool:
        stdin = self._process.stdin
        if stdin is None:
            return False
        try:
            stdin.write(line)
            stdin.flush()
        except (OSError, ValueError):  # it is gone, or its pipe is closed already; the reader sees it too
            return False
        return True

    def hang_up(self, stuck: bool) -> None:
        """Nobody loses patience with it."""
        raise AssertionError(stuck)

    def end(self) -> str:
        """End the process, which ends its children first."""
        code = self._processes.stop(self._process)
        if code == StepExit.OK:
            return "ended"
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}{self._last_words()}"

    def _last_words(self) -> str:
        try:
            with open(self._log, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        words = [line for line in lines if line.strip()]
        return f" ({words[-1].strip()})" if words else ""


class _Server:
    """One worker, and the thread that reads what it says."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._count = 0
        self._heard_count = 0
        self._gone = False
        self.refusal = ""
        self.startup_seconds = 0.0
        self.startup_max_rss = 0
        self._reader = threading.Thread(target=self._read, name="hidet-worker-reader", daemon=True)
        self._reader.start()

    def run(
        self,
        argv: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        output_path: str,
        unwanted: Callable[[], bool],
    ) -> Mapping[str, Any] | None:
        """The `finished` message of a step; None where the server died first. Raises Interrupted."""
        with self._lock:
            if self._gone:
                return None
            self._count += 1
            number = self._count
            pending = self._pending[number] = _Pending()
            request = Request(number, tuple(argv), cwd, environment, output_path)
            if not self._link.send(encode(request.as_message())):
                del self._pending[number]
                return None
        if self._wait(number, pending, unwanted):
            raise Interrupted(f"{argv[0]} was stopped")
        return pending.outcome

    def _wait(self, number: int, pending: _Pending, unwanted: Callable[[], bool]) -> bool:
        """Until the step has ended, or the worker; whether it was cancelled."""
        cancelled = False
        # Counted in looks rather than by the clock, which goes on when we are stopped (Ctrl-Z).
        heard, silent = self._heard_count, 0
        while not pending.done.wait(_POLL):
            silent = silent + 1 if heard == self._heard_count else 0
            heard = self._heard_count
            if not cancelled and unwanted():
                cancelled, silent = True, 0
                self._send({"id": number, "cancel": True})
            self._mind(silent * _POLL, cancelled)
        return cancelled

    def _mind(self, silent: float, cancelled: bool) -> None:
        """Ask a worker that said nothing for long whether it is there, and later take it that it is not."""
        patience = self._link.patience if self.startup_max_rss else self._link.start_patience
        if patience == float("inf"):
            return
        if silent >= patience:
            self._link.hang_up(stuck=True)
        elif cancelled and silent >= _CANCEL_PATIENCE:
            self._link.hang_up(stuck=False)
        elif silent and silent % _ASK < _POLL:
            self._send({"ping": True})

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._link.send(encode(message))

    def stop(self) -> str:
        """End the worker, or our part of it, and say how it ended."""
        end = self._link.end()
        self._reader.join()
        return end

    def _read(self) -> None:
        lines = Lines()
        # A reset connection is an ended one.
        with open(self._link.replies, "rb", buffering=0) as source, contextlib.suppress(OSError):
            while piece := source.read(_PIECE):
                for message in lines.feed(piece):
                    self._heard(message)
        with self._lock:
            self._gone = True
            orphans = list(self._pending.values())
        for pending in orphans:
            # Its children die with it, but not what those have started.
            if pending.pid:
                _kill_group(pending.pid)
            pending.done.set()

    def _heard(self, message: Mapping[str, Any]) -> None:
        self._heard_count += 1
        event = message["event"]
        if event == "ready":
            self.startup_seconds, self.startup_max_rss = message["seconds"], message["max_rss"]
        elif event == "refused":
            self.refusal = message["message"]
        elif event in ("started", "finished"):
            with self._lock:
                pending = self._pending[message["id"]]
                if event == "started":
                    pending.pid = message["pid"]
                    return
                del self._pending[message["id"]]
            pending.outcome = message
            pending.done.set()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, 9)
    except (ProcessLookupError, PermissionError):
        return
