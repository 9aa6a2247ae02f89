"""Options of the test run."""

from __future__ import annotations

import shutil

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the golden files anew instead of comparing with them; read the diff."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; read the diff")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a compiler for CUDA where there is none."""
    if shutil.which("nvcc") is None:
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="PATH has no nvcc"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written."""
    return bool(request.config.getoption("--update-golden"))
