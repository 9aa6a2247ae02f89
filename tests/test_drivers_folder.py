"""Output folders of the drivers: several writers, writers that are killed, files that somebody broke."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.hidet
hidet = pytest.importorskip("hidet")
torch = pytest.importorskip("torch")

from filelock import FileLock  # noqa: E402
from hidet.ir.stmt import BlackBoxStmt, SeqStmt  # noqa: E402

from hidet_build.drivers import build_and_load, build_ir_module, build_task  # noqa: E402
from hidet_build.errors import BuildError  # noqa: E402
from tests.ir_modules import calling_header  # noqa: E402
from tests.test_drivers import cache, compiles, result, scale  # noqa: E402, F401

HIDET_LEAVES = {".lock", "compile.sh", "func_types.pickle", "lib.so", "source.cc"}


class Compiler(NamedTuple):
    """A g++ that writes its process id to `log` for each object; the one that takes `hold` away waits until it is told.

    It waits while there is a file `held`.
    """

    log: Path
    hold: Path
    held: Path

    @property
    def started(self) -> list[int]:
        """The process ids so far."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """A compiler that can be watched and stopped."""
    made = Compiler(tmp_path / "log", tmp_path / "hold", tmp_path / "held")
    script = tmp_path / "bin" / "g++"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            case " $* " in *" -c "*)
                echo $$ >> {made.log}
                if mv {made.hold} {made.held} 2> /dev/null; then
                    while [ -e {made.held} ]; do sleep 0.05; done
                fi;;
            esac
            exec {shutil.which("g++")} "$@"
            """)
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    yield made
    made.held.unlink(missing_ok=True)


BUILD = """
    import sys
    from hidet_build.drivers import build_ir_module
    from tests.test_drivers import scale

    build_ir_module(scale(float(sys.argv[1]), sys.argv[3]), sys.argv[2], "cpu")
    """


def start(factor: float, folder: Path, name: str = "scale", errors: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    """Another process that builds into the folder."""
    command = [sys.executable, "-c", textwrap.dedent(BUILD), str(factor), str(folder), name]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=errors, text=True)


def until(happened: Callable[[], object]) -> None:
    """Wait until it has happened, two minutes at most."""
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def is_running(pid: int) -> bool:
    """Whether the process still does something."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def belong_together(folder: Path) -> bool:
    """Whether library, types and source are those of one build; where there is no library nobody can mistake it."""
    if not (folder / "lib.so").exists():
        return True
    (name,) = pickle.loads((folder / "func_types.pickle").read_bytes())
    symbol = f"hidet_{name}".encode()
    return symbol in (folder / "lib.so").read_bytes() and symbol in (folder / "source.cc").read_bytes()


def test_orphan_of_a_killed_builder(tmp_path: Path, compiler: Compiler) -> None:
    """The compiler of a killed builder goes on; hidet's then overwrites the next builder's library, ours cannot."""
    out = tmp_path / "out"
    compiler.hold.touch()
    killed = start(2.0, out)
    until(lambda: compiler.held.exists())
    orphan = compiler.started[-1]
    killed.kill()
    killed.communicate()
    survived = is_running(orphan)
    build_ir_module(scale(5.0), str(out), "cpu")
    compiler.held.unlink()
    until(lambda: not is_running(orphan))

    assert survived
    assert 5.0 == result(out)
    assert set(os.listdir(out)) == HIDET_LEAVES


def test_what_a_killed_builder_left_is_swept(tmp_path: Path, cache: Path, compiler: Compiler) -> None:  # noqa: F811
    """The folder of a killed call goes with the next one."""
    compiler.hold.touch()
    killed = start(2.0, tmp_path / "out")
    until(lambda: compiler.held.exists())
    killed.kill()
    killed.communicate()
    left = len(os.listdir(cache / "hidet-build" / "drivers"))
    build_ir_module(scale(5.0), str(tmp_path / "out"), "cpu")
    compiler.held.unlink()

    assert left > 0
    assert [] == os.listdir(cache / "hidet-build" / "drivers")


def test_interrupt(tmp_path: Path, cache: Path, compiler: Compiler) -> None:  # noqa: F811
    """Ctrl-C ends the compiler too, leaves the folder as it was and nothing of ours behind."""
    out = tmp_path / "out"
    build_ir_module(scale(5.0), str(out), "cpu")
    compiler.hold.touch()
    interrupted = start(2.0, out)
    until(lambda: compiler.held.exists())
    interrupted.send_signal(signal.SIGINT)
    _, err = interrupted.communicate(timeout=90)
    until(lambda: not is_running(compiler.started[-1]))

    assert "KeyboardInterrupt" in err
    assert 5.0 == result(out)
    assert [] == os.listdir(cache / "hidet-build" / "drivers")


def killed_at_rename(number: int, factor: float, name: str, out: Path) -> int:
    """Build in a forked child that is killed before it renames its n-th file into the folder; how it ended."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = [number]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename" and os.path.dirname(str(arguments[1])) == str(out):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    build_ir_module(scale(factor, name), str(out), "cpu")
    os._exit(0)


def test_killed_between_two_files(tmp_path: Path, cache: Path) -> None:  # noqa: F811
    """Wherever a writer is killed, no library lies beside the types of another; the next call mends it all."""
    out = tmp_path / "out"
    ended, together, mended = [], [], []
    build_ir_module(scale(5.0, "five"), str(tmp_path / "warm"), "cpu")
    for number in (1, 2, 3):  # the source, the types, the library
        build_ir_module(scale(2.0, "two"), str(out), "cpu")
        ended.append(killed_at_rename(number, 5.0, "five", out))
        together.append(belong_together(out))
        before = compiles(cache)
        build_ir_module(scale(5.0, "five"), str(out), "cpu")
        mended.append((belong_together(out), result(out, "five"), compiles(cache) - before))

    assert [-signal.SIGKILL] * 3 == ended
    assert [True] * 3 == together
    assert [(True, 5.0, 0)] * 3 == mended


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    """Two processes build different modules into one folder: one comes after the other, and the files are of one."""
    out = tmp_path / "out"
    running = [start(2.0, out, "two"), start(3.0, out, "three")]
    seen = []
    while any(process.poll() is None for process in running):
        if out.exists():
            with FileLock(str(out / ".lock")):
                seen.append(belong_together(out))
        time.sleep(0.02)
    said = [process.communicate()[1] for process in running]

    (name,) = pickle.loads((out / "func_types.pickle").read_bytes())
    assert [0, 0] == [process.returncode for process in running], said
    assert {True} == set(seen)
    assert belong_together(out)
    assert {"two": 2.0, "three": 3.0}[name] == result(out, name)


def test_waiting_is_said(tmp_path: Path) -> None:
    """Who has to wait for the lock of the folder says so."""
    out, said = tmp_path / "out", tmp_path / "said"
    out.mkdir()
    with said.open("w") as errors, FileLock(str(out / ".lock")):
        process = start(2.0, out, errors=errors.fileno())
        until(lambda: process.poll() is not None or f"waiting for {out}/.lock: another process" in said.read_text())
        waited = process.poll() is None and not (out / "lib.so").exists()
    process.communicate()

    assert waited
    assert 2.0 == result(out)


def test_hidet_waits_for_us_and_reuses_nothing_of_another(tmp_path: Path) -> None:
    """hidet's own driver takes our folder for its own: the lock, and a library it need not build again."""
    out = tmp_path / "out"
    build_ir_module(scale(2.0), str(out), "cpu")
    before = (out / "lib.so").stat()
    hidet.drivers.build_ir_module(scale(2.0), str(out), "cpu")

    assert before.st_ino == (out / "lib.so").stat().st_ino


def test_broken_object_is_replaced(tmp_path: Path) -> None:
    """hidet takes any `lib.o` of more than one byte; here garbage is no object."""
    out = tmp_path / "out"
    build_ir_module(scale(2.0), str(out), "cpu", ".o")
    right = (out / "lib.o").read_bytes()
    (out / "lib.o").write_bytes(b"garbage")
    build_ir_module(scale(2.0), str(out), "cpu", ".o")

    assert right == (out / "lib.o").read_bytes()


def test_unchanged_and_forced(tmp_path: Path, compiler: Compiler) -> None:
    """An unchanged module starts no compiler, `force` starts it again."""
    counts = []
    for force in (False, False, True):
        build_ir_module(scale(2.0), str(tmp_path / "out"), "cpu", force=force)
        counts.append(len(compiler.started))
    first, second, forced = counts

    assert (first, first, first + 1) == (first, second, forced)
    assert first > 0


def test_blanks_in_all_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks and other characters of shells in the folder, the cache and an include folder."""
    include = tmp_path / "my 'own' $headers"
    include.mkdir()
    (include / "a header.h").write_text("#define HIDET_TEST_HEADER\n")
    module = scale(2.0)
    module.include_headers.append(["a header.h"])
    module.include_dirs.append(str(include))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    build_ir_module(module, str(tmp_path / 'a "folder" & more'), "cpu")

    assert 2.0 == result(tmp_path / 'a "folder" & more')


def test_lowered_ir_is_saved(tmp_path: Path) -> None:
    """hidet's option `save_lower_ir` leaves the IR after each pass in the folder, as with hidet's own driver."""
    with hidet.option.context():
        hidet.option.save_lower_ir(True)
        build_ir_module(scale(2.0), str(tmp_path / "ours"), "cpu")
        hidet.drivers.build_ir_module(scale(2.0), str(tmp_path / "hidets"), "cpu")
    build_ir_module(scale(2.0), str(tmp_path / "without"), "cpu")

    saved = [sorted(os.listdir(tmp_path / name / "ir")) for name in ("ours", "hidets")]
    assert saved[0] == saved[1]
    assert "0_Origin.txt" in saved[0]
    assert HIDET_LEAVES == set(os.listdir(tmp_path / "without"))


def broken(name: str) -> Any:
    """A module whose source no compiler takes."""
    module = scale(2.0, name)
    function = module.functions[name]
    function.body = SeqStmt([BlackBoxStmt("no_such_function();"), function.body])
    return module


def line_of(source: Path, text: str) -> int:
    """The number of the last line that has this text."""
    return max(number for number, line in enumerate(source.read_text().splitlines(), 1) if text in line)


def test_failed_compile_leaves_its_source(tmp_path: Path) -> None:
    """The source and the command line are where hidet leaves them, and the error speaks of them; the library stays."""
    out = tmp_path / "out"
    build_ir_module(scale(2.0), str(out), "cpu")
    with pytest.raises(BuildError) as raised:
        build_ir_module(broken("wrong"), str(out), "cpu")
    by_hand = subprocess.run(["sh", "compile.sh"], cwd=out, capture_output=True, text=True, check=False)

    said = raised.value.render()
    assert said.startswith(f"the module wrong ({out}): CppCompile failed (exit code 1)\n")
    assert said.endswith(f"\nto reproduce: cd {out} && sh compile.sh")
    number = line_of(out / "source.cc", "no_such_function")
    assert f"\nsource.cc:{number}:" in said
    assert f"\n{number:>5} |     no_such_function();\n" in said
    assert f"\nsource.cc:{number}:" in by_hand.stderr
    assert HIDET_LEAVES == set(os.listdir(out))
    assert 2.0 == result(out)


def test_failed_compile_of_several_modules(tmp_path: Path) -> None:
    """The lines are those of the source of all of them."""
    out = tmp_path / "out"
    with pytest.raises(BuildError) as raised:
        build_ir_module([scale(2.0, "one"), broken("two"), scale(3.0, "three")], str(out), "cpu")

    number = line_of(out / "source.cc", "no_such_function")
    assert f"\nsource.cc:{number}:" in raised.value.render()
    assert f"the modules one, two, three ({out}): " in raised.value.render()


def test_command_line_knows_the_headers_of_a_module(tmp_path: Path) -> None:
    """`compile.sh` makes the library again, with headers of the machine too."""
    out, headers = tmp_path / "out", tmp_path / "my headers"
    headers.mkdir()
    (headers / "own.h").write_text("static inline float own_value() { return 7.0f; }\n")
    build_ir_module(calling_header("own.h", str(headers)), str(out), "cpu")
    (out / "lib.so").unlink()
    subprocess.run(["sh", "compile.sh"], cwd=out, check=True)

    assert 7.0 == result(out, "own")


def test_failed_candidate_of_a_task_leaves_its_source(tmp_path: Path) -> None:
    """The source of a candidate lies where hidet leaves it, and the task counts as not built."""
    task = hidet.ops.layer_norm(hidet.symbol([8, 64], device="cpu")).op.task
    implement = task.implement

    def with_a_broken_one(target: object, working_dir: str) -> list[Any]:
        modules = [implement(target, working_dir)[0] for _ in range(2)]
        function = next(iter(modules[1].functions.values()))
        function.body = SeqStmt([BlackBoxStmt("no_such_function();"), function.body])
        return modules

    task.implement = with_a_broken_one
    with hidet.option.context():
        hidet.option.cache_dir(str(tmp_path / "hidet"))
        with pytest.raises(BuildError) as raised:
            build_task(task, "cpu", load=False)

    (source,) = (tmp_path / "hidet").rglob("source.cc")
    assert "candidates/1" == f"{source.parent.parent.name}/{source.parent.name}"
    assert f"the task {task.name}, candidate 1: CppCompile failed" in raised.value.message
    assert f"\nsource.cc:{line_of(source, 'no_such_function')}:" in raised.value.render()
    assert raised.value.render().endswith(f"cd {source.parent} && sh compile.sh")
    assert [] == list((tmp_path / "hidet").rglob("version.txt"))


def test_hidets_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """Modules and tasks: the error names the folder, and how to have another one."""
    (tmp_path / "file").touch()
    said = []
    with hidet.option.context():
        hidet.option.cache_dir(str(tmp_path / "file" / "hidet"))
        task = hidet.ops.layer_norm(hidet.symbol([8, 64], device="cpu")).op.task
        for build in (lambda: build_and_load(scale(2.0)), lambda: build_task(task, "cpu")):
            with pytest.raises(BuildError) as raised:
                build()
            said.append(raised.value.render())

    for text in said:
        assert f"{tmp_path}/file is a file" in text
        assert "hint: that is in hidet's own cache: hidet.option.cache_dir('FOLDER') in the program" in text


def test_object_leaves_the_library_alone(tmp_path: Path) -> None:
    """As with hidet, what a call does not make stays as it is."""
    out = tmp_path / "out"
    build_ir_module(scale(2.0), str(out), "cpu")
    build_ir_module(scale(3.0), str(out), "cpu", ".o")

    assert {*HIDET_LEAVES, "lib.o"} == set(os.listdir(out))
    assert 2.0 == result(out)
