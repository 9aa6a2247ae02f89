"""Invocations side by side: each action once, no deadlock, nobody blocked by the dead, and waiters who say so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.space import Ended, Space, targets

# A step that says in a file outside the workspace that it ran, and takes long enough for others to come.
LOGGED = "echo {name} >> {log}; sleep {seconds}; cat {inputs} > out.txt"
# A step that waits until a file appears.
GATED = "echo $$ >> {log}; while ! test -e {gate}; do sleep 0.02; done; echo done > out.txt"


def logged(name: str, log: Path, inputs: str = "", seconds: float = 0.15) -> str:
    """A target that logs its runs and copies what it depends on, or `a.txt`."""
    script = LOGGED.format(name=name, log=log, seconds=seconds, inputs=f"{inputs}/out.txt" if inputs else "a.txt")
    source = f'":{inputs}"' if inputs else "a.txt"
    return f'{{rule: command, name: {name}, arguments: [sh, -c, "{script}"], inputs: [{source}], outputs: [out.txt]}}'


def chain(space: Space, log: Path) -> None:
    """Four steps in package `k`: `a` -> `b` -> `c`, and `d` for itself."""
    steps = [logged("a", log), logged("b", log, "a"), logged("c", log, "b"), logged("d", log)]
    space.write("k/BUILD.yaml", targets(*steps))
    space.write("k/a.txt", "one\n")


def gated(space: Space) -> tuple[Path, Path]:
    """A target `//k:gated` whose step runs until a file appears: its log, which gets its process id, and that file."""
    log, gate = space.base / "started", space.base / "gate"
    script = GATED.format(log=log, gate=gate)
    space.write(
        "k/BUILD.yaml",
        targets(f'{{rule: command, name: gated, arguments: [sh, -c, "{script}"], outputs: [out.txt]}}'),
    )
    return log, gate


def wait_for_text(path: Path, seconds: float = 60) -> str:
    """What the file holds, as soon as it holds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


def ended(process: subprocess.Popen[bytes]) -> Ended:
    """The end of a process that was started."""
    out, err = process.communicate(timeout=120)
    return Ended(process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("count", [2, 8])
def test_side_by_side_each_action_runs_once(space: Space, count: int) -> None:
    """However many invocations want the same targets at once, each action runs once and all of them succeed."""
    log = space.base / "log"
    chain(space, log)

    ends = [ended(one) for one in [space.start("//k:all") for _ in range(count)]]

    assert [0] * count == [one.code for one in ends], "\n".join(one.err for one in ends)
    assert ["a", "b", "c", "d"] == sorted(log.read_text().split())
    assert "one\n" == space.read("hidet-bin/k/c/out.txt")


def test_opposite_orders_do_not_deadlock(space: Space) -> None:
    """Two invocations that name the same targets in opposite order, one action at a time, both end well."""
    log = space.base / "log"
    names = [f"t{number}" for number in range(6)]
    space.write("k/BUILD.yaml", targets(*(logged(name, log, seconds=0.05) for name in names)))
    space.write("k/a.txt", "one\n")
    patterns = [f"//k:{name}" for name in names]

    starts = [space.start("build", "--jobs=1", *order) for order in (patterns, patterns[::-1])]
    codes = [ended(one).code for one in starts]

    assert [0, 0] == codes
    assert names == sorted(log.read_text().split())


def test_two_workspaces_share_work(tmp_path: Path) -> None:
    """Two workspaces that share one cache do each action once between them, also at the same time."""
    log = tmp_path / "log"
    spaces = [Space(tmp_path / "one"), Space(tmp_path / "two")]
    spaces[1].cache = spaces[0].cache
    for one in spaces:
        chain(one, log)

    codes = [ended(process).code for process in [one.start("//k:all") for one in spaces]]

    assert [0, 0] == codes
    assert ["a", "b", "c", "d"] == sorted(log.read_text().split())
    assert ["one\n", "one\n"] == [one.read("hidet-bin/k/c/out.txt") for one in spaces]


def test_waiter_says_whom_it_waits_for(space: Space) -> None:
    """While another invocation runs its action, the waiting one names the target and the process."""
    log, gate = gated(space)
    holder = space.start("//k:gated")
    wait_for_text(log)

    waiter = space.start("//k:gated")
    assert waiter.stderr is not None
    line = waiter.stderr.readline().decode()  # it comes while the holder holds
    gate.touch()

    assert re.match(rf"INFO: waiting for //k:gated: process {holder.pid} on \S+ builds it since \d\d:\d\d:\d\d$", line)
    assert [0, 0] == [ended(waiter).code, ended(holder).code]
    assert 1 == len(log.read_text().split())


@pytest.mark.parametrize(
    ("flag", "said"), [("--lock_timeout=0.2", "gave up after 0."), ("--noblock_for_lock", "--block_for_lock waits")]
)
def test_who_may_not_wait_exits_9(space: Space, flag: str, said: str) -> None:
    """A limited or forbidden wait ends with exit code 9 and says who holds what."""
    log, gate = gated(space)
    holder = space.start("//k:gated")
    wait_for_text(log)

    refused = space.run(flag, "//k:gated")
    gate.touch()

    assert 9 == refused.code
    assert f"//k:gated is locked by process {holder.pid}" in refused.err
    assert said in refused.err
    assert 0 == ended(holder).code


def test_killed_holder_blocks_nobody(space: Space) -> None:
    """After SIGKILL of an invocation in the middle of an action the next one starts that action at once."""
    log, gate = gated(space)
    holder = space.start("//k:gated")
    orphan = int(wait_for_text(log))
    holder.kill()
    holder.communicate()
    try:
        successor = space.start("--noblock_for_lock", "//k:gated")
        while len(log.read_text().split()) < 2 and successor.poll() is None:
            time.sleep(0.01)
        gate.touch()
        done = ended(successor)
    finally:
        os.killpg(orphan, signal.SIGKILL)

    assert 0 == done.code, done.err
    assert "done\n" == space.read("hidet-bin/k/gated/out.txt")


@pytest.mark.slow
def test_twenty_first_invocations(space: Space) -> None:
    """Twenty invocations at once with an empty home, of all kinds, do not trip over each other's new folders."""
    log = space.base / "log"
    chain(space, log)
    kinds = [["--help"], ["query", "deps(//k:c)"], ["//k:all"], ["info", "output_base"]]

    starts = [space.start(*kinds[number % 4], environment={"XDG_CACHE_HOME": ""}) for number in range(20)]
    ends = [ended(one) for one in starts]

    assert [0] * 20 == [one.code for one in ends], "\n".join(one.err for one in ends)
    assert ["a", "b", "c", "d"] == sorted(log.read_text().split())
    assert (space.base / "home/.cache/hidet-build/ac").is_dir()


def test_read_only_cache_says_so(space: Space) -> None:
    """A cache folder that cannot be made is an error that names it and the way out."""
    chain(space, space.base / "log")
    blocked = space.base / "file"
    blocked.write_text("not a folder")

    done = space.run("//k:d", f"--disk_cache={blocked}")

    assert 36 == done.code
    assert f"cannot write to the disk cache {blocked}" in done.err
    assert "--disk_cache=FOLDER puts it elsewhere" in done.err
