"""Rule modules of a workspace: loaded privately, tracked, and wrong in located ways."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hidet_build.errors import BuildError, LoadError, Location
from hidet_build.label import parse_label
from hidet_build.rule import Context, Provider, Reference, Rule, attr, rule
from hidet_build.ruleset import RuleLoader, RuleSet, built_in_rules
from hidet_build.workspace import Workspace


@rule(srcs=attr.files())
def py_library(ctx: Context) -> list[Provider]:
    """Stands for a built-in rule."""
    return [Provider() for _ in ctx.attrs.srcs]


HEAD = "from hidet_build.rule import attr, rule\n"
GEMM = HEAD + "@rule(src=attr.file())\ndef gemm(ctx):\n    return []\n"
PLACE = Location("k/BUILD.yaml", 1, 8, 'load: ["//rules:gemm.py"]')


def write(root: Path, **files: str) -> None:
    """Write files; `a__b` is `a/b.py`."""
    for name, content in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def load(root: Path, *labels: str) -> tuple[RuleSet, list[BuildError], RuleLoader]:
    """What a BUILD.yaml in `k` gets that loads these modules."""
    loader = RuleLoader(Workspace(str(root)), {"py_library": py_library})
    errors: list[BuildError] = []
    places = [PLACE._replace(column=PLACE.column + 20 * index) for index in range(len(labels))]
    references = [Reference(parse_label(text, "k"), place) for text, place in zip(labels, places, strict=True)]
    return loader.load(references, errors), errors, loader


def error_of(root: Path, *labels: str) -> BuildError:
    """The one error of loading these."""
    _, errors, _ = load(root, *labels)
    (error,) = errors
    return error


def test_a_rule_module_adds_to_the_built_in_rules(tmp_path: Path) -> None:
    """By label, from another package or the own one."""
    write(tmp_path, rules__gemm=GEMM, k__own=GEMM.replace("gemm", "own"))
    rules, errors, loader = load(tmp_path, "//rules:gemm.py", ":own.py")

    assert ([], ["gemm", "own", "py_library"]) == (errors, sorted(rules.rules))
    assert ("k/__init__.py", "k/own.py", "rules/__init__.py", "rules/gemm.py") == loader.files
    assert py_library is rules.get("py_library")


def test_relative_imports_work_and_are_tracked(tmp_path: Path) -> None:
    """Modules beside, above, in packages with and without `__init__.py`, and inside functions, each executed once."""
    write(
        tmp_path,
        rules__gemm=HEAD + "from .tiles import SIZE\nfrom ..lib.deep import more\n"
        "@rule(src=attr.file())\ndef gemm(ctx):\n    from . import late\n    return [SIZE, more.MORE, late.LATE]\n",
        rules__tiles="SIZE = 1\n",
        rules__late="LATE = 3\n",
        lib__deep__more="from ...rules.tiles import SIZE\nMORE = SIZE + 1\n",
    )
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "rules" / "tiles").mkdir()
    rules, errors, loader = load(tmp_path, "//rules:gemm.py")
    before = loader.files
    result = rules.get("gemm").implementation(None)  # type: ignore[arg-type]

    assert ([], [1, 2, 3]) == (errors, result)
    assert (
        "lib/__init__.py",
        "lib/deep/__init__.py",
        "lib/deep/more.py",
        "rules/__init__.py",
        "rules/gemm.py",
        "rules/tiles.py",
    ) == before
    assert {"rules/late.py"} == set(loader.files) - set(before)


def test_nothing_is_written_into_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `__pycache__`, no `.pyc`, though Python may write them."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(tmp_path, rules__gemm="from .tiles import X\n" + GEMM, rules__tiles="X = 1\n")
    load(tmp_path, "//rules:gemm.py")

    assert ["gemm.py", "tiles.py"] == sorted(os.listdir(tmp_path / "rules"))


def test_two_workspaces_do_not_meet(tmp_path: Path) -> None:
    """The same path in two roots is two modules, and none of them is importable by its plain name."""
    for name in ("one", "two"):
        write(tmp_path / name, rules__gemm=GEMM + f"gemm_of = {name!r}\n", rules__tiles=f"NAME = {name!r}\n")
    rules = [load(tmp_path / name, "//rules:gemm.py")[0].get("gemm") for name in ("one", "two")]

    assert [str(tmp_path / name / "rules" / "gemm.py") for name in ("one", "two")] == [found.path for found in rules]
    assert [] == [name for name in sys.modules if name in ("rules", "rules.gemm", "gemm")]


def test_a_module_is_executed_once_in_a_build_and_anew_in_the_next(tmp_path: Path) -> None:
    """Providers are found by type, so a module must not exist twice; an edit must count."""
    write(tmp_path, rules__gemm=GEMM)
    loader = RuleLoader(Workspace(str(tmp_path)), {})
    reference = Reference(parse_label("//rules:gemm.py", ""), PLACE)
    first, again = loader.load([reference], []), loader.load([reference], [])
    write(tmp_path, rules__gemm=GEMM.replace("src=", "source="))
    later = RuleLoader(Workspace(str(tmp_path)), {}).load([reference], [])

    assert first.get("gemm") is again.get("gemm")
    assert ["source"] == list(later.get("gemm").attributes)


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        ("x = 1\nif x\n    y = 2\n", "rules/gemm.py:2:5", "syntax error: expected ':'"),
        ("import os\n1 / 0\n", "rules/gemm.py:2:1", "importing the rule module failed: ZeroDivisionError: "),
        ("import sys\nsys.exit(3)\n", "rules/gemm.py:2:1", "importing the rule module failed: SystemExit: 3"),
        ("import no_such_thing\n", "rules/gemm.py:1:1", "importing the rule module failed: ModuleNotFoundError: "),
        ("from .missing import x\n", "rules/gemm.py:1:1", "importing the rule module failed: ModuleNotFoundError: "),
        ("def f():\n    raise ValueError\nf()\n", "rules/gemm.py:2:5", "importing the rule module failed: ValueError"),
        ("from .bad import x\n", "rules/bad.py:1:1", "importing the rule module failed: NameError: "),
        ("from .worse import x\n", "rules/worse.py:1:6", "syntax error: invalid syntax"),
        (
            HEAD + "rule(name=attr.string())(print)\n",
            "rules/gemm.py:2:1",
            "importing the rule module failed: TypeError: rule print: every target has name already",
        ),
    ],
)
def test_a_broken_module_is_located(tmp_path: Path, content: str, place: str, message: str) -> None:
    """At the line of the rule file, with the `load:` entry beside it, and without a traceback."""
    write(tmp_path, rules__gemm=content, rules__bad="nope\n", rules__worse="x = = 1\n")
    error = error_of(tmp_path, "//rules:gemm.py")
    line = int(place.split(":")[1])
    text = (tmp_path / place.split(":")[0]).read_text().splitlines()[line - 1]

    assert (place.rpartition(":")[0], True) == (str(error.location).rpartition(":")[0], message in error.message)
    assert (text, (("loaded here", PLACE),)) == (error.location and error.location.text, error.related)


def test_a_broken_module_is_told_at_every_load(tmp_path: Path) -> None:
    """Each BUILD.yaml that needs it hears of it, though it runs once; and the rules are known to be incomplete."""
    write(tmp_path, rules__gemm="import pathlib\nopen(__file__ + '.ran', 'a').write('x')\n1 / 0\n")
    loader = RuleLoader(Workspace(str(tmp_path)), {})
    found = []
    for line in (1, 2):
        errors: list[BuildError] = []
        place = PLACE._replace(line=line)
        rules = loader.load([Reference(parse_label("//rules:gemm.py", ""), place)], errors)
        found.append((rules.complete, [error.related for error in errors]))

    assert [(False, [(("loaded here", PLACE._replace(line=line)),)]) for line in (1, 2)] == found
    assert "x" == (tmp_path / "rules" / "gemm.py.ran").read_text()


@pytest.mark.parametrize(
    ("label", "message", "hint"),
    [
        ("//rules:gem.py", "there is no file rules/gem.py", "did you mean 'rules/gemm.py'?"),
        ("//nowhere:zzz.py", "there is no file nowhere/zzz.py", None),
        ("//rules:gemm", "//rules:gemm is no rule module", "a rule module is a Python file"),
        ("//rules:a.b.py", "//rules:a.b.py is no rule module", "a rule module is a Python file"),
        ("//.hidden:x.py", "//.hidden:x.py is no rule module", "a rule module is a Python file"),
        ("//rules:empty.py", "rules/empty.py defines no rule", "a rule is a function under `@rule(...)`"),
        ("//env:x.py", "//env:x.py is no part of the workspace: it is in a virtual environment (env)", None),
    ],
)
def test_what_cannot_be_loaded_is_an_error_at_the_load_entry(
    tmp_path: Path, label: str, message: str, hint: str | None
) -> None:
    """Missing files, other files, files without a rule."""
    write(tmp_path, rules__gemm=GEMM, rules__empty="x = 1\n", env__x=GEMM)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    error = error_of(tmp_path, label)

    assert (message, PLACE) == (error.message, error.location)
    assert hint == (error.hint and error.hint[: len(hint or error.hint)])


def test_a_name_that_is_taken_is_an_error_naming_both(tmp_path: Path) -> None:
    """A built-in rule, another module's, and one of the same module."""
    write(
        tmp_path,
        rules__library=GEMM.replace("gemm", "py_library"),
        rules__one=GEMM,
        rules__two=GEMM,
        rules__twice=GEMM
        + GEMM.replace("def gemm", "def other").replace("@rule", "kept = gemm\n@rule")
        + "def gemm(ctx): ...\ngemm = rule()(gemm)\n",
    )
    built_in = error_of(tmp_path, "//rules:library.py")
    other = error_of(tmp_path, "//rules:one.py", "//rules:two.py")
    same = error_of(tmp_path, "//rules:twice.py")

    assert f"rules/library.py defines the rule 'py_library', which is built in ({py_library.path})" == built_in.message
    assert "rules/two.py defines the rule 'gemm', and so does rules/one.py" == other.message
    assert (("loaded here first", PLACE),) == other.related
    assert "rules/twice.py defines the rule 'gemm', twice" == same.message


def test_what_is_imported_again_is_no_clash(tmp_path: Path) -> None:
    """A module may import another's rule, or a built-in's, and be loaded beside it."""
    write(tmp_path, rules__one=GEMM, rules__two="from .one import gemm\n" + GEMM.replace("gemm(", "more("))
    rules, errors, _ = load(tmp_path, "//rules:one.py", "//rules:two.py")

    assert ([], ["gemm", "more", "py_library"]) == (errors, sorted(rules.rules))


def test_an_absolute_import_of_the_workspace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go by sys.path, and its edits unnoticed; where it fails, the hint says how to write it."""
    write(tmp_path, rules__gemm="import absolutely_ours\n" + GEMM, absolutely_ours="")
    hint = "modules of the workspace are imported relatively: from .absolutely_ours import ..."
    missing = error_of(tmp_path, "//rules:gemm.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = error_of(tmp_path, "//rules:gemm.py")
    del sys.modules["absolutely_ours"]

    assert hint == missing.hint
    assert "importing rules/gemm.py imported absolutely_ours.py as 'absolutely_ours'" in found.message


def test_an_unknown_rule_is_an_error_with_a_way_out() -> None:
    """The nearest name, else how to load one."""
    rules = RuleSet({"py_library": py_library})
    hints = []
    for name in ("py_libary", "gemm"):
        with pytest.raises(LoadError) as caught:
            rules.get(name, PLACE)
        hints.append((caught.value.message, caught.value.location, caught.value.hint))

    assert [
        ("unknown rule 'py_libary'", PLACE, "did you mean 'py_library'?"),
        ("unknown rule 'gemm'", PLACE, 'a rule of your own must be loaded: load: ["//rules:gemm.py"]'),
    ] == hints


def test_built_in_rules_are_those_of_a_package() -> None:
    """Every rule of every module is there, under its own name."""
    rules = built_in_rules()

    assert [] == [name for name, found in rules.items() if not isinstance(found, Rule) or found.name != name]
    assert {"py_library", "group"} <= rules.keys()
