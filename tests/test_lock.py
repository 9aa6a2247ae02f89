"""Locks by key: exclusion between threads and processes, holders that are named or dead, refusals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hidet_build import lock
from hidet_build.errors import EnvironmentFailure, Interrupted, LockHeld
from hidet_build.lock import Holder, KeyLocks

KEY = "ab" + "0" * 62
OTHER = "cd" + "0" * 62

HOLD = """
import sys, time
from hidet_build.lock import KeyLocks
with KeyLocks(sys.argv[1], lambda holder, seconds: None).hold(sys.argv[2], "//k:theirs"):
    print("held", flush=True)
    sys.stdin.read()
"""


class Told:
    """Remembers what the waiting function was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Holder, float]] = []

    def __call__(self, holder: Holder, seconds: float) -> None:
        """Remember."""
        self.calls.append((holder, seconds))


def locks(folder: Path, told: Told | None = None, timeout: float | None = None, block: bool = True) -> KeyLocks:
    """Locks in `folder`."""
    return KeyLocks(str(folder), told or Told(), timeout, block)


def hold_elsewhere(folder: Path, key: str = KEY, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Another process that holds the key until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(folder), key]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert b"held\n" == process.stdout.readline()
    return process


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Let the other process end."""
    process.communicate()


def test_free_lock(tmp_path: Path) -> None:
    """A free lock is had at once, again and again; there is nothing left of it when nobody holds it."""
    told = Told()
    ours = locks(tmp_path / "locks", told)
    for label in ("//k:a_long_name", "//k:a", "//k:b"):
        with ours.hold(KEY, label):
            assert label == json.loads((tmp_path / "locks" / f"{KEY}.lock").read_bytes())["label"]
    ours.close()

    assert [tmp_path / "locks" / "claims"] == list((tmp_path / "locks").rglob("*"))
    assert [] == told.calls


def test_waiter_is_told_whom_it_waits_for(tmp_path: Path) -> None:
    """A waiter hears once, within a second or so, who holds the lock, and gets it when that one is done."""
    holder, told = hold_elsewhere(tmp_path), Told()
    timer = threading.Timer(1.5, let_go, (holder,))
    timer.start()
    with locks(tmp_path, told).hold(KEY, "//k:ours"):
        pass
    timer.join()
    ((who, seconds),) = told.calls

    assert ("//k:theirs", holder.pid, os.uname().nodename) == who[:3]
    assert abs(time.time() - who.since) < 600
    assert seconds < 1
    assert f"process {holder.pid} on {os.uname().nodename} (//k:theirs, since " in str(who)


def test_no_blocking(tmp_path: Path) -> None:
    """Where we may not wait, the refusal names the holder and the flag."""
    holder = hold_elsewhere(tmp_path)
    with pytest.raises(LockHeld) as caught, locks(tmp_path, block=False).hold(KEY, "//k:ours"):
        pass
    let_go(holder)

    assert 9 == caught.value.exit_code
    assert f"//k:ours is locked by process {holder.pid} on " in caught.value.message
    assert "//k:theirs" in caught.value.message
    assert "--block_for_lock" in (caught.value.hint or "")


def test_timeout(tmp_path: Path) -> None:
    """A wait that takes too long ends with the holder and the flag."""
    holder = hold_elsewhere(tmp_path)
    with pytest.raises(LockHeld) as caught, locks(tmp_path, timeout=0.2).hold(KEY, "//k:ours"):
        pass
    let_go(holder)

    assert f"//k:ours is locked by process {holder.pid} on " in caught.value.message
    assert "--lock_timeout" in (caught.value.hint or "")


def test_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    """A holder that was killed leaves its text and no lock."""
    holder = hold_elsewhere(tmp_path)
    holder.kill()
    holder.wait()
    text = (tmp_path / f"{KEY}.lock").read_bytes()
    with locks(tmp_path, block=False).hold(KEY, "//k:ours"):
        pass

    assert b"//k:theirs" in text


def test_dead_holder_is_not_believed(tmp_path: Path) -> None:
    """While a new holder has not written its name yet, the name of a dead one is not shown."""
    holder = hold_elsewhere(tmp_path)
    path = tmp_path / f"{KEY}.lock"
    path.write_bytes(path.read_bytes().replace(str(holder.pid).encode(), str(2**22 + 5).encode()))
    with pytest.raises(LockHeld) as caught, locks(tmp_path, block=False).hold(KEY, "//k:ours"):
        pass
    let_go(holder)

    assert "//k:ours is locked by another process" == caught.value.message


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b'{"pid": "x"}', b'{"label": null, "pid": null}'])
def test_unreadable_holder(tmp_path: Path, text: bytes) -> None:
    """Whatever the file says, the refusal is the same kind of sentence."""
    holder = hold_elsewhere(tmp_path)
    (tmp_path / f"{KEY}.lock").write_bytes(text)
    with pytest.raises(LockHeld) as caught, locks(tmp_path, block=False).hold(KEY, "//k:ours"):
        pass
    let_go(holder)

    assert "//k:ours is locked by another process" == caught.value.message


def test_other_keys_are_free(tmp_path: Path) -> None:
    """A lock of one key is none of another."""
    holder = hold_elsewhere(tmp_path)
    with locks(tmp_path, block=False).hold(OTHER, "//k:ours"):
        pass

    assert holder.poll() is None
    let_go(holder)


def test_cancelled_while_waiting(tmp_path: Path) -> None:
    """Ctrl-C ends a wait."""
    holder, cancelled = hold_elsewhere(tmp_path), threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    with (
        pytest.raises(Interrupted),
        KeyLocks(str(tmp_path), Told(), cancelled=cancelled.is_set).hold(KEY, "//k:ours"),
    ):
        pass

    assert holder.poll() is None
    let_go(holder)


def test_threads_take_turns(tmp_path: Path) -> None:
    """Threads of one process that share the object exclude each other on one key."""
    shared, inside, most = locks(tmp_path), [0], [0]

    def work() -> None:
        for _ in range(5):
            with shared.hold(KEY, "//k:a"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 == most[0]


def test_threads_with_their_own_keys_meet(tmp_path: Path) -> None:
    """Threads that hold different keys are inside at the same time."""
    shared, meeting = locks(tmp_path), threading.Barrier(2, timeout=60)
    failures = []

    def work(key: str) -> None:
        try:
            with shared.hold(key, "//k:a"):
                meeting.wait()
        except threading.BrokenBarrierError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(key,)) for key in (KEY, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == failures


def test_processes_take_turns(tmp_path: Path) -> None:
    """Processes that add to a number in a file under the lock lose no step, also when some of them are killed."""
    assert "90" == count_together(tmp_path, hold_elsewhere(tmp_path / "locks"), dict(os.environ))


def count_together(folder: Path, victim: subprocess.Popen[bytes], environment: dict[str, str]) -> str:
    """Three processes add 30 times to a number, while one that holds the lock is killed: what the number is then."""
    (folder / "number").write_text("0")
    script = (
        "import pathlib, sys\n"
        "from hidet_build.lock import KeyLocks\n"
        "number, log = pathlib.Path(sys.argv[1], 'number'), pathlib.Path(sys.argv[1], 'log')\n"
        "locks = KeyLocks(sys.argv[1] + '/locks', lambda holder, seconds: None)\n"
        "for _ in range(30):\n"
        "    with locks.hold('ab' + '0' * 62, '//k:a'):\n"
        "        number.write_text(str(int(number.read_text()) + 1))\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", script, str(folder)], env=environment) for _ in range(3)]
    victim.send_signal(signal.SIGKILL)
    victim.wait()

    assert [0, 0, 0] == [worker.wait(300) for worker in workers]
    return (folder / "number").read_text()


def test_body_that_fails_gives_the_lock_back(tmp_path: Path) -> None:
    """An exception in the body frees the lock and goes on."""
    with pytest.raises(KeyError), locks(tmp_path).hold(KEY, "//k:a"):
        raise KeyError
    with locks(tmp_path, block=False).hold(KEY, "//k:a"):
        pass

    assert not (tmp_path / f"{KEY}.lock").exists()


def test_claims_of_the_dead_go(tmp_path: Path) -> None:
    """What killed processes made to hold locks with is removed by the next one; that of the living stays."""
    dead, alive = hold_elsewhere(tmp_path), hold_elsewhere(tmp_path, OTHER)
    dead.kill()
    dead.wait()
    ours = locks(tmp_path)
    with ours.hold("ef" + "0" * 62, "//k:ours"):
        pass
    ours.close()
    left = list((tmp_path / "claims").iterdir())
    let_go(alive)

    assert [alive.pid] == [json.loads(path.read_bytes())["pid"] for path in left]


def test_lock_that_is_no_longer_ours(tmp_path: Path) -> None:
    """Who cleans the folder under a holder lets another in; the first one leaves the lock of that one alone."""
    first = locks(tmp_path / "locks").hold(KEY, "//k:first")
    first.__enter__()
    shutil.rmtree(tmp_path / "locks")
    with locks(tmp_path / "locks").hold(KEY, "//k:second"):
        first.__exit__(None, None, None)
        with pytest.raises(LockHeld) as caught, locks(tmp_path / "locks", block=False).hold(KEY, "//k:third"):
            pass

    assert "(//k:second, since" in caught.value.message


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler to make a libc without link")
def test_file_system_without_hard_links(tmp_path: Path) -> None:
    """Processes take turns where files have one name only, killed ones among them."""
    (tmp_path / "shim.cc").write_text(
        '#include <errno.h>\nextern "C" int link(const char *, const char *) { errno = EPERM; return -1; }\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", tmp_path / "shim.so", tmp_path / "shim.cc"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "shim.so")}
    victim = hold_elsewhere(tmp_path / "locks", environment=environment)
    is_lock_itself = 1 == os.stat(tmp_path / "locks" / f"{KEY}.lock").st_nlink

    assert is_lock_itself
    assert "90" == count_together(tmp_path, victim, environment)
    assert [] == list((tmp_path / "locks").glob("*.lock"))


def test_lock_folder_that_is_cleaned_while_waiting(tmp_path: Path) -> None:
    """A waiter whose lock file was removed meanwhile ends up with the lock of the file that is there now."""
    holder = hold_elsewhere(tmp_path / "locks")
    told = threading.Event()
    path = tmp_path / "locks" / f"{KEY}.lock"

    def clean(_holder: Holder, _seconds: float) -> None:
        shutil.rmtree(tmp_path / "locks")
        told.set()
        let_go(holder)

    with KeyLocks(str(tmp_path / "locks"), clean).hold(KEY, "//k:ours"):
        assert b"//k:ours" in path.read_bytes()
    assert told.is_set()


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file where the folder must be is the environment's fault, and the way out is named."""
    (tmp_path / "locks").write_bytes(b"")
    with pytest.raises(EnvironmentFailure) as caught, locks(tmp_path / "locks").hold(KEY, "//k:a"):
        pass

    assert f"cannot lock in {tmp_path}/locks" in caught.value.message
    assert "--output_base" in (caught.value.hint or "")


@pytest.mark.parametrize("code", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
@pytest.mark.parametrize("kind", ["key", "file"])
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler to make a libc without flock")
def test_file_system_without_locks(tmp_path: Path, kind: str, code: str) -> None:
    """Where flock does not work the build stops; it never goes on without a lock or with a weaker one."""
    (tmp_path / "shim.cc").write_text(
        f'#include <errno.h>\nextern "C" int flock(int, int) {{ errno = {code}; return -1; }}\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", tmp_path / "shim.so", tmp_path / "shim.cc"], check=True)
    script = (
        "import sys\n"
        "from hidet_build import lock\n"
        "from hidet_build.errors import EnvironmentFailure\n"
        "held = (lock.KeyLocks(sys.argv[1], print).hold('0' * 64, '//k:a') if sys.argv[2] == 'key'\n"
        "        else lock.exclusive(sys.argv[1] + '/journal'))\n"
        "try:\n"
        "    with held:\n        print('unlocked!')\n"
        "except EnvironmentFailure as error:\n"
        "    print(error.render())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path / "locks"), kind],
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "shim.so")},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )

    assert f"the file system of {tmp_path}/locks has no locks (flock: " in ran.stdout
    assert "--output_base=FOLDER" in ran.stdout


def test_exclusive_file_lock(tmp_path: Path) -> None:
    """A file lock excludes others, shared or not, and is free afterwards."""
    path = str(tmp_path / "state" / "journal.lock")
    with lock.exclusive(path):
        with pytest.raises(LockHeld), lock.exclusive(path, block=False):
            pass
        with pytest.raises(LockHeld), lock.shared(path, block=False):
            pass
    with lock.exclusive(path, block=False):
        pass

    assert os.path.exists(path)


def test_shared_file_lock(tmp_path: Path) -> None:
    """Those who share a file lock share it; nobody has it alone meanwhile."""
    path = str(tmp_path / "journal.lock")
    with (
        lock.shared(path),
        lock.shared(path, block=False),
        pytest.raises(LockHeld) as caught,
        lock.exclusive(path, block=False),
    ):
        pass

    assert path in caught.value.message
