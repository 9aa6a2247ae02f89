"""Platforms: what a kernel is built for. Parses hidet's target strings; knows no compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hidet_build.errors import Location, UsageError, did_you_mean

DEFAULT_CPU_ARCH = "x86-64-v3"  # portable: hidet passes -mavx2 always, so nothing below it is worth naming
KINDS = ("cpu", "cuda", "hip")
_KEYS = {"cpu": ("arch",), "cuda": ("arch", "cpu_arch"), "hip": ("arch",)}
_ARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")


@dataclass(frozen=True)
class Platform:
    """What code is made for.

    `name` is the folder under `hidet-out/`; `kind` is `cpu` or `cuda`; `arch` is the device architecture of a GPU
    (`sm_90`), else empty; `cpu_arch` is what `-march=` gets. `cpu_flags` are the compiler flags a resolved `native`
    stands for, in place of `-march=`.
    """

    name: str
    kind: str
    arch: str = ""
    cpu_arch: str = DEFAULT_CPU_ARCH
    cpu_flags: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """hidet's target string, with every attribute spelled out."""
        if self.kind == "cpu":
            return f"cpu --arch={self.cpu_arch}"
        return f"{self.kind} --arch={self.arch} --cpu_arch={self.cpu_arch}"

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
    return Platform(f"{kind}-{values['arch']}{suffix}", kind, values["arch"], cpu_arch)
