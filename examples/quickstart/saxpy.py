"""y = a x + y for vectors of any length: a script function is a kernel as it stands."""

import hidet
from hidet.lang import attrs
from hidet.lang.types import f32, i32


@hidet.script
def saxpy(n: i32, a: f32, x: ~f32, y: ~f32):
    attrs.func_kind = "public"
    for i in range(n):
        y[i] = a * x[i] + y[i]
