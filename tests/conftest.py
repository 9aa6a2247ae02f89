"""Options of the test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the golden files anew instead of comparing with them; read the diff."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; read the diff")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written."""
    return bool(request.config.getoption("--update-golden"))
