"""From the entry a target names to fresh IR modules: finds it, calls it, and says what it may return.

Knows the user's module and hidet's classes; knows nothing of files or of lowering.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from hidet_build.errors import did_you_mean
from hidet_build.worker import hidet_tools
from hidet_build.worker.failure import user_failure

_ALLOWED = "an IRModule, a list of them, a script module or function, a Task, or the tensor of one operator"


def modules(
    source: ModuleType, path: str, entry: str, arguments: Mapping[str, Any], kind: str, folder: str
) -> list[Any]:
    """The IR modules that `entry` of the source declares; `folder` is for what a task writes while it is implemented.

    Raises StepFailure, and whatever the user's code raises.
    """
    value = _lookup(source, path, entry)
    if not _is_declared(value):
        value = _call(value, path, entry, arguments)
    elif arguments:
        raise user_failure(
            f"{entry!r} is {_named(value)} and takes no arguments, but `args` has {', '.join(arguments)}", file=path
        )
    if not _is_declared(value):
        raise user_failure(
            f"{entry!r} returned {_named(value)}; expected {_ALLOWED}", file=path, line=_line(source, entry)
        )
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not parts:
        raise user_failure(f"{entry!r} returned an empty list: nothing to build", file=path, line=_line(source, entry))
    made = [_module(part, path, entry, kind, folder) for part in parts]
    _check_separate(made, path, entry)
    return made


def _is_declared(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(hidet_tools.is_declaration(part) for part in value)
    return hidet_tools.is_declaration(value)


def _lookup(source: ModuleType, path: str, entry: str) -> Any:
    if hasattr(source, entry):
        return getattr(source, entry)
    public = {name: value for name, value in vars(source).items() if not name.startswith("_")}
    own = [name for name, value in public.items() if getattr(value, "__module__", None) == source.__name__]
    own += [name for name, value in public.items() if _is_declared(value)]
    listed = f"it defines {', '.join(sorted(set(own)))}" if own else "it defines nothing that could be one"
    raise user_failure(f"no {entry!r} in {path}", file=path, hint=did_you_mean(entry, own) or listed)


def _call(function: Any, path: str, entry: str, arguments: Mapping[str, Any]) -> Any:
    if not callable(function):
        raise user_failure(f"{entry!r} is {_named(function)}; expected a function that returns {_ALLOWED}", file=path)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function(**arguments)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        line = code.co_firstlineno if code is not None and code.co_filename == path else 0
        raise user_failure(
            f"`args` do not fit {entry}{signature}: {error}",
            file=path,
            line=line,
            hint=_argument_hint(signature, arguments),
        ) from None
    return function(**arguments)


def _argument_hint(signature: inspect.Signature, arguments: Mapping[str, Any]) -> str:
    strangers = [name for name in arguments if name not in signature.parameters]
    return (did_you_mean(strangers[0], signature.parameters) if strangers else None) or ""


def _module(value: Any, path: str, entry: str, kind: str, folder: str) -> Any:
    """The one IR module of one declaration."""
    if hidet_tools.is_tensor(value):
        _check_single(value, path, entry)
    made = hidet_tools.modules(value, kind, folder)
    if len(made) != 1:
        raise user_failure(
            f"{entry!r}: the task has {len(made)} candidates in this search space; expected one",
            file=path,
        )
    module = made[0]
    if not module.functions:
        raise user_failure(f"{entry!r} returned a module without functions", file=path)
    return module


def _check_single(tensor: Any, path: str, entry: str) -> None:
    operators = hidet_tools.operators(tensor)
    if not operators:
        raise user_failure(
            f"{entry!r} returned a tensor that no operator computes",
            file=path,
            hint="make its inputs with hidet.symbol([...], device='cpu')",
        )
    if len(operators) > 1:
        names = ", ".join(operator.name for operator in operators)
        raise user_failure(
            f"{entry!r} returned a tensor that {len(operators)} operators compute: {names}",
            file=path,
            hint="return the tensor of one operator, or one of the tasks (`tensor.op.task`)",
        )


def _check_separate(modules: list[Any], path: str, entry: str) -> None:
    """Lowering changes a module's functions, so no two modules may share one."""
    owner: dict[int, int] = {}
    for number, module in enumerate(modules):
        for name, function in module.functions.items():
            first = owner.setdefault(id(function), number)
            if first != number:
                raise user_failure(
                    f"{entry!r}: modules {first} and {number} share the function {name!r}, "
                    "and lowering one would change the other",
                    file=path,
                    hint="make each module with a call of its own",
                )
        if id(module) in [id(other) for other in modules[:number]]:
            raise user_failure(f"{entry!r} returned the same module twice", file=path)


def _named(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {', '.join(dict.fromkeys(type(part).__name__ for part in value))}"
    if inspect.ismodule(value):
        return f"the module {value.__name__.rpartition('.')[2]}"
    if isinstance(value, (int, float, str)):
        return repr(value)
    kind = type(value).__name__
    return f"an {kind}" if kind[0] in "AEIOUaeiou" else f"a {kind}"


def _line(source: ModuleType, entry: str) -> int:
    code = getattr(inspect.unwrap(getattr(source, entry)), "__code__", None)
    return code.co_firstlineno if code is not None and code.co_filename == source.__file__ else 0
