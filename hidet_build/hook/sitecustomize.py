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
    """Sees the import of hidet, steps aside, and installs our drivers when it is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != "hidet":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("hidet")
        if spec is not None and spec.loader is not None:
            spec.loader = _Installing(spec.loader)
        return spec


class _Installing(Loader):
    """A loader that loads as another one does and then installs."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
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
