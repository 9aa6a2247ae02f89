"""x / √(mean of x²) for each row."""

import hidet
from blocks import define_mean_square
from hidet.ir import primitives
from hidet.lang import attrs
from hidet.lang.types import f32


def rms_norm(rows: int, columns: int):
    with hidet.script_module() as module:
        mean_square = define_mean_square(columns)

        @hidet.script
        def rms_norm(x: f32[rows, columns], out: f32[rows, columns]):
            attrs.func_kind = "public"
            for i in range(rows):
                scale = primitives.rsqrt(mean_square(~x[i, 0]))
                for j in range(columns):
                    out[i, j] = x[i, j] * scale

    return module.ir_module()
