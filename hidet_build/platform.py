"""Platforms: what a kernel is built for. Parses hidet's target strings; knows no compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hidet_build.errors import Location, UsageError, did_you_mean

DEFAULT_CPU_ARCH = "x86-64-v3"  # portable: hidet passes -mavx2 always, so nothing below it is worth naming
KINDS = ("cpu", "cuda", "hip")
_KEYS = {"cpu": ("arch",), "cuda": ("arch", "cpu_arch"), "hip": ("arch",)}
_ARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")
_CUDA_ARCH = re.compile(r"(?:sm_)?(\d+[a-z]?)\Z|native\Z")
_FOLDER = re.compile(r"cuda-(sm_\d+[a-z]?)(-.*)?\Z")
# hidet compiles for these with the features of that very device, which its kernels use.
_WITH_FEATURES = {"sm_90": "sm_90a", "sm_100": "sm_100a"}


@dataclass(frozen=True)
class Platform:
    """What code is made for.

    `name` is the folder under `hidet-out/`; `kind` is `cpu` or `cuda`; `arch` is the device architecture of a GPU
    as nvcc is told it (`sm_80`, `sm_90a`), else empty; `cpu_arch` is what `-march=` gets. `cpu_flags` are the compiler
    flags a resolved `native` stands for, in place of `-march=`. `options` are hidet's options that differ from its
    defaults, by name.
    """

    name: str
    kind: str
    arch: str = ""
    cpu_arch: str = DEFAULT_CPU_ARCH
    cpu_flags: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """hidet's target string, with every attribute spelled out."""
        if self.kind == "cpu":
            return f"cpu --arch={self.cpu_arch}"
        return f"{self.kind} --arch={self.arch} --cpu_arch={self.cpu_arch}"

    @property
    def names(self) -> tuple[str, ...]:
        """What it can be called where targets choose by platform, the most specific first; see `canonical_name`."""
        device = (parse_target(f"{self.kind} --arch={self.arch}").name,) if self.arch else ()
        return (self.name, parse_target(self.target).name, *device, self.kind)

    @property
    def march(self) -> tuple[str, ...]:
        """The flags that tell g++ the CPU."""
        return self.cpu_flags or (f"-march={self.cpu_arch}",)


def parse_target(text: str, location: Location | None = None) -> Platform:
    """The platform of a hidet target string: `cpu`, `cpu --arch=x86-64-v4`, `cuda --arch=sm_90`.

    `native` is left as it stands, for the toolchains to resolve. Raises UsageError, at `location` when given.
    """
    kind, *options = text.split()[:1] + text.split()[1:] or [""]
    if kind not in KINDS:
        raise UsageError(
            f"unknown target {text!r}: expected cpu or cuda, then --arch=...",
            location=location,
            hint=did_you_mean(kind, KINDS),
        )
    values: dict[str, str] = {}
    for option in options:
        key, equals, value = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not equals or key not in _KEYS[kind] or not _ARCH.match(value):
            raise UsageError(
                f"target {text!r}: cannot read {option!r}",
                location=location,
                hint="attributes of " + kind + ": " + ", ".join(f"--{name}=NAME" for name in _KEYS[kind]),
            )
        if key in values:
            raise UsageError(f"target {text!r} has --{key} twice", location=location)
        values[key] = value
    if kind == "cpu":
        arch = values.get("arch", DEFAULT_CPU_ARCH)
        return Platform(f"cpu-{arch}", "cpu", "", arch)
    if "arch" not in values:
        raise UsageError(
            f"target {text!r} has no architecture", location=location, hint=f"write it out: {kind} --arch=sm_90"
        )
    cpu_arch = values.get("cpu_arch", DEFAULT_CPU_ARCH)
    suffix = "" if cpu_arch == DEFAULT_CPU_ARCH else f"-{cpu_arch}"
    arch = values["arch"]
    if kind == "cuda":
        arch = _cuda_arch(arch, text, location)
    return Platform(f"{kind}-{_plain(arch)}{suffix}", kind, arch, cpu_arch)


def _cuda_arch(name: str, text: str, location: Location | None) -> str:
    """The architecture as nvcc is told it: of `90`, `sm_90` and `sm_90a`, `sm_90a`."""
    found = _CUDA_ARCH.match(name)
    if not found:
        raise UsageError(
            f"target {text!r}: {name!r} is no architecture of a GPU",
            location=location,
            hint="they are written like sm_80, sm_90a or native",
        )
    arch = f"sm_{found[1]}" if found[1] else name
    return _WITH_FEATURES.get(arch, arch)


def _plain(arch: str) -> str:
    """The name that stands for an architecture in folders: `sm_90` for `sm_90a`, whichever of the two was written."""
    return {full: short for short, full in _WITH_FEATURES.items()}.get(arch, arch)


def canonical_name(key: str) -> str:
    """One spelling for each platform that a key can mean: a kind, the name of an output folder, a target string."""
    name = _FOLDER.match(key)
    if name:
        return f"cuda-{_plain(name[1])}{name[2] or ''}"
    try:
        return key if key in KINDS else parse_target(key).name
    except UsageError:
        return key
