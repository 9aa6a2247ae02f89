"""The protobuf room: reads Remote Execution API messages, whoever wrote them, and follows nothing it must not follow.

Knows the table of `reapi`, digests and our `ActionResult`; nothing of caches or the network. Importing it costs about
40 ms, so it is imported where a stored result must be read, not before.

The message classes are built at import from the table in a descriptor pool of our own: no generated code that ties us
to one protobuf version, no clash with stubs the user's program has loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from posixpath import normpath
from types import MappingProxyType
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from hidet_build import digest as digests
from hidet_build.action import ActionResult, OutputFile
from hidet_build.digest import Digest
from hidet_build.reapi import TABLE, is_name, read_row

TREE_LIMIT = 100_000  # files in one output folder: a tree can name the same subfolder twice, and so on downwards
PATH_LIMIT = 4096

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


def _add_field(proto: Any, text: str, package: str) -> None:
    row = read_row(text)
    field = proto.field.add(name=row.name, number=row.number)
    field.label = _Field.LABEL_REPEATED if row.is_repeated else _Field.LABEL_OPTIONAL
    if row.is_message:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{row.kind}" if row.kind.startswith("google.") else f".{package}.{row.kind}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{row.kind.upper()}")


MESSAGES = _build(TABLE)
"""Message classes by their name in the specification, for what else speaks this API."""


class BadMessage(Exception):
    """Bytes that are no message of the expected kind, or one that we must not follow. For caches: a miss."""


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
    if not is_name(name) or "/" in name:
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
