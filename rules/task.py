"""task: a hidet Task -> a library with all its candidates, which picks the fastest when it is called.

The story of one target, with N the number of candidates in the search space (known only when the task is implemented):

    sources --lower-task--> lowered/ (the module that calls, N candidates), meta.json, candidates.txt, ...
            --codegen (N + 1 times)--> module.cc, functions.json, ... --compile (N + 1 times)--> objects
            --localize (N times: each candidate gets a namespace of its own)--> candidate.o --link--> lib.so

A task with one candidate has it in the module that calls: then there are no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from hidet_build.rules.cc_object import CcInfo, exported, list_symbols
from hidet_build.rules.ir_module import (
    Needs,
    Read,
    compile_module,
    generate_source,
    kernel_needs,
    link,
    lower,
    refuse_unsupported,
    rename_symbols,
)
from hidet_build.rules.py_library import PyInfo

from hidet_build.rule import Artifact, Context, DefaultInfo, Platform, Provider, attr, rule

# What hidet leaves in a task's folder beside the library. Its loader reads meta.json alone; task.pickle is not here,
# for it differs from run to run, and whoever reads it runs what is in it.
FILES = ("candidates.json", "candidates.txt", "meta.json", "task.txt", "version.txt")
_FOLDER = "task.files"  # in the execution root


@rule(
    src=attr.file(required=True, suffixes=[".py"], doc="the Python file"),
    entry=attr.string(doc="what in `src` makes the task; default: the target's name"),
    args=attr.data(doc="keyword arguments for the entry"),
    search_space=attr.string(
        default="0",
        choices=["0", "1", "2"],
        doc="how many candidates hidet makes: 0 one, by its own choice; 1 some; 2 all it knows, maybe hundreds",
    ),
    deps=attr.labels(provides=[PyInfo, CcInfo], doc="py_library targets the source imports; cc_objects it calls"),
    data=attr.files(doc="files the source reads, by their path from the workspace root"),
    requires=attr.strings(doc="installed distributions the source imports, beside hidet and what it depends on"),
    target=attr.string(doc="hidet's target string, like \"cpu --arch=x86-64-v4\"; default: the platform's"),
)
def task(ctx: Context) -> Sequence[Provider]:
    """A hidet Task with all its candidates in a search space, as `hidet.drivers.build_task` builds it.

    `entry` is a function of `src` that returns a Task, or the output tensor of one operator, whose task it is. Load the
    output folder with `hidet_build.drivers.load_task`: called with the input tensors it times the candidates, once, and
    returns the outputs. `hidet.runtime.load_compiled_task` takes it too; on a CPU it can call a task of one candidate.
    """
    platform = ctx.target_platform(ctx.attrs.target)
    refuse_unsupported(ctx, platform)
    needs = kernel_needs(ctx)
    lowered = ctx.output("lowered", platform=platform, directory=True)
    files = {name: ctx.output(name, platform=platform) for name in FILES}
    lower(
        ctx,
        platform,
        "lower-task",
        needs,
        ["--option", f"search_space={ctx.attrs.search_space}", "--out", "lowered", "--files", _FOLDER],
        {"lowered": lowered, **{f"{_FOLDER}/{name}": file for name, file in files.items()}},
    )
    names = ("lib.so", "func_types.pickle", "functions.json")
    made = {name: ctx.output(name, platform=platform) for name in names}

    def expand(later: Context, read: Read) -> None:
        _build(later, platform, lowered, json.loads(read(lowered.child("task.json"))), needs, made["lib.so"])

    ctx.then([lowered.child("task.json")], list(made.values()), expand)
    return [
        DefaultInfo(
            (*made.values(), *files.values()),
            folder=ctx.output("", platform=platform, directory=True),
            note='load it: hidet_build.drivers.load_task("{folder}")',
        )
    ]


def _build(
    ctx: Context,
    platform: Platform,
    lowered: Artifact,
    modules: Mapping[str, Mapping[str, str] | Sequence[Mapping[str, str]]],
    needs: Needs,
    library: Artifact,
) -> None:
    """Declare all that follows once the candidates are counted; the files of `main` are the target's own."""
    headers = {header.path: header for header in needs.headers}
    folders = ["", *(f"candidates/{number}/" for number, _ in enumerate(modules["candidates"]))]
    objects, arguments = [], []
    for where, module in zip(folders, [modules["main"], *modules["candidates"]], strict=True):
        part = generate_source(ctx, platform, where, lowered.child(module["pickle"]))
        out = ctx.output(where + ("candidate.o" if where else "module.o"), platform=platform)
        _compile(ctx, platform, where, part, headers, out)
        objects.append(out)
        arguments.append(part["link.args"])
    others = {file.path: file for file in needs.linked}
    link(ctx, library, [*objects, *needs.objects], arguments, others, hidet=True, cuda=platform.kind == "cuda")


def _compile(
    ctx: Context,
    platform: Platform,
    where: str,
    part: Mapping[str, Artifact],
    headers: Mapping[str, Artifact],
    out: Artifact,
) -> None:
    """Declare the compile of one module as soon as its source is there; a candidate is renamed."""

    def expand(later: Context, read: Read) -> None:
        described = json.loads(read(part["functions.json"]))
        if not where:
            compile_module(later, platform, where, part, described, headers, out, {})
            return
        compiled = later.output(where + "module.o", platform=platform)
        compile_module(later, platform, where, part, described, headers, compiled, {})
        rename_candidate(later, platform, where, compiled, described["namespace"], out)

    ctx.then([part["functions.json"]], [out], expand)


def rename_candidate(
    ctx: Context, platform: Platform, where: str, compiled: Artifact, namespace: str, out: Artifact
) -> None:
    """Declare a candidate's object with its namespace changed to the one that the task's module calls.

    The source has one namespace for all candidates, so that tasks which share a candidate share its object; `where`
    is `candidates/3/` for what is called as `candidate_3::launch`.
    """
    symbols = ctx.output(f"{where}symbols.txt", platform=platform)
    list_symbols(ctx, compiled, symbols)
    before = f"_ZN{len(namespace)}{namespace}"
    name = f"candidate_{where.split('/')[1]}"

    def expand(later: Context, read: Read) -> None:
        found = [symbol for symbol in exported(read(symbols).decode()) if symbol.startswith(before)]
        renames = {symbol: f"_ZN{len(name)}{name}{symbol.removeprefix(before)}" for symbol in found}
        rename_symbols(later, compiled, out, [], renames)

    ctx.then([symbols], [out], expand)
