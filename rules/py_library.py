"""py_library: Python sources that kernels import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hidet_build.rule import Artifact, Context, DefaultInfo, Dependency, Provider, attr, rule


@dataclass(frozen=True)
class PyInfo(Provider):
    """What a kernel that depends on this target may import, with all that the target depends on itself."""

    sources: tuple[Artifact, ...] = ()
    imports: tuple[str, ...] = ()  # folders, from the workspace root, whose files go by their plain name
    requires: tuple[str, ...] = ()  # installed distributions


def python_closure(
    sources: Sequence[Artifact], imports: Sequence[str], requires: Sequence[str], deps: Sequence[Dependency]
) -> PyInfo:
    """These sources, import folders and requirements and those of `deps`, each once, in a stable order."""
    found = [PyInfo(tuple(sources), tuple(imports), tuple(requires))]
    found += [info for info in (dependency.get(PyInfo) for dependency in deps) if info is not None]
    return PyInfo(
        tuple(dict.fromkeys(source for info in found for source in info.sources)),
        tuple(dict.fromkeys(folder for info in found for folder in info.imports)),
        tuple(dict.fromkeys(name for info in found for name in info.requires)),
    )


@rule(
    srcs=attr.files(required=True, suffixes=[".py"], doc="the sources"),
    deps=attr.labels(provides=PyInfo, doc="py_library targets these sources import"),
    imports=attr.strings(doc="folders of this package whose files can be imported by their plain name"),
    requires=attr.strings(doc="installed distributions these sources import, beside hidet and what it depends on"),
)
def py_library(ctx: Context) -> Sequence[Provider]:
    """Python sources that kernels import.

    A source can be imported by its path from the workspace root (`import kernels.tiles`), relatively, and by its
    plain name from the folders in `imports`.
    """
    package = ctx.label.package
    folders = [_folder(package, name) for name in ctx.attrs.imports]
    info = python_closure(ctx.attrs.srcs, folders, ctx.attrs.requires, ctx.attrs.deps)
    return [DefaultInfo(ctx.attrs.srcs), info]


def _folder(package: str, name: str) -> str:
    inside = "" if name in (".", "") else name.rstrip("/")
    return "/".join(part for part in (package, inside) if part) or "."
