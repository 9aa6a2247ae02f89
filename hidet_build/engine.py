"""The loop: ready -> signature -> up to date by local state, or performed -> record.

One thread owns all state and decides; runner threads perform actions (performer.py) and post what came of it. Knows
actions, not the rules that declared them.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from hidet_build import files
from hidet_build.action import Action, ActionResult, Artifact, Continuation, OutputFile, Step, Text
from hidet_build.costs import Cost, Costs
from hidet_build.digest import Digest, of_text
from hidet_build.errors import ActionFailed, AnalysisError, BuildError, Interrupted, NotCached
from hidet_build.execution import Layout
from hidet_build.performer import Done, Notice, Performer, Work, target_of, targets_of
from hidet_build.plan import PlanStale, content_digest, inputs_of, outputs_of
from hidet_build.progress import Outcome, Reporter
from hidet_build.request import Options
from hidet_build.schedule import Node, Phase, Ready
from hidet_build.state import Record, State
from hidet_build.toolchain.base import Toolchain
from hidet_build.toolchain.registry import Toolchains


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
    interrupted: bool = False
    actions: int = 0  # that were looked at


_OVER = (Phase.DONE, Phase.FAILED, Phase.SKIPPED)


class Engine:
    """Makes what is asked for out of declared steps."""

    def __init__(
        self,
        layout: Layout,
        options: Options,
        state: State,
        toolchains: Toolchains,
        reporter: Reporter,
        cancelled: Callable[[], bool],
        performer: Callable[[Callable[[Notice], None]], Performer],
    ) -> None:
        """`performer` makes the one that runs actions, given a way to tell the user something from its threads."""
        self._layout = layout
        self._options = options
        self._state = state
        self._toolchains = toolchains
        self._reporter = reporter
        self._cancelled = cancelled
        self._makers: dict[str, Node] = {}
        self._contents: dict[str, tuple[Digest, bool]] = {}  # made files: digest and executable bit, by artifact id
        self._folders: dict[str, tuple[str, ...]] = {}  # files in made folders, by artifact id
        self._costs = Costs(state.folder)
        self._ready = Ready(self._costs.seconds)
        self._running: dict[str, tuple[Node, Work]] = {}  # by signature: equal actions run once
        self._twins: dict[str, list[Node]] = {}  # waiting for the running one with the same signature
        self._posted: queue.SimpleQueue[Done | Notice] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._performer = performer(self._posted.put)
        self._expansions: dict[str, tuple[str, tuple[Step, ...]]] = {}
        self._asked: set[str] = set()  # what the user wants, by artifact id
        self._stopping = self._stale = self._is_part = False
        self._earlier = PlanStale()  # what an engine did that turned out to have a stale plan
        self._finished: dict[str, Outcome] = {}
        self._failed: dict[str, tuple[str, BuildError]] = {}
        self._result = Result()

    # ---- the story, on the loop thread

    def build(
        self,
        steps: Iterable[Step],
        wanted: Iterable[Artifact],
        earlier: PlanStale | None = None,
        settled: Iterable[Action] | None = None,
    ) -> Result:
        """Make `wanted` and whatever it needs; steps nobody needs are left alone.

        Where the steps are a part of a plan, `settled` are those beside it, which are up to date.

        Never raises for a failing action: the result lists failures in the order they happened. Raises PlanStale when
        the steps came from a saved plan that no longer fits; what was running then is finished and recorded. Then
        `earlier` tells the next engine what was finished and what failed: that counts as what it was, and is neither
        run nor told again.
        """
        self._earlier = earlier or PlanStale()
        for step in steps:
            self._know(step)
        self._is_part = settled is not None
        for action in settled or ():
            self._settle(action)
        requested = list(wanted)
        self._asked = {artifact.id for artifact in requested}
        try:
            self._want((artifact, None) for artifact in requested)
            self._loop()
        finally:
            self._close()
        if self._stale:
            raise PlanStale(self._finished, self._failed)
        return self._result

    def made(self, artifact: Artifact) -> bool:
        """Whether a wanted artifact is there and right after `build`."""
        maker = self._maker(artifact)
        return artifact.is_source or (maker is not None and maker.phase is Phase.DONE)

    def given_up(self, artifact: Artifact) -> bool:
        """Whether the step that makes a wanted artifact failed, or one that it needs."""
        maker = self._maker(artifact)
        return maker is not None and maker.phase in (Phase.FAILED, Phase.SKIPPED)

    def folders(self) -> list[str]:
        """Every made folder of this build, by artifact id."""
        return list(self._folders)

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
                self._start(self._ready.pop())
            if not self._running and (self._stopping or not self._ready):
                break
            try:
                news = self._posted.get(timeout=0.1)
            except queue.Empty:
                self._reporter.tick()
                self._state.write()
                continue
            if isinstance(news, Done):
                self._finish(news)
            else:
                news(self._reporter)

    def _may_start(self) -> bool:
        if len(self._running) >= self._options.jobs:
            return False
        if any("exclusive" in work.action.tags for _, work in self._running.values()):
            return False
        step = self._ready.peek().step
        return not (isinstance(step, Action) and "exclusive" in step.tags and self._running)

    def _close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._performer.close()
        self._state.save()
        self._costs.save()

    # ---- what is wanted

    def _know(self, step: Step, promised_by: Node | None = None) -> None:
        """Make a declared step findable by its outputs; a continuation gives way to the steps it declared."""
        node = Node(step)
        for artifact in outputs_of(step):
            other = self._makers.get(artifact.id)
            if other is not None and other is not promised_by and other is not node:
                raise AnalysisError(
                    f"{other.step.owner} and {step.owner} both make {artifact.path}", location=step.location
                )
            self._makers[artifact.id] = node

    def _settle(self, action: Action) -> None:
        """Believe that an action is up to date, if its outputs are those it left; who says so knows its inputs."""
        record = self._state.record(action.id)
        if record is None or not self._intact(action, record):
            return  # perhaps nobody needs it
        self._know(action)
        self._hold(action, _restored(record))
        self._set(self._makers[action.id], Phase.DONE)

    def _maker(self, artifact: Artifact) -> Node | None:
        """Who makes an artifact: the step with that output, or the one with a folder around it."""
        where = artifact.id if artifact.platform else ""
        while where:
            node = self._makers.get(where)
            if node is not None:
                return node
            where = where.rpartition("/")[0]
        return None

    def _want(self, demands: Iterable[tuple[Artifact, Node | None]]) -> None:
        """Ask for artifacts, each for a step or (None) for the user, and for whatever their makers need in turn."""
        waiting = list(demands)
        waiters = [user for _, user in waiting if user is not None]
        selected: list[Node] = []
        while waiting:
            artifact, user = waiting.pop()
            maker = self._maker(artifact)
            if maker is None:
                if artifact.platform and self._is_part:
                    raise PlanStale
                if artifact.platform:
                    owner = user.step.owner if user else "the request"
                    raise AnalysisError(f"{owner}: nothing makes {artifact.path}")
                continue
            if user is not None and maker.phase is not Phase.DONE:
                maker.dependents.append((user, artifact))
                user.unmet += 1
            if maker.phase is Phase.KNOWN:
                self._set(maker, Phase.WAITING)
                selected.append(maker)
                waiting += [(one, maker) for one in inputs_of(maker.step)]
            elif maker.phase in (Phase.FAILED, Phase.SKIPPED) and user is not None:
                self._skip(user)
        for node in (*reversed(selected), *waiters):  # the deepest were selected last: start with them
            self._ready_if_met(node)
        added = [node.step for node in selected if isinstance(node.step, Action)]
        self._result.actions += len(added)
        told = self._earlier.finished.keys() | self._earlier.failed.keys()
        self._reporter.actions_added(sum(step.id not in told for step in added))

    def _ready_if_met(self, node: Node) -> None:
        if node.phase is Phase.WAITING and not node.unmet:
            self._set(node, Phase.READY)
            self._ready.add(node)

    @staticmethod
    def _set(node: Node, phase: Phase) -> None:
        """The one place where a phase changes."""
        node.phase = phase

    # ---- starting

    def _start(self, node: Node) -> None:
        try:
            if isinstance(node.step, Continuation):
                self._continue(node, node.step)
                return
            work = self._prepare(node.step)
            earlier = self._earlier.finished.get(work.action.id)
            record = None if self._options.nocache and not earlier else self._state.record(work.action.id)
            same = record is not None and record.signature == work.signature
            if record is not None and same and self._intact(work.action, record):
                self._succeed(node, work.action, _restored(record), earlier or Outcome.UP_TO_DATE)
            elif self._failed_before(work):
                self._fail(node, self._earlier.failed[work.action.id][1], work)
            elif self._options.check_up_to_date:
                self._result.not_up_to_date.append((work.action, self._reason(work, record)))
                self._skip(node)  # and what needs it; the rest is looked at too
            elif work.signature in self._running:
                self._twins.setdefault(work.signature, []).append(node)
            else:
                if self._options.explain:
                    self._reporter.explained(work.action, self._reason(work, record))
                if record is not None and same and self._performer.restore(work.action, _restored(record)):
                    self._succeed(node, work.action, _restored(record), Outcome.CACHED)
                else:
                    self._hand_over(node, work)
        except BuildError as error:
            self._fail(node, error)
        except PlanStale:
            self._stale = self._stopping = True

    def _failed_before(self, work: Work) -> bool:
        signature, _ = self._earlier.failed.get(work.action.id, ("", None))
        return signature == work.signature

    def _continue(self, node: Node, step: Continuation) -> None:
        """Let a continuation declare its steps and hand its dependents over to them."""
        steps = step.function(self._read)
        self._expansions[step.id] = (content_digest(map(self._read, step.inputs)), steps)
        for one in steps:
            self._know(one, promised_by=node)
        for artifact in step.outputs:
            if self._maker(artifact) is node:
                raise AnalysisError(
                    f"{step.owner}: nothing makes {artifact.path}, though it was promised", location=step.location
                )
        self._set(node, Phase.DONE)
        demands: list[tuple[Artifact, Node | None]] = []
        for user, artifact in node.dependents:
            user.unmet -= 1
            demands.append((artifact, user))
        node.dependents = []
        # What the user asked for has no dependent; ask for it again, now that its maker is known.
        demands += [(artifact, None) for artifact in step.outputs if artifact.id in self._asked]
        self._want(demands)

    def _read(self, artifact: Artifact) -> bytes:
        try:
            with open(self._layout.path(artifact), "rb") as file:
                return file.read()
        except OSError as error:
            raise ActionFailed(
                f"{artifact.path} was promised, but the step that makes its folder left it out ({error.strerror})"
            ) from None

    def _prepare(self, action: Action) -> Work:
        """Decide everything about an action that does not depend on caches: its inputs' content and its signature."""
        contents: list[tuple[str, Digest, bool]] = []
        folders: dict[str, Sequence[str]] = {}
        empty: list[str] = []  # folders without a file: nothing else would tell of them
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
                if not folders[content.id]:
                    empty.append(where)
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
        trees = [self._toolchains.tree(name, action.location) for name in action.trees]
        described = (*_describe(action, toolchain, contents), *((f"input {where}", "empty folder") for where in empty))
        identities = (toolchain.identity, *(tree.identity for tree in trees))
        signature = sha256(repr((described, identities)).encode()).hexdigest()
        paths = {tree.name: tree.path for tree in trees}
        return Work(action, toolchain, tuple(contents), tuple(empty), folders, paths, signature, described)

    def _intact(self, action: Action, record: Record) -> bool:
        """Whether the outputs on disk still are what the record says, by their seals."""
        targets = targets_of(action, self._layout)
        for name, hash_, size, executable in record.files:
            try:
                stat = os.lstat(target_of(targets, name))
            except OSError:
                return False
            if not files.is_sealed(stat, Digest(hash_, size)) or executable != bool(stat.st_mode & 0o100):
                return False
        return all(os.path.isdir(target_of(targets, name)) for name in record.directories)

    def _hand_over(self, node: Node, work: Work) -> None:
        if len(self._threads) < self._options.jobs and len(self._threads) <= len(self._running):
            thread = threading.Thread(target=self._serve, name=f"runner-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._set(node, Phase.RUNNING)
        self._running[work.signature] = (node, work)
        self._reporter.started(work.action, "worker" if work.action.tool.startswith("hidet") else "local")
        self._jobs.put(work._replace(memory=self._costs.of(work.action).memory))

    # ---- finishing

    def _finish(self, done: Done) -> None:
        work = done.work
        node, _ = self._running.pop(work.signature)
        twins = self._twins.pop(work.signature, [])
        if done.changed:
            self._again(node, work.action, done.changed)
        elif done.missing:
            self._reporter.finished(work.action, Outcome.FAILED, None)
            self._fail(node, self._not_cached(work, done.missing), work)
        elif done.error is not None:
            if not isinstance(done.error, BuildError):
                self._stopping = True
                raise done.error
            self._reporter.finished(work.action, Outcome.FAILED, None)
            self._fail(node, done.error, work)
        else:
            assert done.result is not None
            self._state.remember(work.action.id, _record(work.signature, done.key, done.result), work.description)
            if done.outcome is Outcome.EXECUTED:
                self._costs.learn(work.action, Cost(done.result.seconds, done.memory))
            self._succeed(node, work.action, done.result, done.outcome)
        for twin in twins:
            self._ready.add_first(twin)

    def _not_cached(self, work: Work, missing: str) -> NotCached:
        """That an action would have to run, to make what, and why, as far as an earlier build or the caches tell."""
        action = work.action
        made = ", ".join(artifact.path for _, artifact in action.outputs)
        record = self._state.record(action.id)
        reason = f"{self._reason(work, record)}, and " if record else ""
        hint = "a build without --require_cached makes it; export the cache after that"
        if "no-cache" in action.tags:
            hint = "take the tag away, or leave the target out"
        return NotCached(
            f"{action.owner}: {action.mnemonic} is not cached and would have to run to make {made}: {reason}{missing}",
            location=action.location,
            hint=hint,
        )

    def _again(self, node: Node, action: Action, changed: Sequence[str]) -> None:
        """Have an action run once more, whose sources changed while it ran."""
        for path in changed:
            self._state.forget_source(path)
        node.attempts += 1
        if node.attempts < 3:
            self._set(node, Phase.READY)
            self._ready.add_first(node)
            return
        message = f"{action.owner}: {', '.join(changed)} changed each time {action.mnemonic} ran"
        hint = "build again when the file is at rest; a command that writes to it must copy it first"
        self._fail(node, ActionFailed(message, location=action.location, hint=hint))

    def _hold(self, action: Action, result: ActionResult) -> None:
        """Know what the outputs of an action are."""
        targets = {where: artifact.id for where, artifact in action.outputs}
        for file in result.files:
            self._contents[target_of(targets, file.path)] = (file.digest, file.executable)
        for name in result.directories:
            inside = tuple(file.path[len(name) + 1 :] for file in result.files if file.path.startswith(name + "/"))
            self._folders[targets[name]] = inside

    def _succeed(self, node: Node, action: Action, result: ActionResult, outcome: Outcome) -> None:
        self._hold(action, result)
        self._result.counts[outcome] += 1
        if action.id not in self._earlier.finished:
            self._reporter.finished(action, outcome, result)
        self._finished[action.id] = outcome
        self._set(node, Phase.DONE)
        for user, _ in node.dependents:
            user.unmet -= 1
            self._ready_if_met(user)
        node.dependents = []

    def _fail(self, node: Node, error: BuildError, work: Work | None = None) -> None:
        """A step failed; with `work`, when it ran."""
        self._set(node, Phase.FAILED)
        if isinstance(error, Interrupted):
            self._result.interrupted = True
        else:
            self._result.failures.append(Failure(node.step, error))
            self._result.counts[Outcome.FAILED] += 1
            if work is not None:
                self._failed[node.step.id] = (work.signature, error)
            _, told = self._earlier.failed.get(node.step.id, ("", None))
            if told is None or told.render() != error.render():
                self._reporter.failed(node.step, error)
        if not self._options.keep_going:
            self._stopping = True
        for user, _ in node.dependents:
            self._skip(user)

    def _skip(self, node: Node) -> None:
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node.phase not in _OVER:
                self._set(node, Phase.SKIPPED)
                self._result.counts[Outcome.SKIPPED] += isinstance(node.step, Action)
                waiting += [user for user, _ in node.dependents]

    def _reason(self, work: Work, record: Record | None) -> str:
        """Why an action is not up to date, in one line."""
        if record is None:
            return "it was not built here before" if not self._options.nocache else "--nocache was given"
        if record.signature == work.signature:
            targets = targets_of(work.action, self._layout)
            for name, hash_, size, executable in record.files:
                path = target_of(targets, name)
                if not os.path.lexists(path):
                    return f"output {name} is gone"
                if not files.is_sealed(os.lstat(path), Digest(hash_, size)):
                    return f"output {name} was changed"
                if executable != bool(os.lstat(path).st_mode & 0o100):
                    return f"output {name} {'is not executable any more' if executable else 'was made executable'}"
            return "an output folder is gone"
        return _difference(self._state.description(work.action.id) or (), work.description)

    # ---- on the runner threads

    def _serve(self) -> None:
        while (work := self._jobs.get()) is not None:
            self._posted.put(self._performer.perform(work))


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
