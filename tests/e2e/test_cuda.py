"""CUDA kernels on a machine without a GPU: what is built for which architecture, by what, and when not."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.space import Space, targets

pytestmark = [pytest.mark.hidet, pytest.mark.cuda]

SAXPY = """\
import hidet
from hidet.lang import attrs
from hidet.lang.cuda import blockIdx, threadIdx
from hidet.lang.types import f32


def saxpy(n: int = 1000):
    with hidet.script_module() as module:

        @hidet.script
        def saxpy_kernel(a: f32, x: f32[n], y: f32[n]):
            attrs.func_kind = "cuda_kernel"
            attrs.cuda.block_dim = 256
            attrs.cuda.grid_dim = (n + 255) // 256
            i = threadIdx.x + blockIdx.x * 256
            if i < n:
                y[i] = a * x[i] + y[i]

        @hidet.script
        def launch(a: f32, x: f32[n], y: f32[n]):
            attrs.func_kind = "public"
            saxpy_kernel(a, x, y)

    return module.ir_module()
"""
# What a Hopper kernel does on the host before it copies tiles with TMA.
TENSOR_MAP = """\
import hidet
from hidet.ir.dtypes import u32, u64
from hidet.ir.primitives.cuda import create_tensor_map
from hidet.ir.type import OpaqueType
from hidet.lang import attrs, tensor
from hidet.lang.types import f16

Map = OpaqueType("CUtensorMap")


def describe():
    with hidet.script_module() as module:

        @hidet.script
        def describe(x: ~f16):
            attrs.func_kind = "public"
            out: Map
            size = tensor(u64, [2])
            stride = tensor(u64, [1])
            box = tensor(u32, [2])
            step = tensor(u32, [2])
            size[0] = 64
            size[1] = 64
            stride[0] = 128
            box[0] = 8
            box[1] = 8
            step[0] = 1
            step[1] = 1
            create_tensor_map(~out, "float16", 2, x, size, stride, box, step)

    return module.ir_module()
"""
COMPILE = "CudaCompile"


def architectures(library: Path) -> set[int]:
    """The architectures whose machine code is in a library, by the headers of its device objects."""
    content = library.read_bytes()
    found = set()
    for start in (match.start() for match in re.finditer(b"\x7fELF\x02", content)):
        (machine,) = struct.unpack_from("<H", content, start + 18)
        (flags,) = struct.unpack_from("<I", content, start + 48)
        if machine == 190:  # EM_CUDA
            found.add(flags >> 8 & 0xFF)
    return found


def declare(space: Space, *entries: str) -> None:
    """Targets of the rule ir_module, for the kernel saxpy unless they say otherwise."""
    space.write("k/saxpy.py", SAXPY)
    space.write("k/BUILD.yaml", targets(*entries))


def with_header(path: str) -> str:
    """The kernel, its module asking for a header."""
    asked = f"ir.include_headers.append({path!r})\n    ir.include_dirs.append('.')"
    return SAXPY.replace("return module.ir_module()", f"ir = module.ir_module()\n    {asked}\n    return ir")


def in_python(code: str, *arguments: str) -> str:
    """What a Python program with hidet prints, its errors too."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.stdout.decode()


def test_exactly_the_asked_architecture(space: Space) -> None:
    """Each target has code for its own architecture and nothing else, and loads without a driver."""
    declare(
        space,
        '{rule: ir_module, name: ampere, src: saxpy.py, entry: saxpy, target: "cuda --arch=sm_80"}',
        '{rule: ir_module, name: hopper, src: saxpy.py, entry: saxpy, target: "cuda --arch=sm_90"}',
        "{rule: shared_library, name: kernels, modules: [':ampere']}",
    )

    space.build("//k:all")

    ampere, hopper = space.root / "hidet-out/cuda-sm_80/k/ampere", space.root / "hidet-out/cuda-sm_90/k/hopper"
    assert {80} == architectures(ampere / "lib.so")
    assert {80} == architectures(space.root / "hidet-out/cuda-sm_80/k/kernels/lib.so")
    assert {90} == architectures(hopper / "lib.so")
    assert "for 'sm_90a'" in (hopper / "ptxas.txt").read_text()
    load = "import hidet, sys; print(*hidet.runtime.load_compiled_module(sys.argv[1]).functions)"
    assert "launch" == in_python(load, str(hopper)).strip()


def test_both_spellings_are_one(space: Space) -> None:
    """sm_90 and sm_90a are the same target, with the same outputs."""
    declare(space, "{rule: ir_module, name: saxpy, src: saxpy.py}")

    first = space.build("--platforms=cuda --arch=sm_90", "//k:saxpy")
    second = space.build("--platforms=cuda --arch=sm_90a", "//k:saxpy")

    assert f"{COMPILE} //k:saxpy" in first.actions
    assert [] == second.actions
    assert ["cuda-sm_90"] == [path.name for path in (space.root / "hidet-out").glob("cuda-*")]


def test_the_same_bytes_in_another_folder(space: Space, tmp_path: Path) -> None:
    """Objects and libraries do not depend on the folder, the run or the time."""
    entry = '{rule: ir_module, name: saxpy, src: saxpy.py, target: "cuda --arch=sm_80"}'
    declare(space, entry)
    space.build("//k:saxpy")
    other = Space(tmp_path / "another" / "deeper")
    declare(other, entry)
    other.build("//k:saxpy")

    for name in ("module.o", "lib.so", "ptxas.txt"):
        ours, theirs = (one.root / "hidet-out/cuda-sm_80/k/saxpy" / name for one in (space, other))
        assert ours.read_bytes() == theirs.read_bytes()


def test_the_environment_is_kept_out(space: Space, tmp_path: Path) -> None:
    """Variables that nvcc and g++ read, and a libcuda that lies about, change neither key nor outputs."""
    declare(space, '{rule: ir_module, name: saxpy, src: saxpy.py, target: "cuda --arch=sm_80"}')
    space.build("//k:saxpy")
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "libcuda.so").write_bytes(b"")
    shutil.rmtree(space.root / "hidet-out")

    again = space.build(
        "//k:saxpy",
        environment={
            "NVCC_APPEND_FLAGS": "-DSPOILED -lineinfo",
            "NVCC_PREPEND_FLAGS": "--no-such-flag",
            "NVCC_CCBIN": "/nonexistent",
            "CPATH": str(tmp_path),
            "LD_LIBRARY_PATH": str(tmp_path / "stub"),
        },
    )

    assert [] == again.actions
    assert "built 1 target: 4 actions: 4 cached" in again.summary


def test_the_toolkit_by_another_path(space: Space, tmp_path: Path) -> None:
    """A toolkit reached through a link is the same toolkit."""
    declare(space, '{rule: ir_module, name: saxpy, src: saxpy.py, target: "cuda --arch=sm_80"}')
    nvcc = real_nvcc()
    link = tmp_path / "cuda"
    link.symlink_to(nvcc.parent.parent)
    space.build("//k:saxpy", environment={"CUDACXX": str(nvcc)})
    shutil.rmtree(space.root / "hidet-out")

    again = space.build("//k:saxpy", environment={"CUDACXX": str(link / "bin/nvcc")})

    assert "built 1 target: 4 actions: 4 cached" in again.summary


def real_nvcc() -> Path:
    """nvcc itself, behind any script that calls it."""
    found = shutil.which("nvcc")
    said = subprocess.run(
        [found or "nvcc", "--dryrun", "-E", "-x", "cu", "/dev/null"], capture_output=True, check=True
    ).stderr.decode()
    return Path(re.findall(r"^#\$ _HERE_=(.+)$", said, re.MULTILINE)[0]) / "nvcc"


def test_another_toolkit_changes_cuda_alone(space: Space, tmp_path: Path) -> None:
    """With another header in the toolkit CUDA code is compiled again, and code for the CPU is not."""
    declare(
        space,
        '{rule: ir_module, name: saxpy, src: saxpy.py, target: "cuda --arch=sm_80"}',
        "{rule: cc_object, name: host, src: host.cc}",
    )
    space.write("k/host.cc", 'extern "C" int answer() { return 42; }\n')
    toolkit = tmp_path / "toolkit"
    subprocess.run(["cp", "-rs", f"{real_nvcc().parent.parent}/", str(toolkit)], check=True)
    shutil.rmtree(toolkit / "targets")
    (toolkit / "targets/x86_64-linux").mkdir(parents=True)
    for name in ("include", "lib"):
        (toolkit / "targets/x86_64-linux" / name).symlink_to(f"../../{name}")
    nvcc = toolkit / "bin/nvcc"
    nvcc.unlink()
    shutil.copy(real_nvcc(), nvcc)  # it finds the toolkit beside itself
    environment = {"CUDACXX": str(nvcc)}
    space.build("//k:all", environment=environment)
    header = toolkit / "include/cuda_fp16.h"
    text = header.read_text()
    header.unlink()
    header.write_text(text + "// another release\n")

    again = space.build("//k:all", environment=environment)

    assert [f"{COMPILE} //k:saxpy"] == again.actions


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cuda --arch=sm_70", "knows no architecture 'sm_70'"),
        ("cuda --arch=sm_91", "knows no architecture 'sm_91'"),
        ("cuda --arch=native", "the architecture 'native' needs a GPU"),
        ("cuda --arch=hopper", "'hopper' is no architecture of a GPU"),
        ("cuda", "has no architecture"),
        ("hip --arch=gfx90a", "only cpu and cuda can"),
    ],
)
def test_what_cannot_be_built_for(space: Space, target: str, message: str) -> None:
    """An architecture nobody knows, or none at all, is an error at its place."""
    if "native" in target and os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    declare(space, f'{{rule: ir_module, name: saxpy, src: saxpy.py, target: "{target}"}}')

    done = space.run("//k:saxpy")

    assert 1 == done.code
    assert message in done.err
    assert "k/BUILD.yaml:2:" in done.err
    assert "Traceback" not in done.err


def test_no_compiler(space: Space, tmp_path: Path) -> None:
    """Without nvcc the error says how to get one; with CUDACXX it says what that asked for."""
    declare(space, '{rule: ir_module, name: saxpy, src: saxpy.py, target: "cuda --arch=sm_80"}')

    done = space.run("//k:saxpy", environment={"CUDACXX": str(tmp_path / "nvcc")})

    assert 36 == done.code
    assert f"there is no CUDA compiler nvcc: the environment variable CUDACXX asks for {tmp_path}/nvcc" in done.err
    assert "hint: install the CUDA toolkit (no GPU and no driver are needed)" in done.err


def test_driver_functions_are_looked_up_when_called(space: Space) -> None:
    """A kernel that calls the CUDA driver links where there is none, loads, and says so when it is called."""
    space.write("k/describe.py", TENSOR_MAP)
    entry = '{rule: ir_module, name: describe, src: describe.py, target: "cuda --arch=sm_90"}'
    space.write("k/BUILD.yaml", targets(entry))
    space.build("//k:describe")
    folder = space.root / "hidet-out/cuda-sm_90/k/describe"
    needed = subprocess.run(["readelf", "-d", folder / "lib.so"], capture_output=True, check=True).stdout.decode()
    call = (
        "import ctypes, hidet, sys\n"
        "module = hidet.runtime.load_compiled_module(sys.argv[1])\n"
        "memory = ctypes.addressof(ctypes.create_string_buffer(256))\n"
        "module['describe'](memory)\n"
    )

    said = in_python(call, str(folder))

    assert "libcuda.so" not in needed
    assert "cuTensorMapEncodeTiled" in said or os.path.exists("/dev/nvidia0")


def test_warnings_reach_the_user_and_ptxas_a_file(space: Space) -> None:
    """What ptxas says of the kernels is in ptxas.txt, without times; what nvcc warns of is shown."""
    declare(space, '{rule: ir_module, name: saxpy, src: saxpy.py, data: [noisy.h], target: "cuda --arch=sm_80"}')
    space.write("k/noisy.h", "#warning this header is old\n")
    space.write("k/saxpy.py", with_header("k/noisy.h"))

    done = space.build("//k:saxpy")

    said = (space.root / "hidet-out/cuda-sm_80/k/saxpy/ptxas.txt").read_text()
    assert "this header is old" in done.err
    assert "ptxas info" not in done.err
    assert re.search(r"^ptxas info    : Used \d+ registers", said, re.MULTILINE)
    assert "Compile time" not in said


def test_errors_of_nvcc_are_shown(space: Space) -> None:
    """Code that does not compile fails with what nvcc said."""
    declare(space, '{rule: ir_module, name: saxpy, src: saxpy.py, target: "cuda --arch=sm_80"}')
    space.write("k/saxpy.py", with_header("no/such/header.h"))

    done = space.run("//k:saxpy")

    assert 1 == done.code
    assert f"//k:saxpy: {COMPILE} failed" in done.err
    assert "no/such/header.h: No such file or directory" in done.err


FUSED = """\
import hidet
from hidet import ops


def fused():
    x, y = (hidet.symbol([64, 64], device="cuda") for _ in "xy")
    graph = hidet.graph.optimize(hidet.trace_from(ops.relu(x * 2.0 + y), inputs=[x, y]))
    (operator,) = graph.nodes
    return operator.task


def matmul():
    a, b = (hidet.symbol([64, 64], dtype="float16", device="cuda") for _ in "ab")
    graph = hidet.graph.optimize(hidet.trace_from(ops.matmul(a, b), inputs=[a, b]))
    print("became", *(type(operator).__name__ for operator in graph.nodes))
    return graph.nodes[0].task
"""


def test_operators_on_a_device_that_is_not_here(space: Space) -> None:
    """Constants and a bare "cuda" ask no device, and an operator becomes what it becomes where there is a GPU."""
    space.write("k/ops.py", FUSED)
    space.write(
        "k/BUILD.yaml",
        targets(
            '{rule: ir_module, name: fused, src: ops.py, output_kind: .o, target: "cuda --arch=sm_80"}',
            '{rule: ir_module, name: matmul, src: ops.py, output_kind: .o, target: "cuda --arch=sm_80"}',
        ),
    )

    done = space.build("//k:all")

    assert "became MatmulF16CuteOp" in done.err
