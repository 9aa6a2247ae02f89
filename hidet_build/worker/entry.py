"""From the entry a target names to fresh IR modules: finds it, calls it, and says what it may return.

Knows the user's module and hidet's classes; knows nothing of files or of lowering.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from hidet_build.errors import did_you_mean
from hidet_build.worker import hidet_tools
from hidet_build.worker.failure import user_failure

_MODULES = "an IRModule, a list of them, a script module or function, a Task, or the tensor of one operator"
_TASK = "a Task, or the tensor of one operator"

# Annotations of parameters that are held against `args`.
_PLAIN = (int, float, bool, str)


def modules(
    source: ModuleType, path: str, entry: str, arguments: Mapping[str, Any], kind: str, folder: str
) -> list[Any]:
    """The IR modules that `entry` of the source declares; `folder` is for what a task writes while it is implemented.

    Raises StepFailure, and whatever the user's code raises.
    """
    value = _value(source, path, entry, arguments, _MODULES)
    if not _is_declared(value):
        raise user_failure(
            f"{entry!r} returned {_named(value)}; expected {_MODULES}", file=path, line=_line(source, entry)
        )
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not parts:
        raise user_failure(f"{entry!r} returned an empty list: nothing to build", file=path, line=_line(source, entry))
    made = [_module(part, path, entry, kind, folder) for part in parts]
    _check_separate(made, path, entry)
    return made


def task(source: ModuleType, path: str, entry: str, arguments: Mapping[str, Any]) -> Any:
    """The task that `entry` of the source declares. Raises as `modules` does."""
    value = _value(source, path, entry, arguments, _TASK)
    if hidet_tools.is_tensor(value):
        _check_single(value, path, entry)
        return hidet_tools.operators(value)[-1].task
    if hidet_tools.is_task(value):
        return value
    known = "the rule ir_module builds that" if _is_declared(value) else ""
    several = isinstance(value, (list, tuple)) and any(map(hidet_tools.is_task, value))
    raise user_failure(
        f"{entry!r} {'is' if value is getattr(source, entry) else 'returned'} {_named(value)}; expected {_TASK}",
        file=path,
        line=_line(source, entry),
        hint="declare a target for each task" if several else known,
    )


def _value(source: ModuleType, path: str, entry: str, arguments: Mapping[str, Any], allowed: str) -> Any:
    """What `entry` is, or returns where it is something to call."""
    value = _lookup(source, path, entry)
    if not _is_declared(value):
        return _call(value, path, entry, arguments, allowed)
    if arguments:
        raise user_failure(
            f"{entry!r} is {_named(value)} and takes no arguments, but `args` has {', '.join(arguments)}", file=path
        )
    return value


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


def _call(function: Any, path: str, entry: str, arguments: Mapping[str, Any], allowed: str) -> Any:
    if not callable(function):
        raise user_failure(f"{entry!r} is {_named(function)}; expected a function that returns {allowed}", file=path)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function(**arguments)
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = code.co_firstlineno if code is not None and code.co_filename == path else 0
    misfits, hint = _misfits(signature, arguments)
    if misfits:
        message = f"`args` do not fit {entry}{signature}: {'; '.join(misfits)}"
        raise user_failure(message, file=path, line=line, hint=hint)
    for parameter in signature.parameters.values():
        if parameter.name in arguments:
            _check_type(parameter, arguments[parameter.name], path, line)
    return function(**arguments)


def _misfits(signature: inspect.Signature, arguments: Mapping[str, Any]) -> tuple[list[str], str]:
    """What is wrong with the names of the arguments, and what was meant."""
    parameters = signature.parameters.values()
    by_name = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in by_name]
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    strangers = [name for name in arguments if name not in names and not takes_all]
    missing = [one.name for one in by_name if one.default is one.empty and one.name not in arguments]
    found = [f"there is no parameter {name!r}" for name in strangers]
    found += [f"{name!r} is missing" for name in missing]
    for one in parameters:
        if one.kind is one.POSITIONAL_ONLY and one.default is one.empty:
            found.append(f"{one.name!r} cannot be given by name")
    free = [name for name in names if name not in arguments]
    return found, next(filter(None, (did_you_mean(name, free) for name in strangers)), "")


def _check_type(parameter: inspect.Parameter, value: Any, path: str, line: int) -> None:
    """Hold a value against a plain annotation; all others say more than we understand."""
    annotation = parameter.annotation
    # With `from __future__ import annotations` it is a string; what a kernel puts there may compare as it likes.
    text = annotation if isinstance(annotation, str) else ""
    wanted = next((kind for kind in _PLAIN if annotation is kind or text == kind.__name__), None)
    by_default = parameter.default is not parameter.empty and value is None and parameter.default is None
    if wanted is None or by_default or type(value) is wanted or (wanted is float and type(value) is int):
        return
    raise user_failure(
        f"args: {parameter.name} is annotated {wanted.__name__}, and BUILD.yaml gives {_written(value)}",
        file=path,
        line=line,
        hint=_rewritten(parameter.name, value, wanted),
    )


def _written(value: Any) -> str:
    """A value of a BUILD.yaml, in the words of YAML."""
    if value is None:
        return "null"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a mapping"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"the string {value!r}" if isinstance(value, str) else f"the number {value!r}"


def _rewritten(name: str, value: Any, wanted: type) -> str:
    """How to write the value so that it is what is wanted; "" where that is for the user to say."""
    if wanted is str and isinstance(value, (int, float)):
        return f'in quotes it is a string: {name}: "{str(value).lower()}"'
    if wanted is int and isinstance(value, float) and value.is_integer():
        return f"write {name}: {int(value)}"
    if isinstance(value, str) and wanted is not str:
        whole = r"-?(0|[1-9]\d*)"
        plain = {int: whole, float: rf"{whole}(\.\d+)?", bool: "true|false"}[wanted]
        return f"write it without quotes: {name}: {value}" if re.fullmatch(plain, value) else ""
    return ""


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
