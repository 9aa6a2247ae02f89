"""Functions over one row of a matrix."""

import hidet
from hidet.ir import primitives
from hidet.lang import attrs
from hidet.lang.types import f32, i32

from .numerics import EPSILON


def define_softmax(columns: int):
    """Softmax of the first `length` elements of a row, in place."""

    @hidet.script
    def softmax_row(row: f32[columns], length: i32):
        attrs.func_kind = "cpu_internal"
        largest = row[0]
        for j in range(length):
            largest = primitives.max(largest, row[j])
        total = f32(0.0)
        for j in range(length):
            row[j] = primitives.exp(row[j] - largest)
            total += row[j]
        for j in range(length):
            row[j] = row[j] / total

    return softmax_row


def define_mean_square(columns: int):
    """The mean of a row's squares, a little above zero."""

    @hidet.script
    def mean_square(row: f32[columns]) -> f32:
        attrs.func_kind = "cpu_internal"
        total = f32(0.0)
        for j in range(columns):
            total += row[j] * row[j]
        return total / f32(columns) + f32(EPSILON)

    return mean_square
