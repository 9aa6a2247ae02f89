"""Small IR modules and tasks to try things on. Annotations are not postponed: hidet.script reads them."""

from collections.abc import Sequence
from typing import Any

import hidet
from hidet import ops
from hidet.ir.dtypes import float32
from hidet.ir.primitives.func import call_primitive_func, is_primitive_function, register_primitive_function
from hidet.ir.type import FuncType
from hidet.lang import attrs, grid
from hidet.lang.types import f32, i32


def script() -> Any:
    """A parallel loop, a condition and a call of a primitive function."""
    with hidet.script_module() as module:

        @hidet.script
        def kernel(x: f32[64], n: i32):
            attrs.func_kind = "public"
            for i in grid(64, "p"):
                if i < n:
                    x[i] = hidet.ir.primitives.exp(x[i]) * 2.0

    return module.ir_module()


def matmul() -> Any:
    """The module of an operator's task."""
    a, b = hidet.symbol([8, 16], device="cpu"), hidet.symbol([16, 8], device="cpu")
    (module,) = task(ops.matmul(a, b)).implement("cpu", "/nonexistent")
    return module


def task(output: Any = None) -> Any:
    """The task of an operator."""
    tensor_out = ops.layer_norm(hidet.symbol([8, 16], device="cpu")) if output is None else output
    return tensor_out.op.task


def table(values: Sequence[int] = (1, 2, 3)) -> Any:
    """A module with a table of constants, which does not print."""
    content = tensor_constant(values)
    with hidet.script_module() as module:

        @hidet.script
        def kernel(x: i32[8]):
            attrs.func_kind = "public"
            for i in range(3):
                x[i] = content[i]

    return module.ir_module()


def tensor_constant(values: Sequence[int]) -> Any:
    """The constants as hidet's IR has them."""
    from hidet.ir.expr import constant
    from hidet.ir.type import tensor_type

    return constant(list(values), tensor_type("int32", [len(values)]))


def function(name: str, factor: float) -> Any:
    """A function of one number."""
    with hidet.script_module() as module:

        @hidet.script
        def body(x: float32) -> float32:
            attrs.func_kind = "cpu_internal"
            attrs.func_name = name
            return x * factor

    return module.ir_module().functions[name]


def calling(name: str) -> Any:
    """A module that calls a primitive function by its name."""

    def called(value: Any) -> Any:
        return call_primitive_func(name, [value])

    with hidet.script_module() as module:

        @hidet.script
        def kernel(x: f32[8]):
            attrs.func_kind = "public"
            for i in range(8):
                x[i] = called(x[i])

    return module.ir_module()


def calling_header(header: str, *folders: str) -> Any:
    """A module that calls `own_value`, which a header defines, and writes what it returns to 16 numbers."""
    if not is_primitive_function("own_value"):
        register_primitive_function("own_value", FuncType([], "float32"), codegen_name="own_value")

    def value() -> Any:
        return call_primitive_func("own_value", [])

    with hidet.script_module() as script_module:

        @hidet.script
        def own(x: f32[16]):
            attrs.func_kind = "public"
            for i in range(16):
                x[i] = value()

    module = script_module.ir_module()
    module.include_headers.append(header)
    module.include_dirs += folders
    return module
