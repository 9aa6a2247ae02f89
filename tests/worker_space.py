"""A folder in which worker steps run, and the one worker that all tests of a session share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hidet_build.process import Processes, ProcessResult
from hidet_build.worker.pool import WorkerPool
from hidet_build.worker.protocol import COMMAND, Failure, split_failure

TARGET = "cpu --arch=x86-64-v3"


class StepSpace:
    """An execution root: write sources into it, run steps in it."""

    def __init__(self, folder: Path, pool: WorkerPool) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self._log = folder / "log"
        self.pool = pool

    def write(self, files: Mapping[str, str]) -> None:
        """Write source files, by their paths."""
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text, encoding="utf-8")

    def read(self, path: str) -> Any:
        """A JSON file that a step wrote."""
        return json.loads((self.root / path).read_text(encoding="utf-8"))

    def run(self, *argv: str) -> ProcessResult:
        """Run a step in the shared worker."""
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": str(self.tmp)}
        return self.pool.run(argv, cwd=str(self.root), environment=environment, output_path=str(self._log))

    def run_plain(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        """Run the same step as a command line of its own."""
        environment = {**self.pool.environment({"TMPDIR": str(self.tmp)}), **variables}
        command = [sys.executable, *COMMAND[1:], *argv]
        return subprocess.run(
            command, cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )

    def lower(self, src: str, entry: str, *more: str, out: str = "lowered", **arguments: Any) -> ProcessResult:
        """Run lower with `arguments` for the entry."""
        words = ["--src", src, "--entry", entry, "--args", json.dumps(arguments), "--target", TARGET, "--out", out]
        return self.run("lower", *words, *more)

    def lowered(self, src: str, entry: str, *more: str, **arguments: Any) -> None:
        """Run lower, which must succeed without a word."""
        result = self.lower(src, entry, *more, **arguments)

        assert (result.exit_code, result.output.decode()) == (0, "")

    def generated(self, number: int = 0, out: str = "generated") -> str:
        """Run codegen on a lowered module; gives the folder."""
        result = self.run("codegen", "--target", TARGET, f"lowered/{number}.pickle", "--out", out)

        assert (result.exit_code, result.output.decode()) == (0, "")
        return out

    def failure(self, src: str, entry: str, *more: str, **arguments: Any) -> tuple[str, Failure]:
        """Run lower, which must refuse what the user wrote; gives what it said."""
        result = self.lower(src, entry, *more, **arguments)
        text, failure = split_failure(result.output)

        assert (result.exit_code, failure is not None) == (1, True), result.output.decode()
        assert failure is not None
        return text.decode(), failure


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """The worker of the session; it is started by the first step."""
    pool = WorkerPool(Processes(), sys.executable)
    yield pool
    pool.close()


@pytest.fixture
def space(tmp_path: Path, pool: WorkerPool) -> StepSpace:
    """A fresh execution root."""
    return StepSpace(tmp_path, pool)


def hidet_folder() -> str:
    """Where hidet is installed, without importing it."""
    from importlib.util import find_spec

    spec = find_spec("hidet")

    assert spec is not None
    assert spec.origin is not None
    return os.path.dirname(spec.origin)
