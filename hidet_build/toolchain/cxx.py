"""Finds the C++ compiler and what `native` means to it. Knows g++ and clang++, and nothing of what is compiled."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from hidet_build.errors import EnvironmentFailure, Location, UsageError, did_you_mean
from hidet_build.toolchain.base import (
    Evidence,
    Questions,
    Search,
    Toolchain,
    clean_environment,
    make_prerequisites,
    programs,
    run_path,
    write_file,
)

# Programs that only stand in for a compiler. We pass them by: the store does their work, and their own caches are
# out of reach in the environment actions run in.
_LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")
_GXX_HINT = (
    "install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; conda: conda install gxx), "
    "or name it in the environment variable CXX"
)
# Every header of the standard library, and those of the system that kernels and handwritten C++ tend to name.
_PROBE_SOURCE = """\
#include <bits/stdc++.h>
#include <immintrin.h>
#include <omp.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
"""


def find(search: Search, location: Location | None) -> Toolchain:
    """The C++ compiler that CXX names, else g++ of PATH. EnvironmentFailure where there is none that works."""
    driver, looked_up = _locate(search, location)
    path = run_path([driver])
    found = search.memo.recall(("cxx", driver, path), lambda: _probe(search, driver, path, location))
    return replace(found, looked_up=looked_up)


def _locate(search: Search, location: Location | None) -> tuple[str, tuple[str, ...]]:
    """The compiler, and the first program of its name on PATH if PATH was asked."""
    wanted = search.environment.get("CXX", "").strip() or "g++"
    if len(wanted.split()) > 1:
        raise EnvironmentFailure(
            f"the environment variable CXX is {wanted!r}: expected the name or the path of one compiler",
            location=location,
            hint="compilers are called without ccache and the like here; flags belong into targets",
        )
    if "/" in wanted and not os.path.isabs(wanted):
        raise EnvironmentFailure(
            f"the environment variable CXX is {wanted!r}: expected a plain name or an absolute path",
            location=location,
        )
    folder, _, name = wanted.rpartition("/")
    folders = [folder] if "/" in wanted else search.path()
    found = next(programs(name, folders), None)
    if found is None:
        reason = "the environment variable CXX asks for it" if wanted != "g++" else "PATH has none"
        raise EnvironmentFailure(f"there is no compiler {wanted}: {reason}", location=location, hint=_GXX_HINT)
    if not is_launcher(found):
        return found, () if "/" in wanted else (found,)
    candidates = list(programs(name, search.path()))
    for candidate in candidates:
        if not is_launcher(candidate):
            return candidate, tuple(candidates[:1])
    raise EnvironmentFailure(
        f"{found} is {os.path.basename(os.path.realpath(found))}, and PATH has no compiler {name} behind it",
        location=location,
        hint=_GXX_HINT,
    )


def _probe(search: Search, driver: str, path: str, location: Location | None) -> Toolchain:
    """Ask the compiler what it runs and reads, and digest all of it.

    `-v` with a link names version, specs and programs, and with `-t` every file that was linked; `-M` names the
    headers, in the order in which they were first read, which no path has a part in.
    """
    from tempfile import TemporaryDirectory  # 6 ms, and most invocations only remember

    with TemporaryDirectory(prefix="hidet-build-") as scratch:
        ask = Questions(search.run, driver, {**clean_environment(path), "TMPDIR": scratch}, location)
        source = os.path.join(scratch, "probe.cc")
        write_file(source, _PROBE_SOURCE.encode())
        empty = os.path.join(scratch, "empty.cc")
        write_file(empty, b"")
        library = os.path.join(scratch, "probe.so")

        link = ask.text("-v", "-shared", "-fPIC", "-fopenmp", empty, "-o", library, "-Wl,-t")
        version = _compiler_version(link, driver, location)
        family = version.partition(" ")[0]
        headers = make_prerequisites(ask.text("-M", "-std=c++17", "-fopenmp", source))[1:]
        architectures = _valid_architectures(ask.reply("-march=no-such-cpu", "-E", "-x", "c++", "/dev/null")[1])
        tools = {name: ask.program(name, path) for name in ("cc1plus", "collect2", "as", "ld")}

        evidence = Evidence("cxx", version)
        evidence.add("driver", [driver])
        # Behind a wrapper script stands the real driver, which names itself.
        inner = re.search(r"^COLLECT_GCC=(/.+)$", link, re.MULTILINE)
        if inner and os.path.realpath(inner[1]) != os.path.realpath(driver):
            evidence.add("inner driver", [inner[1]])
        for specs in re.findall(r"^Reading specs from (.+)$", link, re.MULTILINE):
            evidence.add("specs", [specs])
        for name, tool in tools.items():
            if tool:
                evidence.add(name, [tool])
        for tool in [driver, *filter(None, tools.values())]:
            evidence.add("loaded library", ask.loaded_libraries(tool))
        evidence.add("linker plugin", re.findall(r" -plugin (/\S+)", link)[:1])
        evidence.add("linked", _linked_files(link, scratch))
        evidence.add("header", (header for header in headers if not header.startswith(scratch)))
        # A header put into one of these folders can hide another one.
        evidence.watch(_include_folders(ask.text("-v", "-E", "-x", "c++", "/dev/null")))
    names = {"g++", "clang++"} if family == "clang++" else {"g++"}
    names.add(os.path.basename(driver))
    return evidence.toolchain(dict.fromkeys(sorted(names), driver), path, architectures)


def native_flags(search: Search, compiler: Toolchain, location: Location | None) -> tuple[str, ...]:
    """The flags -march=native stands for on this CPU, -march first; UsageError with a compiler that does not say."""
    key = ("native", compiler.identity, compiler.executables["g++"], _cpu_description())
    return search.memo.recall_flags(key, lambda: _probe_native(search, compiler, location))


def _probe_native(search: Search, compiler: Toolchain, location: Location | None) -> tuple[str, ...]:
    ask = Questions(search.run, compiler.executables["g++"], clean_environment(compiler.path), location)
    text = ask.text("-march=native", "-###", "-E", "-x", "c++", "/dev/null")
    if compiler.version.startswith("clang++"):
        cpu = re.search(r'"-target-cpu" "([^"]+)"', text)
        raise UsageError(
            "the architecture 'native' can be resolved with g++ only, and the compiler is " + compiler.version,
            location=location,
            hint=f"write the CPU out: --arch={cpu[1]}" if cpu else "write the CPU's name out",
        )
    flags = _native_flags(text)
    if not flags:
        raise EnvironmentFailure(
            f"{compiler.version} does not say what -march=native means here",
            location=location,
            hint="write the CPU's name out",
        )
    return flags


def is_launcher(program: str) -> bool:
    """Whether a program only stands in for a compiler, as ccache does."""
    return os.path.basename(os.path.realpath(program)) in _LAUNCHERS


def _compiler_version(text: str, driver: str, location: Location | None) -> str:
    """`g++ 12.2.0 (Debian ...)`, from the line of `-v` that does not hold the name the compiler was called by."""
    found = re.search(r"\b(gcc|clang) version (.+)$", text, re.MULTILINE)
    if not found:
        raise EnvironmentFailure(
            f"{driver} is neither g++ nor clang++",
            location=location,
            hint="set the environment variable CXX to one of them",
        )
    return f"{'g++' if found[1] == 'gcc' else 'clang++'} {found[2].strip()}"


def _linked_files(text: str, scratch: str) -> list[str]:
    """The files `-t` lists. Before 2.35, ld wrote `-lm (/lib/libm.so)`, and `(/lib/libc.a)member.o`."""
    found = re.findall(r"^(?:-l\S+ )?\(?(/[^()\n]+)\)?", text, re.MULTILINE)
    return [path for path in found if not path.startswith(scratch) and os.path.isfile(path)]


def _include_folders(text: str) -> list[str]:
    listed = text.partition("#include <...> search starts here:")[2].partition("End of search list.")[0]
    return [line.strip() for line in listed.splitlines() if line.strip()]


def _valid_architectures(text: str) -> tuple[str, ...]:
    """The list that stands in the compiler's complaint about an unknown one."""
    found = re.search(r"valid (?:arguments to .* switch|target CPU values) are: ([^;\n]+)", text)
    return tuple(re.split(r"[ ,]+", found[1].strip())) if found else ()


def unknown_architecture(name: str, compiler: Toolchain, location: Location | None) -> UsageError:
    """What is wrong with an architecture the compiler does not list."""
    words = [known for known in compiler.architectures if known != "native"]
    near = did_you_mean(name, words)
    family = [known for known in words if known.startswith("x86-64")]
    hint = f"it knows {', '.join(family or words)}" + (" and others" if family else "") + ", and native"
    return UsageError(
        f"{compiler.version} knows no CPU architecture {name!r}",
        location=location,
        hint=f"{near} {hint}" if near else hint,
    )


def _native_flags(text: str) -> tuple[str, ...]:
    """The machine flags of the compiler proper, from what `-###` prints; -march first."""
    line = next((line for line in text.splitlines() if "cc1plus" in line and "-march=" in line), "")
    words = [quoted or plain for quoted, plain in re.findall(r'"((?:\\.|[^"])*)"|(\S+)', line)]
    flags = []
    for index, word in enumerate(words):
        if word == "--param":
            flags.append(f"--param={words[index + 1]}")
        elif word.startswith(("-m", "--param=")):
            flags.append(word)
    flags.sort(key=lambda flag: not flag.startswith("-march="))
    return tuple(flags) if flags and flags[0] not in ("", "-march=native") and "-march=" in flags[0] else ()


def _cpu_description() -> str:
    """What the kernel says of the first processor, without what changes by the second.

    A memo folder in a home directory may be shared by machines with other CPUs.
    """
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            text = file.read(8192).decode(errors="replace")
    except OSError:
        return ""
    steady = ("vendor_id", "cpu family", "model", "stepping", "microcode", "cache size", "flags")
    return "\n".join(line for line in text.partition("\n\n")[0].splitlines() if line.startswith(steady))
