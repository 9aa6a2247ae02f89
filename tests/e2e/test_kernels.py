"""Kernels of real hidet in a workspace: what an edit rebuilds, what must be declared, and what the outputs are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.space import Ended, Space, targets

pytestmark = pytest.mark.hidet

KERNEL = '''\
    """A kernel."""

    import hidet
    from hidet.lang import attrs
    from hidet.lang.types import f32, i32

    {imports}


    def {name}(size: int = 1):
        {inside}
        with hidet.script_module() as module:

            @hidet.script
            def {name}(x: ~f32, n: i32):
                attrs.func_kind = "public"
                for i in range(n):
                    x[i] = x[i] * {factor}

        return module.ir_module()
    '''
LOWER, CODEGEN, COMPILE, LINK = "HidetLower", "HidetCodegen", "CppCompile", "CppLink"


def kernel(name: str, factor: object = 2.0, imports: str = "", inside: str = "") -> str:
    """A kernel `name` that multiplies by `factor`, which may use what it imports."""
    return KERNEL.format(name=name, factor=factor, imports=imports, inside=inside)


def steps(done: Ended) -> dict[str, set[str]]:
    """The mnemonics that were executed, by target name."""
    found: dict[str, set[str]] = {}
    for action in done.actions:
        mnemonic, label = action.split()
        found.setdefault(label.rpartition(":")[2], set()).add(mnemonic)
    return found


# ---- what an edit rebuilds


def test_edit_of_a_comment_compiles_nothing(space: Space) -> None:
    """A comment, or another kernel in the same file, lowers again and stops there."""
    space.write(
        "k/BUILD.yaml", targets("{rule: ir_module, name: one, src: a.py}", "{rule: ir_module, name: two, src: a.py}")
    )
    path = space.write("k/a.py", kernel("one") + "\n")
    path.write_text(path.read_text() + path.read_text().replace("one", "two"))
    text = path.read_text()
    space.build("//k:all")
    path.write_text(text.replace('"""A kernel."""', '"""A good kernel."""  # really'))
    comment = space.build("//k:all")
    path.write_text(text.replace("2.0", "3.0", 1))
    one = space.build("//k:all")
    path.write_text(text)
    back = space.build("//k:all")

    assert {"one": {LOWER}, "two": {LOWER}} == steps(comment)
    assert {"one": {LOWER, CODEGEN, COMPILE, LINK}, "two": {LOWER}} == steps(one)
    assert {} == steps(back)


HELPERS = {
    "k/absolute.py": kernel("absolute", "F", "from k.lib.deep import F"),
    "k/plain.py": kernel("plain", "F", "from tool import F"),
    "k/relative.py": kernel("relative", "F", "from .lib import F"),
    "k/inside.py": kernel("inside", "F", inside="from .lib.deep import F"),
    "k/through.py": kernel("through", "middle.F", "import k.middle as middle"),
    "k/alone.py": kernel("alone", 4.0),
    "k/lib/__init__.py": "from .deep import F\n",
    "k/lib/deep.py": "F = 2.0\n",
    "k/middle.py": "from .lib import deep\n\nF = deep.F + 1.0\n",
    "k/tools/tool.py": "F = 5.0\n",
    "k/BUILD.yaml": """\
        targets:
          - {rule: py_library, name: lib, srcs: [glob: ["lib/**/*.py"]]}
          - {rule: py_library, name: middle, srcs: [middle.py], deps: [":lib"]}
          - {rule: py_library, name: tools, srcs: [tools/tool.py], imports: [tools]}
          - {rule: ir_module, name: absolute, src: absolute.py, deps: [":lib"]}
          - {rule: ir_module, name: relative, src: relative.py, deps: [":lib"]}
          - {rule: ir_module, name: inside, src: inside.py, deps: [":lib"]}
          - {rule: ir_module, name: through, src: through.py, deps: [":middle"]}
          - {rule: ir_module, name: plain, src: plain.py, deps: [":tools"]}
          - {rule: ir_module, name: alone, src: alone.py}
        """,
}


def test_edit_of_a_helper_rebuilds_its_dependents(space: Space) -> None:
    """Through absolute and relative imports, imports inside functions, packages, and another helper; nobody else."""
    for path, text in HELPERS.items():
        space.write(path, text)
    space.build("//k:all")
    space.write("k/lib/deep.py", "F = 3.0\n")
    deep = space.build("//k:all")
    space.write("k/lib/__init__.py", "from .deep import F as G\n\nF = G * 2.0\n")
    package = space.build("//k:all")
    space.write("k/tools/tool.py", "F = 6.0\n")
    tool = space.build("//k:all")
    space.write("k/lib/new.py", "")
    added = space.build("//k:all")

    whole = {LOWER, CODEGEN, COMPILE, LINK}
    assert dict.fromkeys(("absolute", "relative", "inside", "through"), whole) == steps(deep)
    assert {"relative": whole, "absolute": {LOWER}, "inside": {LOWER}, "through": {LOWER}} == steps(package)
    assert {"plain": whole} == steps(tool)
    assert {name: {LOWER} for name in ("absolute", "relative", "inside", "through")} == steps(added)


def test_edit_of_the_declaration(space: Space) -> None:
    """Arguments count when they change what is generated; their order and their comments do not count at all."""
    space.write("k/a.py", kernel("a", "size * 1.0"))
    declared = "targets:\n  - {rule: ir_module, name: a, src: a.py, args: {size: 2}}\n"
    space.write("k/BUILD.yaml", declared)
    space.build("//k:a")
    space.write("k/BUILD.yaml", "# a comment\n" + declared)
    comment = space.build("//k:a")
    space.write("k/BUILD.yaml", declared.replace("size: 2", "size: 3"))
    changed = space.build("//k:a", "--explain")

    assert {} == steps(comment)
    assert {"a": {LOWER, CODEGEN, COMPILE, LINK}} == steps(changed)
    assert '{"size": 2} -> {"size": 3}' in changed.err


def test_edit_that_changes_what_is_to_be_done(space: Space) -> None:
    """A function with other parameters makes the saved plan void half-way; the count of what was done stays right."""
    space.write("k/a.py", kernel("a"))
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: a, src: a.py}"))
    space.build("//k:a")
    space.write("k/a.py", kernel("a").replace("x: ~f32", "x: ~f32, y: ~f32"))

    done = space.build("//k:a")

    assert "INFO: built 1 target: 4 actions: 4 executed" == done.summary
    assert [f"[{number}/" for number in range(1, 5)] == re.findall(r"^\[\d+/", done.err, re.MULTILINE)
    assert "[4/4] CppLink //k:a" in done.err
    assert "INFO: 1 target up to date" == space.build("//k:a").summary


def test_kernels_that_generate_one_source_share_a_compile(space: Space) -> None:
    """Different modules with the same generated source are compiled once."""
    entries = [
        f"{{rule: ir_module, name: t{number}, src: a.py, entry: a, args: {{size: {number}}}}}" for number in range(3)
    ]
    space.write("k/BUILD.yaml", targets(*entries))
    space.write("k/a.py", kernel("a"))

    done = space.build("//k:all")

    assert [3, 1] == [sum(action.startswith(kind) for action in done.actions) for kind in (LOWER, COMPILE)]


# ---- what must be declared


def test_undeclared_import(space: Space) -> None:
    """A kernel that imports a source it does not declare fails, and is told which line to add."""
    space.write("k/a.py", kernel("a", "F", "from .helper import F"))
    space.write("k/helper.py", "F = 2.0\n")
    entry = "{rule: ir_module, name: a, src: a.py}"
    space.write("k/BUILD.yaml", targets(entry, "{rule: py_library, name: help, srcs: [helper.py]}"))

    owned = space.run("//k:a")
    space.write("k/BUILD.yaml", targets(entry))
    free = space.run("//k:a")

    assert (1, 1) == (owned.code, free.code)
    assert 'hint: k/helper.py belongs to //k:help: add "//k:help" to deps of //k:a' in owned.err
    assert "hint: k/helper.py is not declared: put it into srcs of a py_library" in free.err
    assert "k/a.py:7" in owned.err
    assert [1, 1] == [ended.err.count("hint: ") for ended in (owned, free)]


@pytest.mark.parametrize("how", ["open('k/data.txt').read()", "open('{root}/k/data.txt').read()"])
def test_undeclared_file(space: Space, how: str) -> None:
    """A kernel reads the files it declares, and no others: also not by an absolute path."""
    read = "F = float(" + how.format(root=space.root) + ")"
    space.write("k/a.py", kernel("a", "F", read))
    space.write("k/data.txt", "2.0\n")
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: a, src: a.py}"))

    undeclared = space.run("//k:a")
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: a, src: a.py, data: [data.txt]}"))
    space.write("k/a.py", kernel("a", "F", "F = float(open('k/data.txt').read())"))
    space.build("//k:a")
    space.write("k/data.txt", "3.0\n")
    edited = space.build("//k:a")

    assert 1 == undeclared.code
    assert 'hint: add "data.txt" to data of //k:a and open it by the path k/data.txt' in undeclared.err
    assert {"a": {LOWER, CODEGEN, COMPILE, LINK}} == steps(edited)


def test_requirements(space: Space) -> None:
    """An installed distribution is there for kernels that require it; one that is not installed is named."""
    space.write("k/a.py", kernel("a", "float(len(pytest.__name__))", "import pytest"))
    entry = "rule: ir_module, name: a, src: a.py"
    space.write("k/BUILD.yaml", targets(f"{{{entry}}}"))
    undeclared = space.run("//k:a")
    space.write("k/BUILD.yaml", targets(f"{{{entry}, requires: [pytest]}}"))
    declared = space.run("//k:a")
    space.write("k/BUILD.yaml", targets(f"{{{entry}, requires: [no-such-distribution]}}"))
    missing = space.run("//k:a")

    assert "requires: [pytest]" in undeclared.err
    assert (1, 0) == (undeclared.code, declared.code), declared.err
    assert missing.code != 0
    assert "no-such-distribution" in missing.err
    assert "Traceback (most recent call last)" not in missing.err


# ---- outputs


def test_object_output_kind(space: Space) -> None:
    """`output_kind: .o` stops at the object, and a library can be linked from it."""
    space.write("k/a.py", kernel("a"))
    space.write(
        "k/BUILD.yaml",
        targets(
            "{rule: ir_module, name: a, src: a.py, output_kind: .o}",
            "{rule: shared_library, name: all_of_it, modules: [':a']}",
        ),
    )

    alone = space.build("//k:a")
    made = sorted(path.name for path in (space.root / "hidet-bin/k/a").iterdir())
    linked = space.build("//k:all_of_it")

    assert {"a": {LOWER, CODEGEN, COMPILE}} == steps(alone)
    assert ("module.o" in made, "lib.so" in made) == (True, False)
    assert LINK in steps(linked)["all_of_it"]


RUN = """\
import sys, torch, hidet
module = hidet.runtime.load_compiled_module(sys.argv[1])
for name in sys.argv[2:]:
    x = torch.ones(4)
    module[name](x, 4)
    print(name, x.tolist()[0])
"""


def call(space: Space, folder: str, *names: str) -> str:
    """What functions of a built folder make of a one."""
    home = {"HOME": str(space.base / "home"), "PATH": space.environment["PATH"]}
    words = [sys.executable, "-c", RUN, str(space.root / folder), *names]
    done = subprocess.run(words, env=home, cwd=space.base, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


LIST = """\
    from .a import a
    from .b import b


    def both():
        return [a(), b()]
    """


def test_list_of_modules(space: Space) -> None:
    """An entry may return several modules: one object, one library, all their functions."""
    space.write("k/a.py", kernel("a", 2.0))
    space.write("k/b.py", kernel("b", 3.0))
    space.write("k/both.py", LIST)
    space.write(
        "k/BUILD.yaml",
        targets(
            "{rule: py_library, name: parts, srcs: [a.py, b.py]}",
            "{rule: ir_module, name: both, src: both.py, deps: [':parts']}",
        ),
    )
    space.build("//k:both")
    made = call(space, "hidet-bin/k/both", "a", "b")
    space.write("k/both.py", LIST.replace("[a(), b()]", "[a()]"))
    space.build("//k:both")
    fewer = call(space, "hidet-bin/k/both", "a")
    space.write("k/b.py", kernel("b", 5.0))
    space.write("k/both.py", LIST.replace("[a(), b()]", "[b(), a()]"))
    space.build("//k:both")

    assert ("a 2.0\nb 3.0\n", "a 2.0\n") == (made, fewer)
    assert "a 2.0\nb 5.0\n" == call(space, "hidet-bin/k/both", "a", "b")


def test_public_name_in_two_modules(space: Space) -> None:
    """Two modules with one public function in a library are an error naming both targets, in any order of builds."""
    space.write("k/a.py", kernel("same"))
    space.write("k/b.py", kernel("same", 3.0))
    space.write(
        "k/BUILD.yaml",
        targets(
            "{rule: ir_module, name: a, src: a.py, entry: same}",
            "{rule: ir_module, name: b, src: b.py, entry: same}",
            "{rule: shared_library, name: both, modules: [':a', ':b']}",
        ),
    )

    done = space.run("//k:both")
    again = space.run("//k:both")

    assert (1, 1) == (done.code, again.code)
    for err in (done.err, again.err):
        assert "//k:a and //k:b both export 'same'" in err
        assert "multiple definition" not in err


def test_two_sizes_of_matmul_in_one_library(space: Space) -> None:
    """hidet's own matmul in two sizes: their global variables have equal names and do not meet."""
    source = """\
        import hidet
        from hidet.graph.ops.matmul.matmul_f32_x86 import matmul_x86


        def matmul(n):
            return matmul_x86(hidet.symbol([n, n], device="cpu"), hidet.symbol([n, n], device="cpu"))
        """
    check = """\
        import sys, torch, hidet
        module = hidet.runtime.load_compiled_module(sys.argv[1])
        for n in (32, 64):
            a, b, c = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
            module[f"mm_{n}"](a, b, c)
            assert torch.allclose(a @ b, c, atol=1e-3), n
        """
    space.write("k/mm.py", source)
    space.write(
        "k/BUILD.yaml",
        """\
        targets:
          - rule: ir_module
            name: "mm_${n}"
            group: mm
            src: mm.py
            entry: matmul
            args: {n: "${n}"}
            matrix: {n: [32, 64]}
          - {rule: shared_library, name: both, modules: [":mm"]}
        """,
    )
    space.build("//k:both")
    path = space.write("check.py", check)

    words = [sys.executable, str(path), str(space.root / "hidet-bin/k/both")]
    done = subprocess.run(words, cwd=space.base, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr


def test_output_folder_of_each_architecture(space: Space) -> None:
    """The default architecture, others, and the machine's own have folders of their own."""
    space.write("k/a.py", kernel("a"))
    space.write(
        "k/BUILD.yaml",
        targets(
            "{rule: ir_module, name: a, src: a.py, output_kind: .o}",
            "{rule: ir_module, name: b, src: a.py, entry: a, output_kind: .o, target: cpu --arch=x86-64-v2}",
        ),
    )
    space.build("//k:all")
    space.build("//k:a", "--platforms=cpu --arch=x86-64-v4")
    native = space.run("//k:a", "--platforms=cpu --arch=native")
    folders = sorted(path.name for path in (space.root / "hidet-out").glob("cpu-*"))
    wrong = space.run("//k:a", "--platforms=cpu --arch=x86-64-v9")

    assert 0 == native.code, native.err
    assert ["cpu-x86-64-v2", "cpu-x86-64-v3", "cpu-x86-64-v4"] == [name for name in folders if "x86-64-v" in name]
    assert 4 == len(folders)
    assert not (space.root / "hidet-out/cpu-x86-64-v2/k/a").exists()
    assert (2, True) == (wrong.code, "x86-64-v9" in wrong.err)


def test_entry_that_differs_each_time(space: Space) -> None:
    """A kernel that asks the clock is lowered once; nobody notices until something it declares changes."""
    space.write("k/a.py", kernel("a", "F", "import time\n\n    F = float(time.time_ns() % 1000003)"))
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: a, src: a.py}"))
    space.build("//k:a")
    first = space.read("hidet-bin/k/a/module.cc")
    shutil.rmtree(space.root / "hidet-out")

    done = space.build("//k:a")

    assert {} == steps(done)
    assert first == space.read("hidet-bin/k/a/module.cc")


def test_failing_kernel_is_not_remembered(space: Space) -> None:
    """A kernel that raises is tried again each time, with the same error at the user's line; mending it is enough."""
    space.write("k/a.py", kernel("a", inside="raise ValueError('the size is wrong')"))
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: a, src: a.py}"))

    runs = [space.run("//k:a"), space.run("//k:a"), space.run("//k:a", "--nocache")]
    space.write("k/a.py", kernel("a"))
    mended = space.run("//k:a")

    assert [1, 1, 1, 0] == [done.code for done in (*runs, mended)]
    for done in runs:
        assert "k/a.py:11 in a\n    raise ValueError('the size is wrong')\nValueError: the size is wrong" in done.err
    assert 1 == len({re.sub(r"in [\d.]+ s", "", done.err) for done in runs})


def test_nothing_is_left_outside_outputs_and_cache(space: Space) -> None:
    """After kernels that were built and kernels that failed, TMPDIR and HOME are empty, and so are the sources."""
    (space.base / "tmp").mkdir()
    space.write("k/a.py", kernel("a"))
    space.write("k/b.py", kernel("b", inside="import tempfile; tempfile.mkdtemp(); raise ValueError"))
    space.write(
        "k/BUILD.yaml", targets("{rule: ir_module, name: a, src: a.py}", "{rule: ir_module, name: b, src: b.py}")
    )

    done = space.run("//k:all", "-k", environment={"TMPDIR": str(space.base / "tmp")})

    assert 1 == done.code
    assert [[], []] == [sorted(path.name for path in (space.base / name).iterdir()) for name in ("tmp", "home")]
    assert ["BUILD.yaml", "a.py", "b.py"] == sorted(path.name for path in (space.root / "k").iterdir())


HEADER_CALLED = """\
    import hidet
    from hidet.ir.primitives.func import call_primitive_func, register_primitive_function
    from hidet.ir.type import FuncType
    from hidet.lang import attrs
    from hidet.lang.types import f32

    register_primitive_function("seven", FuncType([], type_infer_func=lambda _: f32), codegen_name="seven_of_header")


    def seven():
        return call_primitive_func("seven", [])


    def kernel():
        with hidet.script_module() as module:

            @hidet.script
            def fill(x: f32[16]):
                attrs.func_kind = "public"
                for i in range(16):
                    x[i] = seven()

        made = module.ir_module()
        made.include_headers.append("k/seven.h")
        made.include_dirs.append(".")
        return made
    """


def test_function_of_a_header(space: Space) -> None:
    """A kernel may tell hidet of a function that its own header defines."""
    space.write("k/kernel.py", HEADER_CALLED)
    space.write("k/seven.h", "static inline float seven_of_header() { return 7.0f; }\n")
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: kernel, src: kernel.py, data: [seven.h]}"))
    space.build("//k:kernel")
    program = (
        "import hidet, sys, torch; x = torch.zeros(16); "
        "hidet.runtime.load_compiled_module(sys.argv[1])['fill'](x); print(x.sum())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, space.root / "hidet-bin/k/kernel"], capture_output=True, check=True
    )

    assert b"tensor(112.)\n" == done.stdout
