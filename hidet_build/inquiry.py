"""The `query` verb: evaluates an expression on what it names. Needs no compiler, no hidet, no platform.

What the packages declare is kept, so that the next query about the same words loads none while nothing has changed:

    <output_base>/.state/queries.v1/<CRC of the words>     a marshalled dictionary: request, files, folders, rows,
                                                           attributes; see `_save`
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from hidet_build import quick
from hidet_build.errors import BuildError
from hidet_build.query import NodeTable, Word, evaluate, file_paths, parse, render, words

_UNREADABLE = (OSError, ValueError, EOFError, TypeError, LookupError)


def inquire(
    root: str, package: str, text: str, output: str, output_base: str, symlink_prefix: str, keep_going: bool
) -> tuple[str, list[BuildError]]:
    """The answer as text, and with `keep_going` the errors of packages that were passed over.

    Raises QueryError for the expression, LoadError for what it names.
    """
    expression = parse(text)
    named = tuple(words(expression))
    request = (root, package, output_base, symlink_prefix, sys.version, _meant(named, root, package))
    place = f"{output_base}/.state/queries.v1/{crc32(repr(request).encode()):08x}"
    errors: list[BuildError] = []
    table = _recall(place, request, package)
    if table is None:
        # yaml and networkx, only where packages must be loaded
        from hidet_build.survey import Survey
        from hidet_build.workspace import Workspace

        survey = Survey(Workspace(root, output_base, symlink_prefix), package)
        nodes, errors = survey.nodes(named, keep_going)
        table = NodeTable(nodes, package)
        if not errors and os.path.isdir(f"{output_base}/.state"):  # a query alone makes no folders
            _save(place, request, table, *survey.evidence())
    return render(evaluate(expression, table), table, output), errors


def _meant(named: Sequence[Word], root: str, package: str) -> tuple[tuple[Any, ...], ...]:
    """The words, and for each whether there are files it can mean."""
    return tuple(
        sorted(
            {
                (word.text, *(os.path.isfile(f"{root}/{path}") for path in file_paths(word.text, package)))
                for word in named
            }
        )
    )


def _recall(place: str, request: tuple[Any, ...], package: str) -> NodeTable | None:
    """The table that was saved for these words, if what it rests on is the same."""
    try:
        with open(place, "rb") as file:
            saved = marshal.loads(file.read())
        if saved["request"] != request or not quick.unchanged(saved["files"], saved["folders"]):
            return None
        return NodeTable.of_rows(saved["rows"], saved["attributes"], package)
    except _UNREADABLE:
        return None


def _save(
    place: str, request: tuple[Any, ...], table: NodeTable, files: dict[str, Any], folders: dict[str, Any]
) -> None:
    """Keep a table; few queries ask for attributes, so they are marshalled by themselves."""
    rows, attributes = table.rows()
    marked = {path: (list(names), quick.mark_of_folder(path, list(names))) for path, names in folders.items()}
    saved = {"request": request, "files": files, "folders": marked, "rows": rows, "attributes": attributes}
    quick.write(place, marshal.dumps(saved))
