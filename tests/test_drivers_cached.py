"""Drivers and `run-jit` that may start no compiler: what the store has is used, anything else is named."""

import ctypes
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
        build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu --arch=x86-64-v2")

    said = raised.value.render()
    assert said.startswith(
        f"the module scale ({tmp_path}/out): CppCompile is not cached and would have to run to make module.o: "
    )
    assert "; it was looked for as cpu --arch=x86-64-v2\n" in said
    assert "without --require_cached and HIDET_BUILD_REQUIRE_CACHED" in said
    assert "x86-64-v3" not in said
    assert not (tmp_path / "out" / "lib.so").exists()


def test_native_code_that_is_missing(tmp_path: Path, required: Any) -> None:
    """Where hidet takes this machine's CPU for granted, the error says so and how to have code for others."""
    required()
    with pytest.raises(BuildError) as raised:
        build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu")

    assert "hidet.option.cpu.arch is auto: set it to 'x86-64-v3'" in str(raised.value)


def test_batch_names_all_that_are_missing(tmp_path: Path, required: Any) -> None:
    """Of several modules those in the store are built, the others named."""
    build_ir_module(scale(2.0), str(tmp_path / "before"), "cpu")
    required()
    folders = [str(tmp_path / str(number)) for number in range(3)]
    with pytest.raises(ErrorGroup) as raised:
        build_ir_module_batch([scale(1.0), scale(2.0), scale(3.0)], folders, ".so", "cpu")

    assert ["module 0, scale", "module 2, scale"] == [error.message.partition(" (")[0] for error in raised.value.errors]
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
    assert "; it was looked for as cpu --arch=" in missed.stderr
    assert ("", "built\n", "built\n") == (missed.stdout, built.stdout, found.stdout)


IMAGE = """
    import hidet, os, torch
    from tests.test_drivers import scale

    # Where hidet is installed in a git repository its cache is there, and not in the home.
    hidet.option.cache_dir(os.path.expanduser("~/.cache/hidet"))
    x = hidet.symbol([8, 64], device="cpu")
    given = torch.randn(8, 64)
    normed = hidet.ops.layer_norm(x).op.task.build("cpu")(given).torch()
    numbers = torch.ones(16)
    scale(2.0).build()["scale"](numbers)
    print(bool((normed - torch.nn.functional.layer_norm(given, (64,))).abs().max() < 1e-5), float(numbers[0]))
    """


def without_privileges() -> None:
    """Let file modes hold for root too, in this process and all it starts."""
    prctl = ctypes.CDLL(None).prctl
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; root has the rest of the set after the next execve


def program_in_image(folder: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program under `run-jit` with this folder for its home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HIDET"))}
    command = [sys.executable, "-m", "hidet_build", "run-jit", *flags, "--", sys.executable, "-c"]
    return subprocess.run(
        [*command, textwrap.dedent(IMAGE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder.parent,
        preexec_fn=without_privileges,
        env={**kept, "HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[1]), **variables},
    )


def read_only(folder: Path) -> None:
    """Take away the right to write to a folder and all below."""
    subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)


def test_read_only_image(tmp_path: Path) -> None:
    """A home, a store and a cache of hidet's that cannot be written to are good for what they hold."""
    home, exported, temporary = (tmp_path / name for name in ("home", "exported", "temporary"))
    home.mkdir()
    temporary.mkdir()
    filled = program_in_image(home)
    export_cache(str(home / ".cache" / "hidet-build"), str(exported))
    read_only(home)
    read_only(exported)
    found = program_in_image(home, "--require_cached", TMPDIR=str(temporary))
    # A new home, with nothing but a store that was brought along.
    other = tmp_path / "other"
    other.mkdir(mode=0o555)
    refused = program_in_image(other, "--require_cached", "--disk_cache=exported", TMPDIR=str(temporary))
    unfilled = program_in_image(home, TMPDIR=str(temporary), HIDET_BUILD_DISK_CACHE=str(other / "store"))
    subprocess.run(["chmod", "-R", "u+w", str(tmp_path)], check=True)

    assert (0, "True 2.0\n") == (filled.returncode, filled.stdout), filled.stderr
    assert (0, "True 2.0\n") == (found.returncode, found.stdout), found.stderr
    assert f"cannot write to {other}/.cache/hidet/" in refused.stderr
    assert "hint: that is in hidet's own cache: hidet.option.cache_dir('FOLDER')" in refused.stderr
    assert f"cannot write to the disk cache {other}/store: Permission denied" in unfilled.stderr
    assert "hint: HIDET_BUILD_DISK_CACHE=FOLDER" in unfilled.stderr
    assert [] == [name for name in os.listdir(temporary) if not name.startswith("hidet-build-")]
