"""Loads the kernel of this folder and compares it with numpy.

hidet-build //examples/own_rule:gelu && python examples/own_rule/check.py
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
from hidet.runtime import load_compiled_module

BUILT = Path(__file__).resolve().parents[2] / "hidet-bin" / "examples" / "own_rule" / "gelu"
# |GELU''| is at most 0.8, so a line over an interval of 12/512 is off by at most 0.8 / 8 * (12/512)^2 = 5.5e-5.
TOLERANCE = 6e-5


def main() -> int:
    x = np.linspace(-10, 10, 100_001, dtype=np.float32)
    y = np.zeros_like(x)
    load_compiled_module(str(BUILT))["gelu"](x.size, torch.from_numpy(x), torch.from_numpy(y))
    expected = np.array([0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()])
    return 0 if agrees("gelu", expected, y, TOLERANCE) else 1


def agrees(name: str, expected: np.ndarray, actual: np.ndarray, tolerance: float = 1e-4) -> bool:
    error = np.abs(expected - actual).max()
    fine = bool(error <= tolerance)  # false for a NaN too
    print(f"{name}: largest error {error:.1e}, {'fine' if fine else f'MORE THAN {tolerance:.0e}'}")
    return fine


if __name__ == "__main__":
    sys.exit(main())
