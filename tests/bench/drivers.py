"""Our drivers beside hidet's: 48 CPU modules and 8 CUDA modules that lower slowly, cold, then again unchanged.

    python -m tests.bench.drivers [--rounds 3] [--cpu 48] [--cuda 8]

Each round runs every side once, in turn, each in a new process with an empty home: the import of hidet, the making of
the modules, and the build. The sides: `ours` is hidet_build.drivers.build_ir_module_batch; `pool` is hidet's
build_ir_module in as many forked processes as this machine has cores, which is how many workers ours takes; `batch` is
hidet's build_ir_module_batch, which needs as many workers as modules, or it fails. hidet refuses to compile for CUDA
where it finds no libcuda, and asks devices before it forks: its sides are given an empty library of that name, and the
second is left out. Then two claims are checked: a second run of ours starts no compiler, and a changed module in a used
folder gives its own result (with hidet's it does not).

On two idle cores a round takes about three minutes; `--rounds 1 --cpu 8 --cuda 0`, with the claims, about one and a
half. Exit code 0 when both claims hold, 1 when one does not or a side failed. Without nvcc the CUDA modules are left
out.

No `from __future__ import annotations` here: hidet.script reads the annotations as they are written.
"""

import argparse
import functools
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SIDES = ("ours", "pool", "batch")
TARGETS = {"cpu": "cpu --arch=x86-64-v3", "cuda": "cuda --arch=sm_80 --cpu_arch=x86-64-v3"}


class Run(NamedTuple):
    """One side once: seconds of the wall clock and of the processors, and how many compilers were started."""

    wall: float
    cpu: float
    compilers: int


def main() -> int:
    """Measure, print the table and the claims; 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.drivers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each side is run (3)")
    parser.add_argument("--cpu", type=int, default=48, metavar="MODULES", help="how many for the CPU (48)")
    parser.add_argument("--cuda", type=int, default=8, metavar="MODULES", help="how many for CUDA; 0: none (8)")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=list(TARGETS), help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--factor", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        build(options.side, options.kind, options.count, options.factor, options.out)
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-drivers-") as base:
        machine = Machine(Path(base))
        for kind, count in (("cpu", options.cpu), ("cuda", options.cuda)):
            if count and (kind == "cpu" or shutil.which("nvcc")):
                compare(machine, kind, count, options.rounds)
        return 0 if claims(machine) else 1


class Machine:
    """A place to run sides in: compilers that are counted, a libcuda with nothing in it, a home for each run."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._log = base / "compilers"
        (base / "bin").mkdir()
        (base / "stub").mkdir()
        stub = ["g++", "-shared", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o"]
        subprocess.run([*stub, base / "stub" / "libcuda.so"], check=True)
        for name in ("g++", "nvcc"):
            real = shutil.which(name)
            if real:
                script = base / "bin" / name
                # What a driver asks a compiler to learn about it is no compile.
                counted = f'*" -o lib."*|*"/lib."*|*" -o module.o"*) echo {name} >>{self._log};;'
                script.write_text(f'#!/bin/sh\ncase " $* " in {counted} esac\nexec {real} "$@"\n')
                script.chmod(0o755)

    def run(self, side: str, kind: str, count: int, name: str, factor: float = 1.0) -> Run:
        """Run one side; `name` names its home and its output folders."""
        home = self.base / name
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": f"{self.base / 'bin'}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "PYTHONPATH": os.getcwd(),
        }
        if side != "ours" and kind == "cuda":
            environment["LD_LIBRARY_PATH"] = str(self.base / "stub")
        self._log.write_text("")
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, "-m", "tests.bench.drivers", "--side", side, "--kind", kind, "--count", str(count)]
        command += ["--factor", str(factor), "--out", str(home / "out")]
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{side} {kind} failed:\n{done.stderr.decode()[-2000:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Run(wall, cpu, len(self._log.read_text().splitlines()))


def compare(machine: Machine, kind: str, count: int, rounds: int) -> None:
    """Run the sides in turn and print their medians, and their ratios to ours."""
    found: dict[str, list[Run]] = {side: [] for side in (*SIDES, "ours again")}
    for number in range(rounds):
        for side in SIDES:
            name = f"{kind}-{number}-{side}"
            found[side].append(machine.run(side, kind, count, name))
            if side == "ours":
                found["ours again"].append(machine.run(side, kind, count, name))
            shutil.rmtree(machine.base / name)
    print(f"\n{count} {kind} modules, {rounds} rounds, medians; {os.cpu_count()} cores")
    print(f"{'side':<12}{'wall s':>9}{'CPU s':>9}{'compilers':>11}{'wall, ours/side':>17}{'CPU, ours/side':>16}")
    ours = found["ours"]
    for side, runs in found.items():
        wall, cpu = (statistics.median(getattr(run, figure) for run in runs) for figure in ("wall", "cpu"))
        # Of one round each, for the machine's speed drifts.
        ratios = [
            statistics.median(getattr(own, figure) / getattr(run, figure) for own, run in zip(ours, runs, strict=True))
            for figure in ("wall", "cpu")
        ]
        print(f"{side:<12}{wall:>9.1f}{cpu:>9.1f}{runs[-1].compilers:>11}{ratios[0]:>17.2f}{ratios[1]:>16.2f}")


def claims(machine: Machine) -> bool:
    """Check that nothing is compiled twice and that a used folder does not go stale."""
    machine.run("ours", "cpu", 4, "claims")
    again = machine.run("ours", "cpu", 4, "claims")
    held = again.compilers == 0
    print(f"\nours, again unchanged: {again.compilers} compilers started")
    for side in ("ours", "pool"):
        machine.run(side, "cpu", 1, f"stale-{side}", factor=2.0)
        machine.run(side, "cpu", 1, f"stale-{side}", factor=3.0)
        result = called(machine.base / f"stale-{side}" / "out" / "0")
        print(f"{side}: a module that multiplies by 2, changed to 3, in the same folder: 1 becomes {result:g}")
        held = held and (side != "ours" or result == 3.0)
    return held


def called(folder: Path) -> float:
    """What the first module's function makes of 1."""
    code = (
        "import hidet, sys, torch\n"
        "x = torch.ones(64)\n"
        "hidet.runtime.load_compiled_module(sys.argv[1])['scale_0'](x)\n"
        "print(float(x[0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, check=True)
    return float(done.stdout)


def build(side: str, kind: str, count: int, factor: float, out: str) -> None:
    """Make the modules and build them, in this process: what is measured."""
    import hidet  # seconds, which count

    if side != "ours":
        hidet.drivers.utils.lazy_initialize_cuda._initialized = True
    hidet.option.cuda.arch("sm_80")
    hidet.option.cpu.arch("x86-64-v3")
    make = {"cpu": cpu_module, "cuda": cuda_module}[kind]
    modules = [make(number, factor) for number in range(count)]
    folders = [os.path.join(out, str(number)) for number in range(count)]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    output_kind = ".so" if kind == "cpu" else ".o"
    if side == "ours":
        from hidet_build.drivers import build_ir_module_batch

        build_ir_module_batch(modules, folders, output_kind, TARGETS[kind])
    elif side == "batch":
        hidet.option.num_local_workers(count)
        hidet.drivers.build_ir_module_batch(modules, folders, output_kind, TARGETS[kind])
    else:
        in_pool(functools.partial(hidet.drivers.build_ir_module, output_kind=output_kind), modules, folders, kind)


def in_pool(build_one: Callable[..., None], modules: Sequence[Any], folders: Sequence[str], kind: str) -> None:
    """Build each module in one of as many forked processes as there are cores."""
    context = multiprocessing.get_context("fork")
    waiting = multiprocessing.Value("i", 0)

    def work() -> None:
        while True:
            with waiting.get_lock():
                number = waiting.value
                waiting.value += 1
            if number >= len(modules):
                return
            build_one(modules[number], folders[number], target=TARGETS[kind])

    # A closure cannot be sent to a pool, and need not be: a fork has it.
    workers = [context.Process(target=work) for _ in range(os.cpu_count() or 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed")


def cpu_module(number: int, factor: float) -> Any:
    """A small module of its own: the constants and the size differ, so no two have the same source."""
    import hidet
    from hidet.lang import attrs
    from hidet.lang.types import f32

    size = 64 + number
    scale = factor * (number + 1)
    name = f"scale_{number}"
    with hidet.script_module() as module:

        @hidet.script
        def kernel(x: f32[size]):
            attrs.func_kind = "public"
            attrs.func_name = name
            for i in range(size):
                x[i] = x[i] * scale

    return module.ir_module()


def cuda_module(number: int, _: float) -> Any:
    """A matrix multiplication for tensor cores, whose lowering takes seconds."""
    from hidet.graph.ops.matmul.cuda_batch_matmul import BatchMatmulTask
    from hidet.ir.compute import tensor_input

    size = 256 + 64 * number
    a, b = (tensor_input(name, "float16", [1, size, size]) for name in "ab")
    with tempfile.TemporaryDirectory() as folder:
        (module,) = BatchMatmulTask(a, b, "mma").implement("cuda", folder)
    return module


if __name__ == "__main__":
    sys.exit(main())
