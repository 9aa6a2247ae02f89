"""What somebody found who set out to make it wrong: each a smallest case with the right answer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.space import Space, targets

OWN_RULE = """\
    from hidet_build.rule import Context, DefaultInfo, attr, rule


    @rule(src=attr.file(required=True))
    def over(ctx: Context):
        out = ctx.output("s")
        ctx.action("Two", tool="command:sh", arguments=["sh", "-c", "echo new > k/s"],
                   inputs={"k/s": ctx.attrs.src}, outputs={"k/s": out})
        return [DefaultInfo((out,))]
    """


def test_output_over_an_input(space: Space) -> None:
    """An action that would write over its own source is refused before it runs."""
    space.write("rules/own.py", OWN_RULE)
    space.write("k/BUILD.yaml", 'load: ["//rules:own.py"]\ntargets:\n  - {rule: over, name: t, src: s}\n')
    space.write("k/s", "mine\n")

    done = space.run("//k:t")

    assert 1 == done.code
    assert "the output 'k/s' would be written over the input 'k/s'" in done.err
    assert "mine\n" == space.read("k/s")


def test_empty_folders_count(space: Space) -> None:
    """An empty folder among the inputs is an input: by another name it is another action."""
    make = "{{rule: command, name: g{0}, arguments: [mkdir, -p, d], outputs: [d/]}}"
    use = '{{rule: command, name: x, arguments: [sh, -c, "find .. -name d > out"], inputs: [":g{0}"], outputs: [out]}}'
    space.write("k/BUILD.yaml", targets(make.format(1), make.format(2), use.format(1)))
    space.build("//k:x")
    space.write("k/BUILD.yaml", targets(make.format(1), make.format(2), use.format(2)))
    space.build("//k:x")

    assert "../k/g2/d\n" == space.read("hidet-bin/k/x/out")


def test_link_that_leads_elsewhere_for_a_while(space: Space) -> None:
    """A source that is a link, retargeted while the action reads it and put back: the result counts for nothing."""
    swap = "ln -sfn v2 {0}/k/cur; cat k/cur > out; ln -sfn v1 {0}/k/cur"
    space.write("k/v1", "one\n")
    space.write("k/v2", "two\n")
    os.symlink("v1", space.root / "k" / "cur")
    arguments = swap.format(space.root).replace("k/cur >", "cur >")
    space.write(
        "k/BUILD.yaml",
        targets(f'{{rule: command, name: t, arguments: [sh, -c, "{arguments}"], inputs: [cur], outputs: [out]}}'),
    )

    done = space.run("//k:t")

    assert 1 == done.code
    assert "k/cur changed each time Command ran" in done.err


def test_output_made_executable(space: Space) -> None:
    """A made file that somebody made executable is put right before it is used."""
    space.write(
        "k/BUILD.yaml",
        targets(
            "{rule: command, name: a, arguments: [cp, s, out], inputs: [s], outputs: [out]}",
            '{rule: command, name: b, arguments: [sh, -c, "test -x a/out && echo yes > out || echo no > out"], '
            'inputs: [":a"], outputs: [out]}',
        ),
    )
    space.write("k/s", "one\n")
    space.build("//k:a")
    (space.root / "hidet-bin/k/a/out").chmod(0o755)
    done = space.build("--explain", "//k:b")

    assert "no\n" == space.read("hidet-bin/k/b/out")
    assert "output out was made executable" in done.err


LATE = """\
    from hidet_build.rule import Context, DefaultInfo, Text, rule


    @rule()
    def late(ctx: Context):
        first, out = ctx.output("first"), ctx.output("out")
        ctx.action("First", tool="command:cp", arguments=["cp", "a", "b"],
                   inputs={"a": Text("x")}, outputs={"b": first})

        def go_on(later, read):
            from .helper import WORD

            later.action("Then", tool="command:cp", arguments=["cp", "a", "b"],
                         inputs={"a": Text(WORD)}, outputs={"b": out})

        ctx.then([first], [out], go_on)
        return [DefaultInfo((out,))]
    """


def test_import_inside_a_continuation(space: Space) -> None:
    """What a continuation of a rule imports is part of the rule: an edit plans anew."""
    space.write("rules/late.py", LATE)
    space.write("rules/helper.py", 'WORD = "one"\n')
    space.write("k/BUILD.yaml", 'load: ["//rules:late.py"]\ntargets:\n  - {rule: late, name: t}\n')
    space.build("//k:t")
    space.write("rules/helper.py", 'WORD = "three"\n')
    space.build("//k:t")

    assert "three" == space.read("hidet-bin/k/t/out")


def test_link_in_a_glob_comes_alive(space: Space) -> None:
    """A glob matches a link by what it leads to: when that appears, the glob is taken again."""
    command = (
        '{rule: command, name: t, arguments: [sh, -c, "ls *.txt > out"], inputs: {glob: ["*.txt"]}, outputs: [out]}'
    )
    space.write("k/BUILD.yaml", targets(command))
    space.write("k/a.txt", "")
    os.symlink("later", space.root / "k" / "b.txt")
    space.build("//k:t")
    space.write("k/later", "")
    space.build("//k:t")

    assert "a.txt\nb.txt\n" == space.read("hidet-bin/k/t/out")


def test_empty_output_folder_deleted(space: Space) -> None:
    """An output folder without files is missed when it is gone."""
    space.write("k/BUILD.yaml", targets("{rule: command, name: a, arguments: [mkdir, -p, d], outputs: [d/]}"))
    space.build("//k:a")
    space.build("//k:a")
    shutil.rmtree(space.root / "hidet-bin/k/a/d")
    space.build("//k:a")

    assert (space.root / "hidet-bin/k/a/d").is_dir()


def test_source_that_is_a_pipe(space: Space) -> None:
    """A named pipe in the place of a source is an error, and nobody waits for a writer."""
    space.write(
        "k/BUILD.yaml", targets("{rule: command, name: a, arguments: [cp, s, out], inputs: [s], outputs: [out]}")
    )
    space.write("k/s", "")
    space.build("//k:a")
    (space.root / "k/s").unlink()
    os.mkfifo(space.root / "k/s")

    done = space.run("//k:a", timeout=60)

    assert 1 == done.code
    assert "not a regular file" in done.err or "no file k/s" in done.err


def test_output_name_that_is_not_text(space: Space) -> None:
    """An output file whose name is not UTF-8 is a located error."""
    command = r"""{rule: command, name: a, arguments: [sh, -c, "touch d/$(printf '\\377')"], outputs: [d/]}"""
    space.write("k/BUILD.yaml", targets(command))

    done = space.run("//k:a")

    assert 1 == done.code
    assert "left a file whose name is not UTF-8" in done.err


@pytest.mark.hidet
def test_generated_names_are_taken(space: Space) -> None:
    """A file of the root that has the name of a generated one is refused, not linked in its place."""
    space.write(
        "BUILD.yaml", "workspace: {name: space}\ntargets:\n  - {rule: ir_module, name: t, src: t.py, data: [0.o]}\n"
    )
    space.write("0.o", "")
    space.write("t.py", "def t():\n    return None\n")

    done = space.run("//:t")

    assert 1 == done.code
    assert "cannot be called '0.o' here" in done.err


@pytest.mark.hidet
def test_kernel_that_ends_the_process(space: Space) -> None:
    """A kernel that leaves with exit code 0 before it was lowered has failed."""
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: t, src: t.py}"))
    space.write("k/t.py", "import os\n\n\ndef t():\n    os._exit(0)\n")

    first, again = space.run("//k:t"), space.run("//k:t")

    assert (1, 1) == (first.code, again.code)
    assert "the kernel ended the process" in first.err
    assert "the kernel ended the process" in again.err


@pytest.mark.hidet
def test_missing_function_is_a_link_error(space: Space) -> None:
    """C++ that calls what nobody defines does not link; hidet's loader would only say KeyError."""
    space.write(
        "k/BUILD.yaml",
        targets("{rule: cc_object, name: o, src: o.cc}", "{rule: shared_library, name: l, modules: [':o']}"),
    )
    space.write("k/o.cc", 'extern float foo(float);\nextern "C" float bar(float s) { return foo(s); }\n')

    done = space.run("//k:l")

    assert 1 == done.code
    assert "undefined reference to `foo(float)'" in done.err


def test_pythonpath_is_part_of_the_request(space: Space, tmp_path: Path) -> None:
    """A rule module that imports from PYTHONPATH is planned anew when that names another folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "outside_word.py").write_text(f'WORD = "{name}"\n')
    rule = LATE.replace("from .helper import WORD", "from outside_word import WORD")
    space.write("rules/late.py", rule)
    space.write("k/BUILD.yaml", 'load: ["//rules:late.py"]\ntargets:\n  - {rule: late, name: t}\n')
    for name in ("one", "two"):
        space.build("//k:t", environment={"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path / name}"})

    assert "two" == space.read("hidet-bin/k/t/out")
