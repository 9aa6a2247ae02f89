"""The table of targets and source files that a query is asked of, and its plain form. Knows no YAML and no rule.

Nodes are numbers in the order of their labels, and edges are columns of numbers, so that a table of a large workspace
is read and walked in milliseconds. The plain form has two parts, both for marshal:

    what every query needs      labels (one text), names (of the kinds), kinds, needs and users (the edges, both ways)
    what few ask for            places (path, line, column) and attributes, by node, each marshalled
"""

from __future__ import annotations

import itertools
import marshal
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from hidet_build.errors import Location, QueryError, UsageError, did_you_mean
from hidet_build.label import Label, Pattern, parse_pattern
from hidet_build.query import SOURCE_FILE

_FILE = 0  # the number of the kind of source files


class Node(NamedTuple):
    """All a query can learn of one node. Labels among the attributes' values are absolute."""

    kind: str
    dependencies: tuple[str, ...] = ()
    location: Location | None = None
    attributes: Mapping[str, str | tuple[str, ...]] = {}


class NodeTable:
    """The plain QueryGraph. `package` is where relative patterns start; `details` gives what few ask for."""

    def __init__(self, columns: Mapping[str, Any], details: Callable[[], Mapping[str, bytes]], package: str) -> None:
        self._labels: list[str] = columns["labels"].split("\n") if columns["labels"] else []
        self._names: Sequence[str] = columns["names"]
        self._kinds: list[int] = _numbers(columns["kinds"])
        self._needs = _Edges(columns["needs"])
        self._users = _Edges(columns["users"])
        self._details = details
        self._places: Sequence[tuple[Any, ...] | None] | None = None
        self._attributes: Sequence[Mapping[str, str | tuple[str, ...]]] | None = None
        self._package = package

    @classmethod
    def of(cls, nodes: Mapping[Label, Node], package: str = "") -> NodeTable:
        """The table of these nodes; what only is depended on is a source file."""
        columns, details = plain(nodes)
        return cls(columns, lambda: details, package)

    def __len__(self) -> int:
        return len(self._labels)

    def match(self, pattern: str) -> Collection[int]:
        """See QueryGraph. Like Bazel's, wildcards do not leave out targets with the tag `manual`."""
        for path in (f"{self._package}/{pattern}", pattern):
            file = self.file(path.removeprefix("/"))
            if file is not None:
                return [file]
        try:
            wanted = parse_pattern(pattern, self._package)
        except UsageError as error:
            raise QueryError(error.message, hint=error.hint) from error
        if wanted.negative:
            raise QueryError(
                f"{pattern!r} takes targets away", hint=f"put blanks around the minus: ... - {pattern[1:]}"
            )
        if wanted.kind == "target":
            node = self._find(str(Label(wanted.package, wanted.name)))
            return [node] if node is not None else self._refuse(wanted)
        covered = [node for span in self._spans(wanted) for node in span]
        if not covered and wanted.package:
            self._refuse(wanted)
        targets = [node for node in covered if self._kinds[node] != _FILE]
        return targets + self._named(targets, covered) if wanted.files else targets

    def node(self, label: str) -> int:
        """See QueryGraph; KeyError where the label is in no table."""
        node = self._find(label)
        if node is None:
            raise KeyError(label)
        return node

    def label(self, node: int) -> str:
        """See QueryGraph."""
        return self._labels[node]

    def dependencies(self, node: int) -> Sequence[int]:
        """See QueryGraph."""
        return self._needs.of(node)

    def dependents(self, node: int) -> Sequence[int]:
        """See QueryGraph."""
        return self._users.of(node)

    def kind(self, node: int) -> str:
        """See QueryGraph."""
        return self._names[self._kinds[node]]

    def location(self, node: int) -> Location | None:
        """See QueryGraph."""
        if self._places is None:
            self._places = marshal.loads(self._details()["places"])
        place = self._places[node]
        return Location(*place) if place else None

    def attribute(self, node: int, name: str) -> str | tuple[str, ...] | None:
        """See QueryGraph."""
        if self._attributes is None:
            self._attributes = marshal.loads(self._details()["attributes"])
        return self._attributes[node].get(name)

    def file(self, path: str) -> int | None:
        """The source file of this path from the root."""
        end = len(path)
        while end >= 0:
            end = path.rfind("/", 0, end)
            node = self._find(f"//{path[: max(end, 0)]}:{path[end + 1 :]}")
            if node is not None and self._kinds[node] == _FILE:
                return node
        return None

    def has_target(self, label: Label) -> bool:
        """Whether there is such a target."""
        node = self._find(str(label))
        return node is not None and self._kinds[node] != _FILE

    def has_any(self, pattern: Pattern) -> bool:
        """Whether there is anything in a package, or below it."""
        return any(self._spans(pattern))

    def _find(self, label: str) -> int | None:
        place = bisect_left(self._labels, label)
        return place if place < len(self._labels) and self._labels[place] == label else None

    def _spans(self, wanted: Pattern) -> Iterator[range]:
        """The nodes of a package, or of all packages below one: as labels are sorted, they stand together."""
        if wanted.kind == "recursive" and not wanted.package:
            yield range(len(self._labels))
            return
        for start in (f"//{wanted.package}:", f"//{wanted.package}/")[: 2 if wanted.kind == "recursive" else 1]:
            end = start[:-1] + chr(ord(start[-1]) + 1)
            yield range(bisect_left(self._labels, start), bisect_left(self._labels, end))

    def _named(self, targets: Iterable[int], covered: Collection[int]) -> list[int]:
        """The source files among `covered` that `targets` name: what others name there depends on what was loaded."""
        named = {file for target in targets for file in self.dependencies(target) if self._kinds[file] == _FILE}
        return sorted(named.intersection(covered))

    def _refuse(self, wanted: Pattern) -> NoReturn:
        labels = [Label(*label[2:].split(":")) for label in self._labels]
        packages = sorted({label.package for label in labels})
        if wanted.package not in packages:
            what = "no package is below" if wanted.kind == "recursive" else "there is no package"
            hint = did_you_mean(f"//{wanted.package}", [f"//{package}" for package in packages if package])
            raise QueryError(f"{wanted.text!r}: {what} //{wanted.package}", hint=hint)
        names = [label.name for label in labels if label.package == wanted.package]
        raise QueryError(
            f"{wanted.text!r}: the package //{wanted.package} has no target and no file {wanted.name!r}",
            hint=did_you_mean(wanted.name, names),
        )


class _Edges:
    """For each node the nodes at its edges: one list of all of them, and where each node's begin."""

    def __init__(self, columns: tuple[bytes, bytes]) -> None:
        self._starts, self._ends = _numbers(columns[0]), _numbers(columns[1])

    def of(self, node: int) -> list[int]:
        return self._ends[self._starts[node] : self._starts[node + 1]]


def plain(nodes: Mapping[Label, Node]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The two parts of the plain form: see the top of this file."""
    known = {str(label): node for label, node in nodes.items()}
    lost = {needed for node in known.values() for needed in node.dependencies} - known.keys()
    labels = sorted([*known, *lost])
    found = [known.get(label) or Node(SOURCE_FILE) for label in labels]
    number = {label: place for place, label in enumerate(labels)}
    names = list(dict.fromkeys([SOURCE_FILE, *(node.kind for node in found)]))
    code = {name: place for place, name in enumerate(names)}
    needs = [[number[needed] for needed in node.dependencies] for node in found]
    users: list[list[int]] = [[] for _ in labels]
    for node, needed in enumerate(needs):
        for one in needed:
            users[one].append(node)
    columns = {
        "labels": "\n".join(labels),
        "names": names,
        "kinds": _packed([code[node.kind] for node in found]),
        "needs": _edges(needs),
        "users": _edges(users),
    }
    places = [node.location and (node.location.path, node.location.line, node.location.column) for node in found]
    attributes = [dict(node.attributes) for node in found]
    return columns, {"places": marshal.dumps(places), "attributes": marshal.dumps(attributes)}


def _edges(lists: Sequence[Sequence[int]]) -> tuple[bytes, bytes]:
    starts = itertools.accumulate(map(len, lists), initial=0)
    return _packed(starts), _packed(itertools.chain.from_iterable(lists))


def _packed(numbers: Iterable[int]) -> bytes:
    return array("I", numbers).tobytes()


def _numbers(packed: bytes) -> list[int]:
    return memoryview(packed).cast("I").tolist()
