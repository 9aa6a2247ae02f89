"""The toolchains of one invocation: compilers, commands and hidet by name. Knows no action, key or cache.

How each is found, and what it is made of, is known by the room of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hidet_build import digest
from hidet_build.errors import AnalysisError, EnvironmentFailure, Location, did_you_mean
from hidet_build.platform import Platform, parse_target
from hidet_build.toolchain import command, cxx, hidet, nvcc
from hidet_build.toolchain.base import Memo, Probe, Search, Toolchain, clean_environment

_NAMES = ("cxx", "nvcc", "binutils", "hidet", "hidet+NAME", "command:NAME")
_TREES = {"hidet/include": "include", "hidet/lib": "lib", "cuda/lib": ""}


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
        """`environment` gives PATH, CXX and CUDACXX.

        `module_path` is where hidet is looked for, by default where we import from.
        """
        self._folder = os.path.join(memo_folder, "toolchains-1")
        self._search = Search(environment, run, Memo(self._folder))
        self._module_path = module_path
        self._found: dict[str, Toolchain] = {}
        self._native_flags: tuple[str, ...] = ()
        self._native_device = ""

    def get(self, name: str, location: Location | None = None) -> Toolchain:
        """The toolchain `cxx`, `nvcc`, `binutils`, `hidet`, `hidet+DISTRIBUTION` or `command:NAME`.

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
        """Whether a CPU `native` was resolved: what follows from that holds on this machine alone."""
        return bool(self._native_flags)

    @property
    def asked_for_device(self) -> bool:
        """Whether a GPU `native` was resolved: another GPU may be in this machine next time."""
        return bool(self._native_device)

    def tree(self, name: str, location: Location | None = None) -> ToolTree:
        """The folder `hidet/include`, `hidet/lib` or `cuda/lib`."""
        if name not in _TREES:
            hint = did_you_mean(name, _TREES) or f"there are {', '.join(_TREES)}"
            raise AnalysisError(f"there is no toolchain folder {name!r}", location=location, hint=hint)
        if name == "cuda/lib":
            return self._cuda_libraries(location)
        identity = self.get("hidet", location).identity
        return ToolTree(name, os.path.join(hidet.folder(self._module_path, location), _TREES[name]), identity)

    def environment(self, toolchain: Toolchain) -> dict[str, str]:
        """All that a program of `toolchain` sees of the environment; only TMPDIR is to be added."""
        return {**clean_environment(toolchain.path), **dict(toolchain.variables)}

    def resolve(self, platform: Platform, location: Location | None = None) -> Platform:
        """The platform with `native` replaced by what it means on this machine: flags of g++, a GPU's architecture.

        Other architectures are held against the compilers' own lists (UsageError); where they are not found, they
        pass: outputs may still come from a cache, and who needs the compiler will say that it is missing.
        """
        if platform.kind == "cuda":
            platform = self._resolve_device(platform, location)
        if platform.cpu_arch == "native":
            return self._resolve_native(platform, location)
        try:
            compiler = self.get("cxx", location)
        except EnvironmentFailure:
            return platform
        if compiler.architectures and platform.cpu_arch not in compiler.architectures:
            raise cxx.unknown_architecture(platform.cpu_arch, compiler, location)
        return platform

    def _resolve_device(self, platform: Platform, location: Location | None) -> Platform:
        if platform.arch == "native":
            compiler = self.get("nvcc", location)
            self._native_device = nvcc.native_architecture(self._search, compiler, location)
            return parse_target(f"cuda --arch={self._native_device} --cpu_arch={platform.cpu_arch}", location)
        try:
            compiler = self.get("nvcc", location)
        except EnvironmentFailure:
            return platform
        if platform.arch not in compiler.architectures:
            raise nvcc.unknown_architecture(platform.arch, compiler, location)
        return platform

    def _resolve_native(self, platform: Platform, location: Location | None) -> Platform:
        compiler = self.get("cxx", location)
        if not self._native_flags:
            self._native_flags = cxx.native_flags(self._search, compiler, location)
        flags = self._native_flags
        march = flags[0].removeprefix("-march=")
        device = platform.name.removesuffix("-native")
        name = f"{device}-{march}-{digest.of_text(' '.join(flags)).hash[:8]}"
        return replace(platform, name=name, cpu_arch=march, cpu_flags=flags)

    def _cuda_libraries(self, location: Location | None) -> ToolTree:
        """A folder with the CUDA runtime alone: the toolkit's own holds a hundred megabytes of others."""
        compiler = self.get("nvcc", location)
        library = nvcc.part(compiler, nvcc.LIBRARY)
        if library is None:
            raise EnvironmentFailure(
                f"the CUDA toolkit of {compiler.executables['nvcc']} has no {nvcc.LIBRARY} to link with",
                location=location,
                hint="install the toolkit's runtime with its headers (Debian packages: cuda-cudart-dev)",
            )
        folder = os.path.join(self._folder, f"cuda-{compiler.identity[:32]}")
        link = os.path.join(folder, nvcc.LIBRARY)
        try:
            os.makedirs(folder, exist_ok=True)
            if not os.path.lexists(link) or os.readlink(link) != library:
                temporary = f"{link}.{os.getpid()}"
                os.symlink(library, temporary)
                os.replace(temporary, link)
        except OSError as error:
            raise EnvironmentFailure(f"cannot write {folder}: {error.strerror}", location=location) from None
        return ToolTree("cuda/lib", folder, compiler.identity)

    def _find(self, name: str, location: Location | None) -> Toolchain:
        if name == "cxx":
            return cxx.find(self._search, location)
        if name == "nvcc":
            return nvcc.find(self._search, self.get("cxx", location), location)
        if name == "binutils":
            return command.find_binutils(self._search, location)
        if name == "hidet":
            return hidet.find(self._search, self._module_path, location)
        if name.startswith("hidet+"):
            return hidet.find_with(self._search, name, self.get("hidet", location), location)
        if name.startswith("command:") and name != "command:":
            return command.find_command(self._search, name, location)
        hint = did_you_mean(name, _NAMES) or f"there are {', '.join(_NAMES)}"
        raise AnalysisError(f"there is no toolchain {name!r}", location=location, hint=hint)
