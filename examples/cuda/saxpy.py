"""y = a * x + y on a GPU: a kernel, and the function on the host that launches it."""

import hidet
from hidet.lang import attrs
from hidet.lang.cuda import blockIdx, threadIdx
from hidet.lang.types import f32

BLOCK = 256


def saxpy(n):
    blocks = (n + BLOCK - 1) // BLOCK
    with hidet.script_module() as module:

        @hidet.script
        def saxpy_kernel(a: f32, x: f32[n], y: f32[n]):
            attrs.func_kind = "cuda_kernel"
            attrs.cuda.block_dim = BLOCK
            attrs.cuda.grid_dim = blocks
            i = threadIdx.x + blockIdx.x * BLOCK
            if i < n:
                y[i] = a * x[i] + y[i]

        @hidet.script
        def saxpy(a: f32, x: f32[n], y: f32[n]):
            attrs.func_kind = "public"
            saxpy_kernel(a, x, y)

    return module.ir_module()
