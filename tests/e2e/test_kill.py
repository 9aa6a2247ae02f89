"""SIGKILL at any moment: what is at a final name is whole, the cache verifies, and the next build gets it right."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from hidet_build.cache.disk import DiskCache
from hidet_build.files import Placer
from tests.space import Space, targets

LINES = 3000
# Slow enough to be killed in mid-write, and of a length that shows what is missing.
SCRIPT = "for i in 1 2 3; do cat {source} {source} >> {name}.txt; sleep 0.02; done; cp {name}.txt {name}.copy"


def step(name: str, source: str, label: str) -> str:
    """A target that writes its source six times into one file, in pieces, and then into a second."""
    script = SCRIPT.format(name=name, source=source)
    outputs = f"[{name}.txt, {name}.copy]"
    return f'{{rule: command, name: {name}, arguments: [sh, -c, "{script}"], inputs: [{label}], outputs: {outputs}}}'


def write_space(space: Space) -> None:
    """Two steps on the source, and one on the first of them."""
    space.write(
        "k/BUILD.yaml",
        targets(step("a", "s.src", "s.src"), step("b", "s.src", "s.src"), step("c", "a/a.copy", '":a"')),
    )


def edit(space: Space, version: int) -> str:
    """Another version of the source."""
    text = f"version {version:08}\n" * LINES
    space.write("k/s.src", text)
    return text


def whole(content: str, times: int) -> bool:
    """Whether an output is what its step makes of some version of the source."""
    lines = content.splitlines()
    return len(lines) == LINES * times and len(set(lines)) == 1


@pytest.mark.slow
def test_killed_at_random_moments(space: Space) -> None:
    """Twenty invocations killed at twenty moments of their life, each after an edit."""
    moments = random.Random(20)
    write_space(space)
    edit(space, 0)
    space.build("//k:all")
    out = space.root / "hidet-out"
    torn = []
    for version in range(1, 21):
        edit(space, version)
        process = space.start("//k:all")
        time.sleep(moments.uniform(0.1, 1.2))
        process.kill()
        process.communicate()
        for path in out.glob("cpu-*/k/*/*"):
            if path.suffix in (".txt", ".copy") and not whole(path.read_text(), 36 if path.stem == "c" else 6):
                torn.append((version, path))
    text = edit(space, 99)

    space.build("//k:all")

    assert [] == torn
    assert [text * 6, text * 6, text * 36] == [space.read(f"hidet-bin/k/{name}/{name}.copy") for name in "abc"]
    assert () == DiskCache(str(space.cache / "hidet-build"), Placer()).verify().dropped
    assert [] == [path for path in (out / ".state/exec").iterdir() if path.is_dir()]
    assert [] == leftovers(out)
    assert "INFO: 3 targets up to date" == space.build("//k:all").summary


def leftovers(out: Path) -> list[Path]:
    """Files under half-way names."""
    return [path for path in out.rglob("*") if path.name.startswith(".hidet-build-") or path.name.endswith(".tmp")]


def test_execution_root_of_the_dead_is_swept(space: Space) -> None:
    """What a killed invocation left in its execution root goes with the next build that runs something."""
    started = space.base / "started"
    script = f"touch {started}; sleep 2; echo one > o"
    space.write("k/BUILD.yaml", targets(f'{{rule: command, name: t, arguments: [sh, -c, "{script}"], outputs: [o]}}'))
    process = space.start("//k:t")
    while not started.exists():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    roots = space.root / "hidet-out/.state/exec"
    left = len([path for path in roots.iterdir() if path.is_dir()])

    space.build("//k:t")

    assert 1 == left
    assert [] == [path for path in roots.iterdir() if path.is_dir()]
