"""The subprocess room: runs command lines, each in a process group of its own, and ends them all when asked to.

Knows command lines, folders and signals; nothing of actions or keys. A command writes to a file, never to a pipe, so
a grandchild that outlives it and keeps the output open cannot make us wait.
"""

from __future__ import annotations

import errno
import os
import resource
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, NamedTuple

from hidet_build.errors import BuildError, EnvironmentFailure, Interrupted

OUTPUT_LIMIT = 1 << 20  # more of a command's text than this stays in its file
GRACE = 0.5  # seconds between the polite signal and the last one

_NO_SUCH = (errno.ENOENT, errno.ENOTDIR)
_NO_RESOURCES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class ProcessResult(NamedTuple):
    """How a command ended.

    `exit_code` is 128 + `signal` where a signal ended it. `output` is standard output and error in the order they
    came, its middle left out when there is very much (the file has all of it). `max_rss` is in bytes; Linux counts
    our own size at the fork as a lower bound of it.
    """

    exit_code: int
    output: bytes
    seconds: float
    cpu_seconds: float
    max_rss: int
    signal: int | None = None
    timed_out: bool = False


class Processes:
    """All processes of one build, so that they can be ended together. Safe to use from several threads at once."""

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped = False
        self._watched = False
        # Signals are sent and processes reaped only under this lock: a process id is never used after it was given
        # back. Re-entrant, because a signal handler may end everything while its own thread holds it.
        self._lock = threading.RLock()

    @property
    def stopped(self) -> bool:
        """Whether `terminate_all` was called."""
        return self._stopped

    @property
    def watched(self) -> bool:
        """Whether somebody looks at `stopped` by and by; if not, whoever stops us must break in."""
        return self._watched

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the body runs it looks at `stopped` and ends in its own way."""
        self._watched = True
        try:
            yield
        finally:
            self._watched = False

    def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: str,
        environment: Mapping[str, str],
        output_path: str,
        executable: str | None = None,
        stdin: str | None = None,
        timeout: float | None = None,
    ) -> ProcessResult:
        """Run a command to its end; what its process group leaves behind is killed then.

        `executable` is the binary that the plain name `arguments[0]` stands for; without it, PATH of `environment` is
        searched. The environment is exactly the one given. All output goes to `output_path`; `stdin` is a file to
        read, nothing by default. After `timeout` seconds the group is ended. Raises Interrupted once `terminate_all`
        was called, another BuildError when the command cannot be started.
        """
        started = time.monotonic()
        # Appending keeps the text whole when a command opens /dev/stderr anew.
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        with (
            open(os.open(output_path, flags, 0o666), "r+b", buffering=0) as output,
            open(stdin or os.devnull, "rb", buffering=0) as source,
        ):
            process = self._spawn(arguments, executable, cwd, environment, source, output, subprocess.STDOUT)
            expired = threading.Event()
            status, usage = self._wait(process, timeout, expired)
            seconds = time.monotonic() - started
            if self._stopped:
                raise Interrupted(f"{arguments[0]} was stopped")
            text = _read_output(output, output_path)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return ProcessResult(
            exit_code=os.WEXITSTATUS(status) if number is None else 128 + number,
            output=text,
            seconds=seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            max_rss=usage.ru_maxrss * 1024,
            signal=number,
            timed_out=expired.is_set(),
        )

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: str,
        stderr_path: str,
        *,
        executable: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process that is talked to through pipes on its standard input and output; errors go to a file.

        It is one of those `terminate_all` ends. Give it back with `stop`.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with open(os.open(stderr_path, flags, 0o666), "ab", buffering=0) as errors:
            return self._spawn(arguments, executable, cwd, environment, subprocess.PIPE, subprocess.PIPE, errors)

    def stop(self, process: subprocess.Popen[bytes], grace: float = GRACE) -> int:
        """End the group of a process that `start` gave, close its pipes, and return its exit code (Popen's kind)."""
        self._end((process,), grace)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # the other end is gone and something was left to flush
                    pipe.close()
        if process.returncode is None:
            self._wait(process, None, threading.Event())
        with self._lock:
            self._running.pop(process.pid, None)
        return process.returncode

    def terminate_all(self, grace: float = GRACE) -> None:
        """End every process group, politely and after `grace` seconds by force; later `run`s raise Interrupted.

        Returns when the signals are sent. May be called from any thread and from a signal handler, and again.
        """
        self._stopped = True
        with self._lock:
            processes = tuple(self._running.values())
        self._end(processes, grace)

    def _spawn(
        self,
        arguments: Sequence[str],
        executable: str | None,
        cwd: str,
        environment: Mapping[str, str],
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
    ) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise Interrupted("the build was stopped")
        try:
            process = subprocess.Popen(
                list(arguments),
                executable=executable,
                cwd=cwd,
                env=dict(environment),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _refusal(arguments, executable, cwd, environment, error) from error
        with self._lock:
            self._running[process.pid] = process
        if self._stopped:  # between the look above and now
            self._end((process,), 0)
        return process

    def _wait(
        self, process: subprocess.Popen[bytes], timeout: float | None, expired: threading.Event
    ) -> tuple[int, resource.struct_rusage]:
        def expire() -> None:
            expired.set()
            self._end((process,), GRACE)

        timer = threading.Timer(timeout, expire) if timeout is not None else None
        try:
            if timer:
                timer.daemon = True
                timer.start()
            # The leader stays a zombie until its group was killed: so long nobody else can get its number.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError as error:
            with self._lock:
                self._running.pop(process.pid, None)
            process.returncode = -signal.SIGKILL
            raise EnvironmentFailure(
                "somebody else collected the exit status of a command we ran",
                hint="SIGCHLD must not be ignored in the process that builds",
            ) from error
        except BaseException:
            self._end((process,), 0)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            self._reap(process)
            raise
        finally:
            if timer:
                timer.cancel()
        return self._reap(process)

    def _reap(self, process: subprocess.Popen[bytes]) -> tuple[int, resource.struct_rusage]:
        with self._lock:
            self._signal(process, signal.SIGKILL)
            self._running.pop(process.pid, None)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        return status, usage

    def _end(self, processes: Sequence[subprocess.Popen[bytes]], grace: float) -> None:
        deadline = time.monotonic() + grace
        if grace > 0:
            for process in processes:
                self._signal(process, signal.SIGTERM)
        while time.monotonic() < deadline and not all(self._has_ended(process) for process in processes):
            time.sleep(0.01)
        for process in processes:
            self._signal(process, signal.SIGKILL)

    def _signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        with self._lock:
            if process.pid in self._running and process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)

    def _has_ended(self, process: subprocess.Popen[bytes]) -> bool:
        with self._lock:
            if process.pid not in self._running or process.returncode is not None:
                return True
            try:
                return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
            except ChildProcessError:
                return True


def start_apart(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: str, stdin: int, log: str
) -> subprocess.Popen[bytes]:
    """Start a process that outlives us and any Ctrl-C: in a session of its own, with no descriptor of ours but `stdin`.

    What it says goes to the end of the file `log`. Raises BuildError when it cannot be started.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with open(os.open(log, flags, 0o600), "ab", buffering=0) as output:
        try:
            return subprocess.Popen(
                list(arguments),
                cwd=cwd,
                env=dict(environment),
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _refusal(arguments, None, cwd, environment, error) from error


def _read_output(output: IO[bytes], path: str) -> bytes:
    size = os.fstat(output.fileno()).st_size
    if size <= OUTPUT_LIMIT:
        return os.pread(output.fileno(), size, 0)
    half = OUTPUT_LIMIT // 2
    head, tail = os.pread(output.fileno(), half, 0), os.pread(output.fileno(), half, size - half)
    return head + f"\n[... {size - 2 * half} bytes left out, all of it is in {path} ...]\n".encode() + tail


def _refusal(
    arguments: Sequence[str],
    executable: str | None,
    cwd: str,
    environment: Mapping[str, str],
    error: OSError | ValueError,
) -> BuildError:
    program = executable or (arguments[0] if arguments else "")
    if isinstance(error, ValueError):  # a null byte, or text the locale cannot encode
        return BuildError(f"the command line of {program!r} cannot be passed to a program: {error}")
    if not os.path.isdir(cwd):
        return EnvironmentFailure(f"cannot run {program!r}: its working folder {cwd} is not there")
    if error.errno in _NO_SUCH:
        if executable and os.path.exists(executable):
            return EnvironmentFailure(
                f"cannot run {program!r}: the interpreter or loader it asks for is not there",
                hint="look at its first line, or at `file` of it",
            )
        return EnvironmentFailure(
            f"cannot run {program!r}: there is no such program",
            hint=None if executable else f"PATH was {environment.get('PATH', 'not set')!r}",
        )
    if error.errno == errno.EACCES:
        return EnvironmentFailure(f"cannot run {program!r}: not executable", hint=f"chmod +x {shlex.quote(program)}?")
    if error.errno == errno.ENOEXEC:
        return EnvironmentFailure(
            f"cannot run {program!r}: not a program for this machine (no `#!` line, or other CPU)"
        )
    if error.errno == errno.E2BIG:
        length = sum(len(argument.encode(errors="surrogateescape")) + 1 for argument in arguments)
        return BuildError(
            f"cannot run {program!r}: its command line is too long ({len(arguments)} arguments, {length} bytes)",
            hint="pass the arguments in a file (`@file`)",
        )
    if error.errno in _NO_RESOURCES:
        return EnvironmentFailure(
            f"cannot run {program!r}: {error.strerror}", hint="run fewer commands at once: --jobs=N"
        )
    return EnvironmentFailure(f"cannot run {program!r}: {error.strerror}")


def shell_line(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: str, executable: str | None = None
) -> str:
    """A line to paste into a shell that runs the command again, as it was run.

    `executable` takes the place of `arguments[0]`, which a shell could only find through PATH.
    """
    variables = [shlex.quote(f"{name}={value}") for name, value in environment.items()]
    words = [shlex.quote(word) for word in (executable or arguments[0], *arguments[1:])]
    return " ".join(["cd", shlex.quote(cwd), "&&", "env", "-i", *variables, *words])
