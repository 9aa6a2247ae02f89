"""The drivers for CUDA, on a machine without a GPU: what hidet refuses to do there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.hidet, pytest.mark.cuda]
hidet = pytest.importorskip("hidet")
torch = pytest.importorskip("torch")

from hidet.lang import attrs  # noqa: E402
from hidet.lang.cuda import blockIdx, threadIdx  # noqa: E402
from hidet.lang.types import f32  # noqa: E402
from hidet.runtime import load_compiled_module  # noqa: E402

from hidet_build.drivers import build_ir_module, build_ir_module_batch  # noqa: E402
from hidet_build.errors import BuildError  # noqa: E402
from tests.test_drivers import cache, compiles, hidet_cache  # noqa: E402, F401 - fixtures

PORTABLE = "--cpu_arch=x86-64-v3"


@pytest.fixture(autouse=True)
def options() -> Any:
    """hidet's options as they were, after the test."""
    with hidet.option.context():
        hidet.option.cpu.arch("x86-64-v3")
        yield


def divide(size: int) -> Any:
    """A kernel that divides `size` numbers in place, with the function that launches it."""
    with hidet.script_module() as module:

        @hidet.script
        def divide_kernel(x: f32[size], y: f32[size]):
            attrs.func_kind = "cuda_kernel"
            attrs.cuda.block_dim = 128
            attrs.cuda.grid_dim = (size + 127) // 128
            i = threadIdx.x + blockIdx.x * 128
            if i < size:
                y[i] = y[i] / x[i]

        @hidet.script
        def launch(x: f32[size], y: f32[size]):
            attrs.func_kind = "public"
            divide_kernel(x, y)

    return module.ir_module()


def test_library_and_object(tmp_path: Path, cache: Path) -> None:  # noqa: F811
    """A library and an object are built with no GPU, and an unchanged module compiles nothing."""
    target = f"cuda --arch=sm_80 {PORTABLE}"
    build_ir_module(divide(1000), str(tmp_path / "library"), target)
    build_ir_module(divide(1000), str(tmp_path / "object"), target, output_kind=".o")
    first = compiles(cache)
    build_ir_module(divide(1000), str(tmp_path / "library"), target)

    expected = {".lock", "compile.sh", "func_types.pickle", "lib.so", "source.cu"}
    assert expected == set(os.listdir(tmp_path / "library"))
    assert {".lock", "compile.sh", "lib.o", "source.cu"} == set(os.listdir(tmp_path / "object"))
    assert ["launch"] == list(load_compiled_module(str(tmp_path / "library")).functions)
    assert first == compiles(cache)


def test_the_command_compiles_the_source(tmp_path: Path) -> None:
    """compile.sh is a command that works."""
    build_ir_module(divide(1000), str(tmp_path), f"cuda --arch=sm_80 {PORTABLE}", output_kind=".o")
    (tmp_path / "lib.o").unlink()
    subprocess.run(["sh", "compile.sh"], cwd=tmp_path, check=True, capture_output=True)

    assert (tmp_path / "lib.o").stat().st_size > 1000


def test_what_the_target_leaves_open(tmp_path: Path) -> None:
    """The architecture is that of hidet's option, as in hidet, and the option stays what it was."""
    hidet.option.cuda.arch("sm_90")
    build_ir_module(divide(1000), str(tmp_path / "option"), "cuda", output_kind=".o")
    build_ir_module(divide(1000), str(tmp_path / "target"), "cuda --arch=sm_80", output_kind=".o")

    assert "code=sm_90a" in (tmp_path / "option" / "compile.sh").read_text()
    assert "code=sm_80" in (tmp_path / "target" / "compile.sh").read_text()
    assert "sm_90" == hidet.option.cuda.get_arch()


def test_options_that_reach_the_compiler(tmp_path: Path) -> None:
    """hidet's options for divisions and denormals count, though the source is the same."""
    target = f"cuda --arch=sm_80 {PORTABLE}"
    build_ir_module(divide(1000), str(tmp_path / "fast"), target, output_kind=".o")
    hidet.option.set_option("cuda.build.prec_div", True)
    build_ir_module(divide(1000), str(tmp_path / "precise"), target, output_kind=".o")

    assert (tmp_path / "fast" / "source.cu").read_text() == (tmp_path / "precise" / "source.cu").read_text()
    assert (tmp_path / "fast" / "lib.o").read_bytes() != (tmp_path / "precise" / "lib.o").read_bytes()


def test_batch(tmp_path: Path) -> None:
    """Each module of a batch gets its own folder."""
    folders = [str(tmp_path / str(number)) for number in range(3)]
    modules = [divide(100 + number) for number in range(3)]

    made = build_ir_module_batch(modules, folders, ".o", f"cuda --arch=sm_80 {PORTABLE}")

    assert folders == made
    assert all(f"< {100 + number}" in Path(folder, "source.cu").read_text() for number, folder in enumerate(folders))


def test_native_without_a_gpu(tmp_path: Path) -> None:
    """Where nothing says which architecture and there is no GPU, that is the error."""
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    with pytest.raises(BuildError, match="the architecture 'native' needs a GPU") as failure:
        build_ir_module(divide(1000), str(tmp_path), "cuda")

    assert "write the architecture out" in (failure.value.hint or "")


def test_task(hidet_cache: Path, cache: Path) -> None:  # noqa: F811
    """A task is built for a GPU that is not here, and a second process takes it from the store."""
    code = (
        "import hidet, sys\n"
        "from hidet.graph.ops.softmax import SoftmaxTask\n"
        "from hidet.ir.compute import tensor_input\n"
        "from hidet_build.drivers import build_task\n"
        "hidet.option.cache_dir(sys.argv[1])\n"
        "hidet.option.cuda.arch('sm_80')\n"
        "hidet.option.cpu.arch('x86-64-v3')\n"
        "compiled = build_task(SoftmaxTask(tensor_input('x', 'float32', [32, 100]), 1))\n"
        "print(compiled.task_dir, len(compiled.candidates))\n"
    )
    outputs, counts = [], []
    for number in range(2):
        arguments = [sys.executable, "-c", code, str(hidet_cache / str(number))]
        done = subprocess.run(arguments, capture_output=True, check=True, cwd=Path(__file__).parent.parent)
        outputs.append(done.stdout.decode().split())
        counts.append(compiles(cache))

    assert "1" == outputs[0][1]
    assert "source.cu" in os.listdir(outputs[1][0])
    libraries = [Path(folder, "lib.so").read_bytes() for folder, _ in outputs]
    assert libraries[0] == libraries[1]
    assert counts[0] == counts[1]
