"""The drivers in all kinds of callers: pools, notebooks, limits, no fork; everything else stays as it was."""

import gc
import linecache
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hidet
hidet = pytest.importorskip("hidet")
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from hidet.ir.target import Target  # noqa: E402
from hidet.lang import attrs, grid  # noqa: E402
from hidet.lang.types import f32  # noqa: E402
from hidet.runtime import load_compiled_module  # noqa: E402

from hidet_build import drivers, jit  # noqa: E402
from hidet_build.drivers import build_ir_module, build_ir_module_batch, build_task  # noqa: E402
from hidet_build.errors import BuildError, ErrorGroup, UsageError  # noqa: E402
from tests.ir_modules import calling_header  # noqa: E402
from tests.test_drivers import cache, result, scale, symbol  # noqa: E402, F401

ROOT = Path(__file__).parents[1]

POOL = """
    import multiprocessing, sys
    from hidet_build.drivers import build_ir_module
    from tests.test_drivers import scale

    def build(number):
        build_ir_module(scale(float(number)), f"{sys.argv[1]}/{number}", "cpu")
        return number

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print(pool.map(build, [2, 3]))
    """


def test_spawned_pool(tmp_path: Path) -> None:
    """Each process of a pool builds."""
    (tmp_path / "pool.py").write_text(textwrap.dedent(POOL))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "pool.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "[2, 3]\n" == done.stdout, done.stderr
    assert (2.0, 3.0) == (result(tmp_path / "2"), result(tmp_path / "3"))


CELL = """
import hidet
from hidet.lang import attrs
from hidet.lang.types import f32

with hidet.script_module() as script:

    @hidet.script
    def scale(x: f32[16]):
        attrs.func_kind = "public"
        for i in range(16):
            x[i] = x[i] * 7.0

build_ir_module(script.ir_module(), folder, "cpu")
"""


def test_cell_of_a_notebook(tmp_path: Path) -> None:
    """A cell: code that is in no file, run under a made-up name that `linecache` knows."""
    name = "<ipython-input-1>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    exec(compile(CELL, name, "exec"), {"build_ir_module": build_ir_module, "folder": str(tmp_path / "out")})

    assert 7.0 == result(tmp_path / "out")


def parallel() -> Any:
    """A module whose function runs on all cores, by OpenMP."""
    with hidet.script_module() as module:

        @hidet.script
        def double(x: f32[4096]):
            attrs.func_kind = "cpu_kernel"
            for i in grid(4096, "p"):
                x[i] = x[i] * 2.0

    return module.ir_module()


def test_after_openmp(tmp_path: Path) -> None:
    """In a process that has run OpenMP kernels and torch's threads, tasks are implemented and modules lowered."""
    build_ir_module(parallel(), str(tmp_path / "one"), "cpu")
    x = torch.ones(4096)
    load_compiled_module(str(tmp_path / "one"))["launch"](x)
    product = torch.ones(600, 600) @ torch.ones(600, 600)
    with hidet.option.context():
        hidet.option.cache_dir(str(tmp_path / "hidet"))
        compiled = build_task(hidet.ops.matmul_x86(symbol(64, 64), symbol(64, 64)).op.task, "cpu")

    assert (2.0, 600.0) == (float(x[0]), float(product[0, 0]))
    assert compiled is not None


def test_limits(tmp_path: Path) -> None:
    """Few open files and a small stack are enough."""
    program = (
        "import sys; from hidet_build.drivers import build_ir_module_batch; from tests.test_drivers import scale;"
        'build_ir_module_batch([scale(2.0), scale(3.0)], [sys.argv[1] + "/0", sys.argv[1] + "/1"], ".so", "cpu")'
    )
    command = ["sh", "-c", 'ulimit -n 64 && ulimit -s 8192 && ulimit -c 0 && exec "$@"', "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stderr
    assert (2.0, 3.0) == (result(tmp_path / "0"), result(tmp_path / "1"))


def test_children_collected_by_somebody_else(tmp_path: Path) -> None:
    """A process that ignores SIGCHLD cannot learn how a compiler ended: the error says what to change."""
    program = (
        "import signal, sys; from hidet_build.drivers import build_ir_module; from tests.test_drivers import scale;"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN); module = scale(2.0)\n"
        'try: build_ir_module(module, sys.argv[1], "cpu")\n'
        "except Exception as error: print(type(error).__name__, error.render())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert "SIGCHLD must not be ignored" in done.stdout, done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def no_fork(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A process with a CUDA context, or what torch says of one; each fork is written down."""
    forks: list[int] = []
    fork = os.fork

    def counted() -> int:
        forks.append(1)
        return fork()

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "fork", counted)
    return forks


def process_state(*modules: Any) -> tuple[object, ...]:
    """What a call must leave as it was."""
    options = {name: hidet.option.get_option(name) for name in hidet.option.OptionRegistry.registered_options}
    passes = [hidet.transforms.instantiate_symbols, hidet.transforms.import_primitive_functions]
    return (
        *(str(module) for module in modules),
        options,
        [vars(one).get("set") for one in passes],
        [sys.modules[f"hidet.{name}"].available for name in ("cuda", "cuda.device", "hip", "hip.device")],
        random.getstate(),
        str(np.random.get_state()),
        torch.random.get_rng_state().tolist(),
        os.getcwd(),
        sys.getrecursionlimit(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        dict(os.environ),
    )


def test_everything_stays(tmp_path: Path) -> None:
    """Modules, options, random numbers, signal handlers, working folder: all as before."""
    modules = [scale(2.0), parallel()]
    before = process_state(*modules)
    build_ir_module_batch(modules, [str(tmp_path / "0"), str(tmp_path / "1")], ".so", "cpu --arch=x86-64")

    assert before == process_state(*modules)


def test_everything_stays_without_a_fork(tmp_path: Path, no_fork: list[int]) -> None:
    """Where a fork is not safe a deep copy is lowered; the same holds, and the source is the same."""
    module = hidet.ops.matmul_x86(symbol(64, 64), symbol(64, 64)).op.task.implement("cpu", str(tmp_path))[0]
    before = process_state(module)
    build_ir_module(module, str(tmp_path / "copied"), "cpu --arch=x86-64-v3")
    after, forks = process_state(module), list(no_fork)
    torch.cuda.is_initialized = lambda: False
    build_ir_module(module, str(tmp_path / "forked"), "cpu --arch=x86-64-v3")

    assert before == after
    assert [] == forks
    assert (tmp_path / "copied" / "source.cc").read_bytes() == (tmp_path / "forked" / "source.cc").read_bytes()


def test_task_without_a_fork(tmp_path: Path, no_fork: list[int]) -> None:
    """A task too."""
    task = hidet.ops.layer_norm(symbol(8, 64)).op.task
    with hidet.option.context():
        hidet.option.cache_dir(str(tmp_path / "hidet"))
        before = process_state(task)
        compiled = build_task(task, "cpu")
        after = process_state(task)
    x = torch.randn(8, 64)

    assert [] == no_fork
    assert before == after
    torch.testing.assert_close(compiled(x).torch(), torch.nn.functional.layer_norm(x, (64,)), atol=1e-5, rtol=1e-5)


def test_more_modules_than_workers(tmp_path: Path) -> None:
    """hidet groups modules then, fills fewer folders and fails on a CPU; here each has its folder."""
    folders = [str(tmp_path / str(number)) for number in range(7)]
    with hidet.option.context():
        hidet.option.num_local_workers(2)
        returned = build_ir_module_batch([scale(float(number)) for number in range(7)], folders, ".so", "cpu")

    assert folders == returned
    assert [float(number) for number in range(7)] == [result(Path(folder)) for folder in folders]


def test_all_kinds_of_failures_come_together(tmp_path: Path) -> None:
    """A module that cannot be lowered and one that cannot be compiled: both are named, and the third is built."""
    unlowered, uncompiled = scale(1.0), scale(2.0)
    unlowered.functions["scale"].body = None
    uncompiled.include_headers.append(["no/such/header.h"])
    folders = [str(tmp_path / name) for name in "abc"]
    with pytest.raises(ErrorGroup) as raised:
        build_ir_module_batch([unlowered, uncompiled, scale(3.0)], folders, ".so", "cpu")

    assert [f"module 0, scale ({folders[0]})", f"module 1, scale ({folders[1]})"] == [
        error.message.partition(":")[0] for error in raised.value.errors
    ]
    assert not (tmp_path / "a" / "lib.so").exists()
    assert 3.0 == result(tmp_path / "c")


def test_failed_batch_does_not_poison_hidets_pool(tmp_path: Path) -> None:
    """After a failed job hidet's pool refuses to work; after a failed batch of ours it works, and so do we."""
    from hidet.utils.multiprocess import parallel_imap_2ndlevel

    broken = [scale(1.0), scale(2.0)]
    for module in broken:
        module.include_headers.append(["no/such/header.h"])
    folders = [str(tmp_path / "0"), str(tmp_path / "1")]
    with pytest.raises(BuildError):
        build_ir_module_batch(broken, folders, ".so", "cpu")
    build_ir_module_batch([scale(3.0), scale(4.0)], folders, ".so", "cpu")
    numbers = list(parallel_imap_2ndlevel(abs, [-1, -2]))

    assert (3.0, 4.0, [1, 2]) == (result(tmp_path / "0"), result(tmp_path / "1"), numbers)


def test_target_as_object(tmp_path: Path) -> None:
    """A Target of hidet's is as good as its text."""
    build_ir_module(scale(2.0), str(tmp_path / "out"), Target.from_string("cpu --arch=x86-64"))

    assert "-march=x86-64 " in (tmp_path / "out" / "compile.sh").read_text()


def test_hip(tmp_path: Path) -> None:
    """There is no hipcc: the error says what the target is, and that it cannot be built."""
    with pytest.raises(BuildError) as raised:
        build_ir_module(scale(2.0), str(tmp_path / "out"), "hip")

    assert "hip" in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_output_kind(tmp_path: Path) -> None:
    """Another kind of output is the error hidet raises, and names those there are."""
    with pytest.raises(ValueError, match=r"Invalid output kind: \.a: expected \.so or \.o"):
        build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu", ".a")


def test_no_child_is_left(tmp_path: Path) -> None:
    """A call leaves no child process, no thread and no open file behind."""
    build_ir_module(scale(2.0), str(tmp_path / "warm"), "cpu")

    def left() -> tuple[int, int, list[str]]:
        gc.collect()
        threads = os.listdir("/proc/self/task")
        children = [Path(f"/proc/self/task/{thread}/children").read_text() for thread in threads]
        return len(os.listdir("/proc/self/fd")), len(threads), sorted(" ".join(children).split())

    before = left()
    build_ir_module(scale(3.0), str(tmp_path / "out"), "cpu")

    assert before == left()


def written(header: Path, value: int) -> Path:
    """A header whose function returns this number."""
    header.parent.mkdir(exist_ok=True)
    header.write_text(f"#pragma once\nstatic inline float own_value() {{ return {value}.0f; }}\n")
    return header


def test_header_by_its_path_counts(tmp_path: Path) -> None:
    """A header that a module names by an absolute path is an input: its edit counts, without `force` too."""
    results = []
    for number in range(7):  # more often than it takes until headers are precompiled
        header = written(tmp_path / "own.h", number)
        build_ir_module(calling_header(str(header)), str(tmp_path / str(number)), "cpu", force=number > 1)
        results.append(result(tmp_path / str(number), "own"))

    assert [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0] == results


def test_modules_that_differ_in_given_files_only(tmp_path: Path) -> None:
    """IRModule.build: modules of one source with other headers are two, also while the first is loaded."""
    results, kept = [], []
    with hidet.option.context(), jit.enabled():
        hidet.option.cache_dir(str(tmp_path / "hidet"))
        for value in (2, 3):
            header = written(tmp_path / str(value) / "own.h", value)
            kept.append(calling_header(header.name, str(header.parent)).build())
            x = torch.ones(16)
            kept[-1]["own"](x)
            results.append(float(x[0]))

    assert [2.0, 3.0] == results


def test_one_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Of a batch, the others are written all the same, and the error names the folder."""
    (tmp_path / "1").write_text("a file")
    folders = [str(tmp_path / str(number)) for number in range(3)]
    with pytest.raises(BuildError) as failure:
        build_ir_module_batch([scale(2.0), scale(3.0), scale(4.0)], folders, ".so", "cpu")

    assert folders[1] in str(failure.value)
    assert "--output_base" not in str(failure.value)
    assert 2.0 == result(tmp_path / "0")
    assert 4.0 == result(tmp_path / "2")


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "{}/file is a file"),
        ("file/inside", "{}/file is a file"),
        ("link", "{}/link is a link to nothing"),
        ("a" * 300, "File name too long"),
    ],
)
def test_folder_that_is_none(tmp_path: Path, place: str, reason: str) -> None:
    """What stands in the way of a folder is named as what it is."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    folder = str(tmp_path / place)
    with pytest.raises(BuildError) as failure:
        build_ir_module(scale(2.0), folder, "cpu")

    expected = f"the module scale ({folder}): cannot write to {folder}: {reason.format(tmp_path)}"
    assert expected == failure.value.render()


@pytest.mark.parametrize("folder", ["", "a\0b", None])
def test_what_is_no_path(folder: Any) -> None:
    """An empty text would mean the working folder, and nobody means that."""
    with pytest.raises(UsageError, match="path of a folder"):
        build_ir_module(scale(2.0), folder, "cpu")


def test_folder_as_path(tmp_path: Path) -> None:
    """A Path is as good as its text."""
    build_ir_module_batch([scale(2.0)], [tmp_path / "out"], ".so", "cpu")

    assert 2.0 == result(tmp_path / "out")


def test_two_modules_for_one_folder(tmp_path: Path) -> None:
    """However the folder is written: nothing is built, for one would take the place of the other."""
    (tmp_path / "link").symlink_to(".")
    folders = [str(tmp_path / "out"), str(tmp_path / "link" / "x" / ".." / "out")]
    with pytest.raises(UsageError) as raised:
        build_ir_module_batch([scale(2.0, "two"), scale(3.0, "three")], folders, ".so", "cpu")

    assert f"module 0, two ({folders[0]}) and module 1, three ({folders[1]}) would be built" in raised.value.message
    assert not (tmp_path / "out").exists()


def test_two_functions_of_one_name(tmp_path: Path) -> None:
    """Two modules of one library have one function: the error is in the words of the caller, and others are built."""
    folders = [str(tmp_path / name) for name in "ab"]
    with pytest.raises(BuildError) as raised:
        build_ir_module_batch([[scale(2.0), scale(3.0)], scale(4.0)], folders, ".so", "cpu")

    assert (
        f"module 0, scale ({folders[0]}): module 0 and module 1 of the list both have a public function 'scale'\n"
        "hint: give one of them another attrs.func_name"
    ) == raised.value.render()
    assert 4.0 == result(tmp_path / "b")


def on_gpu() -> Any:
    """A module with a kernel for CUDA."""
    with hidet.script_module() as module:

        @hidet.script
        def clear(x: f32[32]):
            attrs.func_kind = "cuda_kernel"
            attrs.cuda.block_dim = 32
            attrs.cuda.grid_dim = 1
            x[hidet.lang.cuda.threadIdx.x] = 0.0

    return module.ir_module()


def test_gpu_kernel_for_a_cpu(tmp_path: Path) -> None:
    """The function and the target are named, before hidet gets lost in its code generator."""
    with pytest.raises(UsageError) as raised:
        build_ir_module(on_gpu(), str(tmp_path / "out"), "cpu --arch=x86-64-v3")

    assert (
        f"the module clear ({tmp_path}/out): clear is a cuda_kernel, and the target is cpu --arch=x86-64-v3"
    ) == raised.value.message


@pytest.mark.parametrize("target", [None, 3])
def test_what_is_no_target(tmp_path: Path, target: Any) -> None:
    """Neither of a module nor of a task."""
    task = hidet.ops.layer_norm(symbol(8, 64)).op.task
    for build in (lambda: build_ir_module(scale(2.0), str(tmp_path / "out"), target), lambda: build_task(task, target)):
        with pytest.raises(UsageError, match="expected a target like"):
            build()


def test_what_is_no_task() -> None:
    """Something else is an error of one line."""
    with pytest.raises(UsageError, match="expected a hidet Task, not int"):
        build_task(42, "cpu")  # type: ignore[arg-type]


def test_module_says_what_is_for_callers() -> None:
    """`help` and `import *` show the functions, and not what they are made with."""
    assert {"build_and_load", "build_ir_module", "build_ir_module_batch", "build_task", "load_task"} == set(
        drivers.__all__
    )


SLOW = """
    import sys
    from hidet_build.drivers import build_ir_module
    from tests.test_drivers import scale

    build_ir_module(scale(2.0), sys.argv[1], "cpu --arch=x86-64-v3")
    """


@pytest.mark.parametrize("quiet", [False, True])
def test_long_work_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    """A compiler that takes three seconds makes a line on standard error, unless the caller wants none."""
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) sleep 3;; esac\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("HIDET_BUILD_QUIET", str(int(quiet)))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SLOW), str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.partition(":")[2] for line in done.stderr.splitlines() if line.startswith("hidet-build:")]

    assert ([] if quiet else [" the module scale for cpu --arch=x86-64-v3"]) == [
        line.partition(":")[0] for line in lines[:1]
    ], done.stderr


@pytest.mark.parametrize("given", [[], "text", [3]])
def test_what_is_no_module(tmp_path: Path, given: Any) -> None:
    """An empty list, or something else, is an error of one line."""
    with pytest.raises(BuildError, match=r"no module to build|expected an IRModule"):
        build_ir_module(given, str(tmp_path / "out"), "cpu")


def test_store_that_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a store nothing is kept, and everything is built."""
    monkeypatch.setenv("HIDET_BUILD_DISK_CACHE", "")
    build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu")

    assert 2.0 == result(tmp_path / "out")
    assert not list((tmp_path / "cache" / "hidet-build").glob("ac/*"))
