"""The identity of a live module or task: all of it counts, whatever is changed in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

pytestmark = pytest.mark.hidet
hidet = pytest.importorskip("hidet")

from hidet.ir.compute import tensor_input  # noqa: E402
from hidet.ir.primitives.func import primitive_func_pool, register_primitive_function  # noqa: E402

from hidet_build.worker.identity import identity, is_patched  # noqa: E402
from tests import ir_modules  # noqa: E402


def reached(value: Any) -> Iterator[Any]:
    """Every list, dict and object of hidet's IR that hangs on `value`, once."""
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif is_node(one):
            waiting += vars(one).values()
    yield from (one for one in seen.values() if isinstance(one, (list, dict)) or is_node(one))


def is_node(one: Any) -> bool:
    """Whether it is an object of hidet's with fields."""
    # Members of enumerations are hidet's code: a pickle names them.
    ours = type(one).__module__.startswith("hidet.") and hasattr(one, "__dict__")
    return ours and not isinstance(one, (type, Enum))


def mutations(one: Any) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Each way to change an object: what it is, how it is done, how it is undone."""
    if isinstance(one, list):
        yield "a longer list", lambda: one.append("mutated"), lambda: one.pop() and None
    elif isinstance(one, dict):
        yield "a further key", lambda: one.__setitem__("mutated", 1), lambda: one.__delitem__("mutated")
    else:
        for name, value in list(vars(one).items()):
            state = vars(one)
            yield (
                f"{type(one).__name__}.{name}",
                lambda state=state, name=name: state.__setitem__(name, ("mutated", name)),
                lambda state=state, name=name, value=value: state.__setitem__(name, value),
            )


@pytest.mark.parametrize("make", [ir_modules.script, ir_modules.matmul, ir_modules.table, ir_modules.task])
def test_every_change_counts(make: Callable[[], Any]) -> None:
    """Each field of each object, each list and each dict flips it."""
    value = make()
    before = identity(value)
    unnoticed, tried = [], 0
    for one in list(reached(value)):
        for what, change, undo in mutations(one):
            change()
            tried += 1
            if identity(value) == before:
                unnoticed.append(what)
            undo()

    assert before is not None
    assert [] == unnoticed
    assert tried > 50
    assert before == identity(value)


def test_the_same_in_another_process() -> None:
    """A module that is made in the same way has the same identity in every process."""
    code = (
        "import hashlib\n"
        "from hidet_build.worker.identity import identity\n"
        "from tests import ir_modules\n"
        "print(hashlib.sha256(identity(ir_modules.matmul())).hexdigest())\n"
    )
    command = [sys.executable, "-c", code]
    said = {
        subprocess.run(command, capture_output=True, check=True, env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }

    assert 1 == len(said)


def test_constants_count() -> None:
    """Two tables that print the same are two."""
    assert identity(ir_modules.table([1, 2, 3])) != identity(ir_modules.table([1, 2, 4]))


class Own(hidet.ir.task.Task):  # type: ignore[misc]
    """A task of somebody's own class, whose code no key covers."""


def test_foreign_code_has_none() -> None:
    """What holds a class of the user's own has no identity."""
    x = tensor_input("x", "float32", [8])
    y = hidet.ir.compute.compute("y", [8], lambda i: x[i] * 2.0)

    assert identity(Own("own", inputs=[x], outputs=[y])) is None
    assert identity(hidet.ir.task.Task("plain", inputs=[x], outputs=[y])) is not None


def test_primitive_functions_of_the_users_own_count() -> None:
    """A function that is called by its name counts with its content."""
    found = []
    for factor in (2.0, 3.0):
        register_primitive_function("cpu_own_scale", ir_modules.function("cpu_own_scale", factor))
        found.append(identity(ir_modules.calling("cpu_own_scale")))
        del primitive_func_pool.name2func["cpu_own_scale"]

    assert None not in found
    assert found[0] != found[1]


def fold(*_: Any) -> None:
    """Stands for a function of hidet's."""


def patches() -> list[tuple[str, Any, str, Any]]:
    """Places in hidet where programs put functions of their own: what each is, where, its name, what is put there."""
    driver = sys.modules["hidet.transforms"]
    simplifier = hidet.transforms.rule_based_simplifier.RuleBasedSimplifier
    task = hidet.ir.task.Task
    return [
        ("a function of a module", driver, "lower", fold),
        ("a method", simplifier, "visit", fold),
        ("a static method", task, "from_source", staticmethod(fold)),
        ("a property", task, "params", property(fold)),
        ("an entry of a table", sys.modules["hidet.ir.primitives.func"], "hooks", {"fold": [fold]}),
    ]


@pytest.mark.parametrize("number", range(5))
def test_foreign_functions_in_hidet(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program has put into hidet is seen, wherever it stands."""
    _, where, name, value = patches()[number]

    assert not is_patched()
    monkeypatch.setattr(where, name, value, raising=False)

    assert is_patched()
