"""What was declared is taken up again while it holds, and declared anew when it does not."""

from __future__ import annotations

import re

import pytest

from tests.space import Space

RULES = '''\
from hidet_build.rule import DefaultInfo, attr, rule


@rule(src=attr.file(required=True))
def parts(ctx):
    """Makes a part for each word of `src`, and joins them."""
    words, whole = ctx.output("words.txt"), ctx.output("whole.txt")
    ctx.action("Split", tool="command:sh", arguments=["sh", "-c", "tr ' ' '\\\\n' < in > out"],
               inputs={"in": ctx.attrs.src}, outputs={"out": words})

    def expand(later, read):
        made = []
        for word in read(words).decode().split():
            made.append(later.output(f"parts/{word}.txt"))
            later.action("Part", tool="command:sh", arguments=["sh", "-c", f"echo {word} > out"], inputs={},
                         outputs={"out": made[-1]})
        names = {f"{number}.txt": part for number, part in enumerate(made)}
        later.action("Join", tool="command:sh", arguments=["sh", "-c", "cat *.txt > out"], inputs=names,
                     outputs={"out": whole})

    ctx.then([words], [whole], expand)
    return [DefaultInfo((whole,))]
'''


@pytest.fixture
def parts(space: Space) -> Space:
    """A workspace with a target whose actions depend on what another made."""
    space.write("rules/parts.py", RULES)
    space.write("k/BUILD.yaml", 'load: ["//rules:parts.py"]\ntargets:\n  - {rule: parts, name: x, src: words.txt}\n')
    space.write("k/words.txt", "one two\n")
    return space


def test_a_stale_plan_is_made_anew(parts: Space) -> None:
    """What ran before it showed is not run again, and what a saved continuation declared is forgotten."""
    first = parts.build("//k:x")
    parts.write("k/words.txt", "one three two\n")
    second = parts.build("//k:x")
    third = parts.build("//k:x")

    assert ["Split //k:x", *["Part //k:x"] * 2, "Join //k:x"] == first.actions
    assert ["Split //k:x", "Part //k:x", "Join //k:x"] == second.actions
    assert "one\nthree\ntwo\n" == parts.read("hidet-bin/k/x/whole.txt")
    assert ([], "INFO: 1 target up to date") == (third.actions, third.summary)


def test_a_failure_before_a_stale_plan_is_told_once(parts: Space) -> None:
    """What failed before it showed is neither run nor told again, and counts once."""
    log = parts.base / "log"
    declared = parts.read("k/BUILD.yaml")
    script = f"echo ran >> {log}; false"
    bad = f'{{rule: command, name: bad, arguments: [sh, -c, "{script}"], outputs: [o]}}'
    parts.write("k/BUILD.yaml", f"{declared}  - {bad}\n")
    parts.run("-k", "-j1", "//k:all")
    log.write_text("")
    parts.write("k/words.txt", "one three two\n")
    done = parts.run("-k", "-j1", "//k:all")

    assert ["Split //k:x", "Part //k:x", "Join //k:x"] == done.actions
    assert "ran\n" == log.read_text()
    assert 1 == done.err.count("//k:bad: Command failed")
    assert done.summary == "ERROR: 1 of 2 targets not built: //k:bad: 6 actions: 3 executed, 2 up to date, 1 failed"
    assert "6/6" == re.findall(r"^\[(\d+/\d+)\]", done.err, re.MULTILINE)[-1]


def test_a_plan_taken_up_runs_what_changed(parts: Space) -> None:
    """An edit that changes no declaration needs no planning; the outcome is the same."""
    parts.build("//k:x")
    parts.write("k/words.txt", "one  two\n")
    done = parts.build("//k:x")

    assert "one\ntwo\n" == parts.read("hidet-bin/k/x/whole.txt")
    assert ["Split //k:x"] == done.actions


def test_a_package_that_appears_below_counts(space: Space) -> None:
    """A glob ends where another package begins, and a wildcard finds it."""
    space.write("k/BUILD.yaml", _LIST)
    space.write("k/a.txt", "a\n")
    space.write("k/sub/b.txt", "b\n")
    space.build("//...")
    before = space.read("hidet-bin/k/list/out.txt")
    space.write("k/sub/BUILD.yaml", _LIST)
    space.build("//...")

    assert ("a.txt\nsub\n", "a.txt\n") == (before, space.read("hidet-bin/k/list/out.txt"))
    assert "b.txt\n" == space.read("hidet-bin/k/sub/list/out.txt")


_LIST = """\
targets:
  - rule: command
    name: list
    arguments: [sh, -c, "ls | grep -v out.txt > out.txt"]
    inputs: {glob: ["**/*.txt"]}
    outputs: [out.txt]
"""


def test_an_edit_of_a_rules_import_counts(space: Space) -> None:
    """Of the module itself, of what it imports, and of what it imports when it is called."""
    head = "from hidet_build.rule import DefaultInfo, attr, rule\n"
    space.write("rules/word.py", "WORD = 'one'\n")
    space.write(
        "rules/say.py",
        head + "\n\n@rule()\ndef say(ctx):\n    from . import word\n    out = ctx.output('out.txt')\n"
        "    ctx.action('Say', tool='command:sh', arguments=['sh', '-c', f'echo {word.WORD} > out.txt'], inputs={},\n"
        "               outputs={'out.txt': out})\n    return [DefaultInfo((out,))]\n",
    )
    space.write("k/BUILD.yaml", 'load: ["//rules:say.py"]\ntargets:\n  - {rule: say, name: x}\n')
    said = []
    for word in ("one", "two", "one"):
        space.write("rules/word.py", f"WORD = '{word}'\n")
        space.build("//k:x")
        said.append(space.read("hidet-bin/k/x/out.txt"))

    assert ["one\n", "two\n", "one\n"] == said


def test_garbage_in_the_output_folder_costs_nothing(parts: Space) -> None:
    """A build takes no notice of plans and null-build answers that something else wrote."""
    parts.build("//k:x")
    for path in (parts.root / "hidet-out" / ".state").rglob("*.v1/*"):
        path.write_bytes(b"\xff garbage")
    done = parts.build("//k:x")

    assert ([], "INFO: 1 target up to date") == (done.actions, done.summary)
