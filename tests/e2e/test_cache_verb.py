"""The `cache` verb: a store goes to another machine and is whole there, or says what is not."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.space import PROGRAM, Space, targets

PLAIN = "{rule: command, name: plain, arguments: [cp, a.txt, out.txt], inputs: [a.txt], outputs: [out.txt]}"
TWICE = (
    "{rule: command, name: twice, arguments: [sh, -c, 'cat plain/out.txt plain/out.txt > out.txt; echo said'], "
    'inputs: [":plain"], outputs: [out.txt]}'
)
OTHER = "{rule: command, name: other, arguments: [sh, -c, 'echo other > out.txt'], outputs: [out.txt]}"
OUT = "hidet-bin/k/twice/out.txt"


@pytest.fixture
def built(space: Space) -> Space:
    """Three commands in package `k`, built; `twice` needs `plain`."""
    space.write("k/BUILD.yaml", targets(PLAIN, TWICE, OTHER))
    space.write("k/a.txt", "one\n")
    space.build("//...")
    return space


def elsewhere(space: Space) -> Space:
    """The same sources in a workspace of another user: nothing built, an empty store, new times."""
    made = Space(space.base / f"elsewhere-{os.urandom(4).hex()}")
    shutil.rmtree(made.root)
    shutil.copytree(space.root, made.root, ignore=shutil.ignore_patterns("hidet-*"), copy_function=shutil.copyfile)
    shutil.copytree(space.cache / "hidet-build/toolchains-1", made.cache / "hidet-build/toolchains-1")
    return made


def store(space: Space) -> Path:
    """The folder of the store."""
    return space.cache / "hidet-build"


def held(folder: Path) -> set[str]:
    """The entries and blobs in a cache folder, by their paths in it."""
    return {str(path.relative_to(folder)) for kind in ("ac", "cas") for path in (folder / kind).glob("??/*")}


def blob_of(text: str) -> str:
    """Where a cache folder has this content."""
    name = hashlib.sha256(text.encode()).hexdigest()
    return f"cas/{name[:2]}/{name}"


def wrong(folder: Path) -> list[str]:
    """The blobs whose content is not what their name says."""
    return [path.name for path in folder.glob("cas/??/*") if hashlib.sha256(path.read_bytes()).hexdigest() != path.name]


def overwrite(path: Path, content: bytes) -> None:
    """Write into the very file, its time kept, as a bad disk does."""
    status = path.stat()
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.truncate()
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# ---- there and back


def test_export_is_a_disk_cache(built: Space) -> None:
    """A build with the exported folder as its store runs nothing."""
    folder = built.base / "exported"
    done = built.build("cache", "export", str(folder))
    there = elsewhere(built)
    built_there = there.build("//...", "--require_cached", f"--disk_cache={folder}")

    assert re.search(rf"INFO: exported 3 entries and 3 blobs, \d+ bytes from {store(built)} to {folder}\n", done.err)
    assert "INFO: built 3 targets: 3 actions: 3 cached" == built_there.summary
    assert "one\none\n" == there.read(OUT)
    assert "output of Command //k:twice:\nsaid\n" in built_there.err


def test_import_fills_an_empty_store(built: Space) -> None:
    """What was exported is in the other store after the import, and nothing else; a build runs nothing."""
    folder = built.base / "exported"
    built.build("cache", "export", str(folder))
    there = elsewhere(built)
    done = there.build("cache", "import", str(folder))

    assert held(store(built)) == held(folder) == held(store(there))
    assert re.search(r"INFO: imported 3 entries and 3 blobs, \d+ bytes from ", done.err)
    assert "INFO: built 3 targets: 3 actions: 3 cached" == there.build("//...", "--require_cached").summary


def test_both_are_idempotent(built: Space) -> None:
    """The second time nothing is copied, and the exit code is 0."""
    folder = str(built.base / "exported")
    there = elsewhere(built)
    ends = [(built.build("cache", "export", folder), there.build("cache", "import", folder)) for _ in range(2)][1]

    assert all("0 entries and 0 blobs, 0 bytes (3 entries were there already)" in done.err for done in ends)


def test_nothing_but_the_cache_is_left(built: Space) -> None:
    """The exported folder has no temporary files, locks or findings about this machine."""
    built.build("cache", "export", str(built.base / "exported"))

    assert ["ac", "cas"] == sorted(os.listdir(built.base / "exported"))


def test_flag_names_the_store(built: Space) -> None:
    """`--disk_cache` is the store that is exported from, and imported into."""
    first, second, third = (str(built.base / name) for name in ("first", "second", "third"))
    built.build("cache", "export", first)
    built.build("cache", "import", first, f"--disk_cache={second}")
    built.build("cache", "export", third, f"--disk_cache={second}")

    assert held(Path(first)) == held(Path(second)) == held(Path(third))


def test_no_workspace_is_needed(built: Space) -> None:
    """The whole store is exported, imported and counted from any folder."""
    (built.root / "BUILD.yaml").unlink()
    folder = str(built.base / "exported")

    ends = [built.run("cache", *words).code for words in (("export", folder), ("import", folder), ("status",))]

    assert [0, 0, 0] == ends


def test_export_and_store_share_no_file(built: Space) -> None:
    """An edit of an exported file, even in place, does not reach the store, and the other way round."""
    folder = built.base / "exported"
    built.build("cache", "export", str(folder))
    there = elsewhere(built)
    there.build("cache", "import", str(folder))
    inodes = [{path.stat().st_ino for path in top.glob("*/??/*")} for top in (store(built), folder, store(there))]

    assert all(inodes[one].isdisjoint(inodes[other]) for one, other in ((0, 1), (1, 2), (0, 2)))


def test_times_and_modes_may_get_lost(built: Space) -> None:
    """A folder that lost its seals works as a store and for an import; used as a store, it is sealed again."""
    folder = built.base / "exported"
    built.build("cache", "export", str(folder))
    sealed = {path: path.stat().st_mtime_ns for path in folder.glob("cas/??/*")}
    for path in folder.glob("*/??/*"):
        path.chmod(0o644)
        os.utime(path)
    there = elsewhere(built)
    there.build("cache", "import", str(folder))
    imported = there.build("//...", "--require_cached")
    direct = elsewhere(built).build("//...", "--require_cached", f"--disk_cache={folder}")
    outputs = [path for path in sealed if path.stat().st_mtime_ns == sealed[path]]

    assert 2 * ["INFO: built 3 targets: 3 actions: 3 cached"] == [imported.summary, direct.summary]
    assert {folder / blob_of(text) for text in ("one\n", "one\none\n", "other\n")} == set(outputs)


def test_result_that_is_a_folder(space: Space) -> None:
    """Files inside an output folder travel, an empty one and an executable too."""
    command = "mkdir -p out/in; echo a > out/in/a; echo echo > out/run; chmod +x out/run; touch out/empty"
    space.write(
        "k/BUILD.yaml", targets(f'{{rule: command, name: t, arguments: [sh, -c, "{command}"], outputs: [out/]}}')
    )
    space.build("//k:t")
    folder = space.base / "exported"
    space.build("cache", "export", str(folder), "//k:t")
    there = elsewhere(space)
    there.build("cache", "import", str(folder))
    there.build("//k:t", "--require_cached")

    assert ("a\n", "") == (there.read("hidet-bin/k/t/out/in/a"), there.read("hidet-bin/k/t/out/empty"))
    assert os.access(there.root / "hidet-bin/k/t/out/run", os.X_OK)


# ---- what a build used


def test_export_of_targets(built: Space) -> None:
    """With patterns, the folder has what the build of these targets used, and not what other targets made."""
    folder = built.base / "exported"
    done = built.build("cache", "export", str(folder), "//k:twice")
    there = elsewhere(built)
    ends = [there.run(f"//k:{name}", "--require_cached", f"--disk_cache={folder}") for name in ("twice", "other")]

    assert "exported 2 entries and 2 blobs" in done.err
    assert {blob_of("one\n"), blob_of("one\none\n")} < held(folder)
    assert blob_of("other\n") not in held(folder)
    assert [0, 1] == [done.code for done in ends]


def test_export_of_targets_takes_patterns_as_a_build_does(built: Space) -> None:
    """Wildcards, exclusions and relative labels; the folder may be relative too."""
    done = built.run("cache", "export", "../../exported", ":all", "-:other", cwd="k")

    assert "exported 2 entries" in done.err
    assert 2 == len([path for path in held(built.base / "exported") if path.startswith("ac/")])


@pytest.mark.parametrize("change", ["never built", "source edited", "output edited"])
def test_export_of_what_is_not_built(built: Space, change: str) -> None:
    """What would have to run first is an error that says which target, why, and how; nothing is run or exported."""
    if change == "never built":
        shutil.rmtree(built.root / "hidet-out")
    elif change == "source edited":
        built.write("k/a.txt", "two\n")
    else:
        overwrite(built.root / OUT, b"edited\n")
        os.utime(built.root / OUT)
    done = built.run("cache", "export", str(built.base / "exported"), "//k:twice")

    assert 1 == done.code
    assert "ERROR: not built as it is now: //k:twice\nnot up to date: //k:" in done.err
    assert "hint: build it first: hidet-build //k:twice\n" in done.err
    assert not (built.base / "exported").exists()
    assert [] == done.actions


def test_export_of_unknown_target(built: Space) -> None:
    """A target that does not exist is the error that a build gives."""
    folder = str(built.base / "exported")
    done, build = built.run("cache", "export", folder, "//k:twise"), built.run("//k:twise")

    assert (build.code, build.err) == (done.code, done.err)


def test_export_of_targets_after_the_store_was_emptied(built: Space) -> None:
    """Outputs that are up to date are as good as the store that they came from."""
    for kind in ("ac", "cas"):
        shutil.rmtree(store(built) / kind)
    folder = built.base / "exported"
    built.build("cache", "export", str(folder), "//k:twice")
    there = elsewhere(built)

    assert "2 cached" in there.build("//k:twice", "--require_cached", f"--disk_cache={folder}").summary
    assert [] == wrong(folder)


def test_export_names_what_no_store_keeps(space: Space) -> None:
    """A target tagged no-cache is pointed out: the image will not be complete."""
    space.write("k/BUILD.yaml", targets(OTHER.replace("outputs", "tags: [no-cache], outputs")))
    space.build("//k:other")
    done = space.build("cache", "export", str(space.base / "exported"), "//k:other")

    assert "WARNING: //k:other is tagged no-cache" in done.err
    assert "exported 0 entries" in done.err


def test_export_is_never_answered_as_a_null_build(built: Space) -> None:
    """The same words do the same thing again, and a program without words still shows its help."""
    folder = built.base / "exported"
    for _ in range(2):
        built.build("cache", "export", str(folder), "//k:twice")
        entries = len([path for path in held(folder) if path.startswith("ac/")])
        shutil.rmtree(folder)

    assert 2 == entries
    assert 2 == built.run().code


# ---- what is broken


def damage_entry(folder: Path) -> str:
    """Garbage in place of an entry."""
    path = sorted(folder.glob("ac/??/*"))[0]
    overwrite(path, b"garbage")
    return str(path)


def damage_size(folder: Path) -> str:
    """A blob that was cut off."""
    path = folder / blob_of("one\none\n")
    overwrite(path, b"one\n")
    return str(path)


def damage_content(folder: Path) -> str:
    """A blob with another content of the same size and time."""
    path = folder / blob_of("one\none\n")
    overwrite(path, b"one\ntwo\n")
    return str(path)


def make_pipe(folder: Path) -> str:
    """A pipe in place of a blob; who opens it waits for ever."""
    path = folder / blob_of("one\none\n")
    path.unlink()
    os.mkfifo(path)
    return str(path)


def empty_entry(folder: Path) -> str:
    """An entry that a power failure left empty."""
    path = sorted(folder.glob("ac/??/*"))[0]
    overwrite(path, b"")
    return str(path)


DAMAGES = [damage_entry, damage_size, damage_content, make_pipe, empty_entry]


@pytest.mark.parametrize("damage", DAMAGES)
def test_import_refuses_what_is_broken(built: Space, damage: Callable[[Path], str]) -> None:
    """A broken file is refused by name, what is sound comes in, the exit code is 1, and the folder stays as it is."""
    folder = built.base / "exported"
    built.build("cache", "export", str(folder))
    path = damage(folder)
    before = {str(one): os.lstat(one) for one in folder.rglob("*")}
    there = elsewhere(built)
    done = there.run("cache", "import", str(folder))
    found = there.run("-k", "//...", "--require_cached")

    assert 1 == done.code
    assert f"ERROR: left out {path}: " in done.err
    assert "INFO: imported 2 entries" in done.err
    assert re.search(r"ERROR: [12] files? of .* refused", done.summary)
    assert [] == wrong(store(there))
    assert (1, True) == (found.code, "2 cached, 1 failed" in found.summary or "1 cached, 1 failed" in found.summary)
    assert {path: (one.st_mtime_ns, one.st_size, one.st_ino) for path, one in before.items()} == {
        str(one): (os.lstat(one).st_mtime_ns, os.lstat(one).st_size, os.lstat(one).st_ino) for one in folder.rglob("*")
    }


def test_import_of_a_missing_blob(built: Space) -> None:
    """An entry whose content is not there is refused, unless the store has that content already."""
    folder = built.base / "exported"
    built.build("cache", "export", str(folder))
    (folder / blob_of("one\n")).unlink()
    there = elsewhere(built)
    done, at_home = there.run("cache", "import", str(folder)), built.run("cache", "import", str(folder))

    assert (1, 0) == (done.code, at_home.code)
    assert f"it names the content {blob_of('one' + chr(10))[7:19]}..., which is missing or wrong" in done.err


@pytest.mark.parametrize("damage", DAMAGES)
def test_export_leaves_out_what_is_broken(built: Space, damage: Callable[[Path], str]) -> None:
    """Of a store with a broken entry the others are exported; that one is counted, and the exit code is 0."""
    damage(store(built))
    folder = built.base / "exported"
    done = built.build("cache", "export", str(folder))

    assert 1 == done.err.count("WARNING: left out ")
    assert "exported 2 entries" in done.err
    assert [] == wrong(folder)


@pytest.mark.parametrize("size", ["too small", "too big"])
def test_import_does_no_harm_to_the_store(built: Space, size: str) -> None:
    """A damaged entry takes no good entry's place, and one that says a wrong size costs the store no blob."""
    folder = built.base / "exported"
    built.build("cache", "export", str(folder))
    before = held(store(built))
    name = bytes(blob_of("one\none\n")[7:], "ascii")
    for path in folder.glob("ac/??/*"):
        content = path.read_bytes()
        if name in content:  # the size, a varint behind its tag, follows the name of the blob
            at = content.index(name) + len(name)
            assert content[at : at + 2] == b"\x10\x08"
            overwrite(path, content[: at + 1] + (b"\x07" if size == "too small" else b"\x09") + content[at + 2 :])
    done = built.run("cache", "import", str(folder))
    shutil.rmtree(built.root / "hidet-out")

    assert 1 == done.code
    assert before == held(store(built))
    assert "3 cached" in built.build("//...", "--require_cached").summary


# ---- interruptions and neighbours


def many(space: Space, count: int = 300) -> None:
    """A store with many blobs of some size."""
    command = f"for i in $(seq {count}); do head -c 30000 /dev/zero | tr '\\\\0' x > $i.txt; echo $i >> $i.txt; done"
    names = ", ".join(f"{number}.txt" for number in range(1, count + 1))
    space.write(
        "m/BUILD.yaml", targets(f'{{rule: command, name: m, arguments: [sh, -c, "{command}"], outputs: [{names}]}}')
    )
    space.build("//m:m")


@pytest.mark.parametrize("use", ["export", "import"])
def test_killed_at_any_moment(space: Space, use: str) -> None:
    """A kill leaves nothing partial: each blob is whole, each entry has its content, and the next run finishes."""
    many(space)
    source = space.base / "source"
    space.build("cache", "export", str(source))
    moments = 0
    for number in range(12):
        target = space.base / f"target-{number}"
        words = [str(target)] if use == "export" else [str(source), f"--disk_cache={target}"]
        process = space.start("cache", use, *words)
        while not held(target) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(0.004 * number)
        moments += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        cut_short = wrong(target)
        whole = held(target) == held(source) or not list(target.glob("ac/??/*"))
        space.build("cache", use, *words)

        assert ([], True) == (cut_short, whole)
        assert held(source) == held(target)
    assert moments, "it never was in the middle"


def test_beside_builds(space: Space) -> None:
    """Exports and imports run beside builds that fill the same store; all succeed and agree."""
    many(space, 100)
    space.build("cache", "export", str(space.base / "source"))
    shutil.rmtree(store(space) / "cas")
    shutil.rmtree(store(space) / "ac")
    lines = [["cache", "import", str(space.base / "source")] for _ in range(3)]
    lines += [["cache", "export", str(space.base / f"target-{number}")] for number in range(2)]
    lines += [["--nocache", "//m:m"]]
    processes = [space.start(*line) for line in lines]
    ends = [(process.communicate()[1].decode(), process.returncode) for process in processes]

    assert [] == [(code, said) for said, code in ends if code]
    assert [] == wrong(store(space))
    assert "1 cached" in elsewhere(space).build("//m:m", "--require_cached", f"--disk_cache={store(space)}").summary


def test_full_disk(space: Space) -> None:
    """A device that is full is named, nothing partial is left, and the same command goes on when there is room."""
    space.write(
        "k/BUILD.yaml",
        targets("{rule: command, name: big, arguments: [cp, a.bin, b.bin], inputs: [a.bin], outputs: [b.bin]}"),
    )
    (space.root / "k/a.bin").write_bytes(os.urandom(1 << 20))
    space.build("//k:big")
    folder = space.base / "exported"
    line = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *PROGRAM, "cache", "export", str(folder)]
    done = subprocess.run(line, cwd=space.root, env=space.environment, capture_output=True, text=True, check=False)
    left = wrong(folder)
    again = space.build("cache", "export", str(folder))

    assert 36 == done.returncode
    assert f"ERROR: cannot write to {folder}: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert [] == left
    assert "exported 1 entry" in again.err


# ---- words and folders


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "export, import or status?"),
        (("imprt", "x"), 2, "did you mean 'import'?"),
        (("export",), 2, "cache export: which folder?"),
        (("import",), 2, "cache import: which folder?"),
        (("import", "a", "b"), 2, "cache import: 'b' is one word too many"),
        (("status", "a"), 2, "cache status: 'a' is one word too many"),
        (("import", "{root}"), 2, "{root} is not a cache folder: it has neither ac/ nor cas/"),
        (("import", "{base}/none"), 2, "there is no folder {base}/none"),
        (("import", "{root}/BUILD.yaml"), 2, "{root}/BUILD.yaml is not a folder"),
        (("import", "{store}"), 2, "{store} is the store itself"),
        (("export", "{store}"), 2, "{store} is the store itself"),
        (("export", "{link}"), 2, "{link} is the store itself"),
        (("export", "{store}/inside"), 2, "{store}/inside and the store {store} lie one in the other"),
        (("export", "{base}/cache"), 2, "{base}/cache and the store {store} lie one in the other"),
        (("export", "{root}"), 2, "{root} holds other things than a cache"),
        (("export", "{root}/BUILD.yaml"), 2, "{root}/BUILD.yaml is not a folder"),
        (("export", "{root}/BUILD.yaml/x"), 2, "{root}/BUILD.yaml/x is not a folder"),
        (("export", "/proc/none"), 36, "cannot write to the disk cache /proc/none"),
        (("export", "{base}/new", "--disk_cache="), 2, "the store is switched off"),
        (("status", "--disk_cache="), 2, "the store is switched off"),
    ],
)
def test_mistakes(built: Space, words: tuple[str, ...], code: int, said: str) -> None:
    """What cannot be done is said in a line, with a hint; no store is harmed."""
    (built.base / "link").symlink_to(store(built))
    names = {"root": built.root, "base": built.base, "store": store(built), "link": built.base / "link"}
    before = held(store(built))
    done = built.run("cache", *(word.format(**names) for word in words))

    assert code == done.code
    assert said.format(**names) in done.err
    assert "hint: " in done.err
    assert "Traceback" not in done.err
    assert before == held(store(built))


def test_export_adds_to_a_folder(built: Space) -> None:
    """An empty folder will do, and so will one that was exported into before: then both are in it."""
    folder = built.base / "exported"
    folder.mkdir()
    built.build("cache", "export", str(folder), "//k:plain")
    built.build("cache", "export", str(folder), "//k:other")

    assert 2 == len(list(folder.glob("ac/??/*")))


def test_other_files_in_the_folder(built: Space) -> None:
    """What is no entry and no blob is passed over: a README, what a file manager left."""
    folder = built.base / "exported"
    built.build("cache", "export", str(folder))
    for name in ("README", "cas/.DS_Store", "ac/00/notes.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("hello\n")
    there = elsewhere(built)

    assert "imported 3 entries" in there.build("cache", "import", str(folder)).err


def test_status(built: Space) -> None:
    """Where the store is and how much it holds, for scripts on standard output; asking makes no store."""
    sizes = [path.stat().st_size for path in store(built).glob("cas/??/*")]
    done = built.build("cache", "status")
    nothing = built.build("cache", "status", f"--disk_cache={built.base}/none")

    assert f"folder: {store(built)}\nentries: 3\nblobs: {len(sizes)}\nbytes: {sum(sizes)}\n" == done.out
    assert f"folder: {built.base}/none\nentries: 0\nblobs: 0\nbytes: 0\n" == nothing.out
    assert not (built.base / "none").exists()


def test_help_shows_the_uses(space: Space) -> None:
    """`help cache` shows each use."""
    text = space.run("help", "cache").out

    assert all(f"hidet-build cache {use}" in text for use in ("export DIR", "import DIR", "status"))
