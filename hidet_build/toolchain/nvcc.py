"""Finds the CUDA compiler and says what it is and which architectures it knows. Asks no device, except for `native`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hidet_build import digest
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
from hidet_build.toolchain.cxx import is_launcher

_HINT = (
    "install the CUDA toolkit (no GPU and no driver are needed), put its folder bin on PATH, "
    "or name nvcc in the environment variable CUDACXX"
)
# The programs nvcc runs for the device, as its dry run names them, and the one of its folder that finds a GPU.
_PHASES = ("cudafe++", "cicc", "ptxas", "fatbinary")
_QUERY = "__nvcc_device_query"
LIBRARY = "libcudart.so"
# What hidet's sources include; the headers behind them are watched one by one.
_PROBE_SOURCE = """\
#include <cuda_runtime.h>
#include <cudaTypedefs.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cooperative_groups.h>
"""


def find(search: Search, cxx: Toolchain, location: Location | None) -> Toolchain:
    """nvcc, with `cxx` for the host's half of the work.

    It is what CUDACXX names, else the first of PATH, of CUDA_HOME and CUDA_PATH, and of the usual folder.
    EnvironmentFailure where there is none that works.
    """
    driver = _locate(search, location)
    path = run_path([driver, cxx.executables["g++"]])
    key = ("nvcc", driver, path, cxx.identity)
    found = search.memo.recall(key, lambda: _probe(search, driver, path, cxx, location))
    first = next(programs("nvcc", search.path()), None)
    looked_up = (first,) if first and "CUDACXX" not in search.environment else ()
    return replace(found, looked_up=(*looked_up, *cxx.looked_up))


def _locate(search: Search, location: Location | None) -> str:
    wanted = search.environment.get("CUDACXX", "").strip()
    if wanted and not os.path.isabs(wanted):
        raise EnvironmentFailure(
            f"the environment variable CUDACXX is {wanted!r}: expected the absolute path of nvcc", location=location
        )
    homes = [search.environment.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [os.path.join(home, "bin") for home in [*homes, "/usr/local/cuda"] if os.path.isabs(home)]
    candidates = [wanted] if wanted else programs("nvcc", [*search.path(), *folders])
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK) and not is_launcher(candidate):
            return candidate
    reason = f"the environment variable CUDACXX asks for {wanted}" if wanted else "PATH has none"
    raise EnvironmentFailure(f"there is no CUDA compiler nvcc: {reason}", location=location, hint=_HINT)


def _probe(search: Search, driver: str, path: str, cxx: Toolchain, location: Location | None) -> Toolchain:
    """Ask nvcc for the folders of its dry run, and digest what lies there.

    Every header of the toolkit counts, for a kernel can include any. Those that hidet's sources include are watched
    each for itself and of the others the folders, which change with what an installer does: a stat of all 1,900 in
    every build would cost more than it is worth.
    """
    from concurrent.futures import ThreadPoolExecutor  # with the next 10 ms, and most invocations only remember
    from tempfile import TemporaryDirectory

    variables = (("NVCC_CCBIN", cxx.executables["g++"]),)
    # nvcc takes seconds to answer; files are read meanwhile.
    with TemporaryDirectory(prefix="hidet-build-") as scratch, ThreadPoolExecutor(2) as beside:
        environment = {**clean_environment(path), **dict(variables), "TMPDIR": scratch}
        ask = Questions(search.run, driver, environment, location)
        version = _version(ask.text("--version"), driver, location)
        source = os.path.join(scratch, "probe.cu")
        write_file(source, _PROBE_SOURCE.encode())
        dry = ask.text("--dryrun", "-c", source, "-o", os.path.join(scratch, "probe.o"))
        said = dict(re.findall(r"^#\$ (\w+)= *(.*)$", dry, re.MULTILINE))
        folders = re.findall(r'"(?:-I|-isystem" ")([^"]+)"', f"{said.get('INCLUDES')} {said.get('SYSTEM_INCLUDES')}")
        includes = list(dict.fromkeys(os.path.realpath(folder) for folder in folders))
        prerequisites = beside.submit(ask.text, "-M", "-std=c++17", source)
        architectures = beside.submit(_architectures, ask)
        everything = _headers(includes)

        evidence = Evidence("nvcc", version)
        evidence.count(cxx.identity)
        evidence.add("driver", [driver])
        home = said.get("_HERE_", os.path.dirname(driver))
        inner = os.path.join(home, "nvcc")
        if os.path.isfile(inner) and os.path.realpath(inner) != os.path.realpath(driver):
            evidence.add("inner driver", [inner])
        for name in _PHASES:
            evidence.add(name, [_phase(name, said, driver, location)])
        evidence.add("profile", filter(os.path.isfile, [os.path.join(home, "nvcc.profile")]))
        evidence.add("device library", _bitcode(said.get("NVVMIR_LIBRARY_DIR", "")))
        evidence.add("runtime", _runtime(said))
        headers = make_prerequisites(prerequisites.result())[1:]
        evidence.add("header", (header for header in headers if _is_below(header, includes)))
        for place, found in everything:
            evidence.watch([place])
            for text in found:
                evidence.count(text)
        evidence.watch([os.path.join(home, _QUERY)])
    executables = {"nvcc": driver, "sh": next(programs("sh", path.split(":")), "/bin/sh")}
    return evidence.toolchain(executables, path, architectures.result(), variables)


def _version(text: str, driver: str, location: Location | None) -> str:
    found = re.search(r"release [\d.]+, V([\d.]+)", text)
    if not found:
        raise EnvironmentFailure(f"{driver} is no nvcc: it does not say which release it is", location=location)
    return f"nvcc {found[1]}"


def _phase(name: str, said: Mapping[str, str], driver: str, location: Location | None) -> str:
    """The program nvcc runs as `name`: in the folders of its dry run's PATH."""
    folders = [said.get("CICC_PATH", ""), *said.get("PATH", "").split(":")]
    found = next(programs(name, filter(None, folders)), None)
    if found is None:
        raise EnvironmentFailure(
            f"the CUDA toolkit of {driver} has no {name}", location=location, hint="install the toolkit anew"
        )
    return found


def _bitcode(folder: str) -> list[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if name.endswith(".bc")]


def _runtime(said: Mapping[str, str]) -> list[str]:
    """The CUDA runtime that the toolkit links with; none where it is not installed."""
    folders = re.findall(r'"-L([^"]+)"', said.get("LIBRARIES", ""))
    return [path for folder in folders if os.path.isfile(path := os.path.join(folder, LIBRARY))][:1]


def _is_below(path: str, folders: Sequence[str]) -> bool:
    place = os.path.realpath(os.path.dirname(path)) + "/"
    return any(place.startswith(f"{folder}/") for folder in folders)


def _headers(folders: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each folder in or below `folders`, with the path and the digest of each file in it."""
    found = []
    for folder in folders:
        for place, below, names in os.walk(folder, followlinks=True):
            below.sort()
            paths = [path for name in sorted(names) if os.path.isfile(path := os.path.join(place, name))]
            counted = [(os.path.relpath(path, folder), digest.of_file(path).hash) for path in paths]
            found.append((place, [text for pair in counted for text in pair]))
    return found


def _architectures(ask: Questions) -> tuple[str, ...]:
    """The architectures nvcc compiles for; of those with features of their own (sm_90a, sm_100f), it lists none."""
    listed = ask.text("--list-gpu-code").split()
    variants = [f"{name}{letter}" for name in listed if int(name.removeprefix("sm_")) >= 90 for letter in "af"]
    return (*listed, *(name for name in variants if _compiles_for(name, ask)))


def _compiles_for(arch: str, ask: Questions) -> bool:
    code, _ = ask.reply("--dryrun", *generate_code(arch), "-E", "-x", "cu", "/dev/null")
    return code == 0


def generate_code(arch: str) -> tuple[str, ...]:
    """nvcc's flags for one architecture, machine code only."""
    number = arch.removeprefix("sm_")
    return ("-gencode", f"arch=compute_{number},code=sm_{number}")


def part(compiler: Toolchain, name: str) -> str | None:
    """The file of this name that the toolchain was found to be made of."""
    return next((path for path, seen in compiler.parts if seen and os.path.basename(path) == name), None)


def native_architecture(search: Search, compiler: Toolchain, location: Location | None) -> str:
    """The architecture of this machine's GPUs. UsageError where there is none, or where they differ."""
    query = part(compiler, _QUERY)
    # The driver's library may need what the user's environment says of it.
    code, output = search.run([query], search.environment) if query else (1, b"")
    found = sorted(set(re.findall(r"\d+", output.decode(errors="replace")))) if code == 0 else []
    if not found:
        raise UsageError(
            "the architecture 'native' needs a GPU, and this machine has none that CUDA can use",
            location=location,
            hint="write the architecture out: cuda --arch=sm_90",
        )
    if len(found) > 1:
        raise UsageError(
            f"the architecture 'native' means several here: {', '.join(f'sm_{number}' for number in found)}",
            location=location,
            hint="write one of them out",
        )
    return f"sm_{found[0]}"


def unknown_architecture(name: str, compiler: Toolchain, location: Location | None) -> UsageError:
    """What is wrong with an architecture that nvcc does not list."""
    near = did_you_mean(name, compiler.architectures)
    hint = f"it knows {', '.join(compiler.architectures)}"
    return UsageError(
        f"{compiler.version} knows no architecture {name!r}",
        location=location,
        hint=f"{near} {hint}" if near else hint,
    )
