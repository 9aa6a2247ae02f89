"""What a rule author imports: `rule`, `attr`, `Provider`, `Context`. Knows neither YAML nor how actions run.

A rule is a function. For each target it gets a `Context`, declares actions on it, and returns providers:

    @dataclass(frozen=True)
    class StampInfo(Provider):
        stamp: Artifact

    @rule(src=attr.file(required=True, doc="the file to stamp"))
    def stamp(ctx: Context) -> Sequence[Provider]:
        "Copies a file."
        out = ctx.output("stamp.txt")
        ctx.action("Stamp", tool="command:cp", arguments=["cp", "in", "out"],
                   inputs={"in": ctx.attrs.src}, outputs={"out": out})
        return [DefaultInfo((out,)), StampInfo(out)]

A rule must be a pure function of its context: no clock, no environment, no file reads.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, Union

from hidet_build.action import Action, Artifact, Continuation, Input, Reader, Step, Text
from hidet_build.errors import AnalysisError, BuildError, Location
from hidet_build.label import Label
from hidet_build.platform import Platform

__all__ = [
    "Action",
    "AnalysisError",
    "Artifact",
    "Attribute",
    "Context",
    "DefaultInfo",
    "Dependency",
    "GroupInfo",
    "Input",
    "Label",
    "Platform",
    "Provider",
    "Reference",
    "Rule",
    "Text",
    "attr",
    "rule",
]


class Provider:
    """Base of the frozen dataclasses that a target hands to its dependents; they are found by type."""


P = TypeVar("P", bound=Provider)


@dataclass(frozen=True)
class DefaultInfo(Provider):
    """The files that are made when the target is asked for by name; `folder` is the one to load, if there is one."""

    files: tuple[Artifact, ...] = ()
    folder: Artifact | None = None
    note: str = ""  # one line after a build of this target: how to use what was made, `{folder}` being its path


class Reference(NamedTuple):
    """A label as it was written in a BUILD.yaml, and where."""

    label: Label
    location: Location


@dataclass(frozen=True)
class Dependency:
    """A target another target depends on, as a rule sees it."""

    label: Label
    location: Location  # where the dependent names it
    providers: Mapping[type[Provider], Provider]

    def get(self, kind: type[P]) -> P | None:
        """The provider of this type, or None."""
        found = self.providers.get(kind)
        return found if isinstance(found, kind) else None

    def __getitem__(self, kind: type[P]) -> P:
        """The provider of this type; AnalysisError where the target has none."""
        found = self.get(kind)
        if found is None:
            raise AnalysisError(f"{self.label} provides no {kind.__name__}", location=self.location)
        return found


@dataclass(frozen=True)
class GroupInfo(Provider):
    """This target stands for several others, the instances of a matrix for one."""

    members: tuple[Dependency, ...]


class Kind(NamedTuple):
    """How an attribute's value is written and what a rule gets for it."""

    name: str
    expected: str  # for errors: "expected ..."
    value: str  # what `ctx.attrs` holds
    refers: bool = False  # whether it is labels of targets or files


STRING = Kind("string", "a string", "str")
INTEGER = Kind("integer", "a whole number", "int")
BOOLEAN = Kind("boolean", "true or false", "bool")
STRINGS = Kind("strings", "a list of strings", "tuple[str, ...]")
FILE = Kind("file", "a file of this package or the label of a target", "Artifact", True)
FILES = Kind("files", "a list of files, labels and globs", "tuple[Artifact, ...]", True)
LABEL = Kind("label", "a label", "Dependency", True)
LABELS = Kind("labels", "a list of labels", "tuple[Dependency, ...]", True)
STRING_MAP = Kind("string_map", "a mapping of strings", "tuple[tuple[str, str], ...]")
DATA = Kind("data", "a mapping", "dict of plain values")


@dataclass(frozen=True)
class Attribute:
    """One attribute of a rule.

    `provides` lists the provider types of which a dependency must have one; `choices` the strings allowed;
    `suffixes` the endings a file must have one of.
    """

    kind: Kind
    required: bool = False
    default: Any = None
    doc: str = ""
    provides: tuple[type[Provider], ...] = ()
    choices: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()


Provides = Union[type[Provider], Sequence[type[Provider]]]


class attr:  # noqa: N801 - read as a namespace: attr.string(...)
    """The kinds of attributes."""

    @staticmethod
    def string(*, required: bool = False, default: str = "", choices: Sequence[str] = (), doc: str = "") -> Attribute:
        """A string; numbers, dates and words like `no` are kept as they are written."""
        return Attribute(STRING, required, default, doc, choices=tuple(choices))

    @staticmethod
    def integer(*, required: bool = False, default: int = 0, doc: str = "") -> Attribute:
        """A decimal whole number."""
        return Attribute(INTEGER, required, default, doc)

    @staticmethod
    def boolean(*, default: bool = False, doc: str = "") -> Attribute:
        """`true` or `false`."""
        return Attribute(BOOLEAN, False, default, doc)

    @staticmethod
    def strings(*, required: bool = False, default: Sequence[str] = (), doc: str = "") -> Attribute:
        """A list of strings."""
        return Attribute(STRINGS, required, tuple(default), doc)

    @staticmethod
    def file(*, required: bool = False, suffixes: Sequence[str] = (), doc: str = "") -> Attribute:
        """One file: a source file of the package, or the label of a target that makes exactly one."""
        return Attribute(FILE, required, None, doc, suffixes=tuple(suffixes))

    @staticmethod
    def files(*, required: bool = False, suffixes: Sequence[str] = (), doc: str = "") -> Attribute:
        """Any number of files: source files, globs, labels of targets (all their default files)."""
        return Attribute(FILES, required, (), doc, suffixes=tuple(suffixes))

    @staticmethod
    def label(*, required: bool = False, provides: Provides = (), doc: str = "") -> Attribute:
        """One other target."""
        return Attribute(LABEL, required, None, doc, provides=_types(provides))

    @staticmethod
    def labels(*, required: bool = False, provides: Provides = (), doc: str = "") -> Attribute:
        """Other targets; a group (of a matrix) stands for all its members."""
        return Attribute(LABELS, required, (), doc, provides=_types(provides))

    @staticmethod
    def string_map(*, required: bool = False, doc: str = "") -> Attribute:
        """A mapping from strings to strings."""
        return Attribute(STRING_MAP, required, (), doc)

    @staticmethod
    def data(*, required: bool = False, doc: str = "") -> Attribute:
        """A mapping of plain values (str, int, float, bool, None, lists, mappings), by DESIGN's scalar rules."""
        return Attribute(DATA, required, {}, doc)


def _types(provides: Provides) -> tuple[type[Provider], ...]:
    return (provides,) if isinstance(provides, type) else tuple(provides)


Implementation = Callable[["Context"], Sequence[Provider]]


@dataclass(frozen=True)
class Rule:
    """A kind of target."""

    name: str
    implementation: Implementation
    attributes: Mapping[str, Attribute]
    doc: str
    path: str  # the file that defines it


# Attributes that every target has and no rule may define.
COMMON = {
    "rule": Attribute(STRING, True, "", "the kind of target"),
    "name": Attribute(STRING, True, "", "the target's name in its package"),
    "visibility": Attribute(STRINGS, False, None, "who may depend on it"),
    "tags": Attribute(STRINGS, False, (), "manual, no-cache, no-remote-cache, local, exclusive, or words of your own"),
    "compatible_with": Attribute(STRINGS, False, (), "the targets it can be built for: cpu, cuda, cuda-sm_90"),
    "matrix": Attribute(DATA, False, {}, "makes one target for each combination of values"),
    "group": Attribute(STRING, False, "", "the name of the target that stands for all instances of a matrix"),
}


def rule(**attributes: Attribute) -> Callable[[Implementation], Rule]:
    """Make a rule of the decorated function; keyword arguments are its attributes.

    Raises TypeError where an attribute has a name every target has already (`name`, `tags`, ...), or is none.
    """

    def decorate(implementation: Implementation) -> Rule:
        for name, attribute in attributes.items():
            if not isinstance(attribute, Attribute):
                raise TypeError(f"rule {implementation.__name__}: {name} must be made with attr.KIND(...)")
        clash = COMMON.keys() & attributes.keys()
        if clash:
            raise TypeError(f"rule {implementation.__name__}: every target has {', '.join(sorted(clash))} already")
        return Rule(
            implementation.__name__,
            implementation,
            attributes,
            (implementation.__doc__ or "").strip(),
            implementation.__code__.co_filename,
        )

    return decorate


def rule_failure(label: Label, location: Location, path: str, error: Exception) -> AnalysisError:
    """The located error for an exception that a rule's own code, in the file `path`, let escape."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == path][-1:]
    related = [("in the rule", _place_of(frame)) for frame in own if frame is not frames[-1]]
    related += [("raised here", _place_of(frame)) for frame in frames[-1:] if own]
    name = type(error).__name__
    return AnalysisError(
        f"the rule of {label} failed: {name}: {error}" if str(error) else f"the rule of {label} failed: {name}",
        location=location,
        related=related,
    )


def _place_of(frame: traceback.FrameSummary) -> Location:
    return Location(frame.filename, frame.lineno or 1, 1, frame.line or "")


# What an action may say its tool is; whether this machine has it shows when the action runs.
_TOOL = re.compile(r"cxx|nvcc|binutils|hidet(\+.+)?|command:.+")


_UNCLEAN = frozenset(("", ".", ".."))


def _is_clean(path: object) -> bool:
    """Whether this is a path that stays below the folder it starts in, written in the one way there is."""
    return isinstance(path, str) and _UNCLEAN.isdisjoint(path.split("/")) and "\0" not in path


class Context:
    """What a rule sees of its target, and where it declares its actions."""

    def __init__(
        self,
        label: Label,
        attrs: Mapping[str, Any],
        locations: Mapping[str, Location],
        location: Location,
        platform: Platform,
        tags: Sequence[str],
        resolve: Callable[[str, Location], Platform],
    ) -> None:
        self.label = label
        self.attrs = SimpleNamespace(**attrs)  # what each attribute's kind says: `Kind.value`
        self.location = location
        self.platform = platform
        self._locations = locations
        self._tags = tuple(sorted(tags))
        self._resolve = resolve
        self._steps: list[Step] = []

    def where(self, attribute: str) -> Location:
        """Where the target sets `attribute`; the target itself where it does not."""
        return self._locations.get(attribute, self.location)

    def target_platform(self, target: str, attribute: str = "target") -> Platform:
        """The platform of a hidet target string written in `attribute`; the build's own for an empty one."""
        return self._resolve(target, self.where(attribute)) if target else self.platform

    def output(self, name: str, *, platform: Platform | None = None, directory: bool = False) -> Artifact:
        """A file (or folder) this target makes, in its own output folder, which has the empty name."""
        if name and not _is_clean(name):
            raise self._refusal(f"output {name!r} is not a path below the target's own output folder")
        folder = self.label.path
        return Artifact(f"{folder}/{name}" if name else folder, (platform or self.platform).name, directory)

    def by_path(self, files: Iterable[Artifact]) -> dict[str, Artifact]:
        """These files as inputs, each at its own path; AnalysisError where two that differ have the same path."""
        found: dict[str, Artifact] = {}
        for file in files:
            if found.setdefault(file.path, file) != file:
                raise self._refusal(
                    f"two of its files have the path {file.path}",
                    hint="rename one of them, or the target that makes it",
                )
        return found

    def action(
        self,
        mnemonic: str,
        *,
        tool: str,
        arguments: Sequence[str],
        inputs: Mapping[str, Input],
        outputs: Mapping[str, Artifact],
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        trees: Sequence[str] = (),
    ) -> None:
        """Declare an action: a command line run in a folder that holds `inputs`, at the paths given, and nothing else.

        `outputs` maps paths from `working_directory` to what they become. See `hidet_build.action.Action`.
        """
        self._check_action(mnemonic, tool, arguments, inputs, outputs, working_directory)
        self._steps.append(
            Action(
                self.label,
                mnemonic,
                next(iter(outputs.values())).platform,
                tool,
                tuple(arguments),
                tuple(sorted(inputs.items())),
                tuple(sorted(outputs.items())),
                tuple(sorted((environment or {}).items())),
                working_directory,
                tuple(sorted(trees)),
                self._tags,
                self.location,
            )
        )

    def then(
        self,
        inputs: Sequence[Artifact],
        outputs: Sequence[Artifact],
        function: Callable[[Context, Reader], None],
    ) -> None:
        """Declare further actions once `inputs` are made: `function(ctx, read)` is called then.

        `read(artifact)` gives the bytes of one of `inputs`; the actions it declares must make `outputs`. What it does
        must follow from those bytes alone.
        """
        if not inputs or not outputs:
            raise self._refusal("ctx.then needs inputs to wait for and outputs to promise")
        for artifact in inputs:
            if not isinstance(artifact, Artifact) or artifact.is_source or artifact.directory:
                raise self._refusal(f"ctx.then waits for made files, not for {_shown(artifact)}")
        for artifact in outputs:
            self._check_output(artifact, "ctx.then")
        self._steps.append(
            Continuation(
                self.label,
                outputs[0].platform,
                tuple(inputs),
                tuple(outputs),
                functools.partial(self._continue, function, tuple(inputs)),
                self.location,
            )
        )

    def _continue(
        self, function: Callable[[Context, Reader], None], inputs: Sequence[Artifact], read: Reader
    ) -> tuple[Step, ...]:
        later = Context(
            self.label,
            vars(self.attrs),
            self._locations,
            self.location,
            self.platform,
            self._tags,
            self._resolve,
        )

        def read_input(artifact: Artifact) -> bytes:
            if artifact not in inputs:
                raise self._refusal(f"it reads {_shown(artifact)}, which it did not say it waits for")
            return read(artifact)

        try:
            function(later, read_input)
        except BuildError:
            raise
        except Exception as error:
            path = getattr(getattr(function, "__code__", None), "co_filename", "")
            raise rule_failure(self.label, self.location, path, error) from error
        return later.steps()

    def _check_action(
        self,
        mnemonic: str,
        tool: str,
        arguments: Sequence[str],
        inputs: Mapping[str, Input],
        outputs: Mapping[str, Artifact],
        working_directory: str,
    ) -> None:
        """What is wrong here would show when the action runs, or never: say it where the rule is at hand."""
        what = f"action {mnemonic}"
        if isinstance(arguments, str) or not arguments or not all(isinstance(one, str) for one in arguments):
            raise self._refusal(f"{what}: arguments must be a list of strings, the program first; got {arguments!r}")
        if not _TOOL.fullmatch(tool):
            hint = 'it is "cxx", "nvcc", "binutils", "hidet" or "command:PROGRAM"'
            raise self._refusal(f"{what}: there is no tool {tool!r}", hint=hint)
        if not isinstance(inputs, Mapping) or not isinstance(outputs, Mapping):
            raise self._refusal(f"{what}: inputs and outputs map paths to files")
        if not outputs:
            raise self._refusal(f"{what} has no outputs", hint="what makes nothing would never run")
        for path in (*inputs, *outputs, *([working_directory] if working_directory else [])):
            if not _is_clean(path):
                raise self._refusal(f"{what}: {path!r} is not a path below the folder the action runs in")
        for content in inputs.values():
            if not isinstance(content, (Artifact, Text)):
                raise self._refusal(f"{what}: an input is an Artifact or a Text, not {_shown(content)}")
        for artifact in outputs.values():
            self._check_output(artifact, what)
        self._check_apart(what, inputs, outputs, working_directory)

    def _check_apart(
        self, what: str, inputs: Mapping[str, Input], outputs: Mapping[str, Artifact], working_directory: str
    ) -> None:
        """Sources are links to the user's files: what an action writes over one is written there."""
        for name in outputs:
            place = f"{working_directory}/{name}" if working_directory else name
            for path in inputs:
                if place == path or path.startswith(f"{place}/") or place.startswith(f"{path}/"):
                    raise self._refusal(
                        f"{what}: the output {name!r} would be written over the input {path!r}",
                        hint="give one of the two another path",
                    )

    def _check_output(self, artifact: object, what: str) -> None:
        folder = self.label.path
        own = isinstance(artifact, Artifact) and f"{artifact.path}/".startswith(f"{folder}/")
        if not isinstance(artifact, Artifact) or artifact.is_source or not own:
            hint = "outputs are made with ctx.output(...)"
            raise self._refusal(f"{what}: {_shown(artifact)} is no output of this target", hint=hint)

    def _refusal(self, message: str, hint: str | None = None) -> AnalysisError:
        return AnalysisError(f"{self.label}: {message}", location=self.location, hint=hint)

    def steps(self) -> tuple[Step, ...]:
        """What was declared so far, in order."""
        return tuple(self._steps)


def _shown(value: object) -> str:
    return value.path if isinstance(value, Artifact) else repr(value)
