"""Loads the kernels of this folder on a GPU and compares them with torch.

hidet-build --platforms="cuda --arch=sm_80" //examples/cuda:all && python examples/cuda/check.py hidet-out/cuda-sm_80
"""

import sys
from pathlib import Path

import torch
from hidet.runtime import load_compiled_module


def main() -> int:
    if len(sys.argv) != 2:
        print("say where they were built: hidet-out/cuda-sm_80")
        return 2
    if not torch.cuda.is_available():
        print("there is no GPU here that torch can use; the kernels were built all the same")
        return 2
    kernels = load_compiled_module(str(Path(sys.argv[1]).resolve() / "examples" / "cuda" / "kernels"))
    torch.manual_seed(0)
    return 0 if all([check_saxpy(kernels), check_layer_norm(kernels), check_matmul(kernels)]) else 1


def check_saxpy(kernels) -> bool:
    x, y = torch.randn(2, 100000, device="cuda")
    expected = 2.5 * x + y
    kernels["saxpy"](2.5, x, y)
    return agrees("saxpy", expected, y, 1e-5)


def check_layer_norm(kernels) -> bool:
    x = torch.randn(64, 1024, device="cuda")
    y = torch.empty_like(x)
    kernels["layer_norm"](x, y)
    return agrees("layer_norm", torch.nn.functional.layer_norm(x, (1024,)), y, 1e-4)


def check_matmul(kernels) -> bool:
    a = torch.randn(256, 128, device="cuda", dtype=torch.float16)
    b = torch.randn(128, 256, device="cuda", dtype=torch.float16)
    c = torch.empty(256, 256, device="cuda", dtype=torch.float16)
    kernels["matmul"](a, b, c)
    return agrees("matmul", a.float() @ b.float(), c.float(), 0.1)  # sums of 128 products in half precision


def agrees(name: str, expected: torch.Tensor, actual: torch.Tensor, tolerance: float) -> bool:
    torch.cuda.synchronize()
    error = float((expected - actual).abs().max())
    fine = error <= tolerance  # false for a NaN too
    print(f"{name}: largest error {error:.1e}, {'fine' if fine else f'MORE THAN {tolerance:.0e}'}")
    return fine


if __name__ == "__main__":
    sys.exit(main())
