"""GELU by table: a straight line between two neighbouring points."""

import hidet
import numpy as np
from gelu_table import HIGH, LOW, VALUES
from hidet.ir import primitives
from hidet.ir.expr import Constant
from hidet.ir.type import tensor_type
from hidet.lang import attrs
from hidet.lang.types import f32, i32

INTERVALS = len(VALUES) - 1
POINTS_PER_UNIT = INTERVALS / (HIGH - LOW)


def gelu():
    table = Constant(np.array(VALUES, np.float32), tensor_type("float32", [INTERVALS + 1]))

    with hidet.script_module() as module:

        @hidet.script
        def gelu(n: i32, x: ~f32, y: ~f32):
            attrs.func_kind = "public"
            for i in range(n):
                position = (x[i] - LOW) * POINTS_PER_UNIT
                if x[i] <= LOW:
                    y[i] = 0.0
                elif x[i] >= HIGH:
                    y[i] = x[i]
                else:
                    left = primitives.min(i32(position), INTERVALS - 1)
                    y[i] = table[left] + (position - f32(left)) * (table[left + 1] - table[left])

    return module.ir_module()
