"""Runs hidet's own tests with and without our drivers in hidet, and compares. Knows no test by name.

    git clone https://github.com/hidet-org/hidet /somewhere/hidet
    python -m tests.hidet_suite /somewhere/hidet                       a selection that can run on a CPU
    python -m tests.hidet_suite /somewhere/hidet --all                 all folders that can; takes long
    python -m tests.hidet_suite /somewhere/hidet script ir/dialects    only these, folders or files
    python -m tests.hidet_suite /somewhere/hidet --keep /tmp/suite     leaves all there, takes up what is there

Each folder is run three times, by `python -m pytest` in a process of its own, on a copy of hidet's tests:

    hidet    as it is
    ours     under `hidet-build run-jit`, with an empty store
    again    the same with the store that `ours` filled, and hidet's own cache empty: nothing may be compiled

Each run has a HOME of its own, so hidet's cache starts empty. The hidet that is installed is tested, not the one in the
checkout. Needs what hidet's tests need: pytest, torch, and for most folders transformers; packages may be put on
PYTHONPATH. Progress goes to stderr. On two idle cores `script` takes two minutes; some tests of operators_core and
unit_tests compile a hundred kernels each.

Exit code 0 when tests passed in each run, every test has the same outcome in all three and could be run at all, and no
test that passed started a compiler in the third; 1 when not, with the reasons; 2 for a wrong command line. (A test
whose compilation fails compiles again: failures are not stored.)
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SELECTION = (
    *("script", "transforms", "runtime", "ir", "minimal", "flowgraph"),
    *(f"operators_core/test_{name}.py" for name in ("norm", "softmax", "transform", "tensor", "fusion")),
)
_FOLDERS = (
    *("script", "transforms", "runtime", "ir", "minimal", "flowgraph", "multiprocessing", "utils"),
    *("operators_core", "operators_vision", "unit_tests", "cute_ops", "frontends"),
)
_COMPILERS = ("g++", "gcc", "c++", "cc", "nvcc", "hipcc", "clang", "clang++", "cc1plus", "as", "ld", "collect2")
_OUTCOMES = ("passed", "failed", "skipped", "error", "crashed")
_RUNS = ("hidet", "ours", "again")
_LAST = 5  # lines of a log that are shown


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    outcome: str
    seconds: float
    said: str


@dataclass(frozen=True)
class Run:
    """One run of one folder: every test's outcome, the compilers each test started, and how long it took."""

    outcomes: Mapping[str, Outcome]
    compilers: Mapping[str, int]
    seconds: float
    said: str  # the end of what pytest printed

    def line(self, name: str) -> str:
        """The counts, for people."""
        counts = Counter(one.outcome for one in self.outcomes.values())
        words = [f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome] or outcome != "crashed"]
        return f"{name:6} {', '.join(words)}; {sum(self.compilers.values())} compilers; {self.seconds:.0f} s"


def main(arguments: Sequence[str]) -> int:
    """Run the comparison that the command line names; its exit code."""
    options = _parse(arguments)
    missing = [name for name in ("pytest", "hidet") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} has no {' and no '.join(missing)}: nothing can be tested", file=sys.stderr)
        return 1
    with _folder(options.keep) as work:
        runs: dict[str, list[Run]] = {name: [] for name in _RUNS}
        for folder in options.folders:
            for name in _RUNS:
                run = _run(Path(options.checkout), folder, name, work, options.timeout)
                runs[name].append(run)
                print(f"{folder}: {run.line(name)}", file=sys.stderr, flush=True)
        merged = {name: _merged(found) for name, found in runs.items()}
    for name, run in merged.items():
        print(run.line(name))
    complaints = [*_untested(merged), *_differences(merged), *_compiled_again(merged["again"])]
    print("\n".join(complaints) or "no test differs, and the second run compiled nothing that it could have kept")
    return 1 if complaints else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hidet_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", help="a checkout of https://github.com/hidet-org/hidet")
    parser.add_argument(
        "folders", nargs="*", default=[], help="folders or files below its tests/; a selection by default"
    )
    parser.add_argument("--all", action="store_true", help="all folders that can run on a CPU")
    parser.add_argument("--keep", metavar="FOLDER", help="work in this folder and leave it there")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds one run of one folder may take (3600)")
    options = parser.parse_args(arguments)
    tests = Path(options.checkout) / "tests"
    chosen = _FOLDERS if options.all else _SELECTION
    options.folders = options.folders or [name for name in chosen if (tests / name).exists()]
    missing = [name for name in options.folders if not (tests / name).exists()]
    if missing or not (tests / "conftest.py").exists():
        parser.error(f"there is no {tests / (missing or ['conftest.py'])[0]}: is that a checkout of hidet?")
    return options


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep:
        Path(keep).mkdir(parents=True, exist_ok=True)
        yield Path(keep).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="hidet-suite-", ignore_cleanup_errors=True) as made:
        yield Path(made).resolve()


def _run(checkout: Path, folder: str, name: str, work: Path, timeout: int) -> Run:
    """Run one folder of tests once, unless it was; what came of it."""
    place = work / folder.replace("/", "+") / name
    if not (place / "seconds").exists():
        shutil.rmtree(place, ignore_errors=True)
        (place / "home").mkdir(parents=True)
        shutil.copytree(checkout / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        started = time.monotonic()
        _start_pytest(place, folder, name, timeout)
        (place / "seconds").write_text(str(time.monotonic() - started))
    return _read(place)


def _start_pytest(place: Path, folder: str, name: str, timeout: int) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "hidet_suite_recorder", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", folder]
    if name != "hidet":
        command = [sys.executable, "-m", "hidet_build", "run-jit", "--", *command]
    with open(place / "log", "wb") as log, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            cwd=place / "tests",
            env=_environment(place, name),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=timeout,
            check=False,
        )


def _environment(place: Path, name: str) -> dict[str, str]:
    """Ours, but for what would lead hidet or us to other caches."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(("HIDET", "XDG_", "PYTEST"))}
    ours = [str(_HERE / "watch"), str(place / "plugin"), str(_HERE.parents[1])]
    (place / "plugin").mkdir()
    shutil.copyfile(_HERE / "recorder.py", place / "plugin" / "hidet_suite_recorder.py")
    return {
        **found,
        "HOME": str(place / "home"),
        "XDG_CACHE_HOME": str(place.parent / ("store" if name != "hidet" else "none")),
        "PYTHONPATH": os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HIDET_SUITE_OUTCOMES": str(place / "outcomes"),
        "HIDET_SUITE_STARTED": str(place / "started"),
    }


def _read(place: Path) -> Run:
    outcomes = {
        line["test"]: Outcome(line["outcome"], line["seconds"], line["said"]) for line in _lines(place / "outcomes")
    }
    compilers: Counter[str] = Counter()
    for line in _lines(place / "started"):
        test, _, phase = line["test"].rpartition(" ")
        if os.path.basename(line["program"]) in _COMPILERS:
            compilers[test] += 1
        if phase and test not in outcomes:
            outcomes[test] = Outcome("crashed", 0.0, "the process ended while it ran")
    log = (place / "log").read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    return Run(outcomes, compilers, float((place / "seconds").read_text()), "\n".join(log[-_LAST:]))


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _merged(runs: Sequence[Run]) -> Run:
    outcomes = {test: outcome for run in runs for test, outcome in run.outcomes.items()}
    compilers = sum((Counter(run.compilers) for run in runs), Counter())
    return Run(outcomes, compilers, sum(run.seconds for run in runs), "\n".join(run.said for run in runs))


def _untested(runs: Mapping[str, Run]) -> list[str]:
    """A line for each run in which no test passed, and for each test that could be run in none."""
    found = [
        f"{name}: no test passed; the end of what pytest said:\n{run.said}"
        for name, run in runs.items()
        if all(one.outcome != "passed" for one in run.outcomes.values())
    ]
    first, *others = runs.values()
    for test, one in sorted(first.outcomes.items()):
        same = [run.outcomes[test].outcome for run in others if test in run.outcomes]
        if one.outcome == "error" and same == ["error"] * len(others):
            reason = one.said.rstrip().rpartition("\n")[2]
            found.append(f"could not be run: {test}: {reason}")
    return found


def _differences(runs: Mapping[str, Run]) -> list[str]:
    """A line for each test whose outcome is not the same in all runs."""
    tests = sorted({test for run in runs.values() for test in run.outcomes})
    found = []
    for test in tests:
        said = [run.outcomes[test].outcome if test in run.outcomes else "not run" for run in runs.values()]
        if len(set(said)) > 1:
            words = ", ".join(f"{name}: {outcome}" for name, outcome in zip(runs, said, strict=True))
            found.append(f"differs: {test}: {words}")
    return found


def _compiled_again(run: Run) -> list[str]:
    """A line for each test that passed and yet started a compiler."""
    return [
        f"compiled again: {test}: {count} compilers"
        for test, count in sorted(run.compilers.items())
        if test not in run.outcomes or run.outcomes[test].outcome == "passed"
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
