"""What a caller asks of the drivers, checked, and errors in his words: modules by their functions and folders.

Knows hidet's modules and targets by their attributes only, and nothing of how they are built.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from hidet_build.errors import ActionFailed, BuildError, NotCached, UsageError, raise_all
from hidet_build.platform import Platform
from hidet_build.settings import DISK_CACHE, REQUIRE_CACHED

if TYPE_CHECKING:
    from hidet.ir.module import IRModule
    from hidet.ir.target import Target
    from hidet.runtime.device import Device

Modules = Union["IRModule", Sequence["IRModule"]]
_NAMED = 3  # of the functions of a module, so many are named
_FILL = f"run the program once without --require_cached and {REQUIRE_CACHED}, then export the store"
_NATIVE = (
    "; that CPU is this machine's, for hidet.option.cpu.arch is auto: set it to 'x86-64-v3' in the program for results "
    "that other machines find"
)
_PLACES = f"{DISK_CACHE}=FOLDER names another store, XDG_CACHE_HOME=FOLDER another home for all that is kept"
# What a caller can do where the command line has a flag.
_INSTEAD = {
    "--output_base": _PLACES,
    "--disk_cache": f"{_PLACES}; a store that is complete may be read-only under {REQUIRE_CACHED}=1",
    "--jobs": "MAX_JOBS=N lets fewer run at once",
}


@dataclass(frozen=True)
class Request:
    """One library to build: its modules and its folder."""

    given: Modules
    folder: str

    @property
    def modules(self) -> list[Any]:
        """The modules, of one too."""
        return list(self.given) if isinstance(self.given, Sequence) else [self.given]

    @property
    def title(self) -> str:
        """What to call it where there is no other."""
        return f"the module{'s' if len(self.modules) > 1 else ''} {self.names}"

    @property
    def names(self) -> str:
        """The functions that a user knows the modules by: the public ones, or all where there is none."""
        all_of_them: list[str] = []
        for module in self.modules:
            public = [name for name, function in module.functions.items() if function.kind == "public"]
            all_of_them += public or list(module.functions)
        found = list(dict.fromkeys(all_of_them))
        return ", ".join([*found[:_NAMED], *(["..."] if len(found) > _NAMED else [])])


def request_of(given: Modules, folder: str | os.PathLike[str]) -> Request:
    """What is asked, if it can be meant. Raises UsageError."""
    if not isinstance(folder, (str, os.PathLike)):
        raise UsageError(f"expected the path of a folder, not {folder!r}")
    path = os.fspath(folder)
    if not path or "\0" in path:
        raise UsageError(f"{path!r} is not the path of a folder")
    request = Request(given, path)
    if not request.modules:
        raise UsageError(f"there is no module to build into {path}")
    for module in request.modules:
        if not hasattr(module, "functions"):
            raise UsageError(f"expected an IRModule, or a sequence of them, not {type(module).__name__}")
    return request


def refuse_shared_folders(requests: Sequence[Request]) -> None:
    """Refuse two modules for one folder: the later would take the place of the other, and nobody would know."""
    owners: dict[str, int] = {}
    for number, request in enumerate(requests):
        other = owners.setdefault(os.path.realpath(request.folder), number)
        if requests[other].given is not request.given:
            raise UsageError(
                f"{who(requests, other)} and {who(requests, number)} would be built into one folder",
                hint="give each a folder of its own",
            )


def refuse_other_devices(requests: Sequence[Request], platform: Platform) -> None:
    """Refuse modules with kernels for a GPU where the target is a CPU: hidet finds out deep in its code generator."""
    errors = []
    for number, request in enumerate(requests):
        kinds = {name: function.kind for module in request.modules for name, function in module.functions.items()}
        for device in ("cuda", "hip"):
            strangers = [name for name, kind in kinds.items() if kind.startswith(device) and device != platform.kind]
            if strangers:
                errors.append(
                    UsageError(
                        f"{who(requests, number)}: {strangers[0]} is a {kinds[strangers[0]]}, and the target is "
                        f"{platform.target}",
                        hint='a target for it is written like "cuda --arch=sm_80"' if device == "cuda" else None,
                    )
                )
    raise_all(errors)


def who(requests: Sequence[Request], number: int) -> str:
    """What to call a request: by its functions and its folder, and by its number where there are others."""
    request = requests[number]
    folder = f" ({request.folder})" if request.folder else ""
    return (f"module {number}, {request.names}" if len(requests) > 1 else request.title) + folder


def target_text(target: str | Target | Device) -> str:
    """A target as a string; hidet's Target as the one it was made of."""
    if isinstance(target, str):
        return target
    if not hasattr(target, "attrs"):  # a Device
        if not hasattr(target, "kind"):
            raise UsageError(f'expected a target like "cpu" or "cuda --arch=sm_80", not {target!r}')
        return str(target.kind)
    return " ".join([target.name, *target.flags, *(f"--{name}={value}" for name, value in target.attrs.items())])


def told(error: BuildError, subject: str, owner: str, platform: Platform) -> BuildError:
    """The error in the words of the caller, who knows modules and folders, and not `owner`, as we call them."""
    message = f"{subject}: {error.message.removeprefix(f'{owner}: ')}"
    if isinstance(error, NotCached):
        if owner:  # it names what would have been made
            message = message.replace(f"{owner.removeprefix('//').replace(':', '/')}/", "")
        message += f"; it was looked for as {platform.target}"
        return NotCached(message, hint=_FILL + (_NATIVE if platform.cpu_flags else ""))
    hint = instead(error.hint)
    if isinstance(error, ActionFailed):
        return ActionFailed(message, hint=hint, detail=error.detail, command=error.command)
    return type(error)(message, hint=hint)


def instead(hint: str | None) -> str | None:
    """A hint in words that fit a program: it has no command line with our flags."""
    return next((ours for flag, ours in _INSTEAD.items() if hint and flag in hint), hint)
