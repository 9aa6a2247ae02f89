"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.space import Space


@pytest.fixture
def space(tmp_path: Path) -> Space:
    """An empty workspace."""
    return Space(tmp_path)
