"""The `query` verb: loads what an expression names and evaluates it. Needs no compiler, no hidet, no platform."""

from __future__ import annotations

import os

from hidet_build.errors import BuildError, Location
from hidet_build.graph import TargetGraph, load
from hidet_build.label import Label, parse_pattern
from hidet_build.loader import Loader
from hidet_build.query import SOURCE_FILE, Node, NodeTable, evaluate, parse, render, words
from hidet_build.rule import Reference
from hidet_build.workspace import Workspace


def inquire(
    root: str, package: str, text: str, output: str, output_base: str, symlink_prefix: str, keep_going: bool
) -> tuple[str, list[BuildError]]:
    """The answer as text, and with `keep_going` the errors of packages that were passed over.

    Raises QueryError for the expression, LoadError for what it names.
    """
    expression = parse(text)
    workspace = Workspace(root, output_base, symlink_prefix)
    loader = Loader(workspace)
    errors: list[BuildError] = []
    roots: dict[Label, Location | None] = {}
    for word in words(expression):
        for name in _packages(word, package, workspace):
            try:
                roots.update(dict.fromkeys(target.label for target in loader.package(name, None).targets.values()))
            except BuildError as error:
                if not keep_going:
                    raise
                errors.append(error)
    graph = load([(label, None) for label in roots], loader.package, workspace, None)
    table = NodeTable(_nodes(graph), package)
    return render(evaluate(expression, table), table, output), errors


def _packages(word: str, package: str, workspace: Workspace) -> list[str]:
    """The packages a word of the expression needs loaded."""
    path = word.removeprefix("//")
    if os.path.isfile(workspace.absolute(path)) and ":" not in word:
        owner = workspace.owner(path)
        return [] if owner is None else [owner]
    pattern = parse_pattern(word, package)
    if pattern.kind == "recursive":
        return list(workspace.walk_packages(pattern.package).packages)
    return [pattern.package]


def _nodes(graph: TargetGraph) -> dict[Label, Node]:
    nodes = {
        label: Node(
            f"{target.rule.name} rule",
            tuple(map(str, graph.needs(label))),
            target.location,
            {name: _text(value) for name, value in target.values.items()},
        )
        for label, target in graph.targets.items()
    }
    nodes.update({label: Node(SOURCE_FILE, (), Location(label.path, 1, 1), {}) for label in graph.sources})
    return nodes


def _text(value: object) -> str | tuple[str, ...]:
    """An attribute's value as a query sees it."""
    if isinstance(value, Reference):
        return str(value.label)
    if isinstance(value, tuple):
        return tuple(str(one.label) if isinstance(one, Reference) else str(one) for one in value)
    return str(value)
