"""A `matrix:` becomes its combinations of values. Knows nothing of the target they are filled into.

`exclude` takes away every combination that agrees with one of its mappings, whole or partial; then each mapping of
`include` adds one combination and names every variable. Values are told apart by their text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

from hidet_build.errors import BuildError, LoadError, did_you_mean, error_list
from hidet_build.node import MapNode, Node, ScalarNode

# A matrix multiplies: this is what a few lines may become.
MAX_COMBINATIONS = 2_000

_RESERVED = ("exclude", "include")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

Combination = Mapping[str, ScalarNode]
Report = Callable[[BuildError], None]


def read_matrix(node: Node, report: Report) -> tuple[Combination, ...]:
    """The combinations, in the order of the file, each with every variable in the order of the keys.

    There are none where a mistake was reported.
    """
    if not isinstance(node, MapNode):
        report(node.error(f"expected a mapping, got {node.describe()}", "matrix: {tile: [64, 128]}"))
        return ()
    errors: list[BuildError] = []
    combinations = _combinations(node, errors.append)
    if not combinations and not errors:
        errors.append(node.error("the matrix leaves no combination of values"))
    for error in errors:
        report(error)
    return () if errors else combinations


def _combinations(node: MapNode, report: Report) -> tuple[Combination, ...]:
    variables = {
        name: _values(name, value, node, report) for name, value in node.entries.items() if name not in _RESERVED
    }
    excluded = _mappings(node.entries.get("exclude"), report)
    included = _mappings(node.entries.get("include"), report)
    if not variables and included:
        variables = dict.fromkeys(included[0].entries, ())
    count = prod(len(values) for values in variables.values()) + len(included)
    if count > MAX_COMBINATIONS:
        report(node.error(f"a matrix of {count} combinations: at most {MAX_COMBINATIONS} are allowed"))
        return ()
    # No variables have one empty product, which is no combination.
    combinations = [dict(zip(variables, values, strict=True)) for values in product(*variables.values()) if values]
    left = _exclude(combinations, excluded, variables, report)
    return tuple(_include(left, included, tuple(variables), report))


def _values(name: str, node: Node, matrix: MapNode, report: Report) -> tuple[ScalarNode, ...]:
    if not _NAME.match(name):
        hint = "letters, digits and underscores, as in `tile_m`"
        report(matrix.key_error(name, f"{name!r} cannot be the name of a matrix variable", hint))
    try:
        elements = node.as_list("a list of values")
    except LoadError as error:
        report(error)
        return ()
    if not elements:
        report(node.error(f"the matrix variable {name!r} has no values"))
    found: dict[str, ScalarNode] = {}
    for element in elements:
        value = _scalar(element, report)
        if value is None:
            continue
        first = found.setdefault(value.text, value)
        if first is not value:
            related = [("first listed here", first.location)]
            report(LoadError(f"the value {value.text!r} is listed twice", location=value.location, related=related))
    return tuple(found.values())


def _scalar(node: Node, report: Report) -> ScalarNode | None:
    if not isinstance(node, ScalarNode):
        report(node.error(f"expected a single value, got {node.describe()}", "a matrix variable lists plain values"))
        return None
    try:
        node.as_data()
    except BuildError as error:
        for one in error_list(error):
            report(one)
        return None
    return node


def _mappings(node: Node | None, report: Report) -> tuple[MapNode, ...]:
    if node is None:
        return ()
    try:
        elements = node.as_list("a list of mappings")
    except LoadError as error:
        report(error)
        return ()
    for element in elements:
        if not isinstance(element, MapNode):
            report(element.error(f"expected a mapping of variables to values, got {element.describe()}"))
    return tuple(element for element in elements if isinstance(element, MapNode))


def _exclude(
    combinations: Sequence[Combination],
    excluded: Sequence[MapNode],
    variables: Mapping[str, Sequence[ScalarNode]],
    report: Report,
) -> list[Combination]:
    left = list(combinations)
    for entry in excluded:
        values = _entry(entry, tuple(variables), report)
        if values is None:
            continue
        never = [name for name, value in values.items() if value.text not in {known.text for known in variables[name]}]
        for name in never:
            texts = [known.text for known in variables[name]]
            hint = did_you_mean(values[name].text, texts) or f"its values are {', '.join(texts)}"
            report(values[name].error(f"{name!r} is never {values[name].text!r}: this excludes nothing", hint))
        if not values:
            report(entry.error("this excludes everything", "name the variables and values to leave out"))
        left = [combination for combination in left if never or not _agrees(combination, values)]
    return left


def _agrees(combination: Combination, values: Combination) -> bool:
    return all(combination[name].text == value.text for name, value in values.items())


def _include(
    combinations: Sequence[Combination], included: Sequence[MapNode], variables: Sequence[str], report: Report
) -> list[Combination]:
    found = {_texts(combination): combination for combination in combinations}
    for entry in included:
        values = _entry(entry, variables, report)
        if values is None:
            continue
        missing = [name for name in variables if name not in entry.entries]
        if missing:
            report(entry.error(f"an included combination names every variable; missing: {', '.join(missing)}"))
            continue
        if len(values) < len(variables):
            continue
        ordered = {name: values[name] for name in variables}
        if _texts(ordered) in found:
            report(entry.error("this combination is there already"))
        found[_texts(ordered)] = ordered
    return list(found.values())


def _texts(combination: Combination) -> tuple[str, ...]:
    return tuple(value.text for value in combination.values())


def _entry(entry: MapNode, variables: Sequence[str], report: Report) -> dict[str, ScalarNode] | None:
    """The values of one mapping of `exclude` or `include`; None where a name is unknown."""
    unknown = [name for name in entry.entries if name not in variables]
    for name in unknown:
        hint = did_you_mean(name, variables) or f"the variables are {', '.join(variables)}"
        report(entry.key_error(name, f"the matrix has no variable {name!r}", hint))
    values = {name: _scalar(value, report) for name, value in entry.entries.items()}
    return None if unknown else {name: value for name, value in values.items() if value is not None}
