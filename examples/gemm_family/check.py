"""Loads the library of this folder and compares each of its functions with numpy.

hidet-build //examples/gemm_family:gemms && python examples/gemm_family/check.py
"""

import sys
from pathlib import Path

import numpy as np
import torch
from hidet.runtime import load_compiled_module

BUILT = Path(__file__).resolve().parents[2] / "hidet-bin" / "examples" / "gemm_family" / "gemms"


def main() -> int:
    library = load_compiled_module(str(BUILT))
    random = np.random.default_rng(0)
    results = []
    for name, function in sorted(library.functions.items()):
        m, n, k, dtype = problem(name)
        a, b = (random.integers(-9, 10, shape).astype(dtype) for shape in ((m, k), (k, n)))
        c = np.zeros((m, n), dtype)
        function(*map(torch.from_numpy, (a, b, c)))
        # Small whole numbers: every sum is exact, in whatever order it is taken.
        results.append(agrees(name, a @ b, c, tolerance=0))
    return 0 if all(results) else 1


def problem(name: str) -> tuple[int, int, int, str]:
    """m, n, k and the type of a kernel: matmul_x86_160, gemm_tuned, gemm_float64_16."""
    kind, detail, *_ = name.removeprefix("matmul_").split("_")
    if kind == "x86":
        return int(detail), int(detail), 64, "float32"
    return 96, 192, 64, "float32" if detail == "tuned" else detail


def agrees(name: str, expected: np.ndarray, actual: np.ndarray, tolerance: float = 1e-4) -> bool:
    error = np.abs(expected - actual).max()
    fine = bool(error <= tolerance)  # false for a NaN too
    print(f"{name}: largest error {error:.1e}, {'fine' if fine else f'MORE THAN {tolerance:.0e}'}")
    return fine


if __name__ == "__main__":
    sys.exit(main())
