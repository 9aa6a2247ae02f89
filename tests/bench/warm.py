"""What an edit of one kernel costs with a worker that was there before, and without.

    python -m tests.bench.warm [ROUNDS]

Both sides in turn in one run, CPU of the command with its children and of the worker with its own, at their medians.
Nine rounds take some two minutes on two idle cores. Exit code 0 when the table was printed, 1 when a build failed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.space import PROGRAM, Space, targets

KERNEL = """\
from hidet.lang import attrs
from hidet.lang.types import f32
import hidet


def entry():
    with hidet.script_module() as module:

        @hidet.script
        def work(x: f32[{size}]):
            attrs.func_kind = "public"
            for i in range({size}):
                x[i] = x[i] * {factor}.0

    return module.ir_module()
"""
SIDES = {"no worker waits": "0", "warm worker": "600"}
KERNELS = 6  # a precompiled header is made at the fifth compile of its kind


class Cost(NamedTuple):
    """What one build cost, in seconds."""

    wall: float
    command: float
    worker: float

    @property
    def cpu(self) -> float:
        """All of it."""
        return self.command + self.worker


def main(rounds: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        space = Space(Path(folder))
        rows = [f"{{rule: ir_module, name: k{n}, src: k{n}.py, entry: entry}}" for n in range(KERNELS)]
        space.write("k/BUILD.yaml", targets(*rows))
        for number in range(KERNELS):
            edit(space, number, 2)
        for idle in SIDES.values():
            build(space, idle)
        found: dict[str, list[Cost]] = {side: [] for side in SIDES}
        for number in range(rounds):
            for place, (side, idle) in enumerate(SIDES.items()):
                edit(space, 0, 3 + 2 * number + place)
                found[side].append(build(space, idle))
        space.run("shutdown")
    print(f"one of {KERNELS} kernels edited, {rounds} rounds, medians in seconds; {os.cpu_count()} cores")
    print(f"{'':<18}{'wall':>8}{'CPU':>8}{'command':>9}{'worker':>8}{'CPU, to the first':>19}")
    first = next(iter(found.values()))
    for side, costs in found.items():
        figures = [
            statistics.median(getattr(cost, name) for cost in costs) for name in ("wall", "cpu", *Cost._fields[1:])
        ]
        # Of one round each, for the machine's speed drifts.
        ratio = statistics.median(cost.cpu / other.cpu for cost, other in zip(costs, first, strict=True))
        print(
            f"{side:<18}" + "".join(f"{value:>{width}.2f}" for value, width in zip(figures, (8, 8, 9, 8), strict=True)),
            end="",
        )
        print(f"{ratio:>19.2f}")


def edit(space: Space, number: int, factor: int) -> None:
    """Give a kernel a text that it never had."""
    space.write(f"k/k{number}.py", KERNEL.format(size=64 + number, factor=factor))


def build(space: Space, idle: str) -> Cost:
    """Build all, and measure."""
    before, started, known = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), worker_seconds(space)
    command = [*PROGRAM, f"--worker_idle_timeout={idle}", "//k:all"]
    done = subprocess.run(command, cwd=space.root, env=space.environment, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, used, worker_seconds(space) - known)


def worker_seconds(space: Space) -> float:
    """The CPU time of the worker of the workspace and of the children it has had; 0 where there is none."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"--lasting" in words and os.fsencode(space.root) in words:
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.warm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rounds", type=int, nargs="?", default=9, help="how often each side builds (9)")
    main(parser.parse_args().rounds)
