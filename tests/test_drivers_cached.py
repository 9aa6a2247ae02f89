"""Drivers and `run-jit` that may start no compiler: what the store has is used, anything else is named."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hidet
hidet = pytest.importorskip("hidet")
torch = pytest.importorskip("torch")

from hidet_build.drivers import build_ir_module, build_ir_module_batch, build_task  # noqa: E402
from hidet_build.errors import BuildError, ErrorGroup, UsageError  # noqa: E402
from hidet_build.storage import export_cache, import_cache  # noqa: E402
from hidet_build.worker import live  # noqa: E402
from tests.test_drivers import result, scale  # noqa: E402


@pytest.fixture(autouse=True)
def hidet_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store and a cache of hidet's of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with hidet.option.context():
        hidet.option.cache_dir(str(tmp_path / "hidet"))
        yield tmp_path / "hidet"


@pytest.fixture
def required(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets nothing run from when it is called."""
    return lambda: monkeypatch.setenv("HIDET_BUILD_REQUIRE_CACHED", "1")


def norm() -> Any:
    """A task of one candidate."""
    return hidet.ops.layer_norm(hidet.symbol([8, 64], device="cpu")).op.task


def test_module_from_the_store(tmp_path: Path, required: Any) -> None:
    """A module that was built before goes into another folder; lowering it is no compiling."""
    build_ir_module(scale(2.0), str(tmp_path / "one"), "cpu")
    required()
    build_ir_module(scale(2.0), str(tmp_path / "two"), "cpu")

    assert 2.0 == result(tmp_path / "two")


def test_module_that_is_missing(tmp_path: Path, required: Any) -> None:
    """A module that was never built is named by its folder, with the step that would have run; nothing is written."""
    required()
    with pytest.raises(BuildError) as raised:
        build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu")

    assert f"module 0 ({tmp_path}/out): CppCompile is not cached and would have to run to make module.o: " in str(
        raised.value
    )
    assert "HIDET_BUILD_REQUIRE_CACHED" in str(raised.value)
    assert not (tmp_path / "out" / "lib.so").exists()


def test_batch_names_all_that_are_missing(tmp_path: Path, required: Any) -> None:
    """Of several modules those in the store are built, the others named."""
    build_ir_module(scale(2.0), str(tmp_path / "before"), "cpu")
    required()
    folders = [str(tmp_path / str(number)) for number in range(3)]
    with pytest.raises(ErrorGroup) as raised:
        build_ir_module_batch([scale(1.0), scale(2.0), scale(3.0)], folders, ".so", "cpu")

    assert ["module 0", "module 2"] == [error.message.partition(" (")[0] for error in raised.value.errors]
    assert 2.0 == result(tmp_path / "1")


def test_force_contradicts(tmp_path: Path, required: Any) -> None:
    """`force=True` would compile."""
    required()
    with pytest.raises(UsageError, match="force=True compiles anew"):
        build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu", force=True)


def test_task_that_is_missing(
    tmp_path: Path, hidet_cache: Path, required: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that the store does not have is named before anything of it is implemented or lowered."""

    def refuse(*_: object) -> None:
        raise AssertionError("it was implemented")

    task = norm()
    monkeypatch.setattr(live, "generate_task", refuse)
    required()
    with pytest.raises(BuildError, match=rf"the task {task.name}\(.* is not cached") as raised:
        build_task(task, "cpu")

    assert f"the store {tmp_path}/cache/hidet-build has no whole result" in str(raised.value)
    assert [] == list(hidet_cache.rglob("lib.so"))


def test_task_travels_with_the_store(tmp_path: Path, hidet_cache: Path, required: Any) -> None:
    """A task's result is exported and imported like any other, and then it needs no compiler."""
    build_task(norm(), "cpu", load=False)
    store = str(tmp_path / "cache" / "hidet-build")
    export_cache(store, str(tmp_path / "exported"))
    shutil.rmtree(hidet_cache)
    for kind in ("ac", "cas"):
        shutil.rmtree(f"{store}/{kind}")
    required()
    with pytest.raises(BuildError):
        build_task(norm(), "cpu", load=False)
    moved = import_cache(str(tmp_path / "exported"), store)
    compiled = build_task(norm(), "cpu")
    x = torch.randn(8, 64)

    assert () == moved.refused
    assert compiled is not None
    torch.testing.assert_close(compiled(x).torch(), torch.nn.functional.layer_norm(x, (64,)), atol=1e-5, rtol=1e-5)


PROGRAM = """
    import sys, hidet
    hidet.option.cache_dir(sys.argv[1])
    x = hidet.symbol([8, 64], device="cpu")
    hidet.ops.layer_norm(x).op.task.build("cpu")
    print("built")
    """


def test_run_jit(tmp_path: Path) -> None:
    """`run-jit --require_cached` ends a program at the first kernel that is not in the store, and names its task."""
    run = [sys.executable, "-m", "hidet_build", "run-jit"]
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]

    def ended(folder: str, *flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*run, *flags, "--", *program, str(tmp_path / folder)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    missed, built, found = ended("a", "--require_cached"), ended("b"), ended("c", "--require_cached")

    assert (1, 0, 0) == (missed.returncode, built.returncode, found.returncode)
    assert "NotCached: the task normalize" in missed.stderr
    assert ("", "built\n", "built\n") == (missed.stdout, built.stdout, found.stdout)
