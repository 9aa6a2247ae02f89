"""Precompiled headers: a compile is quicker with one, and its object is the same without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.space import Space, targets

pytestmark = pytest.mark.hidet

KERNELS = """\
import hidet
from hidet import ops
from hidet.lang import attrs, grid
from hidet.lang.types import f32


def scale(n: int = 1):
    size, name, factor = 64 + n, f"scale_{n}", float(n)
    with hidet.script_module() as module:

        @hidet.script
        def kernel(x: f32[size]):
            attrs.func_kind = "public"
            attrs.func_name = name
            assert size > 8
            for i in grid(size, "p"):
                x[i] = x[i] * factor

    return module.ir_module()


def matmul(n: int = 1):
    return ops.matmul(hidet.symbol([8, n], device="cpu"), hidet.symbol([n, 8], device="cpu"))
"""
COUNT = 6  # more than it takes until one is made


def declare(space: Space) -> None:
    """Twice as many kernels, of two kinds with one and the same prelude."""
    space.write("k/kernels.py", KERNELS)
    entries = [
        f"{{rule: ir_module, name: {entry}-{number}, src: kernels.py, entry: {entry}, args: {{n: {number}}}}}"
        for entry in ("scale", "matmul")
        for number in range(1, COUNT + 1)
    ]
    space.write("k/BUILD.yaml", targets(*entries))


def objects(space: Space) -> dict[str, bytes]:
    """The objects of all kernels by target."""
    return {path.parent.name: path.read_bytes() for path in (space.root / "hidet-bin" / "k").glob("*/module.o")}


def made(space: Space) -> list[Path]:
    """The precompiled headers of this user."""
    return sorted((space.cache / "hidet-build" / "precompiled-1").glob("*.gch"))


def test_objects_are_the_same_with_and_without(space: Space, tmp_path: Path) -> None:
    """What comes out does not depend on whether there was a precompiled header."""
    declare(space)
    space.build("-j1", "//k:all")
    other = Space(tmp_path / "other")
    declare(other)
    # A file where the folder would be: none can be made.
    (other.cache / "hidet-build").mkdir(parents=True)
    (other.cache / "hidet-build" / "precompiled-1").write_text("")

    other.build("-j1", "//k:all")

    assert made(space)
    assert 2 * COUNT == len(objects(space))
    assert objects(space) == objects(other)


def test_few_compiles_do_without(space: Space) -> None:
    """Nobody who compiles one kernel waits for a precompiled header."""
    declare(space)

    space.build("//k:scale-1")

    assert [] == made(space)


def test_a_damaged_one_is_replaced(space: Space) -> None:
    """One that g++ cannot read costs a compile, and is made anew."""
    declare(space)
    space.build("-j1", "//k:all")
    (header,) = made(space)
    good = objects(space)
    header.write_bytes(header.read_bytes()[: 1 << 20])

    space.build("-j1", "--nocache", "//k:all")

    assert good == objects(space)
    assert [header] == made(space)
    assert header.stat().st_size > 1 << 20
