"""The rule `task` with real hidet: candidates that are found while building, shared between tasks, and called."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.space import Ended, Space, targets

pytestmark = pytest.mark.hidet

SOFTMAX = '''\
    """hidet's own task, with 1, 3 or 7 candidates."""

    from hidet.graph.ops.softmax import CPUSoftmaxTask
    from hidet.ir.compute import tensor_input


    def softmax(rows: int, columns: int):
        return CPUSoftmaxTask(tensor_input("x", "float32", [rows, columns]), axis=1)
    '''
# A task of our own, whose candidates compile in no time; `how` says what is wrong with it.
SHIFT = '''\
    """A task."""

    import hidet
    from hidet.ir.compute import compute, tensor_input
    from hidet.ir.library import tune
    from hidet.ir.task import Task


    class Step:
        pass


    class Shift(Task):
        def __init__(self, how: str = ""):
            x = tensor_input("x", "float32", [4])
            super().__init__("shift", [x], [compute("y", [4], lambda i: x[i] + 1.0)])
            self.how = how

        def implement_cpu(self, working_dir):
            if self.how == "none":
                return []
            if self.how == "refuses":
                raise NotImplementedError("only on Tuesdays")
            if self.how == "raises":
                raise ValueError("broken inside")
            return tune.extract_ir_modules(self.schedule)

        @tune.space(1, repeat=[1, 2], by=[Step()])
        @tune.space(2, repeat=[3, 1, 2])
        def schedule(self, repeat=1, by=None):
            from hidet.lang import attrs
            from hidet.lang.types import f32

            one = 1.0
            with hidet.script_module() as module:

                @hidet.script
                def shift(x: f32[4], y: f32[4]):
                    attrs.func_kind = "cpu_kernel"
                    for _ in range(repeat):
                        for i in range(4):
                            y[i] = x[i] + one

            made = module.ir_module()
            if self.how == "folder" and repeat > 1:
                made.include_dirs.append("/opt/nowhere")
            return made


    def shift(how: str = ""):
        return Shift(how)


    def operator():
        return hidet.symbol([4], device="cpu") + 1.0


    def module():
        return Shift().schedule()


    def tasks():
        return [Shift(), Shift()]


    def nothing():
        return None


    def composite():
        x = hidet.symbol([4], device="cpu")
        return hidet.ops.relu(x) + hidet.ops.relu(x + 1.0)
    '''
LOWER, CODEGEN, COMPILE, LINK = "HidetLower", "HidetCodegen", "CppCompile", "CppLink"


def entry(name: str, src: str, more: str = "") -> str:
    """A target of the rule."""
    return f"{{rule: task, name: {name}, src: {src}{', ' + more if more else ''}}}"


def counted(done: Ended) -> dict[str, int]:
    """How often each mnemonic was executed, of those that take time."""
    found = Counter(action.split()[0] for action in done.actions)
    return {name: found[name] for name in (LOWER, CODEGEN, COMPILE, LINK) if found[name]}


def python(space: Space, program: str, *arguments: str) -> str:
    """What a fresh process prints, started outside of the workspace."""
    words = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(words, env=space.environment, cwd=space.base, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


# Calls a task, and each of its candidates, and compares with torch.
CHECK = """\
import sys, torch, hidet, hidet_build.drivers
task = eval(sys.argv[1])
x = torch.randn(6, 100)
expected = torch.softmax(x, 1)
results = [task(x).torch()]
for candidate in task.candidates:
    results.append(torch.zeros(6, 100))
    candidate(x, results[-1])
print(len(task.candidates), all(torch.allclose(expected, one, atol=1e-6) for one in results))
"""


def test_candidates_give_torchs_numbers(space: Space) -> None:
    """The printed line loads a task with several candidates where there is no CUDA, and leaves its folder alone."""
    space.write("k/softmax.py", SOFTMAX)
    arguments = "entry: softmax, args: {rows: 6, columns: 100}"
    space.write("k/BUILD.yaml", targets(entry("several", "softmax.py", f"{arguments}, search_space: 1")))

    done = space.build("//k:several")
    line = next(line for line in done.err.splitlines() if "load it: " in line).partition("load it: ")[2]
    folder = space.root / "hidet-bin" / "k" / "several"
    before = sorted(path.name for path in folder.iterdir())
    line = line.replace("hidet-bin", str(space.root / "hidet-bin"))

    assert {LOWER: 1, CODEGEN: 4, COMPILE: 4, LINK: 1} == counted(done)
    assert line.startswith("hidet_build.drivers.load_task(")
    assert ["3 True\n", "3 True\n"] == [python(space, CHECK, line) for _ in range(2)]
    assert before == sorted(path.name for path in folder.iterdir())
    assert 1 == len(list((space.cache / "hidet-build" / "dispatch").glob("*/*/dispatch_table.txt")))
    assert "INFO: 1 target up to date" == space.build("//k:several").summary


def test_one_candidate(space: Space) -> None:
    """A task of one candidate has it in its module, and hidet's own loader can call it too."""
    space.write("k/softmax.py", SOFTMAX)
    space.write("k/BUILD.yaml", targets(entry("softmax", "softmax.py", "args: {rows: 6, columns: 100}")))

    done = space.build("//k:softmax")

    folder = space.root / "hidet-bin" / "k" / "softmax"
    assert {LOWER: 1, CODEGEN: 1, COMPILE: 1, LINK: 1} == counted(done)
    loaders = ("hidet_build.drivers.load_task", "hidet.runtime.load_compiled_task")
    assert ["1 True\n", "1 True\n"] == [python(space, CHECK, f"{loader}({str(folder)!r})") for loader in loaders]


def test_candidates_are_shared(space: Space) -> None:
    """A task that shares candidates with another compiles what is new: the others, and the module that calls them."""
    space.write("k/shift.py", SHIFT)
    space.write(
        "k/BUILD.yaml",
        targets(
            entry("some", "shift.py", "entry: shift, search_space: 1"),
            entry("more", "shift.py", "entry: shift, search_space: 2"),
            entry("again", "shift.py", "entry: shift, search_space: 2, args: {how: well}"),
        ),
    )

    some, more, again = (space.build(f"//k:{name}") for name in ("some", "more", "again"))

    assert {LOWER: 1, CODEGEN: 3, COMPILE: 3, LINK: 1} == counted(some)
    assert (2, 1) == (counted(more)[COMPILE], counted(more)[LINK])
    assert {LOWER: 1} == counted(again)


def test_edit_of_a_comment_compiles_nothing(space: Space) -> None:
    """A comment lowers again and stops there; an edit of one candidate compiles that one and links."""
    path = space.write("k/shift.py", SHIFT)
    text = path.read_text()
    space.write("k/BUILD.yaml", targets(entry("shift", "shift.py", "search_space: 2")))
    space.build("//k:shift")
    path.write_text(text.replace('"""A task."""', '"""A good task."""\n\n# really'))
    comment = space.build("//k:shift")
    path.write_text(text.replace("one = 1.0", "one = 1.0 if repeat < 3 else 4.0"))
    one = space.build("//k:shift")
    path.write_text(text.replace("repeat=[3, 1, 2]", "repeat=[3, 1]"))
    fewer = space.build("//k:shift")

    assert {LOWER: 1} == counted(comment)
    assert {LOWER: 1, CODEGEN: 1, COMPILE: 1, LINK: 1} == counted(one)
    assert {LOWER: 1, CODEGEN: 1, COMPILE: 1, LINK: 1} == counted(fewer)  # of the module that calls them
    assert 2 == space.read("hidet-bin/k/shift/module.cc").count("namespace candidate_")


def test_operator_is_its_task(space: Space) -> None:
    """The output tensor of one operator stands for the operator's task."""
    space.write("k/shift.py", SHIFT)
    space.write("k/BUILD.yaml", targets(entry("operator", "shift.py")))
    space.build("//k:operator")
    program = (
        "import sys, torch, hidet_build.drivers as d; print(d.load_task(sys.argv[1])(torch.ones(4)).torch().sum())"
    )

    assert "tensor(8.)\n" == python(space, program, str(space.root / "hidet-bin/k/operator"))


MISTAKES = {
    "module": ("", "k/shift.py", "'module' returned an IRModule; expected a Task", "the rule ir_module builds that"),
    "nothing": ("", "k/shift.py", "'nothing' returned None; expected a Task", ""),
    "tasks": ("", "k/shift.py", "'tasks' returned a list of Shift; expected a Task", "declare a target for each task"),
    "composite": ("", "k/shift.py", "returned a tensor that 4 operators compute", "return the tensor of one operator"),
    "none": ("none", "k/shift.py", "the task 'shift' has no candidate for cpu", ""),
    "refuses": ("refuses", "k/shift.py", "the task 'shift' has no implementation for cpu: only on Tuesdays", ""),
    "raises": ("raises", "k/shift.py:25", "ValueError: broken inside", ""),
    "folder": (
        "folder",
        "k/shift.py",
        "candidate 0 of 3 (repeat=3) cannot be lowered, nor can 2: the IR module's include_dirs names '/opt/nowhere'",
        "name a workspace folder",
    ),
}


def test_mistakes_are_located(space: Space) -> None:
    """Each mistake says the file, what is wrong, and where there is something to do, what."""
    space.write("k/shift.py", SHIFT)
    entries = [
        entry(name, "shift.py", f"entry: shift, search_space: 2, args: {{how: {how}}}" if how else "")
        for name, (how, *_) in MISTAKES.items()
    ]
    space.write("k/BUILD.yaml", targets(*entries))

    done = space.run("-k", "--verbose_failures", "//k:all")

    told = {}
    for part in done.err.split("ERROR: k/BUILD.yaml:")[1:]:
        told[part.partition("//k:")[2].partition(":")[0]] = part
    assert (1, MISTAKES.keys()) == (done.code, told.keys())
    assert "Traceback (most recent call last)" not in done.err
    for name, (_, file, message, hint) in MISTAKES.items():
        assert [True, True, True] == [text in told[name] for text in (file, message, hint)], told[name]


def test_search_space_has_choices(space: Space) -> None:
    """There are the search spaces 0, 1 and 2."""
    space.write("k/shift.py", SHIFT)
    space.write("k/BUILD.yaml", targets(entry("shift", "shift.py", "search_space: 3")))

    done = space.run("//k:shift")

    assert 1 == done.code
    assert "k/BUILD.yaml:2:60: expected one of 0, 1, 2, got '3'" in done.err


def test_outputs_are_the_same_everywhere(space: Space, tmp_path: Path) -> None:
    """Another folder, another hash seed, nothing cached: the same bytes, and no path of either machine in them."""
    other = Space(tmp_path / "another" / "place")
    shutil.copytree(space.cache, other.cache)
    made = []
    for number, one in enumerate((space, other)):
        one.write("k/shift.py", SHIFT)
        one.write("k/BUILD.yaml", targets(entry("shift", "shift.py", "search_space: 1")))
        one.build("//k:shift", environment={"PYTHONHASHSEED": str(number)})
        folder = one.root / "hidet-bin" / "k" / "shift"
        made.append({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    assert made[0] == made[1]
    assert {"candidates.json", "candidates.txt", "lib.so", "meta.json", "task.txt", "version.txt"} <= made[0].keys()
    assert "task.pickle" not in made[0]
    assert [] == [
        name for name, content in made[0].items() if str(tmp_path).encode() in content or b" at 0x" in content
    ]
