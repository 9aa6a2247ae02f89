"""The walls of the house: who may import what. The table is that of hidet_build/README.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx

HOUSE = Path(__file__).parent.parent / "hidet_build"
RULES = Path(__file__).parent.parent / "rules"
# One library, one room.
ROOMS_OF_LIBRARIES = {
    "yaml": {"node"},
    "networkx": {"graph"},
    "filelock": {"lock"},
    "google": {"messages"},
}
# And one program: what takes seconds to import is imported by the worker alone.
HEAVY = {"hidet", "torch", "numpy"}
LOADING = {"analysis", "graph", "selection", "loader", "package", "matrix", "ruleset", "node", "workspace", "survey"}
RUNNING = {"engine", "performer", "local", "execution", "state", "cache.base", "cache.disk", "worker.pool"}
RUNNING |= {"restoration", "worker.lasting"}


def rooms() -> dict[str, ast.Module]:
    """Every module of the package by its name inside it."""
    return {
        ".".join(path.relative_to(HOUSE).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for path in HOUSE.rglob("*.py")
        if path.name != "__init__.py"
    }


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules a file imports when it runs, in dotted form; of ours, one name deeper than `from` says."""
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_library_one_room() -> None:
    """A library is imported in the room that is there for it and nowhere else."""
    intruders = {
        (room, library)
        for room, tree in rooms().items()
        for library in {name.partition(".")[0] for name in imported(tree)}
        if room not in ROOMS_OF_LIBRARIES.get(library, {room}) or (library in HEAVY and not room.startswith("worker."))
    }

    assert set() == intruders


def test_rooms_import_downward() -> None:
    """No room imports, over any number of others, itself."""
    house = rooms()
    graph = networkx.DiGraph()
    for room, tree in house.items():
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        for name in imported(ast.Module(body=top, type_ignores=[])):
            target = name.removeprefix("hidet_build.")
            if name.startswith("hidet_build.") and target in house:
                graph.add_edge(room, target)

    assert [] == list(networkx.simple_cycles(graph))


def test_loading_and_running_do_not_meet() -> None:
    """The rooms of loading and those of running know nothing of each other."""
    house = rooms()
    meetings = {
        (room, name)
        for room in LOADING | RUNNING
        for name in (one.removeprefix("hidet_build.") for one in imported(house[room]))
        if name in (RUNNING if room in LOADING else LOADING)
    }

    assert set() == meetings


def test_rules_use_the_public_api() -> None:
    """The built-in rules import what a workspace's own rules can import: the rule API and each other."""
    allowed = ("hidet_build.rule", "hidet_build.rules")
    strangers = {
        (path.name, name)
        for path in RULES.glob("*.py")
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith("hidet_build") and not name.startswith(allowed)
    }

    assert set() == strangers
