"""Bazel's query language over a graph of labels: parse, evaluate, print. Knows no YAML, no rule and no action.

    expression := term { ('+' | '-' | '^' | 'union' | 'except' | 'intersect') term }      all bind alike, from the left
    term       := word | '$' name | '(' expression ')' | function '(' argument {',' argument} ')'
                | 'set' '(' {word} ')' | 'let' name '=' expression 'in' expression

A word is a pattern (`//...`, `//a:b`), the label of a source file or its path. Results are sets, printed in the order
of their labels.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, NoReturn, Protocol, Union

from hidet_build.errors import BuildError, Location, QueryError, UsageError, did_you_mean

SOURCE_FILE = "source file"
OUTPUTS = ("label", "label_kind", "location")

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"[^"]*"|'[^']*')|(?P<symbol>[(),^+=-])|(?P<word>[^\s"'(),^+=]+)|(?P<bad>\S))"""
)
_OPERATORS = {"+": "+", "-": "-", "^": "^", "union": "+", "except": "-", "intersect": "^"}
_RESERVED = (*_OPERATORS, "let", "in", "set")
_DEEPEST = 100  # parentheses in parentheses; Python's own stack ends at about three times as many


class QueryGraph(Protocol):
    """What a query asks of a graph. Nodes, of targets and of source files, are numbers in the order of their labels."""

    def match(self, pattern: str) -> Collection[int]:
        """The nodes a word stands for; QueryError (without a place) where it names what does not exist."""
        ...

    def node(self, label: str) -> int:
        """The node of a label that `label` gave."""
        ...

    def label(self, node: int) -> str:
        """The label as text."""
        ...

    def dependencies(self, node: int) -> Collection[int]:
        """The nodes `node` names directly, source files included."""
        ...

    def dependents(self, node: int) -> Collection[int]:
        """The nodes that name `node` directly."""
        ...

    def kind(self, node: int) -> str:
        """`ir_module rule`, `source file` and so on."""
        ...

    def location(self, node: int) -> Location | None:
        """Where the node is declared."""
        ...

    def attribute(self, node: int, name: str) -> str | tuple[str, ...] | None:
        """What the node's attribute was set to, as text; None where it has no such attribute."""
        ...


def file_paths(text: str, package: str) -> tuple[str, ...]:
    """The files that a word can mean, by path from the root: its path from the package or the root, or its label."""
    if ":" in text:
        where, _, name = text.partition(":")
        return (f"{where.removeprefix('//') if where else package}/{name}".lstrip("/"),)
    return () if text.startswith("//") else (f"{package}/{text}".lstrip("/"), text.lstrip("/"))


# Parsing


class Word(NamedTuple):
    """A pattern, a regular expression or a number, by where it stands."""

    text: str
    place: Location


class Variable(NamedTuple):
    """`$name`."""

    name: str
    place: Location


class WordSet(NamedTuple):
    """`set(a b c)`."""

    words: tuple[Word, ...]


class Chain(NamedTuple):
    """`first + a - b ^ c`, from left to right. Flat, since scripts write thousands of labels with a plus between."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]


class Call(NamedTuple):
    """`function(argument, ...)`; the arguments fit the function's signature."""

    function: str
    arguments: tuple[Expression, ...]
    place: Location


class Let(NamedTuple):
    """`let name = value in body`."""

    name: str
    value: Expression
    body: Expression


Expression = Union[Word, Variable, WordSet, Chain, Call, Let]


def parse(text: str) -> Expression:
    """The expression that `text` spells; QueryError with a caret where it does not spell one."""
    parser = _Parser(text)
    expression = parser.expression(0)
    parser.expect("", "an operator or the end")
    return expression


def words(expression: Expression) -> Iterator[Word]:
    """Every pattern the expression names, in order."""
    if isinstance(expression, Word):
        yield expression
    elif isinstance(expression, WordSet):
        yield from expression.words
    elif isinstance(expression, Let):
        yield from words(expression.value)
        yield from words(expression.body)
    elif isinstance(expression, Chain):
        yield from words(expression.first)
        for _, operand in expression.rest:
            yield from words(operand)
    elif isinstance(expression, Call):
        for parameter, argument in zip(_FUNCTIONS[expression.function].parameters, expression.arguments, strict=False):
            if parameter.is_expression:
                yield from words(argument)


class _Token(NamedTuple):
    kind: str  # quoted, symbol, word or end
    text: str
    place: Location


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0

    def expression(self, depth: int) -> Expression:
        first = self._term(depth)
        rest = []
        while self._peek().kind != "quoted" and self._peek().text in _OPERATORS:
            operator = _OPERATORS[self._take().text]
            rest.append((operator, self._term(depth)))
        return Chain(first, tuple(rest)) if rest else first

    def expect(self, text: str, description: str) -> _Token:
        token = self._peek()
        if token.kind == "quoted" or token.text != text:
            self._refuse(f"expected {description}")
        return self._take()

    def _term(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            self._refuse("the expression is nested too deeply")
        token = self._peek()
        if token.kind == "quoted":
            return self._word("a label")
        if token.text == "(":
            self._take()
            inner = self.expression(depth + 1)
            self.expect(")", "an operator or ')'")
            return inner
        if token.text == "let":
            return self._let(depth)
        if token.text == "set":
            return self._set()
        if token.kind == "word" and self._tokens[self._next + 1].text == "(" and token.text not in _RESERVED:
            return self._call(depth)
        if token.text.startswith("$"):
            self._take()
            return Variable(token.text[1:], token.place)
        return self._word("a label, a function or '('")

    def _word(self, description: str) -> Word:
        token = self._peek()
        if token.kind not in ("word", "quoted") or (token.kind == "word" and token.text in _RESERVED):
            self._refuse(f"expected {description}")
        self._take()
        return Word(token.text, token.place)

    def _let(self, depth: int) -> Let:
        self._take()
        name = self._word("a name").text
        self.expect("=", "'='")
        value = self.expression(depth + 1)
        self.expect("in", "an operator or 'in'")
        return Let(name, value, self.expression(depth + 1))

    def _set(self) -> WordSet:
        self._take()
        self.expect("(", "'(' after set")
        words = []
        while self._peek().kind == "quoted" or self._peek().text != ")":
            words.append(self._word("a label or ')'"))
        self._take()
        return WordSet(tuple(words))

    def _call(self, depth: int) -> Call:
        name = self._take()
        function = _FUNCTIONS.get(name.text)
        if function is None:
            hint = did_you_mean(name.text, _FUNCTIONS) or "there are " + ", ".join(sorted(_FUNCTIONS))
            raise QueryError(f"there is no function {name.text!r}", location=name.place, hint=hint)
        self._take()
        arguments: list[Expression] = []
        for index, parameter in enumerate(function.parameters):
            if index:
                if index >= function.required and self._peek().text == ")":
                    break
                self.expect(",", f"',' and {parameter.article} {parameter.name}: {function.usage}")
            if parameter.is_expression:
                arguments.append(self.expression(depth + 1))
            else:
                word = self._word(f"{parameter.article} {parameter.name}")
                parameter.check(word)
                arguments.append(word)
        self.expect(")", f"an operator or ')': {function.usage}")
        return Call(name.text, tuple(arguments), name.place)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _refuse(self, message: str) -> NoReturn:
        token = self._peek()
        found = "the expression ends here" if token.kind == "end" else f"found {token.text!r}"
        hint = "quote a label that holds blanks or any of ( ) , ^ + =" if token.text == "=" else None
        raise QueryError(f"{message}; {found}", location=token.place, hint=hint)


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while match := _TOKEN.match(text, position):
        kind = match.lastgroup or ""
        start, position = match.start(kind), match.end()
        if kind == "bad":
            raise QueryError("this quote is never closed", location=_place(text, start))
        value = match[kind][1:-1] if kind == "quoted" else match[kind]
        yield _Token(kind, value, _place(text, start))
    yield _Token("end", "", _place(text, len(text.rstrip())))


def _place(text: str, offset: int) -> Location:
    line_start = text.rfind("\n", 0, offset) + 1
    line = text[line_start:].partition("\n")[0]
    return Location("query", text.count("\n", 0, line_start) + 1, offset - line_start + 1, line)


# Evaluating


def evaluate(expression: Expression, graph: QueryGraph) -> list[str]:
    """The labels the expression stands for, sorted. QueryError where a word names nothing."""
    return list(map(graph.label, sorted(_Evaluation(graph).nodes(expression, {}))))


def render(labels: Iterable[str], graph: QueryGraph, output: str) -> str:
    """The nodes as `--output` asks for them, a line each; UsageError for an output there is not."""
    if output not in OUTPUTS:
        raise UsageError(
            f"there is no output {output!r}", hint=did_you_mean(output, OUTPUTS) or f"there are {', '.join(OUTPUTS)}"
        )
    lines = labels if output == "label" else [_line(label, graph, output) for label in labels]
    return "".join(f"{line}\n" for line in lines)


def _line(label: str, graph: QueryGraph, output: str) -> str:
    node = graph.node(label)
    if output == "label_kind":
        return f"{graph.kind(node)} {label}"
    return f"{graph.location(node) or '(no place)'}: {graph.kind(node)} {label}"


Nodes = frozenset[int]


class _Evaluation:
    def __init__(self, graph: QueryGraph) -> None:
        self.graph = graph

    def nodes(self, expression: Expression, variables: Mapping[str, Nodes]) -> Nodes:
        if isinstance(expression, Word):
            return self._match(expression)
        if isinstance(expression, WordSet):
            return frozenset().union(*map(self._match, expression.words))
        if isinstance(expression, Variable):
            if expression.name not in variables:
                hint = did_you_mean(expression.name, variables) or "name it with: let NAME = EXPRESSION in ..."
                raise QueryError(f"${expression.name} has no value", location=expression.place, hint=hint)
            return variables[expression.name]
        if isinstance(expression, Let):
            value = self.nodes(expression.value, variables)
            return self.nodes(expression.body, {**variables, expression.name: value})
        if isinstance(expression, Chain):
            return self._chain(expression, variables)
        function = _FUNCTIONS[expression.function]
        values = [
            self.nodes(argument, variables) if parameter.is_expression else _text(argument)
            for parameter, argument in zip(function.parameters, expression.arguments, strict=False)
        ]
        return frozenset(function.evaluate(self.graph, *values))

    def _match(self, word: Word) -> Nodes:
        try:
            return frozenset(self.graph.match(word.text))
        except BuildError as error:
            raise QueryError(error.message, location=word.place, hint=error.hint) from error

    def _chain(self, chain: Chain, variables: Mapping[str, Nodes]) -> Nodes:
        result = set(self.nodes(chain.first, variables))
        for operator, operand in chain.rest:
            nodes = self.nodes(operand, variables)
            if operator == "+":
                result |= nodes
            elif operator == "-":
                result -= nodes
            else:
                result &= nodes
        return frozenset(result)


def _text(expression: Expression) -> str:
    return expression.text if isinstance(expression, Word) else ""


# Functions


class _Parameter(NamedTuple):
    name: str
    article: str = "a"
    is_expression: bool = False

    def check(self, word: Word) -> None:
        if self.name in ("depth", "count") and not re.fullmatch(r"[0-9]{1,9}", word.text):
            raise QueryError(f"expected a whole number; found {word.text!r}", location=word.place)
        if self.name == "regex":
            try:
                re.compile(word.text)
            except re.error as error:
                raise QueryError(
                    f"{word.text!r} is not a regular expression: {error}",
                    location=word.place,
                    hint="to ask for the character itself, put a \\ before it",
                ) from error


class _Function(NamedTuple):
    usage: str
    parameters: tuple[_Parameter, ...]
    required: int
    evaluate: Callable[..., Iterable[int]]


_SET = _Parameter("expression", "an", is_expression=True)
_REGEX = _Parameter("regex")
_DEPTH = _Parameter("depth")
_COUNT = _Parameter("count")
_ATTRIBUTE = _Parameter("attribute", "an")


def _deps(graph: QueryGraph, start: Nodes, depth: str = "") -> Iterable[int]:
    return _reach(start, graph.dependencies, depth)


def _rdeps(graph: QueryGraph, universe: Nodes, targets: Nodes, depth: str = "") -> Iterable[int]:
    return _reach_within(graph, _reach(universe, graph.dependencies), targets, depth)


def _all_paths(graph: QueryGraph, start: Nodes, end: Nodes) -> Iterable[int]:
    return _reach_within(graph, _reach(start, graph.dependencies), end)


def _some_path(graph: QueryGraph, start: Nodes, end: Nodes) -> Iterable[int]:
    """A shortest path; of several the first by label, so that the answer does not change from run to run."""
    came_from: dict[int, int | None] = dict.fromkeys(sorted(start))
    for node in (queue := list(came_from)):
        if node in end:
            path: list[int] = []
            step: int | None = node
            while step is not None:
                path.append(step)
                step = came_from[step]
            return path
        for dependency in sorted(graph.dependencies(node)):
            if dependency not in came_from:
                came_from[dependency] = node
                queue.append(dependency)
    return ()


def _some(_: QueryGraph, nodes: Nodes, count: str = "1") -> Iterable[int]:
    return sorted(nodes)[: int(count)]


def _kind(graph: QueryGraph, regex: str, nodes: Nodes) -> Iterable[int]:
    return (node for node in nodes if re.search(regex, graph.kind(node)))


def _filter(graph: QueryGraph, regex: str, nodes: Nodes) -> Iterable[int]:
    return (node for node in nodes if re.search(regex, graph.label(node)))


def _attr(graph: QueryGraph, name: str, regex: str, nodes: Nodes) -> Iterable[int]:
    values = ((node, graph.attribute(node, name)) for node in nodes)
    return (node for node, value in values if value is not None and re.search(regex, _written(value)))


def _written(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else f"[{', '.join(value)}]"


def _labels(graph: QueryGraph, name: str, nodes: Nodes) -> Iterable[int]:
    for node in nodes:
        value = graph.attribute(node, name) or ()
        named = {value} if isinstance(value, str) else set(value)
        yield from (needed for needed in graph.dependencies(node) if graph.label(needed) in named)


def _reach(start: Iterable[int], neighbours: Callable[[int], Iterable[int]], depth: str = "") -> set[int]:
    """All that is reached from `start`, itself included, in at most `depth` steps (empty: any number)."""
    seen = set(start)
    edge: Collection[int] = list(seen)
    steps = int(depth) if depth else -1
    while edge and steps != 0:
        edge = set(itertools.chain.from_iterable(map(neighbours, edge))) - seen
        seen |= edge
        steps -= 1
    return seen


def _reach_within(graph: QueryGraph, known: set[int], start: Nodes, depth: str = "") -> set[int]:
    """The nodes of `known` that depend on `start`: in at most `depth` steps, none of which leaves `known`."""
    return _reach(start & known, lambda node: known.intersection(graph.dependents(node)), depth)


_FUNCTIONS = {
    "deps": _Function("deps(expression[, depth])", (_SET, _DEPTH), 1, _deps),
    "rdeps": _Function("rdeps(universe, expression[, depth])", (_SET, _SET, _DEPTH), 2, _rdeps),
    "allpaths": _Function("allpaths(from, to)", (_SET, _SET), 2, _all_paths),
    "somepath": _Function("somepath(from, to)", (_SET, _SET), 2, _some_path),
    "some": _Function("some(expression[, count])", (_SET, _COUNT), 1, _some),
    "kind": _Function("kind(regex, expression)", (_REGEX, _SET), 2, _kind),
    "filter": _Function("filter(regex, expression)", (_REGEX, _SET), 2, _filter),
    "attr": _Function("attr(attribute, regex, expression)", (_ATTRIBUTE, _REGEX, _SET), 3, _attr),
    "labels": _Function("labels(attribute, expression)", (_ATTRIBUTE, _SET), 2, _labels),
}
