"""YAML text becomes nodes that know where they were written and raise their own errors; the one room that imports yaml.

Composes from PyYAML's events, never from its constructors: nothing in a file is executed, and no value is typed before
somebody asks for it by type. Knows nothing of targets, rules or attributes.

Merge keys (`<<: *defaults`): the mapping's own keys win, then the mappings of a `<<` list, earlier ones first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from sys import intern
from typing import Any

import yaml

from hidet_build.errors import BuildError, LoadError, Location, did_you_mean, error_list, raise_all

# A wheel for a new Python may come without the C parser (`doctor` says so); the pure one is some 30 times slower.
FASTEST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_DEPTH = 64  # no sane file comes near; keeps every recursive walk here and above shallow
MAX_ALIASED = 50_000  # nodes that aliases may stand for in one file: a bomb stops here after some milliseconds
LONGEST_LINE = 400  # a longer line is not shown below its error
MAX_DIGITS = 1000
_FARTHEST = 1 << 20  # columns of a line that are told apart where places must be small

# What ends a line in YAML 1.1, so that our lines are the parser's lines.
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?\Z")
# Looks like a number, and readers disagree about which one: 010, 1_000, 0x10, 0o7, 1_0.5.
_AMBIGUOUS = re.compile(
    r"[-+]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9_]+)?)\Z"
)
_VARIABLE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_UNQUOTED = re.compile(r"\$\{[^}]*\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

PLAIN = "plain"
QUOTED = "quoted"  # in quotes, or a block scalar
JOINED = "joined"  # put together from text and `${}`: never typed by its looks


class Source:
    """A file's path as it is shown, and its text, for the places of its nodes."""

    __slots__ = ("_lines", "path", "text")

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self._lines: list[str] | None = None

    def location(self, line: int, column: int) -> Location:
        """The 1-based place with the text of its line."""
        if self._lines is None:
            self._lines = _LINE_END.split(_CONTROL.sub("\ufffd", self.text))
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return Location(self.path, line, column, text if len(text) <= LONGEST_LINE else "")

    def keep_lines(self) -> None:
        """Let the text go and keep its lines: places outlive the reading of a file."""
        self.location(1, 1)
        self.text = ""


class Places(Mapping[str, Location]):
    """Where the values of a mapping begin, by key.

    A place is one number until somebody asks: there are half a million in a large workspace, and few are ever shown.
    """

    __slots__ = ("_places", "_source")

    def __init__(self, source: Source, entries: Mapping[str, Node]) -> None:
        self._source = source
        self._places = {
            key: value.line * _FARTHEST + min(value.column, _FARTHEST - 1) for key, value in entries.items()
        }

    def __getitem__(self, key: str) -> Location:
        return self._source.location(*divmod(self._places[key], _FARTHEST))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Node:
    """A value of a file. The `as_...` methods raise a LoadError at the node's place where it is something else."""

    __slots__ = ("column", "line", "source")

    def __init__(self, source: Source, line: int, column: int) -> None:
        self.source = source
        self.line = line
        self.column = column

    @property
    def location(self) -> Location:
        """Where the node begins."""
        return self.source.location(self.line, self.column)

    def error(self, message: str, hint: str | None = None) -> LoadError:
        """An error at this node, for the caller to raise or collect."""
        return LoadError(message, location=self.location, hint=hint)

    def describe(self) -> str:
        """What the node is, for "expected ..., got ..."."""
        raise NotImplementedError

    def as_string(self, expected: str = "a string") -> str:
        """The text exactly as written: 1.10, 010, no and 12:30 stay what they are."""
        raise self._unexpected(expected)

    def as_int(self, expected: str = "a whole number") -> int:
        """A plain decimal number without quotes."""
        raise self._unexpected(expected)

    def as_bool(self, expected: str = "true or false") -> bool:
        """`true` or `false` without quotes, and no other word."""
        raise self._unexpected(expected)

    def as_list(self, expected: str = "a list") -> tuple[Node, ...]:
        """The elements."""
        raise self._unexpected(expected)

    def as_map(self, expected: str = "a mapping") -> Mapping[str, Node]:
        """The values by key, in the order of the file, what was merged last."""
        raise self._unexpected(expected)

    def as_data(self) -> Any:
        """Plain Python values, scalars typed by how they look: see DESIGN's rules in `ScalarNode.as_data`."""
        raise NotImplementedError

    def substitute(self, values: Mapping[str, Node]) -> Node:
        """The node with each `${name}` in its strings and keys replaced; itself where there is none.

        A scalar that is `${name}` and nothing else takes the type of the value; `$${` is a literal `${`. All unknown
        names are reported together.
        """
        errors: list[BuildError] = []
        node = self._substitute(values, errors)
        raise_all(errors)
        return node

    def count(self) -> int:
        """How many nodes this one stands for, aliases spelled out."""
        return 1

    def _substitute(self, values: Mapping[str, Node], errors: list[BuildError]) -> Node:
        raise NotImplementedError

    def _unexpected(self, expected: str) -> LoadError:
        return self.error(f"expected {expected}, got {self.describe()}")


class ScalarNode(Node):
    """A text, and whether it was plain, quoted or joined; it has no type until it is asked for one."""

    __slots__ = ("style", "text")

    def __init__(self, source: Source, line: int, column: int, text: str, style: str) -> None:
        self.source = source
        self.line = line
        self.column = column
        self.text = text
        self.style = style

    @property
    def quoted(self) -> bool:
        """Whether the scalar is text whatever it looks like."""
        return self.style is not PLAIN

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was written, as in `deps:`."""
        return not self.text and self.style is PLAIN

    def describe(self) -> str:  # noqa: D102
        if self.is_empty:
            return "nothing"
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"the string {text!r}" if self.quoted else repr(text)

    def as_string(self, expected: str = "a string") -> str:  # noqa: D102
        if self.is_empty:
            raise self.error(f"expected {expected}, got nothing", 'an empty string is written ""')
        return self.text

    def as_int(self, expected: str = "a whole number") -> int:  # noqa: D102
        if self.style is not QUOTED:
            if _INTEGER.match(self.text) and len(self.text) <= MAX_DIGITS:
                return int(self.text)
            if _AMBIGUOUS.match(self.text):
                raise self.error(f"expected {expected}, got {self.text!r}", "write a plain decimal number like 16")
        elif _INTEGER.match(self.text):
            raise self.error(f"expected {expected}, got {self.describe()}", "take the quotes away")
        raise self._unexpected(expected)

    def as_bool(self, expected: str = "true or false") -> bool:  # noqa: D102
        if self.style is not QUOTED:
            if self.text == "true":
                return True
            if self.text == "false":
                return False
            meant = {"yes": "true", "on": "true", "y": "true", "true": "true"}
            meant |= {"no": "false", "off": "false", "n": "false", "false": "false"}
            word = meant.get(self.text.lower())
            raise self.error(f"expected {expected}, got {self.describe()}", f"write `{word}`" if word else None)
        hint = "take the quotes away" if self.text in ("true", "false") else None
        raise self.error(f"expected {expected}, got {self.describe()}", hint)

    def as_list(self, expected: str = "a list") -> tuple[Node, ...]:  # noqa: D102
        hint = "an empty list is written []" if self.is_empty else f'a list of one: ["{self.text}"]'
        raise self.error(f"expected {expected}, got {self.describe()}", hint if len(hint) < 80 else None)

    def as_data(self) -> Any:
        """The value of a scalar that no declaration gives a type.

        Without quotes: plain decimal integers are int, plain decimals and exponents float, true and false bool, null
        and nothing None, all else text. What readers disagree on (010, 1_000, 0x10) is an error that asks for quotes.
        """
        text = self.text
        if self.style is not PLAIN:
            return text
        if text.isalpha():
            return _WORDS.get(text, text)
        if not text:
            return None
        if _INTEGER.match(text) and len(text) <= MAX_DIGITS:
            return int(text)
        if _FLOAT.match(text) and len(text) <= MAX_DIGITS:
            value = float(text)
            if value in (float("inf"), float("-inf")):
                raise self.error(f"{text} is too large for a float", f'quote it to keep the text: "{text}"')
            return value
        if _AMBIGUOUS.match(text):
            raise self.error(
                f"{self.describe()} is a number to some readers and another, or text, to others",
                f'quote it to keep the text: "{text}"; or write a plain decimal number'
                if len(text) < 60
                else "quote it to keep the text",
            )
        return text

    def _substitute(self, values: Mapping[str, Node], errors: list[BuildError]) -> Node:
        text = self.text
        if "${" not in text:
            return self
        whole = _VARIABLE.fullmatch(text)
        value = values.get(whole[1]) if whole and whole[1] else None
        if isinstance(value, ScalarNode):
            return ScalarNode(self.source, self.line, self.column, value.text, value.style)
        joined = self._fill(text, values, errors)
        return ScalarNode(self.source, self.line, self.column, joined, QUOTED if self.style is QUOTED else JOINED)

    def _fill(self, text: str, values: Mapping[str, Node], errors: list[BuildError]) -> str:
        return _fill(text, values, lambda message, hint: errors.append(self.error(message, hint)))


class ListNode(Node):
    """A list."""

    __slots__ = ("elements",)

    def __init__(self, source: Source, line: int, column: int, elements: tuple[Node, ...]) -> None:
        self.source = source
        self.line = line
        self.column = column
        self.elements = elements

    def describe(self) -> str:  # noqa: D102
        return "a list"

    def as_list(self, expected: str = "a list") -> tuple[Node, ...]:  # noqa: ARG002, D102
        return self.elements

    def as_data(self) -> list[Any]:  # noqa: D102
        errors: list[BuildError] = []
        found = [_data(element, errors) for element in self.elements]
        raise_all(errors)
        return found

    def count(self) -> int:  # noqa: D102
        return 1 + sum(element.count() for element in self.elements)

    def _substitute(self, values: Mapping[str, Node], errors: list[BuildError]) -> Node:
        elements = tuple([element._substitute(values, errors) for element in self.elements])
        if all(map(_same, elements, self.elements)):
            return self
        return ListNode(self.source, self.line, self.column, elements)


class MapNode(Node):
    """A mapping: values by key, and the line and column of each key."""

    __slots__ = ("entries", "places")

    def __init__(
        self, source: Source, line: int, column: int, entries: dict[str, Node], places: dict[str, tuple[int, int]]
    ) -> None:
        self.source = source
        self.line = line
        self.column = column
        self.entries = entries
        self.places = places

    def describe(self) -> str:  # noqa: D102
        return "a mapping"

    def key_location(self, key: str) -> Location:
        """Where `key` is written."""
        return self.source.location(*self.places[key])

    def value_places(self) -> Places:
        """Where each value begins."""
        return Places(self.source, self.entries)

    def key_error(self, key: str, message: str, hint: str | None = None) -> LoadError:
        """An error at `key`."""
        return LoadError(message, location=self.key_location(key), hint=hint)

    def as_map(self, expected: str = "a mapping") -> Mapping[str, Node]:  # noqa: ARG002, D102
        return self.entries

    def as_data(self) -> dict[str, Any]:  # noqa: D102
        errors: list[BuildError] = []
        found = {key: _data(value, errors) for key, value in self.entries.items()}
        raise_all(errors)
        return found

    def without(self, *keys: str) -> MapNode:
        """The mapping without some of its keys."""
        entries = {key: value for key, value in self.entries.items() if key not in keys}
        return MapNode(self.source, self.line, self.column, entries, self.places)

    def count(self) -> int:  # noqa: D102
        return 1 + sum(value.count() for value in self.entries.values())

    def _substitute(self, values: Mapping[str, Node], errors: list[BuildError]) -> Node:
        entries: dict[str, Node] = {}
        places: dict[str, tuple[int, int]] = {}
        changed = False
        for key, value in self.entries.items():
            filled = self._fill_key(key, values, errors) if "${" in key else key
            if filled in entries:
                clash = self.key_error(key, f"key {key!r} becomes {filled!r}, which is there already")
                errors.append(clash)
            entries[filled] = node = value._substitute(values, errors)
            places[filled] = self.places[key]
            changed = changed or node is not value or filled != key
        return MapNode(self.source, self.line, self.column, entries, places) if changed else self

    def _fill_key(self, key: str, values: Mapping[str, Node], errors: list[BuildError]) -> str:
        return _fill(key, values, lambda message, hint: errors.append(self.key_error(key, message, hint)))


_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


def _same(one: object, other: object) -> bool:
    return one is other


def _data(node: Node, errors: list[BuildError]) -> Any:
    if type(node) is ScalarNode and node.style is QUOTED:
        return node.text
    try:
        return node.as_data()
    except BuildError as error:
        errors.extend(error_list(error))
        return None


def _fill(text: str, values: Mapping[str, Node], report: Callable[[str, str | None], None]) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name = match[1]
        if name is None or not _NAME.match(name):
            report(f"cannot read {match[0]!r}: `${{name}}` holds the name of a matrix variable", _LITERAL)
            return ""
        value = values.get(name)
        if not isinstance(value, ScalarNode):
            why = f"the variables of this matrix are {', '.join(values)}" if values else "the target has no matrix"
            near = did_you_mean(name, values)
            report(f"unknown variable ${{{name}}}: {why}", near or _LITERAL)
            return ""
        return value.text

    return _VARIABLE.sub(replace, text)


_LITERAL = "a literal `${` is written `$${`"


def parse(content: bytes, path: str, errors: list[BuildError] | None = None, *, loader: Any = FASTEST_LOADER) -> Node:
    """The root node of a file; an empty file is an empty mapping. `path` is what errors show.

    Mistakes that leave the rest readable (duplicate keys, tags) are added to `errors`, so that what the file says can
    be checked too; without that list they are raised. A file that is no YAML, or whose aliases mean nothing, raises all
    that was found at once.
    """
    found: list[BuildError] = [] if errors is None else errors
    source = Source(path, _decode(content, path))
    composer = _Composer(source, loader, found)
    try:
        root = composer.document()
    except yaml.MarkedYAMLError as error:
        raise_all([*found, _syntax_error(error, source)])
    except LoadError as error:
        raise_all([*found, error])
    finally:
        composer.dispose()
    if errors is None or composer.broken:
        raise_all(found)
    source.keep_lines()
    return root


def _decode(content: bytes, path: str) -> str:
    """The text of a file; raises at the first byte that is no UTF-8 and at the first control character."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        place = _place_after(before, Source(path, content.decode("utf-8-sig", "replace")))
        raise LoadError(
            f"byte 0x{content[error.start]:02x} is not UTF-8", location=place, hint="save the file as UTF-8"
        ) from None
    bad = _CONTROL.search(text)
    if bad:
        place = _place_after(text[: bad.start()], Source(path, text))
        raise LoadError(f"control character {bad[0]!r} is not allowed", location=place, hint="delete it")
    return text


def _place_after(before: str, source: Source) -> Location:
    lines = _LINE_END.split(before)
    return source.location(len(lines), len(lines[-1]) + 1)


class _Composer:
    """One pass over the events of one file.

    Every alias adds what it stands for to `aliased` and to the depth, so that a file's size bounds what a walk over
    its nodes can cost, though nodes are shared and not copied.
    """

    def __init__(self, source: Source, loader: Any, errors: list[BuildError]) -> None:
        self.source = source
        self.errors = errors
        self.loader = loader(source.text)
        self.next: Callable[[], Any] = self.loader.get_event
        self.anchors: dict[str, tuple[Node, int, int] | None] = {}  # node, size, height; None while it is open
        self.broken: list[Node] = []  # what stands in for aliases that were reported
        self.deepest = 0
        self.size = 0  # nodes inside lists and mappings so far, aliases spelled out
        self.aliased = 0  # those of them that aliases stand for

    def dispose(self) -> None:
        self.loader.dispose()

    def document(self) -> Node:
        self.next()  # stream start
        event = self.next()
        if type(event) is yaml.StreamEndEvent:
            return MapNode(self.source, 1, 1, {}, {})
        root = self.node(self.next(), 1)
        self.next()  # document end
        event = self.next()
        if type(event) is not yaml.StreamEndEvent:
            raise self.error_at(
                event, "a second document starts here", "a BUILD.yaml is one document: delete the `---`"
            )
        if isinstance(root, ScalarNode) and root.is_empty:
            return MapNode(self.source, 1, 1, {}, {})
        return root

    def node(self, event: Any, depth: int) -> Node:
        kind = type(event)
        if kind is yaml.ScalarEvent and event.anchor is None and event.tag is None:
            return self.scalar(event)
        if kind is yaml.AliasEvent:
            return self.alias(event, depth)
        if event.tag is not None:
            self.refuse_tag(event)
        if event.anchor is not None:
            return self.anchored(event, depth)
        return self.content(event, depth)

    def content(self, event: Any, depth: int) -> Node:
        if type(event) is yaml.ScalarEvent:
            return self.scalar(event)
        if depth > self.deepest:
            self.deepest = depth
            if depth > MAX_DEPTH:
                raise self.error_at(event, f"nested more than {MAX_DEPTH} levels deep")
        return self.list(event, depth) if type(event) is yaml.SequenceStartEvent else self.map(event, depth)

    def scalar(self, event: Any) -> ScalarNode:
        mark = event.start_mark
        text = event.value
        style = event.style
        if style == '"':
            bad = _CONTROL.search(text)
            # Other control characters can be meant (an escape sequence in a command); these two fit into no file
            # name, argument or UTF-8 text.
            if bad and (bad[0] == "\x00" or "\ud800" <= bad[0] <= "\udfff"):
                self.errors.append(self.error_at(event, f"the character {bad[0]!r} is not allowed in a string"))
        return ScalarNode(self.source, mark.line + 1, mark.column + 1, text, QUOTED if style else PLAIN)

    def list(self, start: Any, depth: int) -> ListNode:
        elements: list[Node] = []
        follow, node = self.next, self.node
        while type(event := follow()) is not yaml.SequenceEndEvent:
            elements.append(node(event, depth + 1))
        self.size += len(elements)
        mark = start.start_mark
        return ListNode(self.source, mark.line + 1, mark.column + 1, tuple(elements))

    def map(self, start: Any, depth: int) -> MapNode:
        entries: dict[str, Node] = {}
        places: dict[str, tuple[int, int]] = {}
        merges: Node | None = None
        follow, node = self.next, self.node
        while type(event := follow()) is not yaml.MappingEndEvent:
            key = node(event, depth + 1)
            value = node(follow(), depth + 1)
            if type(key) is not ScalarNode:
                self.errors.append(key.error(f"a key is a string, not {key.describe()}", "quote the key"))
                continue
            name = intern(key.text)  # they are the same few words in every target
            if key.style is PLAIN:
                if name == "<<" and merges is None:
                    merges = value
                    places[name] = (key.line, key.column)
                    continue
                if start.flow_style and ":" in name and isinstance(value, ScalarNode) and value.is_empty:
                    hint = f'put a blank after the `:`, or quote the key: "{name}"'
                    self.errors.append(key.error(f"key {name!r} has no value", hint))
                    continue
                if not name:
                    self.errors.append(key.error("a key is missing before the `:`"))
                    continue
            if name in places:
                self.refuse_duplicate(key, places[name])
                continue
            entries[name] = value
            places[name] = (key.line, key.column)
        self.size += len(entries)
        if merges is not None:
            places.pop("<<")
            self.merge(merges, entries, places)
        mark = start.start_mark
        return MapNode(self.source, mark.line + 1, mark.column + 1, entries, places)

    def merge(self, merges: Node, entries: dict[str, Node], places: dict[str, tuple[int, int]]) -> None:
        for merged in merges.elements if isinstance(merges, ListNode) else (merges,):
            if merged in self.broken:
                continue
            if not isinstance(merged, MapNode):
                hint = "`<<` takes a mapping or a list of mappings: <<: *defaults"
                self.errors.append(merged.error(f"`<<` cannot merge {merged.describe()}", hint))
                continue
            for key, value in merged.entries.items():
                if key not in entries:
                    entries[key] = value
                    places[key] = merged.places[key]

    def anchored(self, event: Any, depth: int) -> Node:
        deepest, self.deepest = self.deepest, depth
        size = self.size
        self.anchors[event.anchor] = None
        node = self.content(event, depth)
        self.anchors[event.anchor] = (node, self.size - size + 1, self.deepest - depth)
        self.deepest = max(deepest, self.deepest)
        return node

    def alias(self, event: Any, depth: int) -> Node:
        name = event.anchor
        hint = f'a pattern that starts with a `*` must be quoted: "*{name}"'
        if name not in self.anchors:
            self.errors.append(self.error_at(event, f"unknown alias *{name}: no &{name} before this line", hint))
            return self.stand_in(event)
        known = self.anchors[name]
        if known is None:
            self.errors.append(self.error_at(event, f"alias *{name} stands inside what it names"))
            return self.stand_in(event)
        node, size, height = known
        self.aliased += size
        self.size += size
        self.deepest = max(self.deepest, depth + height)
        if self.aliased > MAX_ALIASED:
            raise self.error_at(event, f"the aliases of this file stand for more than {MAX_ALIASED} values")
        if self.deepest > MAX_DEPTH:
            raise self.error_at(event, f"nested more than {MAX_DEPTH} levels deep, counting what the alias stands for")
        return node

    def stand_in(self, event: Any) -> ScalarNode:
        mark = event.start_mark
        node = ScalarNode(self.source, mark.line + 1, mark.column + 1, "*" + event.anchor, QUOTED)
        self.broken.append(node)
        return node

    def refuse_tag(self, event: Any) -> None:
        written = event.tag.replace("tag:yaml.org,2002:", "!!")
        hint = "a BUILD.yaml is plain data; a string that starts with `!` must be quoted"
        self.errors.append(self.error_at(event, f"tag {written} is not allowed", hint))

    def refuse_duplicate(self, key: ScalarNode, first: tuple[int, int]) -> None:
        hint = "merge several mappings with a list: <<: [*a, *b]" if key.text == "<<" else "delete one of the two"
        related = [("first written here", self.source.location(*first))]
        self.errors.append(LoadError(f"duplicate key {key.text!r}", location=key.location, hint=hint, related=related))

    def error_at(self, event: Any, message: str, hint: str | None = None) -> LoadError:
        mark = event.start_mark
        return LoadError(message, location=self.source.location(mark.line + 1, mark.column + 1), hint=hint)


def _syntax_error(error: yaml.MarkedYAMLError, source: Source) -> LoadError:
    """The parser's complaint in our form, with a hint for the mistakes people make."""
    lines = _LINE_END.split(source.text)
    line, column = _place(error.problem_mark or error.context_mark)
    start_line, start_column = _place(error.context_mark)
    problem = str(error.problem)
    related: list[tuple[str, Location]] = []
    if "end of stream" in problem or not "".join(lines[line - 1 :]).strip():
        # Nobody looks at the end of the file: point at what was left open.
        line, column = (start_line, start_column) if error.context_mark else (line, column)
        while line > 1 and (line > len(lines) or not lines[line - 1].strip()):
            line -= 1
            column = len(lines[line - 1]) if line <= len(lines) else 1
    elif error.context_mark and start_line != line:
        related.append((f"{error.context}, which starts here", source.location(start_line, start_column)))
    shown = lines[line - 1] if line <= len(lines) else ""
    return LoadError(
        f"not valid YAML: {problem}",
        location=source.location(line, column),
        hint=_syntax_hint(shown[: column - 1], shown[column - 1 :], problem),
        related=related,
    )


def _place(mark: Any) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _syntax_hint(before: str, after: str, problem: str) -> str | None:
    line = before + after
    variable = _UNQUOTED.match(line, max(len(before) - 1, 0))
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with blanks: YAML does not allow tabs there"
    if variable and re.search(r"[\[{,]", before):
        return f'inside {{...}} and [...] a variable must be quoted: "{variable[0]}"'
    if "mapping values are not allowed" in problem:
        return "quote a value that holds ': '; or check the indentation"
    if before.endswith("*") or after.startswith("*"):
        return "a string that starts with `*` must be quoted"
    if after[:1] in ("@", "`", "%", "&", "!"):
        return f"a string that starts with `{after[0]}` must be quoted"
    if after.startswith(":") and before.rstrip()[-1:] in ("[", "{", ","):
        return 'inside [...] a string that starts with `:` must be quoted: ":name"'
    if "',' or ']'" in problem or "',' or '}'" in problem or "node content" in problem:
        return "is a closing bracket missing?"
    if "end of stream" in problem:
        return "is the closing quote missing?"
    if before.endswith(("'", '"')):
        return "nothing may follow a closing quote: quote the whole value"
    if "'-' indicator" in problem or "block end>" in problem or "expected key" in problem:
        return "check the indentation of this line"
    return None
