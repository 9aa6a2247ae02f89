"""Results that are no action's, kept in the store under keys of their own: what a task became, what lowering wrote.

An entry is a flat list of files. Knows the store and digests; what the files are, the caller knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hidet_build.action import ActionResult, OutputFile
from hidet_build.cache.disk import DiskCache
from hidet_build.digest import Digest, of_bytes
from hidet_build.files import Placer


def key_of(arguments: Sequence[str], options: str, identity: bytes, tools: Sequence[str]) -> Digest:
    """The key of what `arguments` make of the value that `identity` says all of, with these tools."""
    from hidet_build import reapi  # protobuf, for those who look something up

    return reapi.action_key(
        arguments=arguments,
        environment=[("options", options)],
        output_paths=["files"],
        working_directory="",
        inputs=[("identity", of_bytes(identity), False)],
        trees=[],
        salt=" ".join(tools).encode(),
    ).digest


class KeptResults:
    """The entries in one store."""

    def __init__(self, store: str, read_only: bool = False) -> None:
        self._cache = DiskCache(store, Placer(), read_only)

    def get(self, key: Digest | None) -> dict[str, bytes]:
        """The files under a key by name; none where the store has not all of them."""
        result = self._cache.get(key) if key is not None else None
        contents: dict[str, bytes] = {}
        for file in result.files if result else ():
            content = self._cache.read(file.digest)
            if content is None:
                return {}
            contents[file.path] = content
        return contents

    def put(self, key: Digest, places: Mapping[str, str]) -> dict[str, bytes]:
        """Keep the files at these places under their names; gives what `get` will give."""
        contents = {}
        for name, path in sorted(places.items()):
            with open(path, "rb") as file:
                contents[name] = file.read()
        files = [OutputFile(name, of_bytes(content), False) for name, content in contents.items()]
        self._cache.put(key, ActionResult(tuple(files)), places)
        return contents
