"""What to add to a BUILD.yaml when an action failed because something was not declared.

Reads what the tool said and looks in the workspace for what it missed; knows targets, not how actions run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from hidet_build.action import Action
from hidet_build.errors import BuildError
from hidet_build.graph import Packages, holders
from hidet_build.label import Label
from hidet_build.package import Package
from hidet_build.worker.protocol import split_failure
from hidet_build.workspace import Workspace

_NO_HEADER = re.compile(r"^(?P<file>[^\s:]+):\d+:\d+: fatal error: (?P<header>[^:]+): No such file", re.MULTILINE)
_NO_FILE = "No such file"  # what a shell says; others add "or directory"
# What may be a path in a line of a tool's: what stands in quotes, or a word.
_WORD = re.compile("['\"\u2018]([^'\"\u2018\u2019]+)['\"\u2019]|([^\\s:;,'\"\u2018\u2019]+)")


class Adviser:
    """Gives hints about failed actions."""

    def __init__(self, workspace: Workspace, packages: Packages) -> None:
        self._workspace = workspace
        self._packages = packages

    def advise(self, action: Action, output: bytes) -> str | None:
        """One sentence on what to change, or None."""
        _, failure = split_failure(output)
        if failure is not None:
            if failure.kind == "undeclared-import":
                return self._import(action, failure.subject, failure.file) or failure.hint or None
            if failure.kind == "undeclared-file":
                return self._file(action, failure.subject, failure.file) or failure.hint or None
            return failure.hint or None
        text = output.decode("utf-8", "replace")
        if action.mnemonic == "Command":
            return next(filter(None, (self._input(action, word) for word in _unfound(text))), None)
        missing = _NO_HEADER.search(text)
        return self._header(action, missing["file"], missing["header"]) if missing else None

    def _import(self, action: Action, module: str, importer: str) -> str | None:
        """The target, or the file, that holds the module a kernel could not import."""
        inner = module.replace(".", "/")
        folders = dict.fromkeys(["", os.path.dirname(importer), action.owner.package])
        paths = [f"{folder}/{inner}".lstrip("/") for folder in folders]
        for path in paths:
            for file in (f"{path}.py", f"{path}/__init__.py"):
                if self._is_file(file):
                    return self._declare(action, file)
        return next(filter(None, (self._folder(action, path) for path in paths)), None)

    def _folder(self, action: Action, path: str) -> str | None:
        """The target to add for `from folder import module`, which says of the folder alone that it is missing."""
        listing = self._workspace.listing(path)
        files = [f"{path}/{name}" for name in listing.files if name.endswith(".py")] if listing else []
        owners = sorted({owner for owner in map(self._library, files) if owner is not None})
        if not owners:
            return None
        if len(owners) == 1:
            return f'the sources in {path} belong to {owners[0]}: add "{owners[0]}" to deps of {action.owner}'
        return (
            f"add the target that has it to deps of {action.owner}: in {path} there are {', '.join(map(str, owners))}"
        )

    def _file(self, action: Action, path: str, reader: str) -> str | None:
        root = os.path.realpath(self._workspace.root)
        folders = [""] if os.path.isabs(path) else ["", os.path.dirname(reader), action.owner.package]
        for folder in dict.fromkeys(folders):
            relative = os.path.relpath(os.path.realpath(os.path.join(root, folder, path)), root)
            if relative in dict(action.inputs):
                return f"it is among the declared files: open it by the path {relative}"
            if self._is_file(relative):
                name = self._named(action.owner, relative)
                return f'add "{name}" to data of {action.owner} and open it by the path {relative}'
        return None

    def _input(self, action: Action, word: str) -> str | None:
        """What a command lacks that did not find the file `word`; None where we know of no such file."""
        # A program may have made it absolute; an execution root is a folder of the name `root`.
        inside = os.path.isabs(word) and "/root/" in word
        word = word.rpartition("/root/")[2] if inside else word
        if os.path.isabs(word):
            return None
        here = action.working_directory
        paths = dict.fromkeys(
            os.path.normpath(os.path.join(folder, word)) for folder in ([""] if inside else [here, ""])
        )
        for path in paths:
            if path.startswith("..") or path == ".":
                continue
            called = os.path.relpath(path, here or ".")
            how = "" if inside or called == word else f" and call it {called}: the command runs in the folder {here}"
            if path in dict(action.inputs):
                return f"call {path} {called}: the command runs in the folder {here}" if how else None
            if self._is_file(path):
                return f'add "{self._named(action.owner, path)}" to inputs of {action.owner}{how}'
            found = self._maker(action.owner, path)
            if found is not None:
                maker, made = found
                called = os.path.relpath(made, here or ".")
                how = "" if called == word or inside else f" and call it {called}"
                return f'{made} is made by {maker}: add "{maker}" to inputs of {action.owner}{how}'
        return None

    def _maker(self, user: Label, path: str) -> tuple[Label, str] | None:
        """Another target that makes a file called so, and the file's path; by its path as an input, or by its name."""
        path = path.removeprefix(f"{self._workspace.symlink_prefix}bin/")
        package = self._package(path)
        if package is None:
            return None
        inner = path.removeprefix(f"{package.name}/")
        for target in package.targets.values():
            outputs = target.values.get("outputs", ())
            if target.label == user or not isinstance(outputs, tuple):
                continue
            for output in outputs:
                if inner in (output, f"{target.label.name}/{output}"):
                    return target.label, f"{target.label.path}/{output}"
        return None

    def _header(self, action: Action, includer: str, header: str) -> str | None:
        for folder in dict.fromkeys([os.path.dirname(includer), "", action.owner.package]):
            path = os.path.normpath(os.path.join(folder, header))
            if self._is_file(path):
                owner = self._owner(path, "cc_object")
                if owner is not None and owner != action.owner:
                    return f'{path} belongs to {owner}: add "{owner}" to deps of {action.owner}'
                return f'add "{self._named(action.owner, path)}" to hdrs of {action.owner}'
        return None

    def _declare(self, action: Action, path: str) -> str:
        owner = self._library(path)
        if owner is not None:
            return f'{path} belongs to {owner}: add "{owner}" to deps of {action.owner}'
        return f"{path} is not declared: put it into srcs of a py_library target and add that to deps of {action.owner}"

    def _is_file(self, path: str) -> bool:
        if path.startswith("..") or not os.path.isfile(self._workspace.absolute(path)):
            return False
        return not self._workspace.excluded(path)

    def _library(self, path: str) -> Label | None:
        return self._owner(path, "py_library")

    def _owner(self, path: str, rule: str) -> Label | None:
        """A target that has the file among its sources or headers, one of this rule before others."""
        package = self._package(path)
        if package is None:
            return None
        found = [
            (target.rule.name != rule, target.label)
            for target, attribute in holders(Label(package.name, path.removeprefix(f"{package.name}/")), package)
            if attribute in ("srcs", "hdrs") and target.rule.name != "filegroup"  # which is no dependency of a kernel
        ]
        return min(found)[1] if found else None

    def _package(self, path: str) -> Package | None:
        """The package a path belongs to; None where there is none, or it is broken and has no advice to give."""
        name = self._workspace.owner(path)
        try:
            return None if name is None else self._packages(name, None)
        except BuildError:
            return None

    def _named(self, user: Label, path: str) -> str:
        """How a target of the package of `user` names a file."""
        package = self._workspace.owner(path) or ""
        label = Label(package, path.removeprefix(f"{package}/"))
        return label.name if package == user.package else str(label)


def _unfound(text: str) -> Iterator[str]:
    """The words of the lines that say a file was not found, the last first: a tool's own name comes before."""
    for line in text.splitlines():
        if _NO_FILE in line:
            yield from reversed([quoted or plain for quoted, plain in _WORD.findall(line)])
