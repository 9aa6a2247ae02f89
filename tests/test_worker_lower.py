"""What lower says of a wrong entry, wrong arguments, wrong returns and errors in a kernel."""

from __future__ import annotations

import pytest

from tests.worker_space import TARGET, StepSpace, pool, space  # noqa: F401 - fixtures

pytestmark = pytest.mark.hidet

SOURCE = """\
import hidet
from hidet import ops
from hidet.lang import attrs
from hidet.lang.types import f32


def matmul(m, n=4, *, k=8):
    return None


def symbol():
    return hidet.symbol([4, 4], device="cpu")


def several():
    x = symbol()
    return ops.relu(ops.matmul(x, x))


def empty():
    return []


def mixed():
    return [1, "two"]


def script():
    with hidet.script_module() as module:

        @hidet.script
        def work(x: f32[4]):
            attrs.func_kind = "public"
            x[0] = 1.0

    return module.ir_module()


def twice():
    module = script()
    return [module, module]


def helper(n):
    raise ValueError(f"no tile of {n}\\nin \\x1b[31mred\\x1b[0m")


def broken(n):
    try:
        helper(n)
    except ValueError as error:
        raise RuntimeError("cannot build") from error


def leaves():
    raise SystemExit(3)


def wrong_script():
    with hidet.script_module() as module:

        @hidet.script
        def work(x: f32[4]):
            attrs.func_kind = "public"
            x[0] = nothing

    return module.ir_module()


def two_kernels():
    with hidet.script_module() as module:

        @hidet.script
        def one(x: f32[4]):
            attrs.func_kind = "cpu_kernel"
            x[0] = 1.0

        @hidet.script
        def two(x: f32[4]):
            attrs.func_kind = "cpu_kernel"
            x[0] = 1.0

    return module.ir_module()


def scaled(alpha, beta=1):
    return None


def placed(n, /):
    return None


def typed(n: int = 4, *, scale: "float" = 1.0, fast: bool = False, name: str = None, ready: "READY" = 0):
    return script()


NUMBER = 5
READY = script()
"""
_ALLOWED = "an IRModule, a list of them, a script module or function, a Task, or the tensor of one operator"


@pytest.mark.parametrize(
    ("entry", "arguments", "message", "line", "hint"),
    [
        ("matmull", {}, "no 'matmull' in kernels/main.py", 0, "did you mean 'matmul'?"),
        ("matmul", {"m": 1}, f"'matmul' returned None; expected {_ALLOWED}", 7, ""),
        ("matmul", {}, "`args` do not fit matmul(m, n=4, *, k=8): 'm' is missing", 7, ""),
        (
            "helper",
            {"n": 1, "m_size": 2},
            "`args` do not fit helper(n): there is no parameter 'm_size'",
            44,
            "",
        ),
        (
            "scaled",
            {"alfa": 3},
            "`args` do not fit scaled(alpha, beta=1): there is no parameter 'alfa'; 'alpha' is missing",
            86,
            "did you mean 'alpha'?",
        ),
        (
            "placed",
            {"n": 3},
            "`args` do not fit placed(n, /): there is no parameter 'n'; 'n' cannot be given by name",
            90,
            "",
        ),
        ("mixed", {}, f"'mixed' returned a list of int, str; expected {_ALLOWED}", 24, ""),
        ("empty", {}, "'empty' returned an empty list: nothing to build", 20, ""),
        ("NUMBER", {}, f"'NUMBER' is 5; expected a function that returns {_ALLOWED}", 0, ""),
        ("READY", {"n": 1}, "'READY' is an IRModule and takes no arguments, but `args` has n", 0, ""),
        (
            "several",
            {},
            "'several' returned a tensor that 2 operators compute: Matmul, Relu",
            0,
            "return the tensor of one operator, or one of the tasks (`tensor.op.task`)",
        ),
        (
            "symbol",
            {},
            "'symbol' returned a tensor that no operator computes",
            0,
            "make its inputs with hidet.symbol([...], device='cpu')",
        ),
        (
            "twice",
            {},
            "'twice': modules 0 and 1 share the function 'work', and lowering one would change the other",
            0,
            "make each module with a call of its own",
        ),
        ("leaves", {}, "the kernel called sys.exit(3)", 56, ""),
    ],
)
def test_wrong_entries(
    space: StepSpace,  # noqa: F811
    entry: str,
    arguments: dict[str, int],
    message: str,
    line: int,
    hint: str,
) -> None:
    """Each mistake has its sentence and its line."""
    space.write({"kernels/main.py": SOURCE})
    _, failure = space.failure("kernels/main.py", entry, **arguments)

    assert (failure.message, failure.line, failure.hint) == (message, line, hint)
    assert failure.file == "kernels/main.py"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"n": "256"}, "n is annotated int, and BUILD.yaml gives the string '256'", "write it without quotes: n: 256"),
        ({"n": "many"}, "n is annotated int, and BUILD.yaml gives the string 'many'", ""),
        ({"n": 256.0}, "n is annotated int, and BUILD.yaml gives the number 256.0", "write n: 256"),
        ({"n": 2.5}, "n is annotated int, and BUILD.yaml gives the number 2.5", ""),
        ({"n": True}, "n is annotated int, and BUILD.yaml gives true", ""),
        ({"n": None}, "n is annotated int, and BUILD.yaml gives null", ""),
        ({"n": [1]}, "n is annotated int, and BUILD.yaml gives a list", ""),
        (
            {"scale": "1.5"},
            "scale is annotated float, and BUILD.yaml gives the string '1.5'",
            "write it without quotes: scale: 1.5",
        ),
        ({"fast": 1}, "fast is annotated bool, and BUILD.yaml gives the number 1", ""),
        (
            {"name": 16},
            "name is annotated str, and BUILD.yaml gives the number 16",
            'in quotes it is a string: name: "16"',
        ),
    ],
)
def test_arguments_of_another_type(
    space: StepSpace,  # noqa: F811
    arguments: dict[str, object],
    message: str,
    hint: str,
) -> None:
    """A plain annotation is held against what BUILD.yaml gives, before the entry is called."""
    space.write({"kernels/main.py": SOURCE})
    _, failure = space.failure("kernels/main.py", "typed", **arguments)

    assert (failure.message, failure.hint) == (f"args: {message}", hint)
    assert (failure.file, failure.line > 0) == ("kernels/main.py", True)


def test_arguments_that_fit_their_annotations(space: StepSpace) -> None:  # noqa: F811
    """A whole number is a float too, null is fine as a default, and other annotations mean what they like."""
    space.write({"kernels/main.py": SOURCE})
    space.lowered("kernels/main.py", "typed", n=8, scale=2, fast=True, name=None, ready="x")


def test_error_in_the_kernel_shows_its_own_frames(space: StepSpace) -> None:  # noqa: F811
    """Only the user's frames, paths from the workspace root, no colours, and the cause."""
    space.write({"kernels/main.py": SOURCE})
    text, failure = space.failure("kernels/main.py", "broken", n=3)

    assert text == (
        "Traceback (your files only, the last call at the bottom):\n"
        "  kernels/main.py:52 in broken\n"
        '    raise RuntimeError("cannot build") from error\n'
        "RuntimeError: cannot build\n"
        "caused by ValueError: no tile of 3\n"
        "in red (kernels/main.py:45)\n"
    )
    assert (failure.line, failure.column) == (52, 9)


def test_hidets_own_words_about_a_script(space: StepSpace) -> None:  # noqa: F811
    """An error of hidet's about a script says what hidet says, at the script's line."""
    space.write({"kernels/main.py": SOURCE})
    text, failure = space.failure("kernels/main.py", "wrong_script")

    assert (failure.file, failure.line) == ("kernels/main.py", 65)
    assert "File kernels/main.py:65:" in text
    assert "nothing" in failure.message
    assert "\x1b" not in text


def test_hidet_refuses_to_lower(space: StepSpace) -> None:  # noqa: F811
    """An error inside hidet's passes is told as hidet's, with the place in hidet."""
    space.write({"kernels/main.py": SOURCE})
    text, failure = space.failure("kernels/main.py", "two_kernels")

    assert failure.message == "NotImplementedError: Can only handle one kernel function in a module"
    assert "in hidet/transforms/generate_launch_func.py:" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("x = 'a\n", "SyntaxError: unterminated string literal"),
        ("x = 1\n  y = 2\n", "IndentationError: unexpected indent"),
    ],
)
def test_syntax_errors_have_a_place(space: StepSpace, content: str, message: str) -> None:  # noqa: F811
    """A file that cannot be parsed is located, also when it is a helper."""
    space.write({"main.py": "import helper\n", "helper.py": content})
    _, failure = space.failure("main.py", "kernel")

    assert message in failure.message
    assert (failure.file, failure.line) == ("helper.py", len(content.splitlines()))


def test_source_in_another_encoding(space: StepSpace) -> None:  # noqa: F811
    """Bytes that are not UTF-8 are an error; with a line that names the encoding they are read."""
    (space.root / "main.py").write_bytes("# \xe9\n".encode("latin-1"))
    _, failure = space.failure("main.py", "kernel")
    space.write({"named.py": SOURCE})
    content = (space.root / "named.py").read_bytes()
    (space.root / "named.py").write_bytes("# -*- coding: latin-1 -*-\n# \xe9\n".encode("latin-1") + content)
    space.lowered("named.py", "script")

    assert failure.message == "main.py is not UTF-8, and has no line that names its encoding"


def test_unknown_option(space: StepSpace) -> None:  # noqa: F811
    """An option of hidet's that changes nothing we know of is refused, a known one is read by its type."""
    space.write({"kernels/main.py": SOURCE})
    _, unknown = space.failure("kernels/main.py", "script", "--option", "serch_space=1")
    _, wrong = space.failure("kernels/main.py", "script", "--option", "debug_show_var_id=1")
    space.lowered("kernels/main.py", "script", "--option", "search_space=1", "--option", "debug_show_var_id=true")

    assert (unknown.message, unknown.hint) == ("unknown hidet option 'serch_space=1'", "did you mean 'search_space'?")
    assert wrong.message == "hidet option debug_show_var_id: expected true or false, got '1'"


def test_the_users_own_configuration_does_not_count(space: StepSpace) -> None:  # noqa: F811
    """A hidet.toml in the caller's home, and hidet's variable, change nothing."""
    space.write({"kernels/main.py": SOURCE, "home/.config/hidet/hidet.toml": "this is = not toml ="})
    words = ["lower", "--src", "kernels/main.py", "--entry", "script", "--target", TARGET, "--out", "lowered"]
    result = space.run_plain(*words, HOME=str(space.root / "home"), HIDET_NUM_WORKERS="many")

    assert (result.returncode, result.stdout.decode()) == (0, "")


def test_wrong_command_line(space: StepSpace) -> None:  # noqa: F811
    """A rule's mistake is told apart from the user's."""
    result = space.run("lower", "--src", "main.py")

    assert result.exit_code == 2
    assert "the following arguments are required" in result.output.decode()
