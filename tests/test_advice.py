"""What to add to a BUILD.yaml when a step failed for something that was not declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidet_build.action import Action, Artifact
from hidet_build.advice import Adviser
from hidet_build.label import parse_label
from hidet_build.loader import Loader
from hidet_build.worker.protocol import Failure
from hidet_build.workspace import Workspace

FILES = {
    "BUILD.yaml": "workspace: {name: w}\ntargets:\n  - {rule: py_library, name: pk, srcs: [pk/a.py]}\n",
    "pk/a.py": "",
    "two/BUILD.yaml": "targets:\n"
    "  - {rule: filegroup, name: both, srcs: [a.py, b.py]}\n"
    "  - {rule: py_library, name: one, srcs: [a.py]}\n"
    "  - {rule: py_library, name: other, srcs: [b.py]}\n",
    "two/a.py": "",
    "two/b.py": "",
    "two/free.py": "",
    "k/BUILD.yaml": "targets:\n"
    "  - {rule: command, name: gen, arguments: [sh], outputs: [made.txt, deep/more.txt]}\n"
    "  - {rule: command, name: c, arguments: [sh], outputs: [x]}\n",
    "k/main.py": "",
    "k/data.txt": "",
    "k/count.py": "",
    "k/declared.txt": "",
    "top.txt": "",
}


def advice(root: Path, owner: str, output: str, mnemonic: str) -> str | None:
    """The hint for an action of `owner`, which runs as a command does and has one input, k/declared.txt."""
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    workspace = Workspace(str(root))
    label = parse_label(owner, "")
    made = Artifact(f"{label.path}/x", "cpu")
    declared = ("k/declared.txt", Artifact("k/declared.txt"))
    action = Action(
        label,
        mnemonic,
        "cpu",
        "command:sh",
        ("sh",),
        (declared,),
        (("x", made),),
        working_directory=label.package if mnemonic == "Command" else "",
    )
    return Adviser(workspace, Loader(workspace).package).advise(action, output.encode())


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("pk.a", 'pk/a.py belongs to //:pk: add "//:pk" to deps of //k:m'),
        ("pk", 'the sources in pk belong to //:pk: add "//:pk" to deps of //k:m'),
        ("two.a", 'two/a.py belongs to //two:one: add "//two:one" to deps of //k:m'),
        ("two", "add the target that has it to deps of //k:m: in two there are //two:one, //two:other"),
        (
            "two.free",
            "two/free.py is not declared: put it into srcs of a py_library target and add that to deps of //k:m",
        ),
        ("count", "k/count.py is not declared: put it into srcs of a py_library target and add that to deps of //k:m"),
        ("yaml", "the worker's own words"),
    ],
)
def test_imports(tmp_path: Path, module: str, hint: str) -> None:
    """The library that has the module, never a filegroup; where the workspace has none, what the worker says."""
    failure = Failure("undeclared-import", "", module, "k/main.py", 1, 1, "", "the worker's own words")

    assert hint == advice(tmp_path, "//k:m", failure.as_line(), "HidetLower")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("count.py", 'add "count.py" to data of //k:m and open it by the path k/count.py'),
        ("k/count.py", 'add "count.py" to data of //k:m and open it by the path k/count.py'),
        ("{root}/k/data.txt", 'add "data.txt" to data of //k:m and open it by the path k/data.txt'),
        ("top.txt", 'add "//:top.txt" to data of //k:m and open it by the path top.txt'),
        ("declared.txt", "it is among the declared files: open it by the path k/declared.txt"),
        ("gone.txt", None),
    ],
)
def test_files_a_kernel_reads(tmp_path: Path, path: str, hint: str | None) -> None:
    """By a path from the root, from the kernel's folder or an absolute one."""
    failure = Failure("undeclared-file", "", path.format(root=tmp_path), "k/main.py")

    assert hint == advice(tmp_path, "//k:m", failure.as_line(), "HidetLower")


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("cat: data.txt: No such file or directory\n", 'add "data.txt" to inputs of //k:c'),
        ("cp: cannot stat 'data.txt': No such file or directory\n", 'add "data.txt" to inputs of //k:c'),
        ("sh: 1: cannot open data.txt: No such file\n", 'add "data.txt" to inputs of //k:c'),
        (
            "python3: can't open file '/x/1-0123abcd/7/root/k/count.py': [Errno 2] No such file or directory\n",
            'add "count.py" to inputs of //k:c',
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'top.txt'\n",
            'add "//:top.txt" to inputs of //k:c and call it ../top.txt: the command runs in the folder k',
        ),
        (
            "cat: k/declared.txt: No such file or directory\n",
            "call k/declared.txt declared.txt: the command runs in the folder k",
        ),
        ("cat: gen/made.txt: No such file\n", 'k/gen/made.txt is made by //k:gen: add "//k:gen" to inputs of //k:c'),
        (
            "cat: deep/more.txt: No such file\n",
            'k/gen/deep/more.txt is made by //k:gen: add "//k:gen" to inputs of //k:c and call it gen/deep/more.txt',
        ),
        (
            "cat: hidet-bin/k/gen/made.txt: No such file\n",
            'k/gen/made.txt is made by //k:gen: add "//k:gen" to inputs of //k:c and call it gen/made.txt',
        ),
        ("cat: gone.txt: No such file or directory\n", None),
        ("data.txt is empty\n", None),
    ],
)
def test_files_a_command_reads(tmp_path: Path, output: str, hint: str | None) -> None:
    """Sources and what other targets make, in the words of the tools that miss them."""
    assert hint == advice(tmp_path, "//k:c", output, "Command")
