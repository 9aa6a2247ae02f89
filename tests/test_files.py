"""Sealing, fingerprints, atomic writing and placing."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidet_build import digest as digests
from hidet_build import files
from hidet_build.digest import Digest
from hidet_build.files import Placed, Placer

CONTENT = b"int main() {}\n"
DIGEST = digests.of_bytes(CONTENT)
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
SHM = Path("/dev/shm")


def blob(folder: Path, content: bytes = CONTENT, executable: bool = False) -> str:
    """A sealed file."""
    path = folder / "blob"
    path.write_bytes(content)
    files.seal(str(path), digests.of_bytes(content), executable)
    return str(path)


def no_temporaries(folder: Path) -> bool:
    """Whether nothing hidden was left behind."""
    return not [path for path in folder.rglob(".*") if path.name.startswith(".hidet-build")]


@given(HASHES)
def test_seal_times_lie_between_2001_and_2025(content_hash: str) -> None:
    """A seal never looks like a file of today, and is a whole number of microseconds."""
    moment = files.seal_time_ns(content_hash)

    assert 2001 <= time.gmtime(moment // 10**9).tm_year < 2025
    assert 0 == moment % 1000


@given(st.lists(st.binary(max_size=8), unique=True, min_size=2, max_size=2))
def test_other_content_has_another_second(contents: list[bytes]) -> None:
    """Tools that compare whole seconds see two contents apart."""
    first, second = (files.seal_time_ns(digests.of_bytes(content).hash) // 10**9 for content in contents)

    assert first != second


def test_seal_time_is_pinned() -> None:
    """The time of a content never changes between versions: every cache would be hashed anew."""
    assert 1116729724127112000 == files.seal_time_ns(digests.EMPTY.hash)


def test_seal(tmp_path: Path) -> None:
    """A sealed file is read-only and recognised, as what it was sealed as and nothing else."""
    path = blob(tmp_path)
    status = os.stat(path)

    assert 0o444 == status.st_mode & 0o777
    assert files.is_sealed(status, DIGEST)
    assert not files.is_sealed(status, DIGEST._replace(size=1))
    assert not files.is_sealed(status, digests.of_bytes(CONTENT[::-1]))


def test_sealed_executable(tmp_path: Path) -> None:
    """An executable stays one."""
    path = blob(tmp_path, executable=True)

    assert 0o555 == os.stat(path).st_mode & 0o777


def test_writing_breaks_the_seal(tmp_path: Path) -> None:
    """An edit of the same length loses the seal."""
    path = blob(tmp_path)
    os.chmod(path, 0o644)
    Path(path).write_bytes(CONTENT[::-1])

    assert not files.is_sealed(os.stat(path), DIGEST)


def test_fingerprint_notices_a_restored_mtime(tmp_path: Path) -> None:
    """An edit of the same size with the old time put back changes the fingerprint."""
    path = tmp_path / "a.py"
    path.write_bytes(b"one")
    before = files.fingerprint(str(path))
    status = os.stat(path)
    while files.fingerprint(str(path))[1] == before[1]:  # until the clock of the file system ticks
        path.write_bytes(b"two")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = files.fingerprint(str(path))

    assert (before[0], before[2]) == (after[0], after[2])
    assert before != after


@pytest.mark.parametrize(
    ("mtime", "ctime", "racy"),
    [(0, 0, False), (8, 0, False), (9, 0, True), (0, 9, True), (10, 10, True), (99, 0, True)],
)
def test_racy(mtime: int, ctime: int, racy: bool) -> None:
    """What changed within two seconds before it was hashed, or in the future, is not trusted."""
    second = 10**9

    assert racy == files.is_racy((mtime * second, ctime * second, 1, 1), 10 * second)


def test_fresh_file_is_racy(tmp_path: Path) -> None:
    """A file written just now may change again within one tick."""
    path = tmp_path / "a"
    path.write_bytes(b"")

    assert files.is_racy(files.fingerprint(str(path)))


def test_old_file_is_not_racy_unless_its_inode_changed(tmp_path: Path) -> None:
    """An old modification time alone proves nothing: the change of the inode counts too."""
    path = tmp_path / "a"
    path.write_bytes(b"")
    os.utime(path, (0, 0))

    assert files.is_racy(files.fingerprint(str(path)))
    assert not files.is_racy(files.fingerprint(str(path)), time.time_ns() + 10**10)


def test_write_atomic(tmp_path: Path) -> None:
    """Parents are made, content is replaced, nothing is left behind."""
    path = tmp_path / "a" / "b" / "c"
    files.write_atomic(str(path), b"one")
    files.write_atomic(str(path), b"two", executable=True)

    assert b"two" == path.read_bytes()
    assert os.access(path, os.X_OK)
    assert no_temporaries(tmp_path)


def test_write_atomic_leaves_a_folder_alone(tmp_path: Path) -> None:
    """A folder at the name is no reason to delete what somebody keeps there."""
    (tmp_path / "a" / "kept").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        files.write_atomic(str(tmp_path / "a"), b"")

    assert (tmp_path / "a" / "kept").exists()
    assert no_temporaries(tmp_path)


def test_write_atomic_replaces_a_link_not_its_target(tmp_path: Path) -> None:
    """A link at the name is replaced; what it points to is not written."""
    (tmp_path / "other").write_bytes(b"precious")
    (tmp_path / "a").symlink_to("other")
    files.write_atomic(str(tmp_path / "a"), b"new")

    assert b"precious" == (tmp_path / "other").read_bytes()
    assert not (tmp_path / "a").is_symlink()


def test_readers_see_whole_files(tmp_path: Path) -> None:
    """While a file is rewritten all the time, a reader only ever sees one of its versions."""
    path = str(tmp_path / "a")
    versions = [b"a" * 100_000, b"b" * 50_000]
    files.write_atomic(path, versions[0])
    done = threading.Event()

    def write() -> None:
        for round_ in range(200):
            files.write_atomic(path, versions[round_ % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(Path(path).read_bytes())
    writer.join()

    assert seen <= set(versions)


@pytest.fixture(params=["new", "used"])
def placer(request: pytest.FixtureRequest, tmp_path: Path) -> Placer:
    """A placer that has placed nothing, or one that knows what can be done here."""
    made = Placer()
    if request.param == "used":
        (tmp_path / "before").write_bytes(CONTENT)
        files.seal(str(tmp_path / "before"), DIGEST, False)
        made.place(str(tmp_path / "before"), str(tmp_path / "first"), DIGEST, False)
    return made


@pytest.mark.parametrize("executable", [False, True])
def test_place(tmp_path: Path, placer: Placer, executable: bool) -> None:
    """A placed file has the content, the seal and the mode, in a folder made for it."""
    source = blob(tmp_path, executable=executable)
    target = tmp_path / "out" / "deep" / "file"
    how = placer.place(source, str(target), DIGEST, executable)
    status = os.stat(target)

    assert CONTENT == target.read_bytes()
    assert files.is_sealed(status, DIGEST)
    assert (0o555 if executable else 0o444) == status.st_mode & 0o777
    assert (how is Placed.HARDLINK) == (status.st_ino == os.stat(source).st_ino)


def test_place_again_keeps_the_file(tmp_path: Path, placer: Placer) -> None:
    """Placing what is there already leaves one file and no temporary name."""
    source, target = blob(tmp_path), str(tmp_path / "out")
    first = placer.place(source, target, DIGEST, False)
    second = placer.place(source, target, DIGEST, False)

    assert (Placed.KEPT if first is Placed.HARDLINK else first) is second
    assert no_temporaries(tmp_path)


@pytest.mark.parametrize("executable", [False, True])
def test_place_with_another_mode_copies(tmp_path: Path, placer: Placer, executable: bool) -> None:
    """Hard links share modes, so a blob that is executable where the output is not (or the reverse) is no link."""
    source, target = blob(tmp_path, executable=not executable), str(tmp_path / "out")
    how = placer.place(source, target, DIGEST, executable)

    assert how is not Placed.HARDLINK
    assert (0o555 if executable else 0o444) == os.stat(target).st_mode & 0o777
    assert (0o444 if executable else 0o555) == os.stat(source).st_mode & 0o777


def test_place_replaces_what_stands_there(tmp_path: Path, placer: Placer) -> None:
    """A file, a link and a folder with content all give way, and what a link pointed to is untouched."""
    source = blob(tmp_path)
    (tmp_path / "other").write_bytes(b"precious")
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "file").write_bytes(b"")
    (tmp_path / "folder" / "deep").chmod(0o555)
    targets = [tmp_path / name for name in ("file", "link", "dangling", "folder")]
    for target in targets:
        placer.place(source, str(target), DIGEST, False)

    assert [CONTENT] * 4 == [target.read_bytes() for target in targets]
    assert not any(target.is_symlink() for target in targets)
    assert b"precious" == (tmp_path / "other").read_bytes()
    assert not (tmp_path / "nowhere").exists()
    assert no_temporaries(tmp_path)


@pytest.mark.parametrize("obstacle", ["file", "dangling link"])
def test_place_where_a_parent_is_no_folder(tmp_path: Path, placer: Placer, obstacle: str) -> None:
    """A file where a folder must be gives way."""
    source = blob(tmp_path)
    if obstacle == "file":
        (tmp_path / "out").write_bytes(b"")
    else:
        (tmp_path / "out").symlink_to("nowhere")
    target = tmp_path / "out" / "deep" / "file"
    placer.place(source, str(target), DIGEST, False)

    assert CONTENT == target.read_bytes()
    assert not (tmp_path / "out").is_symlink()


@pytest.mark.skipif(not SHM.is_dir(), reason="needs a second file system")
def test_place_on_another_device_copies_and_remembers(tmp_path: Path, placer: Placer) -> None:
    """Between devices content is copied; sealed it is all the same."""
    source = blob(tmp_path)
    if os.stat(SHM).st_dev == os.stat(source).st_dev:
        pytest.skip("one device only")
    target = files.temporary_path(str(SHM))
    try:
        hows = [placer.place(source, target, DIGEST, False) for _ in range(2)]

        assert [Placed.COPY, Placed.COPY] == hows
        assert files.is_sealed(os.stat(target), DIGEST)
        assert Path(target).read_bytes() == CONTENT
    finally:
        files.remove(target)


@pytest.mark.slow
def test_place_beyond_the_limit_of_links(tmp_path: Path) -> None:
    """When the file system takes no more links of a blob, the next output is a copy."""
    source = blob(tmp_path)
    for number in range(70_000):
        try:
            os.link(source, tmp_path / str(number))
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            break
    else:
        pytest.skip("no limit found")
    how = Placer().place(source, str(tmp_path / "out"), DIGEST, False)

    assert how in (Placed.COPY, Placed.REFLINK)
    assert CONTENT == (tmp_path / "out").read_bytes()


def test_place_without_its_blob(tmp_path: Path, placer: Placer) -> None:
    """A blob that is gone is an error of the usual kind, and the old output stays."""
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        placer.place(str(tmp_path / "blob"), str(tmp_path / "out"), DIGEST, False)

    assert b"old" == (tmp_path / "out").read_bytes()


def test_place_from_many_threads(tmp_path: Path, placer: Placer) -> None:
    """Threads that place one output in one new folder at once all succeed."""
    source, failures = blob(tmp_path), []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for number in range(50):
            try:
                placer.place(source, str(tmp_path / "out" / str(number) / "file"), DIGEST, False)
            except OSError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == failures
    assert {CONTENT} == {(tmp_path / "out" / str(number) / "file").read_bytes() for number in range(50)}
    assert no_temporaries(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 10_000_000])
def test_copy(tmp_path: Path, size: int) -> None:
    """A copy is another file with the same content, whatever its size."""
    source = tmp_path / "source"
    source.write_bytes(b"x" * size)
    digest = digests.of_file(str(source))
    files.copy(str(source), str(tmp_path / "target"), digest, False)

    assert digest == digests.of_file(str(tmp_path / "target"))
    assert not os.path.samefile(source, tmp_path / "target")
    assert files.is_sealed(os.stat(tmp_path / "target"), digest)


def test_duplicate(tmp_path: Path) -> None:
    """A duplicate has the content and the mode, and nothing else of the file."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(CONTENT)
    source.chmod(0o754)
    files.duplicate(str(source), str(target))

    assert CONTENT == target.read_bytes()
    assert 0o754 == target.stat().st_mode & 0o777
    assert not os.path.samefile(source, target)


def test_closed_file(tmp_path: Path) -> None:
    """A file is closed when nobody has it open: neither we, nor a process that got it from us."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        ours = files.is_closed(str(path))
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
    theirs = files.is_closed(str(path))
    child.communicate()

    assert [False, False, True] == [ours, theirs, files.is_closed(str(path))]


def test_remove(tmp_path: Path) -> None:
    """Removing takes files, links and whole folders, never what a link points to, and does not mind nothing."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"")
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b" / "link").symlink_to("../../kept")
    (tmp_path / "a" / "b" / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("kept")
    for name in ("a", "link", "nothing", "kept/file/below"):
        files.remove(str(tmp_path / name))

    assert ["kept"] == os.listdir(tmp_path)
    assert ["file"] == os.listdir(tmp_path / "kept")


def test_files_that_are_missing_from_disk_space_leave_nothing(tmp_path: Path) -> None:
    """A write that fails half way leaves neither a partial file nor a temporary one, and the old file as it was."""
    (tmp_path / "file").write_bytes(b"old")
    script = (
        "import resource, sys\n"
        "from hidet_build import files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    files.write_atomic(sys.argv[1], b'x' * 5000)\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "file")], stdout=subprocess.PIPE, check=True, text=True
    )

    assert errno.EFBIG == int(ran.stdout)
    assert b"old" == (tmp_path / "file").read_bytes()
    assert ["file"] == os.listdir(tmp_path)


def test_digest_of_a_seal_is_not_taken_on_size_alone(tmp_path: Path) -> None:
    """Two blobs of one size have seals of their own."""
    path = blob(tmp_path)

    assert not files.is_sealed(os.stat(path), Digest("0" * 64, len(CONTENT)))
