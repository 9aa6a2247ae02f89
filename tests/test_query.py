"""The query language: what it parses, what it refuses and where, and what the functions mean."""

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidet_build.errors import ExitCode, Location, QueryError, UsageError
from hidet_build.label import Label
from hidet_build.query import evaluate, parse, render, words
from hidet_build.table import Node, NodeTable

TABLE = {
    Label("common", "tiles"): Node(
        "py_library rule",
        ("//common:tiles.py",),
        Location("common/BUILD.yaml", 2, 5),
        {"srcs": ("//common:tiles.py",), "tags": ()},
    ),
    Label("common", "tiles.py"): Node("source file", (), Location("common/tiles.py", 1, 1)),
    Label("k", "matmul"): Node(
        "ir_module rule",
        ("//common:tiles", "//k:matmul.py"),
        Location("k/BUILD.yaml", 2, 5),
        {"src": "//k:matmul.py", "deps": ("//common:tiles",), "tags": ("manual", "slow")},
    ),
    Label("k", "matmul.py"): Node("source file", (), Location("k/matmul.py", 1, 1)),
    Label("k", "softmax"): Node("ir_module rule", ("//common:tiles", "//k:sub/softmax.py"), None, {"tags": ("fast",)}),
    Label("k", "sub/softmax.py"): Node("source file"),
    Label("k", "all kernels"): Node("shared_library rule", ("//k:matmul", "//k:softmax")),
    Label("k/deep", "deep"): Node("alias rule", ("//k:all kernels",)),
    Label("", "top"): Node("filegroup rule", ("//k:matmul",)),
}
ALL = ["//:top", "//common:tiles", "//k/deep:deep", "//k:all kernels", "//k:matmul", "//k:softmax"]


def query(text: str, package: str = "") -> list[str]:
    """What the query says of TABLE."""
    return evaluate(parse(text), NodeTable.of(TABLE, package))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("//...", ALL),
        ("//k/...", ["//k/deep:deep", "//k:all kernels", "//k:matmul", "//k:softmax"]),
        ("//k:all", ["//k:all kernels", "//k:matmul", "//k:softmax"]),
        ("//common:*", ["//common:tiles", "//common:tiles.py"]),
        ("//k/deep", ["//k/deep:deep"]),
        ("'//k:all kernels'", ["//k:all kernels"]),
        ('"//k:all kernels"', ["//k:all kernels"]),
        ("//k:matmul.py", ["//k:matmul.py"]),
        ("k/matmul.py", ["//k:matmul.py"]),
        ("k/sub/softmax.py", ["//k:sub/softmax.py"]),
        ("k:matmul", ["//k:matmul"]),
        ("//k:softmax + //k:matmul", ["//k:matmul", "//k:softmax"]),
        ("//k:softmax union //k:matmul", ["//k:matmul", "//k:softmax"]),
        ("//k:all - //k:matmul - //k:softmax", ["//k:all kernels"]),
        ("//k:all -//k:matmul except //k:softmax", ["//k:all kernels"]),
        ("//k:all ^ //... intersect //k:matmul", ["//k:matmul"]),
        ("//k:matmul + //k:softmax - //k:matmul", ["//k:softmax"]),
        ("//k:matmul + (//k:softmax - //k:matmul)", ["//k:matmul", "//k:softmax"]),
        ("set(//k:matmul '//k:all kernels')", ["//k:all kernels", "//k:matmul"]),
        ("set()", []),
        ("deps(//k:matmul)", ["//common:tiles", "//common:tiles.py", "//k:matmul", "//k:matmul.py"]),
        ("deps(//k:matmul, 1)", ["//common:tiles", "//k:matmul", "//k:matmul.py"]),
        ("deps(//k:matmul, 0)", ["//k:matmul"]),
        ("rdeps(//..., //common:tiles)", ALL),
        ("rdeps(//..., common/tiles.py)", ["//:top", "//common:tiles", "//common:tiles.py", *ALL[2:]]),
        ("rdeps(//..., //common:tiles, 1)", ["//common:tiles", "//k:matmul", "//k:softmax"]),
        ("rdeps(//k:softmax, //common:tiles)", ["//common:tiles", "//k:softmax"]),
        ("rdeps(//k:matmul, //k:softmax)", []),
        ("somepath(//k/deep, //common:tiles)", ["//common:tiles", "//k/deep:deep", "//k:all kernels", "//k:matmul"]),
        ("somepath(//common:tiles, //k/deep)", []),
        ("allpaths(//k/deep, //common:tiles)", ["//common:tiles", *ALL[2:]]),
        ("some(//k:all)", ["//k:all kernels"]),
        ("some(//k:all, 2)", ["//k:all kernels", "//k:matmul"]),
        ("kind('source file', deps(//k:matmul))", ["//common:tiles.py", "//k:matmul.py"]),
        ("kind('^ir_module', //...)", ["//k:matmul", "//k:softmax"]),
        ("filter('max$', //...)", ["//k:softmax"]),
        ("attr(tags, manual, //...)", ["//k:matmul"]),
        ("attr(tags, '^\\[\\]$', //...)", ["//common:tiles"]),
        ("attr(tags, 'manual, slow', //...)", ["//k:matmul"]),
        ("labels(src, //k:all)", ["//k:matmul.py"]),
        ("labels(deps, //k:all)", ["//common:tiles"]),
        ("labels(tags, //k:all)", []),
        ("let x = //k:matmul in deps($x) - $x", ["//common:tiles", "//common:tiles.py", "//k:matmul.py"]),
        ("  deps(\n  //common:tiles\n)\n", ["//common:tiles", "//common:tiles.py"]),
    ],
)
def test_queries(text: str, expected: list[str]) -> None:
    """Each function and operator, by an example."""
    assert query(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [(":matmul", "//k:matmul"), ("matmul.py", "//k:matmul.py"), ("sub/softmax.py", "//k:sub/softmax.py")],
)
def test_words_are_read_in_the_users_folder(text: str, expected: str) -> None:
    """In a package's folder, its own names need no package."""
    assert query(text, "k") == [expected]


@pytest.mark.parametrize(
    ("text", "column", "message", "hint"),
    [
        ("", 1, "expected a label, a function or '('; the expression ends here", None),
        ("deps(//k:matmul", 16, "expected ',' and a depth: deps(expression[, depth]); the expression ends here", None),
        ("deps(//k:matmul,)", 17, "expected a depth; found ')'", None),
        ("deps(//k:matmul, 1, 2)", 19, "expected an operator or ')': deps(expression[, depth]); found ','", None),
        ("deps(//k:matmul, two)", 18, "expected a whole number; found 'two'", None),
        ("rdeps(//...)", 12, "expected ',' and an expression: rdeps(universe, expression[, depth]); found ')'", None),
        ("//k:matmul //k:softmax", 12, "expected an operator or the end; found '//k:softmax'", None),
        ("//k:matmul +", 13, "expected a label, a function or '('; the expression ends here", None),
        ("//k:matmul + )", 14, "expected a label, a function or '('; found ')'", None),
        ("(//k:matmul", 12, "expected an operator or ')'; the expression ends here", None),
        ("union", 1, "expected a label, a function or '('; found 'union'", None),
        ("set(//k:matmul + //k:softmax)", 16, "expected a label or ')'; found '+'", None),
        ("set(", 5, "expected a label or ')'; the expression ends here", None),
        ("//k:a=1", 6, "expected an operator or the end; found '='", "quote a label that holds blanks or any of"),
        ("kind('source, //...)", 6, "this quote is never closed", None),
        ("kind('(', //...)", 6, "'(' is not a regular expression: missing ), unterminated subpattern", "to ask for"),
        ("rdep(//..., //k:matmul)", 1, "there is no function 'rdep'", "did you mean 'rdeps'?"),
        ("zzz(//...)", 1, "there is no function 'zzz'", "there are allpaths, attr, deps"),
        ("deps($x)", 6, "$x has no value", "name it with: let NAME = EXPRESSION in"),
        ("deps(//k:matmull)", 6, "'//k:matmull': the package //k has no target and no file", "did you mean 'matmul'?"),
        ("//kk:matmul", 1, "'//kk:matmul': there is no package //kk", "did you mean '//k'?"),
        ("//zz/...", 1, "'//zz/...': no package is below //zz", None),
        ("//k:a:b", 1, "'//k:a:b' is not a label: ':' is not allowed", "a label is"),
        ("'-//k:matmul'", 1, "'-//k:matmul' takes targets away", "put blanks around the minus"),
    ],
)
def test_mistakes_are_placed(text: str, column: int, message: str, hint: str | None) -> None:
    """Each mistake has a caret at its column, and a hint where there is one to give."""
    with pytest.raises(QueryError) as caught:
        query(text)

    assert caught.value.location == Location("query", 1, column, text)
    assert caught.value.message[: len(message)] == message
    assert (caught.value.hint or "")[: len(hint or "")] == (hint or "")
    assert (caught.value.hint is None) == (hint is None)
    assert caught.value.exit_code == ExitCode.QUERY_FAILED


def test_mistake_on_a_later_line() -> None:
    """The caret stands below the line of the mistake."""
    with pytest.raises(QueryError) as caught:
        parse("deps(\n  //k:matmul,\n  x)")

    assert caught.value.render() == "query:3:3: expected a whole number; found 'x'\n      x)\n      ^"


def test_long_and_deep_expressions() -> None:
    """Scripts join thousands of labels; nesting has an end that is an error of ours, not Python's."""
    with pytest.raises(QueryError, match="nested too deeply"):
        parse("(" * 5000)

    assert query(" + ".join(["//k:matmul"] * 5000)) == ["//k:matmul"]
    assert query("(" * 100 + "//k:matmul" + ")" * 100) == ["//k:matmul"]


def test_words_are_the_patterns_alone() -> None:
    """What must be loaded for an expression: no regular expression, no depth, no variable."""
    text = "let x = //a in kind('r', deps($x, 2) + set(//b c/d.py) - (rdeps(//e/..., //a) ^ attr(tags, t, ':f')))"

    assert [word.text for word in words(parse(text))] == ["//a", "//b", "c/d.py", "//e/...", "//a", ":f"]


def test_cycles_and_unknown_nodes_end() -> None:
    """A graph that is not sound yet can be asked all the same."""
    first, second = Node("x rule", ("//:b",)), Node("x rule", ("//:a", "//:gone"))
    graph = NodeTable.of({Label("", "a"): first, Label("", "b"): second})

    assert evaluate(parse("deps(//:a)"), graph) == ["//:a", "//:b", "//:gone"]
    assert render(["//:gone"], graph, "location") == "(no place): source file //:gone\n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("label", "//common:tiles\n//common:tiles.py\n"),
        ("label_kind", "py_library rule //common:tiles\nsource file //common:tiles.py\n"),
        (
            "location",
            "common/BUILD.yaml:2:5: py_library rule //common:tiles\n"
            "common/tiles.py:1:1: source file //common:tiles.py\n",
        ),
    ],
)
def test_outputs(output: str, expected: str) -> None:
    """A line each."""
    assert render(query("//common:*"), NodeTable.of(TABLE), output) == expected


def test_unknown_output() -> None:
    """A wrong output is the command line's mistake."""
    with pytest.raises(UsageError, match="did you mean 'label_kind'"):
        render([], NodeTable.of({}), "labelkind")


def test_nothing_found_is_no_text() -> None:
    """No node, no line; and the root wildcard of an empty workspace is no mistake."""
    graph = NodeTable.of({})

    assert render(evaluate(parse("//..."), graph), graph, "label") == ""


@given(st.text(alphabet="()+-^,= '\"/ka:m$x\n", max_size=40))
def test_any_text_is_an_answer_or_a_placed_error(text: str) -> None:
    """Nothing but QueryError comes out, and it always has a place."""
    placed = True
    result: list[str] = []
    try:
        result = query(text)
    except QueryError as error:
        placed = error.location is not None

    assert placed
    assert set(result) <= {str(label) for label in TABLE}


@given(st.integers(0, 10**6))
def test_rdeps_is_deps_turned_around(seed: int) -> None:
    """In any graph, x is in rdeps(//..., y) exactly if y is in deps(x)."""
    random_source = random.Random(seed)
    names = [f"n{index}" for index in range(8)]
    table = {
        Label("", name): Node("r rule", tuple(f"//:{other}" for other in names[:index] if random_source.random() < 0.3))
        for index, name in enumerate(names)
    }
    graph = NodeTable.of(table)
    below = {name: set(evaluate(parse(f"deps(//:{name})"), graph)) for name in names}
    for name in names:
        expected = [f"//:{other}" for other in names if f"//:{name}" in below[other]]

        assert evaluate(parse(f"rdeps(//..., //:{name})"), graph) == expected


def test_query_imports_no_library() -> None:
    """Asking costs no import of yaml, networkx or anything of hidet."""
    script = (
        "import sys, hidet_build.query; print(sorted({'yaml', 'networkx', 'hidet', 'filelock'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
