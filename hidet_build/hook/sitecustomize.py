"""What `hidet-build run-jit` puts on PYTHONPATH: Python imports it at start, before the program.

When the program imports hidet, hidet's compilation is redirected to hidet_build.drivers. Imports nothing by itself, and
lets a `sitecustomize` of the user's have its turn.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterHidet(MetaPathFinder):
    """Sees the import of hidet, and installs our drivers when it is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del target
        if fullname != "hidet":
            return None
        # It may only be asked whether hidet is here: who asks is given what others find, and we stay until it loads.
        others = (finder.find_spec(fullname, path) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Installing(spec.loader, self)
        return spec


class _Installing(Loader):
    """A loader that loads as another one does and then installs."""

    def __init__(self, loader: Loader, finder: _AfterHidet) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        sys.meta_path.remove(self._finder)
        self._loader.exec_module(module)
        importlib.import_module("hidet_build.jit").install()


def _next_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    ours = sys.modules.pop("sitecustomize")
    if importlib.util.find_spec("sitecustomize") is not None:
        importlib.import_module("sitecustomize")
    else:
        sys.modules["sitecustomize"] = ours


sys.meta_path.insert(0, _AfterHidet())
_next_sitecustomize()
