"""The comparison with hidet's own tests, on a tiny checkout that stands in for it. Nothing tested is no success."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.hidet
pytest.importorskip("hidet")


def compared(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of the program to its end."""
    command = [sys.executable, "-m", "tests.hidet_suite", *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)


def checkout(folder: Path, **files: str) -> str:
    """A checkout with these tests in its folder `script`."""
    (folder / "tests" / "script").mkdir(parents=True)
    (folder / "tests" / "conftest.py").touch()
    for name, text in files.items():
        (folder / "tests" / "script" / f"{name}.py").write_text(text)
    return str(folder)


def test_equal_runs(tmp_path: Path) -> None:
    """A test that passes in all runs, and one that fails in all, are what hidet's are: no difference."""
    done = compared(checkout(tmp_path, test_a="def test_a(): pass\ndef test_b(): raise ValueError\n"), "script")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "no test differs" in done.stdout
    assert 3 == done.stdout.count("1 passed, 1 failed")


def test_nothing_tested(tmp_path: Path) -> None:
    """Where nothing can be collected, equal runs are worth nothing; the reason is told."""
    done = compared(checkout(tmp_path, test_a="import no_such_package\n"), "script")

    assert 1 == done.returncode
    assert "hidet: no test passed; the end of what pytest said:" in done.stdout
    assert (
        "could not be run: script/test_a.py: E   ModuleNotFoundError: No module named 'no_such_package'" in done.stdout
    )
    assert "no test differs" not in done.stdout


def test_no_tests_at_all(tmp_path: Path) -> None:
    """A folder without tests has none that passed."""
    done = compared(checkout(tmp_path), "script")

    assert 1 == done.returncode
    assert "no tests ran" in done.stdout


def test_without_pytest(tmp_path: Path) -> None:
    """An interpreter that has no pytest says so at once."""
    program = (
        "import importlib.util, sys; find = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name, *more: None if name == 'pytest' else find(name, *more);"
        "from tests.hidet_suite.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, checkout(tmp_path), "script"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (1, "", f"{sys.executable} has no pytest: nothing can be tested\n") == (
        done.returncode,
        done.stdout,
        done.stderr,
    )


def test_usage() -> None:
    """What is required, and what there is to know."""
    wrong, asked = compared(), compared("--help")

    assert wrong.stderr.endswith("error: the following arguments are required: checkout\n")
    assert (2, 0) == (wrong.returncode, asked.returncode)
    assert "Exit code 0 when" in asked.stdout


@pytest.mark.parametrize("name", ["warm", "drivers"])
def test_benchmarks_explain_themselves(name: str) -> None:
    """`--help` says how long it takes and what the exit code means."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{name}", "--help"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert "Exit code 0" in done.stdout
    assert "minutes" in done.stdout
