"""The steps of a worker: `lower`, `lower-task`, `codegen` and `merge-types`, command lines that read and write files.

All of a step's identity is in its arguments and input files; it runs in an execution root and writes no absolute path.

    lower        kernels/matmul.py    ->  lowered/modules.json, lowered/0.pickle, lowered/0.txt, lowered/1.pickle ...
    lower-task   kernels/matmul.py    ->  lowered/task.json, lowered/main.pickle, lowered/0.pickle ... (and .txt),
                                          task.files/meta.json, task.files/candidates.txt ...
    codegen      lowered/0.pickle     ->  module.cc (or .cu), prelude.h, func_types.pickle, functions.json,
                                          compile.args, link.args
    merge-types  types.json           ->  func_types.pickle

lowered/modules.json is {"modules": [{"pickle": "0.pickle", "text": "0.txt"}, ...]}, lowered/task.json is
{"main": {"pickle": "main.pickle", ...}, "candidates": [{"pickle": "0.pickle", ...}, ...]}. Files that end in .pickle
are for codegen and for hidet's loader alone.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from hidet_build.errors import did_you_mean
from hidet_build.worker import distribution, failure, guard
from hidet_build.worker.failure import StepFailure, user_failure
from hidet_build.worker.fork import Slots, in_children
from hidet_build.worker.protocol import Failure, split_failure
from hidet_build.worker.sources import ImportControl, Sources

if TYPE_CHECKING:
    from hidet_build.worker.hidet_tools import Lowered

PRELUDE = "prelude.h"
# Where a compile action finds hidet's own headers.
HIDET_INCLUDE = "external/hidet/include"
_INCLUDE = "#include"
_DRIVER_ACCESS = """\
template <typename Function>
static Function *hidet_build_driver(const char *name, Function *) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, CUDA_VERSION, cudaEnableDefault, &result);
  if (!found) throw HidetException(std::string("this machine's CUDA driver has no function ") + name);
  return reinterpret_cast<Function *>(found);
}
"""


class UsageFailure(Exception):
    """The step's own command line is wrong: a rule made a mistake."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageFailure(f"{self.prog}: {message}\n{self.format_usage().strip()}")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The step and its arguments. Raises UsageFailure."""
    parser = _Parser(prog="hidet_build.worker", allow_abbrev=False)
    steps = parser.add_subparsers(dest="step", required=True, parser_class=_Parser)
    lower = steps.add_parser("lower", allow_abbrev=False)
    task = steps.add_parser("lower-task", allow_abbrev=False)
    for step in (lower, task):
        step.add_argument("--src", required=True)
        step.add_argument("--entry", required=True)
        step.add_argument("--args", type=_arguments, default={})
        step.add_argument("--import", dest="imports", action="append", default=[])
        step.add_argument("--requires", action="append", default=[])
        step.add_argument("--out", required=True)
    task.add_argument("--files", required=True)
    codegen = steps.add_parser("codegen", allow_abbrev=False)
    codegen.add_argument("pickle")
    codegen.add_argument("--out", required=True)
    for step in (lower, task, codegen):
        step.add_argument("--target", required=True)
        step.add_argument("--option", dest="options", action="append", default=[], metavar="KEY=VALUE")
    merge = steps.add_parser("merge-types", allow_abbrev=False)
    merge.add_argument("specification")
    merge.add_argument("--out", required=True)
    return parser.parse_args(list(argv))


def _arguments(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {text}")
    return value


def run(
    arguments: argparse.Namespace, sources: Sources, modules: frozenset[str], temporary: str, slots: Slots | None
) -> None:
    """Do one step in the current folder; `modules` are those that come with hidet.

    `slots` are those of the worker that serves it; there are none where the step is a process of its own. Raises
    StepFailure, UsageFailure, or what the user's code raised.
    """
    if arguments.step == "lower":
        lower(arguments, sources, modules, temporary)
    elif arguments.step == "lower-task":
        lower_task(arguments, sources, modules, temporary, slots or Slots(len(os.sched_getaffinity(0)) - 1))
    elif arguments.step == "codegen":
        generate(arguments, temporary)
    else:
        merge_types(arguments.specification, arguments.out)


def lower(arguments: argparse.Namespace, sources: Sources, modules: frozenset[str], temporary: str) -> None:
    """Execute the source under import control, and write each of its modules lowered."""
    from hidet_build.worker import entry, hidet_tools  # here, for it imports hidet

    path, root = arguments.src, os.getcwd()
    control, source = _load(arguments, sources, modules, temporary)
    kind = hidet_tools.kind_of(arguments.target)
    declared = entry.modules(source, path, arguments.entry, arguments.args, kind, temporary)
    control.relax()
    os.chdir(root)  # wherever the kernel went
    os.makedirs(arguments.out, exist_ok=True)
    for number, module in enumerate(declared):
        _write_lowered(module, arguments.out, str(number), path)
    listed = [_names(str(number)) for number, _ in enumerate(declared)]
    _write(arguments.out, "modules.json", _json({"modules": listed}))


def _load(
    arguments: argparse.Namespace, sources: Sources, modules: frozenset[str], temporary: str
) -> tuple[ImportControl, ModuleType]:
    """Execute the source; from here on this process imports and reads only what the step may."""
    path = arguments.src
    if path not in sources.paths:
        raise user_failure(f"no source {path}", file=path)
    _set_options(arguments, temporary)
    allowed = modules | distribution.modules_of(arguments.requires)
    control = ImportControl(sources, [os.path.dirname(path), *arguments.imports], allowed)
    control.install()
    guard.install(os.getcwd(), temporary, allowed)
    return control, control.load(path)


def _write_lowered(module: Any, out: str, name: str, source: str) -> None:
    """Lower a module and write it for codegen, and for people."""
    from hidet_build.worker import hidet_tools  # here, for it imports hidet

    result = hidet_tools.lowered(module)
    headers = [header for header in hidet_tools.headers(result.module) if os.path.isabs(header)]
    wanted = {**hidet_tools.search_folders(result.module), "include_headers": headers}
    _check_folders(wanted, hidet_tools.PACKAGE, source)
    names = _names(name)
    _write(out, names["pickle"], hidet_tools.dump_lowered(result))
    _write(out, names["text"], hidet_tools.text(result.module))


def _names(name: str) -> dict[str, str]:
    return {"pickle": f"{name}.pickle", "text": f"{name}.txt"}


def lower_task(
    arguments: argparse.Namespace, sources: Sources, modules: frozenset[str], temporary: str, slots: Slots
) -> None:
    """Execute the source, implement the task it declares, and write its modules lowered and the files of its folder.

    A task can be a minute's work to implement, so that happens once, and its modules, which can be many, are lowered
    in children of this process.
    """
    from hidet_build.worker import candidates, entry, hidet_tools  # here, for they import hidet

    path, root = arguments.src, os.getcwd()
    control, source = _load(arguments, sources, modules, temporary)
    task = entry.task(source, path, arguments.entry, arguments.args)
    files = os.path.join(root, arguments.files)
    try:
        found = candidates.implement(task, hidet_tools.kind_of(arguments.target), files)
    except candidates.NoImplementation as error:
        raise user_failure(f"{arguments.entry!r}: {error}", file=path) from error
    control.relax()
    os.chdir(root)  # wherever the kernel went
    os.makedirs(arguments.out, exist_ok=True)
    named = {"main": found.main, **{str(number): module for number, module in enumerate(found.candidates)}}
    clean = failure.cleaner(root, temporary)
    works = [
        functools.partial(_try_to_lower, module, arguments.out, name, path, sources, clean)
        for name, module in named.items()
    ]
    said = dict(zip(named, in_children(works, slots), strict=True))
    _check_lowered(said, found.choices, path)
    listed = [_names(str(number)) for number, _ in enumerate(found.candidates)]
    _write(arguments.out, "task.json", _json({"main": _names("main"), "candidates": listed}))


def _try_to_lower(module: Any, out: str, name: str, source: str, sources: Sources, clean: Callable[[str], str]) -> str:
    """Lower a module; what went wrong as the output of a failed step tells it, or nothing."""
    try:
        _write_lowered(module, out, name, source)
        return ""
    except BaseException as error:  # hidet may raise anything, and this is a process of its own
        text, described = failure.describe(error, sources.paths, clean)
        # What a StepFailure says is in its message; of another error the frames are worth showing too.
        frames = "" if isinstance(error, StepFailure) else text.removesuffix(described.message)
        return f"{frames}\n{described.as_line()}\n"


def _check_lowered(said: Mapping[str, str], choices: Sequence[str], path: str) -> None:
    """Raise what went wrong with the first of the modules that could not be lowered, and say which others could not."""
    failed = [name for name, text in said.items() if text]
    if not failed:
        return
    # Where there is one candidate it is part of `main`; where there are several, one of them tells more than `main`.
    first = failed[0] if len(failed) == 1 or failed[0] != "main" else failed[1]
    text, known = split_failure(said[first].encode())
    if known and text.strip():
        print(text.decode().strip("\n"))
    which = f"candidate {first} of {len(choices)}" if first != "main" else "the task"
    if first != "main" and choices[int(first)]:
        which += f" ({choices[int(first)]})"
    others = [name for name in failed if name not in ("main", first)]
    known = known or Failure("kernel", said[first], file=path)
    more = f", nor can {', '.join(others)}" if others else ""
    raise StepFailure(replace(known, message=f"{which} cannot be lowered{more}: {known.message}"))


def _set_options(arguments: argparse.Namespace, temporary: str) -> None:
    from hidet_build.worker import hidet_tools  # here, for it imports hidet

    options = dict(_option(text, hidet_tools.OPTIONS) for text in arguments.options)
    hidet_tools.set_options(arguments.target, options, temporary)


def _option(text: str, known: Mapping[str, Any]) -> tuple[str, Any]:
    """An option of hidet's as `key=value`, the value read by the type of its default."""
    name, equals, value = text.partition("=")
    if not equals or name not in known:
        raise user_failure(
            f"unknown hidet option {text!r}",
            hint=did_you_mean(name, known) or f"options that change what is generated: {', '.join(known)}",
        )
    if isinstance(known[name], bool):
        if value not in ("true", "false"):
            raise user_failure(f"hidet option {name}: expected true or false, got {value!r}")
        return name, value == "true"
    return name, int(value) if value.isdecimal() else value


def _check_folders(wanted: Mapping[str, Sequence[str]], package: str, source: str) -> None:
    """Refuse what the compiler would look for on this machine only."""
    for attribute, paths in wanted.items():
        for path in paths:
            if _declared(path) is None and not _is_hidets(path, package):
                raise StepFailure(
                    Failure(
                        "undeclared-file",
                        f"the IR module's {attribute} names {path!r}, which is neither declared nor hidet's own",
                        subject=path,
                        file=source,
                        hint="name a workspace folder by its path from the root, and declare its files in `data`",
                    )
                )


def _declared(path: str) -> str | None:
    """The path from the execution root of something in it; None for anything else."""
    relative = os.path.normpath(os.path.relpath(path))
    return relative if not relative.startswith("..") and os.path.exists(relative) else None


def _is_hidets(path: str, package: str) -> bool:
    return os.path.abspath(path).startswith(package + "/")


def generate(arguments: argparse.Namespace, temporary: str) -> None:
    """Write the source of a lowered module, and what a compiler, a linker, a reader and hidet's loader need of it."""
    from hidet_build.worker import hidet_tools  # here, for it imports hidet

    _set_options(arguments, temporary)
    with open(arguments.pickle, "rb") as file:
        lowered = hidet_tools.load_lowered(file.read())
    kind = hidet_tools.kind_of(arguments.target)
    write_generated(lowered, kind, arguments.out, lambda path: _place(path, hidet_tools.PACKAGE))


def write_generated(lowered: Lowered, kind: str, out: str, place: Callable[[str], str]) -> None:
    """Write the files of `generate` into the folder `out`.

    `place` says under which path a compile action will find a folder or an object that the module asks for.
    """
    from hidet_build.worker import hidet_tools  # here, for it imports hidet

    module = lowered.module
    source = hidet_tools.generate(module, kind)
    prelude, rest = split_prelude(source)
    folders = hidet_tools.search_folders(module)
    include = [place(path) for path in folders["include_dirs"]]
    link = [place(path) for path in folders["linking_dirs"]]
    driver = hidet_tools.driver_calls(source) if kind == "cuda" else []
    libraries = list(module.linking_libs)
    objects = [place(path) for path in folders["object_files"]]
    standard = "c++17" if kind == "cuda" and "<cooperative_groups.h>" in prelude else "c++11"
    os.makedirs(out, exist_ok=True)
    name = "module.cu" if kind == "cuda" else "module.cc"
    _write(out, name, f'{_INCLUDE} "{PRELUDE}"\n{driver_access(driver)}{rest}')
    _write(out, PRELUDE, prelude)
    _write(out, "func_types.pickle", hidet_tools.dump_types(hidet_tools.function_types(module)))
    compile_arguments = [f"-std={standard}", *(f"-I{folder}" for folder in (HIDET_INCLUDE, *include))]
    link_arguments = [*objects, *(f"-L{folder}" for folder in link), *(f"-l{name}" for name in libraries)]
    _write(out, "compile.args", argument_file(compile_arguments))
    _write(out, "link.args", argument_file(link_arguments))
    description = {
        "automatic_launch": lowered.automatic_launch,
        "functions": hidet_tools.functions(module),
        "globals": hidet_tools.global_symbols(module),
        "include_dirs": include,
        "libraries": libraries,
        "library_dirs": link,
        "namespace": module.namespace,
        "object_files": objects,
        "standard": standard,
        "symbols": hidet_tools.symbols(source),
    }
    _write(out, "functions.json", _json(description))


def driver_access(names: Sequence[str]) -> str:
    """Code that lets a source call these functions of the CUDA driver and a library load where there is no driver.

    The driver's library is not linked: a machine without a GPU, which builds, has none. The CUDA runtime looks a
    function up when it is called first, as NVIDIA advises for that case.
    """
    if not names:
        return ""
    macros = [f'#define {name}(...) hidet_build_driver("{name}", &::{name})(__VA_ARGS__)\n' for name in names]
    return _DRIVER_ACCESS + "".join(macros)


def split_prelude(source: str) -> tuple[str, str]:
    """The block of include lines a generated source begins with, and the rest."""
    lines = source.splitlines(keepends=True)
    count = 0
    while count < len(lines) and (lines[count].startswith(_INCLUDE) or not lines[count].strip()):
        count += 1
    return "".join(line for line in lines[:count] if line.strip()), "".join(lines[count:])


def _place(path: str, package: str) -> str:
    """Where a folder the module asks for is in a compile action's execution root."""
    if _is_hidets(path, package):
        return f"external/hidet/{os.path.relpath(path, package)}"
    return os.path.normpath(os.path.relpath(path))


def argument_file(arguments: Iterable[str]) -> str:
    """The text of a file that g++ takes as `@file` and nvcc as `--options-file`: one argument a line."""
    quoted = []
    for argument in arguments:
        escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
        plain = escaped == argument and not set(" '\t") & set(argument)
        quoted.append(f"{argument}\n" if plain else f'"{escaped}"\n')
    return "".join(quoted)


def merge_types(specification: str, out: str) -> None:
    """Merge files of function types: each leaves out the names in `drop` and has those in `rename` renamed.

    The specification is a JSON list of {"pickle": path, "rename": {"launch": "matmul"}, "drop": [...]}.
    """
    from hidet_build.worker import hidet_tools  # here, for it imports hidet

    with open(specification, encoding="utf-8") as file:
        parts = json.load(file)
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for part in parts:
        with open(part["pickle"], "rb") as pickle:
            types = hidet_tools.load_types(pickle.read())
        for name, value in types.items():
            if name in part.get("drop", ()):
                continue
            public = part.get("rename", {}).get(name, name)
            if public in merged:
                raise user_failure(f"two functions are called {public!r}: of {origin[public]} and of {part['pickle']}")
            merged[public], origin[public] = value, part["pickle"]
    folder, name = os.path.split(out)
    os.makedirs(folder or ".", exist_ok=True)
    _write(folder, name, hidet_tools.dump_types(merged))


def _write(folder: str, name: str, content: str | bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
