"""Finds and loads rules: the built-in ones, and those in the rule modules of a workspace. Knows no target.

The rule modules of a workspace are one private package, named by the digest of the workspace's root:

    <root>/rules/gemm.py     hidet_build_workspace_<digest>.rules.gemm

so that relative imports work, two workspaces do not meet, and nothing has to be on `sys.path`. They are compiled from
the bytes of their file, and no `.pyc` is written beside them.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from hidet_build.digest import of_text
from hidet_build.errors import BuildError, LoadError, Location, did_you_mean
from hidet_build.rule import Reference, Rule
from hidet_build.workspace import Workspace

BUILT_IN = "hidet_build.rules"


class RuleSet:
    """The rules one BUILD.yaml can use, by name; not `complete` where a module that would add some could not load."""

    def __init__(self, rules: Mapping[str, Rule], complete: bool = True) -> None:
        self.rules = dict(rules)
        self.complete = complete

    def get(self, name: str, location: Location | None = None) -> Rule:
        """The rule; LoadError at `location` where there is none of this name."""
        rule = self.rules.get(name)
        if rule is None:
            hint = did_you_mean(name, self.rules) or f'a rule of your own must be loaded: load: ["//rules:{name}.py"]'
            raise LoadError(f"unknown rule {name!r}", location=location, hint=hint)
        return rule


def built_in_folder() -> str:
    """The folder of our own rules."""
    return os.path.dirname(os.path.abspath(str(importlib.import_module(BUILT_IN).__file__)))


def built_in_rules(package: str = BUILT_IN) -> dict[str, Rule]:
    """Every rule in the modules of `package`, by name."""
    home = importlib.import_module(package)
    names = sorted(module.name for module in pkgutil.iter_modules(home.__path__, package + "."))
    return {rule.name: rule for name in names for rule in rules_of(importlib.import_module(name))}


def rules_of(module: ModuleType) -> tuple[Rule, ...]:
    """The rules among a module's attributes, imported ones too, each once."""
    found = {id(value): value for value in vars(module).values() if isinstance(value, Rule)}
    return tuple(found.values())


class RuleLoader:
    """Loads the rule modules of one workspace, each once in the life of the object, which is one build."""

    def __init__(self, workspace: Workspace, built_in: Mapping[str, Rule] | None = None) -> None:
        self._workspace = workspace
        self._built_in = dict(built_in_rules() if built_in is None else built_in)
        self._finder = _WorkspaceFinder(workspace.root)
        self._finder.install()
        self._modules: dict[str, ModuleType] = {}
        self._failures: dict[str, LoadError] = {}

    @property
    def files(self) -> tuple[str, ...]:
        """The files executed so far, relative imports included, from the workspace root and sorted.

        With them each `__init__.py` that was looked for in vain: it must stay missing. An import inside a function adds
        to it later: ask again after analysis.
        """
        found = {**self._finder.executed, **self._finder.missing}
        return tuple(sorted(os.path.relpath(path, self._workspace.root) for path in found))

    def load(self, modules: Sequence[Reference], errors: list[BuildError]) -> RuleSet:
        """The built-in rules and those of `modules`; what is wrong with them is added to `errors`."""
        before = len(errors)
        rules = dict(self._built_in)
        origins: dict[str, Reference] = {}
        for reference in modules:
            try:
                found = self._rules(reference)
            except LoadError as error:
                errors.append(error)
                continue
            for rule in found:
                known = rules.get(rule.name)
                if known is None:
                    rules[rule.name] = rule
                    origins[rule.name] = reference
                elif known is not rule:
                    errors.append(self._clash(rule, known, reference, origins.get(rule.name)))
        return RuleSet(rules, complete=len(errors) == before)

    def _rules(self, reference: Reference) -> tuple[Rule, ...]:
        path = reference.label.path
        if path not in self._modules and path not in self._failures:
            try:
                self._check(reference)
                self._modules[path] = self._import(path)
            except LoadError as error:
                self._failures[path] = error
        failure = self._failures.get(path)
        if failure is not None:
            raise _loaded_here(failure, reference)
        found = rules_of(self._modules[path])
        if not found:
            raise LoadError(
                f"{path} defines no rule",
                location=reference.location,
                hint="a rule is a function under `@rule(...)` of hidet_build.rule",
            )
        return found

    def _check(self, reference: Reference) -> None:
        path = reference.label.path
        folder, _, name = path.rpartition("/")
        if not name.endswith(".py") or "." in path.removesuffix(".py"):
            raise LoadError(
                f"{reference.label} is no rule module",
                hint="a rule module is a Python file whose path has no other dot: //rules:gemm.py",
            )
        why = self._workspace.excluded(path)
        listing = self._workspace.listing(folder)
        if why:
            raise LoadError(f"{reference.label} is no part of the workspace: it {why}")
        if listing is None or name not in listing.files:
            near = self._workspace.near_files(path)
            raise LoadError(f"there is no file {path}", hint=f"did you mean {near[0]!r}?" if near else None)

    def _import(self, path: str) -> ModuleType:
        before = set(sys.modules)
        try:
            module = importlib.import_module(self._finder.module_name(path))
        # A rule module is the user's program: whatever it raises is a mistake to show, and never ours to survive.
        except (Exception, SystemExit) as error:
            raise self._located(path, error) from error
        self._refuse_untracked(path, before)
        return module

    def _located(self, path: str, error: BaseException) -> LoadError:
        """The error at the deepest line of the workspace's rule modules it came through."""
        file, line, column = path, 1, 1
        if isinstance(error, SyntaxError) and error.filename in self._finder.executed:
            file, line, column = self._relative(error.filename), error.lineno or 1, error.offset or 1
            message = f"syntax error: {error.msg}"
        else:
            for frame in traceback.extract_tb(error.__traceback__):
                if frame.filename in self._finder.executed and frame.lineno:
                    file, line, column = self._relative(frame.filename), frame.lineno, 1
            name = type(error).__name__
            message = "importing the rule module failed: " + (f"{name}: {error}" if str(error) else name)
        hint = self._import_hint(error) if isinstance(error, ImportError) else None
        return LoadError(message, location=_location(self._workspace.absolute(file), file, line, column), hint=hint)

    def _import_hint(self, error: ImportError) -> str | None:
        name = (error.name or "").removeprefix(self._finder.prefix + ".")
        first = name.partition(".")[0]
        listing = self._workspace.listing("")
        if error.name == name and listing and (first in listing.folders or f"{first}.py" in listing.files):
            return f"modules of the workspace are imported relatively: from .{name.rpartition('.')[2]} import ..."
        return None

    def _refuse_untracked(self, path: str, before: set[str]) -> None:
        """An absolute import can find a file of the workspace by way of sys.path; its edits would go unnoticed."""
        root = self._workspace.root + os.sep
        for name in sorted(set(sys.modules) - before):
            file = getattr(sys.modules[name], "__file__", None) or ""
            own = name.startswith(self._finder.prefix) or name.partition(".")[0] == "hidet_build"
            if own or not file.startswith(root) or self._workspace.excluded(file[len(root) :]):
                continue
            raise LoadError(
                f"importing {path} imported {file[len(root) :]} as {name!r}, not as a part of this workspace",
                location=_location(self._workspace.absolute(path), path, 1, 1),
                hint=f"import it relatively: from .{name.rpartition('.')[2]} import ...",
            )

    def _clash(self, rule: Rule, known: Rule, reference: Reference, earlier: Reference | None) -> LoadError:
        if earlier is None:
            return LoadError(
                f"{reference.label.path} defines the rule {rule.name!r}, which is built in ({known.path})",
                location=reference.location,
                hint="give it another name",
            )
        other = earlier.label.path
        where = "twice" if other == reference.label.path else f"and so does {other}"
        return LoadError(
            f"{reference.label.path} defines the rule {rule.name!r}, {where}",
            location=reference.location,
            related=[("loaded here first", earlier.location)],
            hint="give one of them another name",
        )

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._workspace.root)


def _loaded_here(error: LoadError, reference: Reference) -> LoadError:
    """The error as this `load:` entry meets it: at the entry itself, or in the module with the entry beside it."""
    related = [("loaded here", reference.location)] if error.location else []
    location = error.location or reference.location
    return LoadError(error.message, location=location, hint=error.hint, related=related)


def _location(absolute: str, shown: str, line: int, column: int) -> Location:
    try:
        with open(absolute, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    text = lines[line - 1] if line <= len(lines) else ""
    indent = len(text) - len(text.lstrip())
    return Location(shown, line, max(column, indent + 1), text.replace("\x00", "\ufffd"))


class _WorkspaceFinder(MetaPathFinder):
    """Finds the modules of one workspace's private package, and remembers which files were executed.

    It stays on `sys.meta_path`, for imports inside functions of rules; a later one for the same root takes its place
    and forgets the modules, so that an edit counts.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.prefix = f"hidet_build_workspace_{of_text(os.path.realpath(root)).hash[:16]}"
        self.executed: dict[str, None] = {}
        self.missing: dict[str, None] = {}  # each __init__.py that would have been executed

    def install(self) -> None:
        """Take the place of any earlier finder of the same root."""
        for name in [name for name in sys.modules if name == self.prefix or name.startswith(self.prefix + ".")]:
            del sys.modules[name]
        sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "prefix", None) != self.prefix]
        # First: Python's own finder would find the files by the parent's __path__, and write a .pyc beside them.
        sys.meta_path.insert(0, self)

    def module_name(self, path: str) -> str:
        """The name under which the file is imported."""
        return ".".join([self.prefix, *path.removesuffix(".py").split("/")])

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """A module is `name.py`, or a folder, with or without an `__init__.py`."""
        if fullname != self.prefix and not fullname.startswith(self.prefix + "."):
            return None
        place = os.path.join(self.root, *fullname.split(".")[1:])
        init = os.path.join(place, "__init__.py")
        # The root's own __init__.py belongs to whatever project the workspace is; it is not run.
        if fullname != self.prefix and os.path.isfile(init):
            return self._spec(fullname, init, [place])
        if fullname != self.prefix and os.path.isfile(place + ".py"):
            return self._spec(fullname, place + ".py", None)
        if not os.path.isdir(place):
            return None
        if fullname != self.prefix:
            self.missing[init] = None
        return self._spec(fullname, None, [place])

    def _spec(self, name: str, file: str | None, places: Iterable[str] | None) -> ModuleSpec:
        spec = ModuleSpec(name, _SourceLoader(self, file), origin=file, is_package=places is not None)
        spec.has_location = file is not None
        if places is not None:
            spec.submodule_search_locations = list(places)
        return spec


class _SourceLoader(Loader):
    """Executes one file from its bytes."""

    def __init__(self, finder: _WorkspaceFinder, file: str | None) -> None:
        self._finder = finder
        self._file = file

    def exec_module(self, module: ModuleType) -> None:
        """Run the file in the module; a folder without a file stays empty."""
        if self._file is None:
            return
        self._finder.executed[self._file] = None
        with open(self._file, "rb") as file:
            code: CodeType = compile(file.read(), self._file, "exec", dont_inherit=True)
        exec(code, vars(module))
