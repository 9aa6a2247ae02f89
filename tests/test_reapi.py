"""Keys and results as Remote Execution API messages: canonical, pinned, and closed to what must not be followed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidet_build import digest as digests
from hidet_build import messages, reapi
from hidet_build.action import ActionResult, OutputFile
from hidet_build.digest import Digest
from hidet_build.errors import AnalysisError, EnvironmentFailure
from hidet_build.messages import MESSAGES, BadMessage
from hidet_build.reapi import ActionKey, action_key

SOURCE = digests.of_bytes(b"int main() {}\n")
HEADER = digests.of_bytes(b"#pragma once\n")

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
DIGESTS = st.binary(max_size=20).map(digests.of_bytes)


def key(**changes: object) -> ActionKey:
    """The key of an action that uses everything; its digests below come from another implementation."""
    description: dict[str, object] = {
        "arguments": ["g++", "-c", "../module.cc", "-o", "module.o"],
        "environment": {"PATH": "/usr/bin", "LANG": "C"},
        "output_paths": ["work/é.txt", "work/module.o", "work/module.o"],
        "working_directory": "work",
        "inputs": [("run.sh", HEADER, True), ("module.cc", SOURCE, False), ("inc/x.h", HEADER, False)],
        "trees": [("external/hidet/include", digests.of_bytes(directory(files=[("x.h", HEADER)])))],
        "salt": b"salt",
        "platform_properties": [("OSFamily", "linux"), ("ISA", "x86-64")],
        "do_not_cache": True,
    }
    return action_key(**{**description, **changes})  # type: ignore[arg-type]


def directory(files: list[tuple[str, Digest]]) -> bytes:
    """A Directory message of plain files."""
    message = MESSAGES["Directory"]()
    for name, digest in files:
        message.files.add(name=name, digest={"hash": digest.hash, "size_bytes": digest.size})
    return bytes(message.SerializeToString())


def test_golden_key() -> None:
    """Command, input root and Action have the bytes that another implementation of the specification gives."""
    made = key()

    assert Digest("f5a2d14142b8b36bdeb15dadb9b8cef3c9462f72d9917b1c56c92150acd3755f", 185) == made.digest
    assert Digest("3a01b96f3e32455f9ba3d37f911183fa64bba0996387c0d64b64268e34010a12", 126) == digests.of_bytes(
        made.command
    )
    assert Digest("752f273fa18b323e8caecdd22567b909d759185382ca19cf785a441ac24513e9", 400) == digests.of_bytes(
        made.directories[0]
    )
    assert digests.of_bytes(made.action) == made.digest
    assert 5 == len(made.directories)  # root, inc, external, external/hidet, work


def test_golden_small_key() -> None:
    """Defaults are left out: no platform, no salt, no inputs."""
    made = action_key(["true"], {}, [], "", [], [], b"")

    assert Digest("054435d0a7573cc13cb737477406ab0e34801a7563531631746e21edead1a3e8", 138) == made.digest
    assert (b"",) == made.directories


def test_order_does_not_matter() -> None:
    """What has no order of its own is sorted."""
    made = key(
        environment=[("LANG", "C"), ("PATH", "/usr/bin")],
        output_paths=["work/module.o", "work/é.txt"],
        inputs=[("inc/x.h", HEADER, False), ("module.cc", SOURCE, False), ("run.sh", HEADER, True)],
        platform_properties=[("ISA", "x86-64"), ("OSFamily", "linux")],
    )

    assert key() == made


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": ["g++", "-c", "-o", "module.o", "../module.cc"]},
        {"environment": {"PATH": "/usr/bin"}},
        {"output_paths": ["work/module.o"]},
        {"working_directory": ""},
        {"inputs": [("run.sh", HEADER, False), ("module.cc", SOURCE, False), ("inc/x.h", HEADER, False)]},
        {"inputs": [("run.sh", HEADER, True), ("module.cc", HEADER, False), ("inc/x.h", HEADER, False)]},
        {"inputs": [("run.sh", HEADER, True), ("other.cc", SOURCE, False), ("inc/x.h", HEADER, False)]},
        {"trees": [("external/hidet/include", SOURCE)]},
        {"trees": []},
        {"salt": b"other"},
        {"platform_properties": []},
        {"do_not_cache": False},
    ],
)
def test_everything_is_in_the_key(changes: dict[str, object]) -> None:
    """Whatever is changed, the key is another."""
    assert key(**changes).digest != key().digest


def test_names_sort_by_their_bytes() -> None:
    """Beyond the basic plane UTF-16 would sort differently from UTF-8, and upper case comes before lower."""
    names = ["\U0001f600", "\uffee", "é", "z", "Z", "a"]
    made = action_key([], {}, names, "", [(name, SOURCE, False) for name in names], [], b"")
    root = MESSAGES["Directory"].FromString(made.directories[0])
    command = MESSAGES["Command"].FromString(made.command)
    expected = sorted(names, key=lambda name: name.encode())

    assert expected == [node.name for node in root.files]
    assert expected == list(command.output_paths)


def test_outputs_are_relative_to_the_working_directory() -> None:
    """An output beside the working directory is reached through its parent."""
    made = action_key([], {}, ["a/b/c", "a/x", "y", "a/bc/d"], "a/b", [], [], b"")

    assert ["../../y", "../bc/d", "../x", "c"] == list(MESSAGES["Command"].FromString(made.command).output_paths)


@given(st.lists(st.tuples(PATHS, DIGESTS, st.booleans()), max_size=8))
def test_input_root_holds_the_inputs(inputs: list[tuple[str, Digest, bool]]) -> None:
    """Walking the messages from the root gives back exactly the inputs, sorted; or the inputs clash."""
    try:
        made = action_key([], {}, [], "", inputs, [], b"")
    except AnalysisError:
        paths = [path for path, _, _ in inputs]
        assert len(set(paths)) < len(paths) or any(other.startswith(path + "/") for path in paths for other in paths)
        return
    by_digest = {digests.of_bytes(content): content for content in made.directories}

    def walk(content: bytes, path: str) -> list[tuple[str, Digest, bool]]:
        message = MESSAGES["Directory"].FromString(content)
        found = [
            (path + node.name, Digest(node.digest.hash, node.digest.size_bytes), node.is_executable)
            for node in message.files
        ]
        for names in ([node.name for node in message.files], [node.name for node in message.directories]):
            assert sorted(set(names), key=str.encode) == names
        for node in message.directories:
            inner = by_digest[Digest(node.digest.hash, node.digest.size_bytes)]
            found += walk(inner, f"{path}{node.name}/")
        return found

    assert sorted(set(inputs)) == sorted(walk(made.directories[0], ""))


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "./a", "a/../b", "..", "a\0b"])
def test_paths_inputs_cannot_have(path: str) -> None:
    """Absolute paths and paths with empty or dotted segments are refused."""
    with pytest.raises(AnalysisError, match="no path an input can have"):
        action_key([], {}, [], "", [(path, SOURCE, False)], [], b"")


@pytest.mark.parametrize(
    "inputs",
    [
        [("a", SOURCE, False), ("a", HEADER, False)],
        [("a", SOURCE, False), ("a", SOURCE, True)],
        [("a", SOURCE, False), ("a/b", HEADER, False)],
        [("a/b", SOURCE, False), ("a", HEADER, False)],
    ],
)
def test_inputs_that_clash(inputs: list[tuple[str, Digest, bool]]) -> None:
    """Two contents at one path, or a file where a folder must be, are refused."""
    with pytest.raises(AnalysisError):
        action_key([], {}, [], "", inputs, [], b"")


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": ["g++", "\udcff"]},
        {"environment": {"A": "\udcff"}},
        {"output_paths": ["\udcff"]},
        {"inputs": [("\udcff", SOURCE, False)]},
    ],
)
def test_text_that_is_not_utf8(changes: dict[str, object]) -> None:
    """File names of other bytes end in our error, not in protobuf's."""
    with pytest.raises(AnalysisError, match="is not UTF-8"):
        key(**changes)


def test_directory_digest(tmp_path: Path) -> None:
    """A folder's digest is that of its files' content: not of modes, times, byte code, or how the files are linked."""
    plain, linked = tmp_path / "plain", tmp_path / "linked"
    for folder in (plain / "inc" / "deep", plain / "__pycache__", linked):
        folder.mkdir(parents=True)
    (plain / "inc" / "x.h").write_bytes(b"#pragma once\n")
    (plain / "inc" / "deep" / "y.h").write_bytes(b"int main() {}\n")
    (plain / "a.py").write_bytes(b"")
    before = reapi.directory_digest(str(plain))
    (plain / "__pycache__" / "a.pyc").write_bytes(b"1")
    (plain / "b.pyc").write_bytes(b"1")
    (plain / "a.py").chmod(0o755)
    (plain / "dangling").symlink_to("nowhere")
    os.mkfifo(plain / "pipe")
    (linked / "inc").symlink_to(plain / "inc")
    (linked / "a.py").symlink_to(plain / "a.py")
    digest, messages = before

    assert before == reapi.directory_digest(str(plain))
    assert before == reapi.directory_digest(str(linked))
    assert digest == digests.of_bytes(messages[0])
    assert 3 == len(messages)

    (plain / "inc" / "deep" / "y.h").write_bytes(b"int main() { }")

    assert reapi.directory_digest(str(plain)) != before


def test_directory_digest_fits_the_key(tmp_path: Path) -> None:
    """A tree in the input root is the same as its files one by one."""
    (tmp_path / "x.h").write_bytes(b"#pragma once\n")
    digest, _ = reapi.directory_digest(str(tmp_path))

    assert key() == key(trees=[("external/hidet/include", digest)])


def test_folder_that_holds_itself(tmp_path: Path) -> None:
    """A link to a folder above is refused."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "loop").symlink_to("..")
    with pytest.raises(EnvironmentFailure, match="has no end"):
        reapi.directory_digest(str(tmp_path))


GOLDEN_RESULT = ActionResult(
    (
        OutputFile("module.o", SOURCE, False),
        OutputFile("out/a", SOURCE, True),
        OutputFile("out/d/b", HEADER, False),
    ),
    ("out",),
    b"warning\n",
    1.25,
)


def test_golden_result() -> None:
    """An ActionResult and its Tree have the bytes another implementation gives."""
    content, (tree,) = reapi.encode_result(GOLDEN_RESULT)

    assert Digest("14458e35ee2069099b205066857e7dcd6c647d45ef8c108647f91f7328713f3b", 194) == digests.of_bytes(content)
    assert Digest("d2c1e47ae64ca79a7a23cecacbf83db93f5e38c32a3d3ac0232e33f4cacd091e", 232) == digests.of_bytes(tree)


def decode(encoded: reapi.EncodedResult, working_directory: str = "") -> ActionResult:
    """Decode with the trees at hand."""
    blobs = {digests.of_bytes(tree): tree for tree in encoded.trees}
    return messages.decode_result(encoded.content, blobs.get, working_directory)


def test_result_comes_back() -> None:
    """The golden result is read as it was written."""
    assert GOLDEN_RESULT == decode(reapi.encode_result(GOLDEN_RESULT))


@st.composite
def results(draw: st.DrawFn) -> ActionResult:
    """Results whose paths do not clash: files at `f/...`, folders at `d<number>`."""
    paths = draw(st.lists(NAMES, unique=True, max_size=4))
    found = [OutputFile(f"f/{name}", draw(DIGESTS), draw(st.booleans())) for name in paths]
    folders = [f"d{number}" for number in range(draw(st.integers(0, 3)))]
    for folder in folders:
        for name in draw(st.lists(NAMES, unique=True, max_size=3)):
            inside = draw(st.sampled_from(["x", "x/y", ""]))
            path = "/".join(part for part in (folder, inside, f"-{name}") if part)
            found.append(OutputFile(path, draw(DIGESTS), draw(st.booleans())))
    unique = {file.path: file for file in found}
    return ActionResult(
        tuple(sorted(unique.values())), tuple(folders), draw(st.binary(max_size=50)), draw(st.integers(0, 99)) / 4
    )


@given(results(), st.sampled_from(["", "w", "f", "w/x/y"]))
def test_results_come_back(result: ActionResult, working_directory: str) -> None:
    """Every result survives encoding, from whatever folder the command was run."""
    encoded = reapi.encode_result(result, working_directory)

    assert result == decode(encoded, working_directory)
    assert reapi.encode_result(result, working_directory) == encoded


def test_empty_results() -> None:
    """A result without outputs is no empty message, and an empty folder is a folder."""
    nothing = ActionResult(())
    folder = ActionResult((), ("out",))

    assert reapi.encode_result(nothing).content != b""
    assert nothing == decode(reapi.encode_result(nothing))
    assert folder == decode(reapi.encode_result(folder))


def test_long_output_is_shortened() -> None:
    """Head and tail of much text are kept, and it is said that something is missing."""
    text = b"first" + b"x" * (10 * reapi.STDOUT_LIMIT) + b"last"
    output = decode(reapi.encode_result(ActionResult((), output=text))).output

    assert output.startswith(b"first")
    assert output.endswith(b"last")
    assert b"bytes left out" in output
    assert len(output) < reapi.STDOUT_LIMIT + 100


def nothing(_digest: Digest) -> bytes | None:
    """A store without blobs."""
    return None


def foreign(**fields: object) -> bytes:
    """An ActionResult message as somebody else may have written it."""
    return bytes(MESSAGES["ActionResult"](**{"execution_metadata": {"worker": "w"}, **fields}).SerializeToString())


GOOD = {"hash": SOURCE.hash, "size_bytes": SOURCE.size}


def test_output_kept_as_blobs() -> None:
    """Other tools keep long text as blobs, standard error apart."""
    content = foreign(stdout_digest=GOOD, stderr_raw=b" and more")

    assert b"text and more" == messages.decode_result(content, {SOURCE: b"text"}.get).output


def test_time_from_timestamps() -> None:
    """Where no duration was kept, the timestamps give it."""
    metadata = {
        "worker": "w",
        "execution_start_timestamp": {"seconds": 10, "nanos": 500_000_000},
        "execution_completed_timestamp": {"seconds": 12, "nanos": 0},
    }

    assert 1.5 == messages.decode_result(foreign(execution_metadata=metadata), nothing).seconds


@pytest.mark.parametrize(
    "fields",
    [
        {"exit_code": 1},
        {"output_symlinks": [{"path": "a", "target": "/etc/passwd"}]},
        {"output_file_symlinks": [{"path": "a", "target": "b"}]},
        {"output_files": [{"path": "a", "digest": GOOD}, {"path": "a", "digest": GOOD}]},
        {"output_files": [{"path": "a", "digest": GOOD}, {"path": "a/b", "digest": GOOD}]},
        {"output_files": [{"path": "a"}]},
        {"output_files": [{"path": "a", "digest": {"hash": SOURCE.hash.upper(), "size_bytes": 1}}]},
        {"output_files": [{"path": "a", "digest": {"hash": "../" + SOURCE.hash[3:], "size_bytes": 1}}]},
        {"output_files": [{"path": "a", "digest": {"hash": SOURCE.hash, "size_bytes": -1}}]},
        {"output_directories": [{"path": "a", "tree_digest": GOOD}]},
        {"stdout_digest": GOOD},
        *({"output_files": [{"path": path, "digest": GOOD}]} for path in ("", "/a", "..", "../a", "a/../../b", ".")),
        *({"output_files": [{"path": path, "digest": GOOD}]} for path in ("a/", "a//b", "./a", "a/../b", "a\0b")),
    ],
)
def test_results_that_are_refused(fields: dict[str, object]) -> None:
    """Failures, links, and paths or digests that are malformed, twice there or lead outside are no results."""
    with pytest.raises(BadMessage):
        messages.decode_result(foreign(**fields), nothing)


def test_working_directory_does_not_open_the_root() -> None:
    """From a working directory `..` may be used inside the execution root, and no further."""
    inside = foreign(output_files=[{"path": "../a", "digest": GOOD}])
    outside = foreign(output_files=[{"path": "../../a", "digest": GOOD}])

    assert (OutputFile("a", SOURCE, False),) == messages.decode_result(inside, nothing, "work").files
    with pytest.raises(BadMessage):
        messages.decode_result(outside, nothing, "work")


def with_tree(tree: object) -> tuple[bytes, dict[Digest, bytes]]:
    """A result with one output folder of the given Tree, and the blobs."""
    content = bytes(tree.SerializeToString())  # type: ignore[attr-defined]
    digest = digests.of_bytes(content)
    named = {"hash": digest.hash, "size_bytes": digest.size}
    return foreign(output_directories=[{"path": "out", "tree_digest": named}]), {digest: content}


@pytest.mark.parametrize(
    "root",
    [
        {"files": [{"name": "../a", "digest": GOOD}]},
        {"files": [{"name": "..", "digest": GOOD}]},
        {"files": [{"name": "", "digest": GOOD}]},
        {"files": [{"name": "a", "digest": GOOD}, {"name": "a", "digest": GOOD}]},
        {"symlinks": [{"name": "a", "target": "b"}]},
        {"directories": [{"name": "a", "digest": GOOD}]},
    ],
)
def test_trees_that_are_refused(root: dict[str, object]) -> None:
    """What a path must not do, a tree must not either; and what it names must be in it."""
    content, blobs = with_tree(MESSAGES["Tree"](root=root))
    with pytest.raises(BadMessage):
        messages.decode_result(content, blobs.get)


def test_tree_bomb() -> None:
    """Folders that name the folder below twice, 40 levels deep, are refused before they fill the memory."""
    tree = MESSAGES["Tree"]()
    child = MESSAGES["Directory"](files=[{"name": "a", "digest": GOOD}])
    for _ in range(40):
        tree.children.append(child)
        digest = digests.of_bytes(child.SerializeToString())
        named = {"hash": digest.hash, "size_bytes": digest.size}
        child = MESSAGES["Directory"](directories=[{"name": "a", "digest": named}, {"name": "b", "digest": named}])
    tree.root.CopyFrom(child)
    content, blobs = with_tree(tree)
    with pytest.raises(BadMessage, match="a tree of more than"):
        messages.decode_result(content, blobs.get)


@given(st.binary(max_size=200))
def test_garbage(content: bytes) -> None:
    """Any bytes are a result or refused, and nothing else."""
    try:
        result = messages.decode_result(content, nothing)
    except BadMessage:
        return

    assert content
    assert isinstance(result, ActionResult)


def test_cut_results() -> None:
    """A result cut at any place is refused or lacks something; no other file ever appears in it."""
    content, trees = reapi.encode_result(GOLDEN_RESULT)
    for length in range(len(content)):
        try:
            result = decode(reapi.EncodedResult(content[:length], trees))
        except BadMessage:
            continue
        assert set(result.files) <= set(GOLDEN_RESULT.files)


def test_references() -> None:
    """The blobs a result names itself: files outside folders, trees, text."""
    content, (tree,) = reapi.encode_result(GOLDEN_RESULT)

    assert (SOURCE, digests.of_bytes(tree)) == messages.references(content)
    assert (SOURCE,) == messages.references(foreign(stdout_digest=GOOD))
    with pytest.raises(BadMessage):
        messages.references(b"")


def test_no_clash_with_other_stubs() -> None:
    """A program that has loaded messages of the same names, in another shape, can import us, and we it."""
    script = (
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "file = descriptor_pb2.FileDescriptorProto(name='build/bazel/remote/execution/v2/hidet_build.proto',\n"
        "    package='build.bazel.remote.execution.v2', syntax='proto3')\n"
        "file.message_type.add(name='Digest').field.add(name='other', number=1, label=1, type=9)\n"
        "descriptor_pool.Default().AddSerializedFile(file.SerializeToString())\n"
        "from google.protobuf import duration_pb2, timestamp_pb2, any_pb2, wrappers_pb2\n"
        "from hidet_build import messages, reapi\n"
        "content = reapi.encode_result(reapi.ActionResult(()))[0]\n"
        "print(messages.decode_result(content, None).seconds)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, text=True)

    assert "0.0" == ran.stdout.strip()


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_every_protobuf_reads_the_same(implementation: str) -> None:
    """The pure Python implementation of protobuf reads what the other does."""
    content, (tree,) = reapi.encode_result(GOLDEN_RESULT)
    script = (
        "import sys\n"
        "from hidet_build import messages\n"
        f"print(messages.decode_result({content!r}, lambda _: {tree!r}).files)\n"
    )
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, check=True, text=True)

    assert f"{GOLDEN_RESULT.files}\n" == ran.stdout


def test_same_key_with_every_hash_seed() -> None:
    """Other hash seeds give the same bytes."""
    script = (
        "from hidet_build import reapi\n"
        "from hidet_build.digest import EMPTY\n"
        "inputs = [(f'{n}/{n}', EMPTY, False) for n in 'zyxabc']\n"
        "print(reapi.action_key(['a'], {c: c for c in 'zyx'}, 'cba', 'w', inputs, [], b's').digest.hash)\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }

    assert 1 == len(seen)


def test_keys_need_no_protobuf() -> None:
    """Keying and storing an action imports nothing for it."""
    script = "import sys\nfrom hidet_build import reapi\nprint([one for one in sys.modules if 'google' in one])\n"
    ran = subprocess.run([sys.executable, "-I", "-c", script], stdout=subprocess.PIPE, check=True, text=True)

    assert "[]\n" == ran.stdout


# ---- our encoder beside protobuf

NUMBERS = {"bool": st.booleans(), "int32": st.integers(0, 2**31 - 1), "int64": st.integers(0, 2**63 - 1)}
TEXTS = {"string": st.text(st.characters(exclude_categories=["Cs"]), max_size=200), "bytes": st.binary(max_size=200)}
SCALARS = {**NUMBERS, **TEXTS, "uint32": st.integers(0, 2**32 - 1)}
PACKAGE_OF = {message: package for package, found in reapi.TABLE.items() for message in found}


@st.composite
def twice(draw: st.DrawFn, message: str, depth: int = 4) -> tuple[dict[str, object], bytes]:
    """A message with any values: as protobuf's constructor takes them, and as our encoder writes them."""
    fields: dict[str, object] = {}
    values: dict[str, object] = {}
    for row in map(reapi.read_row, reapi.TABLE[PACKAGE_OF[message]][message]):
        if not draw(st.booleans()) or (row.is_message and not depth):
            continue
        one = twice(row.kind.removeprefix("google.protobuf."), depth - 1) if row.is_message else SCALARS[row.kind]
        drawn = draw(st.lists(one, max_size=3)) if row.is_repeated else [draw(one)]
        pairs = drawn if row.is_message else [(value, value) for value in drawn]
        for target, side in ((fields, 0), (values, 1)):
            found = [pair[side] for pair in pairs]
            target[row.name] = found if row.is_repeated else found[0]
    return fields, reapi.encode(message, **values)


@pytest.mark.parametrize("message", PACKAGE_OF)
@given(st.data())
def test_encoder_writes_what_protobuf_writes(message: str, data: st.DataObject) -> None:
    """Every message of the table, with any values, has the bytes that protobuf gives it."""
    fields, encoded = data.draw(twice(message))

    assert MESSAGES[message](**fields).SerializeToString(deterministic=True) == encoded
