"""What a cache is, and several of them as one. Knows keys, digests and results; no storage, no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from hidet_build.action import ActionResult
from hidet_build.digest import Digest
from hidet_build.files import make_folder, remove, temporary_path


@dataclass(frozen=True)
class Stored:
    """Whether a result was stored; if not, why. True or false like the answer it is."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


class Cache(Protocol):
    """Results of actions by key, and content by digest.

    Trouble with a cache is never an error of the build: `get` misses, `place` and `put` say no. Every method may be
    called from several threads at once.
    """

    @property
    def name(self) -> str:
        """What messages and counts call it: "disk"."""

    def get(self, key: Digest, working_directory: str = "") -> ActionResult | None:
        """The stored result of an action, or None when there is none of which every blob can be had.

        It may lack outputs that the action declares (others may have stored it): the caller looks.
        """

    def place(self, digest: Digest, executable: bool, target_path: str) -> bool:
        """Put content at an output path, whole and sealed; false when it is gone or wrong, and then nothing is done."""

    def read(self, digest: Digest) -> bytes | None:
        """Content, verified; None when it is gone or wrong."""

    def put(
        self,
        key: Digest,
        result: ActionResult,
        files: Mapping[str, str],
        messages: Iterable[bytes] = (),
        working_directory: str = "",
    ) -> Stored:
        """Store the result of a success, after the content it names.

        `files` says where each of the result's files is on this machine now, by its path in the execution root; they
        may become sealed, and must not be written to afterwards. `messages` are what else belongs to the key: the
        Command, the Action, directories. A cache that runs nothing may do without them.
        """


class Layered:
    """Several caches as one, asked from near to far; what only a far one has is stored in the nearer ones on a hit.

    `scratch` is a folder for content on its way, best on the device of the nearest cache.
    """

    def __init__(self, caches: Sequence[Cache], scratch: str) -> None:
        self._caches = tuple(caches)
        self._scratch = scratch

    @property
    def name(self) -> str:
        """The names of all, near to far."""
        return "+".join(cache.name for cache in self._caches)

    def get(self, key: Digest, working_directory: str = "") -> ActionResult | None:
        """As `Cache.get`."""
        found = self.find(key, working_directory)
        return found[0] if found else None

    def find(self, key: Digest, working_directory: str = "") -> tuple[ActionResult, str] | None:
        """The stored result and the name of the cache that had it."""
        for distance, cache in enumerate(self._caches):
            result = cache.get(key, working_directory)
            if result is None:
                continue
            if distance and not self._fill(cache, self._caches[:distance], key, result, working_directory):
                continue
            return result, cache.name
        return None

    def place(self, digest: Digest, executable: bool, target_path: str) -> bool:
        """As `Cache.place`, from the nearest that can."""
        return any(cache.place(digest, executable, target_path) for cache in self._caches)

    def read(self, digest: Digest) -> bytes | None:
        """As `Cache.read`, from the nearest that can."""
        for cache in self._caches:
            content = cache.read(digest)
            if content is not None:
                return content
        return None

    def put(
        self,
        key: Digest,
        result: ActionResult,
        files: Mapping[str, str],
        messages: Iterable[bytes] = (),
        working_directory: str = "",
    ) -> Stored:
        """As `Cache.put`, in all of them; stored when all did, else the first reason."""
        kept = tuple(messages)
        answers = [cache.put(key, result, files, kept, working_directory) for cache in self._caches]
        return next((answer for answer in answers if not answer), Stored(True))

    def _fill(
        self, far: Cache, nearer: Sequence[Cache], key: Digest, result: ActionResult, working_directory: str
    ) -> bool:
        # False when content that the far cache announced could not be had: then its result is worth nothing.
        folder = temporary_path(self._scratch)
        try:
            make_folder(folder)
            files = {file.path: f"{folder}/{number}" for number, file in enumerate(result.files)}
            for file in result.files:
                if not far.place(file.digest, file.executable, files[file.path]):
                    return False
            for cache in nearer:
                cache.put(key, result, files, (), working_directory)  # one that is full is simply not filled
            return True
        except OSError:
            return True  # no scratch space: the far cache is asked again for each file
        finally:
            with suppress(OSError):
                remove(folder)
