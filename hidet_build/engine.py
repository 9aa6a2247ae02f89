"""The loop: ready -> signature -> local state -> lock -> caches -> run -> publish -> record.

One thread owns all state and decides; runner threads do what takes time and post what came of it. Knows actions, not
the rules that declared them; how an action runs, where results are kept and who is told are handed in.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hidet_build import files
from hidet_build.action import Action, ActionResult, Artifact, Continuation, OutputFile, Step, Text
from hidet_build.cache.base import Cache
from hidet_build.digest import Digest, of_text
from hidet_build.errors import ActionFailed, AnalysisError, BuildError, EnvironmentFailure, Interrupted
from hidet_build.execution import ExecutionRoot, ExecutionRoots, Layout
from hidet_build.lock import Holder, KeyLocks
from hidet_build.plan import PlanStale, content_digest
from hidet_build.process import ProcessResult
from hidet_build.progress import Outcome, Reporter
from hidet_build.state import Record, State
from hidet_build.toolchain import Toolchain, Toolchains
from hidet_build.worker.protocol import split_failure

if TYPE_CHECKING:
    from hidet_build import reapi


class Runner(Protocol):
    """Runs one staged action to its end."""

    def run(self, action: Action, toolchain: Toolchain, place: ExecutionRoot) -> ProcessResult:
        """Run the command line in the execution root; its text goes to `place.log` and into the result."""

    def command(self, action: Action, toolchain: Toolchain, place: ExecutionRoot) -> str:
        """The same as a line to paste into a shell."""


@dataclass(frozen=True)
class Options:
    """What the command line said about running."""

    jobs: int = 1
    keep_going: bool = False
    explain: bool = False
    subcommands: bool = False
    verbose_failures: bool = False
    check_up_to_date: bool = False
    nocache: bool = False  # run every action, whatever caches and earlier builds hold


# Called with the holder of a lock that an action waits for.
Waiting = Callable[[Holder, float], None]


class Failure(NamedTuple):
    """An action that did not succeed."""

    action: Action | Continuation
    error: BuildError


@dataclass
class Result:
    """What came of a build."""

    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    failures: list[Failure] = field(default_factory=list)
    not_up_to_date: list[tuple[Action, str]] = field(default_factory=list)
    skipped: int = 0
    interrupted: bool = False


class _Phase(Enum):
    """The life of a step, in order; FAILED and SKIPPED end it early."""

    KNOWN = "declared, but nobody asked for it"
    WAITING = "its inputs are not all made"
    READY = "it can start"
    RUNNING = "a thread has it"
    DONE = "its outputs are there"
    FAILED = "it ran and failed"
    SKIPPED = "something it needs failed"


_OVER = (_Phase.DONE, _Phase.FAILED, _Phase.SKIPPED)


class _Node:
    """A step in the schedule; changed by the loop thread alone."""

    __slots__ = ("attempts", "dependents", "phase", "step", "unmet")

    def __init__(self, step: Step) -> None:
        self.step = step
        self.phase = _Phase.KNOWN
        self.unmet = 0
        self.attempts = 0
        self.dependents: list[tuple[_Node, Artifact]] = []


class _Work(NamedTuple):
    """What a runner thread is given: all that was decided about an action before it starts."""

    node: _Node
    action: Action
    toolchain: Toolchain
    contents: tuple[tuple[str, Digest, bool], ...]  # every input file: path in the execution root, digest, executable
    folders: Mapping[str, Sequence[str]]  # files in the directory inputs, by artifact id
    trees: Mapping[str, str]  # toolchain folders: name -> folder on disk
    signature: str
    description: tuple[Any, ...]


class _Done(NamedTuple):
    """What a runner thread posts back."""

    work: _Work
    outcome: Outcome
    result: ActionResult | None = None
    key: str = ""
    error: BaseException | None = None
    changed: tuple[str, ...] = ()  # sources that changed while the action ran: its result counts for nothing


# Something a runner thread wants told to the user; the loop thread does it.
_Notice = Callable[[Reporter], None]


class Engine:
    """Makes what is asked for out of declared steps."""

    def __init__(
        self,
        layout: Layout,
        options: Options,
        state: State,
        toolchains: Toolchains,
        cache: Cache,
        locks: Callable[[Waiting], KeyLocks],
        runner: Runner,
        reporter: Reporter,
        cancelled: Callable[[], bool],
        advise: Callable[[Action, bytes], str | None],
    ) -> None:
        self._layout = layout
        self._options = options
        self._state = state
        self._toolchains = toolchains
        self._cache = cache
        self._locks = locks(self._tell_waiting)
        self._runner = runner
        self._reporter = reporter
        self._cancelled = cancelled
        self._advise = advise
        self._roots = ExecutionRoots(layout.state)
        self._makers: dict[str, _Node] = {}
        self._contents: dict[str, tuple[Digest, bool]] = {}  # made files: digest and executable bit, by artifact id
        self._folders: dict[str, tuple[str, ...]] = {}  # files in made folders, by artifact id
        self._ready: deque[_Node] = deque()
        self._running: dict[str, _Work] = {}  # by signature: equal actions run once
        self._twins: dict[str, list[_Node]] = {}  # waiting for the running one with the same signature
        self._posted: queue.SimpleQueue[_Done | _Notice] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._placer = files.Placer()
        self._tree_digests: dict[str, Digest] = {}
        self._tree_lock = threading.Lock()
        self._expansions: dict[str, tuple[str, tuple[Step, ...]]] = {}
        self._asked: set[str] = set()  # what the user wants, by artifact id
        self._stopping = self._stale = False
        self._result = Result()

    # ---- the story, on the loop thread

    def build(self, steps: Iterable[Step], wanted: Iterable[Artifact]) -> Result:
        """Make `wanted` and whatever it needs; steps nobody needs are left alone.

        Never raises for a failing action: the result lists failures in the order they happened. Raises PlanStale when
        the steps came from a saved plan that no longer fits; what was running then is finished and recorded.
        """
        for step in steps:
            self._know(step)
        requested = list(wanted)
        self._asked = {artifact.id for artifact in requested}
        try:
            self._want((artifact, None) for artifact in requested)
            self._loop()
        finally:
            self._close()
        if self._stale:
            raise PlanStale
        return self._result

    def made(self, artifact: Artifact) -> bool:
        """Whether a wanted artifact is there and right after `build`."""
        maker = self._maker(artifact)
        return artifact.is_source or (maker is not None and maker.phase is _Phase.DONE)

    def contents(self) -> Mapping[str, tuple[Digest, bool]]:
        """Every made file of this build, by artifact id: its digest, and whether it may be executed."""
        return self._contents

    def expansions(self) -> Mapping[str, tuple[str, tuple[Step, ...]]]:
        """What the continuations of this build declared: the digest of what each read, and its steps."""
        return self._expansions

    def _loop(self) -> None:
        # Start what is ready while there are free jobs; then wait for news. A step becomes ready when its last input
        # is made. Up-to-date actions never leave this thread. After a failure without -k, or when the user stops us,
        # nothing new starts and what runs is waited for (the processes of an interrupted build are being killed).
        while True:
            if self._cancelled():
                self._result.interrupted = self._stopping = True
            while self._ready and not self._stopping and self._may_start():
                self._start(self._ready.popleft())
            if not self._running and (self._stopping or not self._ready):
                break
            try:
                news = self._posted.get(timeout=0.1)
            except queue.Empty:
                self._reporter.tick()
                continue
            if isinstance(news, _Done):
                self._finish(news)
            else:
                news(self._reporter)

    def _may_start(self) -> bool:
        if len(self._running) >= self._options.jobs:
            return False
        if any("exclusive" in work.action.tags for work in self._running.values()):
            return False
        step = self._ready[0].step
        return not (isinstance(step, Action) and "exclusive" in step.tags and self._running)

    def _close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._roots.close()
        self._state.save()

    # ---- what is wanted

    def _know(self, step: Step, promised_by: _Node | None = None) -> None:
        """Make a declared step findable by its outputs; a continuation gives way to the steps it declared."""
        node = _Node(step)
        for artifact in _outputs(step):
            other = self._makers.get(artifact.id)
            if other is not None and other is not promised_by and other is not node:
                raise AnalysisError(
                    f"{other.step.owner} and {step.owner} both make {artifact.path}", location=step.location
                )
            self._makers[artifact.id] = node

    def _maker(self, artifact: Artifact) -> _Node | None:
        """Who makes an artifact: the step with that output, or the one with a folder around it."""
        where = artifact.id if artifact.platform else ""
        while where:
            node = self._makers.get(where)
            if node is not None:
                return node
            where = where.rpartition("/")[0]
        return None

    def _want(self, demands: Iterable[tuple[Artifact, _Node | None]]) -> None:
        """Ask for artifacts, each for a step or (None) for the user, and for whatever their makers need in turn."""
        waiting = list(demands)
        waiters = [user for _, user in waiting if user is not None]
        selected: list[_Node] = []
        while waiting:
            artifact, user = waiting.pop()
            maker = self._maker(artifact)
            if maker is None:
                if artifact.platform:
                    owner = user.step.owner if user else "the request"
                    raise AnalysisError(f"{owner}: nothing makes {artifact.path}")
                continue
            if user is not None and maker.phase is not _Phase.DONE:
                maker.dependents.append((user, artifact))
                user.unmet += 1
            if maker.phase is _Phase.KNOWN:
                self._set(maker, _Phase.WAITING)
                selected.append(maker)
                waiting += [(one, maker) for one in _inputs(maker.step)]
            elif maker.phase in (_Phase.FAILED, _Phase.SKIPPED) and user is not None:
                self._skip(user)
        for node in (*reversed(selected), *waiters):  # the deepest were selected last: start with them
            self._ready_if_met(node)
        self._reporter.actions_added(sum(isinstance(node.step, Action) for node in selected))

    def _ready_if_met(self, node: _Node) -> None:
        if node.phase is _Phase.WAITING and not node.unmet:
            self._set(node, _Phase.READY)
            self._ready.append(node)

    @staticmethod
    def _set(node: _Node, phase: _Phase) -> None:
        """The one place where a phase changes."""
        node.phase = phase

    # ---- starting

    def _start(self, node: _Node) -> None:
        try:
            if isinstance(node.step, Continuation):
                self._continue(node, node.step)
                return
            work = self._prepare(node, node.step)
            record = None if self._options.nocache else self._state.record(work.action.id)
            if record is not None and record.signature == work.signature and self._intact(work.action, record):
                self._succeed(node, work.action, _restored(record), Outcome.UP_TO_DATE)
            elif self._options.check_up_to_date:
                self._result.not_up_to_date.append((work.action, self._reason(work, record)))
                self._stopping = True
            elif work.signature in self._running:
                self._twins.setdefault(work.signature, []).append(node)
            else:
                if self._options.explain:
                    self._reporter.explained(work.action, self._reason(work, record))
                self._hand_over(work)
        except BuildError as error:
            self._fail(node, error)
        except PlanStale:
            self._stale = self._stopping = True

    def _continue(self, node: _Node, step: Continuation) -> None:
        """Let a continuation declare its steps and hand its dependents over to them."""
        steps = step.function(self._read)
        self._expansions[step.id] = (content_digest(map(self._read, step.inputs)), steps)
        for one in steps:
            self._know(one, promised_by=node)
        for artifact in step.outputs:
            if self._maker(artifact) is node:
                raise AnalysisError(f"{step.owner}: nothing makes {artifact.path}, though it was promised")
        self._set(node, _Phase.DONE)
        demands: list[tuple[Artifact, _Node | None]] = []
        for user, artifact in node.dependents:
            user.unmet -= 1
            demands.append((artifact, user))
        node.dependents = []
        # What the user asked for has no dependent; ask for it again, now that its maker is known.
        demands += [(artifact, None) for artifact in step.outputs if artifact.id in self._asked]
        self._want(demands)

    def _read(self, artifact: Artifact) -> bytes:
        with open(self._layout.path(artifact), "rb") as file:
            return file.read()

    def _prepare(self, node: _Node, action: Action) -> _Work:
        """Decide everything about an action that does not depend on caches: its inputs' content and its signature."""
        contents: list[tuple[str, Digest, bool]] = []
        folders: dict[str, Sequence[str]] = {}
        for where, content in action.inputs:
            if isinstance(content, Text):
                contents.append((where, of_text(content.content), False))
            elif content.is_source:
                try:
                    contents.append((where, *self._state.source(content.path)))
                except OSError as error:
                    raise ActionFailed(
                        f"{action.owner}: cannot read {content.path}: {error.strerror}", location=action.location
                    ) from None
            elif content.id in self._folders:
                folders[content.id] = self._folders[content.id]
                contents += [
                    (f"{where}/{name}", *self._contents[f"{content.id}/{name}"]) for name in folders[content.id]
                ]
            elif content.id in self._contents:
                contents.append((where, *self._contents[content.id]))
            else:
                raise ActionFailed(
                    f"{action.owner}: {content.path} was promised, but the step that makes its folder left it out",
                    location=action.location,
                )
        toolchain = self._toolchains.get(action.tool, action.location)
        trees = {name: self._toolchains.tree(name).path for name in action.trees}
        described = _describe(action, toolchain, contents)
        signature = sha256(repr((described, self._tree_identity(action))).encode()).hexdigest()
        return _Work(node, action, toolchain, tuple(contents), folders, trees, signature, described)

    def _tree_identity(self, action: Action) -> str:
        return self._toolchains.get("hidet", action.location).identity if action.trees else ""

    def _intact(self, action: Action, record: Record) -> bool:
        """Whether the outputs on disk still are what the record says, by their seals."""
        targets = _targets(action, self._layout)
        for name, hash_, size, executable in record.files:
            try:
                stat = os.lstat(_target(targets, name))
            except OSError:
                return False
            if not files.is_sealed(stat, Digest(hash_, size)) or (executable and not stat.st_mode & 0o100):
                return False
        return all(os.path.isdir(_target(targets, name)) for name in record.directories)

    def _hand_over(self, work: _Work) -> None:
        if len(self._threads) < self._options.jobs and len(self._threads) <= len(self._running):
            thread = threading.Thread(target=self._serve, name=f"runner-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._set(work.node, _Phase.RUNNING)
        self._running[work.signature] = work
        self._reporter.started(work.action, "worker" if work.action.tool.startswith("hidet") else "local")
        self._jobs.put(work)

    # ---- finishing

    def _finish(self, done: _Done) -> None:
        work = done.work
        del self._running[work.signature]
        twins = self._twins.pop(work.signature, [])
        if done.changed:
            self._again(work, done.changed)
        elif done.error is not None:
            if not isinstance(done.error, BuildError):
                self._stopping = True
                raise done.error
            self._reporter.finished(work.action, Outcome.FAILED, None)
            self._fail(work.node, done.error)
        else:
            assert done.result is not None
            self._state.remember(work.action.id, _record(work.signature, done.key, done.result), work.description)
            self._succeed(work.node, work.action, done.result, done.outcome)
        self._ready.extendleft(twins)

    def _again(self, work: _Work, changed: Sequence[str]) -> None:
        for path in changed:
            self._state.forget_source(path)
        work.node.attempts += 1
        if work.node.attempts >= 3:
            self._fail(
                work.node,
                ActionFailed(
                    f"{work.action.owner}: {', '.join(changed)} changed each time {work.action.mnemonic} ran",
                    location=work.action.location,
                    hint="build again when the file is at rest; a command that writes to it must copy it first",
                ),
            )
            return
        self._set(work.node, _Phase.READY)
        self._ready.appendleft(work.node)

    def _succeed(self, node: _Node, action: Action, result: ActionResult, outcome: Outcome) -> None:
        targets = {where: artifact.id for where, artifact in action.outputs}
        for file in result.files:
            self._contents[_target(targets, file.path)] = (file.digest, file.executable)
        for name in result.directories:
            inside = tuple(file.path[len(name) + 1 :] for file in result.files if file.path.startswith(name + "/"))
            self._folders[targets[name]] = inside
        self._result.counts[outcome] += 1
        self._reporter.finished(action, outcome, result)
        self._set(node, _Phase.DONE)
        for user, _ in node.dependents:
            user.unmet -= 1
            self._ready_if_met(user)
        node.dependents = []

    def _fail(self, node: _Node, error: BuildError) -> None:
        self._set(node, _Phase.FAILED)
        if isinstance(error, Interrupted):
            self._result.interrupted = True
        else:
            self._result.failures.append(Failure(node.step, error))
            self._result.counts[Outcome.FAILED] += 1
            self._reporter.failed(node.step, error)
        if not self._options.keep_going:
            self._stopping = True
        for user, _ in node.dependents:
            self._skip(user)

    def _skip(self, node: _Node) -> None:
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node.phase not in _OVER:
                self._set(node, _Phase.SKIPPED)
                self._result.counts[Outcome.SKIPPED] += isinstance(node.step, Action)
                waiting += [user for user, _ in node.dependents]

    def _reason(self, work: _Work, record: Record | None) -> str:
        """Why an action is not up to date, in one line."""
        if record is None:
            return "it was not built here before" if not self._options.nocache else "--nocache was given"
        if record.signature == work.signature:
            targets = _targets(work.action, self._layout)
            for name, hash_, size, executable in record.files:
                path = _target(targets, name)
                if not os.path.lexists(path):
                    return f"output {name} is gone"
                if not files.is_sealed(os.lstat(path), Digest(hash_, size)):
                    return f"output {name} was changed"
                if executable and not os.lstat(path).st_mode & 0o100:
                    return f"output {name} is not executable any more"
            return "an output folder is gone"
        return _difference(self._state.description(work.action.id) or (), work.description)

    # ---- on the runner threads

    def _serve(self) -> None:
        while True:
            work = self._jobs.get()
            if work is None:
                return
            try:
                done = self._perform(work)
            except OSError as error:
                failure = EnvironmentFailure(
                    f"{work.action.owner}: {error.strerror or error}: {error.filename or 'no file named'}",
                    location=work.action.location,
                    hint="is the disk full, or a folder not writable? --output_base and --disk_cache name others",
                )
                done = _Done(work, Outcome.FAILED, error=failure)
            except BaseException as error:  # whatever it is, the loop thread must hear of it
                done = _Done(work, Outcome.FAILED, error=error)
            self._posted.put(done)

    def _perform(self, work: _Work) -> _Done:
        if self._cancelled():
            raise Interrupted("interrupted")
        key = self._key(work)
        found = self._fetch(work, key.digest)
        if found is None:
            with self._locks.hold(key.digest.hash, str(work.action.owner)):
                # Somebody may have made it while we waited for the lock.
                found = self._fetch(work, key.digest)
                if found is None:
                    return self._execute(work, key)
        return _Done(work, Outcome.CACHED, found, key.digest.hash)

    def _key(self, work: _Work) -> reapi.ActionKey:
        from hidet_build import reapi  # protobuf, only when an action must be keyed

        action = work.action
        with self._tree_lock:
            for name, path in work.trees.items():
                if name not in self._tree_digests:
                    self._tree_digests[name] = reapi.directory_digest(path)[0]
            trees = [(f"external/{name}", self._tree_digests[name]) for name in work.trees]
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

    def _fetch(self, work: _Work, key: Digest) -> ActionResult | None:
        if self._options.nocache or "no-cache" in work.action.tags:
            return None
        result = self._cache.get(key)
        if result is None:
            return None
        names = {file.path for file in result.files} | set(result.directories)
        if not all(where in names for where, _ in work.action.outputs):
            return None
        return result if self._place(work.action, result) else None

    def _place(self, action: Action, result: ActionResult) -> bool:
        """Put the files of a stored result at their outputs; False where the store has lost one."""
        targets = _targets(action, self._layout)
        self._tidy(targets, result)
        for file in _libraries_last(result.files):
            if not self._cache.place(file.digest, file.executable, _target(targets, file.path)):
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
            keep = {_target(targets, file.path) for file in result.files}
            for inside, _, names in os.walk(folder):
                for one in names:
                    path = os.path.join(inside, one)
                    # Another invocation may be tidying too, or putting a file here that has no name yet.
                    if path not in keep and not files.is_temporary(one):
                        files.remove(path)

    def _execute(self, work: _Work, key: reapi.ActionKey) -> _Done:
        action = work.action
        place = self._roots.new()
        kept = False
        try:
            place.stage(action, self._layout, work.folders, work.trees)
            if self._options.subcommands:
                line = self._runner.command(action, work.toolchain, place)
                self._posted.put(lambda reporter: reporter.command(line))
            ended = self._runner.run(action, work.toolchain, place)
            changed = tuple(path for path in _sources(action) if self._state.source_changed(path))
            if changed:
                return _Done(work, Outcome.FAILED, changed=changed)
            if self._cancelled():
                raise Interrupted("interrupted")
            if ended.exit_code:
                kept = True
                raise self._failure(work, place, ended)
            result, places = place.collect(action, ended.output, ended.seconds)
            self._check_inputs(work)
            self._publish(work, key, result, places)
            return _Done(work, Outcome.EXECUTED, result, key.digest.hash)
        finally:
            if not kept:
                place.discard()

    def _check_inputs(self, work: _Work) -> None:
        """An action that wrote to its own made inputs has spoiled them for everybody."""
        digests = {where: found for where, found, _ in work.contents}
        for where, content in work.action.inputs:
            if not isinstance(content, Artifact) or content.is_source:
                continue
            inside = [f"/{name}" for name in work.folders[content.id]] if content.directory else [""]
            for name in inside:
                if not files.is_sealed(os.lstat(self._layout.path(content) + name), digests[where + name]):
                    raise ActionFailed(
                        f"{work.action.owner}: {work.action.mnemonic} changed its own input {where}{name}",
                        location=work.action.location,
                        hint="copy an input before changing it",
                    )

    def _publish(self, work: _Work, key: reapi.ActionKey, result: ActionResult, places: Mapping[str, str]) -> None:
        """Into the store and from there to the outputs; straight to the outputs where the store will not have it."""
        if "no-cache" not in work.action.tags:
            stored = self._cache.put(key.digest, result, places, (key.action, key.command))
            if stored and self._place(work.action, result):
                return
        targets = _targets(work.action, self._layout)
        self._tidy(targets, result)
        for file in _libraries_last(result.files):
            place, target = places[file.path], _target(targets, file.path)
            if os.stat(place).st_nlink > 1:  # whoever has the other name does not want it sealed
                files.make_folder(os.path.dirname(target))
                files.copy(place, target, file.digest, file.executable)
                continue
            files.seal(place, file.digest, file.executable)
            self._placer.place(place, target, file.digest, file.executable)

    def _failure(self, work: _Work, place: ExecutionRoot, ended: ProcessResult) -> ActionFailed:
        """Keep the execution root, write the log, and say what a user needs to go on."""
        action = work.action
        # The end of it, for a name of a file has at most 255 bytes.
        name = os.fsdecode(os.fsencode(f"{action.outputs[0][1].path}.{action.mnemonic}".replace("/", "."))[-200:])
        kept = os.path.join(self._layout.state, "failed", action.platform, name)
        shutil.rmtree(kept, ignore_errors=True)
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        os.rename(place.folder, kept)
        place = place.moved(kept)
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
            command=self._runner.command(action, work.toolchain, place),
        )

    def _tell_waiting(self, holder: Holder, _: float) -> None:
        self._posted.put(lambda reporter: reporter.waiting(holder.label, holder.pid, holder.host, holder.since))


def _inputs(step: Step) -> list[Artifact]:
    if isinstance(step, Action):
        return [content for _, content in step.inputs if isinstance(content, Artifact)]
    return list(step.inputs)


def _outputs(step: Step) -> list[Artifact]:
    return [artifact for _, artifact in step.outputs] if isinstance(step, Action) else list(step.outputs)


def _sources(action: Action) -> list[str]:
    return [content.path for _, content in action.inputs if isinstance(content, Artifact) and content.is_source]


def _targets(action: Action, layout: Layout) -> dict[str, str]:
    """Where each declared output belongs on disk, by its path from the working directory."""
    return {where: layout.path(artifact) for where, artifact in action.outputs}


def _target(targets: Mapping[str, str], name: str) -> str:
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


def _record(signature: str, key: str, result: ActionResult) -> Record:
    rows = tuple((file.path, file.digest.hash, file.digest.size, file.executable) for file in result.files)
    return Record(signature, key, rows, result.directories)


def _restored(record: Record) -> ActionResult:
    found = tuple(OutputFile(path, Digest(hash_, size), executable) for path, hash_, size, executable in record.files)
    return ActionResult(found, record.directories)


def _describe(action: Action, toolchain: Toolchain, contents: Sequence[tuple[str, Digest, bool]]) -> tuple[Any, ...]:
    """All that goes into an action, as (what, value) rows: hashed for the signature, compared for `--explain`."""
    return (
        *((f"argument {index}", argument) for index, argument in enumerate(action.arguments)),
        *((f"variable {name}", value) for name, value in action.environment),
        ("working directory", action.working_directory),
        (f"tool {action.tool}", f"{toolchain.version} ({toolchain.identity[:12]})"),
        *(("tree", name) for name in action.trees),
        *((f"input {where}", found.hash + ("+x" if executable else "")) for where, found, executable in contents),
        *((f"output {where}", "folder" if artifact.directory else "file") for where, artifact in action.outputs),
    )


def _difference(old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]]) -> str:
    """The first row in which two descriptions differ, in words."""
    before, after = dict(old), dict(new)
    for what in (*after, *before):
        was, now = before.get(what), after.get(what)
        if was != now:
            if what.startswith("input "):
                was, now = was and was[:12], now and now[:12]
            if was is None:
                return f"{what} is new: {now}"
            return f"{what} is gone (it was {was})" if now is None else f"{what} changed: {was} -> {now}"
    return "the toolchain's files changed"


def _excerpt(output: bytes, whole: bool) -> str:
    """The tool's text for the screen: all of it when short or asked for, else its beginning."""
    lines = output.decode("utf-8", "replace").rstrip().splitlines()
    if whole or len(lines) <= 40:
        return "\n".join(lines)
    return "\n".join([*lines[:30], f"... {len(lines) - 30} more lines in the log"])
