"""c = a b for matrices whose shapes are fixed when the kernel is built."""

import hidet
from hidet.lang import attrs, grid
from hidet.lang.types import f32


def matmul(m: int, n: int, k: int):
    with hidet.script_module() as module:

        @hidet.script
        def matmul(a: f32[m, k], b: f32[k, n], c: f32[m, n]):
            attrs.func_kind = "public"
            for i, j in grid(m, n):
                c[i, j] = 0.0
            for i in range(m):
                for p in range(k):
                    for j in range(n):
                        c[i, j] += a[i, p] * b[p, j]

    return module.ir_module()
