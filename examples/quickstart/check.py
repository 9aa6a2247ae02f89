"""Loads the kernels of this folder and compares them with numpy.

hidet-build //examples/quickstart:all && python examples/quickstart/check.py
"""

import sys
from pathlib import Path

import numpy as np
import torch
from hidet.runtime import load_compiled_module

BUILT = Path(__file__).resolve().parents[2] / "hidet-bin" / "examples" / "quickstart"


def main() -> int:
    random = np.random.default_rng(0)
    return 0 if all([check_saxpy(random), check_matmul(random)]) else 1


def check_saxpy(random: np.random.Generator) -> bool:
    x, y = random.standard_normal((2, 1000), dtype=np.float32)
    expected = 2.5 * x + y
    # torch.from_numpy copies nothing, so the kernel writes into y.
    load_compiled_module(str(BUILT / "saxpy"))["saxpy"](x.size, 2.5, torch.from_numpy(x), torch.from_numpy(y))
    return agrees("saxpy", expected, y)


def check_matmul(random: np.random.Generator) -> bool:
    a, b = random.standard_normal((128, 64), dtype=np.float32), random.standard_normal((64, 96), dtype=np.float32)
    c = np.zeros((128, 96), np.float32)
    load_compiled_module(str(BUILT / "matmul"))["matmul"](*map(torch.from_numpy, (a, b, c)))
    return agrees("matmul", a @ b, c)


def agrees(name: str, expected: np.ndarray, actual: np.ndarray, tolerance: float = 1e-4) -> bool:
    error = np.abs(expected - actual).max()
    fine = bool(error <= tolerance)  # false for a NaN too
    print(f"{name}: largest error {error:.1e}, {'fine' if fine else f'MORE THAN {tolerance:.0e}'}")
    return fine


if __name__ == "__main__":
    sys.exit(main())
