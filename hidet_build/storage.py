"""The `cache` verb: what the store holds, and moving that to another machine. Knows cache folders; runs no action.

An exported folder is a disk cache itself (`cache/disk.py` has the layout). Both directions copy, and hash what they
copied, so files may lose their times and modes on the way.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hidet_build.action import Action, ActionResult, OutputFile, Step
from hidet_build.build import build
from hidet_build.cache.disk import DiskCache, Unsound, path_of, walk
from hidet_build.digest import EMPTY, Digest
from hidet_build.errors import ActionFailed, BuildError, EnvironmentFailure, ErrorGroup, Interrupted, UsageError
from hidet_build.execution import Layout
from hidet_build.files import Placer
from hidet_build.performer import target_of, targets_of
from hidet_build.process import Processes
from hidet_build.progress import Outcome, SilentReporter
from hidet_build.request import Options, Request
from hidet_build.settings import PROGRAM
from hidet_build.state import Record, State

_KINDS = ("ac", "cas")
_SHOWN = 5  # of targets that are not built, that many are named
_UNITS = ("bytes", "KB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Moved:
    """What an export or import did: new files and bytes, entries that were there, and refusals as (path, reason)."""

    entries: int
    known: int
    blobs: int
    size: int
    refused: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """The counts in a line, without what was refused."""
        there = f" ({_plural(self.known, 'entry was', 'entries were')} there already)" if self.known else ""
        entries, blobs = _plural(self.entries, "entry", "entries"), _plural(self.blobs, "blob")
        return f"{entries} and {blobs}, {_size(self.size)}{there}"


# ---- what there is


def describe(store: str) -> str:
    """Where a store is and how much it holds, as lines of text. Reads names and sizes alone."""
    entries = sum(1 for _ in walk(store, "ac"))
    sizes = list(_sizes(walk(store, "cas")))
    return f"folder: {store}\nentries: {entries}\nblobs: {len(sizes)}\nbytes: {sum(sizes)}"


def _sizes(files: Iterable[tuple[str, str]]) -> Iterator[int]:
    for _, path in files:
        with suppress(OSError):  # somebody dropped it just now
            yield os.stat(path).st_size


# ---- out of the store


def export_cache(store: str, folder: str, keys: Iterable[str] | None = None) -> Moved:
    """Copy results from a store into a cache folder, which is made as needed: all, or those under these keys.

    A result goes after its content, so the folder is right whenever this is stopped. What is broken in the store stays
    behind. Raises UsageError for a folder that holds something else, EnvironmentFailure where it cannot be written.
    """
    _check_apart(store, folder)
    _check_free(folder)
    with _writing(folder) as target:
        for kind in _KINDS:
            os.makedirs(os.path.join(folder, kind), exist_ok=True)
        mover = _Mover(store, target)
        for key in [name for name, _ in walk(store, "ac")] if keys is None else keys:
            mover.move_whole_entry(key)
    with suppress(OSError):  # it stays where others are writing; into a store, somebody always may be
        os.rmdir(os.path.join(folder, "tmp"))
    return mover.moved()


class _Mover:
    """Copies from one cache folder into a cache, and keeps count. What is not sound is noted and passed over."""

    def __init__(self, folder: str, target: DiskCache) -> None:
        self._folder = folder
        self._target = target
        self._done: set[str] = set()
        self._entries = self._known = self._size = self._blobs = 0
        self._refused: list[tuple[str, str]] = []

    def moved(self) -> Moved:
        """What was done so far."""
        return Moved(self._entries, self._known, self._blobs, self._size, tuple(self._refused))

    def move_blob(self, name: str) -> None:
        """Move content."""
        with self._noting("cas", name):
            self._blob(name)

    def move_entry(self, key: str) -> None:
        """Move an entry whose content was moved before."""
        with self._noting("ac", key):
            self._entry(key, _read(path_of(self._folder, "ac", key)))

    def move_whole_entry(self, key: str) -> None:
        """Move an entry after all that it names."""
        from hidet_build import messages  # protobuf

        with self._noting("ac", key):
            content = _read(path_of(self._folder, "ac", key))
            try:
                self._named_blobs(messages.references(content))
                self._named_blobs(file.digest for file in messages.decode_result(content, self._target.read).files)
            except messages.BadMessage as error:
                raise Unsound(f"it is no result that we can use ({error})") from None
            self._entry(key, content)

    def _named_blobs(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            if digest == EMPTY:  # other caches leave the empty blob out
                continue
            try:
                self._blob(digest.hash)
            except Unsound as error:
                raise Unsound(f"of the content {digest.hash[:12]}... it names: {error}") from None

    def _blob(self, name: str) -> None:
        if name in self._done:
            return
        size = self._target.adopt(path_of(self._folder, "cas", name), name)
        self._done.add(name)
        if size is not None:
            self._blobs, self._size = self._blobs + 1, self._size + size

    def _entry(self, key: str, content: bytes) -> None:
        if self._target.adopt_entry(key, content):
            self._entries += 1
        else:
            self._known += 1

    @contextmanager
    def _noting(self, kind: str, name: str) -> Iterator[None]:
        try:
            yield
        except Unsound as error:
            self._refused.append((path_of(self._folder, kind, name), str(error)))


# ---- what a build used


def used_keys(request: Request, environment: Mapping[str, str], processes: Processes) -> tuple[list[str], list[str]]:
    """The keys of all actions that make what a request names, and the labels of those that no store keeps (no-cache).

    Raises BuildError when something would have to run first. What the store has lost since it was built is put back
    there from the outputs, which are known to be right.
    """
    listener = _Listener()
    summary, code = build(request, Options(check_up_to_date=True), environment, processes, listener)
    if summary.interrupted:
        raise Interrupted("interrupted")
    if code:
        raise _not_built(request, summary.failed, listener)
    layout = Layout(request.root, request.output_base)
    state = State(layout.state, request.root)
    store = DiskCache(request.disk_cache, Placer())
    keys, uncached = [], []
    for action in listener.actions.values():
        record = state.record(action.id)
        if "no-cache" in action.tags:
            uncached.append(str(action.owner))
        elif record is not None:
            _restore(store, action, record, layout)
            keys.append(record.key)
    return list(dict.fromkeys(keys)), list(dict.fromkeys(uncached))


def _restore(store: DiskCache, action: Action, record: Record, layout: Layout) -> None:
    """Store what an action made, if the store does not have it: somebody emptied it, or the build used another."""
    if store.get(Digest(record.key, 0)) is not None:
        return
    found = tuple(OutputFile(path, Digest(hash_, size), executable) for path, hash_, size, executable in record.files)
    targets = targets_of(action, layout)
    places = {file.path: target_of(targets, file.path) for file in found}
    stored = store.put(Digest(record.key, 0), ActionResult(found, record.directories), places)
    if not stored:
        raise EnvironmentFailure(f"cannot write to the store {store.folder}: {stored.reason}")


class _Listener(SilentReporter):
    """Keeps the actions that a build finds up to date, and what it says, for when it finds one that is not."""

    def __init__(self) -> None:
        self.actions: dict[str, Action] = {}
        self.errors: list[BuildError] = []
        self.messages: list[str] = []

    def finished(self, action: Action, outcome: Outcome, result: ActionResult | None) -> None:
        """See Reporter."""
        del outcome, result
        self.actions[action.id] = action

    def failed(self, step: Step, error: BuildError) -> None:
        """See Reporter."""
        del step
        self.errors.append(error)

    def error(self, error: BuildError) -> None:
        """See Reporter."""
        self.errors.append(error)

    def message(self, text: str) -> None:
        """See Reporter."""
        self.messages.append(text)


def _not_built(request: Request, failed: Sequence[str], listener: _Listener) -> BuildError:
    """Which targets to build first, and why they are not built."""
    if listener.errors:
        return ErrorGroup(listener.errors)
    more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    platform = [f"--platforms={request.platform}"] if request.platform else []
    first = shlex.join([PROGRAM, *platform, *(failed if len(failed) <= _SHOWN else request.patterns)])
    return ActionFailed(
        f"not built as it is now: {', '.join(failed[:_SHOWN])}{more}",
        detail="\n".join(listener.messages[:_SHOWN]),
        hint=f"build it first: {first}",
    )


# ---- into the store


def import_cache(folder: str, store: str) -> Moved:
    """Copy all that is sound in a cache folder into a store; what is not is refused by name, and not touched.

    Entries that the store has stay as they are. Raises UsageError where `folder` is no cache folder.
    """
    _check_apart(store, folder)
    _check_cache(folder)
    with _writing(store) as target:
        mover = _Mover(folder, target)
        for name, _ in walk(folder, "cas"):
            mover.move_blob(name)
        for name, _ in walk(folder, "ac"):
            mover.move_entry(name)
    return mover.moved()


def _read(path: str) -> bytes:
    try:
        if not os.path.isfile(path):  # opening a pipe would wait for a writer
            raise Unsound("it is not a regular file" if os.path.lexists(path) else "it is gone")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unsound(f"it cannot be read ({error.strerror})") from None


# ---- folders


def _check_apart(store: str, folder: str) -> None:
    here, there = os.path.realpath(store), os.path.realpath(folder)
    if here == there:
        raise UsageError(f"{folder} is the store itself", hint="name another folder")
    if f"{there}/".startswith(f"{here.rstrip('/')}/") or f"{here}/".startswith(f"{there.rstrip('/')}/"):
        raise UsageError(f"{folder} and the store {store} lie one in the other", hint="name another folder")


def _check_free(folder: str) -> None:
    """A folder to export into is new, empty, or a cache already."""
    names = _names(folder)
    if names and not any(kind in names for kind in _KINDS):
        raise UsageError(f"{folder} holds other things than a cache", hint="name a new folder")


def _check_cache(folder: str) -> None:
    names = _names(folder)
    if names is None:
        raise UsageError(f"there is no folder {folder}", hint="`hidet-build cache export FOLDER` makes one")
    if not any(kind in names for kind in _KINDS):
        hint = "name the folder that `hidet-build cache export` wrote"
        raise UsageError(f"{folder} is not a cache folder: it has neither ac/ nor cas/", hint=hint)
    for kind in _KINDS:  # what cannot be looked into must not pass for empty
        outer = os.path.join(folder, kind)
        for inner in (os.path.join(outer, name) for name in _names(outer) or ()):
            if os.path.isdir(inner):
                _names(inner)


def _names(folder: str) -> Sequence[str] | None:
    """What a folder holds; None where there is none."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise UsageError(f"{folder} is not a folder", hint="name a folder") from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot read the folder {folder}: {error.strerror}") from None


@contextmanager
def _writing(folder: str) -> Iterator[DiskCache]:
    """The cache in `folder`, to be written to; trouble with that is told by its name."""
    try:
        cache = DiskCache(folder, Placer())
    except EnvironmentFailure as error:
        raise EnvironmentFailure(error.message, hint="name a folder that you may write to") from None
    try:
        yield cache
    except OSError as error:
        where = f": {error.filename2 or error.filename}" if error.filename else ""
        raise EnvironmentFailure(
            f"cannot write to {folder}: {error.strerror or error}{where}",
            hint="what is there by now is whole; once the trouble is mended, the same command goes on from here",
        ) from None


def _plural(count: int, noun: str, many: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def _size(size: int) -> str:
    """A number of bytes for people, in steps of a thousand."""
    amount, unit = float(size), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} {_UNITS[0]}"
