"""A BUILD.yaml becomes a Package of Targets, with every value typed by its rule's attributes and every mistake located.

A pure function of the file's bytes, the folder listings its globs need, and the rules. Does not know whether a
reference is a source file or a target, whether it exists, or who may see it: that is the graph's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

from hidet_build.errors import (
    BuildError,
    LoadError,
    Location,
    UsageError,
    by_place,
    did_you_mean,
    error_list,
    raise_all,
)
from hidet_build.label import Label, parse_label
from hidet_build.matrix import Combination, read_matrix
from hidet_build.node import QUOTED, MapNode, Node, ScalarNode, parse
from hidet_build.platform import KINDS, Platform, canonical_name, parse_target
from hidet_build.rule import (
    BOOLEAN,
    COMMON,
    DATA,
    FILE,
    FILES,
    INTEGER,
    LABEL,
    LABELS,
    STRING,
    STRING_MAP,
    STRINGS,
    Attribute,
    Kind,
    Reference,
    Rule,
)
from hidet_build.ruleset import RuleSet
from hidet_build.workspace import BUILD_FILE, IGNORE_FILE, Workspace, parse_glob

PUBLIC = "//visibility:public"
PRIVATE = "//visibility:private"
TAGS = ("manual", "no-cache", "no-remote-cache", "local", "exclusive")
DEFAULT = "default"  # the `select` branch that is taken when no other fits
GROUP_RULE = "group"

MAX_INSTANCE_NODES = 1_000_000  # values in all instances of one matrix together

_SECTIONS = ("workspace", "package", "load", "targets")
_WILDCARDS = ("all", "all-targets", "__pkg__", "__subpackages__", "...")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.+=-]+\Z")
_PLATFORM_NAME = re.compile(rf"({'|'.join(KINDS)})-[A-Za-z0-9_.+-]+\Z")

T = TypeVar("T")
P = ParamSpec("P")


class Branch(NamedTuple):
    """One branch of a `select`: its key as written, where, and the value, typed by the attribute."""

    key: str
    location: Location
    value: Any


@dataclass(frozen=True)
class Select:
    """A value that depends on the platform; see `resolve_select`."""

    branches: tuple[Branch, ...]
    location: Location


@dataclass(frozen=True, slots=True)
class Target:
    """An instance of a rule.

    `values` has every attribute of the rule, defaults included; `locations` every key that is written, `name` too. A
    value is what its attribute's kind says, or a `Select` of such: str, int, bool, tuple[str, ...], Reference,
    tuple[Reference, ...], tuple[tuple[str, str], ...], or a dict of plain values.
    """

    label: Label
    rule: Rule
    values: Mapping[str, Any]
    locations: Mapping[str, Location]
    location: Location
    visibility: tuple[str, ...] = (PRIVATE,)
    tags: tuple[str, ...] = ()
    compatible_with: tuple[str, ...] = ()


class Settings(NamedTuple):
    """The `workspace:` section: the name, and the target to build for unless asked otherwise ("" leaves it to us)."""

    name: str
    platform: str
    location: Location


@dataclass(frozen=True)
class Package:
    """The targets of one BUILD.yaml, and what it was made of.

    `folders` were listed and `files` read, or found missing: while none of them changed, neither did the package. The
    rule modules of `loads` come on top: `RuleLoader.files`.
    """

    name: str
    path: str
    targets: Mapping[str, Target]
    default_visibility: tuple[str, ...]
    loads: tuple[Reference, ...]
    settings: Settings | None
    folders: tuple[str, ...]
    files: tuple[str, ...]


# Gives the rules it could load, and adds what is wrong with the others to the errors: `RuleLoader.load`.
LoadRules = Callable[[Sequence[Reference], list[BuildError]], RuleSet]


def load_package(
    workspace: Workspace, package: str, load_rules: LoadRules, location: Location | None = None
) -> Package:
    """The package in the folder `package`; `location` is where it was asked for.

    Raises all mistakes of the file together.
    """
    content = _read(workspace, package, location)
    reader = _Reader(workspace, package, content)
    loaded = reader.package(load_rules)
    raise_all(reader.mistakes())
    return loaded


def load_settings(workspace: Workspace) -> Settings:
    """The `workspace:` section of the root, empty where there is none; its targets are not looked at."""
    reader = _Reader(workspace, "", _read(workspace, "", None))
    settings = reader.settings()
    raise_all(reader.mistakes())
    return settings or Settings("", "", reader.root.location)


def resolve_select(select: Select, platform: Platform, attribute: str) -> Any:
    """The value of the most specific branch that fits; LoadError where none does.

    Tried in turn: the platform's name, its target string, that without the CPU's architecture, its kind, `default`.
    """
    branches = {canonical_name(branch.key): branch for branch in select.branches}
    for name in (*platform.names, DEFAULT):
        if name in branches:
            return branches[name].value
    keys = [branch.key for branch in select.branches]
    near = did_you_mean(platform.name, keys)
    raise LoadError(
        f"{attribute!r} has no branch for the platform {platform.name} ({platform.target}), only {', '.join(keys)}",
        location=select.location,
        hint=f"{near} or add `{DEFAULT}:`" if near else f"add a branch `{DEFAULT}:` or `{platform.kind}:`",
    )


def check_platform(key: str, location: Location, *words: str) -> str:
    """`key` if it can name a platform: a kind, a folder's name, a target string, a label, or one of `words`."""
    if key in words or key.startswith("//") or key in KINDS or _PLATFORM_NAME.match(key):
        return key
    if key.split()[:1] != [key]:
        parse_target(key, location)
        return key
    near = did_you_mean(key, (*KINDS, *words))
    hint = near or f"write {', '.join((*words, 'cpu', 'cuda', 'cuda-sm_90'))} or a target string like `cpu --arch=...`"
    raise LoadError(f"{key!r} is no platform", location=location, hint=hint)


def _read(workspace: Workspace, package: str, location: Location | None) -> bytes:
    why = workspace.excluded(package)
    if why:
        raise LoadError(f"no such package '//{package}': it {why}", location=location)
    path = _path(package)
    try:
        if os.path.isfile(workspace.absolute(package)):
            hint = f"to see which targets use it: hidet-build query 'rdeps(//..., {package})'"
            raise LoadError(f"no such package '//{package}': it is a file", location=location, hint=hint)
        with open(workspace.absolute(path), "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise _no_such_package(workspace, package, location) from None
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}", location=location) from None


def _path(package: str) -> str:
    return f"{package}/{BUILD_FILE}" if package else BUILD_FILE


def _no_such_package(workspace: Workspace, package: str, location: Location | None) -> LoadError:
    listing = workspace.listing(package)
    what = f"there is no folder {package!r}" if listing is None else f"there is no file {_path(package)}"
    near = [repr(f"//{name}") for name in workspace.near_packages(package)]
    hint = f"did you mean {' or '.join(near)}?" if near else None
    for name in listing.files if listing else ():
        if name.lower() in ("build.yaml", "build.yml"):
            hint = f"the file must be called {BUILD_FILE}, not {name}"
    return LoadError(f"no such package '//{package}': {what}", location=location, hint=hint)


class _Reader:
    """Reads one BUILD.yaml. Every mistake is reported and the reading goes on, so that all come in one run.

    Nothing more is said of a place that is `muted`: where the file is no good YAML, and where one instance of a
    matrix was wrong already.
    """

    def __init__(self, workspace: Workspace, package: str, content: bytes) -> None:
        self.workspace = workspace
        self.name = package
        self.errors: list[BuildError] = []
        self.root = parse(content, _path(package), self.errors)
        self.muted = {error.location for error in self.errors}
        self.has_variables = b"${" in content
        self.rules = RuleSet({})
        self.default_visibility: tuple[str, ...] = (PRIVATE,)
        self.targets: dict[str, Target] = {}
        self.folders: set[str] = set()

    def package(self, load_rules: LoadRules) -> Package:
        sections = self.sections()
        settings = self.settings()
        if "package" in sections:
            self.defaults(sections["package"])
        loads = self.each(self.elements(sections.get("load"), "a list of rule modules"), self.reference)
        self.rules = load_rules(loads, self.errors)
        for entry in self.elements(sections.get("targets"), "a list of targets"):
            for target in self.entry(entry):
                self.add(target)
        return Package(
            self.name,
            _path(self.name),
            self.targets,
            self.default_visibility,
            loads,
            settings,
            tuple(sorted(self.folders)),
            (IGNORE_FILE, _path(self.name)),
        )

    # Sections

    def sections(self) -> Mapping[str, Node]:
        if isinstance(self.root, MapNode):
            self.refuse_unknown(self.root, _SECTIONS, "section")
            return self.root.entries
        hint = f"a {BUILD_FILE} has the sections {', '.join(_SECTIONS)}"
        self.report(self.root.error(f"expected a mapping, got {self.root.describe()}", hint))
        return {}

    def settings(self) -> Settings | None:
        node = self.root.entries.get("workspace") if isinstance(self.root, MapNode) else None
        if node is None:
            return None
        if not isinstance(node, MapNode):
            self.report(node.error(f"expected a mapping, got {node.describe()}", "workspace: {name: my_kernels}"))
            return None
        self.refuse_unknown(node, ("name", "platform"), "key of `workspace`")
        name, platform = node.entries.get("name"), node.entries.get("platform")
        if name is None:
            self.report(node.error("the workspace has no name", "workspace: {name: my_kernels}"))
        target = self.string(platform)
        if platform is not None and target is not None:
            self.attempt(parse_target, target, platform.location)
        return Settings(self.string(name) or "", target or "", node.location)

    def defaults(self, node: Node) -> None:
        if not isinstance(node, MapNode):
            hint = f'package: {{visibility: ["{PUBLIC}"]}}'
            self.report(node.error(f"expected a mapping, got {node.describe()}", hint))
            return
        self.refuse_unknown(node, ("visibility",), "key of `package`")
        if "visibility" in node.entries:
            self.default_visibility = self.visibility(node.entries["visibility"])

    def refuse_unknown(self, node: MapNode, known: Sequence[str], what: str) -> None:
        for key in node.entries:
            if key not in known:
                hint = did_you_mean(key, known) or f"known are {', '.join(known)}"
                self.report(node.key_error(key, f"unknown {what}: {key!r}", hint))

    # An entry of `targets`: one target, or the instances of a matrix and their group

    def entry(self, node: Node) -> Iterator[Target]:
        if not isinstance(node, MapNode):
            hint = "a target is a mapping: {rule: py_library, name: tiles, ...}"
            self.report(node.error(f"expected a target, got {node.describe()}", hint))
        elif "matrix" in node.entries:
            yield from self.instances(node)
        else:
            if "group" in node.entries:
                self.report(node.key_error("group", "`group` names the instances of a `matrix`, and there is none"))
            target = self.instance(node, {})
            if target:
                yield target

    def instances(self, node: MapNode) -> Iterator[Target]:
        before = len(self.errors)
        combinations = read_matrix(node.entries["matrix"], self.report)
        template = node.without("matrix", "group")
        if len(combinations) * template.count() > MAX_INSTANCE_NODES:
            self.report(node.key_error("matrix", f"{len(combinations)} instances of a target this long are too much"))
        if len(self.errors) > before:
            return
        name = node.entries.get("name")
        numbered = isinstance(name, ScalarNode) and "${" not in name.text
        group = self.group_name(node, numbered)
        members: list[Target] = []
        for values in combinations:
            target = self.instance(self.named(template, values) if numbered else template, values)
            if target:
                members.append(target)
                yield target
            # One mistake in the template is one mistake, whatever its words are in the next instance.
            self.muted.update(error.location for error in self.errors[before:])
        if group and members:
            yield from self.group(group, members, node)

    def group_name(self, node: MapNode, numbered: bool) -> str | None:
        """What stands for all instances: the `name` where it has no variable, else `group`, if there is one."""
        group = node.entries.get("group")
        if not numbered:
            return self.string(group)
        if group is not None:
            hint = "give `name` variables (`${...}`), or leave `group` out"
            self.report(node.key_error("group", "`name` names the group of the instances already", hint))
        return self.string(node.entries["name"])

    def named(self, template: MapNode, values: Combination) -> MapNode:
        """The template with a name of its own: the group's, then the values' texts in the order of the matrix."""
        name = template.entries["name"]
        group = name.as_string()
        for variable, value in values.items():
            if not _PLAIN_NAME.match(value.text):
                hint = f'write the name out, with variables that fit into one: name: "{group}_${{...}}"'
                self.report(value.error(f"{value.text!r}, a value of {variable!r}, fits into no name", hint))
        text = "_".join([group, *(value.text for value in values.values())])
        entries = {**template.entries, "name": ScalarNode(name.source, name.line, name.column, text, QUOTED)}
        return MapNode(template.source, template.line, template.column, entries, template.places)

    def group(self, name: str, members: Sequence[Target], node: MapNode) -> Iterator[Target]:
        named = node.entries.get("group", node.entries["name"])
        place = named.location
        rule = self.attempt(self.rules.get, GROUP_RULE, place)
        label = self.attempt(self.label, name, named)
        if rule and label:
            references = tuple(Reference(member.label, place) for member in members)
            first = members[0]
            values = {"members": references}
            locations = {"name": place, "members": place}
            # What all of them are for, the group is for; where they differ, nothing can be said of it.
            alike = all(member.compatible_with == first.compatible_with for member in members)
            allowed = first.compatible_with if alike else ()
            yield Target(label, rule, values, locations, node.location, first.visibility, first.tags, allowed)

    def instance(self, node: MapNode, values: Mapping[str, Node]) -> Target | None:
        if self.has_variables:
            filled = self.attempt(node.substitute, values)
            if not isinstance(filled, MapNode):
                return None
            node = filled
        entries = node.entries
        for key in ("rule", "name"):
            if key not in entries:
                self.report(node.error(f"the target has no {key}", "every target has a `rule:` and a `name:`"))
        rule = self.rule(entries.get("rule"))
        name = self.string(entries.get("name"))
        label = self.attempt(self.label, name, entries["name"]) if name is not None else None
        visibility = self.visibility(entries["visibility"]) if "visibility" in entries else self.default_visibility
        tags = self.tags(entries["tags"]) if "tags" in entries else ()
        compatible_with = self.compatible_with(entries["compatible_with"]) if "compatible_with" in entries else ()
        if rule is None:
            return None
        attributes = self.attributes(node, rule, label)
        if label is None:
            return None
        return Target(label, rule, attributes, node.value_places(), node.location, visibility, tags, compatible_with)

    def rule(self, node: Node | None) -> Rule | None:
        name = self.string(node)
        if node is None or name is None:
            return None
        if name in self.rules.rules:
            return self.rules.rules[name]
        # Else the module that may define it was complained about already.
        return self.attempt(self.rules.get, name, node.location) if self.rules.complete else None

    def label(self, name: str, node: Node) -> Label:
        """The label of a target of this package; LoadError where no label or pattern could ever mean it."""
        if name in _WILDCARDS:
            raise node.error(f"{name!r} cannot be a target's name: it stands for many targets")
        try:
            if "/" not in name and not name.startswith(("@", ":", "-")) and name == name.strip():
                return parse_label(":" + name, self.name)
        except UsageError:
            pass  # said below, in the words of this place
        hint = "a name holds no '/', ':', '*', '\\' or control character, no '@' or '-' in front, no blank at an end"
        raise node.error(f"{name!r} cannot be a target's name", hint if name else None)

    def add(self, target: Target) -> None:
        known = self.targets.setdefault(target.label.name, target)
        if known is target:
            return
        place, first = target.locations["name"], known.locations["name"]
        if place == first:
            hint = "use every variable of the matrix in `name`"
            message = f"two targets of this matrix are called {target.label.name!r}"
            self.report(LoadError(message, location=place, hint=hint))
        else:
            related = [("first declared here", first)]
            message = f"there is a target {target.label.name!r} already"
            self.report(LoadError(message, location=place, related=related))

    # Attributes

    def attributes(self, node: MapNode, rule: Rule, label: Label | None) -> dict[str, Any]:
        values: dict[str, Any] = {}
        entries, known = node.entries, rule.attributes
        for key in entries:
            if key not in known and key not in COMMON:
                self.refuse_attribute(node, key, rule, label)
        for key, attribute in known.items():
            if key in entries:
                values[key] = self.selectable(entries[key], attribute)
                continue
            values[key] = dict(attribute.default) if attribute.kind is DATA else attribute.default
            if attribute.required:
                hint = f"{key}: {attribute.doc or attribute.kind.expected}"
                self.report(node.error(f"{label or 'this target'} lacks {key!r}, which {rule.name} requires", hint))
        return values

    def refuse_attribute(self, node: MapNode, key: str, rule: Rule, label: Label | None) -> None:
        known = (*rule.attributes, *COMMON)
        hint = did_you_mean(key, known) or f"{rule.name} has {', '.join(sorted(known))}"
        message = f"unknown attribute {key!r} of {rule.name} in {label or 'this target'}"
        self.report(node.key_error(key, message, hint))

    def selectable(self, node: Node, attribute: Attribute) -> Any:
        if not isinstance(node, MapNode) or "select" not in node.entries:
            return self.value(node, attribute)
        branches = node.entries["select"]
        own_data = len(node.entries) > 1 or not isinstance(branches, MapNode)
        if own_data and attribute.kind in (DATA, STRING_MAP):
            return self.value(node, attribute)  # `select` is a key like any other there
        for key in node.entries.keys() - {"select"}:
            self.report(node.key_error(key, f"`select` stands alone, without {key!r}"))
        if not isinstance(branches, MapNode) or not branches.entries:
            hint = "select: {cpu: ..., default: ...}"
            self.report(branches.error(f"expected branches by platform, got {branches.describe()}", hint))
            return None
        return self.select(branches, node.location, attribute)

    def select(self, node: MapNode, location: Location, attribute: Attribute) -> Select:
        branches: dict[str, Branch] = {}
        for key, value in node.entries.items():
            place = node.key_location(key)
            self.attempt(check_platform, key, place, DEFAULT)
            branch = Branch(key, place, self.value(value, attribute))
            first = branches.setdefault(canonical_name(key), branch)
            if first is not branch:
                related = [("first written here", first.location)]
                self.report(LoadError(f"{key!r} and {first.key!r} are the same", location=place, related=related))
        return Select(tuple(branches.values()), location)

    def value(self, node: Node, attribute: Attribute) -> Any:
        return self.attempt(_READERS[attribute.kind], self, node, attribute)

    def read_string(self, node: Node, attribute: Attribute) -> str:
        text = node.as_string()
        if attribute.choices and text not in attribute.choices:
            hint = did_you_mean(text, attribute.choices)
            raise node.error(f"expected one of {', '.join(attribute.choices)}, got {text!r}", hint)
        return text

    def read_integer(self, node: Node, attribute: Attribute) -> int:
        return node.as_int(attribute.kind.expected)

    def read_boolean(self, node: Node, attribute: Attribute) -> bool:
        return node.as_bool(attribute.kind.expected)

    def read_strings(self, node: Node, attribute: Attribute) -> tuple[str, ...]:
        found: list[str] = []
        for element in self.parts(node, attribute):
            if isinstance(element, ScalarNode) and element.text:
                found.append(element.text)
            elif isinstance(element, MapNode) and "glob" in element.entries:
                found += self.glob(element)
            else:
                found += self.each((element,), lambda one: one.as_string())
        return tuple(found)

    def read_reference(self, node: Node, attribute: Attribute) -> Reference:
        return self.reference(node, attribute.kind.expected)

    def read_references(self, node: Node, attribute: Attribute) -> tuple[Reference, ...]:
        """What is written out and matched by a glob too stands once; what is written out twice is a mistake."""
        written: dict[Label, Reference] = {}
        found: dict[Label, Reference] = {}
        for element in self.parts(node, attribute):
            if isinstance(element, MapNode) and "glob" in element.entries:
                place = element.location
                matched = [Reference(Label(self.name, path), place) for path in self.glob(element)]
                found |= {reference.label: reference for reference in matched if reference.label not in found}
                continue
            for reference in self.each((element,), self.reference):
                first = written.setdefault(reference.label, reference)
                if first is not reference:
                    message = f"{reference.label} is listed twice"
                    related = [("first listed here", first.location)]
                    self.report(LoadError(message, location=reference.location, related=related))
                found[reference.label] = reference
        return tuple(found.values())

    def read_string_map(self, node: Node, attribute: Attribute) -> tuple[tuple[str, str], ...]:
        entries = node.as_map(attribute.kind.expected)
        return tuple(zip(entries, self.each(entries.values(), lambda one: one.as_string()), strict=False))

    def read_data(self, node: Node, attribute: Attribute) -> dict[str, Any]:
        node.as_map(attribute.kind.expected)
        data: dict[str, Any] = node.as_data()
        return data

    # References and globs

    def parts(self, node: Node, attribute: Attribute) -> tuple[Node, ...]:
        """The elements of a list, or the one glob that stands in place of a list."""
        if isinstance(node, MapNode) and "glob" in node.entries:
            return (node,)
        return node.as_list(attribute.kind.expected)

    def reference(self, node: Node, expected: str = "a label") -> Reference:
        if isinstance(node, MapNode) and "select" in node.entries:
            raise node.error("`select` cannot stand inside a list", "let it choose the whole list")
        text = node.as_string(expected)
        place = node.location
        try:
            return Reference(parse_label(text, self.name, place), place)
        except UsageError as error:
            raise LoadError(error.message, location=place, hint=_label_hint(text) or error.hint) from None

    def glob(self, node: MapNode) -> tuple[str, ...]:
        """The paths it matches, from the package."""
        before = len(self.errors)
        self.refuse_unknown(node, ("glob", "exclude", "allow_empty"), "key of a glob")
        include = self.each(self.elements(node.entries["glob"], "a list of patterns"), _pattern)
        exclude = self.each(self.elements(node.entries.get("exclude"), "a list of patterns"), _pattern)
        allow_empty = "allow_empty" in node.entries and self.attempt(node.entries["allow_empty"].as_bool)
        if len(self.errors) > before:
            return ()
        found = self.workspace.glob(self.name, include, exclude)
        self.folders.update(found.folders)
        if not found.files and not allow_empty:
            without = f" but not {', '.join(exclude)}" if exclude else ""
            hint = "a glob ends where another package begins; `allow_empty: true` accepts that nothing matches"
            self.report(node.error(f"no file matches {', '.join(include) or 'an empty list'}{without}", hint))
        for path in found.files:
            self.attempt(_check_match, path, node)
        return found.files

    # What every target has

    def visibility(self, node: Node) -> tuple[str, ...]:
        found = self.each(self.elements(node, "a list of who may depend on it"), _visibility)
        for word in (PUBLIC, PRIVATE):
            if word in found and len(set(found)) > 1:
                self.report(node.error(f"{word!r} stands alone: the rest of the list would say nothing"))
        return found or (PRIVATE,)

    def tags(self, node: Node) -> tuple[str, ...]:
        return self.each(self.elements(node, "a list of strings"), _tag)

    def compatible_with(self, node: Node) -> tuple[str, ...]:
        return self.each(self.elements(node, "a list of platforms"), _platform)

    # Going on after a mistake

    def attempt(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """What the function gives, or None after its error was reported."""
        try:
            return function(*arguments, **named)
        except BuildError as error:
            self.report(error)
            return None

    def each(self, nodes: Iterable[Node], read: Callable[[Node], T]) -> tuple[T, ...]:
        """What `read` gives for each node, without those whose error was reported."""
        found: list[T] = []
        for node in nodes:
            try:
                found.append(read(node))
            except BuildError as error:
                self.report(error)
        return tuple(found)

    def elements(self, node: Node | None, expected: str) -> tuple[Node, ...]:
        return (self.attempt(node.as_list, expected) or ()) if node is not None else ()

    def string(self, node: Node | None) -> str | None:
        return self.attempt(node.as_string) if node is not None else None

    def report(self, error: BuildError) -> None:
        for one in error_list(error):
            if one.location in self.muted:
                continue
            if isinstance(one, UsageError):  # labels and targets are typed on command lines too; this one is in a file
                one = LoadError(one.message, location=one.location, hint=one.hint, related=one.related)
            self.errors.append(one)

    def mistakes(self) -> list[BuildError]:
        """What was reported, in the order of the places, nothing twice (an alias shares its node's mistakes)."""
        return sorted({(error.message, error.location): error for error in self.errors}.values(), key=by_place)


_READERS: Mapping[Kind, Callable[[_Reader, Node, Attribute], Any]] = {
    STRING: _Reader.read_string,
    INTEGER: _Reader.read_integer,
    BOOLEAN: _Reader.read_boolean,
    STRINGS: _Reader.read_strings,
    FILE: _Reader.read_reference,
    FILES: _Reader.read_references,
    LABEL: _Reader.read_reference,
    LABELS: _Reader.read_references,
    STRING_MAP: _Reader.read_string_map,
    DATA: _Reader.read_data,
}


def _label_hint(text: str) -> str | None:
    """What was meant by some usual ways to misspell a label."""
    meant = text.rstrip("/").removeprefix("./")
    if ":" in text and not text.startswith(("/", ":", "@")):
        meant = f"//{meant}"
    try:
        parse_label(meant, "")
    except UsageError:
        return None
    return f"did you mean {meant!r}? A name holds no ':'" if ":" in meant else f"did you mean {meant!r}?"


def _pattern(node: Node) -> str:
    text = node.as_string("a pattern")
    parse_glob(text, node.location)
    return text


def _check_match(path: str, node: Node) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise node.error(f"the glob matches {path!a}, whose name is not UTF-8", "rename the file") from None
    try:
        parse_label(":" + path, "")
    except UsageError as error:
        why = error.message.rpartition(": ")[2]
        hint = "rename the file, or leave it out with `exclude:`"
        raise node.error(f"the glob matches {path!r}, which no label can name: {why}", hint) from None


def _visibility(node: Node) -> str:
    text = node.as_string()
    if text in (PUBLIC, PRIVATE):
        return text
    package, _, who = text.removeprefix("//").partition(":")
    if text.startswith("//visibility:") or who not in ("__pkg__", "__subpackages__") or not text.startswith("//"):
        hint = did_you_mean(text, (PUBLIC, PRIVATE)) or (
            f"write {PUBLIC}, {PRIVATE}, //some/package:__pkg__ or //some/package:__subpackages__"
        )
        raise node.error(f"{text!r} says nobody who may depend on it", hint)
    parse_label(f"//{package}:{who}", "", node.location)
    return text


def _tag(node: Node) -> str:
    text = node.as_string()
    spelt = text.lower().replace("_", "-")
    if spelt in TAGS and spelt != text:
        raise node.error(f"the tag {text!r} is spelt {spelt!r}")
    return text


def _platform(node: Node) -> str:
    return check_platform(node.as_string(), node.location)
