"""shared_library: the objects of many modules in one library."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hidet_build.rules.cc_object import CcInfo, exported
from hidet_build.rules.ir_module import (
    ModuleInfo,
    Read,
    launch_rename,
    link,
    merge_row,
    merge_types,
    rename_symbols,
    renamed,
    symbol_renames,
    write,
)

from hidet_build.rule import AnalysisError, Artifact, Context, DefaultInfo, Dependency, Provider, attr, rule


@rule(modules=attr.labels(required=True, provides=[ModuleInfo, CcInfo], doc="ir_module and cc_object targets"))
def shared_library(ctx: Context) -> Sequence[Provider]:
    """Several modules and handwritten objects in one library.

    It exports every public function of the modules and everything the handwritten objects export. A module that has
    only the `launch` hidet adds exports it under the name of its target.
    """
    modules = [dependency for dependency in ctx.attrs.modules if dependency.get(ModuleInfo)]
    handwritten = [dependency for dependency in ctx.attrs.modules if dependency.get(CcInfo)]
    if not modules and not handwritten:
        raise AnalysisError(f"{ctx.label} links nothing: modules is empty", location=ctx.where("modules"))
    _one_platform([*modules, *handwritten])
    platform = modules[0][ModuleInfo].platform if modules else ctx.platform
    library = ctx.output("lib.so", platform=platform)
    types, functions = (
        ctx.output("func_types.pickle", platform=platform),
        ctx.output("functions.json", platform=platform),
    )
    outputs = [library, types, functions] if modules else [library]
    waited = [module[ModuleInfo].functions for module in modules]
    waited += [dependency[CcInfo].symbols for dependency in handwritten]

    def expand(later: Context, read: Read) -> None:
        _assemble(later, modules, handwritten, read, outputs)

    ctx.then(waited, outputs, expand)
    folder = ctx.output("", platform=platform, directory=True) if modules else None
    return [DefaultInfo(tuple(outputs), folder=folder)]


def _one_platform(parts: Sequence[Dependency]) -> None:
    first = parts[0]
    for other in parts:
        here, there = _object(first).platform, _object(other).platform
        if here != there:
            raise AnalysisError(
                f"{first.label} is built for {here} and {other.label} for {there}: they cannot be linked together",
                location=other.location,
            )


def _object(dependency: Dependency) -> Artifact:
    module = dependency.get(ModuleInfo)
    return module.object if module else dependency[CcInfo].object


def _assemble(
    ctx: Context,
    modules: Sequence[Dependency],
    handwritten: Sequence[Dependency],
    read: Read,
    outputs: Sequence[Artifact],
) -> None:
    """Declare the renames, the merged tables and the link, now that every module's functions are known."""
    owners: dict[str, Dependency] = {}
    objects: list[Artifact] = []
    functions = []
    merges = []
    for index, dependency in enumerate(modules):
        info = dependency[ModuleInfo]
        table = json.loads(read(info.functions))
        renames = launch_rename(table, dependency.label.name)
        kept = renamed(table["functions"], renames)
        for function in kept:
            _claim(ctx, owners, function["symbol"], function["name"], dependency)
        functions += kept
        merges.append(merge_row(f"{index}.pickle", renames))
        symbols = symbol_renames(table, renames)
        if symbols:
            out = ctx.output(f"objects/{index}.o", platform=info.platform)
            rename_symbols(ctx, info.object, out, [], symbols)
            objects.append(out)
        else:
            objects.append(info.object)
        objects += info.objects
    for dependency in handwritten:
        cc = dependency[CcInfo]
        for symbol in exported(read(cc.symbols).decode()):
            _claim(ctx, owners, symbol, symbol, dependency)
        objects.append(cc.object)
    if modules:
        library, types, table_file = outputs
        merge_types(ctx, merges, [module[ModuleInfo].types for module in modules], types)
        whole = {"automatic_launch": False, "functions": functions, "globals": [], "namespace": ""}
        write(ctx, json.dumps(whole, indent=1, sort_keys=True) + "\n", table_file)
    else:
        (library,) = outputs
    arguments = [module[ModuleInfo].link_arguments for module in modules]
    others = {file.path: file for module in modules for file in module[ModuleInfo].link_inputs}
    cuda = any(module[ModuleInfo].platform.kind == "cuda" for module in modules)
    link(ctx, library, list(dict.fromkeys(objects)), arguments, others, hidet=bool(modules), cuda=cuda)


def _claim(ctx: Context, owners: dict[str, Dependency], symbol: str, name: str, dependency: Dependency) -> None:
    """Note that `dependency` exports a symbol; two that export the same one cannot be in one library."""
    other = owners.setdefault(symbol, dependency)
    if other is not dependency:
        raise AnalysisError(
            f"{ctx.label}: {other.label} and {dependency.label} both export {name!r}",
            location=dependency.location,
            related=[("the other one", other.location)],
            hint="give one of the functions another name (attrs.func_name in hidet.script)",
        )
