"""2-D convolution without padding: hidet's operator."""

import hidet
from hidet import ops


def conv2d(channels: int, height: int, width: int, filters: int, size: int):
    image = hidet.symbol([1, channels, height, width], device="cpu")
    weight = hidet.symbol([filters, channels, size, size], device="cpu")
    return ops.conv2d(image, weight)
