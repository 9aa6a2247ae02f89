"""Actions: what goes into their keys and signatures, and what does not. The engine is real; tools and runs are not."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hidet_build.action import Action, Artifact, Continuation, Text
from hidet_build.cache.disk import DiskCache
from hidet_build.engine import Engine
from hidet_build.errors import Location
from hidet_build.execution import ExecutionRoot, Layout
from hidet_build.files import Placer
from hidet_build.label import Label
from hidet_build.lock import KeyLocks
from hidet_build.performer import Performer
from hidet_build.process import ProcessResult
from hidet_build.progress import choose_reporter
from hidet_build.request import Options
from hidet_build.state import State
from hidet_build.toolchain.base import Toolchain
from hidet_build.toolchain.registry import ToolTree

GOLDEN = Path(__file__).parent / "golden" / "keys" / "actions.txt"


class Tools:
    """Toolchains whose identity is their name, and one folder with a header in it."""

    def __init__(self, root: Path) -> None:
        self._tree = root / "tree"
        self._tree.mkdir()
        (self._tree / "runtime.h").write_text("#pragma once\n")

    def get(self, name: str, location: Location | None = None) -> Toolchain:  # noqa: ARG002
        """Every name is there."""
        return Toolchain(name, {}, f"{name} 1.0", f"identity of {name}", "", ())

    def tree(self, name: str, location: Location | None = None) -> ToolTree:  # noqa: ARG002
        """Every name is the same folder."""
        return ToolTree(name, str(self._tree), "identity of hidet")


class Writer:
    """Runs an action by writing its arguments to each of its outputs."""

    def run(self, action: Action, _: Toolchain, place: ExecutionRoot) -> ProcessResult:
        """An output folder gets one file."""
        for where, artifact in action.outputs:
            target = Path(place.directory(action), where, "inside" if artifact.directory else "")
            target.write_text(" ".join(action.arguments))
        return ProcessResult(0, b"", 0.0, 0.0, 0)

    def command(self, action: Action, _: Toolchain, __: ExecutionRoot) -> str:
        """Not used."""
        return " ".join(action.arguments)


class Identity(NamedTuple):
    """By what an action is known: here, and in caches."""

    signature: str
    key: str


class House:
    """An output folder in which actions run."""

    def __init__(self, base: Path) -> None:
        self.root = base / "workspace"
        self.root.mkdir(parents=True)
        self.out = base / "out"
        self.out.mkdir()
        self._base = base
        self._tools = Tools(base)
        for name, content in (("a.txt", "a\n"), ("b.txt", "b\n"), ("same.txt", "a\n")):
            (self.root / name).write_text(content)
        (self.root / "run.sh").write_text("a\n")
        (self.root / "run.sh").chmod(0o755)

    def identity(self, action: Action, nocache: bool = True) -> Identity:
        """Make the action's outputs; what the state remembers of it."""
        layout = Layout(str(self.root), str(self.out))
        state = State(layout.state, layout.root)
        cache = DiskCache(str(self._base / "store"), Placer())
        options = Options(nocache=nocache)

        def locks(waiting: Callable[..., None]) -> KeyLocks:
            return KeyLocks(str(self._base / "locks"), waiting)

        def performer(tell: Callable[..., None]) -> Performer:
            return Performer(
                layout, options, state, cache, locks, Writer(), lambda: False, lambda _action, _output: None, tell
            )

        reporter = choose_reporter(io.StringIO(), {}, "no", "no")
        tools: Any = self._tools
        engine = Engine(layout, options, state, tools, reporter, lambda: False, performer)
        result = engine.build([action], [artifact for _, artifact in action.outputs])

        assert [] == result.failures
        record = state.record(action.id)
        assert record is not None
        return Identity(record.signature, record.key)


@pytest.fixture
def house(tmp_path: Path) -> House:
    """An empty one."""
    return House(tmp_path / "house")


def made(name: str, directory: bool = False, platform: str = "cpu-x86-64-v3") -> Artifact:
    """An output of //k:x."""
    return Artifact(f"k/x/{name}", platform, directory)


PLAIN = Action(
    owner=Label("k", "x"),
    mnemonic="Copy",
    platform="cpu-x86-64-v3",
    tool="command:cp",
    arguments=("cp", "in.txt", "out.txt"),
    inputs=(("in.txt", Artifact("a.txt")), ("k/options.args", Text("-O3\n"))),
    outputs=(("out.txt", made("out.txt")),),
    environment=(("A", "1"),),
    working_directory="k",
    location=Location("k/BUILD.yaml", 2, 5),
)
ACTIONS = {
    "plain": PLAIN,
    "bare": replace(PLAIN, inputs=(), environment=(), working_directory=""),
    "folder": replace(PLAIN, outputs=(("out", made("out", directory=True)),)),
    "two outputs": replace(PLAIN, outputs=(("a.txt", made("a.txt")), ("b/c.txt", made("b/c.txt")))),
    "executable": replace(PLAIN, inputs=(("run.sh", Artifact("run.sh")),)),
    "tree": replace(PLAIN, tool="cxx", trees=("hidet/include",)),
    "letters": replace(PLAIN, arguments=("cp", "ä", ""), environment=(("ö", "ü"),)),
    "not cached": replace(PLAIN, tags=("no-cache",)),
}


def test_keys_are_pinned(tmp_path: Path, update_golden: bool) -> None:
    """A key that changes makes every cache of every user useless: it must not happen by chance."""
    keys = {name: House(tmp_path / name).identity(action).key for name, action in ACTIONS.items()}
    actual = "".join(f"{key} {name}\n" for name, key in keys.items())
    if update_golden:
        GOLDEN.write_text(actual)

    assert GOLDEN.read_text() == actual


@pytest.mark.parametrize(
    "change",
    [
        {"tool": "command:mv"},
        {"arguments": ("cp", "in.txt", "./out.txt")},
        {"arguments": ("cp", "in.txt out.txt")},
        {"arguments": ("cp", "out.txt", "in.txt")},
        {"environment": (("A", "2"),)},
        {"environment": (("B", "1"),)},
        {"environment": ()},
        {"environment": (("A", "1"), ("B", ""))},
        {"working_directory": "k/x"},
        {"working_directory": ""},
        {"inputs": (("in.txt", Artifact("b.txt")), ("k/options.args", Text("-O3\n")))},
        {"inputs": (("in.txt", Artifact("a.txt")), ("k/options.args", Text("-O2\n")))},
        {"inputs": (("inn.txt", Artifact("a.txt")), ("k/options.args", Text("-O3\n")))},
        {"inputs": (("in.txt", Artifact("run.sh")), ("k/options.args", Text("-O3\n")))},
        {"inputs": (("in.txt", Artifact("a.txt")),)},
        {"outputs": (("out2.txt", made("out.txt")),)},
        {"outputs": (("out.txt", made("out.txt")), ("out2.txt", made("out2.txt")))},
        {"trees": ("hidet/include",)},
        {"trees": ("hidet/lib",)},
    ],
    ids=str,
)
def test_what_counts(house: House, change: dict[str, Any]) -> None:
    """Whatever a command can see of its action changes the signature and the key."""
    before, after = house.identity(PLAIN), house.identity(replace(PLAIN, **change))

    assert before.signature != after.signature
    assert before.key != after.key


@pytest.mark.parametrize(
    "change",
    [
        {"owner": Label("other", "target")},
        {"mnemonic": "Compile"},
        {"platform": "cuda-sm_90"},
        {"location": None},
        {"location": Location("elsewhere/BUILD.yaml", 7, 1, "text")},
        {"tags": ("exclusive", "local", "manual", "mine")},
        {"inputs": (("in.txt", Artifact("same.txt")), ("k/options.args", Text("-O3\n")))},
        {"inputs": (("in.txt", Text("a\n")), ("k/options.args", Text("-O3\n")))},
        {"outputs": (("out.txt", made("renamed.txt", platform="cuda-sm_90")),)},
    ],
    ids=str,
)
def test_what_does_not_count(house: House, change: dict[str, Any]) -> None:
    """What a command cannot see is no part of its identity, so that equal commands are run once."""
    assert house.identity(PLAIN) == house.identity(replace(PLAIN, **change))


def test_no_cache_is_another_key(house: House) -> None:
    """The API's `do_not_cache` is a part of the message that is hashed; here the action is as up to date as before."""
    before, after = house.identity(PLAIN), house.identity(replace(PLAIN, tags=("no-cache",)))

    assert before.signature == after.signature
    assert before.key != after.key


def test_a_folder_counts_as_another_output_here(house: House) -> None:
    """The API has one list of output paths for both; whether it is a folder, the signature knows."""
    before = house.identity(PLAIN)
    after = house.identity(replace(PLAIN, outputs=(("out.txt", made("out.txt", directory=True)),)))

    assert before.signature != after.signature
    assert before.key == after.key


def test_a_file_is_not_restored_as_a_folder(house: House) -> None:
    """Nor the other way round, though the two have one key and so one place in a cache."""
    folder = replace(PLAIN, outputs=(("out.txt", made("folder", directory=True)),))
    again = replace(PLAIN, outputs=(("out.txt", made("again.txt")),))
    for action in (PLAIN, folder, again):
        house.identity(action, nocache=False)
    place = house.out / "cpu-x86-64-v3" / "k" / "x"

    assert {"out.txt": False, "folder": True, "again.txt": False} == {
        path.name: path.is_dir() for path in place.iterdir()
    }
    assert ["inside"] == [path.name for path in (place / "folder").iterdir()]


def test_another_house_makes_no_difference(tmp_path: Path) -> None:
    """Neither the workspace's folder, nor the output folder, nor the store is in the key."""
    assert House(tmp_path / "one").identity(PLAIN) == House(tmp_path / "two" / "deeper").identity(PLAIN)


def test_ids_tell_steps_apart() -> None:
    """A continuation that waits for more than the one it is nested in, and promises the same, is another."""
    waits = Continuation(Label("k", "x"), "cpu", (made("a"),), (made("out"),), lambda _: ())
    more = replace(waits, inputs=(made("a"), made("b")))
    promises = replace(waits, outputs=(made("out"), made("more")))

    assert 4 == len({PLAIN.id, waits.id, more.id, promises.id})


def test_artifacts_are_known_by_one_string() -> None:
    """A source is never taken for an output, and the file in a folder is the folder's child."""
    source, output = Artifact("k/x/a.txt"), made("a.txt")

    assert ("k/x/a.txt", "/cpu-x86-64-v3/k/x/a.txt") == (source.id, output.id)
    assert (True, False) == (source.is_source, output.is_source)
    assert made("folder/a.txt") == made("folder", directory=True).child("a.txt")
