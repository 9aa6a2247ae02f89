"""The `query` verb from outside: what does this need, what does this change hit, what is wrong with the question."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.space import Ended, Space

ROOT = """\
workspace: {name: space}
targets:
  - {rule: alias, name: top, actual: "//k:both"}
"""
COMMON = """\
package: {visibility: ["//visibility:public"]}
targets:
  - {rule: py_library, name: tiles, srcs: [tiles.py]}
"""
KERNELS = """\
package: {visibility: ["//visibility:public"]}
targets:
  - {rule: ir_module, name: matmul, src: matmul.py, deps: ["//common:tiles"], tags: [manual]}
  - rule: ir_module
    name: soft
    matrix: {n: [64, 128]}
    src: deep/softmax.py
    args: {n: "${n}"}
    deps: ["//common:tiles"]
  - {rule: shared_library, name: both, modules: [":matmul", ":soft"]}
  - {rule: filegroup, name: chosen, srcs: {select: {cpu: [a.txt], cuda: [b.txt]}}, compatible_with: [cpu]}
"""
SOFT = ["//k:soft", "//k:soft_128", "//k:soft_64"]


@pytest.fixture
def kernels(space: Space) -> Space:
    """Two packages, a matrix, a select, and files that no target names."""
    for path, text in (("BUILD.yaml", ROOT), ("common/BUILD.yaml", COMMON), ("k/BUILD.yaml", KERNELS)):
        space.write(path, text)
    for path in ("common/tiles.py", "k/matmul.py", "k/deep/softmax.py", "k/a.txt", "k/b.txt", "k/unused.py", "NOTES"):
        space.write(path, "")
    return space


def ask(space: Space, text: str, *flags: str, cwd: str = "") -> list[str]:
    """The lines of an answer that must be given."""
    done = space.run("query", *flags, text, cwd=cwd)

    assert (0, "") == (done.code, done.err)
    return done.out.splitlines()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("//k:all", ["//k:both", "//k:chosen", "//k:matmul", *SOFT]),
        ("deps(//k:matmul)", ["//common:tiles", "//common:tiles.py", "//k:matmul", "//k:matmul.py"]),
        ("deps(//k:soft, 1)", SOFT),
        ("deps(//k:chosen)", ["//k:a.txt", "//k:b.txt", "//k:chosen"]),
        ("rdeps(//..., //common:tiles) - //k/...", ["//:top", "//common:tiles"]),
        ("rdeps(//k:all, //common:tiles.py)", ["//common:tiles", "//common:tiles.py", "//k:both", "//k:matmul", *SOFT]),
        ("rdeps(//k:all, common/tiles.py, 1)", ["//common:tiles", "//common:tiles.py"]),
        ("rdeps(//..., k/deep/softmax.py)", ["//:top", "//k:both", "//k:deep/softmax.py", *SOFT]),
        ("rdeps(//..., k/a.txt)", ["//k:a.txt", "//k:chosen"]),
        ("kind('ir_module rule', //...)", ["//k:matmul", "//k:soft_128", "//k:soft_64"]),
        ("kind('source file', deps(//:top)) ^ //k:*", ["//k:deep/softmax.py", "//k:matmul.py"]),
        ("//k:all - //k:matmul ^ kind('^group', //...)", ["//k:soft"]),
        ("attr(tags, manual, //...)", ["//k:matmul"]),
        ("attr(compatible_with, cpu, //...)", ["//k:chosen"]),
        ("labels(srcs, //k:chosen)", ["//k:a.txt", "//k:b.txt"]),
        ("somepath(//:top, common/tiles.py) ^ //k:*", ["//k:both", "//k:matmul"]),
        ("k/unused.py", ["//k:unused.py"]),
        ("rdeps(//..., k/unused.py + NOTES + k/BUILD.yaml)", []),
    ],
)
def test_answers(kernels: Space, text: str, expected: list[str]) -> None:
    """Sets in the order of their labels; a file that no target names is a label like any other."""
    assert expected == ask(kernels, text)


def test_outputs(kernels: Space) -> None:
    """Each line as it was asked for."""
    text = "deps(//k:soft_64, 1)"

    assert ["//common:tiles", "//k:deep/softmax.py", "//k:soft_64"] == ask(kernels, text, "--output=label")
    assert [
        "py_library rule //common:tiles",
        "source file //k:deep/softmax.py",
        "ir_module rule //k:soft_64",
    ] == ask(kernels, text, "--output=label_kind")
    assert [
        "common/BUILD.yaml:3:5: py_library rule //common:tiles",
        "k/deep/softmax.py:1:1: source file //k:deep/softmax.py",
        "k/BUILD.yaml:4:5: ir_module rule //k:soft_64",
    ] == ask(kernels, text, "--output=location")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("matmul", ["//k:matmul"]),
        (":matmul.py", ["//k:matmul.py"]),
        ("matmul.py", ["//k:matmul.py"]),
        ("deep/softmax.py", ["//k:deep/softmax.py"]),
        ("rdeps(all, deep/softmax.py)", ["//k:both", "//k:deep/softmax.py", *SOFT]),
        ("k/matmul.py", ["//k:matmul.py"]),
        ("... ^ kind(filegroup, //...)", ["//k:chosen"]),
    ],
)
def test_words_start_where_the_user_is(kernels: Space, text: str, expected: list[str]) -> None:
    """In a package's folder: its targets and files by their own names, and by their path from the root."""
    assert expected == ask(kernels, text, cwd="k")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "deps(//k:matmul",
            [
                "ERROR: query:1:16: expected ',' and a depth: deps(expression[, depth]); the expression ends here",
                "    deps(//k:matmul",
                "                   ^",
            ],
        ),
        (
            "dep(//k:matmul)",
            [
                "ERROR: query:1:1: there is no function 'dep'",
                "    dep(//k:matmul)",
                "    ^",
                "hint: did you mean 'deps'?",
            ],
        ),
        (
            "deps(//k:matmull)",
            [
                "ERROR: query:1:6: '//k:matmull': the package //k has no target and no file 'matmull'",
                "    deps(//k:matmull)",
                "         ^",
                "hint: did you mean 'matmul'?",
            ],
        ),
        (
            "//k:all + //kk:x",
            [
                "ERROR: query:1:11: no such package '//kk': there is no folder 'kk'",
                "    //k:all + //kk:x",
                "              ^",
            ],
        ),
        (
            "set(//k:a:b)",
            [
                "ERROR: query:1:5: '//k:a:b' is not a label: ':' is not allowed in a name",
                "    set(//k:a:b)",
                "        ^",
            ],
        ),
        (
            "rdeps(//..., k/gone.py)",
            [
                "ERROR: query:1:14: no such package '//k/gone.py': there is no folder 'k/gone.py'",
                "    rdeps(//..., k/gone.py)",
                "                 ^",
            ],
        ),
        (
            "rdeps(//..., common/til.py)",
            [
                "ERROR: query:1:14: 'common/til.py': there is no such file and no such package",
                "    rdeps(//..., common/til.py)",
                "                 ^",
                "hint: did you mean 'common/tiles.py'?",
            ],
        ),
    ],
)
def test_mistakes_are_placed(kernels: Space, text: str, lines: list[str]) -> None:
    """At the word, with a caret, and exit code 7."""
    done = kernels.run("query", text)

    assert (7, "") == (done.code, done.out)
    assert lines == done.err.splitlines()[: len(lines)]


def test_a_broken_package_elsewhere_does_not_matter(kernels: Space) -> None:
    """Only what the expression names, and what that needs, is loaded."""
    kernels.write("broken/BUILD.yaml", "targets: [")

    assert "//k:matmul" in ask(kernels, "rdeps(//k/..., common/tiles.py)")


def test_a_broken_package_is_said_and_can_be_passed_over(kernels: Space) -> None:
    """With -k the answer is partial, which is exit code 3: also where a target needs the broken package."""
    kernels.write("broken/BUILD.yaml", "targets:\n  - {rule: nope, name: x}\n")
    kernels.write("user/BUILD.yaml", 'targets:\n  - {rule: alias, name: y, actual: "//broken:x"}\n')
    refused = kernels.run("query", "rdeps(//..., k/matmul.py)")
    partial = kernels.run("query", "-k", "rdeps(//..., k/matmul.py)")

    assert (7, "") == (refused.code, refused.out)
    assert (3, ["//:top", "//k:both", "//k:matmul", "//k:matmul.py"]) == (partial.code, partial.out.splitlines())
    assert refused.err == partial.err
    assert refused.err.startswith("ERROR: broken/BUILD.yaml:2:12: unknown rule 'nope'\n")


def test_nothing_but_python_is_needed(kernels: Space) -> None:
    """No compiler on PATH, and nothing that only a build needs is imported."""
    done = kernels.run("query", "deps(//:top)", environment={"PATH": "/nowhere"})
    heavy = {"hidet", "torch", "numpy", "google.protobuf", "filelock"}
    script = (
        "import sys; from hidet_build.cli import main; code = main(['query', 'deps(//:top)']);"
        f"print(code, sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )

    assert (0, 10) == (done.code, len(done.out.splitlines()))
    assert "0 []\n" == _python(kernels, script).err


def _python(space: Space, script: str) -> Ended:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=space.root,
        env=space.environment,
        capture_output=True,
        check=False,
        text=True,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
