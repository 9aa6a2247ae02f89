"""A pytest plugin that writes each test's outcome down as it comes, so that a crash loses nothing. Knows no hidet.

The file that HIDET_SUITE_OUTCOMES names gets a JSON line for each outcome: its test (or the file that could not be
collected), the outcome, the seconds it took and the end of what went wrong.
"""

from __future__ import annotations

import json
import os
import random

import pytest


def pytest_collectstart() -> None:
    """Some of hidet's files draw their parameters when they are imported: let each run draw the same."""
    random.seed(0)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Until its outcome is known, the process may end with it."""
    _write(nodeid, "crashed", 0.0, "the process ended while it ran")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a test's outcome down when its call is over, or earlier or later where it was not its call that decided."""
    if report.when == "call" or report.outcome != "passed":
        broke = report.when != "call" and report.failed
        _write(report.nodeid, "error" if broke else report.outcome, report.duration, report.longreprtext)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that could not be collected counts like a test."""
    if report.outcome != "passed":
        _write(report.nodeid, "error" if report.failed else report.outcome, 0.0, report.longreprtext)


def _write(test: str, outcome: str, seconds: float, said: str) -> None:
    with open(os.environ["HIDET_SUITE_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "seconds": seconds, "said": said[-3000:]}) + "\n")
