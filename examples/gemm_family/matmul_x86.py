"""hidet's own float32 matmul for x86 CPUs."""

import hidet
from hidet.graph.ops.matmul.matmul_f32_x86 import matmul_x86 as operator


def matmul_x86(m: int, n: int, k: int):
    return operator(hidet.symbol([m, k], device="cpu"), hidet.symbol([k, n], device="cpu"))
