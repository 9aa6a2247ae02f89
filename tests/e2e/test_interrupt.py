"""Ctrl-C and its kin: everything that runs is ended, nothing half made stays, the locks are free."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.space import PROGRAM, Space, targets

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# Deaf to all that can be ignored, as is the grandchild it starts; until a file appears.
STUBBORN = "trap '' INT TERM HUP; echo half > out.txt; sleep 300 & echo $$ $! > {log}; test -e {gate} || wait"


def stubborn(space: Space) -> Path:
    """A target whose command does not end by itself, with a child of its own; the file gets their process ids."""
    log = space.base / "pids"
    script = STUBBORN.format(log=log, gate=space.base / "gate")
    space.write(
        "k/BUILD.yaml",
        targets(f'{{rule: command, name: deaf, arguments: [sh, -c, "{script}"], outputs: [out.txt]}}'),
    )
    return log


def until(what: object, seconds: float = 60) -> None:
    """Return when `what()` is true."""
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen")
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """The processes below `pid`."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def pids(log: Path) -> list[int]:
    """The process ids in a file that is being written."""
    until(lambda: log.exists() and len(log.read_text().split()) == 2)
    return [int(word) for word in log.read_text().split()]


def finish(process: subprocess.Popen[bytes]) -> str:
    """Wait for the end; what it said on stderr."""
    return process.communicate(timeout=20)[1].decode()


def published(space: Space) -> list[str]:
    """Every file at or near a final name: all of the output folder but our own memory."""
    out = space.root / "hidet-out"
    return sorted(
        str(path.relative_to(out)) for path in out.glob("c*/**/*") if path.is_file() and path.name != "CACHEDIR.TAG"
    )


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_the_build(space: Space, number: signal.Signals) -> None:
    """Exit code 8; the command and its deaf child are gone, and nothing it wrote is at a final name."""
    log = stubborn(space)
    process = space.start("//k:deaf")
    running = pids(log)

    process.send_signal(number)
    said = finish(process)

    assert 8 == process.returncode
    assert [False, False] == [alive(pid) for pid in running]
    assert [] == published(space)
    assert "ERROR: interrupted" in said
    assert "Traceback" not in said
    assert [] == list((space.root / "hidet-out/.state/exec").iterdir())


def test_interrupted_is_said_once(space: Space) -> None:
    """One line tells of the interruption."""
    log = stubborn(space)
    process = space.start("//k:deaf")
    pids(log)

    process.send_signal(signal.SIGINT)
    said = finish(process)

    assert 1 == said.count("interrupted"), said


def test_build_after_an_interruption(space: Space) -> None:
    """The locks are free at once, and the next build does what was left."""
    log = stubborn(space)
    process = space.start("//k:deaf")
    pids(log)
    process.send_signal(signal.SIGINT)
    finish(process)
    (space.base / "gate").touch()

    done = space.build("--noblock_for_lock", "//k:deaf")

    assert ["Command //k:deaf"] == done.actions
    assert "half\n" == space.read("hidet-bin/k/deaf/out.txt")


def test_second_signal_does_not_wait(space: Space) -> None:
    """The second Ctrl-C ends us at once, and still leaves no process behind."""
    log = stubborn(space)
    process = space.start("//k:deaf")
    running = pids(log)

    process.send_signal(signal.SIGINT)
    time.sleep(0.05)  # two signals sent together are one
    process.send_signal(signal.SIGINT)
    finish(process)

    assert 8 == process.returncode
    until(lambda: not any(map(alive, running)))
    assert [] == published(space)


def test_interrupt_with_many_jobs_and_keep_going(space: Space) -> None:
    """All that runs is ended, what waits does not start, also under -k."""
    log = space.base / "log"
    script = f"echo $$ >> {log}; sleep 300"
    entries = [
        f'{{rule: command, name: t{n}, arguments: [sh, -c, "{script}"], env: {{N: "{n}"}}, outputs: [o]}}'
        for n in range(6)
    ]
    space.write("k/BUILD.yaml", targets(*entries))
    process = space.start("-k", "--jobs=3", "//k:all")
    until(lambda: log.exists() and len(log.read_text().split()) == 3)
    running = [int(word) for word in log.read_text().split()]

    process.send_signal(signal.SIGINT)
    finish(process)

    assert 8 == process.returncode
    assert running == [int(word) for word in log.read_text().split()]
    assert not any(map(alive, running))


def test_interrupt_while_waiting_for_a_lock(space: Space) -> None:
    """Who waits for another invocation can be interrupted; the other goes on."""
    log = stubborn(space)
    holder = space.start("//k:deaf")
    running = pids(log)
    waiter = space.start("//k:deaf")
    assert waiter.stderr is not None
    waiter.stderr.readline()

    waiter.send_signal(signal.SIGINT)
    finish(waiter)
    went_on = alive(running[0])
    holder.send_signal(signal.SIGINT)
    finish(holder)

    assert (8, True, 8) == (waiter.returncode, went_on, holder.returncode)


def test_ignored_signal_stays_ignored(space: Space) -> None:
    """Under `nohup` a hangup does not end the build."""
    started, gate = space.base / "started", space.base / "gate"
    script = f"touch {started}; while ! test -e {gate}; do sleep 0.02; done; touch o"
    space.write("k/BUILD.yaml", targets(f'{{rule: command, name: t, arguments: [sh, -c, "{script}"], outputs: [o]}}'))
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *PROGRAM, "//k:t"],
        cwd=space.root,
        env=space.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(started.exists)

    process.send_signal(signal.SIGHUP)
    gate.touch()
    said = finish(process)

    assert 0 == process.returncode, said


@pytest.mark.parametrize("words", [["//k:t"], ["--nobuild", "//k:t"], ["query", "//k:t"]])
def test_interrupt_while_loading(space: Space, words: list[str]) -> None:
    """Ctrl-C is heeded before anything runs, too: here while a rule module takes its time."""
    started = space.base / "started"
    space.write(
        "rules.py",
        f"""\
        import pathlib, time

        pathlib.Path({str(started)!r}).touch()
        time.sleep(60)
        """,
    )
    space.write("k/BUILD.yaml", 'load: ["//:rules.py"]\n' + targets("{rule: filegroup, name: t}"))
    process = space.start(*words)
    until(started.exists)

    process.send_signal(signal.SIGINT)
    said = finish(process)

    assert 8 == process.returncode, said
    assert "Traceback" not in said


@pytest.mark.hidet
def test_interrupt_a_hidet_step(space: Space) -> None:
    """Ctrl-C while a kernel is being lowered ends the worker and its children."""
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: m, src: m.py, entry: entry}"))
    space.write("k/m.py", "import time\n\n\ndef entry():\n    time.sleep(300)\n")
    process = space.start("//k:m")
    # The worker, and the child it forks for the step.
    until(lambda: len(descendants(process.pid)) >= 2, 120)
    time.sleep(0.5)
    running = descendants(process.pid)

    process.send_signal(signal.SIGINT)
    said = finish(process)

    assert 8 == process.returncode, said
    until(lambda: not any(map(alive, running)))
    assert [] == published(space)
