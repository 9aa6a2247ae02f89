"""The persistent worker from our side: many threads, dying workers, stopped builds, a machine without hidet."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hidet_build.errors import EnvironmentFailure, Interrupted
from hidet_build.process import Processes, ProcessResult
from hidet_build.worker.pool import Lasting, WorkerPool

# A kernel that says who it is, waits until it is told to go on, and leaves a process of its own behind.
WAITING = """\
import hidet, os, time
from hidet.lang import attrs
from hidet.lang.types import f32


def kernel(name, until=None, take=0):
    taken = b"x" * (take << 20)
    with open(name, "w") as file:
        file.write(f"{os.getpid()} {os.getppid()}")
    os.rename(name, name + ".here")
    while until and not os.path.exists(until):
        time.sleep(0.01)
    print("done", name)
    with hidet.script_module() as module:

        @hidet.script
        def work(x: f32[4]):
            attrs.func_kind = "public"
            x[0] = 1.0

    return module.ir_module()


def forks(name):
    pid = os.fork()
    if not pid:
        time.sleep(600)
    with open(name, "w") as file:
        file.write(str(pid))
    return kernel("parent")
"""

pytestmark = pytest.mark.hidet


class Room:
    """A folder with the waiting kernel, and a pool of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = Processes()
        self.pool = WorkerPool(self.processes, sys.executable)
        (folder / "main.py").write_text(WAITING)

    def lower(self, entry: str, arguments: str, cancelled: Callable[[], bool] | None = None) -> ProcessResult:
        """Run lower on the kernel; the output folder is named after the thread."""
        name = threading.current_thread().name
        words = ["lower", "--src", "main.py", "--entry", entry, "--args", arguments, "--target", "cpu", "--out", name]
        return self.pool.run(
            words,
            cwd=str(self.folder),
            environment={"TMPDIR": str(self.folder)},
            output_path=str(self.folder / f"{name}.log"),
            cancelled=cancelled,
        )

    def wait_for(self, name: str) -> list[int]:
        """The numbers in a file, once it is there."""
        while not (self.folder / name).exists():
            time.sleep(0.01)
        return [int(word) for word in (self.folder / name).read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> None:
    """Until the process has ended; pytest's own timeout is the limit."""
    while is_alive(pid):
        time.sleep(0.01)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """A room, its pool closed afterwards."""
    room = Room(tmp_path)
    yield room
    room.pool.close()


def test_several_steps_run_at_once(room: Room) -> None:
    """Two steps wait for each other's files: neither could end if they did not run at the same time."""
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(room.lower, "kernel", '{"name": "one", "until": "two.here", "take": 300}')
        two = threads.submit(room.lower, "kernel", '{"name": "two", "until": "one.here"}')
        results = [one.result(), two.result()]

    assert [(result.exit_code, result.output) for result in results] == [(0, b"done one\n"), (0, b"done two\n")]
    assert [result.seconds > 0 for result in results] == [True, True]
    assert [result.max_rss > 300 << 20 for result in results] == [True, False]
    assert room.wait_for("one.here")[1] == room.wait_for("two.here")[1]
    assert room.pool.startup_seconds > 0
    assert room.pool.startup_max_rss > 0


def test_a_step_survives_the_workers_death(room: Room) -> None:
    """When the worker is killed in the middle of a step, the step is run again by a new one."""
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(room.lower, "kernel", '{"name": "one", "until": "go"}')
        child, server = room.wait_for("one.here")
        (room.folder / "one.here").unlink()
        os.kill(server, signal.SIGKILL)
        again, other = room.wait_for("one.here")
        (room.folder / "go").write_text("")
        result = step.result()

    assert (result.exit_code, result.output) == (0, b"done one\n")
    assert (again != child, other != server, is_alive(child)) == (True, True, False)


def test_a_worker_that_always_dies_is_an_error(room: Room) -> None:
    """The second death in one step is told, with how it ended."""
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(room.lower, "kernel", '{"name": "one", "until": "go"}')
        for _ in range(2):
            _, server = room.wait_for("one.here")
            (room.folder / "one.here").unlink()
            os.kill(server, signal.SIGKILL)
        error = step.exception()

    assert isinstance(error, EnvironmentFailure)
    assert error.message == "the hidet worker was ended by signal 9 while it ran `lower`, 2 times"


def test_close_ends_children_and_what_they_started(room: Room) -> None:
    """Closing the pool in the middle of a step ends the child and the worker, and the step says it was stopped."""
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(room.lower, "kernel", '{"name": "one", "until": "never"}')
        child, server = room.wait_for("one.here")
        room.pool.close()
        error = step.exception()
    wait_until_gone(child)

    assert isinstance(error, Interrupted)
    assert is_alive(server) is False


def test_a_stopped_build_stops_steps(room: Room) -> None:
    """`Processes.terminate_all`, as Ctrl-C calls it, ends the worker and its children."""
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(room.lower, "kernel", '{"name": "one", "until": "never"}')
        child, _ = room.wait_for("one.here")
        room.processes.terminate_all()
        error = step.exception()
    wait_until_gone(child)

    assert isinstance(error, Interrupted)


def test_one_step_is_cancelled_alone(room: Room) -> None:
    """A cancelled step's child ends; another step in the same worker does not notice."""
    cancelled = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(room.lower, "kernel", '{"name": "one", "until": "never"}', cancelled.is_set)
        two = threads.submit(room.lower, "kernel", '{"name": "two", "until": "go"}')
        child, _ = room.wait_for("one.here")
        room.wait_for("two.here")
        cancelled.set()
        error = one.exception()
        (room.folder / "go").write_text("")
        result = two.result()

    assert isinstance(error, Interrupted)
    assert result.exit_code == 0
    assert is_alive(child) is False


def test_what_a_step_leaves_running_is_ended(room: Room) -> None:
    """A process that the kernel forked does not outlive the step."""
    result = room.lower("forks", '{"name": "left"}')
    pid = room.wait_for("left")[0]
    wait_until_gone(pid)

    assert result.exit_code == 0


def test_a_child_that_is_killed_says_by_what(room: Room) -> None:
    """A signal that ends a child is its result, and the worker goes on."""
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(room.lower, "kernel", '{"name": "one", "until": "never"}')
        child, server = room.wait_for("one.here")
        os.kill(child, signal.SIGKILL)
        result = step.result()
    room.lower("kernel", '{"name": "two"}')

    assert (result.exit_code, result.signal) == (137, signal.SIGKILL)
    assert room.wait_for("two.here")[1] == server


def test_steps_see_only_their_own_environment(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ours nor another step's variables reach a step, and its home is a folder that is gone afterwards."""
    monkeypatch.setenv("SECRET", "1")
    (room.folder / "main.py").write_text("import os\nprint(sorted(os.environ))\nprint(os.environ['HOME'])\n" + WAITING)
    lines = room.lower("kernel", '{"name": "one"}').output.decode().splitlines()
    homes = ["HOME", "TMPDIR", "TQDM_DISABLE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"]

    assert lines[0] == str(homes)
    assert os.path.dirname(lines[1]) == str(room.folder)
    assert os.path.exists(lines[1]) is False


def test_random_numbers_differ_from_step_to_step(room: Room) -> None:
    """Children of one worker do not repeat each other's random numbers."""
    (room.folder / "main.py").write_text("import random\nprint(random.random())\n" + WAITING)
    first = room.lower("kernel", '{"name": "one"}').output
    second = room.lower("kernel", '{"name": "two"}').output

    assert first != second


def test_without_hidet(tmp_path: Path) -> None:
    """On a machine without hidet the error says how to install it."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    pool = WorkerPool(Processes(), str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(EnvironmentFailure) as caught:
        pool.run(["merge-types"], cwd=str(tmp_path), environment={}, output_path=str(tmp_path / "log"))
    pool.close()

    assert caught.value.message == f"hidet is not installed in {tmp_path}/bare/bin/python"
    assert caught.value.hint == "pip install 'hidet-build[hidet]'"


def test_nothing_lasts_without_hidet(tmp_path: Path) -> None:
    """A lasting worker that cannot do its work says so in the same words, and is gone."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    folder = tmp_path / "workers"
    lasting = Lasting(str(tmp_path), 600, (str(folder),), lambda: "hidet")
    pool = WorkerPool(Processes(), str(tmp_path / "bare" / "bin" / "python"), lasting)
    with pytest.raises(EnvironmentFailure) as caught:
        pool.run(["merge-types"], cwd=str(tmp_path), environment={}, output_path=str(tmp_path / "log"))
    pool.close()

    assert caught.value.message == f"hidet is not installed in {tmp_path}/bare/bin/python"
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_hidet_that_cannot_be_imported(tmp_path: Path) -> None:
    """A broken installation is told in one line, with the import's own error."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    packages = next((tmp_path / "bare" / "lib").iterdir()) / "site-packages"
    (packages / "hidet.py").write_text("raise OSError('no CUDA today')")
    pool = WorkerPool(Processes(), str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(EnvironmentFailure) as caught:
        pool.run(["merge-types"], cwd=str(tmp_path), environment={}, output_path=str(tmp_path / "log"))
    pool.close()

    assert caught.value.message == f"hidet cannot be imported by {tmp_path}/bare/bin/python: OSError: no CUDA today"


def test_a_pool_that_is_not_used_starts_nothing(tmp_path: Path) -> None:
    """Building without a step of hidet costs no worker."""
    pool = WorkerPool(Processes(), str(tmp_path / "no-such-python"))
    pool.close()

    assert pool.startup_seconds == 0.0
