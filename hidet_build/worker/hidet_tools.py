"""The hidet room: everything the worker asks of hidet, with all that makes its answers the same everywhere.

Knows IR modules; knows neither files of the user's nor how a step is called. Importing this module imports hidet (two
seconds), so others import it inside functions. What hidet.drivers.build_ir_module does with the results, and we leave
to rules: g++ -O3 -mavx2 -m64 -ffast-math -march=ARCH -fPIC -fopenmp, and at the link -shared -Wl,--no-as-needed
-lhidet_runtime; nvcc -O3 -Xcompiler -fPIC,-m64,-march=ARCH,-O3,-funroll-loops,-ffast-math -gencode ... -ftz=true
-prec-div=false --cudart shared --diag-suppress 177,179,39.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import hidet
import hidet.cuda.device
import hidet.drivers.utils
import hidet.hip.device
import hidet.transforms.import_primitive_functions
import hidet.transforms.instantiate_symbols
from hidet.backend.codegen import codegen
from hidet.graph.operator import Operator
from hidet.graph.tensor import Tensor
from hidet.ir.func import Function
from hidet.ir.module import IRModule
from hidet.ir.primitives.func import primitive_func_pool, register_primitive_function
from hidet.ir.task import Task
from hidet.ir.type import DataType, FuncType, PointerType, TensorPointerType, TensorType, VoidType
from hidet.lang.script import ScriptModuleContext
from hidet.transforms import lower

PACKAGE = os.path.dirname(os.path.abspath(hidet.__file__))
# Fixed, so that a pickle's bytes do not depend on the Python that wrote it.
PICKLE_PROTOCOL = 4
# hidet's options that can change what is generated, with hidet's defaults, which only `--option` changes.
OPTIONS: Mapping[str, Any] = {
    "search_space": 0,
    "parallel_k": "disabled",
    "hexcute_matmul": "enable",
    "debug_show_var_id": False,
    "debug_enable_var_id": False,
    "debug_strict_broadcast_check": False,
    "cuda.build.ftz": True,
    "cuda.build.prec_div": False,
}
# Those that must not depend on the machine, though no generated source was seen to differ.
_PINNED: Mapping[str, Any] = {
    "num_local_workers": 1,  # more than one candidate would fork a pool
    "parallel_build": False,
    "cache_operator": False,
    "save_lower_ir": False,
    "runtime_check": False,
    "execution_mode": "interpreter",
    "compile_server.enabled": False,
    # Asked of the device when they are "auto". A CPU kernel has no CUDA architecture, but some modules of hidet ask.
    "cuda.arch": "sm_80",
    "cuda.cpu_arch": "x86-64-v3",
    "cpu.arch": "x86-64-v3",
    "hip.arch": "gfx90a",
}
_HIDETS = frozenset(primitive_func_pool.name2func)  # functions that a kernel can call by name
_DRIVER_CALL = re.compile(r"\bcu(?:TensorMap|Ctx|Module|Launch|Mem|Device|Func|Stream)[A-Z]\w*\s*\(")
_SYMBOL = re.compile(r'\bget_(?:ptr_)?symbol_value\("([^"]+)"\)')
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Lowered:
    """A lowered module; `automatic_launch` says that its public `launch` is hidet's idea, not the user's."""

    module: IRModule
    automatic_launch: bool


def pin_environment(kind: str = "cpu") -> Callable[[], None]:
    """Make lowering independent of this machine and of where objects lie in memory; what it returns undoes that.

    For CUDA, hidet chooses the kernels it would choose where there is a GPU, and none is asked anything.
    """
    passes = (hidet.transforms.instantiate_symbols, hidet.transforms.import_primitive_functions)
    pinned: list[tuple[Any, str, Any]] = [(one, "set", OrderedSet) for one in passes]
    # hidet asks whether a libcuda lies about, and then chooses other kernels or opens a device. By the modules' full
    # names: the attribute `device` of hidet.cuda is a function.
    for name in ("hidet.cuda", "hidet.cuda.device", "hidet.hip", "hidet.hip.device"):
        available = _always if kind == "cuda" and "cuda" in name else _never
        pinned.append((sys.modules[name], "available", available))
    # A bare "cuda" is the current device. And what hidet wants to know of devices before it forks, we never need.
    pinned += [(sys.modules[name], "current_device", _first_device) for name in ("hidet.cuda", "hidet.cuda.device")]
    pinned.append((hidet.drivers.utils.lazy_initialize_cuda, "_initialized", True))
    pinned.append((Operator, "run", _run_elsewhere if kind == "cuda" else _run_here))
    before = [(module, name, vars(module).get(name)) for module, name, _ in pinned]
    for module, name, value in pinned:
        setattr(module, name, value)

    def undo() -> None:
        for module, name, value in before:
            if value is None:
                delattr(module, name)
            else:
                setattr(module, name, value)

    return undo


class OrderedSet(dict):  # type: ignore[type-arg]
    """What two passes of hidet should use for `set`: they iterate over it, and the order comes out in the source."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        """Add at the end, unless it is there."""
        self.setdefault(item)

    def update(self, items: Iterable[Any]) -> None:  # type: ignore[override]
        """Add all, in their order."""
        for item in items:
            self.add(item)


_run_here = Operator.run


def _run_elsewhere(operator: Operator) -> list[Tensor]:
    """Let an operator on a device stay an operator: the constant 2 of `x * 2` would be computed there when traced."""
    found: list[Tensor] = operator.symbolic_run() if operator.device.is_cuda() else _run_here(operator)
    return found


def _never() -> bool:
    return False


def _always() -> bool:
    return True


def _first_device() -> int:
    return 0


def set_options(target: str, options: Mapping[str, Any], temporary: str) -> None:
    """Set every option that matters, whatever a configuration file said."""
    values = {**_PINNED, **OPTIONS, **options, "cache_dir": os.path.join(temporary, "hidet")}
    kind, *attributes = target.split()
    pin_environment(kind)
    for attribute in attributes:
        name, _, value = attribute.removeprefix("--").partition("=")
        if name == "arch" and kind != "cpu":
            # hidet adds the letter of sm_90a by itself, and cannot read it.
            values[f"{kind}.arch"] = value.rstrip("af") if kind == "cuda" else value
        else:
            values["cpu.arch"] = values["cuda.cpu_arch"] = value
    for name, value in values.items():
        hidet.option.set_option(name, value)


def kind_of(target: str) -> str:
    """`cpu`, `cuda` or `hip`."""
    return target.split()[0]


def is_declaration(value: object) -> bool:
    """Whether `modules` can make IR modules of the value."""
    return isinstance(value, (IRModule, ScriptModuleContext, Function, Task, Tensor))


def is_task(value: object) -> bool:
    """Whether the value is a task."""
    return isinstance(value, Task)


def is_tensor(value: object) -> bool:
    """Whether the value is a tensor, symbolic or not."""
    return isinstance(value, Tensor)


def modules(value: object, kind: str, working_folder: str) -> list[IRModule]:
    """The IR modules of one declaration: of a task, its candidates."""
    if isinstance(value, IRModule):
        return [value]
    if isinstance(value, ScriptModuleContext):
        return [value.ir_module()]
    if isinstance(value, Function):
        return [_script_module(value)]
    if isinstance(value, Tensor):
        return modules(operators(value)[-1].task, kind, working_folder)
    if isinstance(value, Task):
        return list(value.implement(kind, working_folder))
    raise TypeError(f"not a declaration of a kernel: {value!r}")


def _script_module(function: Function) -> IRModule:
    # Without attributes that say otherwise hidet takes a script for a device function. The one function of a module
    # is there to be called.
    if function.kind == "cuda_internal" and "func_kind" not in function.attrs:
        function = Function(
            function.name, function.params, function.body, function.ret_type, "public", attrs=function.attrs
        )
    context = hidet.script_module()
    context.append_function(function)
    module: IRModule = context.ir_module()
    return module


def operators(tensor: Tensor) -> list[Any]:
    """The operators a symbolic tensor is computed by, the first one first."""
    found: dict[int, Any] = {}

    def visit(operator: Any) -> None:
        if operator is not None and id(operator) not in found:
            for value in operator.inputs:
                visit(value.op)
            found[id(operator)] = operator

    visit(tensor.op)
    return list(found.values())


def lowered(module: IRModule) -> Lowered:
    """Lower a fresh module. hidet changes its argument, so never twice the same."""
    own = any(function.name.startswith("launch") for function in _public(module)) and module.task is None
    result = lower(module)
    # A task can be of a class of the user's, which the next step does not know, and generating code asks for none.
    result.task = None
    return Lowered(result, not own and "launch" in [function.name for function in _public(result)])


def text(module: IRModule) -> str:
    """The module for people."""
    return without_addresses(str(module)) + "\n"


def without_addresses(said: str) -> str:
    """The text without the addresses that Python prints of objects it has no better name for."""
    return _ADDRESS.sub("", said)


def _public(module: IRModule) -> list[Function]:
    return [function for function in module.functions.values() if function.kind == "public"]


def dump_lowered(result: Lowered) -> bytes:
    """The pickle that the code generation step reads, with the names of functions that a header defines."""
    known = {"automatic_launch": result.automatic_launch, "module": result.module}
    pool = primitive_func_pool.name2func
    registered = [pool[name] for name in sorted(pool.keys() - _HIDETS)]
    # One that hidet knows the code of is in the module by now.
    defined = [(one.name, one.codegen_name) for one in registered if one.function is None]
    written = io.BytesIO()
    try:
        pickle.Pickler(written, PICKLE_PROTOCOL).dump({**known, "defined": defined} if defined else known)
    except (pickle.PicklingError, AttributeError):
        written = io.BytesIO()
        _CodelessPickler(written, PICKLE_PROTOCOL).dump({**known, "defined": defined})
    return written.getvalue()


class _CodelessPickler(pickle.Pickler):
    """Leaves functions out that have no name to be found by: an author's for the type of a call, known by now."""

    def reducer_override(self, value: Any) -> Any:
        nameless = isinstance(value, FunctionType) and "<" in value.__qualname__
        return (type(None), ()) if nameless else NotImplemented


def load_lowered(content: bytes) -> Lowered:
    """The reverse of `dump_lowered`. Functions that a header defines become known to this process by their names."""
    known = pickle.loads(content)
    for name, in_code in known.pop("defined", ()):
        register_primitive_function(name, FuncType([], VoidType()), in_code)
    return Lowered(**known)


def generate(module: IRModule, kind: str) -> str:
    """The C++ or CUDA source of a lowered module."""
    source: str = codegen(module, None, kind)
    return source


def function_types(module: IRModule) -> dict[str, FuncType]:
    """What hidet's loader reads beside a library: the types of the public functions, by name."""
    return {function.name: FuncType.from_func(function) for function in _public(module)}


def dump_types(types: Mapping[str, FuncType]) -> bytes:
    """`func_types.pickle`."""
    return pickle.dumps(dict(types), PICKLE_PROTOCOL)


def load_types(content: bytes) -> dict[str, FuncType]:
    """The reverse of `dump_types`."""
    types: dict[str, FuncType] = pickle.loads(content)
    return types


def functions(module: IRModule) -> list[dict[str, Any]]:
    """The public functions, for readers without hidet."""
    return [_describe(function, module.namespace) for function in _public(module)]


def _describe(function: Function, namespace: str) -> dict[str, Any]:
    parameters = [{"name": _name(param), "type": type_text(param.type)} for param in function.params]
    returned = type_text(function.ret_type)
    listed = ", ".join(f"{parameter['name']}: {parameter['type']}" for parameter in parameters)
    return {
        "kind": function.kind,
        "name": function.name,
        "parameters": parameters,
        "return": returned,
        "signature": f"{function.name}({listed}) -> {returned}",
        "symbol": f"{namespace}::{function.name}" if namespace else f"hidet_{function.name}",
    }


def _name(parameter: Any) -> str:
    return str(parameter.name or parameter.hint or "_")


def type_text(value: Any) -> str:
    """A type as a signature shows it: `float32[m, 64]`, `float32*`, `int32`."""
    if isinstance(value, VoidType):
        return "void"
    if isinstance(value, DataType):
        return str(value.name)
    if isinstance(value, PointerType):
        return f"{type_text(value.base_type)}*"
    if isinstance(value, TensorPointerType):
        return type_text(value.tensor_type)
    if isinstance(value, TensorType):
        return f"{value.dtype.name}[{', '.join(str(size) for size in value.shape)}]"
    return without_addresses(str(value))


def global_symbols(module: IRModule) -> list[str]:
    """The symbols of the module's global variables; they are not static."""
    variables = {name: value for name, value in module.global_vars.items() if name not in module.functions}
    names = [str(variable.name or name) for name, variable in variables.items()]
    if not module.namespace:
        return sorted(names)
    space = module.namespace
    return sorted(f"_ZN{len(space)}{space}{len(name)}{name}E" for name in names)


def symbols(source: str) -> list[str]:
    """The symbolic dimensions whose values a generated source asks for when it runs."""
    return sorted(set(_SYMBOL.findall(source)))


def driver_calls(source: str) -> list[str]:
    """The functions of the CUDA driver (libcuda) that a generated source calls, as kernels with TMA copies do."""
    return sorted({found[:-1].rstrip() for found in _DRIVER_CALL.findall(source)})


def headers(module: IRModule) -> list[str]:
    """The headers the module includes; hidet's own code takes a header for a list of them, too."""
    found = module.include_headers
    return [one for header in found for one in ([header] if isinstance(header, str) else header)]


def search_folders(module: IRModule) -> Mapping[str, Sequence[str]]:
    """The folders and files the module asks for outside its own source, by the name of the attribute."""
    return {
        "include_dirs": list(module.include_dirs),
        "linking_dirs": list(module.linking_dirs),
        "object_files": list(module.object_files),
    }
