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
import traceback
from collections.abc import Callable, Mapping, Sequence
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
    note: str = ""  # one line after a build of this target: how to use what was made


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


STRING = Kind("string", "a string", "str")
INTEGER = Kind("integer", "a whole number", "int")
BOOLEAN = Kind("boolean", "true or false", "bool")
STRINGS = Kind("strings", "a list of strings", "tuple[str, ...]")
FILE = Kind("file", "a file of this package or the label of a target", "Artifact")
FILES = Kind("files", "a list of files, labels and globs", "tuple[Artifact, ...]")
LABEL = Kind("label", "a label", "Dependency")
LABELS = Kind("labels", "a list of labels", "tuple[Dependency, ...]")
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

    Raises TypeError where an attribute has a name every target has already (`name`, `tags`, ...).
    """

    def decorate(implementation: Implementation) -> Rule:
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
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    related = []
    if frames:
        frame = frames[-1]
        related = [("raised here", Location(path, frame.lineno or 1, 1, frame.line or ""))]
    return AnalysisError(
        f"the rule of {label} failed: {type(error).__name__}: {error}", location=location, related=related
    )


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
        """A file (or folder) this target makes, in its own output folder."""
        package = self.label.package
        folder = f"{package}/{self.label.name}" if package else self.label.name
        return Artifact(f"{folder}/{name}" if name else folder, (platform or self.platform).name, directory)

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
        platform = next(iter(outputs.values())).platform
        self._steps.append(
            Action(
                self.label,
                mnemonic,
                platform,
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
        self._steps.append(
            Continuation(
                self.label,
                outputs[0].platform,
                tuple(inputs),
                tuple(outputs),
                functools.partial(self._continue, function),
                self.location,
            )
        )

    def _continue(self, function: Callable[[Context, Reader], None], read: Reader) -> tuple[Step, ...]:
        later = Context(
            self.label,
            vars(self.attrs),
            self._locations,
            self.location,
            self.platform,
            self._tags,
            self._resolve,
        )
        try:
            function(later, read)
        except BuildError:
            raise
        except Exception as error:
            raise rule_failure(self.label, self.location, function.__code__.co_filename, error) from error
        return later.steps()

    def steps(self) -> tuple[Step, ...]:
        """What was declared so far, in order."""
        return tuple(self._steps)
