"""Makes hidet's own compilation go through our drivers: `build()` of modules and scripts, tasks, graphs, torch.compile.

    import hidet_build.jit
    hidet_build.jit.install()            for the rest of the process
    with hidet_build.jit.enabled(): ...  or for a while

Install first: `from hidet.drivers import build_task` before it keeps hidet's own function under that name. `hidet-build
run-jit -- python model.py` installs before the program starts. Knows which names of hidet's to replace; everything else
is drivers.py.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from hidet_build import drivers

__all__ = ["enabled", "install"]


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Let hidet compile through our drivers while the body runs. Not meant for several threads at once."""
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in _replacements()]
    install()
    try:
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


def install() -> None:
    """Let hidet compile through our drivers from now on. Calling it again changes nothing."""
    for holder, name, value in _replacements():
        setattr(holder, name, value)


def _replacements() -> list[tuple[Any, str, Any]]:
    """What is replaced: the object, the name, our value."""
    package = importlib.import_module("hidet.drivers")
    module = importlib.import_module("hidet.drivers.build_module")
    task = importlib.import_module("hidet.drivers.build_task")
    ir = importlib.import_module("hidet.ir.module")
    names = ("build_ir_module", "build_ir_module_batch")
    found = [(holder, name, getattr(drivers, name)) for holder in (package, module, task) for name in names]
    found += [(holder, "build_task", drivers.build_task) for holder in (package, task)]
    # hidet names the folder of a module by its printed form, which leaves out constants: two modules, one folder.
    return [*found, (ir.IRModule, "build", drivers.build_and_load)]
