"""lower, codegen and merge-types, end to end: real kernels, compiled by g++, loaded by hidet, compared with torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.worker_space import TARGET, StepSpace, hidet_folder, pool, space  # noqa: F401 - fixtures

pytestmark = pytest.mark.hidet

SCRIPTS = """\
import hidet
from hidet.lang import attrs, grid
from hidet.lang.types import f32, i32


def saxpy(n=64, name="saxpy"):
    with hidet.script_module() as module:

        @hidet.script
        def saxpy(a: f32, x: f32[n], y: f32[n]):
            attrs.func_kind = "public"
            attrs.func_name = name
            for i in range(n):
                y[i] = a * x[i] + y[i]

    return module.ir_module()


def family(sizes):
    return [saxpy(n, f"saxpy_{n}") for n in sizes]


def as_script_module():
    with hidet.script_module() as module:

        @hidet.script
        def double(x: f32[8]):
            attrs.func_kind = "public"
            for i in range(8):
                x[i] = x[i] * 2.0

    return module


@hidet.script
def triple(x: f32[8]):
    for i in range(8):
        x[i] = x[i] * 3.0


def scaled(factor):
    with hidet.script_module() as module:

        @hidet.script
        def scale_kernel(x: f32[8]):
            attrs.func_kind = "cpu_kernel"
            for i in grid(8, "p"):
                x[i] = x[i] * factor

    return module.ir_module()


def table(values):
    with hidet.script_module() as module:
        counter = module.define_global_var("counter", i32[1])

        @hidet.script
        def count() -> i32:
            attrs.func_kind = "public"
            counter[0] = counter[0] + 1
            return counter[0]

    return module.ir_module()
"""
OPERATORS = """\
import hidet
from hidet import ops
from hidet.graph.ops.matmul.matmul_f32_x86 import matmul_x86
from hidet.graph.ops.softmax import CPUSoftmaxTask
from hidet.ir.compute import tensor_input


def matmul(m, n, k):
    return ops.matmul(hidet.symbol([m, k], device="cpu"), hidet.symbol([k, n], device="cpu"))


def fast_matmul(m, n, k):
    return matmul_x86(hidet.symbol([m, k], device="cpu"), hidet.symbol([k, n], device="cpu")).op.task


def softmax(rows, columns):
    return CPUSoftmaxTask(tensor_input("x", "float32", [rows, columns]), 1)


def layer_norm(rows, columns):
    return ops.layer_norm(hidet.symbol([rows, columns], device="cpu"))


def conv(n=1, c=8, size=16, out=4):
    return ops.conv2d(hidet.symbol([n, c, size, size], device="cpu"), hidet.symbol([out, c, 3, 3], device="cpu"))
"""


def build(space: StepSpace, number: int = 0) -> Any:  # noqa: F811
    """Generate, compile and link one lowered module, and load it."""
    folder = space.generated(number, f"library_{number}")
    compile_object(space, folder)
    link(space, folder, [f"{folder}/module.o"])
    return load(space, folder)


def compile_object(space: StepSpace, folder: str) -> None:  # noqa: F811
    """Compile module.cc as an action would."""
    external = space.root / folder / "external" / "hidet"
    external.mkdir(parents=True)
    (external / "include").symlink_to(os.path.join(hidet_folder(), "include"))
    flags = ["-O3", "-mavx2", "-m64", "-ffast-math", "-march=x86-64-v3", "-fPIC", "-fopenmp"]
    command = ["g++", "-c", *flags, "@compile.args", "module.cc", "-o", "module.o"]
    subprocess.run(command, cwd=space.root / folder, check=True)


def link(space: StepSpace, folder: str, objects: list[str]) -> None:  # noqa: F811
    """Link objects into the library of `folder`."""
    runtime = [f"-L{os.path.join(hidet_folder(), 'lib')}", "-Wl,--no-as-needed", "-lhidet_runtime"]
    arguments = [f"@{folder}/link.args"] if (space.root / folder / "link.args").exists() else []
    command = ["g++", "-shared", "-fopenmp", *objects, *arguments, *runtime, "-o", f"{folder}/lib.so"]
    subprocess.run(command, cwd=space.root, check=True)


def load(space: StepSpace, folder: str) -> Any:  # noqa: F811
    """The module as hidet's own loader sees it."""
    from hidet.runtime import load_compiled_module

    return load_compiled_module(str(space.root / folder))


class Case(NamedTuple):
    """A kernel with its inputs' shapes, its output's, and what torch says it computes."""

    entry: str
    arguments: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    expected: Callable[..., Any]


def _softmax(x: Any) -> Any:
    return x.softmax(1)


def _matmul(x: Any, y: Any) -> Any:
    return x @ y


def _layer_norm(x: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x, (x.shape[1],))


def _convolution(x: Any, w: Any) -> Any:
    import torch

    return torch.nn.functional.conv2d(x, w)


CASES = [
    Case("matmul", {"m": 16, "n": 24, "k": 32}, ((16, 32), (32, 24)), (16, 24), _matmul),
    Case("fast_matmul", {"m": 33, "n": 44, "k": 55}, ((33, 55), (55, 44)), (33, 44), _matmul),
    Case("softmax", {"rows": 8, "columns": 100}, ((8, 100),), (8, 100), _softmax),
    Case("layer_norm", {"rows": 4, "columns": 64}, ((4, 64),), (4, 64), _layer_norm),
    Case("conv", {}, ((1, 8, 16, 16), (4, 8, 3, 3)), (1, 4, 14, 14), _convolution),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.entry)
def test_operators_and_tasks_compute_what_torch_does(space: StepSpace, case: Case) -> None:  # noqa: F811
    """A tensor of one operator and a Task become a library that hidet loads and that computes the right numbers."""
    import torch

    space.write({"kernels/operators.py": OPERATORS})
    space.lowered("kernels/operators.py", case.entry, **case.arguments)
    module = build(space)
    inputs = [torch.randn(shape) for shape in case.shapes]
    output = torch.zeros(case.result)
    module["launch"](*inputs, output)

    assert torch.allclose(case.expected(*inputs), output, atol=1e-3)


def test_symbolic_sizes_are_told_and_used(space: StepSpace) -> None:  # noqa: F811
    """A matmul of three symbolic sizes names them in functions.json, and runs once hidet knows their values."""
    import torch
    from hidet.ffi.runtime_api import runtime_api

    space.write({"kernels/operators.py": OPERATORS})
    space.lowered("kernels/operators.py", "matmul", m="m", n="n", k="k")
    module = build(space)
    for name, value in (("m", 5), ("n", 7), ("k", 6)):
        runtime_api.set_symbol_value(name, value)
    left, right, output = torch.randn(5, 6), torch.randn(6, 7), torch.zeros(5, 7)
    module["launch"](left, right, output)

    assert space.read("library_0/functions.json")["symbols"] == ["k", "m", "n"]
    assert torch.allclose(left @ right, output, atol=1e-4)


def test_script_with_arguments(space: StepSpace) -> None:  # noqa: F811
    """A function that returns the IRModule of a script runs with the numbers it was given."""
    import torch

    space.write({"kernels/scripts.py": SCRIPTS})
    space.lowered("kernels/scripts.py", "saxpy", n=16)
    module = build(space)
    x, y = torch.randn(16), torch.randn(16)
    expected = 2.5 * x + y
    module["saxpy"](2.5, x, y)

    assert torch.allclose(expected, y)


@pytest.mark.parametrize(("entry", "name", "factor"), [("as_script_module", "double", 2.0), ("triple", "triple", 3.0)])
def test_script_modules_and_functions(space: StepSpace, entry: str, name: str, factor: float) -> None:  # noqa: F811
    """A script module, and a script function at the top of a file without a kind, have one public function."""
    import torch

    space.write({"kernels/scripts.py": SCRIPTS})
    space.lowered("kernels/scripts.py", entry)
    module = build(space)
    x = torch.ones(8)
    module[name](x)

    assert x.tolist() == [factor] * 8


def test_list_of_modules_makes_one_pickle_each(space: StepSpace) -> None:  # noqa: F811
    """Every module of a list is a lowered module of its own, in the list's order, and all link into one library."""
    import torch

    space.write({"kernels/scripts.py": SCRIPTS})
    space.lowered("kernels/scripts.py", "family", sizes=[4, 8])
    folders = [space.generated(number, f"part_{number}") for number in range(2)]
    for folder in folders:
        compile_object(space, folder)
    space.write({"types.json": '[{"pickle": "part_0/func_types.pickle"}, {"pickle": "part_1/func_types.pickle"}]'})
    merged = space.run("merge-types", "types.json", "--out", "whole/func_types.pickle")
    link(space, "whole", [f"{folder}/module.o" for folder in folders])
    module = load(space, "whole")
    y = torch.ones(8)
    module["saxpy_8"](1.0, torch.ones(8), y)

    assert merged.exit_code == 0
    assert list(module.functions) == ["saxpy_4", "saxpy_8"]
    assert y.tolist() == [2.0] * 8
    assert space.read("lowered/modules.json") == {
        "modules": [{"pickle": "0.pickle", "text": "0.txt"}, {"pickle": "1.pickle", "text": "1.txt"}]
    }


def test_automatic_launch_is_told_apart(space: StepSpace) -> None:  # noqa: F811
    """hidet's own `launch` (of a lone kernel, of a task) is marked; a module with only public scripts has none."""
    space.write({"kernels/scripts.py": SCRIPTS, "kernels/operators.py": OPERATORS})
    marks = []
    for path, entry, arguments in (
        ("kernels/scripts.py", "scaled", {"factor": 4.0}),
        ("kernels/operators.py", "fast_matmul", {"m": 8, "n": 8, "k": 8}),
        ("kernels/scripts.py", "saxpy", {}),
    ):
        space.lowered(path, entry, **arguments)
        described = space.read(space.generated() + "/functions.json")
        marks.append((described["automatic_launch"], [function["name"] for function in described["functions"]]))

    assert marks == [(True, ["launch"]), (True, ["launch"]), (False, ["saxpy"])]


def test_functions_json_says_what_the_pickle_says(space: StepSpace) -> None:  # noqa: F811
    """Names, parameters and types of public functions are readable without hidet, and no absolute path is anywhere."""
    space.write({"kernels/scripts.py": SCRIPTS})
    space.lowered("kernels/scripts.py", "saxpy", n=16)
    folder = space.generated()
    described = space.read(f"{folder}/functions.json")
    everything = b"".join(path.read_bytes() for path in sorted((space.root).rglob("*")) if path.is_file())

    assert described == {
        "automatic_launch": False,
        "functions": [
            {
                "kind": "public",
                "name": "saxpy",
                "parameters": [
                    {"name": "a", "type": "float32"},
                    {"name": "x", "type": "float32[16]"},
                    {"name": "y", "type": "float32[16]"},
                ],
                "return": "void",
                "signature": "saxpy(a: float32, x: float32[16], y: float32[16]) -> void",
                "symbol": "hidet_saxpy",
            }
        ],
        "globals": [],
        "include_dirs": [],
        "libraries": [],
        "library_dirs": [],
        "namespace": "",
        "object_files": [],
        "standard": "c++11",
        "symbols": [],
    }
    assert str(space.root).encode() not in everything
    assert hidet_folder().encode() not in everything


def test_globals_are_symbols_of_the_object(space: StepSpace) -> None:  # noqa: F811
    """Each global variable in functions.json is a symbol that the compiled object defines."""
    space.write({"kernels/scripts.py": SCRIPTS})
    space.lowered("kernels/scripts.py", "table", values=[1])
    folder = space.generated()
    compile_object(space, folder)
    names = subprocess.run(
        ["nm", "--defined-only", "-f", "posix", "module.o"], cwd=space.root / folder, capture_output=True, check=True
    ).stdout.decode()
    globals_ = space.read(f"{folder}/functions.json")["globals"]

    assert globals_ == ["counter"]
    assert [line.split()[0] for line in names.splitlines() if line.split()[1] == "B"] == ["counter"]


def test_includes_are_apart_and_module_starts_with_the_prelude(space: StepSpace) -> None:  # noqa: F811
    """The source's block of include lines is prelude.h, so that a precompiled one can stand in."""
    space.write({"kernels/operators.py": OPERATORS})
    space.lowered("kernels/operators.py", "fast_matmul", m=8, n=8, k=8)
    folder = space.root / space.generated()
    prelude = (folder / "prelude.h").read_text().splitlines()
    source = (folder / "module.cc").read_text().splitlines()

    assert [line for line in prelude if not line.startswith("#include <")] == []
    assert source[0] == '#include "prelude.h"'
    assert [line for line in source[1:] if line.startswith("#include")] == []


def test_cuda_is_generated_without_a_device(space: StepSpace) -> None:  # noqa: F811
    """A CUDA target lowers and generates here, where there is no GPU and no libcuda."""
    space.write(
        {
            "kernels/add.py": "import hidet\nfrom hidet import ops\n\n\ndef add(n):\n"
            "    x, y = (hidet.symbol([n, 8], device='cuda:0') for _ in range(2))\n    return ops.add(x, y)\n"
        }
    )
    target = ["--target", "cuda --arch=sm_90a --cpu_arch=x86-64-v3"]
    lowered = space.run(
        "lower", "--src", "kernels/add.py", "--entry", "add", "--args", '{"n": 4}', *target, "--out", "l"
    )
    generated = space.run("codegen", *target, "l/0.pickle", "--out", "g")

    assert (lowered.output, generated.output) == (b"", b"")
    assert "__global__" in (space.root / "g/module.cu").read_text()


def test_merge_renames_and_drops(space: StepSpace) -> None:  # noqa: F811
    """merge-types gives functions new names and leaves some out; two of one name are an error."""
    space.write({"kernels/scripts.py": SCRIPTS})
    space.lowered("kernels/scripts.py", "family", sizes=[4, 8])
    for number in range(2):
        space.generated(number, f"part_{number}")
    space.write(
        {
            "good.json": '[{"pickle": "part_0/func_types.pickle", "rename": {"saxpy_4": "small"}},'
            ' {"pickle": "part_1/func_types.pickle", "drop": ["saxpy_8"]}]',
            "bad.json": '[{"pickle": "part_0/func_types.pickle"}, {"pickle": "part_0/func_types.pickle"}]',
        }
    )
    good = space.run("merge-types", "good.json", "--out", "types.pickle")
    bad = space.run("merge-types", "bad.json", "--out", "other.pickle")

    assert good.exit_code == 0
    assert list(_unpickled(space.root / "types.pickle")) == ["small"]
    assert bad.exit_code == 1
    assert bad.output.decode().startswith("two functions are called 'saxpy_4'")


def _unpickled(path: Path) -> dict[str, Any]:
    import pickle

    types: dict[str, Any] = pickle.loads(path.read_bytes())
    return types


@pytest.mark.parametrize("entry", ["matmul", "softmax"])
def test_same_declaration_same_bytes_in_every_process(space: StepSpace, entry: str) -> None:  # noqa: F811
    """Five processes with five hash seeds, and the warm worker, generate one source; three symbolic sizes too."""
    arguments = '{"m": "m", "n": "n", "k": "k"}' if entry == "matmul" else '{"rows": 4, "columns": 32}'
    words = ["lower", "--src", "kernels/operators.py", "--entry", entry, "--args", arguments, "--target", TARGET]
    space.write({"kernels/operators.py": OPERATORS})
    results = []
    for seed in ("0", "1", "42", "7", "random", "worker"):
        lower, generate = (
            [*words, "--out", "lowered"],
            ["codegen", "--target", TARGET, "lowered/0.pickle", "--out", "g"],
        )
        if seed == "worker":
            codes = [space.run(*step).exit_code for step in (lower, generate)]
        else:
            codes = [space.run_plain(*step, PYTHONHASHSEED=seed).returncode for step in (lower, generate)]
        names = ("module.cc", "prelude.h", "functions.json", "func_types.pickle", "compile.args", "link.args")
        texts = [(space.root / "lowered" / "0.txt").read_bytes()]
        results.append((codes, texts + [(space.root / "g" / name).read_bytes() for name in names]))

    assert results == [results[0]] * 6
    assert results[0][0] == [0, 0]
