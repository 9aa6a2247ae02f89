"""Import control: which module a name in a kernel means, and that it is one that the target declares.

Knows files of the execution root and names of modules; knows nothing of hidet. Every declared source is one module,
whose name in `sys.modules` starts with `//`:

    kernels/tiles.py            //.kernels.tiles        the module itself; relative imports lead here
    import kernels.tiles        kernels.tiles           the same object, by path from the workspace root
    import tiles                tiles                   the same object, from the folder of `src` or of an `--import`

So a folder called `cuda` or `types` in a workspace never gets in the way of the module of that name.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import io
import linecache
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FrameType, ModuleType
from typing import Any

from hidet_build.worker import distribution
from hidet_build.worker.failure import DOT, UndeclaredImport, user_failure

ROOT = "//"
_INSIDE = ROOT + "."


class Sources:
    """The declared sources: each file's bytes, read once, and its module's name."""

    def __init__(self, root: str = ".") -> None:
        self._root = root
        self._bytes: dict[str, bytes] = {}
        self.modules: dict[str, str] = {}  # module name -> path of the file
        self.folders: dict[str, str] = {ROOT: ""}  # module name -> path of the folder
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
            place = os.path.relpath(folder, root).removeprefix(".")
            python = sorted(file for file in files if file.endswith(".py"))
            for file in python:
                path = f"{place}/{file}" if place else file
                self.modules[module_name(path)] = path
            if python:
                self._add_folder(place)

    @property
    def paths(self) -> Collection[str]:
        """The paths of all sources, from the execution root."""
        return self.modules.values()

    def read(self, path: str) -> bytes:
        """The file's bytes as they were when they were first asked for."""
        if path not in self._bytes:
            with open(os.path.join(self._root, path), "rb") as file:
                self._bytes[path] = file.read()
        return self._bytes[path]

    def _add_folder(self, path: str) -> None:
        while path:
            self.folders[_folder_name(path)] = path
            path = os.path.dirname(path)


def module_name(path: str) -> str:
    """The name of the one module that the file `path` is."""
    folder, _, file = path.rpartition("/")
    stem = file.removesuffix(".py")
    return _folder_name(folder if stem == "__init__" else f"{folder}/{stem}" if folder else stem)


def _folder_name(path: str) -> str:
    return _INSIDE + path.replace(".", DOT).replace("/", ".") if path else ROOT


def shown(name: str) -> str:
    """A module's name as a kernel would write it."""
    return name.removeprefix(_INSIDE).replace(DOT, ".")


class ImportControl(MetaPathFinder):
    """Finds declared sources under all their names, and refuses to a kernel what it does not declare.

    `folders` are those whose files have plain names; `allowed` the top-level modules from outside. Modules outside the
    workspace import what they like.
    """

    def __init__(self, sources: Sources, folders: Iterable[str], allowed: Collection[str]) -> None:
        self.sources = sources
        self._folders = tuple(dict.fromkeys(["", *(folder.rstrip("/") for folder in folders)]))
        self._allowed = allowed
        self._taken = {*allowed, *(name.partition(".")[0] for name in sys.modules)}
        self._import = builtins.__import__
        self._asked = ""  # the whole name in the latest import statement of a source

    def install(self) -> None:
        """Put this control into the process: for good, for it is meant to run one kernel."""
        sys.dont_write_bytecode = True
        here = os.path.realpath(os.curdir)
        sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != here]
        sys.meta_path.insert(0, self)
        builtins.__import__ = self._checked_import

    def relax(self) -> None:
        """The kernel's code has run: import statements are as fast as ever. hidet has thousands in its functions."""
        builtins.__import__ = self._import

    def load(self, path: str) -> ModuleType:
        """Execute the source `path`, or give its module when that is done already."""
        return importlib.import_module(module_name(path))

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - names alone decide
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """What the import system asks: where a module is that is not loaded yet."""
        if fullname == ROOT or fullname.startswith(_INSIDE):
            return self._source_spec(fullname)
        if fullname.partition(".")[0] in self._taken:
            return None
        file = self._file(fullname)
        folder = self._folder(fullname)
        if file:
            return ModuleSpec(fullname, _Alias(module_name(file), also_folder=folder is not None), is_package=False)
        if folder:
            return ModuleSpec(fullname, _Alias(folder), is_package=True)
        if _importer_is_source():
            raise self._undeclared(fullname)
        return None

    def _source_spec(self, name: str) -> ModuleSpec:
        path = self.sources.modules.get(name)
        if path is None and name not in self.sources.folders:
            raise self._undeclared(name)
        is_package = path is None or os.path.basename(path) == "__init__.py"
        spec = ModuleSpec(name, _Source(self.sources, path), origin=path, is_package=is_package)
        spec.has_location = path is not None
        if is_package:
            spec.submodule_search_locations = [self.sources.folders[name] or "."]
        return spec

    def _checked_import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        # In place of builtins.__import__, because the import system asks no finder for a module that is loaded: that
        # would hand out whatever this process has loaded, and never tell that a source has a taken name.
        if globals is not None and _is_source(globals):
            self._asked = f"{_base(globals, level)}{name}"
            if level == 0:
                self._check(name)
        return self._import(name, globals, locals, fromlist or (), level)

    def _check(self, name: str) -> None:
        """Refuse an absolute import from a source that is ambiguous or not declared."""
        top = name.partition(".")[0]
        file = self._file(name)
        if top in self._taken and file:
            kind = "the standard library's" if top in sys.stdlib_module_names else "the installed"
            raise user_failure(
                f"`import {name}` fits two modules: {kind} {top!r} and the source {file}",
                hint=f"import the source relatively (`from . import {name.rpartition('.')[2]}`), or rename it",
            )
        if top in self._taken and top not in self._allowed:
            raise self._undeclared(name)

    def _undeclared(self, name: str) -> UndeclaredImport:
        # For `import a.b` Python asks for `a` first, and it is a.b that somebody has to declare.
        whole = self._asked if self._asked.startswith(f"{name}.") else name
        return UndeclaredImport(shown(whole), f"the module {shown(whole)!r} is not declared", lambda: _advice(whole))

    def _file(self, name: str) -> str | None:
        """The source that an absolute name fits; StepFailure where it fits two."""
        fits = [self.sources.modules.get(f"{_folder_name(folder)}.{name}") for folder in self._folders]
        files = list(dict.fromkeys(path for path in fits if path is not None))
        if len(files) > 1:
            raise user_failure(
                f"`import {name}` fits two sources: {files[0]} and {files[1]}",
                hint=f"import one by its path from the workspace root, or relatively; `{name}` is in both folders",
            )
        return files[0] if files else None

    def _folder(self, name: str) -> str | None:
        """The module name of the first folder that an absolute name fits."""
        names = [f"{_folder_name(folder)}.{name}" for folder in self._folders]
        return next((name for name in names if name in self.sources.folders), None)


class _Source(InspectLoader):
    """Executes one source, or makes the package of a folder without `__init__.py`."""

    def __init__(self, sources: Sources, path: str | None) -> None:
        self._sources = sources
        self._path = path

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002 - the import system's signature
        """Leave it to the import system."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Execute the bytes that were read, and let `inspect` see the same ones."""
        if self._path is None:
            return
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the import system's signature
        """The compiled source; its text goes where hidet.script looks for the lines of a function."""
        path = self._path or ""
        content = self._sources.read(path)
        # Not the file: an edit between now and the decoration of a kernel would be transpiled but not hashed.
        text = _decode(content, path)
        linecache.cache[path] = (len(content), None, io.StringIO(text + "\n").readlines(), path)
        code: CodeType = compile(content, path, "exec", dont_inherit=True)
        return code

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - the import system's signature
        """The text of the source."""
        return _decode(self._sources.read(self._path), self._path) if self._path else ""


class _Alias(Loader):
    """Gives the module of a source (or folder) a further name."""

    def __init__(self, name: str, also_folder: bool = False) -> None:
        self._name = name
        self._also_folder = also_folder

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the import system's signature
        """The module itself, executed."""
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute; but the import system has just made the alias the module's own name, so undo that."""
        module.__spec__ = self._spec
        if self._also_folder and not hasattr(module, "__path__"):
            # matmul/matmul.py is `matmul` by its plain name; `matmul.tiles` must still find matmul/tiles.py.
            module.__path__ = []


def _decode(content: bytes, path: str) -> str:
    try:
        return importlib.util.decode_source(content)
    except (UnicodeDecodeError, SyntaxError):
        raise user_failure(f"{path} is not UTF-8, and has no line that names its encoding", file=path) from None


def _advice(name: str) -> str:
    """What to write for a module that is not declared, for who does not know the workspace."""
    source = "a source of this workspace goes into `srcs` of a py_library, and that target into `deps`"
    if name.startswith(_INSIDE):
        return source
    top = name.partition(".")[0]
    found = distribution.bringing(top)
    if not found:
        return f"{source}; no installed distribution brings a module {top!r}"
    if len(found) == 1:
        return f"it comes with the installed distribution {found[0]}: add `requires: [{found[0]}]`"
    return f"add to `requires` the one you mean of the installed distributions that bring it: {', '.join(found)}"


def _base(names: Mapping[str, Any], level: int) -> str:
    """What a relative import starts from, up to the dot before what it names."""
    parts = str(names.get("__package__") or ROOT).split(".")
    return ".".join(parts[: max(1, len(parts) - level + 1)]) + "." if level else ""


def _is_source(names: Mapping[str, Any]) -> bool:
    name = names.get("__name__")
    return isinstance(name, str) and (name == ROOT or name.startswith(_INSIDE))


def _importer_is_source() -> bool:
    """Whether the code that asked for the import at hand is a source: also through `importlib.import_module`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _belongs_to_importing(frame.f_globals):
        frame = frame.f_back
    return frame is not None and _is_source(frame.f_globals)


def _belongs_to_importing(names: Mapping[str, Any]) -> bool:
    name = str(names.get("__name__"))
    return name == __name__ or name.partition(".")[0] == "importlib" or name.startswith("_frozen_importlib")
