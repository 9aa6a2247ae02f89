"""The drivers: hidet's own functions on our engine. Each mistake of hidet's drivers is a test of what is right."""

import os
import pickle
import random
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hidet
hidet = pytest.importorskip("hidet")
torch = pytest.importorskip("torch")

from hidet.lang import attrs  # noqa: E402
from hidet.lang.types import f32  # noqa: E402
from hidet.runtime import load_compiled_module, load_compiled_task  # noqa: E402

from hidet_build.drivers import build_ir_module, build_ir_module_batch, build_task  # noqa: E402
from hidet_build.errors import BuildError, ErrorGroup  # noqa: E402
from hidet_build.worker import live  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def scale(factor: float, name: str = "scale") -> Any:
    """A module with one public function that multiplies 16 numbers in place."""
    with hidet.script_module() as module:

        @hidet.script
        def function(x: f32[16]):
            attrs.func_kind = "public"
            attrs.func_name = name
            for i in range(16):
                x[i] = x[i] * factor

    return module.ir_module()


def result(folder: Path, name: str = "scale") -> float:
    """What the built function makes of one."""
    x = torch.ones(16)
    load_compiled_module(str(folder))[name](x)
    return float(x[0])


def compiles(cache: Path) -> int:
    """How many results the store has: each lowering, compile and link adds one."""
    return sum(1 for path in (cache / "hidet-build" / "ac").rglob("*") if path.is_file())


def test_folder_holds_what_hidet_leaves(tmp_path: Path) -> None:
    """The output folder has the library, its types, the source, the command line and the lock file."""
    build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu")

    assert {".lock", "compile.sh", "func_types.pickle", "lib.so", "source.cc"} == set(os.listdir(tmp_path / "out"))
    assert 2.0 == result(tmp_path / "out")


def test_changed_module_is_rebuilt(tmp_path: Path) -> None:
    """hidet keeps the library that is there; here a changed module replaces it."""
    build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu")
    build_ir_module(scale(3.0), str(tmp_path / "out"), "cpu")

    assert 3.0 == result(tmp_path / "out")


def test_changed_architecture_is_rebuilt(tmp_path: Path) -> None:
    """Another target in the same folder compiles anew."""
    build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu --arch=x86-64-v3")
    before = (tmp_path / "out" / "compile.sh").read_text()
    build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu --arch=x86-64")

    assert "-march=x86-64-v3" in before
    assert "-march=x86-64 " in (tmp_path / "out" / "compile.sh").read_text()


def test_unchanged_module_compiles_nothing(tmp_path: Path, cache: Path) -> None:
    """The second call finds lowering, compile and link in the store, and does not touch the library."""
    build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu")
    before = compiles(cache), os.stat(tmp_path / "out" / "lib.so").st_ino
    build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu")

    assert before == (compiles(cache), os.stat(tmp_path / "out" / "lib.so").st_ino)
    assert 3 == before[0]


def test_options_and_module_stay(tmp_path: Path) -> None:
    """The architecture does not leak into hidet's options, and the module is not lowered in place."""
    module = scale(2.0)
    arch, text = hidet.option.get_option("cpu.arch"), str(module)
    build_ir_module(module, str(tmp_path / "out"), "cpu --arch=x86-64")

    assert (arch, text) == (hidet.option.get_option("cpu.arch"), str(module))


def test_broken_files_are_replaced(tmp_path: Path) -> None:
    """A library of garbage and a torn pickle are not taken for results."""
    out = tmp_path / "out"
    build_ir_module(scale(2.0), str(out), "cpu")
    (out / "lib.so").write_bytes(b"garbage")
    (out / "func_types.pickle").write_bytes((out / "func_types.pickle").read_bytes()[:10])
    build_ir_module(scale(2.0), str(out), "cpu")

    assert 2.0 == result(out)


def test_object_file(tmp_path: Path) -> None:
    """`.o` stops at the object."""
    build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu", output_kind=".o")

    assert b"\x7fELF" == (tmp_path / "out" / "lib.o").read_bytes()[:4]
    assert not (tmp_path / "out" / "lib.so").exists()


def test_sequence_makes_one_library(tmp_path: Path) -> None:
    """Several modules make one `.so` that has the functions of all, and the caller's list stays as it is."""
    modules = [scale(5.0, "five"), scale(6.0, "six")]
    given = list(modules)
    build_ir_module(modules, str(tmp_path / "out"), "cpu")

    types = pickle.loads((tmp_path / "out" / "func_types.pickle").read_bytes())
    assert (["five", "six"], given) == (list(types), modules)
    assert (5.0, 6.0) == (result(tmp_path / "out", "five"), result(tmp_path / "out", "six"))


def test_two_lowerings_of_one_object(tmp_path: Path) -> None:
    """Building the same module object twice gives the same source."""
    module = hidet.ops.matmul_x86(
        hidet.symbol([64, 64], device="cpu"), hidet.symbol([64, 64], device="cpu")
    ).op.task.implement("cpu", str(tmp_path))[0]
    build_ir_module(module, str(tmp_path / "one"), "cpu")
    build_ir_module(module, str(tmp_path / "two"), "cpu")

    assert (tmp_path / "one" / "source.cc").read_bytes() == (tmp_path / "two" / "source.cc").read_bytes()


def test_batch_keeps_order_and_random_state(tmp_path: Path) -> None:
    """The i-th folder holds the i-th module; the list and the global random numbers are as they were."""
    modules = [scale(float(number)) for number in range(5)]
    given, folders = list(modules), [str(tmp_path / str(number)) for number in range(5)]
    random.seed(7)
    expected = [random.random(), random.random()]
    random.seed(7)
    drawn = [random.random()]
    returned = build_ir_module_batch(modules, folders, ".so", "cpu")
    drawn.append(random.random())

    assert (folders, given, expected) == (returned, modules, drawn)
    assert [0.0, 1.0, 2.0, 3.0, 4.0] == [result(tmp_path / str(number)) for number in range(5)]


def test_batch_gathers_failures(tmp_path: Path) -> None:
    """All failures come together and say which module; the others are built."""
    broken = [scale(1.0), scale(2.0)]
    for module in broken:
        module.include_headers.append(["no/such/header.h"])
    folders = [str(tmp_path / name) for name in "abc"]
    with pytest.raises(ErrorGroup) as raised:
        build_ir_module_batch([broken[0], scale(3.0), broken[1]], folders, ".so", "cpu")

    assert [f"module 0, scale ({folders[0]})", f"module 2, scale ({folders[2]})"] == [
        error.message.partition(":")[0] for error in raised.value.errors
    ]
    assert "no/such/header.h" in str(raised.value)
    assert "hidet_build.drivers" not in str(raised.value)
    assert 3.0 == result(tmp_path / "b")


def test_failure_does_not_poison_the_next_call(tmp_path: Path) -> None:
    """After a failed build the next one works."""
    module = scale(1.0)
    module.include_headers.append(["no/such/header.h"])
    with pytest.raises(BuildError):
        build_ir_module(module, str(tmp_path / "bad"), "cpu")
    build_ir_module(scale(4.0), str(tmp_path / "good"), "cpu")

    assert 4.0 == result(tmp_path / "good")


def test_blanks_in_paths(tmp_path: Path) -> None:
    """A folder with blanks works."""
    build_ir_module(scale(2.0), str(tmp_path / "a folder"), "cpu")

    assert 2.0 == result(tmp_path / "a folder")


def test_include_folder_of_the_machine(tmp_path: Path) -> None:
    """A header in a folder the module names is an input: when it changes, so does the library."""
    (tmp_path / "include").mkdir()
    header = tmp_path / "include" / "factor.h"

    def module() -> Any:
        made = scale(2.0)
        made.include_headers.append(["factor.h"])
        made.include_dirs.append(str(tmp_path / "include"))
        return made

    header.write_text('extern "C" inline float hidet_test_factor() { return 1; }\n')
    build_ir_module(module(), str(tmp_path / "out"), "cpu")
    header.write_text("#error changed\n")
    with pytest.raises(BuildError) as raised:
        build_ir_module(module(), str(tmp_path / "out"), "cpu")

    assert "#error changed" in str(raised.value)


def test_include_folders_of_two_modules(tmp_path: Path) -> None:
    """Two modules of one library that name different folders each get the headers of their own."""
    modules = [scale(2.0, "first"), scale(3.0, "second")]
    for name, module in zip(("first", "second"), modules, strict=True):
        folder = tmp_path / name / "include"
        folder.mkdir(parents=True)
        (folder / "which.h").write_text(f"#define {name.upper()}\n")
        (folder / "check.h").write_text(f"#ifndef {name.upper()}\n#error the headers of the other module\n#endif\n")
        module.include_headers += [["which.h"], ["check.h"]]
        module.include_dirs.append(str(folder))
    build_ir_module(modules, str(tmp_path / "out"), "cpu")

    assert (2.0, 3.0) == (result(tmp_path / "out", "first"), result(tmp_path / "out", "second"))


def test_thread_and_torch_threads(tmp_path: Path) -> None:
    """It works in a thread of a process that has used torch's own threads."""
    torch.ones(512, 512) @ torch.ones(512, 512)
    thread = threading.Thread(target=build_ir_module, args=(scale(2.0), str(tmp_path / "out"), "cpu"))
    thread.start()
    thread.join()

    assert 2.0 == result(tmp_path / "out")


PROGRAM = """
    import multiprocessing, sys
    multiprocessing.set_start_method("spawn")
    import hidet
    from hidet.lang import attrs
    from hidet.lang.types import f32
    from hidet_build.drivers import build_ir_module_batch
    from tests.test_drivers import scale

    print("started")
    build_ir_module_batch([scale(2.0), scale(3.0)], [sys.argv[1] + "/0", sys.argv[1] + "/1"], ".so", "cpu")
    """


def test_spawn_and_no_main_guard(tmp_path: Path) -> None:
    """`python -c` without a main guard, with spawn as the start method: the program runs once."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert 1 == done.stdout.count("started")
    assert (2.0, 3.0) == (result(tmp_path / "0"), result(tmp_path / "1"))


def test_waits_for_the_lock_in_the_folder(tmp_path: Path) -> None:
    """A writer that holds hidet's lock file is waited for."""
    from filelock import FileLock

    (tmp_path / "out").mkdir()
    lock = FileLock(str(tmp_path / "out" / ".lock"))
    lock.acquire()
    thread = threading.Thread(target=build_ir_module, args=(scale(2.0), str(tmp_path / "out"), "cpu"))
    thread.start()
    thread.join(timeout=6)
    waited = thread.is_alive() and not (tmp_path / "out" / "lib.so").exists()
    lock.release()
    thread.join()

    assert waited
    assert 2.0 == result(tmp_path / "out")


def symbol(*shape: int) -> Any:
    """A symbolic CPU tensor."""
    return hidet.symbol(list(shape), device="cpu")


@pytest.fixture
def hidet_cache(tmp_path: Path) -> Iterator[Path]:
    """hidet's own cache in a folder of the test's."""
    with hidet.option.context():
        hidet.option.cache_dir(str(tmp_path / "hidet"))
        yield tmp_path / "hidet"


@pytest.mark.usefixtures("hidet_cache")
def test_task_gives_torch_numbers() -> None:
    """A task of one candidate: what comes back can be called, and hidet's own loader takes its folder."""
    compiled = build_task(hidet.ops.layer_norm(symbol(8, 64)).op.task, "cpu")
    x = torch.randn(8, 64)

    expected = torch.nn.functional.layer_norm(x, (64,))
    torch.testing.assert_close(compiled(x).torch(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(load_compiled_task(compiled.task_dir)(x).torch(), expected, atol=1e-5, rtol=1e-5)


def test_task_lies_where_hidet_looks(hidet_cache: Path) -> None:
    """The folder is the one hidet's cache uses, with what hidet checks for a hit."""
    task = hidet.ops.layer_norm(symbol(8, 64)).op.task
    returned = build_task(task, "cpu", load=False)

    folder = hidet_cache / "ops" / "cpu_space_0" / task.name / task.calculate_hash()
    assert returned is None
    assert hidet.__version__ == (folder / "version.txt").read_text()
    assert {"lib.so", "func_types.pickle", "meta.json", "source.cc", "task.txt"} <= set(os.listdir(folder))


def test_task_is_restored(hidet_cache: Path, cache: Path) -> None:
    """When hidet's cache is gone, the task comes from the store: nothing is compiled."""
    build_task(hidet.ops.layer_norm(symbol(8, 64)).op.task, "cpu", load=False)
    before = compiles(cache)
    shutil.rmtree(hidet_cache)
    build_task(hidet.ops.layer_norm(symbol(8, 64)).op.task, "cpu", load=False)

    assert before == compiles(cache)
    assert 1 == len(list(hidet_cache.rglob("lib.so")))


def test_task_is_rebuilt_for_another_architecture(hidet_cache: Path) -> None:
    """hidet hits whatever the architecture; here the folder gets the library for the one that is set."""
    task = hidet.ops.layer_norm(symbol(8, 64)).op.task
    commands = []
    for arch in ("x86-64-v3", "x86-64"):
        hidet.option.cpu.arch(arch)
        build_task(task, "cpu", load=False)
        commands.append(next(hidet_cache.rglob("compile.sh")).read_text())

    assert ["-march=x86-64-v3" in commands[0], "-march=x86-64 " in commands[1]] == [True, True]


@pytest.mark.slow
@pytest.mark.usefixtures("hidet_cache")
def test_task_with_several_candidates(cache: Path) -> None:
    """Several candidates: one is picked without CUDA, and another search space finds their objects in the store."""
    hidet.option.search_space(1)
    compiled = build_task(hidet.ops.matmul_x86(symbol(64, 64), symbol(64, 64)).op.task, "cpu")
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    result = compiled(a, b).torch()
    before = compiles(cache)
    hidet.option.search_space(2)
    build_task(hidet.ops.matmul_x86(symbol(64, 64), symbol(64, 64)).op.task, "cpu", load=False)

    assert 9 == len(compiled.candidates)
    torch.testing.assert_close(result, a @ b, atol=1e-4, rtol=1e-4)
    assert 1 == compiles(cache) - before  # the task itself, under the other search space


def test_unknown_targets(tmp_path: Path) -> None:
    """A target that cannot be read is an error that says what can be."""
    with pytest.raises(BuildError) as raised:
        build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu --arch")

    assert "--arch=NAME" in str(raised.value)


def test_lowering_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that was lowered before is not lowered again, unless it changed or `force` says so."""
    lowered: list[int] = []
    generate = live.generate

    def counted(jobs: Any, *others: Any) -> Any:
        lowered.append(len(jobs))
        return generate(jobs, *others)

    monkeypatch.setattr(live, "generate", counted)
    for module, force in ((scale(2.0), False), (scale(2.0), False), (scale(3.0), False), (scale(3.0), True)):
        build_ir_module(module, str(tmp_path / "out"), "cpu", force=force)

    assert [1, 0, 1, 1] == lowered
    assert 3.0 == result(tmp_path / "out")


def test_patched_hidet_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a program has changed how hidet lowers, what was lowered before says nothing."""
    found = [result_of(tmp_path)]
    codegen = sys.modules["hidet.backend.codegen"].Codegen
    original = codegen.visit_Constant

    def other(self: Any, constant: Any) -> Any:
        return original(self, hidet.ir.expr.constant(5.0, "float32") if constant.value == 2.0 else constant)

    monkeypatch.setattr(codegen, "visit_Constant", other)
    found.append(result_of(tmp_path))
    monkeypatch.setattr(codegen, "visit_Constant", original)
    found.append(result_of(tmp_path))

    assert [2.0, 5.0, 2.0] == found


def result_of(folder: Path) -> float:
    """What the module that multiplies by two becomes, built in a used folder."""
    build_ir_module(scale(2.0), str(folder / "out"), "cpu")
    return result(folder / "out")


def test_options_count_for_lowering(tmp_path: Path, cache: Path) -> None:
    """An option that changes what is generated is no hit for what was generated without it."""
    sources = []
    for shown in (False, True):
        with hidet.option.context():
            hidet.option.debug_strict_broadcast_check(shown)
            build_ir_module(scale(2.0), str(tmp_path / str(shown)), "cpu")
            sources.append(compiles(cache))

    assert sources[0] < sources[1]
