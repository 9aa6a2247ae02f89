"""YAML text to nodes: values by type and never by looks, places, and what is refused."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hidet_build.errors import BuildError, ErrorGroup, LoadError, error_list
from hidet_build.node import MAX_DEPTH, MapNode, Node, ScalarNode, parse

LOADERS = [pytest.param(yaml.SafeLoader, id="pure")]
if hasattr(yaml, "CSafeLoader"):
    LOADERS.append(pytest.param(yaml.CSafeLoader, id="c"))


def value(text: str) -> Node:
    """The node of one value."""
    return parse(f"key: {text}\n".encode(), "BUILD.yaml").as_map()["key"]


def errors_of(content: bytes, loader: Any = yaml.SafeLoader) -> list[tuple[str, str]]:
    """Where and what the errors of a file are."""
    with pytest.raises(BuildError) as caught:
        parse(content, "BUILD.yaml", loader=loader)
    return [(str(error.location).removeprefix("BUILD.yaml:"), error.message) for error in error_list(caught.value)]


@pytest.mark.parametrize(
    "text",
    ["1.10", "010", "no", "on", "y", "12:30", "64:32", "2026-01-01", "1_000", "0x10", "null", "~", "=", "true", "1e3"],
)
def test_a_string_is_exactly_what_is_written(text: str) -> None:
    """Where a string is wanted YAML's guesses do not count."""
    actual = [value(text).as_string(), value(f"'{text}'").as_string()]

    assert [text, text] == actual


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16", 16),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("1.10", 1.1),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e3", 1000.0),
        ("2.5E-1", 0.25),
        ("true", True),
        ("false", False),
        ("null", None),
        ("", None),
        ("'16'", "16"),
        ('"true"', "true"),
        ("''", ""),
        ("True", "True"),
        ("no", "no"),
        ("on", "on"),
        ("~", "~"),
        ("12:30", "12:30"),
        ("64:32", "64:32"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        (".inf", ".inf"),
        ("sm_90", "sm_90"),
        ("\u0661\u0662", "\u0661\u0662"),
        ("[1, [a, 2.0]]", [1, ["a", 2.0]]),
        ("{a: 1, 2: {b: null}}", {"a": 1, "2": {"b": None}}),
    ],
)
def test_data_is_typed_by_our_few_rules(text: str, expected: object) -> None:
    """Plain decimals are numbers, true and false are bool, null is None, all else is text."""
    actual = value(text).as_data()

    assert (type(expected), expected) == (type(actual), actual)


@pytest.mark.parametrize("text", ["010", "-010", "00", "1_000", "1_0.5", "0x10", "0o17", "0b1", "01.5", "08", "1e999"])
def test_doubtful_numbers_ask_for_quotes(text: str) -> None:
    """What two YAML readers would read differently is refused as data, with the way out."""
    with pytest.raises(LoadError) as caught:
        value(text).as_data()

    assert f'"{text}"' in (caught.value.hint or "")


def test_every_doubtful_value_is_reported() -> None:
    """Several mistakes in one piece of data come together."""
    with pytest.raises(ErrorGroup) as caught:
        value("[010, {a: 0x1}, 3]").as_data()

    assert [7, 16] == [error.location.column for error in caught.value.errors if error.location]


@pytest.mark.parametrize(
    ("text", "method", "message", "hint"),
    [
        ("many", "as_int", "expected a whole number, got 'many'", None),
        ("1.5", "as_int", "expected a whole number, got '1.5'", "write a plain decimal number like 16"),
        ("0x10", "as_int", "expected a whole number, got '0x10'", "write a plain decimal number like 16"),
        ("'16'", "as_int", "expected a whole number, got the string '16'", "take the quotes away"),
        ("yes", "as_bool", "expected true or false, got 'yes'", "write `true`"),
        ("False", "as_bool", "expected true or false, got 'False'", "write `false`"),
        ("1", "as_bool", "expected true or false, got '1'", None),
        ("'true'", "as_bool", "expected true or false, got the string 'true'", "take the quotes away"),
        ("", "as_string", "expected a string, got nothing", 'an empty string is written ""'),
        ("[a]", "as_string", "expected a string, got a list", None),
        ("x", "as_list", "expected a list, got 'x'", 'a list of one: ["x"]'),
        ("", "as_list", "expected a list, got nothing", "an empty list is written []"),
        ("{a: b}", "as_list", "expected a list, got a mapping", None),
        ("x", "as_map", "expected a mapping, got 'x'", None),
        ("[x]", "as_map", "expected a mapping, got a list", None),
    ],
)
def test_a_node_raises_its_own_error(text: str, method: str, message: str, hint: str | None) -> None:
    """The error says what was expected, what is there, where, and what to write."""
    with pytest.raises(LoadError) as caught:
        getattr(value(text), method)()
    error = caught.value

    assert (message, hint, 1) == (error.message, error.hint, error.location and error.location.line)


def test_integers_and_booleans() -> None:
    """The plain forms are read."""
    actual = [value("16").as_int(), value("-1").as_int(), value("true").as_bool(), value("false").as_bool()]

    assert [16, -1, True, False] == actual


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "content",
    [b"a: x\nb:\n  - y\n", b"a: x\r\nb:\r\n  - y\r\n", b"\xef\xbb\xbfa: x\nb:\n  - y", b"# note\r\na: x\nb: ['y']"],
)
def test_line_ends_and_a_byte_order_mark_do_not_matter(content: bytes, loader: Any) -> None:
    """UTF-8 with or without a mark, LF and CRLF."""
    assert {"a": "x", "b": ["y"]} == parse(content, "BUILD.yaml", loader=loader).as_data()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("content", [b"", b"\n\n", b"# only a comment\n", b"---\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_empty_mapping(content: bytes, loader: Any) -> None:
    """A file that says nothing is fine."""
    assert {} == parse(content, "BUILD.yaml", loader=loader).as_map()


@pytest.mark.parametrize("loader", LOADERS)
def test_places_are_where_the_text_is(loader: Any) -> None:
    """Lines and columns count from one, in characters, and the line's text comes along."""
    root = parse("# \u8bbe\r\n\u8bbe\u5907: {a: [x, y]}\r\n".encode(), "BUILD.yaml", loader=loader)
    assert isinstance(root, MapNode)
    inner = root.as_map()["\u8bbe\u5907"]
    second = inner.as_map()["a"].as_list()[1]
    places = [root.key_location("\u8bbe\u5907"), inner.location, second.location]

    assert [(2, 1), (2, 5), (2, 13)] == [(place.line, place.column) for place in places]
    assert "\u8bbe\u5907: {a: [x, y]}" == places[2].text


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: 1\nb: 2\na: 3\n", [("3:1", "duplicate key 'a'")]),
        (b"{a: 1, 'a': 2}", [("1:8", "duplicate key 'a'")]),
        (b"a: !!python/object/apply:os.system [x]\n", [("1:4", "tag !!python/object/apply:os.system is not allowed")]),
        (b"a: !include x.yaml\n", [("1:4", "tag !include is not allowed")]),
        (b"a: ! x\n", [("1:4", "tag ! is not allowed")]),
        (b"a: *b\n", [("1:4", "unknown alias *b: no &b before this line")]),
        (b"a: &a [*a]\n", [("1:8", "alias *a stands inside what it names")]),
        (b"a: 1\n---\nb: 2\n", [("2:1", "a second document starts here")]),
        (b"? [a]\n: 1\n", [("1:3", "a key is a string, not a list")]),
        (b"a: {1:2}\n", [("1:5", "key '1:2' has no value")]),
        (b'a: "\\0"\n', [("1:4", "the character '\\x00' is not allowed in a string")]),
        (b"a: b\nc: \x00\n", [("2:4", "control character '\\x00' is not allowed")]),
        (b"a: \x1b[31m\n", [("1:4", "control character '\\x1b' is not allowed")]),
        (b"a: b\nc: na\xefve\n", [("2:6", "byte 0xef is not UTF-8")]),
        (b"\xff\xfea\x00", [("1:1", "byte 0xff is not UTF-8")]),
        (b"a: &x 1\nb: {<<: *x}\n", [("1:4", "`<<` cannot merge '1'")]),
        (b"a: {<<: *x}\n", [("1:9", "unknown alias *x: no &x before this line")]),
        (
            b"a: !x 1\na: *y\nb: 2\n",
            [
                ("1:4", "tag !x is not allowed"),
                ("2:4", "unknown alias *y: no &y before this line"),
                ("2:1", "duplicate key 'a'"),
            ],
        ),
    ],
)
def test_mistakes_have_a_place(content: bytes, expected: list[tuple[str, str]], loader: Any) -> None:
    """Each mistake at its line and column, and all of a file in one run."""
    assert expected == errors_of(content, loader)


def test_a_duplicate_key_names_both_lines() -> None:
    """The first of the two is shown as well."""
    with pytest.raises(LoadError) as caught:
        parse(b"deps: [a]\nname: x\ndeps: [b]\n", "BUILD.yaml")

    assert [(1, 3)] == [(place.line, caught.value.location.line) for _, place in caught.value.related]  # type: ignore[union-attr]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("content", "place", "hint"),
    [
        (b"a:\n\tb: c\n", "2:1", "indent with blanks: YAML does not allow tabs there"),
        (b"a: {m: ${tile}}\n", "1:9", 'inside {...} and [...] a variable must be quoted: "${tile}"'),
        (b"a: [x, ${tile}]\n", "1:9", 'inside {...} and [...] a variable must be quoted: "${tile}"'),
        (b"a: [**/*.py]\n", "1:6", "a string that starts with `*` must be quoted"),
        (b"a: [:b]\n", "1:5", 'inside [...] a string that starts with `:` must be quoted: ":name"'),
        (b"a: @b\n", "1:4", "a string that starts with `@` must be quoted"),
        (b"a: b: c\n", "1:5", "quote a value that holds ': '; or check the indentation"),
        (b"a: [1,\n  2,\n", "2:4", "is a closing bracket missing?"),
        (b"a: 'b\nc: d\n", "1:4", "is the closing quote missing?"),
        (b"a: 'b'c\n", "1:7", "nothing may follow a closing quote: quote the whole value"),
        (b"- a\nb: c\n", "2:1", "check the indentation of this line"),
    ],
)
def test_what_is_no_yaml_is_explained(content: bytes, place: str, hint: str, loader: Any) -> None:
    """The parser's complaint comes with the place and with what to do."""
    with pytest.raises(LoadError) as caught:
        parse(content, "BUILD.yaml", loader=loader)

    assert (f"BUILD.yaml:{place}", hint) == (str(caught.value.location), caught.value.hint)


def test_no_yaml_comes_with_what_was_found_before() -> None:
    """A file that breaks off still tells of the mistakes above."""
    found = errors_of(b"a: !x 1\nb: [\n")

    assert ["1:4", "2:4"] == [place for place, _ in found]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"d: &d {x: 1, y: 2}\na: {y: 3, <<: *d}\n", {"y": 3, "x": 1}),
        (b"d: &d {x: 1, y: 2}\ne: &e {y: 4, z: 5}\na: {<<: [*d, *e]}\n", {"x": 1, "y": 2, "z": 5}),
        (b'a: {"<<": 1}\n', {"<<": 1}),
    ],
)
def test_merge_keys_follow_their_order(content: bytes, expected: dict[str, int]) -> None:
    """Own keys win, then earlier merges; a quoted `<<` is a key like any other."""
    actual = parse(content, "BUILD.yaml").as_map()["a"].as_data()

    assert list(expected.items()) == list(actual.items())


def test_duplicates_are_caught_beside_a_merge() -> None:
    """An override of a merged key is fine, the same key twice is not, and `<<` stands once."""
    found = errors_of(b"d: &d {x: 1}\na: {<<: *d, x: 2, x: 3, <<: *d}\n")

    assert ["2:19", "2:25"] == [place for place, _ in found]


BOMB = b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (level, level, b",".join([b"*a%d" % (level - 1)] * 9)) for level in range(1, 10)
)
MERGE_BOMB = b"a0: &a0 {%s}\n" % b",".join(b"k%d: 1" % number for number in range(500)) + b"".join(
    b"a%d: &a%d [%s]\n" % (level, level, b",".join([b"{<<: *a0}"] * 500)) for level in range(1, 10)
)


@pytest.mark.parametrize("content", [BOMB, MERGE_BOMB], ids=["alias", "merge"])
def test_an_alias_bomb_is_refused_before_it_goes_off(content: bytes) -> None:
    """A child with 200 MB of memory and one second of CPU says which line went too far."""
    program = (
        "import sys; from hidet_build.node import LoadError, parse\n"
        "try: parse(sys.stdin.buffer.read(), 'BUILD.yaml')\n"
        "except LoadError as error: print(error)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (1, 1))

    done = subprocess.run([sys.executable, "-c", program], input=content, stdout=subprocess.PIPE, preexec_fn=limit)

    assert (0, True) == (done.returncode, b"the aliases of this file stand for more than" in done.stdout)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    "content",
    [b"[" * 5_000, b"- " * 5_000, b"{a: " * 5_000, b"[" * MAX_DEPTH + b"[]" + b"]" * MAX_DEPTH],
    ids=["flow", "block", "maps", "closed"],
)
def test_a_depth_bomb_is_refused(content: bytes, loader: Any) -> None:
    """However deep a file nests, the answer is a located error."""
    ((place, message),) = errors_of(content, loader)

    assert (True, True) == (place.startswith("1:"), "nest" in message)


def test_aliases_cannot_add_up_to_a_depth_bomb() -> None:
    """Each alias is shallow where it stands, all together are not."""
    deep = b"a0: &a0 [[[[[[[[[[x]]]]]]]]]]\n" + b"".join(
        b"a%d: &a%d [[[[[[[[[[*a%d]]]]]]]]]]\n" % (level, level, level - 1) for level in range(1, 9)
    )
    ((place, message),) = errors_of(deep)

    assert ("7:", True) == (place[:2], message.startswith(f"nested more than {MAX_DEPTH} levels deep"))


def test_sane_depth_is_fine() -> None:
    """The limit is a level that nobody writes."""
    depth = MAX_DEPTH - 1
    node = parse(b"[" * depth + b"x" + b"]" * depth, "BUILD.yaml")

    assert depth + 1 == node.count()


def variables(text: str) -> dict[str, Node]:
    """The values of a matrix combination."""
    return dict(parse(text.encode(), "BUILD.yaml").as_map())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'${tile}'", 64),
        ("${tile}", 64),
        ("'${ratio}'", 1.1),
        ("m${tile}", "m64"),
        ("${tile}${tile}", "6464"),
        ("v${ratio}", "v1.10"),
        ("'${word}'", "on"),
        ("'${text}'", "8"),
        ("$${tile}", "${tile}"),
        ("$tile", "$tile"),
        ("[a, '${tile}', {k: '${word}'}]", ["a", 64, {"k": "on"}]),
        ("{'x_${tile}': 1}", {"x_64": 1}),
    ],
)
def test_variables_are_filled_in(text: str, expected: object) -> None:
    """A scalar that is one variable keeps its type, any other use is text as the value was written."""
    node = value(text).substitute(variables("{tile: 64, ratio: 1.10, word: on, text: '8'}"))

    assert expected == node.as_data()


def test_a_joined_text_is_a_number_only_where_one_is_declared() -> None:
    """`${tile}0` is text as data, and a number for an integer attribute."""
    node = value("${tile}0").substitute(variables("{tile: 64}"))

    assert ("640", 640) == (node.as_data(), node.as_int())


def test_what_holds_no_variable_stays_the_same_node() -> None:
    """Nothing is copied for a target that uses no matrix."""
    node = value("[a, {b: $c}]")

    assert node is node.substitute({})


def test_unknown_variables_are_reported_together() -> None:
    """Each with its place and the nearest name there is."""
    with pytest.raises(ErrorGroup) as caught:
        value("['${tlie}', '${HOME}', '${a b}', '${']").substitute(variables("{tile: 64}"))

    assert [
        ("unknown variable ${tlie}: the variables of this matrix are tile", "did you mean 'tile'?"),
        ("unknown variable ${HOME}: the variables of this matrix are tile", "a literal `${` is written `$${`"),
        ("cannot read '${a b}': `${name}` holds the name of a matrix variable", "a literal `${` is written `$${`"),
        ("cannot read '${': `${name}` holds the name of a matrix variable", "a literal `${` is written `$${`"),
    ] == [(error.message, error.hint) for error in caught.value.errors]


@given(st.binary(max_size=60) | st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@,\n\t ?<\x00\u2028${}0"), max_size=40))
def test_any_bytes_are_nodes_or_errors(content: bytes | str) -> None:
    """Nothing but our errors comes out of a file, by either parser, and they agree on what is fine."""
    data = content if isinstance(content, bytes) else content.encode()
    roots, lost = [], []
    for loader in (yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        try:
            roots.append(_texts(parse(data, "BUILD.yaml", loader=loader)))
        except BuildError as error:
            lost += [one for one in error_list(error) if one.location is None]

    assert ([], roots[:1] * len(roots)) == (lost, roots)


def _texts(node: Node) -> object:
    if isinstance(node, ScalarNode):
        return (node.text, node.quoted)
    if isinstance(node, MapNode):
        return {key: _texts(value) for key, value in node.entries.items()}
    return [_texts(element) for element in node.as_list()]
