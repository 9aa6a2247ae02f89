"""What a runner thread does with one action: key -> caches -> lock -> caches again -> run -> publish.

Knows one action at a time and nothing of the schedule; how an action runs and where results are kept are handed in.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hidet_build import files, limits, reapi
from hidet_build.action import Action, ActionResult, Artifact, OutputFile
from hidet_build.budget import MemoryBudget
from hidet_build.cache.base import Cache
from hidet_build.digest import EMPTY, Digest
from hidet_build.errors import ActionFailed, EnvironmentFailure, Interrupted
from hidet_build.execution import ExecutionRoot, ExecutionRoots, Layout
from hidet_build.lock import Holder, KeyLocks
from hidet_build.process import ProcessResult
from hidet_build.progress import Outcome, Reporter
from hidet_build.request import Options
from hidet_build.state import State
from hidet_build.toolchain.base import Toolchain
from hidet_build.worker.protocol import split_failure


class Runner(Protocol):
    """Runs one staged action to its end."""

    def run(self, action: Action, toolchain: Toolchain, place: ExecutionRoot) -> ProcessResult:
        """Run the command line in the execution root; its text goes to `place.log` and into the result."""

    def command(self, action: Action, toolchain: Toolchain, place: ExecutionRoot) -> str:
        """The same as a line to paste into a shell."""


# Called with the holder of a lock that an action waits for.
Waiting = Callable[[Holder, float], None]


# Something a runner thread wants told to the user; the loop thread does it.
Notice = Callable[[Reporter], None]


class Work(NamedTuple):
    """What a runner thread is given: all that was decided about an action before it starts."""

    action: Action
    toolchain: Toolchain
    contents: tuple[tuple[str, Digest, bool], ...]  # every input file: path in the execution root, digest, executable
    empty: tuple[str, ...]  # folders of the input root that hold no file
    folders: Mapping[str, Sequence[str]]  # files in the directory inputs, by artifact id
    trees: Mapping[str, str]  # toolchain folders: name -> folder on disk
    signature: str
    description: tuple[Any, ...]
    memory: int = 0  # bytes it is expected to take


class Done(NamedTuple):
    """What a runner thread posts back."""

    work: Work
    outcome: Outcome
    result: ActionResult | None = None
    key: str = ""
    error: BaseException | None = None
    changed: tuple[str, ...] = ()  # sources that changed while the action ran: its result counts for nothing
    missing: str = ""  # under require_cached: why there is no result
    memory: int = 0  # bytes it took at most, where it ran


class Performer:
    """Makes the outputs of actions, each on the thread that calls."""

    def __init__(
        self,
        layout: Layout,
        options: Options,
        state: State,
        cache: Cache,
        locks: Callable[[Waiting], KeyLocks],
        runner: Runner,
        cancelled: Callable[[], bool],
        advise: Callable[[Action, bytes], str | None],
        tell: Callable[[Notice], None],
    ) -> None:
        """`advise` gives a hint about a failed action and what it said; `tell` passes a notice on to the user."""
        self._layout = layout
        self._options = options
        self._state = state
        self._cache = cache
        self._locks = locks(self._tell_waiting)
        self._runner = runner
        self._cancelled = cancelled
        self._advise = advise
        self._tell = tell
        self._budget = MemoryBudget(lambda: options.memory or limits.memory(), cancelled)
        self._roots = ExecutionRoots(layout.state)
        self._placer = files.Placer()
        self._tree_digests: dict[str, Digest] = {}
        self._told_short = False
        self._lock = threading.Lock()  # of what is made once and used by all threads

    def close(self) -> None:
        """Delete what is left of this invocation's execution roots, and what its locks were made of."""
        self._roots.close()
        self._locks.close()

    def perform(self, work: Work) -> Done:
        """Make the outputs of one action. Never raises: what went wrong is in the answer."""
        try:
            return self._perform(work)
        except OSError as error:
            failure = EnvironmentFailure(
                f"{work.action.owner}: {error.strerror or error}: {error.filename or 'no file named'}",
                location=work.action.location,
                hint="is the disk full, or a folder not writable? --output_base and --disk_cache name others",
            )
            return Done(work, Outcome.FAILED, error=failure)
        except BaseException as error:  # whatever it is, the loop thread must hear of it
            return Done(work, Outcome.FAILED, error=error)

    def restore(self, action: Action, result: ActionResult) -> bool:
        """Put back outputs that an action is known to have made; False where the store has lost one.

        Needs neither key nor lock, and less time than it takes to hand it to another thread.
        """
        # What must be cached has to be there by its key.
        if self._options.nocache or self._options.require_cached or "no-cache" in action.tags:
            return False
        try:
            return self._place(action, result)
        except OSError:  # `perform` will say what is wrong
            return False

    def _perform(self, work: Work) -> Done:
        if self._cancelled():
            raise Interrupted("interrupted")
        key = self._key(work)
        found = self._fetch(work, key.digest)
        if found is None and self._options.require_cached:
            return Done(work, Outcome.FAILED, missing=self._missing(work.action, key.digest))
        if found is None:
            with self._locks.hold(key.digest.hash, str(work.action.owner)):
                # Somebody may have made it while we waited for the lock.
                found = self._fetch(work, key.digest)
                if found is None:
                    return self._execute(work, key)
        return Done(work, Outcome.CACHED, found, key.digest.hash)

    def _key(self, work: Work) -> reapi.ActionKey:
        action = work.action
        with self._lock:
            for name, path in work.trees.items():
                if name not in self._tree_digests:
                    self._tree_digests[name] = reapi.directory_digest(path)[0]
            trees = [(f"external/{name}", self._tree_digests[name]) for name in work.trees]
        trees += [(where, EMPTY) for where in work.empty]
        return reapi.action_key(
            arguments=action.arguments,
            environment=action.environment,
            output_paths=[os.path.join(action.working_directory, where) for where, _ in action.outputs],
            working_directory=action.working_directory,
            inputs=work.contents,
            trees=trees,
            salt=work.toolchain.identity.encode(),
            do_not_cache="no-cache" in action.tags,
        )

    def _fetch(self, work: Work, key: Digest) -> ActionResult | None:
        if self._options.nocache or "no-cache" in work.action.tags:
            return None
        result = self._cache.get(key)
        if result is None:
            return None
        names = {file.path for file in result.files}
        # The key does not know which outputs are folders: another rule's action may have made a file of one.
        for where, artifact in work.action.outputs:
            if where not in (result.directories if artifact.directory else names):
                return None
        return result if self._place(work.action, result) else None

    def _missing(self, action: Action, key: Digest) -> str:
        """What the caches have to do with an action's not being cached."""
        if "no-cache" in action.tags:
            return "it is tagged no-cache, so no cache keeps it"
        if self._options.nocache:
            return "the caches were not to be asked"
        return f"the {self._cache.name} cache has no whole result under its key {key.hash[:12]}"

    def _place(self, action: Action, result: ActionResult) -> bool:
        """Put the files of a stored result at their outputs; False where the store has lost one."""
        targets = targets_of(action, self._layout)
        self._tidy(targets, result)
        for file in _libraries_last(result.files):
            if not self._cache.place(file.digest, file.executable, target_of(targets, file.path)):
                return False
        return True

    @staticmethod
    def _tidy(targets: Mapping[str, str], result: ActionResult) -> None:
        """Output folders hold what this result says and nothing older."""
        for name in result.directories:
            folder = targets[name]
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if os.path.islink(folder) or not os.path.isdir(folder):
                    os.unlink(folder)
            os.makedirs(folder, exist_ok=True)
            keep = {target_of(targets, file.path) for file in result.files}
            for inside, _, names in os.walk(folder):
                for one in names:
                    path = os.path.join(inside, one)
                    # Another invocation may be tidying too, or putting a file here that has no name yet.
                    if path not in keep and not files.is_temporary(one):
                        files.remove(path)

    def _execute(self, work: Work, key: reapi.ActionKey) -> Done:
        action = work.action
        place = self._roots.new()
        kept = False
        try:
            place.stage(action, self._layout, work.folders, work.trees)
            inodes = self._verify_inputs(work, place)
            if self._options.subcommands:
                line = self._runner.command(action, work.toolchain, place.moved(self._keeping_place(action)))
                self._tell(lambda reporter: reporter.command(line))
            with self._budget.hold(work.memory, self._tell_short):
                ended = self._runner.run(action, work.toolchain, place)
            changed = tuple(path for path in _sources(action) if self._state.source_changed(path))
            if changed:
                return Done(work, Outcome.FAILED, changed=changed)
            if self._cancelled():
                raise Interrupted("interrupted")
            if ended.exit_code:
                kept = True
                raise self._failure(work, place, ended)
            result, places = place.collect(action, ended.output, ended.seconds)
            self._check_inputs(work, place, inodes)
            self._publish(work, key, result, places)
            if self._options.subcommands:  # the line that was printed should work when it is pasted, too
                place.clear(action)
                self._keep(place, action)
                kept = True
            return Done(work, Outcome.EXECUTED, result, key.digest.hash, memory=ended.max_rss)
        finally:
            if not kept:
                self._roots.give_back(place)

    def _verify_inputs(self, work: Work, place: ExecutionRoot) -> dict[str, int]:
        """Make sure that the made inputs in the execution root are what the key says; gives the inode of each.

        They are links to outputs, and another invocation, which saw newer sources, may have made those anew.
        """
        digests = {where: (found, executable) for where, found, executable in work.contents}
        inodes = {}
        for where in _made_inputs(work):
            path = os.path.join(place.root, where)
            found, executable = digests[where]
            status = os.lstat(path)
            if not files.is_sealed(status, found) or executable != bool(status.st_mode & 0o100):
                files.remove(path)
                if not self._cache.place(found, executable, path):
                    raise ActionFailed(
                        f"{work.action.owner}: another build made {where} anew while this one ran",
                        location=work.action.location,
                        hint="build again",
                    )
                status = os.lstat(path)
            inodes[where] = status.st_ino
        return inodes

    @staticmethod
    def _check_inputs(work: Work, place: ExecutionRoot, inodes: Mapping[str, int]) -> None:
        """An action that wrote to its own made inputs has spoiled them for everybody; it may put others there."""
        digests = {where: found for where, found, _ in work.contents}
        for where, inode in inodes.items():
            try:
                status = os.lstat(os.path.join(place.root, where))
            except OSError:  # moved or deleted
                continue
            if status.st_ino == inode and not files.is_sealed(status, digests[where]):
                raise ActionFailed(
                    f"{work.action.owner}: {work.action.mnemonic} changed its own input {where}",
                    location=work.action.location,
                    hint="copy an input before changing it",
                )

    def _publish(self, work: Work, key: reapi.ActionKey, result: ActionResult, places: Mapping[str, str]) -> None:
        """Into the store and from there to the outputs; straight to the outputs where the store will not have it."""
        if "no-cache" not in work.action.tags:
            stored = self._cache.put(key.digest, result, places, (key.action, key.command))
            if stored and self._place(work.action, result):
                return
        targets = targets_of(work.action, self._layout)
        self._tidy(targets, result)
        for file in _libraries_last(result.files):
            place, target = places[file.path], target_of(targets, file.path)
            if os.stat(place).st_nlink > 1:  # whoever has the other name does not want it sealed
                files.make_folder(os.path.dirname(target))
                files.copy(place, target, file.digest, file.executable)
                continue
            files.seal(place, file.digest, file.executable)
            self._placer.place(place, target, file.digest, file.executable)

    def _failure(self, work: Work, place: ExecutionRoot, ended: ProcessResult) -> ActionFailed:
        """Keep the execution root, and say what a user needs to go on."""
        action = work.action
        place = self._keep(place, action)
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
        said, _ = split_failure(ended.output)
        detail = _excerpt(said, whole=self._options.verbose_failures)
        hint = self._advise(action, ended.output)
        return ActionFailed(
            f"{action.owner}: {action.mnemonic} failed ({how})",
            location=action.location,
            hint=hint if hint and hint not in detail else None,
            detail=detail,
            log=place.log,
            command=self._reproducer(work, place),
        )

    def _reproducer(self, work: Work, place: ExecutionRoot) -> str:
        """A line to paste that runs the action again: a script, for the whole command is longer than any error."""
        line = self._runner.command(work.action, work.toolchain, place)
        script = os.path.join(place.folder, "reproduce.sh")
        with open(script, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"#!/bin/sh\n{line}\n")
        return line if self._options.verbose_failures else f"sh {shlex.quote(script)}"

    def _keep(self, place: ExecutionRoot, action: Action) -> ExecutionRoot:
        """Move an execution root to where it outlives the build, in the place of an older one of this action."""
        kept = self._keeping_place(action)
        with contextlib.suppress(OSError):
            files.remove(kept)
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        os.rename(place.folder, kept)
        return place.moved(kept)

    def _keeping_place(self, action: Action) -> str:
        # The end of it, for a name of a file has at most 255 bytes.
        name = os.fsdecode(os.fsencode(f"{action.outputs[0][1].path}.{action.mnemonic}".replace("/", "."))[-200:])
        return os.path.join(self._layout.state, "kept", action.platform, name)

    def _tell_short(self, amount: int, limit: int) -> None:
        text = (
            f"fewer actions run at once than could: together they would take more than {_gigabytes(limit)} of memory, "
            f"the next one {_gigabytes(amount)} (--local_resources=memory=... sets another limit)"
        )
        with self._lock:
            told, self._told_short = self._told_short, True
        if not told:
            self._tell(lambda reporter: reporter.message(text))

    def _tell_waiting(self, holder: Holder, _: float) -> None:
        self._tell(lambda reporter: reporter.waiting(holder.label, holder.pid, holder.host, holder.since))


def _made_inputs(work: Work) -> Iterator[str]:
    """The paths in the execution root of the input files that other actions made."""
    for where, content in work.action.inputs:
        if not isinstance(content, Artifact) or content.is_source:
            continue
        if content.directory:
            yield from (f"{where}/{name}" for name in work.folders[content.id])
        else:
            yield where


def _sources(action: Action) -> list[str]:
    return [content.path for _, content in action.inputs if isinstance(content, Artifact) and content.is_source]


def targets_of(action: Action, layout: Layout) -> dict[str, str]:
    """Where each declared output belongs on disk, by its path from the working directory."""
    return {where: layout.path(artifact) for where, artifact in action.outputs}


def target_of(targets: Mapping[str, str], name: str) -> str:
    """What `targets` says of an output file, or of the declared folder around it."""
    where, inner = name, ""
    while where not in targets:
        where, _, last = where.rpartition("/")
        inner = f"/{last}{inner}"
        if not where:
            raise KeyError(name)
    return targets[where] + inner


def _libraries_last(found: Sequence[OutputFile]) -> list[OutputFile]:
    """Whoever sees a new library must find its companions new as well."""
    return sorted(found, key=lambda file: (file.path.endswith(".so"), file.path))


def _gigabytes(amount: int) -> str:
    return f"{amount / (1 << 30):.1f} GiB"


def _excerpt(output: bytes, whole: bool) -> str:
    """The tool's text for the screen: all of it when short or asked for, else its beginning."""
    lines = output.decode("utf-8", "replace").rstrip().splitlines()
    if whole or len(lines) <= 40:
        return "\n".join(lines)
    return "\n".join([*lines[:30], f"... {len(lines) - 30} more lines in the log"])
