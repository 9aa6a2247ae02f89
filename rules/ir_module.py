"""ir_module: Python that builds hidet IR -> an object file and a shared library.

The story of one target, with N the number of IR modules its entry returned (known only when it has run):

    sources --lower--> lowered/  --codegen (N times)--> module.cc, functions.json, ... --compile (N times)--> objects
            --localize, join (where needed)--> module.o --link--> lib.so

For CUDA the generated source is module.cu, nvcc compiles it, and ptxas.txt beside the object keeps what ptxas said of
each kernel: registers, spills, shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hidet_build.rules.cc_object import CcInfo
from hidet_build.rules.py_library import PyInfo, python_closure

from hidet_build.rule import (
    AnalysisError,
    Artifact,
    Context,
    DefaultInfo,
    Input,
    Platform,
    Provider,
    Text,
    attr,
    rule,
)

WORKER = ("python3", "-m", "hidet_build.worker")
# hidet's own flags for CPU code; the language standard and include folders come from codegen in compile.args.
CPU_FLAGS = ("-O3", "-mavx2", "-m64", "-ffast-math")
# And for the host's half of CUDA code.
HOST_FLAGS = ("-fPIC", "-m64", "-O3", "-funroll-loops", "-ffast-math")
# Variables nobody uses, and divisions by zero in branches never taken: generated code is full of them.
SUPPRESSED = "177,179,39,550"
# ptxas writes what a kernel needs where its warnings go. It belongs into a file, without the time it took; whatever
# else nvcc says is for people.
NVCC_SCRIPT = """\
"$0" "$@" 2>log.txt; code=$?
sed -n -e '/Compile time = /d' -e '/^ptxas info /p' -e '/ bytes stack frame, /p' log.txt >ptxas.txt
sed -e '/^ptxas info /d' -e '/ bytes stack frame, /d' log.txt >&2
exit $code
"""
# Of the files in `data`, those that an IRModule's include_dirs, and its object_files and linking_dirs, are about.
HEADERS = (".h", ".hh", ".hpp", ".cuh", ".inc", ".inl")
LINKABLE = (".o", ".a", ".so")
Read = Callable[[Artifact], bytes]


@dataclass(frozen=True)
class ModuleInfo(Provider):
    """An object file of hidet functions and what is known of them."""

    object: Artifact
    functions: Artifact  # functions.json
    types: Artifact  # func_types.pickle
    link_arguments: Artifact  # an argument file for the linker
    objects: tuple[Artifact, ...]  # handwritten objects it needs
    link_inputs: tuple[Artifact, ...]  # files the link arguments may name by their path
    platform: Platform


@rule(
    src=attr.file(required=True, suffixes=[".py"], doc="the Python file"),
    entry=attr.string(doc="what in `src` makes the IR; default: the target's name"),
    args=attr.data(doc="keyword arguments for the entry"),
    deps=attr.labels(provides=[PyInfo, CcInfo], doc="py_library targets the source imports; cc_objects it calls"),
    data=attr.files(doc="files the source reads, by their path from the workspace root"),
    requires=attr.strings(doc="installed distributions the source imports, beside hidet and what it depends on"),
    target=attr.string(doc="hidet's target string, like \"cpu --arch=x86-64-v4\"; default: the platform's"),
    output_kind=attr.string(default=".so", choices=[".so", ".o"], doc="stop at the object, or link a library"),
)
def ir_module(ctx: Context) -> Sequence[Provider]:
    """A hidet kernel.

    `entry` is a function of `src` that returns an IRModule, a list of them, a Task, or the output tensor of one
    operator; or a `hidet.script` function or script module. The output folder can be given to
    `hidet.runtime.load_compiled_module`.
    """
    attrs = ctx.attrs
    platform = ctx.target_platform(attrs.target)
    refuse_unsupported(ctx, platform)
    needs = kernel_needs(ctx)
    lowered = ctx.output("lowered", platform=platform, directory=True)
    lower(ctx, platform, "lower", needs, ["--out", "lowered"], {"lowered": lowered})
    names = ("module.o", "functions.json", "func_types.pickle", "link.args")
    made = {name: ctx.output(name, platform=platform) for name in names}
    library = ctx.output("lib.so", platform=platform)

    def expand(later: Context, read: Read) -> None:
        modules = json.loads(read(lowered.child("modules.json")))["modules"]
        _generate(later, platform, lowered, modules, {header.path: header for header in needs.headers}, made)

    ctx.then([lowered.child("modules.json")], list(made.values()), expand)
    provided = ModuleInfo(
        made["module.o"],
        made["functions.json"],
        made["func_types.pickle"],
        made["link.args"],
        needs.objects,
        needs.linked,
        platform,
    )
    if attrs.output_kind == ".o":
        return [DefaultInfo((made["module.o"], made["functions.json"])), provided]
    link(
        ctx,
        library,
        [made["module.o"], *needs.objects],
        [made["link.args"]],
        {file.path: file for file in needs.linked},
        hidet=True,
        cuda=platform.kind == "cuda",
    )
    files_made = (library, made["func_types.pickle"], made["functions.json"])
    return [DefaultInfo(files_made, folder=ctx.output("", platform=platform, directory=True)), provided]


@dataclass(frozen=True)
class Needs:
    """What a kernel's source, its compile and its link need beside what is made for them."""

    info: PyInfo
    data: tuple[Artifact, ...]
    headers: tuple[Artifact, ...]
    objects: tuple[Artifact, ...]  # handwritten ones
    linked: tuple[Artifact, ...]  # files that link arguments may name


def kernel_needs(ctx: Context) -> Needs:
    """What the attributes `src`, `deps`, `data` and `requires` of a kernel come to."""
    attrs = ctx.attrs
    handwritten = [cc for dependency in attrs.deps if (cc := dependency.get(CcInfo))]
    headers = [header for cc in handwritten for header in cc.headers]
    return Needs(
        python_closure([attrs.src], [], attrs.requires, attrs.deps),
        attrs.data,
        (*headers, *(file for file in attrs.data if file.path.endswith(HEADERS))),
        tuple(cc.object for cc in handwritten),
        tuple(file for file in attrs.data if file.path.endswith(LINKABLE)),
    )


def lower(
    ctx: Context,
    platform: Platform,
    step: str,
    needs: Needs,
    more: Sequence[str],
    outputs: Mapping[str, Artifact],
) -> None:
    """Declare the run of the source by a step of the worker's that takes `lower`'s arguments and `more`."""
    attrs, info = ctx.attrs, needs.info
    arguments = [*WORKER, step, "--src", attrs.src.path, "--entry", attrs.entry or ctx.label.name]
    arguments += ["--args", json.dumps(attrs.args, sort_keys=True, ensure_ascii=False), *target_arguments(platform)]
    for folder in info.imports:
        arguments += ["--import", folder]
    for name in info.requires:
        arguments += ["--requires", name]
    files = dict.fromkeys([*info.sources, *needs.data, *needs.headers])
    ctx.action(
        "HidetLower",
        tool="+".join(["hidet", *sorted(info.requires)]),
        arguments=[*arguments, *more],
        inputs=ctx.by_path(files),
        outputs=outputs,
    )


def refuse_unsupported(ctx: Context, platform: Platform) -> None:
    """Refuse a platform that nothing here compiles for."""
    if platform.kind == "hip":
        raise AnalysisError(
            f"target {platform.target!r} cannot be built: only cpu and cuda can", location=ctx.where("target")
        )


def target_arguments(platform: Platform) -> list[str]:
    """What a step of the worker is told of the platform."""
    options = [word for name, value in platform.options for word in ("--option", f"{name}={value}")]
    return ["--target", platform.target, *options]


def generated_files(kind: str) -> tuple[str, ...]:
    """What the codegen step writes, the source first."""
    source = "module.cu" if kind == "cuda" else "module.cc"
    return (source, "prelude.h", "functions.json", "func_types.pickle", "compile.args", "link.args")


def _generate(
    ctx: Context,
    platform: Platform,
    lowered: Artifact,
    modules: Sequence[Mapping[str, Any]],
    headers: Mapping[str, Artifact],
    made: Mapping[str, Artifact],
) -> None:
    """Declare codegen for each lowered module, and what follows once their functions are known."""
    parts = []
    for index, module in enumerate(modules):
        # One module is the target itself; of several, each has a folder of its own.
        where = "" if len(modules) == 1 else f"parts/{index}/"
        parts.append((where, generate_source(ctx, platform, where, lowered.child(module["pickle"]))))

    def expand(later: Context, read: Read) -> None:
        described = [json.loads(read(part["functions.json"])) for _, part in parts]
        if not any(table["functions"] for table in described):
            raise AnalysisError(
                f"{ctx.label}: what it builds has no public function, so nothing could be called",
                location=ctx.where("entry"),
                hint='set attrs.func_kind = "public" (or "cpu_kernel") in the function to export',
            )
        if len(parts) == 1:
            compile_module(later, platform, *parts[0], described[0], headers, made["module.o"], {})
        else:
            _join(later, platform, parts, described, headers, read, made)

    waited = [part[name] for _, part in parts for name in ("functions.json", "link.args")]
    promised = [made["module.o"]] if len(parts) == 1 else list(made.values())
    ctx.then(waited, promised, expand)


def generate_source(ctx: Context, platform: Platform, where: str, lowered: Artifact) -> dict[str, Artifact]:
    """Declare codegen for one lowered module, into the folder `where` of the target's outputs; the files by name."""
    part = {name: ctx.output(where + name, platform=platform) for name in generated_files(platform.kind)}
    ctx.action(
        "HidetCodegen",
        tool="hidet",
        arguments=[*WORKER, "codegen", *target_arguments(platform), "module.pickle", "--out", "."],
        inputs={"module.pickle": lowered},
        outputs=part,
    )
    return part


def compile_module(
    ctx: Context,
    platform: Platform,
    where: str,
    part: Mapping[str, Artifact],
    described: Mapping[str, Any],
    headers: Mapping[str, Artifact],
    out: Artifact,
    renames: Mapping[str, str | None],
) -> None:
    """Declare the compile of one module; its global variables and what `renames` says become local or get new names.

    `part` has what codegen wrote, `described` is its functions.json; `headers` go by their path in the execution root.
    What lies between goes into the folder `where` of the target's outputs.
    """
    needs_objcopy = bool(described["globals"] or renames)
    compiled = ctx.output(where + "compiled.o", platform=platform) if needs_objcopy else out
    source = generated_files(platform.kind)[0]
    inputs = _apart(ctx, {name: part[name] for name in (source, "prelude.h", "compile.args")}, headers)
    if platform.kind == "cuda":
        said = ctx.output(where + "ptxas.txt", platform=platform)
        ctx.action(
            "CudaCompile",
            tool="nvcc",
            arguments=["sh", "-c", NVCC_SCRIPT, "nvcc", *nvcc_flags(platform), source, "-o", "module.o"],
            inputs=inputs,
            outputs={"module.o": compiled, "ptxas.txt": said},
            trees=["hidet/include"],
        )
    else:
        flags = [*CPU_FLAGS, *platform.march, "-fPIC", "-fopenmp"]
        ctx.action(
            "CppCompile",
            tool="cxx",
            arguments=["g++", "-c", *flags, "@compile.args", source, "-o", "module.o"],
            inputs=inputs,
            outputs={"module.o": compiled},
            trees=["hidet/include"],
        )
    if needs_objcopy:
        rename_symbols(ctx, compiled, out, described["globals"], renames)


def nvcc_flags(platform: Platform) -> list[str]:
    """hidet's own flags for CUDA code, and what makes the object the same in every folder and run.

    Temporary names go into symbols unless they are made of the object's name (-objtemp), and line information would
    bring times and paths of headers along.
    """
    number = platform.arch.removeprefix("sm_")
    options = dict(platform.options)
    return [
        *("-c", "-objtemp", "-O3", "-gencode", f"arch=compute_{number},code=sm_{number}"),
        *("-Xcompiler", ",".join([*HOST_FLAGS, *platform.march])),
        f"-ftz={options.get('cuda.build.ftz', 'true')}",
        f"-prec-div={options.get('cuda.build.prec_div', 'false')}",
        *("--diag-suppress", SUPPRESSED, "-Xptxas", "-v", "--options-file", "compile.args"),
    ]


def _apart(ctx: Context, ours: Mapping[str, Input], theirs: Mapping[str, Artifact]) -> dict[str, Input]:
    """Inputs whose names we choose, and files that come under their own path: none may take the place of another."""
    for path in ours.keys() & theirs.keys():
        raise AnalysisError(
            f"{ctx.label}: a file of the workspace root cannot be called {path!r} here: generated files are",
            location=ctx.where("data"),
            hint="put it into a folder",
        )
    return {**ours, **theirs}


def rename_symbols(
    ctx: Context, source: Artifact, out: Artifact, local: Sequence[str], renames: Mapping[str, str | None]
) -> None:
    """Declare a copy of an object with some symbols made local and others renamed (to None: made local too)."""
    lines = [f"--localize-symbol={name}" for name in local]
    lines += [
        f"--localize-symbol={old}" if new is None else f"--redefine-sym={old}={new}" for old, new in renames.items()
    ]
    ctx.action(
        "Localize",
        tool="binutils",
        arguments=["objcopy", "@symbols.args", "module.o", "localized.o"],
        inputs={"module.o": source, "symbols.args": Text("\n".join(lines) + "\n")},
        outputs={"localized.o": out},
    )


def _join(
    ctx: Context,
    platform: Platform,
    parts: Sequence[tuple[str, Mapping[str, Artifact]]],
    described: Sequence[Mapping[str, Any]],
    headers: Mapping[str, Artifact],
    read: Read,
    made: Mapping[str, Artifact],
) -> None:
    """Declare one object out of those of several modules, and the tables that go with it."""
    functions, merges = join_modules(ctx, platform, parts, described, headers, made["module.o"])
    merge_types(ctx, merges, [part["func_types.pickle"] for _, part in parts], made["func_types.pickle"])
    whole = {"automatic_launch": False, "functions": functions, "globals": [], "namespace": ""}
    write(ctx, json.dumps(whole, indent=1, sort_keys=True) + "\n", made["functions.json"])
    arguments = [line for _, part in parts for line in read(part["link.args"]).decode().splitlines()]
    write(ctx, "".join(f"{line}\n" for line in dict.fromkeys(arguments)), made["link.args"])


def join_modules(
    ctx: Context,
    platform: Platform,
    parts: Sequence[tuple[str, Mapping[str, Artifact]]],
    described: Sequence[Mapping[str, Any]],
    headers: Mapping[str, Artifact],
    out: Artifact,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Declare one object out of those of several modules.

    The public functions under the names they have in it, and a row for `merge_types` of each module.
    """
    owners: dict[str, str] = {}
    objects = []
    functions: list[dict[str, Any]] = []
    merges = []
    for index, ((where, part), table) in enumerate(zip(parts, described, strict=True)):
        renames = launch_rename(table, f"{ctx.label.name}_{index}")
        kept = renamed(table["functions"], renames)
        for function in kept:
            other = owners.setdefault(function["name"], f"module {index}")
            if other != f"module {index}":
                raise AnalysisError(
                    f"{ctx.label}: {other} and module {index} of the list both have a public function "
                    f"{function['name']!r}",
                    location=ctx.where("entry"),
                    hint="give one of them another attrs.func_name",
                )
        functions += kept
        merges.append(merge_row(f"{index}.pickle", renames))
        compiled = ctx.output(where + "module.o", platform=platform)
        compile_module(ctx, platform, where, part, table, headers, compiled, symbol_renames(table, renames))
        objects.append(compiled)
    names = [f"{index}.o" for index in range(len(objects))]
    ctx.action(
        "Join",
        tool="binutils",
        arguments=["ld", "-r", "@objects.args", "-o", "module.o"],
        inputs={"objects.args": Text("\n".join(names) + "\n"), **dict(zip(names, objects, strict=True))},
        outputs={"module.o": out},
    )
    return functions, merges


def launch_rename(table: Mapping[str, Any], name: str) -> dict[str, str | None]:
    """What becomes of the `launch` that hidet adds to a module when it meets other modules.

    It goes out as `name` when it is all the module has, and stays local otherwise. Empty where hidet added none.
    """
    if not table["automatic_launch"]:
        return {}
    others = [function for function in table["functions"] if function["name"] != "launch"]
    return {"launch": None if others else name}


def renamed(functions: Sequence[Mapping[str, Any]], renames: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """The public functions under the names they go out by."""
    kept = []
    for function in functions:
        name = renames.get(function["name"], function["name"])
        if name is not None:
            symbol = function["symbol"] if name == function["name"] else f"hidet_{name}"
            signature = name + function["signature"].removeprefix(function["name"])
            kept.append({**function, "name": name, "signature": signature, "symbol": symbol})
    return kept


def symbol_renames(table: Mapping[str, Any], renames: Mapping[str, str | None]) -> dict[str, str | None]:
    """The same renames for the symbols in the object."""
    symbols = {function["name"]: function["symbol"] for function in table["functions"]}
    return {symbols[old]: None if new is None else f"hidet_{new}" for old, new in renames.items() if old in symbols}


def merge_row(path: str, renames: Mapping[str, str | None]) -> dict[str, Any]:
    """One line of the specification for `merge_types`."""
    return {
        "pickle": path,
        "rename": {old: new for old, new in renames.items() if new is not None},
        "drop": [old for old, new in renames.items() if new is None],
    }


def merge_types(ctx: Context, rows: Sequence[Mapping[str, Any]], pickles: Sequence[Artifact], out: Artifact) -> None:
    """Declare the merge of several func_types.pickle into one."""
    ctx.action(
        "HidetMergeTypes",
        tool="hidet",
        arguments=[*WORKER, "merge-types", "merge.json", "--out", "func_types.pickle"],
        inputs={
            "merge.json": Text(json.dumps(rows, indent=1, sort_keys=True) + "\n"),
            **{row["pickle"]: pickle for row, pickle in zip(rows, pickles, strict=True)},
        },
        outputs={"func_types.pickle": out},
    )


def write(ctx: Context, content: str, out: Artifact) -> None:
    """Declare a file with this content."""
    ctx.action(
        "Write",
        tool="command:cp",
        arguments=["cp", "content", "copy"],
        inputs={"content": Text(content)},
        outputs={"copy": out},
    )


def link(
    ctx: Context,
    library: Artifact,
    objects: Sequence[Artifact],
    link_arguments: Sequence[Artifact],
    others: Mapping[str, Artifact],
    *,
    hidet: bool,
    cuda: bool = False,
) -> None:
    """Declare the link of a shared library, with hidet's runtime and CUDA's where the objects need them.

    `others` are the files that the argument files name, by that path.
    """
    names = [f"{index}.o" for index in range(len(objects))]
    files = [f"{index}.args" for index in range(len(link_arguments))]
    runtime = ["-Wl,--no-as-needed", "-Lexternal/hidet/lib", "-lhidet_runtime"] if hidet else []
    device = ["-Lexternal/cuda/lib", "-lcudart"] if cuda else []
    lines = [*names, *(f"@{name}" for name in files)]
    # No -ffast-math here: at link time it would make loading the library change the process's denormals.
    ctx.action(
        "CppLink",
        tool="cxx",
        # -z defs: a missing function is an error here, with its name, and not when somebody loads the library.
        arguments=[
            "g++",
            "-shared",
            "-m64",
            "-fopenmp",
            "-Wl,-z,defs",
            "@objects.args",
            *runtime,
            *device,
            "-o",
            "lib.so",
        ],
        inputs=_apart(
            ctx,
            {
                "objects.args": Text("".join(f"{line}\n" for line in lines)),
                **dict(zip(names, objects, strict=True)),
                **dict(zip(files, link_arguments, strict=True)),
            },
            others,
        ),
        outputs={"lib.so": library},
        trees=[*(["hidet/lib"] if hidet else []), *(["cuda/lib"] if cuda else [])],
    )
