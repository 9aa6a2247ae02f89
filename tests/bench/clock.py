"""Runs one command and says what it cost; run as a script of its own, so that it is small and costs next to nothing.

    python -I -S clock.py REPORT COMMAND...

It writes to REPORT: wall, CPU of all, CPU of the command itself (seconds), peak (MiB), wait status. The kernel counts a
starting process's peak from its parent's size: hence a small parent. The CPU of the command without its children comes
from /proc, in ticks of 10 ms.
"""

import os
import sys
from time import monotonic


def main() -> None:
    """Run what the command line says."""
    report, *command = sys.argv[1:]
    started = monotonic()
    pid = os.posix_spawnp(command[0], command, os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    wall = monotonic() - started
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    _, status, usage = os.wait4(pid, 0)
    with open(report, "w") as file:
        file.write(f"{wall} {usage.ru_utime + usage.ru_stime} {own} {usage.ru_maxrss / 1024} {status}")


if __name__ == "__main__":
    main()
