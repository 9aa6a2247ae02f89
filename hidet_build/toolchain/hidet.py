"""Says what hidet is, and what a kernel may import beside it, without importing any of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec

from hidet_build.errors import EnvironmentFailure, Location
from hidet_build.toolchain.base import Evidence, Search, Toolchain, run_path
from hidet_build.worker.version import STEP_VERSION


def find(search: Search, module_path: Sequence[str] | None, location: Location | None) -> Toolchain:
    """hidet as it is installed in `module_path`, by default where we import from. EnvironmentFailure without one."""
    place = folder(module_path, location)
    others = {name: _package_folder(name, module_path) or "" for name in ("torch", "numpy")}
    key = ("hidet", sys.executable, place, *others.values(), str(STEP_VERSION))
    return search.memo.recall(key, lambda: _probe(place, others, module_path))


def find_with(search: Search, name: str, hidet: Toolchain, location: Location | None) -> Toolchain:
    """hidet and the distributions a kernel requires beside it: `hidet+einops+scipy`."""
    key = (name, sys.executable, hidet.identity, *sys.path)
    return search.memo.recall(key, lambda: _probe_with(name, hidet, location))


def _probe_with(name: str, hidet: Toolchain, location: Location | None) -> Toolchain:
    from hidet_build.worker.distribution import (  # importlib.metadata, for those who require something
        advice,
        installed,
    )

    found: dict[str, tuple[str, frozenset[str]]] = {}
    for requirement in name.split("+")[1:]:
        brought = installed(requirement)
        if brought is None:
            raise EnvironmentFailure(
                f"`requires` names {requirement!r}, which is not installed in {sys.executable}",
                location=location,
                hint=advice(requirement),
            )
        found.update(brought)
    words = [hidet.version, *(f"{name} {version}" for name, (version, _) in sorted(found.items()))]
    evidence = Evidence(f"hidet {hidet.identity}", ", ".join(words))
    evidence.watch(path for path, _ in hidet.parts)
    for module in sorted({module for _, modules in found.values() for module in modules}):
        _add_module(module, evidence)
    return evidence.toolchain(hidet.executables, hidet.path)


def _add_module(name: str, evidence: Evidence) -> None:
    """Add the content of an importable top-level module, wherever it is installed."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        files, folders = _package_files(folder)
        for file in files:
            evidence.add(f"{name}/{os.path.relpath(file, folder)}", [file])
        evidence.watch(folders)
    if spec and not spec.submodule_search_locations and spec.origin and os.path.isfile(spec.origin):
        evidence.add(name, [spec.origin])


def folder(module_path: Sequence[str] | None, location: Location | None) -> str:
    """Where the package hidet lies. EnvironmentFailure where it does not."""
    found = _package_folder("hidet", module_path)
    if found is None:
        raise EnvironmentFailure(
            f"hidet is not installed in {sys.executable}",
            location=location,
            hint="pip install 'hidet-build[hidet]'",
        )
    return found


def _probe(place: str, others: Mapping[str, str], module_path: Sequence[str] | None) -> Toolchain:
    search = sys.path if module_path is None else module_path
    versions = {"hidet": _installed_version("hidet", place, search)}
    for name, other in others.items():
        versions[name] = _installed_version(name, other, search) if other else ("none", ())
    words = [f"{name} {version}" for name, (version, _) in versions.items()]
    words += [f"Python {sys.version_info[0]}.{sys.version_info[1]}", f"step {STEP_VERSION}"]
    evidence = Evidence("hidet", ", ".join(words))
    for _, sources in versions.values():
        evidence.watch(sources)
    if module_path is None:
        from hidet_build.worker.distribution import closure_of_hidet  # importlib.metadata, when probing alone

        # A kernel may import all of it, so all of it counts, by version.
        for name, version, metadata in closure_of_hidet():
            evidence.count(f"{name} {version}")
            evidence.watch([metadata] if metadata else [])
    files, folders = _package_files(place)
    for file in files:
        evidence.add(os.path.relpath(file, place), [file])
    evidence.watch(folders)
    return evidence.toolchain({"python3": sys.executable}, run_path([sys.executable]))


def _package_folder(name: str, module_path: Sequence[str] | None) -> str | None:
    """The folder of the package, without importing it; folders that merely have its name do not count."""
    spec = PathFinder.find_spec(name, module_path)
    if module_path is None and not _is_package(spec):
        # An editable install may be found by a finder of its own only.
        specs = (finder.find_spec(name, None, None) for finder in sys.meta_path)
        spec = next((found for found in specs if _is_package(found)), None)
    return os.path.dirname(spec.origin) if spec and spec.origin and _is_package(spec) else None


def _is_package(spec: ModuleSpec | None) -> bool:
    return bool(spec and spec.origin and os.path.basename(spec.origin) == "__init__.py")


def _installed_version(name: str, folder: str, search: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The version of an installed package, and the files that say it.

    Read from the name of the `.dist-info` folder: importlib.metadata costs more than all else here.
    """
    pattern = re.compile(re.escape(name) + r"-(.+)\.dist-info\Z", re.IGNORECASE)
    for place in [os.path.dirname(folder), *search]:
        found = sorted(match[0] for entry in _entries(place) if (match := pattern.match(entry)))
        if found:
            names = [re.sub(pattern, r"\1", entry) for entry in found]
            return ", ".join(names), tuple(os.path.join(place, entry, "METADATA") for entry in found)
    return "of unknown version", (os.path.dirname(folder),)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def _package_files(folder: str) -> tuple[list[str], list[str]]:
    """The files below `folder` in the order of their paths, and the folders; what Python itself writes left out."""
    files, folders = [], []
    for place, below, names in os.walk(folder, followlinks=True):
        below[:] = [name for name in below if name != "__pycache__"]
        folders.append(place)
        files += [os.path.join(place, name) for name in names if not name.endswith((".pyc", ".pyo"))]
    return sorted(file for file in files if os.path.isfile(file)), sorted(folders)
