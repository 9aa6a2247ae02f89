"""The main path of the program, with trivial commands."""

from __future__ import annotations

from tests.space import Space

TWO_STEPS = """\
    targets:
      - rule: command
        name: first
        arguments: [sh, -c, "grep -v '^#' a.txt > out.txt"]
        inputs: [a.txt]
        outputs: [out.txt]
      - rule: command
        name: second
        arguments: [cp, first/out.txt, copy.txt]
        inputs: [":first"]
        outputs: [copy.txt]
    """


def two_steps(space: Space) -> None:
    """A chain of two commands in package `k`, of which the first drops comments."""
    space.write("k/BUILD.yaml", TWO_STEPS)
    space.write("k/a.txt", "one\n")


def test_build_makes_outputs(space: Space) -> None:
    """A build runs the actions in order and publishes their outputs."""
    two_steps(space)

    done = space.build("//k:second")

    assert ["Command //k:first", "Command //k:second"] == done.actions
    assert "one\n" == space.read("hidet-bin/k/second/copy.txt")


def test_second_build_is_up_to_date(space: Space) -> None:
    """A build of what is built runs nothing and says so."""
    two_steps(space)
    space.build("//k:second")

    done = space.build("//k:second")

    assert [] == done.actions
    assert "INFO: 1 target up to date" == done.summary


def test_early_cutoff(space: Space) -> None:
    """A step whose outputs came out the same stops the rebuild there."""
    two_steps(space)
    space.build("//k:second")
    space.write("k/a.txt", "# a comment\none\n")

    done = space.build("//k:second")

    assert ["Command //k:first"] == done.actions
