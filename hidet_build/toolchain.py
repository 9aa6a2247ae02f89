"""Finds compilers, commands and hidet on this machine and says what each one *is*. Knows no action, key or cache.

A toolchain's identity is a digest of content: of the programs, of the headers and libraries they read, of the version
they print. Paths, times and the machine stay out of it, so one compiler reached by two paths is one toolchain.
Finding that content takes a compiler half a second; it is remembered, and the memory holds while every file that was
read has the stat data it had:

    <memo folder>/toolchains-1/<digest of what was looked up>     32 bytes of SHA-256, then the marshalled record
"""

from __future__ import annotations

import marshal
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any, NamedTuple

from hidet_build import digest
from hidet_build.errors import AnalysisError, EnvironmentFailure, Location, UsageError, did_you_mean
from hidet_build.files import Fingerprint, mark
from hidet_build.platform import Platform
from hidet_build.worker.version import STEP_VERSION

Part = tuple[str, Fingerprint | None]
# Runs a short command with exactly this environment; gives its exit code, and its output and errors as one text.
Probe = Callable[[Sequence[str], Mapping[str, str]], tuple[int, bytes]]

_SYSTEM_PATH = ("/usr/bin", "/bin")
_NAMES = ("cxx", "binutils", "hidet", "hidet+NAME", "command:NAME")
_BINUTILS = ("nm", "ld", "objcopy", "sh")  # nm can write to a file only through a shell
_TREES = {"hidet/include": "include", "hidet/lib": "lib"}
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


@dataclass(frozen=True)
class Toolchain:
    """A toolchain as it was found.

    `executables` maps the plain names that stand in command lines to absolute paths, `path` is the PATH to run them
    with, `parts` all files and folders the identity was taken from. `architectures` are the names a compiler takes
    for -march, as far as it lists them. `looked_up` are the first programs of their names that PATH led to: where
    it leads elsewhere, the toolchain has to be found again.
    """

    name: str
    executables: Mapping[str, str]
    version: str
    identity: str
    path: str
    parts: tuple[Part, ...]
    architectures: tuple[str, ...] = ()
    looked_up: tuple[str, ...] = ()

    def executable(self, argv0: str) -> str:
        """The absolute path of the program a command line calls `argv0`.

        Run it with this path as its first argument too: a compiler that was moved finds its parts by that.
        AnalysisError where the toolchain has no such program.
        """
        found = self.executables.get(argv0)
        if found is None:
            raise AnalysisError(
                f"the toolchain {self.name!r} has no program {argv0!r}",
                hint=f"arguments[0] can be {' or '.join(sorted(self.executables))}",
            )
        return found

    def is_fresh(self) -> bool:
        """Whether every part still has the stat data it had. It does not look whether PATH leads elsewhere now."""
        return all(mark(path) == seen for path, seen in self.parts)


class ToolTree(NamedTuple):
    """A folder of a toolchain that actions may ask for; it is staged at `external/<name>`.

    Its content is covered by `identity`, so what was computed from it can be kept under that.
    """

    name: str
    path: str
    identity: str


class Toolchains:
    """The toolchains of one invocation. Each is looked up once: make a new object to look again."""

    def __init__(
        self,
        environment: Mapping[str, str],
        memo_folder: str,
        run: Probe,
        module_path: Sequence[str] | None = None,
    ) -> None:
        """`environment` gives PATH and CXX; `module_path` is where hidet is looked for, by default where we import."""
        self._environment = environment
        self._memo = _Memo(os.path.join(memo_folder, "toolchains-1"))
        self._run = run
        self._module_path = module_path
        self._found: dict[str, Toolchain] = {}
        self._native_flags: tuple[str, ...] = ()

    def get(self, name: str, location: Location | None = None) -> Toolchain:
        """The toolchain `cxx`, `binutils`, `hidet`, `hidet+DISTRIBUTION` or `command:NAME`.

        EnvironmentFailure, at `location`, where this machine has none that works.
        """
        if name not in self._found:
            self._found[name] = self._find(name, location)
        return self._found[name]

    def found(self) -> tuple[Toolchain, ...]:
        """All that were asked for so far, and are here."""
        return tuple(self._found.values())

    @property
    def asked_for_cpu(self) -> bool:
        """Whether `native` was resolved: what follows from that holds on this machine alone."""
        return bool(self._native_flags)

    def tree(self, name: str, location: Location | None = None) -> ToolTree:
        """The folder `hidet/include` or `hidet/lib`."""
        if name not in _TREES:
            hint = did_you_mean(name, _TREES) or f"there are {', '.join(_TREES)}"
            raise AnalysisError(f"there is no toolchain folder {name!r}", location=location, hint=hint)
        identity = self.get("hidet", location).identity
        return ToolTree(name, os.path.join(self._hidet_folder(location), _TREES[name]), identity)

    def environment(self, toolchain: Toolchain) -> dict[str, str]:
        """All that a program of `toolchain` sees of the environment; only TMPDIR is to be added.

        The locale is fixed because a compiler's messages are kept and compared; CPATH, LIBRARY_PATH, NVCC_*,
        LD_LIBRARY_PATH and their like, which change what compilers make, are not there.
        """
        return _environment(toolchain.path)

    def resolve(self, platform: Platform, location: Location | None = None) -> Platform:
        """The platform with `native` replaced by the flags it means to g++ on this CPU.

        Other architectures are held against g++'s own list (UsageError); where no g++ is found, they pass.
        """
        if platform.cpu_arch == "native":
            return self._resolve_native(platform, location)
        try:
            compiler = self.get("cxx", location)
        except EnvironmentFailure:
            return platform  # outputs may still come from a cache; who needs the compiler will say that it is missing
        if compiler.architectures and platform.cpu_arch not in compiler.architectures:
            raise _unknown_architecture(platform.cpu_arch, compiler, location)
        return platform

    def _find(self, name: str, location: Location | None) -> Toolchain:
        if name == "cxx":
            return self._find_cxx(location)
        if name == "binutils":
            return self._find_binutils(location)
        if name == "hidet":
            return self._find_hidet(location)
        if name.startswith("hidet+"):
            return self._find_hidet_with(name, location)
        if name.startswith("command:") and name != "command:":
            return self._find_command(name, location)
        hint = did_you_mean(name, _NAMES) or f"there are {', '.join(_NAMES)}"
        raise AnalysisError(f"there is no toolchain {name!r}", location=location, hint=hint)

    def _search_path(self) -> list[str]:
        folders = self._environment.get("PATH", ":".join(_SYSTEM_PATH)).split(":")
        # A relative folder would give another compiler in another working directory.
        return [folder for folder in folders if os.path.isabs(folder)]

    # cxx

    def _find_cxx(self, location: Location | None) -> Toolchain:
        driver, looked_up = self._locate_cxx(location)
        path = _run_path([driver])
        found = self._memo.recall(("cxx", driver, path), lambda: self._probe_cxx(driver, path, location))
        return replace(found, looked_up=looked_up)

    def _locate_cxx(self, location: Location | None) -> tuple[str, tuple[str, ...]]:
        """The compiler, and the first program of its name on PATH if PATH was asked."""
        wanted = self._environment.get("CXX", "").strip() or "g++"
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
        folders = [folder] if "/" in wanted else self._search_path()
        found = next(_programs(name, folders), None)
        if found is None:
            reason = "the environment variable CXX asks for it" if wanted != "g++" else "PATH has none"
            raise EnvironmentFailure(f"there is no compiler {wanted}: {reason}", location=location, hint=_GXX_HINT)
        if not _is_launcher(found):
            return found, () if "/" in wanted else (found,)
        candidates = list(_programs(name, self._search_path()))
        for candidate in candidates:
            if not _is_launcher(candidate):
                return candidate, tuple(candidates[:1])
        raise EnvironmentFailure(
            f"{found} is {os.path.basename(os.path.realpath(found))}, and PATH has no compiler {name} behind it",
            location=location,
            hint=_GXX_HINT,
        )

    def _probe_cxx(self, driver: str, path: str, location: Location | None) -> Toolchain:
        """Ask the compiler what it runs and reads, and digest all of it.

        `-v` with a link names version, specs and programs, and with `-t` every file that was linked; `-M` names the
        headers, in the order in which they were first read, which no path has a part in.
        """
        from tempfile import TemporaryDirectory  # 6 ms, and most invocations only remember

        with TemporaryDirectory(prefix="hidet-build-") as scratch:
            ask = _Questions(self._run, driver, {**_environment(path), "TMPDIR": scratch}, location)
            source = os.path.join(scratch, "probe.cc")
            _write(source, _PROBE_SOURCE.encode())
            empty = os.path.join(scratch, "empty.cc")
            _write(empty, b"")
            library = os.path.join(scratch, "probe.so")

            link = ask.text("-v", "-shared", "-fPIC", "-fopenmp", empty, "-o", library, "-Wl,-t")
            version = _compiler_version(link, driver, location)
            family = version.partition(" ")[0]
            headers = _make_prerequisites(ask.text("-M", "-std=c++17", "-fopenmp", source))[1:]
            architectures = _valid_architectures(ask.reply("-march=no-such-cpu", "-E", "-x", "c++", "/dev/null")[1])
            tools = {name: ask.program(name, path) for name in ("cc1plus", "collect2", "as", "ld")}

            evidence = _Evidence("cxx", version)
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

    def _resolve_native(self, platform: Platform, location: Location | None) -> Platform:
        compiler = self.get("cxx", location)
        if not self._native_flags:
            key = ("native", compiler.identity, compiler.executables["g++"], _cpu_description())
            self._native_flags = self._memo.recall_flags(key, lambda: self._probe_native(compiler, location))
        flags = self._native_flags
        march = flags[0].removeprefix("-march=")
        device = f"{platform.kind}-{platform.arch}" if platform.arch else platform.kind
        name = f"{device}-{march}-{digest.of_text(' '.join(flags)).hash[:8]}"
        return replace(platform, name=name, cpu_arch=march, cpu_flags=flags)

    def _probe_native(self, compiler: Toolchain, location: Location | None) -> tuple[str, ...]:
        ask = _Questions(self._run, compiler.executables["g++"], self.environment(compiler), location)
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

    # binutils and commands

    def _find_binutils(self, location: Location | None) -> Toolchain:
        programs = {name: next(_programs(name, self._search_path()), None) for name in _BINUTILS}
        found = {name: program for name, program in programs.items() if program}
        missing = [name for name in _BINUTILS if name not in found]
        if missing:
            raise EnvironmentFailure(
                f"PATH has no {', '.join(missing)}",
                location=location,
                hint="install the GNU binutils (Debian, Ubuntu: apt-get install binutils)",
            )
        path = _run_path(found.values())
        key = ("binutils", *found.values(), path)
        remembered = self._memo.recall(key, lambda: self._probe_binutils(found, path, location))
        return replace(remembered, looked_up=tuple(found.values()))

    def _probe_binutils(self, programs: Mapping[str, str], path: str, location: Location | None) -> Toolchain:
        environment = _environment(path)
        version = _Questions(self._run, programs["ld"], environment, location).text("--version").splitlines()
        evidence = _Evidence("binutils", version[0].strip() if version else "")
        for name, program in sorted(programs.items()):
            evidence.add(name, [program])
            ask = _Questions(self._run, program, environment, location)
            evidence.add("loaded library", ask.loaded_libraries(program))
        return evidence.toolchain(programs, path)

    def _find_command(self, name: str, location: Location | None) -> Toolchain:
        command = name.removeprefix("command:")
        if "/" in command:
            raise AnalysisError(
                f"the command {command!r} is a path: expected the plain name of a program on PATH",
                location=location,
                hint="a script of the workspace is run as an input of its interpreter",
            )
        # The Python we run in has what the user installed beside us, whether or not its folder is on PATH.
        ours = [os.path.dirname(sys.executable)] if command in ("python", "python3") else []
        program = next(_programs(command, [*ours, *self._search_path()]), None)
        if program is None:
            raise EnvironmentFailure(
                f"PATH has no program {command!r}", location=location, hint="install it, or add its folder to PATH"
            )
        path = _run_path([program])
        found = self._memo.recall((name, program, path), lambda: _probe_command(name, command, program, path))
        return found if os.path.dirname(program) in ours else replace(found, looked_up=(program,))

    # hidet

    def _find_hidet(self, location: Location | None) -> Toolchain:
        folder = self._hidet_folder(location)
        others = {name: _package_folder(name, self._module_path) or "" for name in ("torch", "numpy")}
        key = ("hidet", sys.executable, folder, *others.values(), str(STEP_VERSION))
        return self._memo.recall(key, lambda: self._probe_hidet(folder, others))

    def _find_hidet_with(self, name: str, location: Location | None) -> Toolchain:
        """hidet and the distributions a kernel requires beside it: `hidet+einops+scipy`."""
        hidet = self.get("hidet", location)
        key = (name, sys.executable, hidet.identity, *sys.path)
        return self._memo.recall(key, lambda: self._probe_hidet_with(name, hidet, location))

    def _probe_hidet_with(self, name: str, hidet: Toolchain, location: Location | None) -> Toolchain:
        from hidet_build.worker.distribution import (  # importlib.metadata, for those who require something
            advice,
            installed,
        )

        found: dict[str, tuple[str, frozenset[str]]] = {}
        for requirement in name.split("+")[1:]:
            brought = installed(requirement)
            if brought is None:
                raise EnvironmentFailure(
                    f"`requires` names {requirement!r}, which is not installed in {sys.executable}",
                    location=location,
                    hint=advice(requirement),
                )
            found.update(brought)
        words = [hidet.version, *(f"{name} {version}" for name, (version, _) in sorted(found.items()))]
        evidence = _Evidence(f"hidet {hidet.identity}", ", ".join(words))
        evidence.watch(path for path, _ in hidet.parts)
        for module in sorted({module for _, modules in found.values() for module in modules}):
            self._add_module(module, evidence)
        return evidence.toolchain(hidet.executables, hidet.path)

    @staticmethod
    def _add_module(name: str, evidence: _Evidence) -> None:
        """Add the content of an importable top-level module, wherever it is installed."""
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            return
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            files, folders = _package_files(folder)
            for file in files:
                evidence.add(f"{name}/{os.path.relpath(file, folder)}", [file])
            evidence.watch(folders)
        if spec and not spec.submodule_search_locations and spec.origin and os.path.isfile(spec.origin):
            evidence.add(name, [spec.origin])

    def _hidet_folder(self, location: Location | None) -> str:
        folder = _package_folder("hidet", self._module_path)
        if folder is None:
            raise EnvironmentFailure(
                f"hidet is not installed in {sys.executable}",
                location=location,
                hint="pip install 'hidet-build[hidet]'",
            )
        return folder

    def _probe_hidet(self, folder: str, others: Mapping[str, str]) -> Toolchain:
        search = sys.path if self._module_path is None else self._module_path
        versions = {"hidet": _installed_version("hidet", folder, search)}
        for name, place in others.items():
            versions[name] = _installed_version(name, place, search) if place else ("none", ())
        words = [f"{name} {version}" for name, (version, _) in versions.items()]
        words += [f"Python {sys.version_info[0]}.{sys.version_info[1]}", f"step {STEP_VERSION}"]
        evidence = _Evidence("hidet", ", ".join(words))
        for _, sources in versions.values():
            evidence.watch(sources)
        if self._module_path is None:
            from hidet_build.worker.distribution import closure_of_hidet  # importlib.metadata, when probing alone

            # A kernel may import all of it, so all of it counts, by version.
            for name, version, metadata in closure_of_hidet():
                evidence.count(f"{name} {version}")
                evidence.watch([metadata] if metadata else [])
        files, folders = _package_files(folder)
        for file in files:
            evidence.add(os.path.relpath(file, folder), [file])
        evidence.watch(folders)
        return evidence.toolchain({"python3": sys.executable}, _run_path([sys.executable]))


class _Memo:
    """What earlier probes found, a file each. A damaged, foreign or unwritable memory only costs a probe."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def recall(self, key: tuple[str, ...], probe: Callable[[], Toolchain]) -> Toolchain:
        """The toolchain remembered under `key` if its parts are unchanged, else what `probe` finds."""
        remembered = _toolchain_of(self._read(key))
        if remembered is not None and remembered.is_fresh():
            return remembered
        found = probe()
        self._write(
            key,
            (
                found.name,
                dict(found.executables),
                found.version,
                found.identity,
                found.path,
                found.parts,
                found.architectures,
            ),
        )
        return found

    def recall_flags(self, key: tuple[str, ...], probe: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """The flags remembered under `key`, which must say all they depend on, else what `probe` finds."""
        remembered = self._read(key)
        if isinstance(remembered, tuple) and remembered and all(isinstance(flag, str) for flag in remembered):
            return remembered
        found = probe()
        self._write(key, found)
        return found

    def _place(self, key: tuple[str, ...]) -> str:
        # marshal's format is Python's own affair, so each Python has its own memory.
        words = (*key, sys.implementation.cache_tag or "", sys.version)
        return os.path.join(self._folder, digest.of_text("\0".join(words)).hash[:32])

    def _read(self, key: tuple[str, ...]) -> Any:
        try:
            with open(self._place(key), "rb") as file:
                stored = file.read()
        except OSError:
            return None
        # Checked first: marshal may do anything with bytes it did not write.
        return marshal.loads(stored[32:]) if sha256(stored[32:]).digest() == stored[:32] else None

    def _write(self, key: tuple[str, ...], value: Any) -> None:
        content = marshal.dumps(value)
        place = self._place(key)
        temporary = f"{place}.{os.getpid()}"
        try:
            os.makedirs(self._folder, exist_ok=True)
            _write(temporary, sha256(content).digest() + content)
            os.replace(temporary, place)
        except OSError:
            return  # a full disk or a read-only folder: the next invocation asks again


def _toolchain_of(record: Any) -> Toolchain | None:
    return Toolchain(*record) if isinstance(record, tuple) and len(record) == 7 else None


class _Evidence:
    """Collects what a toolchain's identity is made of, and the stat data of every file before it is read."""

    def __init__(self, name: str, version: str) -> None:
        self._name = name
        self._version = version
        self._hasher = sha256()
        self._parts: dict[str, Fingerprint | None] = {}
        self._said: set[tuple[str, str]] = set()
        self._say(name)
        self._say(version)

    def add(self, role: str, paths: Iterable[str]) -> None:
        """Let the content of each file count, in this order, as the `role` it plays; equal content counts once.

        Told apart by content, for which file is which under how many names is a matter of paths.
        """
        for path in paths:
            self.watch([path])
            content = digest.of_file(path).hash
            if (role, content) not in self._said:
                self._said.add((role, content))
                self._say(role)
                self._say(content)

    def count(self, text: str) -> None:
        """Let a text count."""
        self._say(text)

    def watch(self, paths: Iterable[str]) -> None:
        """Ask again when one of these files or folders changes, without letting it count."""
        for path in paths:
            self._parts.setdefault(path, mark(path))

    def toolchain(self, executables: Mapping[str, str], path: str, architectures: tuple[str, ...] = ()) -> Toolchain:
        """What was collected, as a toolchain."""
        parts = tuple(self._parts.items())
        return Toolchain(self._name, executables, self._version, self._hasher.hexdigest(), path, parts, architectures)

    def _say(self, text: str) -> None:
        content = text.encode(errors="surrogateescape")
        self._hasher.update(b"%d:" % len(content) + content)


class _Questions:
    """Puts questions to one program, in the environment it will run in later."""

    def __init__(self, run: Probe, program: str, environment: Mapping[str, str], location: Location | None) -> None:
        self._run = run
        self._program = program
        self._environment = environment
        self._location = location

    def reply(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output."""
        code, output = self._run([self._program, *arguments], self._environment)
        return code, os.fsdecode(output)

    def text(self, *arguments: str) -> str:
        """The output; EnvironmentFailure where the program does not succeed."""
        code, output = self.reply(*arguments)
        if code != 0:
            lines = [line for line in output.splitlines() if "error: " in line] or output.splitlines()[-1:]
            raise EnvironmentFailure(
                f"{self._program} does not work: exit code {code}"
                + "".join(f"\n    {line.strip()}" for line in lines[:3]),
                location=self._location,
                hint=f"it was called as `{' '.join([self._program, *arguments])}`",
            )
        return output

    def program(self, name: str, path: str) -> str | None:
        """The program the compiler runs as `name`; None where it does without."""
        answer = self.text(f"-print-prog-name={name}").strip()
        return answer if os.path.isabs(answer) else next(_programs(answer, path.split(":")), None)

    def loaded_libraries(self, program: str) -> list[str]:
        """The shared libraries `program` is made of: without libLLVM, clang++ is but a few kilobytes.

        The C library's loader lists them in place of starting the program; others start it, and say nothing of use.
        """
        _, output = self._run([program], {**self._environment, "LD_TRACE_LOADED_OBJECTS": "1"})
        found = re.findall(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", os.fsdecode(output), re.MULTILINE)
        return [library for library in found if os.path.isfile(library)]


def _environment(path: str) -> dict[str, str]:
    return {"HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "PATH": path}


def _run_path(programs: Iterable[str]) -> str:
    folders = [os.path.dirname(program) for program in programs]
    return ":".join(dict.fromkeys([*folders, *_SYSTEM_PATH]))


def _programs(name: str, folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def _is_launcher(program: str) -> bool:
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


def _make_prerequisites(rule: str) -> list[str]:
    """The files after the colon of a Makefile rule as `-M` prints it."""
    _, _, files = rule.replace("\\\n", " ").partition(": ")
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in re.findall(r"(?:\\.|\S)+", files)]


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


def _unknown_architecture(name: str, compiler: Toolchain, location: Location | None) -> UsageError:
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


def _probe_command(name: str, command: str, program: str, path: str) -> Toolchain:
    evidence = _Evidence(name, command)
    evidence.add("program", [program])
    evidence.add("interpreter", _interpreter(program, path))
    return evidence.toolchain({command: program}, path)


def _interpreter(program: str, path: str) -> list[str]:
    """The program that runs a script, as its first line says; nothing for other programs."""
    with open(program, "rb") as file:
        first = file.readline(256)
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    if len(words) > 1 and os.path.basename(words[0]) == "env":
        found = next(_programs(words[1], path.split(":")), None)
        return [found] if found else []
    return words[:1] if words and os.path.isfile(words[0]) else []


def _package_folder(name: str, module_path: Sequence[str] | None) -> str | None:
    """The folder of the package, without importing it; folders that merely have its name do not count."""
    spec = PathFinder.find_spec(name, module_path)
    if module_path is None and not _is_package(spec):
        # An editable install may be found by a finder of its own only.
        specs = (finder.find_spec(name, None, None) for finder in sys.meta_path)
        spec = next((found for found in specs if _is_package(found)), None)
    return os.path.dirname(spec.origin) if spec and spec.origin and _is_package(spec) else None


def _is_package(spec: ModuleSpec | None) -> bool:
    return bool(spec and spec.origin and os.path.basename(spec.origin) == "__init__.py")


def _installed_version(name: str, folder: str, search: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The version of an installed package, and the files that say it.

    Read from the name of the `.dist-info` folder: importlib.metadata costs more than all else here.
    """
    pattern = re.compile(re.escape(name) + r"-(.+)\.dist-info\Z", re.IGNORECASE)
    for place in [os.path.dirname(folder), *search]:
        found = sorted(match[0] for entry in _entries(place) if (match := pattern.match(entry)))
        if found:
            names = [re.sub(pattern, r"\1", entry) for entry in found]
            return ", ".join(names), tuple(os.path.join(place, entry, "METADATA") for entry in found)
    return "of unknown version", (os.path.dirname(folder),)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def _package_files(folder: str) -> tuple[list[str], list[str]]:
    """The files below `folder` in the order of their paths, and the folders; what Python itself writes left out."""
    files, folders = [], []
    for place, below, names in os.walk(folder, followlinks=True):
        below[:] = [name for name in below if name != "__pycache__"]
        folders.append(place)
        files += [os.path.join(place, name) for name in names if not name.endswith((".pyc", ".pyo"))]
    return sorted(file for file in files if os.path.isfile(file)), sorted(folders)


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
