"""The protobuf room: Remote Execution API messages, the keys made of them, and results as caches keep them.

Knows digests, paths and our `ActionResult`; nothing of caches, rules or the network. Importing it costs about 40 ms, so
it is imported where an action must be keyed or a stored result read, not before.

The messages are built at import from the table below (the API's public field numbers) in a descriptor pool of our
own: no generated code that ties us to one protobuf version, no clash with stubs the user's program has loaded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from posixpath import normpath
from types import MappingProxyType
from typing import Any, NamedTuple, Union

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from hidet_build import digest as digests
from hidet_build.action import ActionResult, OutputFile
from hidet_build.digest import Digest
from hidet_build.errors import AnalysisError, EnvironmentFailure

STDOUT_LIMIT = 64 << 10  # of an action's text, this much is kept with its result
TREE_LIMIT = 100_000  # files in one output folder: a tree can name the same subfolder twice, and so on downwards
PATH_LIMIT = 4096
WORKER = "hidet-build"  # in every result, which therefore is never empty: zero bytes would look like a lost one

# Package, then message (dotted: nested in another), then "number type name". Types with a capital are messages, of the
# same package unless written out.
_TABLE: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
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

_Field = descriptor_pb2.FieldDescriptorProto


def _build(table: Mapping[str, Mapping[str, tuple[str, ...]]]) -> Mapping[str, Any]:
    # One descriptor file a package, each seeing the ones before it; classes by name without the package.
    pool = descriptor_pool.DescriptorPool()
    seen: list[str] = []
    for package, messages in table.items():
        name = package.replace(".", "/") + "/hidet_build.proto"
        file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=seen)
        made: dict[str, Any] = {}
        for message, rows in messages.items():
            outer, _, inner = message.rpartition(".")
            made[message] = proto = made[outer].nested_type.add() if outer else file.message_type.add()
            proto.name = inner
            for row in rows:
                _add_field(proto, row, package)
        pool.AddSerializedFile(file.SerializeToString())
        seen.append(name)
    return MappingProxyType(
        {
            message: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message}"))
            for package, messages in table.items()
            for message in messages
        }
    )


def _add_field(proto: Any, row: str, package: str) -> None:
    number, *label, kind, name = row.split()
    field = proto.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if label else _Field.LABEL_OPTIONAL
    if kind.islower() and "." not in kind:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{kind}" if kind.startswith("google.") else f".{package}.{kind}"


MESSAGES = _build(_TABLE)
"""Message classes by their name in the specification, for what else speaks this API."""


class BadMessage(Exception):
    """Bytes that are no message of the expected kind, or one that we must not follow. For caches: a miss."""


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
        command = MESSAGES["Command"](
            arguments=arguments,
            platform=platform,
            working_directory=working_directory,
            output_paths=sorted({_relative(path, working_directory) for path in output_paths}),
        )
        for name, value in sorted(dict(environment).items()):
            command.environment_variables.add(name=name, value=value)
        command_bytes = _encode(command)
        action = MESSAGES["Action"](
            command_digest=_message(digests.of_bytes(command_bytes)),
            input_root_digest=_message(root_digest),
            do_not_cache=do_not_cache,
            salt=salt,
            platform=platform,
        )
        action_bytes = _encode(action)
    except UnicodeEncodeError as error:  # a file name of other bytes, which Python shows with surrogates
        raise AnalysisError(
            f"{error.object!r} is not UTF-8", hint="file names, arguments and environment of an action must be"
        ) from error
    return ActionKey(digests.of_bytes(action_bytes), action_bytes, command_bytes, tuple(reversed(directories)))


def _relative(path: str, working_directory: str) -> str:
    # As posixpath.relpath, which would ask for the current folder.
    if not working_directory:
        return path
    here, there = working_directory.split("/"), path.split("/")
    common = 0
    while common < min(len(here), len(there)) and here[common] == there[common]:
        common += 1
    return "/".join([".."] * (len(here) - common) + there[common:])


def _platform(properties: Sequence[tuple[str, str]]) -> Any:
    platform = MESSAGES["Platform"]()
    for name, value in properties:
        platform.properties.add(name=name, value=value)
    return platform


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
    if not _is_name(name):
        raise AnalysisError(f"{path!r} is no path an input can have: it must be relative and without '.' and '..'")
    if folder.setdefault(name, node) != node:
        raise AnalysisError(f"two inputs of one action are at {path!r}")


def _descend(root: _Folder, path: str, parents: Sequence[str]) -> _Folder:
    folder = root
    for parent in parents:
        if not _is_name(parent):
            raise AnalysisError(f"{path!r} is no path an input can have: it must be relative and without '.' and '..'")
        inner = folder.setdefault(parent, _Folder())
        if not isinstance(inner, _Folder):
            raise AnalysisError(f"an action has an input at {path!r}, but {parent!r} in that path is an input itself")
        folder = inner
    return folder


def _is_name(segment: str) -> bool:
    return segment not in ("", ".", "..") and "\0" not in segment


def _encode_folder(folder: _Folder, made: list[bytes]) -> Digest:
    # Appends the messages of the folder and all below it to `made`, the folder's own last.
    message = MESSAGES["Directory"]()
    for name, node in sorted(folder.items(), key=lambda item: item[0]):
        if isinstance(node, _Folder):
            message.directories.add(name=name, digest=_message(_encode_folder(node, made)))
        elif isinstance(node, Digest):
            message.directories.add(name=name, digest=_message(node))
        else:
            digest, executable = node
            message.files.add(name=name, digest=_message(digest), is_executable=executable)
    content = _encode(message)
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
    message = MESSAGES["ActionResult"](stdout_raw=_shortened(result.output))
    message.execution_metadata.worker = WORKER
    nanos = round(max(result.seconds, 0.0) * 1e9)
    duration = message.execution_metadata.virtual_execution_duration
    duration.seconds, duration.nanos = divmod(nanos, 1_000_000_000)
    folders = {path: _Folder() for path in result.directories}
    for file in sorted(result.files):
        inside = next((path for path in folders if file.path.startswith(path + "/")), None)
        if inside is not None:
            _insert(folders[inside], file.path[len(inside) + 1 :], (file.digest, file.executable))
        else:
            message.output_files.add(
                path=_relative(file.path, working_directory),
                digest=_message(file.digest),
                is_executable=file.executable,
            )
    trees = []
    for path, folder in sorted(folders.items()):
        trees.append(_encode_tree(folder))
        message.output_directories.add(
            path=_relative(path, working_directory), tree_digest=_message(digests.of_bytes(trees[-1]))
        )
    return EncodedResult(_encode(message), tuple(trees))


def _shortened(text: bytes) -> bytes:
    if len(text) <= STDOUT_LIMIT:
        return text
    half = STDOUT_LIMIT // 2
    return text[:half] + f"\n[... {len(text) - 2 * half} bytes left out ...]\n".encode() + text[-half:]


def _encode_tree(folder: _Folder) -> bytes:
    made: list[bytes] = []
    _encode_folder(folder, made)
    *children, root = made
    tree = MESSAGES["Tree"]()
    tree.root.SetInParent()  # an empty folder is no missing one
    tree.root.MergeFromString(root)
    for child in sorted(set(children)):
        tree.children.add().MergeFromString(child)
    return _encode(tree)


def decode_result(
    content: bytes, read_blob: Callable[[Digest], bytes | None], working_directory: str = ""
) -> ActionResult:
    """The result that `content` is the message of; `read_blob` gives the Trees it names, None where one is gone.

    Raises BadMessage when the bytes are no such message, when it is the result of a failure, when it holds what we
    do not keep (symlinks), and when a path or digest in it is malformed, leaves the execution root, or comes twice.
    """
    message = _decode("ActionResult", content)
    if not content:
        raise BadMessage("an empty action result")
    if message.exit_code:
        raise BadMessage(f"the result of a failure (exit code {message.exit_code})")
    if message.output_file_symlinks or message.output_directory_symlinks or message.output_symlinks:
        raise BadMessage("a result with symlinks")
    files = [
        OutputFile(_output_path(file.path, working_directory), _digest(file.digest), file.is_executable)
        for file in message.output_files
    ]
    directories = []
    for directory in message.output_directories:
        path = _output_path(directory.path, working_directory)
        directories.append(path)
        tree = _read(read_blob, _digest(directory.tree_digest))
        files.extend(file._replace(path=f"{path}/{file.path}") for file in _tree_files(tree))
    _check_paths(files, directories)
    output = _text(message.stdout_raw, message, "stdout_digest", read_blob)
    output += _text(message.stderr_raw, message, "stderr_digest", read_blob)
    seconds = _seconds(message.execution_metadata)
    return ActionResult(tuple(sorted(files)), tuple(sorted(directories)), output, seconds)


def references(content: bytes) -> tuple[Digest, ...]:
    """The blobs an ActionResult message names itself (Trees, not what they name); BadMessage where it is none."""
    message = _decode("ActionResult", content)
    if not content:
        raise BadMessage("an empty action result")
    named = [file.digest for file in message.output_files]
    named += [directory.tree_digest for directory in message.output_directories]
    named += [getattr(message, field) for field in ("stdout_digest", "stderr_digest") if message.HasField(field)]
    return tuple(_digest(digest) for digest in named)


def command_of(content: bytes) -> Digest:
    """The Command that an Action message names; BadMessage where it is none."""
    return _digest(_decode("Action", content).command_digest)


def _output_path(path: str, working_directory: str) -> str:
    if not path or path.startswith("/") or "\0" in path or normpath(path) != path or path == ".":
        raise BadMessage(f"the output path {path!r}")
    if not working_directory:
        full = path
    else:
        full = normpath(f"{working_directory}/{path}")
    if full == "." or full.startswith("../") or full == "..":
        raise BadMessage(f"the output path {path!r} leaves the execution root")
    return full


def _check_paths(files: Sequence[OutputFile], directories: Sequence[str]) -> None:
    paths = [file.path for file in files]
    paths += directories
    if len(set(paths)) != len(paths):
        raise BadMessage("a path comes twice")
    taken = {file.path for file in files}
    for path in paths:
        while path := path.rpartition("/")[0]:
            if path in taken:
                raise BadMessage(f"the file {path!r} is a folder, too")


def _tree_files(content: bytes) -> Iterator[OutputFile]:
    # Walks with a stack of (path, Directory): the depth is the sender's, and so is how often a child comes.
    tree = _decode("Tree", content)
    children = {digests.of_bytes(_encode(child)): child for child in tree.children}
    stack, found = [("", tree.root)], 0
    while stack:
        path, directory = stack.pop()
        if len(path) > PATH_LIMIT:
            raise BadMessage("a tree too deep for any file system")
        if directory.symlinks:
            raise BadMessage("a tree with symlinks")
        for node in directory.files:
            yield OutputFile(path + _name(node.name), _digest(node.digest), node.is_executable)
        for node in directory.directories:
            child = children.get(_digest(node.digest))
            if child is None:
                raise BadMessage(f"the folder {path}{node.name!r} is not in its tree")
            stack.append((f"{path}{_name(node.name)}/", child))
        found += len(directory.files) + len(directory.directories)
        if found > TREE_LIMIT:
            raise BadMessage(f"a tree of more than {TREE_LIMIT} files")


def _name(name: str) -> str:
    if not _is_name(name) or "/" in name:
        raise BadMessage(f"the file name {name!r}")
    return name


def _text(raw: bytes, message: Any, field: str, read_blob: Callable[[Digest], bytes | None]) -> bytes:
    if raw or not message.HasField(field):
        return raw
    return _read(read_blob, _digest(getattr(message, field)))


def _read(read_blob: Callable[[Digest], bytes | None], digest: Digest) -> bytes:
    content = read_blob(digest) if digest.size else b""
    if content is None:
        raise BadMessage(f"the blob {digest} is gone")
    return content


def _seconds(metadata: Any) -> float:
    if metadata.HasField("virtual_execution_duration"):
        duration = metadata.virtual_execution_duration
        return float(duration.seconds + duration.nanos / 1e9)
    start, end = metadata.execution_start_timestamp, metadata.execution_completed_timestamp
    return max(0.0, float(end.seconds - start.seconds + (end.nanos - start.nanos) / 1e9))


def _message(digest: Digest) -> Any:
    return MESSAGES["Digest"](hash=digest.hash, size_bytes=digest.size)


def _digest(message: Any) -> Digest:
    digest = Digest(message.hash, message.size_bytes)
    if len(digest.hash) != 64 or digest.hash.strip("0123456789abcdef") or digest.size < 0:
        raise BadMessage(f"the digest {digest}")
    return digest


def _encode(message: Any) -> bytes:
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def _decode(name: str, content: bytes) -> Any:
    try:
        return MESSAGES[name].FromString(content)
    except (DecodeError, ValueError) as error:
        raise BadMessage(f"no {name} message") from error
