"""Loads what this folder makes and compares each of its functions with numpy.

hidet-build //examples/attention:all && python examples/attention/check.py
"""

import sys
from pathlib import Path

import numpy as np
import torch
from hidet.runtime import load_compiled_module

from hidet_build.drivers import load_task

BUILT = Path(__file__).resolve().parents[2] / "hidet-bin" / "examples" / "attention"
EPSILON = 1e-5


def main() -> int:
    library = load_compiled_module(str(BUILT / "transformer"))
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 4, 48, 32), dtype=np.float32)
    narrow, wide = (random.standard_normal((48, columns), dtype=np.float32) for columns in (128, 1000))
    cases = {
        "attention": ((q, k, v), attention(q, k, v, np.zeros((48, 48)))),
        "causal_attention": ((q, k, v), attention(q, k, v, np.triu(np.full((48, 48), -np.inf), 1))),
        "rms_norm": ((narrow,), narrow / np.sqrt((narrow**2).mean(1, keepdims=True) + EPSILON)),
        "layer_norm": ((narrow,), layer_norm(narrow)),
        "softmax": ((wide,), softmax(wide)),
    }
    results = []
    for name, (inputs, expected) in cases.items():
        actual = np.zeros(expected.shape, np.float32)
        library[name](*map(torch.from_numpy, (*inputs, actual)))
        results.append(agrees(name, expected, actual))
    # A task makes its output itself.
    tuned = load_task(str(BUILT / "tuned_softmax"))(torch.from_numpy(wide)).torch().numpy()
    results.append(agrees("tuned_softmax", softmax(wide), tuned))
    return 0 if all(results) else 1


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]) + mask) @ v


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPSILON)


def agrees(name: str, expected: np.ndarray, actual: np.ndarray, tolerance: float = 1e-4) -> bool:
    error = np.abs(expected - actual).max()
    fine = bool(error <= tolerance)  # false for a NaN too
    print(f"{name}: largest error {error:.1e}, {'fine' if fine else f'MORE THAN {tolerance:.0e}'}")
    return fine


if __name__ == "__main__":
    sys.exit(main())
