"""Finds programs that are one file each: the binutils, and any command of PATH. Knows nothing of what they do."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from hidet_build.errors import AnalysisError, EnvironmentFailure, Location
from hidet_build.toolchain.base import Evidence, Questions, Search, Toolchain, clean_environment, programs, run_path

_BINUTILS = ("nm", "ld", "objcopy", "sh")  # nm can write to a file only through a shell


def find_binutils(search: Search, location: Location | None) -> Toolchain:
    """The binutils of PATH. EnvironmentFailure where one is missing."""
    paths = {name: next(programs(name, search.path()), None) for name in _BINUTILS}
    found = {name: program for name, program in paths.items() if program}
    missing = [name for name in _BINUTILS if name not in found]
    if missing:
        raise EnvironmentFailure(
            f"PATH has no {', '.join(missing)}",
            location=location,
            hint="install the GNU binutils (Debian, Ubuntu: apt-get install binutils)",
        )
    path = run_path(found.values())
    key = ("binutils", *found.values(), path)
    remembered = search.memo.recall(key, lambda: _probe_binutils(search, found, path, location))
    return replace(remembered, looked_up=tuple(found.values()))


def _probe_binutils(search: Search, found: Mapping[str, str], path: str, location: Location | None) -> Toolchain:
    environment = clean_environment(path)
    version = Questions(search.run, found["ld"], environment, location).text("--version").splitlines()
    evidence = Evidence("binutils", version[0].strip() if version else "")
    for name, program in sorted(found.items()):
        evidence.add(name, [program])
        ask = Questions(search.run, program, environment, location)
        evidence.add("loaded library", ask.loaded_libraries(program))
    return evidence.toolchain(found, path)


def find_command(search: Search, name: str, location: Location | None) -> Toolchain:
    """The program of PATH that `command:NAME` names. EnvironmentFailure where there is none."""
    command = name.removeprefix("command:")
    if "/" in command:
        raise AnalysisError(
            f"the command {command!r} is a path: expected the plain name of a program on PATH",
            location=location,
            hint="a script of the workspace is run as an input of its interpreter",
        )
    # The Python we run in has what the user installed beside us, whether or not its folder is on PATH.
    ours = [os.path.dirname(sys.executable)] if command in ("python", "python3") else []
    program = next(programs(command, [*ours, *search.path()]), None)
    if program is None:
        raise EnvironmentFailure(
            f"PATH has no program {command!r}", location=location, hint="install it, or add its folder to PATH"
        )
    path = run_path([program])
    found = search.memo.recall((name, program, path), lambda: _probe_command(name, command, program, path))
    return found if os.path.dirname(program) in ours else replace(found, looked_up=(program,))


def _probe_command(name: str, command: str, program: str, path: str) -> Toolchain:
    evidence = Evidence(name, command)
    evidence.add("program", [program])
    evidence.add("interpreter", _interpreter(program, path))
    return evidence.toolchain({command: program}, path)


def _interpreter(program: str, path: str) -> list[str]:
    """The program that runs a script, as its first line says; nothing for other programs."""
    with open(program, "rb") as file:
        first = file.readline(256)
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    if len(words) > 1 and os.path.basename(words[0]) == "env":
        found = next(programs(words[1], path.split(":")), None)
        return [found] if found else []
    return words[:1] if words and os.path.isfile(words[0]) else []
