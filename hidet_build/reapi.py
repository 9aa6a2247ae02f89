"""Remote Execution API messages as bytes: the keys made of them, and results as caches keep them.

Knows digests, paths and our `ActionResult`; nothing of caches, rules or the network. Writes messages and reads none:
`messages` does that, with protobuf, whose import costs more than a small build has to do.

What is written comes from one table, the API's public field numbers, and is byte for byte what protobuf writes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Union

from hidet_build import digest as digests
from hidet_build.action import ActionResult
from hidet_build.digest import Digest
from hidet_build.errors import AnalysisError, EnvironmentFailure

STDOUT_LIMIT = 64 << 10  # of an action's text, this much is kept with its result
WORKER = "hidet-build"  # in every result, which therefore is never empty: zero bytes would look like a lost one

# Package, then message (dotted: nested in another), then "number type name". Types with a capital are messages, of the
# same package unless written out.
TABLE: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "google.protobuf": {
            "Timestamp": ("1 int64 seconds", "2 int32 nanos"),
            "Duration": ("1 int64 seconds", "2 int32 nanos"),
            "UInt32Value": ("1 uint32 value",),
            "Any": ("1 string type_url", "2 bytes value"),
        },
        "build.bazel.remote.execution.v2": {
            "Digest": ("1 string hash", "2 int64 size_bytes"),
            "Platform": ("1 repeated Platform.Property properties",),
            "Platform.Property": ("1 string name", "2 string value"),
            "Action": (
                "1 Digest command_digest",
                "2 Digest input_root_digest",
                "6 google.protobuf.Duration timeout",
                "7 bool do_not_cache",
                "9 bytes salt",
                "10 Platform platform",
            ),
            "Command": (
                "1 repeated string arguments",
                "2 repeated Command.EnvironmentVariable environment_variables",
                "3 repeated string output_files",
                "4 repeated string output_directories",
                "5 Platform platform",
                "6 string working_directory",
                "7 repeated string output_paths",
                "8 repeated string output_node_properties",
            ),
            "Command.EnvironmentVariable": ("1 string name", "2 string value"),
            "NodeProperty": ("1 string name", "2 string value"),
            "NodeProperties": (
                "1 repeated NodeProperty properties",
                "2 google.protobuf.Timestamp mtime",
                "3 google.protobuf.UInt32Value unix_mode",
            ),
            "FileNode": (
                "1 string name",
                "2 Digest digest",
                "4 bool is_executable",
                "6 NodeProperties node_properties",
            ),
            "DirectoryNode": ("1 string name", "2 Digest digest"),
            "SymlinkNode": ("1 string name", "2 string target", "4 NodeProperties node_properties"),
            "Directory": (
                "1 repeated FileNode files",
                "2 repeated DirectoryNode directories",
                "3 repeated SymlinkNode symlinks",
                "5 NodeProperties node_properties",
            ),
            "Tree": ("1 Directory root", "2 repeated Directory children"),
            "OutputFile": (
                "1 string path",
                "2 Digest digest",
                "4 bool is_executable",
                "5 bytes contents",
                "7 NodeProperties node_properties",
            ),
            "OutputDirectory": (
                "1 string path",
                "3 Digest tree_digest",
                "4 bool is_topologically_sorted",
                "5 Digest root_directory_digest",
            ),
            "OutputSymlink": ("1 string path", "2 string target", "4 NodeProperties node_properties"),
            "ExecutedActionMetadata": (
                "1 string worker",
                "2 google.protobuf.Timestamp queued_timestamp",
                "3 google.protobuf.Timestamp worker_start_timestamp",
                "4 google.protobuf.Timestamp worker_completed_timestamp",
                "5 google.protobuf.Timestamp input_fetch_start_timestamp",
                "6 google.protobuf.Timestamp input_fetch_completed_timestamp",
                "7 google.protobuf.Timestamp execution_start_timestamp",
                "8 google.protobuf.Timestamp execution_completed_timestamp",
                "9 google.protobuf.Timestamp output_upload_start_timestamp",
                "10 google.protobuf.Timestamp output_upload_completed_timestamp",
                "11 repeated google.protobuf.Any auxiliary_metadata",
                "12 google.protobuf.Duration virtual_execution_duration",
            ),
            "ActionResult": (
                "2 repeated OutputFile output_files",
                "3 repeated OutputDirectory output_directories",
                "4 int32 exit_code",
                "5 bytes stdout_raw",
                "6 Digest stdout_digest",
                "7 bytes stderr_raw",
                "8 Digest stderr_digest",
                "9 ExecutedActionMetadata execution_metadata",
                "10 repeated OutputSymlink output_file_symlinks",
                "11 repeated OutputSymlink output_directory_symlinks",
                "12 repeated OutputSymlink output_symlinks",
            ),
        },
    }
)


class Row(NamedTuple):
    """A row of the table."""

    number: int
    is_repeated: bool
    kind: str
    name: str

    @property
    def is_message(self) -> bool:
        """Whether the field holds a message."""
        return not self.kind.islower() or "." in self.kind


def read_row(text: str) -> Row:
    """A row of the table from how it is written there."""
    number, *repeated, kind, name = text.split()
    return Row(int(number), bool(repeated), kind, name)


class _Field(NamedTuple):
    name: str
    tag: bytes
    is_number: bool
    is_repeated: bool
    is_message: bool


def _field(row: Row) -> _Field:
    is_number = row.kind in ("bool", "int32", "int64", "uint32")
    tag = _varint(row.number << 3 | (0 if is_number else 2))
    return _Field(row.name, tag, is_number, row.is_repeated, row.is_message)


def _varint(number: int) -> bytes:
    """A number that is not negative, seven bits a byte, the lowest first."""
    if number < 128:
        return bytes((number,))
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


_FIELDS: Mapping[str, tuple[_Field, ...]] = MappingProxyType(
    {
        message: tuple(_field(row) for row in map(read_row, rows))
        for messages in TABLE.values()
        for message, rows in messages.items()
    }
)


def encode(message: str, **values: Any) -> bytes:
    """A message of the table, as protobuf writes it; the messages in it are given encoded, None is no value.

    Fields come in the order of their numbers; zero, false and empty texts are left out, empty messages are not.
    UnicodeEncodeError where a text is not UTF-8.
    """
    made: list[bytes] = []
    for name, tag, is_number, is_repeated, is_message in _FIELDS[message]:
        value = values.get(name)
        if not value and not (is_message and value is not None and not is_repeated):
            continue
        for one in value if is_repeated else (value,):
            if is_number:
                made += (tag, _varint(one))
            else:
                content = one.encode() if isinstance(one, str) else one
                made += (tag, _varint(len(content)), content)
    return b"".join(made)


# --- keys -------------------------------------------------------------------------------------------------------------


class ActionKey(NamedTuple):
    """The key of an action, and the messages a remote executor needs to have for it.

    `directories` are those of the input root, root first, without what is inside the toolchain trees
    (`directory_digest` gives those).
    """

    digest: Digest
    action: bytes
    command: bytes
    directories: tuple[bytes, ...]


class _Folder(dict[str, "_Node"]):
    """A folder of the input root while it is put together."""


_Node = Union[_Folder, Digest, tuple[Digest, bool]]  # a folder, a finished tree, a file and whether it is executable


def action_key(
    arguments: Sequence[str],
    environment: Mapping[str, str] | Iterable[tuple[str, str]],
    output_paths: Iterable[str],
    working_directory: str,
    inputs: Iterable[tuple[str, Digest, bool]],
    trees: Iterable[tuple[str, Digest]],
    salt: bytes,
    platform_properties: Iterable[tuple[str, str]] = (),
    do_not_cache: bool = False,
) -> ActionKey:
    """The key of a command line on the given inputs; all paths are paths in the execution root.

    The order of everything but `arguments` does not matter: what is sent is sorted (by code point, which is UTF-8's
    byte order too). `inputs` are files (path, content, executable), `trees` whole folders by the digest of their
    Directory message. Raises AnalysisError when inputs get in each other's way or cannot be written down as UTF-8.
    """
    try:
        root = _input_root(inputs, trees, working_directory)
        directories: list[bytes] = []
        root_digest = _encode_folder(root, directories)
        properties = sorted(set(platform_properties))
        platform = _platform(properties) if properties else None
        command = encode(
            "Command",
            arguments=arguments,
            environment_variables=[
                encode("Command.EnvironmentVariable", name=name, value=value)
                for name, value in sorted(dict(environment).items())
            ],
            platform=platform,
            working_directory=working_directory,
            output_paths=sorted({_relative(path, working_directory) for path in output_paths}),
        )
        action = encode(
            "Action",
            command_digest=_digest(digests.of_bytes(command)),
            input_root_digest=_digest(root_digest),
            do_not_cache=do_not_cache,
            salt=salt,
            platform=platform,
        )
    except UnicodeEncodeError as error:  # a file name of other bytes, which Python shows with surrogates
        raise AnalysisError(
            f"{error.object!r} is not UTF-8", hint="file names, arguments and environment of an action must be"
        ) from error
    return ActionKey(digests.of_bytes(action), action, command, tuple(reversed(directories)))


def _relative(path: str, working_directory: str) -> str:
    # As posixpath.relpath, which would ask for the current folder.
    if not working_directory:
        return path
    here, there = working_directory.split("/"), path.split("/")
    common = 0
    while common < min(len(here), len(there)) and here[common] == there[common]:
        common += 1
    return "/".join([".."] * (len(here) - common) + there[common:])


def _platform(properties: Sequence[tuple[str, str]]) -> bytes:
    pairs = [encode("Platform.Property", name=name, value=value) for name, value in properties]
    return encode("Platform", properties=pairs)


def _input_root(
    inputs: Iterable[tuple[str, Digest, bool]], trees: Iterable[tuple[str, Digest]], working_directory: str
) -> _Folder:
    root = _Folder()
    for path, digest, executable in inputs:
        _insert(root, path, (digest, executable))
    for path, digest in trees:
        _insert(root, path, digest)
    if working_directory:  # it must be there even when nothing is in it
        _descend(root, working_directory, working_directory.split("/"))
    return root


def _insert(root: _Folder, path: str, node: _Node) -> None:
    *parents, name = path.split("/")
    folder = _descend(root, path, parents)
    if not is_name(name):
        raise AnalysisError(f"{path!r} is no path an input can have: it must be relative and without '.' and '..'")
    if folder.setdefault(name, node) != node:
        raise AnalysisError(f"two inputs of one action are at {path!r}")


def _descend(root: _Folder, path: str, parents: Sequence[str]) -> _Folder:
    folder = root
    for parent in parents:
        if not is_name(parent):
            raise AnalysisError(f"{path!r} is no path an input can have: it must be relative and without '.' and '..'")
        inner = folder.setdefault(parent, _Folder())
        if not isinstance(inner, _Folder):
            raise AnalysisError(f"an action has an input at {path!r}, but {parent!r} in that path is an input itself")
        folder = inner
    return folder


def is_name(segment: str) -> bool:
    """Whether a path can have this segment."""
    return segment not in ("", ".", "..") and "\0" not in segment


def _encode_folder(folder: _Folder, made: list[bytes]) -> Digest:
    # Appends the messages of the folder and all below it to `made`, the folder's own last.
    files, directories = [], []
    for name, node in sorted(folder.items(), key=lambda item: item[0]):
        if isinstance(node, _Folder):
            directories.append(encode("DirectoryNode", name=name, digest=_digest(_encode_folder(node, made))))
        elif isinstance(node, Digest):
            directories.append(encode("DirectoryNode", name=name, digest=_digest(node)))
        else:
            files.append(encode("FileNode", name=name, digest=_digest(node[0]), is_executable=node[1]))
    content = encode("Directory", files=files, directories=directories)
    made.append(content)
    return digests.of_bytes(content)


def directory_digest(path: str) -> tuple[Digest, list[bytes]]:
    """The digest of a real folder's Directory message, and the messages of it and all below, its own first.

    For toolchain trees, whose identity is content alone: links are followed (an installer may link where another
    copies), modes are left out (installers differ), and so are byte code, which Python writes as it likes, links to
    nothing and special files. Reads every file.
    """
    made: list[bytes] = []
    try:
        root = _read_folder(path, ())
        digest = _encode_folder(root, made)
    except UnicodeEncodeError as error:
        raise EnvironmentFailure(f"in {path}: the name {error.object!r} is not UTF-8") from error
    return digest, list(reversed(made))


def _read_folder(path: str, above: tuple[tuple[int, int], ...]) -> _Folder:
    status = os.stat(path)
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise EnvironmentFailure(f"{path} is a link to a folder that holds it; such a tree has no end")
    folder = _Folder()
    for name in os.listdir(path):
        child = f"{path}/{name}"
        try:
            mode = os.stat(child).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):
            if name != "__pycache__":
                folder[name] = _read_folder(child, (*above, identity))
        elif stat.S_ISREG(mode) and not name.endswith(".pyc"):
            folder[name] = (digests.of_file(child), False)
    return folder


# --- results ----------------------------------------------------------------------------------------------------------


class EncodedResult(NamedTuple):
    """A result as caches keep it, and the Tree messages it names (one for each output folder)."""

    content: bytes
    trees: tuple[bytes, ...]


def encode_result(result: ActionResult, working_directory: str = "") -> EncodedResult:
    """The ActionResult message of a successful execution; paths go out relative to the working directory.

    Text over 64 KiB loses its middle. Empty folders inside an output folder are not kept.
    """
    folders = {path: _Folder() for path in result.directories}
    files = []
    for file in sorted(result.files):
        inside = next((path for path in folders if file.path.startswith(path + "/")), None)
        if inside is not None:
            _insert(folders[inside], file.path[len(inside) + 1 :], (file.digest, file.executable))
        else:
            path, digest = _relative(file.path, working_directory), _digest(file.digest)
            files.append(encode("OutputFile", path=path, digest=digest, is_executable=file.executable))
    trees = []
    directories = []
    for path, folder in sorted(folders.items()):
        trees.append(_encode_tree(folder))
        tree_digest = _digest(digests.of_bytes(trees[-1]))
        path = _relative(path, working_directory)
        directories.append(encode("OutputDirectory", path=path, tree_digest=tree_digest))
    content = encode(
        "ActionResult",
        output_files=files,
        output_directories=directories,
        stdout_raw=_shortened(result.output),
        execution_metadata=_metadata(result.seconds),
    )
    return EncodedResult(content, tuple(trees))


def _metadata(seconds: float) -> bytes:
    whole, nanos = divmod(round(max(seconds, 0.0) * 1e9), 1_000_000_000)
    duration = encode("Duration", seconds=whole, nanos=nanos)
    return encode("ExecutedActionMetadata", worker=WORKER, virtual_execution_duration=duration)


def _shortened(text: bytes) -> bytes:
    if len(text) <= STDOUT_LIMIT:
        return text
    half = STDOUT_LIMIT // 2
    return text[:half] + f"\n[... {len(text) - 2 * half} bytes left out ...]\n".encode() + text[-half:]


def _encode_tree(folder: _Folder) -> bytes:
    made: list[bytes] = []
    _encode_folder(folder, made)
    *children, root = made
    return encode("Tree", root=root, children=sorted(set(children)))  # an empty root is no missing one


def _digest(digest: Digest) -> bytes:
    return encode("Digest", hash=digest.hash, size_bytes=digest.size)
