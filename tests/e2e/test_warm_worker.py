"""The worker that outlives a command: who is served by it, what ends it, and that all is well without it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from hidet_build.lock import exclusive
from hidet_build.worker.door import peer_user
from hidet_build.worker.lasting import BESIDE, Connection, Wanted, connect
from tests.e2e.test_interrupt import alive, descendants, until
from tests.space import PROGRAM, Ended, Space, targets

pytestmark = pytest.mark.hidet

VARIABLE = "HIDET_BUILD_WORKER_IDLE_TIMEOUT"
# A kernel that tells who forked it, once it may.
TELLING = """\
import os, time


def entry():
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
    seen = os.getcwd(), os.environ["TMPDIR"], sorted(os.environ)
    raise RuntimeError(f"served by {{os.getppid()}}, who sees {{seen}}")
"""
KERNEL = """\
from hidet.lang import attrs
from hidet.lang.types import f32
import hidet


def entry():
    with hidet.script_module() as module:

        @hidet.script
        def work(x: f32[4]):
            attrs.func_kind = "public"
            for i in range(4):
                x[i] = x[i] * {factor}.0

    return module.ir_module()
"""


class Served(NamedTuple):
    """What a kernel saw that was lowered."""

    pid: int  # of the worker
    rest: str


class Warm:
    """A workspace whose workers last, with the target `//k:t` that tells who served it and `//k:m` that is built."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.runtime = space.base / "run"
        self.runtime.mkdir(mode=0o700)
        self.gate = space.base / "gate"
        self.gate.touch()
        self.environment = {VARIABLE: "600", "XDG_RUNTIME_DIR": str(self.runtime)}
        space.write(
            "k/BUILD.yaml",
            targets(
                "{rule: ir_module, name: t, src: t.py, entry: entry}",
                "{rule: ir_module, name: m, src: m.py, entry: entry}",
            ),
        )
        space.write("k/t.py", TELLING.format(gate=str(self.gate)))
        self.edit(2)

    @property
    def folder(self) -> Path:
        """Where workers are met."""
        return self.runtime / "hidet-build"

    def edit(self, factor: int) -> None:
        """Another version of the kernel."""
        self.space.write("k/m.py", KERNEL.format(factor=factor))

    def run(self, *words: str, **variables: str) -> Ended:
        """Run the program; its workers last unless a variable says otherwise."""
        return self.space.run(*words, environment={**self.environment, **variables})

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the program."""
        return self.space.start(*words, environment=self.environment)

    def served(self, *words: str, **variables: str) -> Served:
        """Who serves a command, `words` before it, and what its step sees."""
        return told(self.run(*words, "//k:t", **variables).err)

    def served_under(self, shell: str) -> Served:
        """The same, after a line of shell has changed what the command inherits."""
        done = subprocess.run(
            ["sh", "-c", f'{shell}; exec "$@"', "sh", *PROGRAM, "//k:t"],
            cwd=self.space.root,
            env={**self.space.environment, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return told(done.stderr)

    def workers(self) -> list[int]:
        """The lasting workers of this workspace that run."""
        return workers_of(self.space.root)

    def step(self) -> tuple[subprocess.Popen[bytes], int, int]:
        """A build in the middle of a step: its process, the worker and the child that waits at the gate."""
        worker = self.served().pid
        self.gate.unlink()
        process = self.start("//k:t")
        until(lambda: descendants(worker) != [])
        return process, worker, descendants(worker)[0]


def told(text: str) -> Served:
    """What the kernel told, of all that the program said."""
    found = re.search(r"served by (\d+), (.*)", text)

    assert found is not None, text
    return Served(int(found[1]), found[2])


def workers_of(root: Path) -> list[int]:
    """The lasting workers of a workspace that run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        # A worker's children have its command line; it is the one that leads its session and listens.
        if b"--lasting" in words and os.fsencode(root) in words and parent(int(pid)) not in found:
            found.append(int(pid))
    return [pid for pid in found if parent(pid) not in found and alive(pid)]


def parent(pid: int) -> int:
    """The parent of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture
def warm(space: Space) -> Iterator[Warm]:
    """A workspace whose workers last until the test is over."""
    made = Warm(space)
    yield made
    for pid in made.workers():
        os.kill(pid, signal.SIGKILL)


# ---- who is served


def test_next_command_is_served_by_the_same_worker(warm: Warm) -> None:
    """The worker stays when its command has ended, and serves the next one, by whatever name Python was called."""
    first = warm.served()
    second = warm.served("--worker_idle_timeout=300")
    same = Path(sys.executable).with_name("python3")
    third = subprocess.run(
        [same if same.exists() else sys.executable, "-m", "hidet_build", "//k:t"],
        cwd=warm.space.root,
        env={**warm.space.environment, **warm.environment},
        capture_output=True,
        text=True,
        check=False,
    )

    assert [first.pid] * 2 == [second.pid, told(third.stderr).pid]
    assert [first.pid] == warm.workers()


def test_output_and_keys_are_those_of_a_build_without_it(warm: Warm) -> None:
    """The same bytes under the same keys, the second time in a worker that lowered another kernel before."""
    warm.served()
    store = warm.space.cache / "hidet-build"
    made = []
    for seconds in ("600", "0"):
        done = warm.run("//k:m", **{VARIABLE: seconds})

        assert 0 == done.code, done.err
        files = sorted((warm.space.root / "hidet-bin/k/m").rglob("*"))
        keys = sorted(path.name for path in (store / "ac").rglob("*") if path.is_file())
        made.append(([(path.name, path.read_bytes()) for path in files if path.is_file()], keys))
        warm.run("clean")
        shutil.rmtree(store / "ac")

    assert made[0] == made[1]
    assert [4, 1] == [len(made[0][1]), len(warm.workers())]


def test_two_commands_at_once(warm: Warm) -> None:
    """Two first commands that start together both work, and leave one worker, for one of them was first."""
    processes = [warm.start("//k:t") for _ in range(2)]
    both = [told(process.communicate()[1].decode()) for process in processes]

    assert 1 == len({served.pid for served in both})
    assert [both[0].pid] == warm.workers()


@pytest.mark.parametrize("shell", ["umask 077", "ulimit -n 512", 'exec nice -n 1 "$@"'])
def test_worker_has_what_its_command_would_pass_on(warm: Warm, shell: str) -> None:
    """A command with another umask, limit or priority is served by another worker; the first one goes on."""
    first = warm.served().pid
    other = warm.served_under(shell).pid
    again = warm.served().pid

    assert (True, first) == (other != first, again)


def test_name_holds_what_a_worker_depends_on(tmp_path: Path) -> None:
    """Another hidet, Python, environment or workspace: another worker."""
    base = Wanted(str(tmp_path), sys.executable, {"PATH": "/bin"}, "hidet 1")
    others = [
        Wanted(str(tmp_path / "other"), *[sys.executable, {"PATH": "/bin"}, "hidet 1"]),  # type: ignore[arg-type]
        Wanted(str(tmp_path), "/bin/sh", {"PATH": "/bin"}, "hidet 1"),
        Wanted(str(tmp_path), sys.executable, {"PATH": "/bin", "PYTHONPATH": "/x"}, "hidet 1"),
        Wanted(str(tmp_path), sys.executable, {"PATH": "/bin"}, "hidet 2"),
    ]
    again = Wanted(str(tmp_path), sys.executable, {"PATH": "/bin"}, "hidet 1")

    assert base.name == again.name
    assert 5 == len({base.name, *(other.name for other in others)})


def test_name_holds_the_code_that_a_worker_imports() -> None:
    """All of our modules that are loaded in a worker are among those whose content makes its name."""
    code = (
        "import sys\n"
        "from hidet_build.worker import candidates, server\n"
        "print(*(name for name in sys.modules if name.startswith('hidet_build')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    beside = {name for name in done.stdout.split() if not name.startswith("hidet_build.worker")}

    assert {"hidet_build", *(f"hidet_build.{name}" for name in BESIDE if name != "__init__")} == beside


def test_one_request_leaves_nothing_for_the_next(warm: Warm) -> None:
    """Each step has a folder, a temporary folder and an environment of its own."""
    first, second = warm.served(SECRET="1"), warm.served()

    assert first.pid == second.pid
    assert first.rest != second.rest
    assert "SECRET" not in first.rest
    assert str(warm.folder) not in second.rest


def test_worker_inherits_nothing(warm: Warm) -> None:
    """It has a session of its own, none of the command's descriptors, and a folder nobody else can look into."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*PROGRAM, "//k:t"],
        cwd=warm.space.root,
        env={**warm.space.environment, **warm.environment},
        pass_fds=(writing,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    worker = told(process.communicate()[1].decode()).pid
    at_end = os.read(reading, 1)
    os.close(reading)
    standard = [os.readlink(f"/proc/{worker}/fd/{number}") for number in range(3)]
    (folder,) = (path for path in warm.folder.iterdir() if path.is_dir())

    assert b"" == at_end
    assert ["/dev/null", f"{folder}/log", f"{folder}/log"] == standard
    assert (worker, "/") == (os.getsid(worker), os.readlink(f"/proc/{worker}/cwd"))
    assert [0o700, 0o700] == [stat.S_IMODE(path.stat().st_mode) for path in (warm.folder, folder)]


# ---- where there is none


@pytest.mark.parametrize("variables", [{VARIABLE: "", "CI": "true"}, {VARIABLE: "0"}])
def test_worker_ends_with_the_command(warm: Warm, variables: Mapping[str, str]) -> None:
    """In CI, or where it is told to, no worker is left."""
    served = warm.served(**variables)

    assert ([], False) == (warm.workers(), alive(served.pid))


def test_flag_comes_before_variable_and_ci(warm: Warm) -> None:
    """The flag decides, then the variable, then CI."""
    by_variable = warm.served(CI="true", **{VARIABLE: "600"})
    by_flag = warm.served("--worker_idle_timeout=0")

    assert [by_variable.pid] == warm.workers()
    assert by_flag.pid != by_variable.pid


def test_variable_must_be_a_number(warm: Warm) -> None:
    """What it must be is said."""
    done = warm.run("//k:t", **{VARIABLE: "soon"})

    assert 2 == done.code
    assert f"ERROR: {VARIABLE} is 'soon'; expected a number of seconds" in done.err


def test_folder_open_to_others_is_not_used(warm: Warm) -> None:
    """Whoever may write there could answer in our worker's place; there is a folder in the cache too."""
    warm.folder.mkdir(mode=0o755)
    served = warm.served()
    folder = warm.space.cache / "hidet-build/workers-1" / os.uname().nodename

    assert [] == list(warm.folder.iterdir())
    assert [served.pid] == warm.workers()
    assert 1 == len([path for path in folder.iterdir() if path.is_dir()])


def test_without_any_folder_nothing_is_said(warm: Warm) -> None:
    """Where no worker can be met the build has one of its own, and says nothing of it."""
    cache = warm.space.cache / "hidet-build"
    (cache / "workers-1").touch()
    done = warm.run("//k:m", XDG_RUNTIME_DIR="/dev/null")

    assert (0, []) == (done.code, warm.workers())
    assert "worker" not in done.err


def test_held_folder_is_not_waited_for(warm: Warm) -> None:
    """Somebody who was stopped while he started a worker keeps no build from working."""
    warm.folder.mkdir(mode=0o700)
    with exclusive(str(warm.folder / "lock")):
        warm.served()

    assert [] == warm.workers()
    assert ["lock"] == [path.name for path in warm.folder.iterdir()]


def test_folder_may_have_a_long_name(warm: Warm) -> None:
    """The path of a socket has at most 107 bytes, but that of its folder may have more."""
    long = warm.runtime / ("long" * 40)
    long.mkdir(mode=0o700)
    first, second = (warm.served(XDG_RUNTIME_DIR=str(long)) for _ in range(2))

    assert first.pid == second.pid
    assert [] == list(warm.runtime.glob("hidet-build/*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_other_users_are_not_let_in(warm: Warm) -> None:
    """Even where the folder's mode would let them, another user is sent away unheard."""
    warm.served()
    (path,) = warm.folder.glob("*/socket")
    for place in (path, path.parent):
        place.chmod(0o777)
    code = (
        "import os, socket\n"
        "os.setuid(65534)\n"
        "client = socket.socket(socket.AF_UNIX)\n"
        "client.connect('socket')\n"
        "print(client.recv(100))\n"
    )
    stranger = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=path.parent, check=False
    )

    assert "b''\n" == stranger.stdout, stranger.stderr


def test_peer_is_known() -> None:
    """Who is at the other end of a socket is the kernel's word."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert os.geteuid() == peer_user(ours)


# ---- what ends it


def test_idle_worker_ends(warm: Warm) -> None:
    """After the seconds that the last command gave it, with its folder."""
    warm.served()
    warm.served("--worker_idle_timeout=0.5")
    until(lambda: warm.workers() == [])

    assert ["lock"] == [path.name for path in warm.folder.iterdir()]


def test_worker_ends_with_its_workspace(warm: Warm) -> None:
    """When the folder of the workspace goes, the worker goes; a `clean` before ends nothing."""
    worker = warm.served().pid
    warm.run("clean")
    again = warm.served().pid
    shutil.rmtree(warm.space.root)
    until(lambda: not alive(worker))

    assert worker == again


def test_worker_of_an_installation_that_changes_does_not_last(warm: Warm) -> None:
    """What was written while it was imported may be half of one version and half of another."""
    (warm.space.base / "path").mkdir()
    (warm.space.base / "path/sitecustomize.py").write_text(
        "import os, time\n"
        "if not os.fork():\n"
        "    for _ in range(100):\n"
        "        time.sleep(0.02)\n"
        "        os.utime(__file__)\n"
        "    os._exit(0)\n"
    )
    served = warm.served(PYTHONPATH=str(warm.space.base / "path"))
    until(lambda: not alive(served.pid))

    assert [] == warm.workers()


def test_shutdown(warm: Warm) -> None:
    """The verb ends the worker, and says so; another time there is nothing to end."""
    worker = warm.served().pid
    first = warm.run("shutdown")
    until(lambda: not alive(worker))
    second = warm.run("shutdown")

    assert (0, "INFO: 1 worker ended\n") == (first.code, first.err)
    assert (0, "INFO: no worker is waiting\n") == (second.code, second.err)
    assert ["lock"] == [path.name for path in warm.folder.iterdir()]


def test_shutdown_lets_a_build_end(warm: Warm) -> None:
    """A worker that is in use ends after its build; a build that comes later has another."""
    process, worker, _ = warm.step()
    done = warm.run("shutdown")
    warm.gate.touch()
    served = told(process.communicate()[1].decode()).pid
    until(lambda: not alive(worker))

    assert "INFO: 1 worker will end with the build that uses it\n" == done.err
    assert worker == served
    assert worker != warm.served().pid


def test_what_a_killed_worker_left_is_removed(warm: Warm) -> None:
    """The next build starts another, and the folder of the dead one goes, also that of one nobody asks for again."""
    worker = warm.served().pid
    other = warm.served_under("umask 077").pid
    for pid in (worker, other):
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: not alive(pid))  # type: ignore[misc]
    again = warm.served().pid

    assert again not in (worker, other)
    assert 1 == len([path for path in warm.folder.iterdir() if path.is_dir()])


# ---- what may happen in the middle of a step


def test_worker_is_killed_in_the_middle_of_a_step(warm: Warm) -> None:
    """The step is run again by a worker of the build's own, and the build does not fail for it."""
    process, worker, child = warm.step()
    os.kill(worker, signal.SIGKILL)
    warm.gate.touch()
    served = told(process.communicate()[1].decode()).pid

    assert (True, False) == (served != worker, alive(child))
    assert [] == warm.workers()


def test_step_inherits_nothing(warm: Warm) -> None:
    """A step has none of the sockets on which its worker serves others."""
    process, worker, child = warm.step()
    serving, kept = ([name for name in links(pid) if name.startswith("socket:")] for pid in (worker, child))
    warm.gate.touch()
    process.communicate()

    assert (2, []) == (len(serving), kept)


def links(pid: int) -> list[str]:
    """What the descriptors of a process are."""
    return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]


def test_interrupt(warm: Warm) -> None:
    """Ctrl-C ends the step and the command; the worker stays."""
    process, worker, child = warm.step()
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=20)[1].decode()
    ended = not alive(child)
    warm.gate.touch()

    assert (8, True) == (process.returncode, ended), said
    assert worker == warm.served().pid


def test_killed_command(warm: Warm) -> None:
    """The step of a command that was killed is ended; the worker stays."""
    process, worker, child = warm.step()
    process.kill()
    process.communicate()
    until(lambda: not alive(child))
    warm.gate.touch()

    assert worker == warm.served().pid


def test_two_commands_share_a_worker_and_not_their_ends(warm: Warm) -> None:
    """When one of two commands is interrupted, the other's step goes on."""
    process, worker, child = warm.step()
    other = warm.start("--output_base=" + str(warm.space.base / "other"), "--disk_cache=", "//k:t")
    until(lambda: len(descendants(worker)) == 2)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    went_on = not alive(child)
    warm.gate.touch()

    assert (True, worker) == (went_on, told(other.communicate()[1].decode()).pid)


def test_interrupt_with_a_stuck_worker(warm: Warm) -> None:
    """Ctrl-C does not wait for a worker that does not answer."""
    process, worker, _ = warm.step()
    os.kill(worker, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=20)[1].decode()

    os.kill(worker, signal.SIGCONT)
    warm.gate.touch()

    assert 8 == process.returncode, said
    assert worker == warm.served().pid


@pytest.mark.slow
def test_stuck_worker_is_passed_by(warm: Warm) -> None:
    """A build does not wait for ever for a worker that does not answer; the next one has another.

    When the stuck one wakes up it sees that, and ends.
    """
    stuck = warm.served().pid
    os.kill(stuck, signal.SIGSTOP)
    passed, after = warm.served().pid, warm.served().pid
    os.kill(stuck, signal.SIGCONT)
    until(lambda: not alive(stuck))

    assert 3 == len({stuck, passed, after})
    assert [after] == warm.workers()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_long_step(warm: Warm, stopped: bool) -> None:
    """A step may take longer than a worker may be silent, and a command may be stopped (Ctrl-Z) as long."""
    process, worker, _ = warm.step()
    if stopped:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.2 * Connection.patience)
    os.kill(process.pid, signal.SIGCONT)
    warm.gate.touch()

    assert worker == told(process.communicate()[1].decode()).pid


def test_folder_that_cannot_be_used_is_no_error(tmp_path: Path) -> None:
    """Whatever is wrong with it, there is no lasting worker, and that is all."""
    (tmp_path / "file").touch()
    wanted = Wanted(str(tmp_path), sys.executable, {}, "hidet")

    assert connect([f"{tmp_path}/file", f"{tmp_path}/file/below", "/proc/none"], wanted) is None
