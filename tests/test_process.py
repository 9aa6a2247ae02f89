"""Running commands: output, exit codes, groups, stopping, and the line that reproduces one."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hidet_build.errors import BuildError, EnvironmentFailure, Interrupted
from hidet_build.process import OUTPUT_LIMIT, Processes, ProcessResult, shell_line

PATH = {"PATH": "/usr/bin:/bin"}


def run(folder: Path, script: str, processes: Processes | None = None, timeout: float | None = None) -> ProcessResult:
    """Run a shell script in `folder`, its text in `folder`/log."""
    return (processes or Processes()).run(
        ["sh", "-c", script], cwd=str(folder), environment=PATH, output_path=str(folder / "log"), timeout=timeout
    )


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something happened, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it did not happen")
        time.sleep(0.01)


def is_running(pid_file: Path) -> bool:
    """Whether the process whose number is in the file still runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid_file.read_text().strip()}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def has_ended(pid_file: Path) -> bool:
    """The opposite."""
    return not is_running(pid_file)


def test_output_in_order(tmp_path: Path) -> None:
    """Standard output and error come in the order they were written, in memory and in the file."""
    result = run(tmp_path, "echo one; echo two >&2; echo three")

    assert b"one\ntwo\nthree\n" == result.output
    assert result.output == (tmp_path / "log").read_bytes()
    assert (0, None, False) == (result.exit_code, result.signal, result.timed_out)


def test_output_opened_anew(tmp_path: Path) -> None:
    """A command that opens /dev/stderr itself overwrites nothing."""
    result = run(tmp_path, "echo one; echo two > /proc/self/fd/2; echo three")

    assert b"three\n" in result.output


def test_output_that_is_not_utf8(tmp_path: Path) -> None:
    """Any bytes are output."""
    assert b"\xff\xce\n" == run(tmp_path, r"printf '\377\316\n' >&2").output


def test_much_output_is_cut_in_memory_only(tmp_path: Path) -> None:
    """Of very much text head and tail are kept, and the file has all of it."""
    result = run(tmp_path, f"echo first; head -c {3 * OUTPUT_LIMIT} /dev/zero; echo last")

    assert 3 * OUTPUT_LIMIT + len("first\nlast\n") == (tmp_path / "log").stat().st_size
    assert result.output.startswith(b"first\n")
    assert result.output.endswith(b"last\n")
    assert len(result.output) < OUTPUT_LIMIT + 1000
    assert str(tmp_path / "log").encode() in result.output


@pytest.mark.parametrize(("script", "code", "number"), [("exit 3", 3, None), ("kill -11 $$", 139, 11)])
def test_exit_codes(tmp_path: Path, script: str, code: int, number: int | None) -> None:
    """Exit codes and signals are told apart."""
    result = run(tmp_path, script)

    assert (code, number) == (result.exit_code, result.signal)


def test_environment_is_exact(tmp_path: Path) -> None:
    """A command sees the environment given, and nothing of ours."""
    result = Processes().run(
        ["env"],
        executable=shutil.which("env"),
        cwd=str(tmp_path),
        environment={"A": "b c", "EMPTY": ""},
        output_path=str(tmp_path / "log"),
    )

    assert ["A=b c", "EMPTY="] == sorted(result.output.decode().splitlines())


def test_standard_input(tmp_path: Path) -> None:
    """Standard input is empty, or the file given."""
    (tmp_path / "in").write_bytes(b"text")
    nothing = run(tmp_path, "cat")
    given_ = Processes().run(
        ["cat"], cwd=str(tmp_path), environment=PATH, output_path=str(tmp_path / "log"), stdin=str(tmp_path / "in")
    )

    assert (b"", b"text") == (nothing.output, given_.output)


def test_plain_name_with_executable(tmp_path: Path) -> None:
    """argv[0] is the plain name, whatever binary stands for it."""
    result = Processes().run(
        ["g++", "-c", "echo $0; pwd"],
        executable="/bin/sh",
        cwd=str(tmp_path),
        environment={},
        output_path=str(tmp_path / "log"),
    )

    assert ["g++", str(tmp_path)] == result.output.decode().splitlines()


def test_resources(tmp_path: Path) -> None:
    """Time and memory are measured."""
    script = (
        "import time; b = bytearray(200 << 20)\nend = time.process_time() + 0.2\nwhile time.process_time() < end: 0"
    )
    result = Processes().run(
        [sys.executable, "-c", script], cwd=str(tmp_path), environment={}, output_path=str(tmp_path / "log")
    )

    assert result.max_rss > 200 << 20
    assert result.cpu_seconds >= 0.2
    assert result.seconds >= 0.2


def test_leftovers_are_killed(tmp_path: Path) -> None:
    """A grandchild that ignores signals and holds the output open neither delays us nor lives on."""
    run(tmp_path, "(trap '' INT TERM HUP; sleep 1000) & echo $! > pid; echo done")
    wait_for(functools.partial(has_ended, tmp_path / "pid"))

    assert b"done\n" == (tmp_path / "log").read_bytes()


def test_timeout(tmp_path: Path) -> None:
    """After its time a command is ended, its whole group with it, also when it ignores the polite signal."""
    result = run(tmp_path, "trap '' TERM; sleep 1000 & echo $! > pid; wait; sleep 1000", timeout=0.3)
    wait_for(functools.partial(has_ended, tmp_path / "pid"))

    assert result.timed_out
    assert signal.SIGKILL == result.signal


def test_timeout_not_reached(tmp_path: Path) -> None:
    """A command that is done in time did not time out."""
    assert not run(tmp_path, "true", timeout=60).timed_out


def test_many_threads(tmp_path: Path) -> None:
    """Commands of several threads do not mix."""
    processes, seen = Processes(), {}

    def work(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        seen[number] = [run(folder, f"echo {number}; exit {number}", processes) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {number: {(number, f"{number}\n".encode())} for number in range(8)} == {
        number: {(result.exit_code, result.output) for result in results} for number, results in seen.items()
    }


def test_terminate_all(tmp_path: Path) -> None:
    """Ending all ends running commands and their grandchildren that ignore SIGINT and SIGTERM, and starts no more."""
    processes = Processes()
    outcomes: list[object] = []

    def work(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        script = "(trap '' INT TERM; sleep 1000) & echo $! > pid; touch ready; wait"
        try:
            outcomes.append(run(folder, script, processes))
        except Interrupted as error:
            outcomes.append(error.exit_code)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(list(tmp_path.glob("*/ready"))) == 3)
    processes.terminate_all()
    for thread in threads:
        thread.join()
    for number in range(3):
        wait_for(functools.partial(has_ended, tmp_path / str(number) / "pid"))

    assert [8, 8, 8] == outcomes
    assert processes.stopped
    with pytest.raises(Interrupted):
        run(tmp_path, "touch late", processes)
    assert not (tmp_path / "late").exists()


def test_polite_signal_comes_first(tmp_path: Path) -> None:
    """A command that cleans up on SIGTERM has the time to."""
    processes = Processes()

    def work() -> None:
        with pytest.raises(Interrupted):
            run(tmp_path, "trap 'touch cleaned; exit 0' TERM; touch ready; while :; do sleep 0.02; done", processes)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for((tmp_path / "ready").exists)
    processes.terminate_all(grace=30)
    thread.join()

    assert (tmp_path / "cleaned").exists()


def test_terminate_from_a_signal_handler(tmp_path: Path) -> None:
    """A handler in the thread that runs a command can end it: the program exits, nothing is left."""
    script = (
        "import signal, sys\n"
        "from hidet_build.process import Processes\n"
        "from hidet_build.errors import Interrupted\n"
        "processes = Processes()\n"
        "signal.signal(signal.SIGINT, lambda *_: processes.terminate_all())\n"
        "try:\n"
        "    processes.run(['sh', '-c', '(trap \"\" INT TERM; sleep 1000) & echo $! > pid; touch ready; wait'],\n"
        "                  cwd=sys.argv[1], environment={'PATH': '/usr/bin:/bin'}, output_path=sys.argv[1] + '/log')\n"
        "except Interrupted as error:\n"
        "    sys.exit(error.exit_code)\n"
    )
    program = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    wait_for((tmp_path / "ready").exists)
    program.send_signal(signal.SIGINT)

    assert 8 == program.wait(60)
    wait_for(functools.partial(has_ended, tmp_path / "pid"))


def test_start_and_stop(tmp_path: Path) -> None:
    """A started process answers through its pipes, has its errors in a file, and ends with its group."""
    processes = Processes()
    process = processes.start(
        ["sh", "-c", "sleep 1000 & echo $! > pid; echo hello >&2; read line; echo got $line; wait"],
        PATH,
        str(tmp_path),
        str(tmp_path / "errors"),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"request\n")
    process.stdin.flush()

    assert b"got request\n" == process.stdout.readline()
    assert -signal.SIGTERM == processes.stop(process)
    assert b"hello\n" == (tmp_path / "errors").read_bytes()
    wait_for(functools.partial(has_ended, tmp_path / "pid"))


def test_stop_what_has_ended(tmp_path: Path) -> None:
    """Stopping a process that ended by itself gives its own exit code, also the second time."""
    processes = Processes()
    process = processes.start(["sh", "-c", "exit 5"], PATH, str(tmp_path), str(tmp_path / "errors"))
    assert process.stdout is not None
    assert b"" == process.stdout.read()
    codes = [processes.stop(process, grace=60), processes.stop(process)]

    assert [5, 5] == codes


def test_terminate_all_ends_started_ones(tmp_path: Path) -> None:
    """Workers end with everything else."""
    processes = Processes()
    process = processes.start(["sleep", "1000"], PATH, str(tmp_path), str(tmp_path / "errors"))
    processes.terminate_all()

    assert -signal.SIGTERM == processes.stop(process)


def refused(tmp_path: Path, *arguments: str, **options: str) -> BuildError:
    """The error of a command that cannot be started."""
    with pytest.raises(BuildError) as caught:
        Processes().run(
            arguments,
            cwd=options.get("cwd", str(tmp_path)),
            environment=PATH,
            output_path=str(tmp_path / "log"),
            executable=options.get("executable"),
        )
    return caught.value


def test_no_such_program(tmp_path: Path) -> None:
    """A missing program is the environment's fault and says where it was looked for."""
    error = refused(tmp_path, "no-such-compiler")

    assert isinstance(error, EnvironmentFailure)
    assert "cannot run 'no-such-compiler': there is no such program\nhint: PATH was '/usr/bin:/bin'" == error.render()


def test_no_such_folder(tmp_path: Path) -> None:
    """A missing working folder is not taken for a missing program."""
    error = refused(tmp_path, "sh", cwd=str(tmp_path / "gone"))

    assert f"cannot run 'sh': its working folder {tmp_path}/gone is not there" == error.message


def test_no_interpreter(tmp_path: Path) -> None:
    """A script whose interpreter is missing says so, not that the script is."""
    script = tmp_path / "tool"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)

    assert "interpreter" in refused(tmp_path, "tool", executable=str(script)).message


def test_not_executable(tmp_path: Path) -> None:
    """A file without the executable bit comes with the way to set it."""
    script = tmp_path / "my tool"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o644)

    assert f"chmod +x '{script}'?" == refused(tmp_path, "tool", executable=str(script)).hint


def test_no_program_at_all(tmp_path: Path) -> None:
    """A text file is no program."""
    script = tmp_path / "tool"
    script.write_text("hello")
    script.chmod(0o755)

    assert "not a program for this machine" in refused(tmp_path, "tool", executable=str(script)).message


def test_too_long_a_command_line(tmp_path: Path) -> None:
    """A command line beyond the system's limit says how long it is and what helps."""
    error = refused(tmp_path, "echo", *["x" * 100_000] * 100)

    assert "cannot run 'echo': its command line is too long (101 arguments, 10000105 bytes)" == error.message
    assert "@file" in (error.hint or "")


def test_null_byte(tmp_path: Path) -> None:
    """A null byte cannot be passed, and is not our traceback."""
    assert "cannot be passed" in refused(tmp_path, "echo", "a\0b").message


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@settings(max_examples=25, deadline=None)
@given(st.lists(WORDS, max_size=4), WORDS)
def test_shell_line_runs_the_same_command(arguments: list[str], value: str) -> None:
    """The line, pasted into a shell, passes the same words and the same environment."""
    script = "import os, sys; sys.stdout.buffer.write(repr((sys.argv[1:], os.environ['X'], os.getcwd())).encode())"
    line = shell_line(["python3", "-c", script, *arguments], {"X": value, "PYTHONUTF8": "1"}, "/usr", sys.executable)
    ran = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, check=True)

    assert repr((arguments, value, "/usr")) == ran.stdout.decode()


def test_shell_line() -> None:
    """The line is what one would have typed."""
    line = shell_line(["g++", "-c", "a b.cc"], {"A": "1 2", "PATH": "/bin"}, "/x y")

    assert "cd '/x y' && env -i 'A=1 2' PATH=/bin g++ -c 'a b.cc'" == line


def test_nothing_is_inherited(tmp_path: Path) -> None:
    """A command gets no descriptor but its three."""
    with open(tmp_path / "other", "w"):
        result = run(tmp_path, "ls /proc/self/fd")

    assert {"0", "1", "2"} >= set(result.output.decode().split()) - {"3"}  # 3 is ls reading the folder
    assert os.path.exists(tmp_path / "log")
