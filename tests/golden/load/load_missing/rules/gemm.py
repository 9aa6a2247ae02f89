from hidet_build.rule import rule


@rule()
def gemm(ctx): ...
