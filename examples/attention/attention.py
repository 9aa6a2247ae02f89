"""softmax(q kᵀ / √dim) v for several heads; `causal` lets a position see only those up to itself."""

import math

import hidet
from blocks import define_softmax
from hidet.lang import attrs, grid, tensor
from hidet.lang.types import f32


def attention(heads: int, length: int, dim: int, causal: bool = False):
    name = "causal_attention" if causal else "attention"
    scale = 1.0 / math.sqrt(dim)

    with hidet.script_module() as module:
        softmax_row = define_softmax(length)

        @hidet.script
        def attention_kernel(
            q: f32[heads, length, dim],
            k: f32[heads, length, dim],
            v: f32[heads, length, dim],
            out: f32[heads, length, dim],
        ):
            attrs.func_kind = "cpu_kernel"
            for head, i in grid(heads, length, attrs="p."):  # p: the heads run in parallel
                scores = tensor(f32, [length])
                visible = i + 1 if causal else length
                for j in range(visible):
                    scores[j] = 0.0
                    for d in range(dim):
                        scores[j] += q[head, i, d] * k[head, j, d] * scale
                softmax_row(scores, visible)
                for d in range(dim):
                    out[head, i, d] = 0.0
                    for j in range(visible):
                        out[head, i, d] += scores[j] * v[head, j, d]

        @hidet.script
        def launch(
            q: f32[heads, length, dim],
            k: f32[heads, length, dim],
            v: f32[heads, length, dim],
            out: f32[heads, length, dim],
        ):
            attrs.func_kind = "public"
            attrs.func_name = name
            attention_kernel(q, k, v, out)

    return module.ir_module()
