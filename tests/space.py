"""A temporary workspace in which the real program runs, as a user would run it: in a process, from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PROGRAM = (sys.executable, "-m", "hidet_build")
# Nothing of the tester's own environment reaches the program but what says where programs are.
PASSED_ON = ("PATH", "LANG", "VIRTUAL_ENV")


class Ended(NamedTuple):
    """How a run of the program ended."""

    code: int
    out: str
    err: str

    @property
    def actions(self) -> list[str]:
        """The actions that were executed, as `Mnemonic //label`, in order of their ends; of a run that is not live."""
        return re.findall(r"^\[\d+/\d+\] (\S+ //\S+)", self.err, re.MULTILINE)

    @property
    def summary(self) -> str:
        """The last line, without its duration."""
        last = self.err.rstrip().rpartition("\n")[2]
        return re.sub(r" in [\d.]+ s$", "", last)


class Space:
    """A workspace with a home and a cache of its own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "workspace"
        self.cache = base / "cache"
        self.root.mkdir(parents=True)
        (base / "home").mkdir()
        self.write("BUILD.yaml", "workspace: {name: space}\n")

    @property
    def environment(self) -> dict[str, str]:
        """What the program sees of the environment."""
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        private = {"HOME": str(self.base / "home"), "XDG_CACHE_HOME": str(self.cache)}
        return {**kept, **private, "HIDET_BUILD_WORKER_IDLE_TIMEOUT": "0"}

    def write(self, path: str, text: str) -> Path:
        """A file of the workspace with this text, its indentation taken away."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text), encoding="utf-8")
        return target

    def read(self, path: str) -> str:
        """The text of a file of the workspace; outputs are found under hidet-bin."""
        return (self.root / path).read_text(encoding="utf-8")

    def run(
        self, *arguments: str, cwd: str = "", environment: Mapping[str, str] | None = None, timeout: float = 300
    ) -> Ended:
        """Run the program to its end."""
        done = subprocess.run(
            [*PROGRAM, *arguments],
            cwd=self.root / cwd,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the program in a process group of its own."""
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=self.root,
            env={**self.environment, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def build(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Ended:
        """Run a build that must succeed."""
        done = self.run(*arguments, environment=environment)
        if done.code:
            raise AssertionError(f"exit code {done.code}\n{done.err}")
        return done


def targets(*entries: str | Sequence[str]) -> str:
    """A `targets:` section of entries written in flow style: `{rule: command, name: a, ...}`."""
    return "targets:\n" + "".join(f"  - {entry}\n" for entry in entries)
