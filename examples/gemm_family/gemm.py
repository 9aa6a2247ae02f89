"""c = a b in square tiles, each accumulated in local memory. The tile must divide m and n."""

import hidet
from hidet.ir import data_type
from hidet.lang import attrs, grid, tensor


def gemm(m: int, n: int, k: int, dtype: str, tile: int, name: str = ""):
    if m % tile or n % tile:
        raise ValueError(f"a tile of {tile} does not divide {m} x {n}")
    name = name or f"gemm_{dtype}_{tile}"
    dtype = data_type(dtype)

    with hidet.script_module() as module:

        @hidet.script
        def gemm_kernel(a: dtype[m, k], b: dtype[k, n], c: dtype[m, n]):
            attrs.func_kind = "cpu_kernel"
            for tile_row, tile_column in grid(m // tile, n // tile, attrs="p."):  # p: in parallel
                sums = tensor(dtype, [tile, tile])
                for i, j in grid(tile, tile):
                    sums[i, j] = dtype.zero
                for p in range(k):
                    for i, j in grid(tile, tile):
                        sums[i, j] += a[tile_row * tile + i, p] * b[p, tile_column * tile + j]
                for i, j in grid(tile, tile):
                    c[tile_row * tile + i, tile_column * tile + j] = sums[i, j]

        @hidet.script
        def launch(a: dtype[m, k], b: dtype[k, n], c: dtype[m, n]):
            attrs.func_kind = "public"
            attrs.func_name = name
            gemm_kernel(a, b, c)

    return module.ir_module()
