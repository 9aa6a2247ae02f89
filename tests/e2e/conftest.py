"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.space import Space

NVCC = shutil.which("nvcc")
_MEMORY = "hidet-build/toolchains-1"


@pytest.fixture(scope="session")
def toolchain_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program remembers of this machine's toolchains; finding it out takes seconds."""
    first = Space(tmp_path_factory.mktemp("toolchains"))
    first.build("info", "cxx", "binutils", "hidet", *(["nvcc"] if NVCC else []))
    return first.cache / _MEMORY


@pytest.fixture
def space(tmp_path: Path, toolchain_memory: Path) -> Space:
    """An empty workspace with an empty cache, on a machine that is known."""
    made = Space(tmp_path)
    shutil.copytree(toolchain_memory, made.cache / _MEMORY)
    return made
