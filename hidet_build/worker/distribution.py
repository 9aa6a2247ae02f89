"""What hidet and the distributions a target requires bring along: the module names a kernel may import from outside.

Reads installed metadata only; imports none of what it finds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions

from hidet_build.worker.failure import user_failure

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def modules_of_hidet() -> frozenset[str]:
    """The top-level modules of hidet and of all it depends on, and the standard library's."""
    modules = {"hidet", *sys.stdlib_module_names, *sys.builtin_module_names}
    closure = _closure(["hidet"])
    if not closure:
        # hidet from a source tree has no metadata: what it imported is what it depends on.
        closure_modules = {name.partition(".")[0] for name in sys.modules}
    else:
        closure_modules = {module for found in closure for module in _top_level(found)}
    return frozenset(modules | closure_modules)


def modules_of(requirements: Iterable[str]) -> frozenset[str]:
    """The top-level modules of required distributions and of what they depend on.

    Raises StepFailure for a distribution that is not installed.
    """
    wanted = list(requirements)
    for requirement in wanted:
        try:
            distribution(_parse(requirement)[0])
        except (PackageNotFoundError, ValueError):
            raise user_failure(
                f"`requires` names {requirement!r}, and no such distribution is installed in {sys.executable}",
                hint=advice(requirement),
            ) from None
    return frozenset(module for found in _closure(wanted) for module in _top_level(found))


def installed(requirement: str) -> dict[str, tuple[str, frozenset[str]]] | None:
    """What a requirement is, and brings beyond hidet's own closure: versions and top-level modules of distributions.

    None where it is not installed.
    """
    try:
        named = distribution(_parse(requirement)[0]).metadata["Name"]
    except (PackageNotFoundError, ValueError):
        return None
    known = {found.metadata["Name"] for found in _closure(["hidet"])}
    return {
        found.metadata["Name"]: (found.version, frozenset(_top_level(found)))
        for found in _closure([requirement])
        if found.metadata["Name"] not in known or found.metadata["Name"] == named
    }


def closure_of_hidet() -> list[tuple[str, str, str]]:
    """What hidet depends on: name, version, and the file that says so ("" where that is not a file), sorted."""
    rows = []
    for found in _closure(["hidet"]):
        folder = getattr(found, "_path", None)  # of distributions on disk, the only ones that can change in place
        rows.append((found.metadata["Name"], found.version, str(folder / "METADATA") if folder else ""))
    return sorted(rows)


def bringing(module: str) -> list[str]:
    """The installed distributions that bring a top-level module, by name. Reads the metadata of all there are."""
    return sorted({name for name in packages_distributions().get(module, ()) if name})


def advice(requirement: str) -> str:
    """What to do about a requirement that is not installed: it may be the name of a module."""
    match = _NAME.match(requirement)
    names = bringing(match[1]) if match else []
    return f"did you mean {' or '.join(map(repr, names))}?" if names else f"pip install {requirement}"


def _closure(requirements: Iterable[str]) -> list[Distribution]:
    """The installed distributions among the requirements and, transitively, among theirs."""
    todo = [_parse(requirement) for requirement in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    found: dict[str, Distribution] = {}
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform, or optional after all
        found[name] = installed
        for requirement in installed.requires or ():
            needed_for = _EXTRA.search(requirement.partition(";")[2])
            if not needed_for or _canonical(needed_for[1]) in extras:
                todo.append(_parse(requirement))
    return list(found.values())


def _parse(requirement: str) -> tuple[str, frozenset[str]]:
    match = _NAME.match(requirement)
    if match is None:
        return requirement, frozenset()
    extras = frozenset(_canonical(extra.strip()) for extra in (match[2] or "").split(",") if extra.strip())
    return _canonical(match[1]), extras


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _top_level(installed: Distribution) -> set[str]:
    """The importable names of a distribution: what it says, and what its list of files shows."""
    names = set((installed.read_text("top_level.txt") or "").split())
    if names:
        return names
    for line in (installed.read_text("RECORD") or "").splitlines():
        first, slash, _ = line.partition(",")[0].partition("/")
        name = first if slash else first.partition(".")[0]
        if name.isidentifier() and name != "__pycache__" and (slash or first.endswith((".py", ".so"))):
            names.add(name)
    # An editable install lists no files of its own; its module mostly has its name.
    return names or {_canonical(installed.metadata["Name"]).replace("-", "_")}
