"""Limits: the files of a kernel, in a folder that stands for the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hidet_build.limits import memory, processors, whole_memory

GIB = 1 << 30


def machine(root: Path, files: dict[str, str]) -> str:
    """A machine with 8 GiB free that has these files too."""
    for path, text in {"proc/meminfo": f"MemTotal: 9\nMemAvailable: {8 * GIB // 1024} kB\n", **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


V2 = {"proc/self/cgroup": "0::/user/build\n"}
V1 = {"proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({**V2, "sys/fs/cgroup/user/build/cpu.max": "max 100000\n"}, 8),
        ({**V2, "sys/fs/cgroup/user/build/cpu.max": "250000 100000\n"}, 3),
        ({**V2, "sys/fs/cgroup/user/cpu.max": "100000 100000\n", "sys/fs/cgroup/user/build/x": ""}, 1),
        ({**V2, "sys/fs/cgroup/user/build/cpu.max": "10000 100000\n"}, 1),
        ({**V2, "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),  # the host's path, seen from a container
        ({**V1, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n"}, 8),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "50000\n",
            },
            4,
        ),
    ],
)
def test_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int) -> None:
    """The quota of the tightest group counts, rounded up, and never makes it none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    assert expected == processors(machine(tmp_path, files))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8 * GIB),
        ({**V2, "sys/fs/cgroup/user/build/memory.max": "max\n"}, 8 * GIB),
        (
            {
                **V2,
                "sys/fs/cgroup/user/build/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/user/build/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/user/build/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            2 * GIB,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{2 * GIB}\n",
            },
            0,
        ),
    ],
)
def test_memory(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    """What is left is the least of what the machine and each group have left; cached files are no loss."""
    assert expected == memory(machine(tmp_path, files))


def test_this_machine() -> None:
    """The real files can be read."""
    assert 1 <= processors() <= len(os.sched_getaffinity(0))
    assert memory() > 0


def test_whole_memory(tmp_path: Path) -> None:
    """What the machine has counts where no group has less, whoever uses it now."""
    files = {"proc/meminfo": f"MemTotal: {8 * GIB // 1024} kB\nMemAvailable: 9 kB\n"}

    assert whole_memory(machine(tmp_path, files)) == 8 * GIB
    files = {**files, **V2, "sys/fs/cgroup/user/build/memory.max": "max\n", "sys/fs/cgroup/user/memory.max": f"{GIB}\n"}

    assert whole_memory(machine(tmp_path, files)) == GIB
