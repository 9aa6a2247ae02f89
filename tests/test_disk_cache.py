"""The disk cache: what is stored is found, what is broken is not served, and several caches are one."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hidet_build import digest as digests
from hidet_build import messages, reapi
from hidet_build.action import ActionResult, OutputFile
from hidet_build.cache.base import Cache, Layered, Stored
from hidet_build.cache.disk import DiskCache
from hidet_build.digest import EMPTY, Digest
from hidet_build.errors import EnvironmentFailure
from hidet_build.files import Placer, is_sealed

KEY = digests.of_bytes(b"an action")
OTHER = digests.of_bytes(b"another action")
CONTENT = b"\x7fELF object"
DIGEST = digests.of_bytes(CONTENT)


def made(folder: Path, contents: Mapping[str, bytes], *executable: str) -> tuple[ActionResult, dict[str, str]]:
    """An execution that left files in `folder`: its result, and where the files are."""
    files = {}
    for path, content in contents.items():
        local = folder / path
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(content)
        files[path] = str(local)
    outputs = (OutputFile(path, digests.of_bytes(contents[path]), path in executable) for path in sorted(contents))
    return ActionResult(tuple(outputs), (), b"warning\n", 0.5), files


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    """A new cache."""
    return DiskCache(str(tmp_path / "cache"), Placer())


@pytest.fixture
def result(cache: DiskCache, tmp_path: Path) -> ActionResult:
    """What `cache` has under KEY: one file."""
    result, files = made(tmp_path / "root", {"module.o": CONTENT})
    assert cache.put(KEY, result, files)
    return result


def blob(cache: DiskCache, digest: Digest = DIGEST) -> Path:
    """Where a blob is, by Bazel's layout."""
    return Path(cache.folder, "cas", digest.hash[:2], digest.hash)


def entry(cache: DiskCache, key: Digest = KEY) -> Path:
    """Where an entry is, by Bazel's layout."""
    return Path(cache.folder, "ac", key.hash[:2], key.hash)


def overwrite(path: Path, content: bytes) -> None:
    """Write into the very file, as somebody does who does not care that it is read-only."""
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.truncate()
        file.write(content)


def as_nobody(work: Callable[[], bool]) -> bool:
    """Whether `work` is true when another user does it."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setgid(65534)
            os.setuid(65534)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")


def test_nothing_is_a_miss(cache: DiskCache, tmp_path: Path) -> None:
    """An empty cache has no results and no content."""
    assert cache.get(KEY) is None
    assert cache.read(DIGEST) is None
    assert not cache.place(DIGEST, False, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_put_get_place(cache: DiskCache, tmp_path: Path) -> None:
    """What was put is had back: the result, the files with their modes; in Bazel's layout, sealed; but no messages."""
    result, files = made(tmp_path / "root", {"a.o": CONTENT, "bin/run": b"#!/bin/sh\n", "empty": b""}, "bin/run")
    message = b"the Action message"
    stored = cache.put(KEY, result, files, [message])
    for file in result.files:
        assert cache.place(file.digest, file.executable, str(tmp_path / "out" / file.path))

    assert Stored(True) == stored
    assert result == cache.get(KEY)
    assert {
        "a.o": CONTENT,
        "bin/run": b"#!/bin/sh\n",
        "empty": b"",
    } == {path: (tmp_path / "out" / path).read_bytes() for path in files}
    assert os.access(tmp_path / "out" / "bin" / "run", os.X_OK)
    assert 0o444 == (tmp_path / "out" / "a.o").stat().st_mode & 0o777
    assert cache.read(digests.of_bytes(message)) is None
    assert is_sealed(blob(cache).stat(), DIGEST)
    assert reapi.encode_result(result).content == entry(cache).read_bytes()
    assert [] == os.listdir(Path(cache.folder, "tmp"))
    assert () == cache.verify().dropped


def test_put_copies_nothing_on_one_device(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """The blob is the file the action wrote, which stays where it was."""
    assert 1 == len(result.files)
    assert os.path.samefile(tmp_path / "root" / "module.o", blob(cache))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second file system")
def test_put_from_another_device(tmp_path: Path) -> None:
    """From another device content is copied, and is right."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        cache = DiskCache(f"{folder}/cache", Placer())
        result, files = made(tmp_path / "root", {"module.o": CONTENT})

        assert cache.put(KEY, result, files)
        assert result == cache.get(KEY)
        assert CONTENT == blob(cache).read_bytes()


def test_folders_come_back(cache: DiskCache, tmp_path: Path) -> None:
    """Output folders travel as Trees."""
    plain, files = made(tmp_path / "root", {"out/a": b"1", "out/deep/b": b"2", "c": b"3"})
    result = ActionResult(plain.files, ("out",))
    cache.put(KEY, result, files)

    assert result == cache.get(KEY)
    assert () == cache.verify().dropped


def test_working_directory(cache: DiskCache, tmp_path: Path) -> None:
    """Paths in the entry are relative to the working directory, as other tools expect them."""
    result, files = made(tmp_path / "root", {"work/a": b"1", "b": b"2"})
    cache.put(KEY, result, files, (), "work")

    assert result == cache.get(KEY, "work")
    assert b"../b" in entry(cache).read_bytes()


def test_files_with_another_name_are_not_touched(cache: DiskCache, tmp_path: Path) -> None:
    """An output that is a hard link to a source file is copied: sealing it would make the source read-only."""
    source = tmp_path / "source.py"
    source.write_bytes(CONTENT)
    before = source.stat()
    (tmp_path / "root").mkdir()
    os.link(source, tmp_path / "root" / "module.o")
    result = ActionResult((OutputFile("module.o", DIGEST, False),))
    stored = cache.put(KEY, result, {"module.o": str(tmp_path / "root" / "module.o")})

    assert stored
    assert (before.st_mode, before.st_mtime_ns) == (source.stat().st_mode, source.stat().st_mtime_ns)
    assert not os.path.samefile(source, blob(cache))
    assert result == cache.get(KEY)


def test_output_that_is_a_link(cache: DiskCache, tmp_path: Path) -> None:
    """Of a link the content is stored, and what it points to is left as it is."""
    source = tmp_path / "source.py"
    source.write_bytes(CONTENT)
    before = source.stat()
    (tmp_path / "out").symlink_to(source)
    result = ActionResult((OutputFile("out", DIGEST, False),))

    assert cache.put(KEY, result, {"out": str(tmp_path / "out")})
    assert CONTENT == blob(cache).read_bytes()
    assert not blob(cache).is_symlink()
    assert before.st_mode == source.stat().st_mode


def test_file_that_changed_after_it_was_hashed(cache: DiskCache, tmp_path: Path) -> None:
    """A file that is not what the result says is not stored under that name."""
    result, files = made(tmp_path / "root", {"module.o": CONTENT})
    Path(files["module.o"]).write_bytes(b"longer than it was before")
    stored = cache.put(KEY, result, files)

    assert not stored
    assert "changed after it was hashed" in stored.reason
    assert cache.get(KEY) is None
    assert not blob(cache).exists()


@pytest.mark.parametrize("content", [b"", b"\0", b"garbage", b"\x12\x7f", bytes(range(150, 250))], ids=range(5))
def test_garbage_entry(cache: DiskCache, result: ActionResult, content: bytes) -> None:
    """An entry that cannot be read is a miss and goes; the next run stores it anew."""
    assert result == cache.get(KEY)
    entry(cache).write_bytes(content)

    assert cache.get(KEY) is None
    assert not entry(cache).exists()


def test_failure_is_no_hit(cache: DiskCache) -> None:
    """The result of a failure, which some tools store, is a miss."""
    entry(cache).parent.mkdir(parents=True)
    entry(cache).write_bytes(messages.MESSAGES["ActionResult"](exit_code=1).SerializeToString())

    assert cache.get(KEY) is None


def test_missing_blob(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """A result whose content is gone is a miss, until it was stored again."""
    blob(cache).unlink()
    missed = cache.get(KEY)
    again, files = made(tmp_path / "root", {"module.o": CONTENT})
    cache.put(KEY, again, files)

    assert missed is None
    assert result == cache.get(KEY)


def test_missing_tree(cache: DiskCache, tmp_path: Path) -> None:
    """The same with the Tree of an output folder."""
    plain, files = made(tmp_path / "root", {"out/a": b"1"})
    result = ActionResult(plain.files, ("out",))
    cache.put(KEY, result, files)
    blob(cache, digests.of_bytes(reapi.encode_result(result).trees[0])).unlink()

    assert cache.get(KEY) is None


def test_edited_output_is_never_served(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """An output is a hard link to the blob; editing it in place breaks the blob, which is noticed and dropped."""
    cache.place(DIGEST, False, str(tmp_path / "out"))
    overwrite(tmp_path / "out", CONTENT[::-1])
    shared = os.path.samefile(tmp_path / "out", blob(cache))
    served = cache.get(KEY)

    assert shared == (served is None)
    assert blob(cache).exists() != shared
    assert cache.place(DIGEST, False, str(tmp_path / "other")) != shared
    assert 1 == len(result.files)


def test_broken_blob_is_dropped(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """A blob with other content, of the same size, is not placed and goes."""
    overwrite(blob(cache), CONTENT[::-1])

    assert not cache.place(DIGEST, False, str(tmp_path / "out"))
    assert not blob(cache).exists()
    assert not (tmp_path / "out").exists()
    assert cache.get(KEY) is None
    assert 1 == len(result.files)


def test_touched_blob_is_sealed_again(cache: DiskCache, result: ActionResult) -> None:
    """A blob whose time changed (Bazel touches what it reads) is hashed, found right, and sealed again."""
    os.utime(blob(cache))

    assert result == cache.get(KEY)
    assert is_sealed(blob(cache).stat(), DIGEST)


def test_empty_blob_need_not_be_there(cache: DiskCache, tmp_path: Path) -> None:
    """Tools that share the cache never store the empty blob; it is there all the same."""
    entry(cache).parent.mkdir(parents=True)
    result = ActionResult((OutputFile("empty", EMPTY, False),))
    entry(cache).write_bytes(reapi.encode_result(result).content)

    assert result == cache.get(KEY)
    assert cache.place(EMPTY, False, str(tmp_path / "out"))
    assert b"" == (tmp_path / "out").read_bytes()


def test_executable_and_not(cache: DiskCache, tmp_path: Path) -> None:
    """One content, executable for one output and not for another, has the right mode at both."""
    result, files = made(tmp_path / "root", {"a": CONTENT, "b": CONTENT}, "b")
    cache.put(KEY, result, files)
    modes = []
    for file in cache.get(KEY).files:  # type: ignore[union-attr]
        cache.place(file.digest, file.executable, str(tmp_path / file.path))
        modes.append((tmp_path / file.path).stat().st_mode & 0o777)

    assert [0o444, 0o555] == modes


def test_use_is_noted(cache: DiskCache, result: ActionResult) -> None:
    """An entry that is of use is younger afterwards, so that what is old is what nobody needs."""
    os.utime(entry(cache), (0, 0))

    assert result == cache.get(KEY)
    assert entry(cache).stat().st_mtime > 0


def test_verify(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """Verifying drops wrong content, and entries that are garbage or name what is gone; the rest stays."""
    other, files = made(tmp_path / "root", {"other.o": b"other"})
    cache.put(OTHER, other, files)
    overwrite(blob(cache), CONTENT[::-1])
    os.utime(blob(cache), ns=(0, blob(cache, other.files[0].digest).stat().st_mtime_ns))
    garbage = entry(cache, EMPTY)
    garbage.parent.mkdir(parents=True, exist_ok=True)
    garbage.write_bytes(b"garbage")
    (Path(cache.folder) / "cas" / "README").write_text("not ours")
    report = cache.verify()

    assert sorted(str(path) for path in (blob(cache), entry(cache), garbage)) == sorted(report.dropped)
    assert (1, 1, 5) == (report.entries, report.blobs, report.size)
    assert other == cache.get(OTHER)
    assert cache.get(KEY) is None
    assert 1 == len(result.files)


def test_verify_notices_what_a_seal_cannot(cache: DiskCache, result: ActionResult) -> None:
    """Content that was changed behind the back of its seal is found by verifying."""
    seal = blob(cache).stat()
    overwrite(blob(cache), CONTENT[::-1])
    os.utime(blob(cache), ns=(seal.st_atime_ns, seal.st_mtime_ns))

    assert str(blob(cache)) in cache.verify().dropped
    assert 1 == len(result.files)


def test_old_temporary_files_go(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process left is removed when it is a day old, and not before: somebody may be writing it.

    A file that is sealed already, its time one of long ago, is as new as any.
    """
    for name, moment in (("open", time.time()), ("sealed", 1.0)):
        Path(cache.folder, "tmp", name).write_bytes(b"")
        os.utime(Path(cache.folder, "tmp", name), (moment, moment))
    DiskCache(cache.folder, Placer())
    kept = sorted(os.listdir(Path(cache.folder, "tmp")))
    tomorrow = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    DiskCache(cache.folder, Placer())

    assert ["open", "sealed"] == kept
    assert [] == os.listdir(Path(cache.folder, "tmp"))


def test_read_only(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """What only has to give needs no right to write, and says so when it is asked to keep something."""
    reader = DiskCache(cache.folder, Placer(), read_only=True)
    absent = DiskCache(str(tmp_path / "absent"), Placer(), read_only=True)
    found = reader.get(KEY)

    assert found is not None
    assert result.files == found.files
    assert not reader.put(OTHER, *made(tmp_path / "other", {"module.o": b"other"}))
    assert reader.get(OTHER) is None
    assert absent.get(KEY) is None
    assert not (tmp_path / "absent").exists()


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    """A cache that cannot be is the environment's fault, and the flag is named."""
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(EnvironmentFailure) as caught:
        DiskCache(str(tmp_path / "cache"), Placer())

    assert f"cannot write to the disk cache {tmp_path}/cache" in caught.value.message
    assert "--disk_cache" in (caught.value.hint or "")


@needs_root
def test_folder_of_somebody_else(tmp_path: Path) -> None:
    """So is one we may not write to."""
    (tmp_path / "cache").mkdir()
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        if folder.stat().st_mode & 0o055 != 0o055 and folder != Path("/tmp"):
            folder.chmod(0o755)

    def fails() -> bool:
        try:
            DiskCache(str(tmp_path / "cache"), Placer())
        except EnvironmentFailure:
            return True
        return False

    assert as_nobody(fails)


@needs_root
def test_unreadable_entries_of_somebody_else(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """In a shared cache what another user keeps to himself is a miss, not a crash."""
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    readable = as_nobody(lambda: cache.get(KEY) == result)
    blob(cache).chmod(0o400)
    without_blob = as_nobody(
        lambda: (
            cache.get(KEY) is None
            and cache.read(DIGEST) is None
            and not cache.place(DIGEST, False, str(tmp_path / "out" / "file"))
        )
    )
    blob(cache).chmod(0o444)
    entry(cache).chmod(0o600)
    without_entry = as_nobody(lambda: cache.get(KEY) is None)
    entry(cache).chmod(0o644)
    blob(cache).parent.chmod(0o700)
    without_folder = as_nobody(lambda: cache.get(KEY) is None)

    assert (True, True, True, True) == (readable, without_blob, without_entry, without_folder)


def test_failing_put_says_why(cache: DiskCache, tmp_path: Path) -> None:
    """When content cannot be written, `put` says so, stores no entry, and the file of the action stays."""
    result, files = made(tmp_path / "root", {"module.o": CONTENT})
    Path(cache.folder, "cas").write_bytes(b"in the way")
    stored = cache.put(KEY, result, files)

    assert not stored
    assert "cas" in stored.reason
    assert CONTENT == Path(files["module.o"]).read_bytes()
    assert cache.get(KEY) is None


def test_full_disk(tmp_path: Path) -> None:
    """When a write fails half way nothing is left: no entry, no partial content, no temporary file."""
    script = (
        "import resource, sys\n"
        "from hidet_build import digest\n"
        "from hidet_build.action import ActionResult\n"
        "from hidet_build.cache.disk import DiskCache\n"
        "from hidet_build.files import Placer\n"
        "cache = DiskCache(sys.argv[1], Placer())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "stored = cache.put(digest.EMPTY, ActionResult((), output=b'x' * 5000), {})\n"
        "print(bool(stored), stored.reason)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "cache")], stdout=subprocess.PIPE, check=True, text=True
    )

    assert ran.stdout.startswith("False File too large: ")
    assert [] == [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_trouble_at_the_target_is_not_the_caches(cache: DiskCache, result: ActionResult) -> None:
    """A target that cannot be written is an error of its own, not a miss that would run the action again."""
    with pytest.raises(OSError, match="/proc"):
        cache.place(DIGEST, False, "/proc/out/file")

    assert result == cache.get(KEY)


def test_many_threads_and_processes(tmp_path: Path) -> None:
    """Threads of several processes that put and get the same results at once all succeed, and all is right."""
    script = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from hidet_build import digest\n"
        "from hidet_build.action import ActionResult, OutputFile\n"
        "from hidet_build.cache.disk import DiskCache\n"
        "from hidet_build.files import Placer\n"
        "cache, root = DiskCache(sys.argv[1], Placer()), Path(sys.argv[2])\n"
        "failures = []\n"
        "def work(worker):\n"
        "    for number in range(40):\n"
        "        content = b'content %d' % (number % 7)\n"
        "        local = root / f'{worker}-{number}'\n"
        "        local.write_bytes(content)\n"
        "        file = OutputFile('a', digest.of_bytes(content), False)\n"
        "        key = digest.of_bytes(b'key %d' % (number % 7))\n"
        "        result = ActionResult((file,))\n"
        "        if not cache.put(key, result, {'a': str(local)}):\n"
        "            failures.append('put')\n"
        "        if cache.get(key) != result or not cache.place(file.digest, False, f'{local}.out'):\n"
        "            failures.append('get')\n"
        "        elif Path(f'{local}.out').read_bytes() != content:\n"
        "            failures.append('content')\n"
        "threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "sys.exit(repr(failures) if failures else 0)\n"
    )
    workers = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        command = [sys.executable, "-c", script, str(tmp_path / "cache"), str(tmp_path / str(number))]
        workers.append(subprocess.Popen(command))
    codes = [worker.wait(300) for worker in workers]
    report = DiskCache(str(tmp_path / "cache"), Placer()).verify()

    assert [0, 0, 0] == codes
    assert (7, 7, ()) == (report.entries, report.blobs, report.dropped)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Writers killed at random moments leave nothing wrong: every entry that is there is whole."""
    script = (
        "import itertools, os, sys\n"
        "from pathlib import Path\n"
        "from hidet_build import digest\n"
        "from hidet_build.action import ActionResult, OutputFile\n"
        "from hidet_build.cache.disk import DiskCache\n"
        "from hidet_build.files import Placer\n"
        "cache = DiskCache(sys.argv[1], Placer())\n"
        "for number in itertools.count():\n"
        "    content = os.urandom(8) * 20000\n"
        "    local = Path(sys.argv[1], f'local-{os.getpid()}')\n"
        "    local.unlink(missing_ok=True)\n"
        "    local.write_bytes(content)\n"
        "    result = ActionResult((OutputFile('d/a', digest.of_bytes(content), False),), ('d',))\n"
        "    cache.put(digest.of_bytes(content[:8]), result, {'d/a': str(local)}, [content[::-1]])\n"
        "    if number == 0:\n"
        "        print('ready', flush=True)\n"
    )
    moments = random.Random(2)
    for _ in range(10):
        writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "cache")], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(moments.random() * 0.05)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    cache = DiskCache(str(tmp_path / "cache"), Placer())
    keys = [Digest(path.name, 0) for path in Path(cache.folder, "ac").glob("*/*")]

    assert keys
    assert None not in [cache.get(key) for key in keys]
    assert () == cache.verify().dropped


class MemoryCache:
    """A cache that keeps everything in memory, as a far one may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.results: dict[str, ActionResult] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []

    def get(self, key: Digest, working_directory: str = "") -> ActionResult | None:  # noqa: ARG002
        """As promised."""
        self.asked.append(key.hash)
        return self.results.get(key.hash)

    def place(self, digest: Digest, executable: bool, target_path: str) -> bool:
        """As promised."""
        content = self.blobs.get(digest.hash)
        if content is None:
            return False
        Path(target_path).write_bytes(content)
        Path(target_path).chmod(0o755 if executable else 0o644)
        return True

    def read(self, digest: Digest) -> bytes | None:
        """As promised."""
        return self.blobs.get(digest.hash)

    def put(
        self,
        key: Digest,
        result: ActionResult,
        files: Mapping[str, str],
        messages: Iterable[bytes] = (),
        working_directory: str = "",  # noqa: ARG002
    ) -> Stored:
        """As promised."""
        for file in result.files:
            self.blobs[file.digest.hash] = Path(files[file.path]).read_bytes()
        self.blobs.update((digests.of_bytes(message).hash, message) for message in messages)
        self.results[key.hash] = result
        return Stored(True)


def layered(tmp_path: Path, *caches: Cache) -> Layered:
    """Caches as one."""
    return Layered(caches, str(tmp_path))


def test_layered_put_reaches_all(cache: DiskCache, tmp_path: Path) -> None:
    """A result goes to every cache, messages to those that run actions."""
    far = MemoryCache("far")
    result, files = made(tmp_path / "root", {"module.o": CONTENT})
    both = layered(tmp_path, cache, far)
    stored = both.put(KEY, result, files, iter([b"message"]))

    assert stored
    assert (result, result) == (cache.get(KEY), far.get(KEY))
    assert (CONTENT, CONTENT) == (cache.read(DIGEST), far.read(DIGEST))
    assert (None, b"message") == (cache.read(digests.of_bytes(b"message")), far.read(digests.of_bytes(b"message")))
    assert "disk+far" == both.name


def test_layered_asks_the_near_one_first(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """What is near is not asked for far away."""
    far = MemoryCache("far")

    assert (result, "disk") == layered(tmp_path, cache, far).find(KEY)
    assert [] == far.asked


def test_layered_fills_the_nearer(cache: DiskCache, tmp_path: Path) -> None:
    """A hit far away is a hit near by the next time, modes and all; nothing stays in the scratch folder."""
    far = MemoryCache("far")
    result, files = made(tmp_path / "root", {"module.o": CONTENT, "run": b"#!"}, "run")
    far.put(KEY, result, files)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    both = layered(scratch, cache, far)

    assert (result, "far") == both.find(KEY)
    assert (result, "disk") == both.find(KEY)
    assert both.place(DIGEST, False, str(tmp_path / "out"))
    assert os.path.samefile(tmp_path / "out", blob(cache)) or is_sealed((tmp_path / "out").stat(), DIGEST)
    assert os.access(blob(cache, digests.of_bytes(b"#!")), os.X_OK)
    assert [] == os.listdir(scratch)


def test_layered_hit_without_content_is_a_miss(cache: DiskCache, tmp_path: Path) -> None:
    """A far cache that announces what it no longer has gives nothing, and spoils nothing."""
    far = MemoryCache("far")
    result, files = made(tmp_path / "root", {"module.o": CONTENT})
    far.put(KEY, result, files)
    far.blobs.clear()

    assert layered(tmp_path, cache, far).get(KEY) is None
    assert cache.get(KEY) is None


def test_layered_near_one_that_takes_nothing(cache: DiskCache, tmp_path: Path) -> None:
    """When the near cache is full the far one still serves."""
    far = MemoryCache("far")
    result, files = made(tmp_path / "root", {"module.o": CONTENT})
    far.put(KEY, result, files)
    Path(cache.folder, "cas").write_bytes(b"in the way")
    both = layered(tmp_path, cache, far)

    assert (result, "far") == both.find(KEY)
    assert both.place(DIGEST, False, str(tmp_path / "out"))
    assert CONTENT == both.read(DIGEST)
    assert both.read(OTHER) is None
    assert not both.put(OTHER, result, files)


def test_no_caches(tmp_path: Path) -> None:
    """No cache at all is a cache that has nothing."""
    none = layered(tmp_path)

    assert none.get(KEY) is None
    assert not none.place(DIGEST, False, str(tmp_path / "out"))
    assert none.put(KEY, ActionResult(()), {})


def test_threads_share_one_object(cache: DiskCache, result: ActionResult, tmp_path: Path) -> None:
    """Many threads place the same blob at their own places."""
    placed = []

    def work(number: int) -> None:
        placed.append(cache.place(DIGEST, False, str(tmp_path / "out" / str(number))))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [True] * 8 == placed
    assert 8 == len(os.listdir(tmp_path / "out"))
    assert 1 == len(result.files)
