"""One declaration, many machines: what may differ between two builds that share a cache, and what may not."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hidet_build.files import RACY_NS
from tests.space import PROGRAM, Ended, Space, targets

OBJECTS = """\
    targets:
      - rule: cc_object
        name: object
        src: a.cc
        hdrs: [glob: ["*.h"]]
        includes: [inc]
        copts: [-g]
      - rule: shared_library
        name: library
        modules: [":object"]
      - rule: command
        name: text
        arguments: [sh, tool, a.txt, out]
        inputs: [tool, a.txt]
        outputs: [out]
    """
SOURCE = """\
    #include "a.h"
    extern "C" const char *where() { return __FILE__ " " __DATE__ " " __TIME__; }
    extern "C" int value() { return VALUE; }
    """
KERNELS = """\
    targets:
      - rule: ir_module
        name: add
        src: add.py
        entry: add
      - rule: ir_module
        name: symbolic
        src: symbolic.py
    """
ADD = """\
    import hidet
    from hidet.lang import attrs
    from hidet.lang.types import f32, i32


    @hidet.script
    def add(n: i32, x: ~f32, y: ~f32):
        attrs.func_kind = "public"
        for i in range(n):
            y[i] = x[i] + y[i]
    """
# Sets of symbolic dimensions come out in the order of their hashes unless somebody sorts them.
SYMBOLIC = """\
    import hidet


    def symbolic():
        a = hidet.symbol(["m", "k"], device="cpu")
        b = hidet.symbol(["k", "n"], device="cpu")
        return hidet.ops.matmul(a, b)
    """


def objects(space: Space) -> None:
    """Handwritten C++, a library of it, and a command that runs a tool of the workspace."""
    space.write("k/BUILD.yaml", OBJECTS)
    space.write("k/a.cc", SOURCE)
    space.write("k/a.h", "#define VALUE 1\n")
    space.write("k/a.txt", "text\n")
    space.write("k/tool", '#!/bin/sh\nsort "$1" > "$2"\n').chmod(0o755)


def clone(space: Space, base: Path) -> Space:
    """The same sources at another place, newer, with a home and a cache folder of their own."""
    other = Space(base / "somewhere/much deeper")
    shutil.rmtree(other.root)
    shutil.copytree(space.root, other.root, ignore=shutil.ignore_patterns("hidet-*"), copy_function=shutil.copy)
    return other


def outputs(space: Space) -> dict[str, tuple[str, int]]:
    """Every output with its content and mode."""
    found = {}
    for path in (space.root / "hidet-out").glob("cpu-*/**/*"):
        if path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(space.root))] = (content, path.stat().st_mode)
    return found


def elsewhere(space: Space) -> dict[str, str]:
    """An environment that shares nothing with the usual one but the programs on PATH."""
    noise = {f"UNRELATED_{number}": str(number) for number in range(50)}
    return {
        **noise,
        "USER": "somebody",
        "LOGNAME": "somebody",
        "HOME": str(space.base / "home"),
        "HOSTNAME": "another-host",
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "C",
        "TZ": "Asia/Kathmandu",
        "PYTHONHASHSEED": "4242",
        "TMPDIR": str(space.base),
        "CFLAGS": "-O0",
        "CPATH": "/nonexistent",
        "GCC_COLORS": "error=01;31",
        "SOURCE_DATE_EPOCH": "1234567890",
        "CUDA_HOME": "/nonexistent",
        "OMP_NUM_THREADS": "3",
    }


def with_umask(space: Space, mask: int, *arguments: str, environment: dict[str, str]) -> Ended:
    """A build by a user with another umask."""
    before = os.umask(mask)
    try:
        return space.build(*arguments, environment=environment)
    finally:
        os.umask(before)


def test_clones_share_a_cache(space: Space, tmp_path: Path) -> None:
    """Another folder, user, time, locale, umask and environment: everything comes from the cache, and is the same."""
    objects(space)
    store = f"--disk_cache={space.base}/store"
    space.build("//...", store)
    other = clone(space, tmp_path)

    done = with_umask(other, 0o077, "//...", store, environment=elsewhere(other))

    assert [] == done.actions
    assert outputs(space) == outputs(other)


def test_clones_make_equal_bytes(space: Space, tmp_path: Path) -> None:
    """Without a shared cache the same bytes are made again, debug information and dates included."""
    objects(space)
    space.build("//...")
    other = clone(space, tmp_path)

    done = with_umask(other, 0o002, "//...", environment=elsewhere(other))

    assert len(done.actions) == 4
    assert outputs(space) == outputs(other)


@pytest.mark.hidet
def test_clones_make_equal_kernels(space: Space, tmp_path: Path) -> None:
    """Kernels too: the same source, object and library under another hash seed, path and user."""
    space.write("k/BUILD.yaml", KERNELS)
    space.write("k/add.py", ADD)
    space.write("k/symbolic.py", SYMBOLIC)
    store = f"--disk_cache={space.base}/store"
    space.build("//...", store)
    other = clone(space, tmp_path)
    third = clone(space, tmp_path / "third")

    anew = with_umask(other, 0o002, "//...", environment=elsewhere(other))
    restored = with_umask(third, 0o077, "//...", store, environment=elsewhere(third))

    assert (True, []) == ("CppCompile //k:symbolic" in anew.actions, restored.actions)
    assert outputs(space) == outputs(other) == outputs(third)


@pytest.mark.hidet
def test_paths_of_this_machine_are_in_no_output(space: Space) -> None:
    """Nothing that a kernel's build makes names the workspace, the execution root, or the user's home."""
    space.write("k/BUILD.yaml", KERNELS)
    space.write("k/add.py", ADD)
    space.write("k/symbolic.py", SYMBOLIC)
    space.build("//...")
    made = [path for path in (space.root / "hidet-out").glob("cpu-*/**/*") if path.is_file()]

    assert [] == [path for path in made if os.fsencode(space.base) in path.read_bytes()]


# ---- compilers


def test_longer_path_runs_nothing(space: Space) -> None:
    """A folder at the end of PATH hides nothing, whatever it holds."""
    objects(space)
    space.build("//...")
    folder = space.base / "bin"
    folder.mkdir()
    shutil.copy("/bin/true", folder / "g++")

    done = space.build("//...", environment={"PATH": f"{os.environ['PATH']}:{folder}"})

    assert "INFO: 3 targets up to date" == done.summary


def test_compiler_by_another_path_runs_nothing(space: Space) -> None:
    """The same compiler through a folder that is a link is the same compiler."""
    objects(space)
    space.build("//...")
    compiler = shutil.which("g++")
    assert compiler is not None
    (space.base / "link").symlink_to(os.path.dirname(compiler))

    done = space.build("//...", environment={"PATH": f"{space.base}/link:{os.environ['PATH']}"})

    assert "INFO: 3 targets up to date" == done.summary


def test_other_compiler_runs_what_it_compiles(space: Space) -> None:
    """Another g++ at the front of PATH counts, and the explanation names it; commands are not concerned."""
    objects(space)
    space.build("//...")
    folder = space.base / "bin"
    folder.mkdir()
    wrapper = folder / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    wrapper.chmod(0o755)

    done = space.build("//...", "--explain", environment={"PATH": f"{folder}:{os.environ['PATH']}"})
    back = space.build("//...")

    assert {"CppCompile //k:object", "CppLink //k:library"} == set(done.actions)
    assert "EXPLAIN: CppCompile //k:object: tool cxx changed: g++" in done.err
    assert [] == back.actions


def test_edited_compiler_is_noticed(space: Space) -> None:
    """A compiler that is replaced where it is counts, though every path stayed the same."""
    objects(space)
    folder = space.base / "bin"
    folder.mkdir()
    wrapper = folder / "g++"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    wrapper.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    space.build("//k:object", environment=environment)
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -DNEW "$@"\n')

    done = space.build("//k:object", environment=environment)

    assert ["CppCompile //k:object"] == done.actions


# ---- handwritten C++


def test_header_edit_rebuilds(space: Space) -> None:
    """An edit of a header compiles again, and links only where the object came out different."""
    objects(space)
    space.build("//k:library")
    space.write("k/a.h", "#define VALUE 2\n")
    value = space.build("//k:library")
    space.write("k/a.h", "#define VALUE 2 // two\n")

    comment = space.build("//k:library")

    compiled, linked = "CppCompile //k:object", "CppLink //k:library"
    assert (True, True) == (compiled in value.actions, linked in value.actions)
    assert [compiled] == comment.actions


def test_header_added_to_a_glob_counts(space: Space) -> None:
    """A new header can hide a system's one, so it compiles again."""
    objects(space)
    space.build("//k:object")
    space.write("k/b.h", "")

    assert ["CppCompile //k:object"] == space.build("//k:object").actions


@pytest.mark.parametrize("include", ["k/b/b.h", "b.h"])
def test_undeclared_header_is_an_error_with_the_line_to_add(space: Space, include: str) -> None:
    """A header of the workspace that is not declared is not there, and the error says how to declare it."""
    space.write("k/BUILD.yaml", targets("{rule: cc_object, name: object, src: b/a.cc}"))
    space.write("k/b/a.cc", f'#include "{include}"\n')
    space.write("k/b/b.h", "")

    done = space.run("//k:object")

    assert 1 == done.code
    assert 'hint: add "b/b.h" to hdrs of //k:object' in done.err


def test_headers_by_include_folder_and_through_deps(space: Space) -> None:
    """`includes` finds headers by short names, for dependents too; a dependency's headers need no second mention."""
    space.write(
        "lib/BUILD.yaml",
        """\
        package: {visibility: ["//visibility:public"]}
        targets:
          - {rule: cc_object, name: lib, src: lib.cc, hdrs: [glob: ["include/**/*.h"]], includes: [include]}
        """,
    )
    space.write("lib/lib.cc", '#include "deep/lib.h"\nint lib() { return LIB; }\n')
    space.write("lib/include/deep/lib.h", "#define LIB 1\nint lib();\n")
    space.write("k/BUILD.yaml", targets("{rule: cc_object, name: use, src: use.cc, deps: ['//lib:lib']}"))
    space.write(
        "k/use.cc", '#include <deep/lib.h>\n#include "lib/include/deep/lib.h"\nint use() { return lib() + LIB; }\n'
    )
    space.build("//k:use")
    space.write("lib/include/deep/lib.h", "#define LIB 2\nint lib();\n")

    done = space.build("//k:use")

    assert ["CppCompile //k:use"] == done.actions


def test_two_libraries_that_export_one_name(space: Space) -> None:
    """Two objects with one public name in a library are an error that names both targets, before ld sees them."""
    space.write(
        "k/BUILD.yaml",
        """\
        targets:
          - {rule: cc_object, name: one, src: one.cc}
          - {rule: cc_object, name: two, src: two.cc}
          - {rule: shared_library, name: both, modules: [":one", ":two"]}
        """,
    )
    space.write("k/one.cc", 'extern "C" int twice() { return 1; }\n')
    space.write("k/two.cc", 'extern "C" int twice() { return 2; }\n')

    done = space.run("//k:both")

    assert 1 == done.code
    assert "//k:one and //k:two both export 'twice'" in done.err
    assert "multiple definition" not in done.err


def test_plan_for_the_own_cpu_holds_on_its_machine_alone(space: Space) -> None:
    """What `native` means is found out anew on another machine that shares the workspace."""
    objects(space)
    flags = ["//k:object", "--platforms=cpu --arch=native"]
    space.build(*flags)
    time.sleep(RACY_NS / 1e9 + 0.1)
    space.build(*flags)
    other = ["unshare", "-u", "sh", "-c", 'hostname other && exec "$@"', "sh"]
    if subprocess.run([*other, "true"], check=False, capture_output=True).returncode:
        pytest.skip("may not change the host's name here")

    loaded = []
    for prefix in ([], other):
        words = [*prefix, *PROGRAM, *flags]
        environment = {**space.environment, "PYTHONPROFILEIMPORTTIME": "1"}
        done = subprocess.run(words, cwd=space.root, env=environment, capture_output=True, text=True, check=True)
        loaded.append("hidet_build.declaration" in done.stderr)

    assert [False, True] == loaded
