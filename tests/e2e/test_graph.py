"""Mistakes that show only when targets meet, and those of a workspace's own rules: one tiny workspace each."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.space import Ended, Space

GOLDEN = Path(__file__).parent.parent / "golden" / "graph"
PROMPT = "$ hidet-build "


@pytest.mark.parametrize("mistake", sorted(path.name for path in GOLDEN.iterdir()))
def test_each_mistake_is_explained(mistake: str, space: Space, update_golden: bool) -> None:
    """The first line of a golden file is the command, the rest what it printed and how it ended."""
    shutil.copytree(GOLDEN / mistake, space.root, dirs_exist_ok=True)
    golden = GOLDEN / mistake / "expected.txt"
    command = golden.read_text(encoding="utf-8").partition("\n")[0]
    actual = f"{command}\n{_transcript(space, space.run(*shlex.split(command.removeprefix(PROMPT))))}"
    if update_golden:
        golden.write_text(actual, encoding="utf-8")

    assert golden.read_text(encoding="utf-8") == actual


def _transcript(space: Space, ended: Ended) -> str:
    """What a run printed, without what differs between machines and runs, and its exit code."""
    text = (ended.err + ended.out).replace(str(space.root), "ROOT")
    text = re.sub(r" in [\d.]+ s\b", " in N s", text)
    text = re.sub(r"\(\d+\.\d s\)", "(N s)", text)
    text = re.sub(r"\bg\+\+ [\d.]+( \([^)]*\))?", "g++ VERSION", text)
    return f"{text}exit code {ended.code}\n"
