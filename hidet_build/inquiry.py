"""The `query` verb: evaluates an expression on what it names. Needs no compiler, no hidet, no platform.

What the packages declare is kept, so that no package is loaded for a query about what was loaded before, in other words
or in none of these, while nothing has changed:

    <output_base>/.state/queries.v2/<CRC of the words>     8 bytes, how long the head is
                                                           head, a marshalled dictionary: request, files, folders (as
                                                           in quick), packages, below (see `Scope`), columns (table)
                                                           details, a marshalled dictionary: see table
                                    widest                 the largest of them, for all words
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from hidet_build import quick
from hidet_build.errors import BuildError
from hidet_build.label import Label, parse_pattern
from hidet_build.query import OUTPUTS, Word, evaluate, file_paths, parse, render, words
from hidet_build.settings import output_base
from hidet_build.table import NodeTable, plain

_UNREADABLE = (OSError, ValueError, EOFError, TypeError, LookupError)
_WIDEST = "widest"


class Question(NamedTuple):
    """A query, from the folder `package` of the workspace in `root`."""

    root: str
    package: str
    text: str
    output: str
    output_base: str
    symlink_prefix: str = "hidet-"


def answer(arguments: Sequence[str]) -> int | None:
    """Answer the command line of a query if that can be done at once: print, return 0.

    Else None: whatever there is to say, about flags and mistakes too, is said by whoever reads command lines.
    """
    try:
        question = _question(arguments)
        if question is None:
            return None
        expression = parse(question.text)
        table = _Kept(question, tuple(words(expression))).recall()
        if table is None:
            return None
        text = render(evaluate(expression, table), table, question.output)
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.stdout.write(text)
        sys.stdout.flush()
    except (BuildError, OSError):
        return None
    return 0


def _question(arguments: Sequence[str]) -> Question | None:
    """What a command line asks that has, beside the expression, at most `--output`."""
    output, told, asked = OUTPUTS[0], list(arguments), []
    while told:
        word = told.pop(0)
        if word == "--output" and told:
            output = told.pop(0)
        elif word.startswith("--output="):
            output = word.partition("=")[2]
        elif word.startswith("-"):
            return None
        else:
            asked.append(word)
    here = os.getcwd()
    root = quick.find_root(here)
    if root is None or output not in OUTPUTS or not asked:
        return None
    package = os.path.relpath(here, root) if here != root else ""
    return Question(root, package, " ".join(asked), output, output_base(None, os.environ, root))


def inquire(question: Question, keep_going: bool) -> tuple[str, list[BuildError]]:
    """The answer as text, and with `keep_going` the errors of packages that were passed over.

    Raises QueryError for the expression, LoadError for what it names.
    """
    expression = parse(question.text)
    named = tuple(words(expression))
    kept = _Kept(question, named)
    table = kept.recall()
    errors: list[BuildError] = []
    if table is None:
        table, errors = _surveyed(question, named, keep_going, kept)
    return render(evaluate(expression, table), table, question.output), errors


def _surveyed(
    question: Question, named: Sequence[Word], keep_going: bool, kept: _Kept
) -> tuple[NodeTable, list[BuildError]]:
    # yaml and networkx, only where packages must be loaded
    from hidet_build.survey import Survey
    from hidet_build.workspace import Workspace

    survey = Survey(Workspace(question.root, question.output_base, question.symlink_prefix), question.package)
    nodes, errors = survey.nodes(named, keep_going)
    columns, details = plain(nodes)
    if not errors and os.path.isdir(f"{question.output_base}/.state"):  # a query alone makes no folders
        kept.save(Scope(tuple(survey.packages), tuple(survey.below)), columns, details, *survey.evidence())
    return NodeTable(columns, lambda: details, question.package), errors


class Scope(NamedTuple):
    """What a table has all targets of: packages, and whatever is `below` a folder. Of other targets it has some."""

    packages: Sequence[str]
    below: Sequence[str]

    def covers(self, word: Word, table: NodeTable, question: Question) -> bool:
        """Whether the table says of a word what one would say that was made for it."""
        paths = file_paths(word.text, question.package)
        files = [path for path in paths if os.path.isfile(f"{question.root}/{path}")]
        if files and (table.file(files[0]) is not None or ":" not in word.text):
            return table.file(files[0]) is not None
        try:
            pattern = parse_pattern(word.text, question.package)
        except BuildError:  # for the survey to place
            return False
        if pattern.kind == "target":
            return table.has_target(Label(pattern.package, pattern.name))
        folder = f"{pattern.package}/"
        whole = any(not base or folder.startswith(f"{base}/") for base in self.below)
        whole = whole or (pattern.kind == "package" and pattern.package in self.packages)
        return whole and table.has_any(pattern)  # whoever means what is not there is told so by the survey


class _Kept:
    """The tables that earlier queries left."""

    def __init__(self, question: Question, named: Sequence[Word]) -> None:
        self._question = question
        self._named = named
        self._request = (question.root, question.output_base, question.symlink_prefix, sys.version)
        asked = (self._request, question.package, sorted({word.text for word in named}))
        self._folder = f"{question.output_base}/.state/queries.v2"
        self._own = f"{crc32(repr(asked).encode()):08x}"
        self._largest = 0  # how many nodes the widest table has, if it holds

    def recall(self) -> NodeTable | None:
        """A table that covers the words, if what it rests on is the same."""
        for name in (_WIDEST, self._own):
            try:
                table = self._read(f"{self._folder}/{name}")
            except _UNREADABLE:
                continue
            if table is not None:
                return table
        return None

    def _read(self, place: str) -> NodeTable | None:
        with open(place, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            head = marshal.loads(file.read(length))
            if head["request"] != self._request or not quick.unchanged(head["files"], head["folders"]):
                return None
            table = NodeTable(head["columns"], lambda: marshal.loads(_rest(kept)), self._question.package)
            if place.endswith(_WIDEST):
                self._largest = len(table)
            scope = Scope(head["packages"], head["below"])
            if not all(scope.covers(word, table, self._question) for word in self._named):
                return None
            kept = os.dup(file.fileno()), 8 + length  # this table's, whatever takes its place meanwhile
        if quick.renew_folders(head["folders"]):
            _write(place, head, _rest(kept))
        return table

    def save(
        self,
        scope: Scope,
        columns: dict[str, Any],
        details: dict[str, bytes],
        files: dict[str, Any],
        folders: dict[str, Any],
    ) -> None:
        """Keep a table."""
        marked = {path: (list(names), quick.mark_of_folder(path, list(names))) for path, names in folders.items()}
        head = {
            "request": self._request,
            "files": files,
            "folders": marked,
            "packages": scope.packages,
            "below": scope.below,
            "columns": columns,
        }
        wider = len(columns["kinds"]) // 4 >= self._largest
        _write(f"{self._folder}/{_WIDEST if wider else self._own}", head, marshal.dumps(details))


def _rest(kept: tuple[int, int]) -> bytes:
    """What is in a file from some place on."""
    descriptor, start = kept
    return os.pread(descriptor, os.fstat(descriptor).st_size - start, start)


def _write(place: str, head: dict[str, Any], details: bytes) -> None:
    content = marshal.dumps(head)
    quick.write(place, len(content).to_bytes(8, "little"), content, details)
