"""What a query asks about: loads the packages that words name, and makes a table of their targets and sources.

Knows packages and the target graph; not the query language, nor what was asked. Brings yaml and networkx.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from hidet_build.errors import BuildError, Location, QueryError, error_list
from hidet_build.files import Fingerprint, mark
from hidet_build.graph import TargetGraph, load, once
from hidet_build.label import Label, Pattern, parse_pattern
from hidet_build.loader import Loader
from hidet_build.package import Select, Target
from hidet_build.plan import YOUNG, listing
from hidet_build.query import SOURCE_FILE, Word, file_paths
from hidet_build.rule import Reference
from hidet_build.ruleset import built_in_folder
from hidet_build.table import Node
from hidet_build.workspace import Workspace

_TICK_NS = 100_000_000  # the clock of a file system may be that much behind ours


class Survey:
    """The packages that words name, and what they lead to."""

    def __init__(self, workspace: Workspace, package: str) -> None:
        self._began = time.time_ns()
        self._workspace = workspace
        self._package = package
        self._loader = Loader(workspace)
        self.packages: dict[str, None] = {}  # those that are there with all their targets
        self.below: dict[str, None] = {}  # folders below which all packages are

    def nodes(self, words: Sequence[Word], keep_going: bool) -> tuple[dict[Label, Node], list[BuildError]]:
        """All nodes that the words can be about, and with `keep_going` the errors of packages that were passed over."""
        errors: list[BuildError] = []
        roots: dict[Label, None] = {}
        files: list[Label] = []
        for word in words:
            file = _file(word.text, self._package, self._workspace)
            if file is not None:
                files.append(file)
            pattern = Pattern("", "target", *file, False, False) if file else _pattern(word, self._package)
            for name in self._names(pattern):
                try:
                    roots.update(dict.fromkeys(self._targets(pattern, name, file is not None)))
                except BuildError as error:
                    if not keep_going:
                        raise _no_such_file(word, self._package, self._workspace) or _at(word, error) from None
                    errors.append(error)
        graph = _load(roots, self._loader, self._workspace, errors if keep_going else None)
        nodes = _nodes(graph, files)
        self._loader.forget()
        return nodes, once(errors)

    def _names(self, pattern: Pattern) -> Sequence[str]:
        """The packages that a pattern needs loaded."""
        if pattern.kind != "recursive":
            return (pattern.package,)
        self.below[pattern.package] = None
        return self._workspace.walk_packages(pattern.package).packages

    def _targets(self, pattern: Pattern, package: str, may_be_file: bool) -> Iterable[Label]:
        """The targets of a package that a pattern is about: where it names none that is there, all, for a hint."""
        targets = self._loader.package(package, None).targets
        if pattern.kind == "target" and (may_be_file or pattern.name in targets):
            return (target.label for name, target in targets.items() if name == pattern.name)
        self.packages[package] = None
        return (target.label for target in targets.values())

    def evidence(self) -> tuple[dict[str, Fingerprint | None], dict[str, tuple[str, ...]]]:
        """What it rests on; see the function."""
        return evidence(self._loader, self._workspace, self._began)


def evidence(
    loader: Loader, workspace: Workspace, began: int
) -> tuple[dict[str, Fingerprint | None], dict[str, tuple[str, ...]]]:
    """What was read since `began`: files by their marks, folders by their names.

    What changed since then is noted so that it never holds.
    """
    read = {workspace.absolute(path) for path in (*loader.files(), *workspace.looked_into())}
    marks = {path: mark(path) for path in sorted({*read, *_own_sources()})}
    young = {path for path, seen in marks.items() if seen and max(seen[:2]) > began - _TICK_NS}
    folders = {workspace.absolute(folder): listing(workspace.absolute(folder)) for folder in workspace.listed()}
    # Listed again after that: what is there now and was not when we looked, or the other way round, is no evidence.
    again = Workspace(workspace.root, workspace.output_base, workspace.symlink_prefix)
    if any(workspace.listing(folder) != again.listing(folder) for folder in workspace.listed()):
        young.update(marks)
    return {path: YOUNG if path in young else seen for path, seen in marks.items()}, folders


def _own_sources() -> Iterator[str]:
    """Our own files: another version of this program loads anew."""
    for top in (os.path.dirname(os.path.abspath(__file__)), built_in_folder()):
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names if name.endswith(".py"))
    yield sys.executable


def _file(text: str, package: str, workspace: Workspace) -> Label | None:
    """The source file that a word names."""
    for path in file_paths(text, package):
        owner = workspace.owner(path)
        if owner is not None and os.path.isfile(workspace.absolute(path)) and not workspace.excluded(path):
            return Label(owner, path.removeprefix(f"{owner}/"))
    return None


def _no_such_file(word: Word, package: str, workspace: Workspace) -> QueryError | None:
    """The error for a word that is nearly the path of a file; None where it is not."""
    if "/" not in word.text or word.text.startswith("//") or ":" in word.text:
        return None
    paths = dict.fromkeys([f"{package}/{word.text}".lstrip("/"), word.text])
    if any(os.path.isdir(workspace.absolute(path)) for path in paths):
        return None
    near = [
        file
        for path in paths
        for file in workspace.near_files(path)
        if not workspace.excluded(file)
        and (os.path.basename(file) == os.path.basename(path) or get_close_matches(path, [file], cutoff=0.75))
    ]
    if not near:
        return None
    return QueryError(
        f"{word.text!r}: there is no such file and no such package",
        location=word.place,
        hint=f"did you mean {near[0]!r}?",
    )


def _pattern(word: Word, package: str) -> Pattern:
    try:
        return parse_pattern(word.text, package)
    except BuildError as error:
        raise _at(word, error) from None


def _at(word: Word, error: BuildError) -> BuildError:
    """The error at the word, where it has no better place."""
    return (
        error
        if error.location or len(error_list(error)) > 1
        else QueryError(error.message, location=word.place, hint=error.hint)
    )


def _load(roots: Iterable[Label], loader: Loader, workspace: Workspace, errors: list[BuildError] | None) -> TargetGraph:
    """The graph of these targets; given a list for errors, without those that cannot be loaded."""

    def loaded(labels: Iterable[Label]) -> TargetGraph:
        return load([(label, None) for label in labels], loader.package, workspace, None)

    try:
        return loaded(roots)
    except BuildError:
        if errors is None:
            raise
    sound = []
    for label in roots:
        try:
            loaded([label])
            sound.append(label)
        except BuildError as error:
            errors += error_list(error)
    return loaded(sound)


def _nodes(graph: TargetGraph, files: Iterable[Label]) -> dict[Label, Node]:
    """What the query can name: the targets, the sources they name, and `files` that it names itself."""
    sources = [label for label in (*graph.sources, *files) if label not in graph.targets]
    nodes = {label: Node(SOURCE_FILE, (), Location(label.path, 1, 1), {}) for label in sources}
    for label, target in graph.targets.items():
        attributes = {name: _text(value) for name, value in _attributes(target).items()}
        nodes[label] = Node(
            f"{target.rule.name} rule", tuple(map(str, graph.needs(label))), target.location, attributes
        )
    return nodes


def _attributes(target: Target) -> dict[str, object]:
    """Those of the rule, and those that every target has."""
    common = {
        "name": target.label.name,
        "tags": target.tags,
        "visibility": target.visibility,
        "compatible_with": target.compatible_with,
    }
    return {**common, **target.values}


def _text(value: object) -> str | tuple[str, ...]:
    """An attribute's value as a query sees it; of a `select`, what any of its branches would give."""
    if isinstance(value, Select):
        found = [_text(branch.value) for branch in value.branches]
        return tuple(dict.fromkeys(text for one in found for text in ((one,) if isinstance(one, str) else one)))
    if isinstance(value, Reference):
        return str(value.label)
    if isinstance(value, tuple):
        return tuple(str(one.label) if isinstance(one, Reference) else str(one) for one in value)
    return str(value)
