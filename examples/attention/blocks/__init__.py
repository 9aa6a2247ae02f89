"""Pieces that kernels are put together from. Each defines a function in the script module at hand."""

from .rows import define_mean_square, define_softmax

__all__ = ["define_mean_square", "define_softmax"]
