"""What to add to a BUILD.yaml when an action failed because something was not declared.

Reads what the tool said and looks in the workspace for what it missed; knows targets, not how actions run.
"""

from __future__ import annotations

import os
import re

from hidet_build.action import Action
from hidet_build.errors import BuildError
from hidet_build.graph import Packages, references
from hidet_build.label import Label
from hidet_build.worker.protocol import split_failure
from hidet_build.workspace import Workspace

_NO_HEADER = re.compile(r"^(?P<file>[^\s:]+):\d+:\d+: fatal error: (?P<header>[^:]+): No such file", re.MULTILINE)


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
                return self._file(action, failure.subject) or failure.hint or None
            return failure.hint or None
        missing = _NO_HEADER.search(output.decode("utf-8", "replace"))
        return self._header(action, missing["file"], missing["header"]) if missing else None

    def _import(self, action: Action, module: str, importer: str) -> str | None:
        """The target, or the file, that holds the module a kernel could not import."""
        inner = module.replace(".", "/")
        folders = dict.fromkeys(["", os.path.dirname(importer), action.owner.package])
        for folder in folders:
            for end in (".py", "/__init__.py"):
                path = f"{folder}/{inner}{end}".lstrip("/")
                if self._is_file(path):
                    return self._declare(action, path, "deps", "srcs")
        return None

    def _file(self, action: Action, path: str) -> str | None:
        root = os.path.realpath(self._workspace.root)
        relative = os.path.relpath(os.path.realpath(os.path.join(root, path)), root)
        if relative.startswith("..") or not self._is_file(relative):
            return None
        return (
            f'add "{self._named(action.owner, relative)}" to data of {action.owner} and open it by the path {relative}'
        )

    def _header(self, action: Action, includer: str, header: str) -> str | None:
        for folder in dict.fromkeys([os.path.dirname(includer), "", action.owner.package]):
            path = os.path.normpath(os.path.join(folder, header))
            if self._is_file(path):
                owner = self._owner(path)
                if owner is not None and owner != action.owner:
                    return f'{path} belongs to {owner}: add "{owner}" to deps of {action.owner}'
                return f'add "{self._named(action.owner, path)}" to hdrs of {action.owner}'
        return None

    def _declare(self, action: Action, path: str, dependencies: str, own: str) -> str:
        owner = self._owner(path)
        if owner is not None:
            return f'{path} belongs to {owner}: add "{owner}" to {dependencies} of {action.owner}'
        return (
            f"{path} is not declared: put it into {own} of a py_library target and add that to "
            f"{dependencies} of {action.owner}"
        )

    def _is_file(self, path: str) -> bool:
        return not path.startswith("..") and os.path.isfile(self._workspace.absolute(path))

    def _owner(self, path: str) -> Label | None:
        """A target that names the file, a library before a kernel."""
        package = self._workspace.owner(path)
        if package is None:
            return None
        source = Label(package, path.removeprefix(f"{package}/") if package else path)
        try:
            targets = self._packages(package, None).targets.values()
        except BuildError:  # a broken package has no advice to give
            return None
        found = [
            target.label
            for target in targets
            for attribute, reference, _ in references(target, None, [])
            if reference.label == source and attribute in ("srcs", "hdrs")
        ]
        return min(found, default=None)

    @staticmethod
    def _named(user: Label, path: str) -> str:
        return path.removeprefix(f"{user.package}/") if user.package else path
