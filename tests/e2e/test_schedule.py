"""What runs first, and how much at once: by what each action took when it last ran."""

from __future__ import annotations

import sys

import pytest

from tests.space import Space, targets

# Takes 200 MiB. Says when it runs; where a.txt says so, it ends only once the other one has started.
HUNGRY = """\
#!/bin/sh
echo start >> {log}; touch {base}/$1.here
if grep -q both a.txt; then while ! test -e {base}/$2.here; do sleep 0.02; done; fi
{python} -c "import time; taken = b'x' * (200 << 20); time.sleep(0.3)"
echo end >> {log}; cat a.txt > out.txt
"""


def hungry(space: Space) -> None:
    """Two actions, `//k:one` and `//k:two`, that take 200 MiB each."""
    log = space.base / "log"
    space.write("k/hungry.sh", HUNGRY.format(log=log, base=space.base, python=sys.executable))
    step = "{{rule: command, name: {}, arguments: [sh, hungry.sh, {}, {}], {}}}"
    files = "inputs: [hungry.sh, a.txt], outputs: [out.txt]"
    space.write(
        "k/BUILD.yaml", targets(step.format("one", "one", "two", files), step.format("two", "two", "one", files))
    )


def order(space: Space, text: str, *flags: str) -> tuple[list[str], str]:
    """Build both with this in a.txt: when they started and ended, and what the program said."""
    space.write("k/a.txt", f"{text}\n")
    for file in space.base.glob("*.here"):
        file.unlink()
    (space.base / "log").write_text("")
    done = space.build("-j2", *flags, "//k:all")
    return (space.base / "log").read_text().split(), done.err


def test_memory_is_shared(space: Space) -> None:
    """Two actions that took 200 MiB each run one after the other where they may take 300 together, and it says so."""
    hungry(space)
    order(space, "learn")
    together, told = order(space, "both", "--local_resources=memory=1G")

    assert ["start", "start", "end", "end"] == together
    assert "memory" not in told
    apart, told = order(space, "apart", "--local_resources=memory=300")

    assert ["start", "end", "start", "end"] == apart
    assert told.count("--local_resources=memory=") == 1


def test_one_always_runs(space: Space) -> None:
    """An action that takes more than there may be taken runs alone."""
    hungry(space)
    order(space, "learn")

    assert ["start", "end", "start", "end"] == order(space, "apart", "--local_resources=memory=10")[0]


def test_unknown_actions_count_as_something(space: Space) -> None:
    """What never ran here is taken for a small compile, not for nothing."""
    hungry(space)

    assert ["start", "end", "start", "end"] == order(space, "first", "--local_resources=memory=300")[0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("memory=lots", "expected memory=4096 (MiB), memory=4G or memory=HOST_RAM*.5, not 'memory=lots'"),
        ("gpu=1", "expected memory=4096 (MiB), memory=4G or memory=HOST_RAM*.5, not 'gpu=1'"),
        ("memory=1.2.3", "'1.2.3' is no number"),
    ],
)
def test_wrong_sizes(space: Space, given: str, told: str) -> None:
    """A size we cannot read is a usage error that shows how it is written."""
    done = space.run(f"--local_resources={given}", "//k:all")

    assert (done.code, told in done.err) == (2, True), done.err


@pytest.mark.parametrize("given", ["4096", "2G", "2GiB", "500MB", "HOST_RAM", "HOST_RAM*.5"])
def test_sizes(space: Space, given: str) -> None:
    """MiB as in Bazel, numbers with units, and parts of what the machine has."""
    hungry(space)

    assert order(space, "first", f"--local_resources=memory={given}")[0].count("end") == 2


def test_longest_chain_first(space: Space) -> None:
    """One after another, what has most behind it comes first: by the number of steps, then by how long they took."""

    def step(name: str, length: float, needs: str = "") -> str:
        arguments = f'[sh, -c, "sleep {length}; cat a.txt > out.txt"]'
        return f"{{rule: command, name: {name}, arguments: {arguments}, inputs: [a.txt{needs}], outputs: [out.txt]}}"

    steps = (step("a_short", 0), step("b_long", 0.9), step("c_begin", 0.6), step("d_end", 0.6, ', ":c_begin"'))
    space.write("k/BUILD.yaml", targets(*steps))
    space.write("k/a.txt", "one\n")
    first = space.build("-j1", "//k:all")

    assert first.actions[0] == "Command //k:c_begin"
    space.write("k/a.txt", "two\n")
    second = space.build("-j1", "//k:all")

    assert [f"Command //k:{name}" for name in ("c_begin", "b_long", "d_end", "a_short")] == second.actions
