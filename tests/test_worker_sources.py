"""What a kernel may import and read: names of modules, undeclared imports and files, ambiguity."""

from __future__ import annotations

import os

import pytest

from hidet_build.worker.sources import Sources, module_name
from tests.worker_space import StepSpace, pool, space  # noqa: F401 - fixtures

# What every test's source ends with: a module that can be lowered, once the imports before it went well.
KERNEL = """
import hidet
from hidet.lang import attrs
from hidet.lang.types import f32


def kernel(n=8):
    with hidet.script_module() as module:

        @hidet.script
        def work(x: f32[n]):
            attrs.func_kind = "public"
            for i in range(n):
                x[i] = x[i] + 1.0

    return module.ir_module()
"""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("matmul.py", "//.matmul"),
        ("kernels/tiles.py", "//.kernels.tiles"),
        ("kernels/__init__.py", "//.kernels"),
        ("__init__.py", "//"),
        ("v1.2/a.b.py", "//.v1\u20242.a\u2024b"),
    ],
)
def test_every_source_has_one_module_name(path: str, name: str) -> None:
    """The name follows from the path, and a dot in the path does not end a package."""
    assert module_name(path) == name


def test_sources_are_the_python_files_of_the_folder(tmp_path: os.PathLike[str]) -> None:
    """Only .py files count, links to files too; hidden folders and __pycache__ do not."""
    root = os.fspath(tmp_path)
    for path in ("a.py", "k/b.py", "k/b.txt", ".git/c.py", "k/__pycache__/d.py"):
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with open(os.path.join(root, path), "w") as file:
            file.write("")
    os.symlink("b.py", os.path.join(root, "k", "link.py"))

    assert sorted(Sources(root).paths) == ["a.py", "k/b.py", "k/link.py"]


@pytest.mark.hidet
class TestDeclared:
    """Imports that are right."""

    @pytest.mark.parametrize(
        "statement",
        [
            "import lib.tiles\nSIZE = lib.tiles.SIZE",
            "from lib import tiles\nSIZE = tiles.SIZE",
            "from lib.tiles import SIZE",
            "from ..lib.tiles import SIZE",
            "from ..lib import tiles\nSIZE = tiles.SIZE",
            "from . import local\nSIZE = local.SIZE",
            "from .local import SIZE",
            "import local\nSIZE = local.SIZE",
            "import tiles\nSIZE = tiles.SIZE",
            "from kernels.local import SIZE",
            "import importlib\nSIZE = importlib.import_module('lib.tiles').SIZE",
            "import json, numpy, torch, networkx\nSIZE = 8",
        ],
    )
    def test_by_path_relatively_and_by_plain_name(self, space: StepSpace, statement: str) -> None:  # noqa: F811
        """By path from the root, relatively, by plain name from src's folder and an --import folder; also outsiders."""
        space.write(
            {
                "lib/tiles.py": "SIZE = 8\n",
                "kernels/local.py": "from lib.tiles import SIZE\n",
                "kernels/main.py": f"{statement}\nassert SIZE == 8\n{KERNEL}",
            }
        )
        space.lowered("kernels/main.py", "kernel", "--import", "lib")

    def test_inside_functions_and_two_levels_deep(self, space: StepSpace) -> None:  # noqa: F811
        """An import in a function, of a helper that imports a helper from another folder."""
        space.write(
            {
                "a/b/deep.py": "VALUE = 4\n",
                "a/middle.py": "def value():\n    from .b.deep import VALUE\n    return VALUE\n",
                "kernels/main.py": KERNEL
                + "\n\ndef late():\n    from a.middle import value\n    return kernel(value())\n",
            }
        )
        space.lowered("kernels/main.py", "late")

        assert "float32, [4]" in (space.root / "lowered/0.txt").read_text()

    def test_package_init_is_executed_once_and_first(self, space: StepSpace) -> None:  # noqa: F811
        """A package's __init__.py runs before its modules, also when the kernel itself lies in the package."""
        space.write(
            {
                "kernels/__init__.py": "ORDER = ['init']\nfrom .tiles import SIZE\n",
                "kernels/tiles.py": "import kernels\nkernels.ORDER.append('tiles')\nSIZE = 8\n",
                "kernels/main.py": "import kernels, tiles\nassert kernels.ORDER == ['init', 'tiles']\n"
                f"assert kernels.SIZE == tiles.SIZE\n{KERNEL}",
            }
        )
        space.lowered("kernels/main.py", "kernel")

    def test_one_file_is_one_module_under_all_names(self, space: StepSpace) -> None:  # noqa: F811
        """A class of a helper is the same class whichever name it came by; so is the source itself."""
        space.write(
            {
                "lib/tiles.py": "class Tile:\n    pass\n",
                "kernels/main.py": "import sys\nimport lib.tiles, tiles\nfrom ..lib import tiles as third\n"
                "import main, kernels.main\n"
                "assert lib.tiles is tiles is third\nassert main is kernels.main is sys.modules[__name__]\n" + KERNEL,
            }
        )
        space.lowered("kernels/main.py", "kernel", "--import", "lib")

    def test_circular_imports_work_as_in_python(self, space: StepSpace) -> None:  # noqa: F811
        """Two helpers that import each other, by different kinds of names."""
        space.write(
            {
                "kernels/one.py": "VALUE = 1\nimport kernels.two\n",
                "kernels/two.py": "import one\nVALUE = one.VALUE + 1\n",
                "kernels/main.py": f"from .one import kernels\nassert kernels.two.VALUE == 2\n{KERNEL}",
            }
        )
        space.lowered("kernels/main.py", "kernel")

    def test_folder_and_file_of_one_name(self, space: StepSpace) -> None:  # noqa: F811
        """In matmul/matmul.py, `matmul` is the file and `matmul.tiles` its neighbour all the same."""
        space.write(
            {
                "matmul/matmul.py": f"from matmul.tiles import SIZE\nimport matmul\nassert matmul.SIZE == 8\n{KERNEL}",
                "matmul/tiles.py": "SIZE = 8\n",
            }
        )
        space.lowered("matmul/matmul.py", "kernel")

    @pytest.mark.parametrize("folder", ["cuda", "types", "my-kernels", "v1.2", "torch"])
    def test_folders_with_names_of_their_own(self, space: StepSpace, folder: str) -> None:  # noqa: F811
        """A folder may be called as an installed module, or as no module can be; relative imports work there."""
        space.write(
            {
                f"{folder}/main.py": f"import types, torch\nfrom .tiles import SIZE\nassert types.ModuleType\n{KERNEL}",
                f"{folder}/tiles.py": "SIZE = 8\n",
            }
        )
        space.lowered(f"{folder}/main.py", "kernel")

    def test_source_in_the_root(self, space: StepSpace) -> None:  # noqa: F811
        """A kernel in the root package imports its neighbours plainly and relatively."""
        space.write(
            {"main.py": f"import tiles\nfrom . import tiles as same\nassert tiles is same\n{KERNEL}", "tiles.py": ""}
        )
        space.lowered("main.py", "kernel")

    def test_requires_allows_a_distribution(self, space: StepSpace) -> None:  # noqa: F811
        """An installed distribution that hidet does not need may be imported when it is required, and only then."""
        space.write({"main.py": f"import yaml\n{KERNEL}"})
        space.lowered("main.py", "kernel", "--requires", "PyYAML")
        text, failure = space.failure("main.py", "kernel")
        _, missing = space.failure("main.py", "kernel", "--requires", "no-such-distribution")

        assert (failure.kind, failure.subject, failure.file, failure.line) == (
            "undeclared-import",
            "yaml",
            "main.py",
            1,
        )
        assert "main.py:1 in <module>" in text
        assert "no such distribution is installed" in missing.message

    def test_data_in_the_folder_is_read(self, space: StepSpace) -> None:  # noqa: F811
        """A declared file is read by its path from the root, or beside __file__."""
        space.write(
            {
                "kernels/sizes.json": "8",
                "kernels/main.py": "import json, os\nassert json.load(open('kernels/sizes.json')) == 8\n"
                f"assert open(os.path.join(os.path.dirname(__file__), 'sizes.json')).read() == '8'\n{KERNEL}",
            }
        )
        space.lowered("kernels/main.py", "kernel")

    def test_kernel_that_changes_the_folder(self, space: StepSpace) -> None:  # noqa: F811
        """Wherever the kernel goes, the output is where the step was asked to put it."""
        space.write({"kernels/main.py": f"import os\nos.chdir('kernels')\n{KERNEL}"})
        space.lowered("kernels/main.py", "kernel")

        assert (space.root / "lowered" / "0.pickle").exists()

    def test_nothing_is_left_behind(self, space: StepSpace) -> None:  # noqa: F811
        """No bytecode, no configuration, no temporary file."""
        space.write({"kernels/main.py": f"import tiles\n{KERNEL}", "kernels/tiles.py": ""})
        space.lowered("kernels/main.py", "kernel")
        left = sorted(str(path.relative_to(space.root)) for path in space.root.rglob("*") if path.is_file())

        assert left == [
            "kernels/main.py",
            "kernels/tiles.py",
            "lowered/0.pickle",
            "lowered/0.txt",
            "lowered/modules.json",
        ]
        assert list(space.tmp.iterdir()) == []

    def test_optional_import_is_absent(self, space: StepSpace) -> None:  # noqa: F811
        """`try: import x` of something undeclared sees no such module, though it is installed."""
        optional = "try:\n    import yaml\nexcept ModuleNotFoundError:\n    yaml = None\nassert yaml is None\n"
        space.write({"main.py": optional + KERNEL})
        space.lowered("main.py", "kernel")


@pytest.mark.hidet
class TestUndeclared:
    """Imports and reads that are refused, and what is said."""

    @pytest.mark.parametrize(
        ("statement", "module"),
        [
            ("import lib.other", "lib.other"),
            ("from lib import other", "lib.other"),
            ("from ..lib import other", "lib.other"),
            ("from .other import x", "kernels.other"),
            ("import other", "other"),
            ("import hidet_build", "hidet_build"),
            ("import pytest", "pytest"),
            ("import importlib; importlib.import_module('pytest')", "pytest"),
            ("from pk.a import x", "pk.a"),
            ("import pk.sub.a", "pk.sub.a"),
            ("from ..pk.a import x", "pk.a"),
            ("from pk import a", "pk"),
        ],
    )
    def test_module_is_named_with_its_importer(self, space: StepSpace, statement: str, module: str) -> None:  # noqa: F811
        """The failure names the module as the kernel wrote it, and the importer's line, also in a helper's function."""
        space.write(
            {
                "lib/tiles.py": "",
                "kernels/helper.py": f"def late():\n    {statement}\n",
                "kernels/main.py": f"import helper\nhelper.late()\n{KERNEL}",
            }
        )
        text, failure = space.failure("kernels/main.py", "kernel")

        assert (failure.kind, failure.subject) == ("undeclared-import", module)
        assert (failure.file, failure.line, failure.column) == ("kernels/helper.py", 2, 5)
        assert failure.text == f"    {statement}"
        assert f"the module {module!r} is not declared" in text
        assert "hint" not in text
        assert "Traceback (your files only, the last call at the bottom):\n  kernels/main.py:2 in <module>" in text

    @pytest.mark.parametrize(
        ("statement", "hint"),
        [
            ("import yaml", "it comes with the installed distribution PyYAML: add `requires: [PyYAML]`"),
            (
                "import nowhere.at_all",
                "a source of this workspace goes into `srcs` of a py_library, and that target into `deps`; "
                "no installed distribution brings a module 'nowhere'",
            ),
            (
                "from .yaml import x",
                "a source of this workspace goes into `srcs` of a py_library, and that target into `deps`",
            ),
        ],
    )
    def test_hint_names_the_distribution(self, space: StepSpace, statement: str, hint: str) -> None:  # noqa: F811
        """What `requires` takes is not the name of the module."""
        space.write({"kernels/main.py": f"{statement}\n{KERNEL}"})
        _, failure = space.failure("kernels/main.py", "kernel")

        assert failure.hint == hint

    def test_requires_names_the_module(self, space: StepSpace) -> None:  # noqa: F811
        """Instead of the distribution that brings it."""
        space.write({"main.py": f"import yaml\n{KERNEL}"})
        _, failure = space.failure("main.py", "kernel", "--requires", "yaml")
        _, unknown = space.failure("main.py", "kernel", "--requires", "no-such-distribution")

        assert (failure.hint, unknown.hint) == ("did you mean 'PyYAML'?", "pip install no-such-distribution")

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            ("from lib.tiles import BIAS", "ImportError: cannot import name 'BIAS' from lib/tiles.py"),
            ("import lib.tiles; lib.tiles.BIAS", "AttributeError: module lib/tiles.py has no attribute 'BIAS'"),
            ("import lib.tiles; raise TypeError(lib.tiles.Tile)", "TypeError: <class 'lib.tiles.Tile'>"),
        ],
    )
    def test_names_inside_python_are_not_told(self, space: StepSpace, statement: str, message: str) -> None:  # noqa: F811
        """A module's name in `sys.modules` is ours; the user knows the file."""
        space.write(
            {
                "lib/tiles.py": "class Tile:\n    pass\n",
                "main.py": f"{statement}\n{KERNEL}",
            }
        )
        text, failure = space.failure("main.py", "kernel")

        assert (failure.message, "//" in text) == (message, False)

    def test_plain_name_of_two_sources(self, space: StepSpace) -> None:  # noqa: F811
        """A plain name that fits two declared files names both."""
        space.write({"lib/tiles.py": "", "kernels/tiles.py": "", "kernels/main.py": f"import tiles\n{KERNEL}"})
        text, failure = space.failure("kernels/main.py", "kernel", "--import", "lib")

        assert failure.kind == "kernel"
        assert text.startswith("`import tiles` fits two sources: kernels/tiles.py and lib/tiles.py")

    @pytest.mark.parametrize(("name", "whose"), [("types", "the standard library's"), ("numpy", "the installed")])
    def test_plain_name_that_hides_a_module(self, space: StepSpace, name: str, whose: str) -> None:  # noqa: F811
        """A plain name that fits a declared file and a module from outside names both."""
        space.write({f"kernels/{name}.py": "", "kernels/main.py": f"import {name}\n{KERNEL}"})
        text, _ = space.failure("kernels/main.py", "kernel")

        assert text.startswith(f"`import {name}` fits two modules: {whose} {name!r} and the source kernels/{name}.py")

    def test_absolute_path(self, space: StepSpace) -> None:  # noqa: F811
        """A file elsewhere is refused, by an absolute path or by a way up."""
        secret = space.root.parent / "sizes.txt"
        secret.write_text("8")
        for path in (
            repr(str(secret)),
            "'../sizes.txt'",
            f"pathlib.Path({str(secret)!r})",
            f"{str(secret)!r}.encode()",
        ):
            space.write({"main.py": f"import pathlib, io; SIZE = int(io.FileIO({path}).read())\n{KERNEL}"})
            text, failure = space.failure("main.py", "kernel")

            assert (failure.kind, failure.subject) == ("undeclared-file", str(secret))
            assert (failure.file, failure.line) == ("main.py", 1)
            assert "reads undeclared file" in text

    def test_real_path_of_a_link(self, space: StepSpace) -> None:  # noqa: F811
        """Going from a linked source to its neighbours in the workspace is refused."""
        workspace = space.root.parent / "workspace"
        workspace.mkdir()
        (workspace / "sizes.txt").write_text("8")
        (workspace / "main.py").write_text(
            "import os\nopen(os.path.join(os.path.dirname(os.path.realpath(__file__)), 'sizes.txt'))\n"
        )
        (space.root / "main.py").symlink_to(workspace / "main.py")
        _, failure = space.failure("main.py", "kernel")

        assert (failure.kind, failure.subject) == ("undeclared-file", str(workspace / "sizes.txt"))

    def test_folder_listing_and_programs(self, space: StepSpace) -> None:  # noqa: F811
        """Listing a folder elsewhere and running a program are refused too."""
        said = []
        for statement in (f"os.listdir({str(space.root.parent)!r})", "os.system('true')"):
            space.write({"main.py": f"import os\n{statement}\n{KERNEL}"})
            said.append(space.failure("main.py", "kernel")[1].message)

        assert said == [f"the kernel reads undeclared file {space.root.parent}", "the kernel runs a program: b'true'"]

    def test_folders_and_objects_of_the_module(self, space: StepSpace) -> None:  # noqa: F811
        """An IRModule's include folders must be declared or hidet's; a declared one reaches compile.args."""
        change = "\n\ndef changed(folder):\n    module = kernel()\n"
        change += "    module.include_dirs.append(folder)\n    return module\n"
        space.write({"kernels/main.py": KERNEL + change, "kernels/include/sizes.h": ""})
        _, failure = space.failure("kernels/main.py", "changed", folder="/opt/include")
        space.lowered("kernels/main.py", "changed", folder="kernels/include")
        folder = space.generated()

        assert (failure.kind, failure.subject, failure.file) == ("undeclared-file", "/opt/include", "kernels/main.py")
        assert "-Ikernels/include\n" in (space.root / folder / "compile.args").read_text()
