"""hidet's own compilation through our drivers."""

import os
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

import numpy as np  # noqa: E402
from hidet.ir.expr import Constant  # noqa: E402
from hidet.ir.type import tensor_type  # noqa: E402
from hidet.lang import attrs  # noqa: E402
from hidet.lang.types import f32  # noqa: E402

from hidet_build import drivers, jit  # noqa: E402


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store and a cache of hidet's of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with hidet.option.context():
        hidet.option.cache_dir(str(tmp_path / "hidet"))
        yield tmp_path


def table(*values: float) -> Any:
    """A module that reads a table of constants. hidet prints constants by their shape alone."""
    constants = Constant(np.array(values, dtype="float32"), tensor_type("float32", [4]))
    with hidet.script_module() as module:

        @hidet.script
        def read(x: f32[4]):
            attrs.func_kind = "public"
            for i in range(4):
                x[i] = constants[i]

    return module.ir_module()


def test_two_tables_of_one_printed_form() -> None:
    """hidet names a module's folder by its printed form, and gives the second table the values of the first."""
    with jit.enabled():
        built = [table(1.0, 2.0, 3.0, 4.0).build(), table(5.0, 6.0, 7.0, 8.0).build()]
    x, y = torch.zeros(4), torch.zeros(4)
    built[0]["read"](x)
    built[1]["read"](y)

    assert str(table(1.0, 2.0, 3.0, 4.0)) == str(table(5.0, 6.0, 7.0, 8.0))
    assert ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]) == (x.tolist(), y.tolist())


def test_graph() -> None:
    """An optimized graph compiles its tasks through us, and computes what torch does."""
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    left, right = (hidet.symbol([32, 32], device="cpu") for _ in range(2))
    with jit.enabled():
        out = hidet.ops.relu(hidet.ops.matmul(left, right) + 1.0)
        graph = hidet.graph.optimize(hidet.trace_from(out, inputs=[left, right]))
        result = graph(hidet.from_torch(a), hidet.from_torch(b)).torch()

    torch.testing.assert_close(result, torch.relu(a @ b + 1), atol=1e-4, rtol=1e-4)


def test_enabled_puts_everything_back() -> None:
    """After the block hidet's own functions are in their places."""
    before = (hidet.drivers.build_task, hidet.drivers.build_ir_module, hidet.ir.IRModule.build)
    with jit.enabled():
        during = hidet.drivers.build_task
    after = (hidet.drivers.build_task, hidet.drivers.build_ir_module, hidet.ir.IRModule.build)

    assert before == after
    assert during is drivers.build_task


PROGRAM = """
    import sys
    import hidet, torch
    import hidet_build.jit
    hidet_build.jit.install()
    hidet.option.cache_dir(sys.argv[1])
    x = hidet.symbol([8, 64], device="cpu")
    task = hidet.ops.layer_norm(x).op.task
    given = torch.randn(8, 64)
    expected = torch.nn.functional.layer_norm(given, (64,))
    print(bool((task.build("cpu")(given).torch() - expected).abs().max() < 1e-5))
    """


def test_second_process_compiles_nothing(caches: Path) -> None:
    """With hidet's cache gone, another process finds everything in the store: there is no compiler to ask."""
    run = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    first = subprocess.run([*run, str(caches / "one")], capture_output=True, text=True, check=True)
    entries = sorted((caches / "cache" / "hidet-build" / "ac").rglob("*"))
    second = subprocess.run([*run, str(caches / "two")], capture_output=True, text=True, check=True)

    assert ("True\n", "True\n") == (first.stdout, second.stdout)
    assert entries == sorted((caches / "cache" / "hidet-build" / "ac").rglob("*"))
    assert 1 == len([name for _, _, names in os.walk(caches / "two") for name in names if name == "lib.so"])


def test_run_jit(tmp_path: Path) -> None:
    """`run-jit` runs a program as it is, arguments, exit code, own sitecustomize and all, with our drivers in hidet."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.mine = 'mine'\n")
    program = (
        "import sys, hidet.drivers; print(sys.mine, hidet.drivers.build_task.__module__, sys.argv[1:]); sys.exit(5)"
    )
    folders = f"{tmp_path / 'site'}:{Path(__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "-m", "hidet_build", "run-jit", "--", sys.executable, "-c", program, "-x", "--foo-bar"],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (5, "mine hidet_build.drivers ['-x', '--foo-bar']\n") == (done.returncode, done.stdout), done.stderr


TORCH_COMPILE = """
    import sys, types
    import torch
    # What hidet asks of CUDA though the model is on the CPU: a name that only torch's CUDA builds have, when it is
    # imported, and a stream to wait for, when it times the kernels of a graph.
    if not hasattr(torch._C, "_nccl_all_reduce"):
        torch._C._nccl_all_reduce = lambda *_: None
    import hidet
    hidet.cuda.current_stream = lambda *_: types.SimpleNamespace(synchronize=lambda: None)
    import hidet_build.jit
    hidet_build.jit.install()
    hidet.option.cache_dir(sys.argv[1])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
    x = torch.randn(4, 16)
    with torch.no_grad():
        print(bool((torch.compile(model, backend="hidet")(x) - model(x)).abs().max() < 1e-5))
    """


@pytest.mark.slow
def test_torch_compile(caches: Path) -> None:
    """`torch.compile(backend="hidet")` gives torch's numbers, and compiles nothing in a second process.

    It compiles on a CPU, but hidet alone cannot run there what it compiled, hence what the program stands in for.
    """
    run = [sys.executable, "-c", textwrap.dedent(TORCH_COMPILE)]
    first = subprocess.run([*run, str(caches / "one")], capture_output=True, text=True, check=False)
    entries = sorted((caches / "cache" / "hidet-build" / "ac").rglob("*"))
    second = subprocess.run([*run, str(caches / "two")], capture_output=True, text=True, check=False)

    assert ("True\n", "True\n") == (first.stdout, second.stdout), first.stderr + second.stderr
    assert entries == sorted((caches / "cache" / "hidet-build" / "ac").rglob("*"))
    assert len(entries) > 3


def test_run_jit_survives_a_look() -> None:
    """A program that asks whether hidet is here, before it imports it, is run with our drivers all the same."""
    program = (
        "import importlib.util; importlib.util.find_spec('hidet'); importlib.util.find_spec('hidet')\n"
        "import hidet.drivers; print(hidet.drivers.build_task.__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "hidet_build", "run-jit", "--", sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "hidet_build.drivers\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.parametrize("flag", ["-I", "-E", "-sE", "-S"])
def test_run_jit_refuses_an_isolated_python(flag: str) -> None:
    """A Python that ignores us would compile without us; that is an error and no silence."""
    done = subprocess.run(
        [sys.executable, "-m", "hidet_build", "run-jit", "--", "python3", flag, "-c", "print('ran')"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (2, "") == (done.returncode, done.stdout)
    assert f"python3 {flag} ignores PYTHONPATH" in done.stderr
