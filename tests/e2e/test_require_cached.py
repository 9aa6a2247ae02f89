"""`--require_cached`: nothing runs; what would have to is an error that says what, for which target, and why."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.test_cache_verb import elsewhere, store
from tests.e2e.test_kernels import kernel
from tests.space import Space, targets

FIRST = "{rule: command, name: first, arguments: [cp, a.txt, out.txt], inputs: [a.txt], outputs: [out.txt]}"
SECOND = (
    "{rule: command, name: second, arguments: [sh, -c, 'sort first/out.txt > out.txt'], "
    'inputs: [":first"], outputs: [out.txt]}'
)
ALONE = "{rule: command, name: alone, arguments: [cp, b.txt, out.txt], inputs: [b.txt], outputs: [out.txt]}"
VARIABLE = {"HIDET_BUILD_REQUIRE_CACHED": "1"}


@pytest.fixture
def tree(space: Space) -> Space:
    """Three commands in package `k`; `second` needs `first`. Nothing is built."""
    space.write("k/BUILD.yaml", targets(FIRST, SECOND, ALONE))
    space.write("k/a.txt", "b\na\n")
    space.write("k/b.txt", "b\n")
    return space


def entries(space: Space) -> set[str]:
    """The entries of the store."""
    return {path.name for path in store(space).glob("ac/??/*")}


def test_nothing_is_run(tree: Space) -> None:
    """The first miss ends the build with exit code 1; it names the target, the action, and what it would make."""
    done = tree.run("//k:second", "--require_cached")

    assert 1 == done.code
    assert (
        "ERROR: k/BUILD.yaml:2:5: //k:first: Command is not cached and would have to run to make k/first/out.txt: "
        "the disk cache has no whole result under its key "
    ) in done.err
    assert "hint: a build without --require_cached makes it; export the cache after that" in done.err
    assert "2 actions: 1 failed, 1 skipped" in done.summary
    assert ([], set()) == (done.actions, entries(tree))
    assert not (tree.root / "hidet-out/cpu-x86-64-v3/k/first/out.txt").exists()


def test_up_to_date_passes(tree: Space) -> None:
    """What was built here needs no cache: at first, as a null build, and with the store gone."""
    tree.build("//k:all")
    ends = [tree.run("//k:all", "--require_cached") for _ in range(3)]
    shutil.rmtree(store(tree) / "ac")
    ends += [tree.run("//k:all", "--require_cached"), tree.run("//k:second", "--require_cached")]

    assert 5 * [0] == [done.code for done in ends]
    assert 4 * ["INFO: 3 targets up to date"] + ["INFO: 1 target up to date"] == [done.summary for done in ends]


def test_cached_passes(tree: Space) -> None:
    """With the outputs gone they come from the store; those of a failed build before do not matter."""
    tree.run("//k:all", "--require_cached")
    tree.build("//k:all")
    shutil.rmtree(tree.root / "hidet-out")
    done = tree.build("//k:all", "--require_cached")

    assert "INFO: built 3 targets: 3 actions: 3 cached" == done.summary
    assert "a\nb\n" == tree.read("hidet-bin/k/second/out.txt")


@pytest.mark.parametrize("change", ["source", "output", "flag"])
def test_answered_before_and_changed_since(tree: Space, change: str) -> None:
    """A null build that was answered from stat data is none any more after an edit, and the miss says what changed."""
    tree.build("//k:all")
    tree.build("//k:all", "--require_cached")
    if change == "source":
        tree.write("k/a.txt", "c\n")
    elif change == "output":
        (tree.root / "hidet-bin/k/first/out.txt").unlink()
        shutil.rmtree(store(tree) / "ac")
    else:
        tree.write("k/BUILD.yaml", targets(FIRST.replace("cp,", "cp, -p,"), SECOND, ALONE))
    done = tree.run("//k:all", "--require_cached")
    said = {
        "source": "input k/a.txt changed: ",
        "output": "output out.txt is gone, and the disk cache has no whole result",
        "flag": "argument 1 changed: a.txt -> -p, and",
    }

    assert (1, []) == (done.code, done.actions)
    assert said[change] in done.err
    assert "//k:first: Command is not cached" in done.err


def test_early_cutoff_counts(tree: Space) -> None:
    """An action is looked for by what went into it: what an edit did not change in the end is no miss."""
    tree.write(
        "k/BUILD.yaml", targets(FIRST.replace("[cp, a.txt, out.txt]", "[sh, -c, 'sort a.txt > out.txt']"), SECOND)
    )
    tree.build("//k:all")
    tree.write("k/a.txt", "a\nb\n")
    tree.build("//k:first")
    done = tree.build("//k:second", "--require_cached")

    assert "INFO: 1 target up to date" == done.summary


def test_keep_going_finds_all(tree: Space) -> None:
    """With -k every miss is told, and what is cached is built."""
    tree.build("//k:alone")
    shutil.rmtree(tree.root / "hidet-out")
    done = tree.run("-k", "//k:all", "--require_cached")

    assert 1 == done.code
    assert 1 == done.err.count("is not cached")
    assert "3 actions: 1 cached, 1 failed, 1 skipped" in done.summary
    assert "b\n" == tree.read("hidet-bin/k/alone/out.txt")


def test_no_cache_tag(space: Space) -> None:
    """What no cache keeps is a miss that says so, unless it is up to date."""
    space.write("k/BUILD.yaml", targets(ALONE.replace("inputs", "tags: [no-cache], inputs")))
    space.write("k/b.txt", "b\n")
    done = space.run("//k:alone", "--require_cached")
    space.build("//k:alone")
    after = space.run("//k:alone", "--require_cached")

    assert (1, 0) == (done.code, after.code)
    assert "it is tagged no-cache, so no cache keeps it" in done.err
    assert "hint: take the tag away, or leave the target out" in done.err


def test_lost_content_is_a_miss(tree: Space) -> None:
    """An entry whose content the store has lost counts for nothing."""
    tree.build("//k:alone")
    shutil.rmtree(tree.root / "hidet-out")
    shutil.rmtree(store(tree) / "cas")

    assert 1 == tree.run("//k:alone", "--require_cached").code


@pytest.mark.parametrize(("value", "code"), [("1", 1), ("true", 1), ("0", 0), ("", 0), ("no", 0)])
def test_variable(tree: Space, value: str, code: int) -> None:
    """HIDET_BUILD_REQUIRE_CACHED is the flag for all of a shell."""
    assert code == tree.run("//k:alone", environment={"HIDET_BUILD_REQUIRE_CACHED": value}).code


def test_flag_is_stronger_than_variable(tree: Space) -> None:
    """`--norequire_cached` builds whatever the variable says."""
    assert [1, 0] == [
        tree.run("//k:alone", environment=VARIABLE).code,
        tree.run("//k:alone", "--norequire_cached", environment=VARIABLE).code,
    ]


def test_nocache_contradicts(tree: Space) -> None:
    """Running everything and running nothing cannot both be wanted."""
    ends = [
        tree.run("//k:alone", "--nocache", "--require_cached"),
        tree.run("//k:alone", "--nocache", environment=VARIABLE),
    ]

    assert [2, 2] == [done.code for done in ends]
    assert all("--nocache runs every action, --require_cached none" in done.err for done in ends)


def test_another_build_is_not_waited_for(tree: Space) -> None:
    """A miss is a miss at once, though somebody is making the very thing."""
    slow = "{rule: command, name: slow, arguments: [sh, -c, 'sleep 5; echo x > out.txt'], outputs: [out.txt]}"
    tree.write("s/BUILD.yaml", targets(slow))
    other = tree.start("//s:slow")
    while not list((store(tree) / "locks").glob("*.lock")):
        assert other.poll() is None
    done = tree.run("//s:slow", "--require_cached")
    still = other.poll()
    other.communicate()

    assert (1, None) == (done.code, still)


# ---- kernels


def outputs(space: Space) -> dict[str, bytes]:
    """The files of the kernel's output folder."""
    folder: Path = space.root / "hidet-bin/k/double"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.hidet
def test_kernel_goes_to_another_machine(space: Space) -> None:
    """A kernel exported and imported elsewhere is restored without a compiler; an edit that counts is named."""
    space.write("k/BUILD.yaml", targets("{rule: ir_module, name: double, src: a.py}"))
    space.write("k/a.py", kernel("double"))
    space.build("//k:double")
    made = outputs(space)
    folder = space.base / "exported"
    exported = space.build("cache", "export", str(folder), "//k:double")
    there = elsewhere(space)
    shutil.rmtree(space.cache)
    shutil.rmtree(space.root / "hidet-out")
    missed = there.run("//k:double", "--require_cached")
    there.build("cache", "import", str(folder))
    restored = there.build("//k:double", "--require_cached")
    found = outputs(there)
    there.write("k/a.py", kernel("double", 3.0))
    edited = there.run("//k:double", "--require_cached")

    assert "exported 4 entries" in exported.err
    assert (1, 1) == (missed.code, edited.code)
    assert "INFO: built 1 target: 4 actions: 4 cached" == restored.summary
    assert made == found
    assert (
        "//k:double: HidetLower is not cached and would have to run to make k/double/lowered: input k/a.py changed"
        in (edited.err)
    )
    assert ([], []) == (restored.actions, edited.actions)
    assert found == outputs(there)
