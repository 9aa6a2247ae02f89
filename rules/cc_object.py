"""cc_object: handwritten C++ beside the kernels, compiled to an object file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hidet_build.rule import Artifact, Context, DefaultInfo, Provider, attr, rule

# What -g and __DATE__ would tell of this machine: a compiler takes PWD for its folder where that leads to it.
REPRODUCIBLE = {"PWD": "/proc/self/cwd", "SOURCE_DATE_EPOCH": "0"}
SOURCES = (".cc", ".cpp", ".cxx", ".c++", ".C", ".c")


@dataclass(frozen=True)
class CcInfo(Provider):
    """An object file, the names it exports, and the headers its users may include."""

    object: Artifact
    symbols: Artifact  # what `nm -P` prints of the object's global symbols
    headers: tuple[Artifact, ...]
    includes: tuple[str, ...]  # folders, from the workspace root, to search for headers


@rule(
    src=attr.file(required=True, suffixes=SOURCES, doc="the source"),
    hdrs=attr.files(doc="every header of this workspace that the source includes, and that dependents may include"),
    deps=attr.labels(provides=CcInfo, doc="cc_object targets whose headers the source includes"),
    includes=attr.strings(doc="folders of this package to search for headers; the workspace root always is"),
    defines=attr.strings(doc="macros to define, as NAME or NAME=VALUE"),
    copts=attr.strings(doc="further compiler flags"),
    target=attr.string(doc="hidet's target string; default: the platform's"),
)
def cc_object(ctx: Context) -> Sequence[Provider]:
    """Handwritten C++, compiled to an object that a `shared_library` or an `ir_module` links in.

    Headers are included by their path from the workspace root, relatively, or from a folder in `includes`.
    """
    attrs = ctx.attrs
    platform = ctx.target_platform(attrs.target)
    found = [dependency[CcInfo] for dependency in attrs.deps]
    headers = tuple(dict.fromkeys([*attrs.hdrs, *(header for info in found for header in info.headers)]))
    own = [
        f"{ctx.label.package}/{folder}".strip("/") if folder not in (".", "") else ctx.label.package or "."
        for folder in attrs.includes
    ]
    includes = tuple(dict.fromkeys([*own, *(folder for info in found for folder in info.includes)]))
    compiled, symbols = ctx.output("module.o", platform=platform), ctx.output("symbols.txt", platform=platform)
    ctx.action(
        "CppCompile",
        tool="cxx",
        arguments=[
            "g++",
            "-c",
            "-std=c++17",
            "-O3",
            "-m64",
            *platform.march,
            "-fPIC",
            "-fopenmp",
            "-I.",
            *(f"-I{folder}" for folder in includes),
            *(f"-D{name}" for name in attrs.defines),
            *attrs.copts,
            attrs.src.path,
            "-o",
            "module.o",
        ],
        inputs=ctx.by_path((attrs.src, *headers)),
        outputs={"module.o": compiled},
        environment=REPRODUCIBLE,
    )
    list_symbols(ctx, compiled, symbols)
    return [DefaultInfo((compiled,)), CcInfo(compiled, symbols, headers, includes)]


def list_symbols(ctx: Context, compiled: Artifact, out: Artifact) -> None:
    """Declare a list of the names an object exports, for `exported`."""
    ctx.action(
        "Symbols",
        tool="binutils",
        arguments=["sh", "-c", "nm -P -g --defined-only module.o > symbols.txt"],
        inputs={"module.o": compiled},
        outputs={"symbols.txt": out},
    )


def exported(symbols: str) -> list[str]:
    """The strong global names in what `nm -P` printed: those that may exist once in a library."""
    rows = (line.split() for line in symbols.splitlines())
    return [row[0] for row in rows if len(row) > 1 and row[1] in "TDBRGSC"]
