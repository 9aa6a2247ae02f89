"""What this machine and its control group leave to us: processors and memory. Reads files of the kernel alone."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator


def processors(root: str = "/") -> int:
    """How many processors our processes can keep busy: by affinity and by the quota of each group above us."""
    available = len(os.sched_getaffinity(0))
    for quota, period in _quotas(root):
        available = min(available, max(1, math.ceil(quota / period)))
    return available


def memory(root: str = "/") -> int:
    """Bytes of memory that we may fill: what the machine has free, or what a group above us has left of its limit."""
    free = [_meminfo(root, "MemAvailable")]
    for folder in _folders(root, "memory"):
        for limit_name, usage_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, usage = (_number(os.path.join(folder, name)) for name in (limit_name, usage_name))
            if limit is not None and usage is not None:
                free.append(limit - usage + _reclaimable(folder))
    return max(0, min(free))


def whole_memory(root: str = "/") -> int:
    """Bytes of memory that this machine has, or a group above us may use, whoever uses them now."""
    limits = [_meminfo(root, "MemTotal")]
    for folder in _folders(root, "memory"):
        limits += [_number(os.path.join(folder, name)) or limits[0] for name in ("memory.max", "memory.limit_in_bytes")]
    return min(limits)


def _quotas(root: str) -> Iterator[tuple[int, int]]:
    """Microseconds of processor time per period, of each group that has a quota."""
    for folder in _folders(root, "cpu"):
        words = _text(os.path.join(folder, "cpu.max")).split()
        if len(words) == 2 and words[0].isdecimal() and int(words[1]):
            yield int(words[0]), int(words[1])
        quota, period = (_number(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if quota and period and quota > 0:
            yield quota, period


def _folders(root: str, controller: str) -> Iterator[str]:
    """The folders of the groups we are in, ours first; of version 2, and of version 1's hierarchy for `controller`.

    In a container the path may be that of the host, whose folders are not here: then its root is ours.
    """
    for line in _text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        mount = os.path.join(root, "sys/fs/cgroup", controllers)
        names = [name for name in path.split("/") if name not in ("", "..")]
        for count in range(len(names), -1, -1):
            folder = os.path.join(mount, *names[:count])
            if os.path.isdir(folder):
                yield folder


def _meminfo(root: str, name: str) -> int:
    for line in _text(os.path.join(root, "proc/meminfo")).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 1 << 62  # a kernel that does not say


def _reclaimable(folder: str) -> int:
    """Bytes of a group's usage that are cached files, which the kernel drops when somebody needs the memory."""
    for line in _text(os.path.join(folder, "memory.stat")).splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdecimal():
            return int(value)
    return 0


def _number(path: str) -> int | None:
    """The number a file holds; None for `max`, and where there is no such file."""
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
