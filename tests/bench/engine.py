"""Our engine beside ninja on the synthetic workspace: what builds cost that have little to do, or trivial actions.

    python -m tests.bench.engine [--kernels 1000] [--rounds 5] [--ninja PATH] [--rows null,edit] [--at FOLDER] [--grow]

In each round every scenario runs once with ninja and once with ours, in turn, two jobs each; the table gives medians,
and of the ratios of the rounds the median, beside the target of each row. Before a timed run both trees are up to date.
Ours runs from a wheel-like installation in an environment of its own, as a user has it: an editable install pays for
its import hook at each start. ninja from PyPI is the yardstick (`pip install ninja`). Exit code 1 where a row misses.

CPU is that of the command and all it started. The engine's share of an action when all run is the difference to the
CPU of ninja's children (shells and greps, the same on both sides), spread over the actions. `restore` deletes the
outputs and has them put back from the disk cache, by link and, with the cache on another file system, by copy. `huge`,
only where it is asked for, loads a workspace of 100,000 targets. `--grow` measures the rows once more with ten times
the kernels, and says by how much each grew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench.workspace import Workspace

HOUSE = Path(__file__).parent.parent.parent
OTHER_DEVICE = Path("/dev/shm")
TRUSTED = 2.2  # seconds until a file that was just written is known by its time


class Run(NamedTuple):
    """One command once."""

    wall: float  # seconds
    cpu: float  # seconds, with all it started
    own: float  # seconds, without
    peak: float  # MiB of the largest process


class Figure(NamedTuple):
    """One row's result: what it is, what was measured, the target, and whether that was met."""

    name: str
    wall: str
    cpu: str
    target: str
    met: bool
    seconds: float = 0.0  # ours, for what grows with the workspace


class Limits(NamedTuple):
    """The targets that depend on how many kernels there are."""

    ratios: dict[str, float]
    query: float  # seconds
    load: float  # microseconds a target
    null_peak: float  # MiB
    build_peak: float


SMALL = Limits({"null": 2.0, "touch": 2.0, "comment": 6.0, "edit": 5.0, "library": 3.0}, 0.060, 450, 30, 80)
LARGE = Limits({"null": 0.8, "touch": 1.0, "comment": 1.6, "edit": 1.7, "library": 1.5}, 0.150, 250, 60, 200)
ACTION = 500  # microseconds of CPU
BY_LINK, BY_COPY = 10_000, 5_000  # outputs a second
ROWS = ("all", "null", "touch", "comment", "edit", "library", "query", "load", "restore", "copy")
HUGE = 33_334  # kernels, of three targets each
GROWTH = 11  # times, for ten times the kernels


def main() -> int:
    """Measure, print the table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ninja", default=shutil.which("ninja"))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--at", help="an empty folder to work in, for instance of another file system")
    parser.add_argument("--grow", action="store_true", help="also with ten times the kernels")
    options = parser.parse_args()
    if not options.ninja:
        parser.error("no ninja on PATH: pip install ninja, or --ninja=PATH")
    rows = options.rows.split(",")
    code = 0
    before: list[Figure] = []
    for kernels in (options.kernels, 10 * options.kernels)[: 1 + options.grow]:
        with tempfile.TemporaryDirectory(prefix="bench-engine-", dir=options.at) as base:
            bench = Bench(Path(base), kernels, options.rounds, options.ninja)
            figures = [figure for row in (*ROWS, "huge") if row in rows for figure in bench.row(row)]
        code |= report([*figures, *growth(before, figures)], kernels, options.rounds)
        before = figures
    return code


def growth(before: Sequence[Figure], after: Sequence[Figure]) -> Iterator[Figure]:
    """By how much each row grew."""
    for small, large in zip(before, after, strict=False):
        if small.seconds and large.seconds:
            times = large.seconds / small.seconds
            yield Figure(f"growth, {large.name}", f"{times:.1f} x", "", f"{GROWTH} x", times <= GROWTH)


def report(figures: Sequence[Figure], kernels: int, rounds: int) -> int:
    """Print the table; 1 where a target is missed."""
    print(f"\n{kernels} kernels, {rounds} rounds, medians, ours (ninja) ratio; load {os.getloadavg()[0]:.1f}")
    print(f"{'scenario':<28}{'wall':<32}{'CPU':<32}{'target':<16}")
    for figure in figures:
        verdict = "" if figure.met else "  MISSED"
        print(f"{figure.name:<28}{figure.wall:<32}{figure.cpu:<32}{figure.target:<16}{verdict}")
    return 0 if all(figure.met for figure in figures) else 1


class Bench:
    """The two workspaces, and what is done to them."""

    def __init__(self, base: Path, kernels: int, rounds: int, ninja: str) -> None:
        self._base = base
        self._rounds = rounds
        self._limits = LARGE if kernels >= 10_000 else SMALL
        self._kernels = kernels
        self._ninja = [ninja, "-j2"]
        self._program = [str(install(base / "venv")), "-j2", "//:whole"]
        self._count = 0
        self._peaks: dict[str, float] = {}
        self._new_trees()

    def row(self, name: str) -> Iterator[Figure]:
        """Measure one row of the table."""
        print(f"{name} ...", file=sys.stderr)
        if name == "all":
            yield from self._all()
        elif name == "query":
            self._settle()
            for text in ("deps(//:whole)", "rdeps(//..., //pkg0000:k00000_ir)"):
                self._ours_run("query", text)  # the first one saves what the next can use
                runs = [self._ours_run("query", text) for _ in range(self._rounds)]
                yield self._seconds(f"query {text.partition('(')[0]}", runs, self._limits.query)
            texts = [f"somepath(//:whole, //pkg{number:04}:k{number * 20:05}_ir)" for number in range(self._rounds)]
            yield self._seconds(
                "query not asked before", [self._ours_run("query", one) for one in texts], self._limits.query
            )
        elif name == "load":
            yield from self._load()
        elif name == "huge":
            yield from self._huge()
        elif name == "restore":
            yield self._restore("restore by link", self._base / "cache", BY_LINK)
        elif name == "copy":
            with tempfile.TemporaryDirectory(prefix="bench-engine-", dir=OTHER_DEVICE) as folder:
                yield self._restore("restore by copy", Path(folder), BY_COPY)
        else:
            changes = {"null": self._nothing, "touch": self._touch, "comment": self._comment, "edit": self._edit}
            yield self._compared(name, {**changes, "library": self._edit_library}[name])
            if name == "null":
                peak, limit = self._peaks["null"], self._limits.null_peak
                yield Figure("peak memory, null", "", f"{peak:.0f} MiB", f"{limit} MiB", peak <= limit)

    # ---- rows

    def _all(self) -> Iterator[Figure]:
        """Everything runs: in a fresh folder each time, for what was just deleted slows ext4 down for a minute."""
        loaded, walls, shares, peaks = [], [], [], []
        for number in range(max(1, self._rounds // 2)):
            if number:
                self._new_trees()
            theirs, ours = self._ninja_run(), self._ours_run()
            loading = self._loading()
            actions = self._ours.actions
            engine = ours.cpu - (theirs.cpu - theirs.own)
            loaded.append(engine / actions * 1e6)
            shares.append((engine - loading.cpu) / actions * 1e6)
            walls.append((ours.wall, theirs.wall))
            peaks.append(ours.peak)
        share, wall = statistics.median(shares), [statistics.median(one) for one in zip(*walls, strict=True)]
        times, note = f"{wall[0]:.1f} s ({wall[1]:.1f} s)", f"{share:.0f} us an action"
        yield Figure("all run, engine", times, note, f"{ACTION} us", share <= ACTION, wall[0])
        yield Figure("  with loading", "", f"{statistics.median(loaded):.0f} us an action", "", True)
        peak, limit = max(peaks), self._limits.build_peak
        yield Figure("peak memory, build", "", f"{peak:.0f} MiB", f"{limit} MiB", peak <= limit)

    def _compared(self, name: str, change: Callable[[Workspace, int], None]) -> Figure:
        """A change in both trees and a build of each, in turn."""
        self._settle()
        pairs = []
        for number in range(self._rounds):
            change(self._theirs, number)
            theirs = self._ninja_run()
            change(self._ours, number)
            pairs.append((self._ours_run(), theirs))
            self._check()
            if name == "touch":
                self._settle()
        self._peaks[name] = max(ours.peak for ours, _ in pairs)
        limit = self._limits.ratios[name]
        shown, met = [], True
        for pick in (lambda run: run.wall, lambda run: run.cpu):
            ratio = statistics.median(pick(ours) / max(pick(theirs), 1e-4) for ours, theirs in pairs)
            ours, theirs = (statistics.median(pick(pair[side]) for pair in pairs) * 1000 for side in (0, 1))
            shown.append(f"{ours:.0f} ms ({theirs:.0f} ms) {ratio:.2f} x")
            met = met and ratio <= limit
        seconds = statistics.median(ours.wall for ours, _ in pairs)
        return Figure(name, *shown, f"{limit} x", met, seconds)

    def _load(self) -> Iterator[Figure]:
        """First load and analysis, nothing saved."""
        runs = [self._loading() for _ in range(self._rounds)]
        limit, most = self._limits.load, self._limits.build_peak
        seconds, cpu = (statistics.median(values) for values in self._walls_and_cpus(runs))
        wall, cpu = (value / self._ours.actions * 1e6 for value in (seconds, cpu))
        shown = f"{wall:.0f} us a target", f"{cpu:.0f} us"
        yield Figure("load and analyze", *shown, f"{limit} us", cpu <= limit, seconds)
        peak = max(run.peak for run in runs)
        yield Figure("peak memory, load", "", f"{peak:.0f} MiB", f"{most} MiB", peak <= most)

    def _huge(self) -> Iterator[Figure]:
        """100,000 targets: a query about one package costs what that needs, and loading all grows no faster."""
        self._ours = Workspace(self._base / "huge", HUGE)
        self._ours.write_sources()
        self._ours.write_build_files()
        run = self._ours_run("query", "deps(//pkg0000:all)")
        yield Figure("100,000 targets, query", f"{run.wall * 1000:.0f} ms", f"{run.peak:.0f} MiB", "", True)
        run = self._loading()
        each = run.cpu / self._ours.actions * 1e6
        shown = f"{run.wall:.1f} s, {run.peak:.0f} MiB", f"{each:.0f} us a target"
        yield Figure("100,000 targets, load", *shown, f"{LARGE.load} us", each <= LARGE.load)

    def _loading(self) -> Run:
        for name in ("plans.v2", "quick.v2"):
            shutil.rmtree(self._ours.root / "hidet-out/.state" / name, ignore_errors=True)
        return self._ours_run("build", "--nobuild", "//:whole")

    def _restore(self, name: str, cache: Path, least: int) -> Figure:
        """Outputs deleted, and put back from the disk cache."""
        words = ("build", "-j2", f"--disk_cache={cache}", "//:whole")
        shutil.rmtree(self._ours.root / "hidet-out", ignore_errors=True)
        (self._ours.root / "hidet-bin").unlink(missing_ok=True)
        self._ours_run(*words)
        time.sleep(TRUSTED)
        self._ours_run(*words)
        runs = []
        for _ in range(self._rounds):
            for folder in (self._ours.root / "hidet-out").glob("cpu-*"):
                folder.rename(self._base / f"gone-{time.time_ns()}")  # what was just deleted slows ext4 down
            runs.append(self._ours_run(*words))
            self._check()
        wall, cpu = (statistics.median(values) for values in self._walls_and_cpus(runs))
        rate = self._ours.actions / wall
        return Figure(name, f"{rate:.0f} outputs/s", f"{cpu:.2f} s", f"{least}/s", rate >= least)

    @staticmethod
    def _seconds(name: str, runs: Sequence[Run], limit: float) -> Figure:
        wall, cpu = (statistics.median(values) for values in Bench._walls_and_cpus(runs))
        shown = f"{wall * 1000:.0f} ms", f"{cpu * 1000:.0f} ms"
        return Figure(name, *shown, f"{limit * 1000:.0f} ms", max(wall, cpu) <= limit, wall)

    @staticmethod
    def _walls_and_cpus(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
        return [run.wall for run in runs], [run.cpu for run in runs]

    # ---- changes

    def _nothing(self, _: Workspace, __: int) -> None:
        """Change nothing."""

    def _touch(self, tree: Workspace, number: int) -> None:
        os.utime(tree.source(self._picked(number)))

    def _comment(self, tree: Workspace, number: int) -> None:
        self._append(tree.source(self._picked(number)), f"# comment {number}\n")

    def _edit(self, tree: Workspace, number: int) -> None:
        self._append(tree.source(self._picked(number)), f"edit {number}\n")

    def _edit_library(self, tree: Workspace, number: int) -> None:
        self._append(tree.library(self._picked(number)), f"edit of all {number}\n")

    def _picked(self, number: int) -> int:
        return (7 + 131 * number) % self._kernels

    @staticmethod
    def _append(path: Path, text: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        time.sleep(0.02)

    # ---- the trees and the programs

    def _new_trees(self) -> None:
        self._count += 1
        self._home = self._base / f"{self._count}" / "home"
        self._ours = Workspace(self._base / f"{self._count}" / "ours", self._kernels)
        self._theirs = Workspace(self._base / f"{self._count}" / "ninja", self._kernels)
        self._home.mkdir(parents=True)
        for tree in (self._ours, self._theirs):
            tree.write_sources()
        self._ours.write_build_files()
        self._theirs.write_ninja()
        self._ours_run("info", "cxx")  # what it finds out about this machine is no part of a build

    def _settle(self) -> None:
        """Have both trees up to date, and known to be."""
        self._ninja_run()
        self._ours_run()
        time.sleep(TRUSTED)
        self._ours_run()
        self._ours_run()

    def _check(self) -> None:
        """Both made the same."""
        made = self._ours.root / "hidet-bin/whole/whole.bin"
        if made.read_bytes() != (self._theirs.root / "whole.bin").read_bytes():
            self._ninja_run()
            if made.read_bytes() != (self._theirs.root / "whole.bin").read_bytes():
                raise SystemExit("the two programs disagree about the result")

    def _ninja_run(self) -> Run:
        return self._run(self._ninja, self._theirs.root)

    def _ours_run(self, *words: str) -> Run:
        return self._run([self._program[0], *(words or self._program[1:])], self._ours.root)

    def _run(self, command: Sequence[str], folder: Path) -> Run:
        report = self._base / "report"
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._home), "LANG": "C.UTF-8"}
        clock = [sys.executable, "-I", "-S", str(Path(__file__).parent / "clock.py"), str(report)]
        done = subprocess.run([*clock, *command], cwd=folder, env=environment, capture_output=True, check=False)
        wall, cpu, own, peak, status = map(float, report.read_text().split())
        if status:
            text = (done.stdout + done.stderr).decode(errors="replace")
            raise SystemExit(f"{' '.join(command)} failed:\n{text[-2000:]}")
        return Run(wall, cpu, own, peak)


def install(folder: Path) -> Path:
    """An environment with our package copied in and the libraries of this one beside it; gives the program."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python3*/site-packages"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", site, HOUSE], check=True)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([python, "-m", "compileall", "-q", site], check=True)
    program = folder / "bin" / "hidet-build"
    program.write_text(f"#!{python}\nimport sys\nfrom hidet_build.__main__ import main\nsys.exit(main())\n")
    program.chmod(0o755)
    return program


if __name__ == "__main__":
    sys.exit(main())
