"""Loads the library of this folder and compares its kernels and its C++ function with numpy.

hidet-build //examples/mixed:vision && python examples/mixed/check.py
"""

import ctypes
import sys
from pathlib import Path

import numpy as np
import torch
from hidet.runtime import load_compiled_module

BUILT = Path(__file__).resolve().parents[2] / "hidet-bin" / "examples" / "mixed" / "vision"


def main() -> int:
    library = load_compiled_module(str(BUILT))
    handwritten = ctypes.CDLL(str(BUILT / "lib.so"))
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (48, 64, 3), np.uint8)
    weight = random.standard_normal((8, 3, 5, 5), dtype=np.float32)
    results = []

    planes = np.zeros((3, 48, 64), np.float32)
    handwritten.planes_from_pixels(ctypes.c_void_p(pixels.ctypes.data), ctypes.c_void_p(planes.ctypes.data), 3, 48, 64)
    results.append(agrees("planes_from_pixels", pixels.transpose(2, 0, 1) / 255, planes))

    blurred = np.zeros_like(planes)
    library["blur"](torch.from_numpy(planes), torch.from_numpy(blurred))
    larger = np.pad(planes, ((0, 0), (1, 1), (1, 1)), "reflect")
    results.append(agrees("blur", windows(larger, 3).mean((3, 4)), blurred))

    features = np.zeros((1, 8, 44, 60), np.float32)
    library["conv2d"](*map(torch.from_numpy, (blurred[None], weight, features)))
    expected = np.einsum("cyxij,fcij->fyx", windows(blurred, 5), weight)
    results.append(agrees("conv2d", expected[None], features))
    return 0 if all(results) else 1


def windows(image: np.ndarray, size: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(image, (size, size), axis=(1, 2))


def agrees(name: str, expected: np.ndarray, actual: np.ndarray, tolerance: float = 1e-4) -> bool:
    error = np.abs(expected - actual).max()
    fine = bool(error <= tolerance)  # false for a NaN too
    print(f"{name}: largest error {error:.1e}, {'fine' if fine else f'MORE THAN {tolerance:.0e}'}")
    return fine


if __name__ == "__main__":
    sys.exit(main())
