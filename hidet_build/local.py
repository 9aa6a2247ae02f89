"""Runs staged actions on this machine: compilers as processes of their own, steps of hidet in the warm worker.

Knows how to start things; does not know why, nor what becomes of the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

from hidet_build.action import Action
from hidet_build.execution import ExecutionRoot
from hidet_build.precompiled import PrecompiledHeaders
from hidet_build.process import Processes, ProcessResult, shell_line
from hidet_build.toolchain.base import Toolchain
from hidet_build.toolchain.registry import Toolchains
from hidet_build.worker.pool import WorkerPool
from hidet_build.worker.protocol import step_arguments


class LocalRunner:
    """The runner of a build without remote execution."""

    def __init__(
        self, processes: Processes, workers: WorkerPool, toolchains: Toolchains, headers: PrecompiledHeaders
    ) -> None:
        self._processes = processes
        self._headers = headers
        self._workers = workers
        self._toolchains = toolchains

    def run(self, action: Action, toolchain: Toolchain, place: ExecutionRoot) -> ProcessResult:
        """Run the command line in the execution root; its text goes to `place.log` and into the result."""
        environment = self._environment(action, toolchain, place)
        cwd = place.directory(action)
        step = step_arguments(action.arguments)
        if step is not None:
            return self._workers.run(step, cwd=cwd, environment=environment, output_path=place.log)
        header = self._headers.attach(
            action, toolchain, place, environment, lambda name: self._toolchains.tree(name).identity
        )
        ended = self._start(action, toolchain, place, environment)
        if not header or not ended.exit_code or self._processes.stopped:
            return ended
        # Damaged on its way, maybe: without it the source decides.
        self._headers.detach(place)
        ended = self._start(action, toolchain, place, environment)
        if not ended.exit_code:
            self._headers.discard(header)
        return ended

    def _start(
        self, action: Action, toolchain: Toolchain, place: ExecutionRoot, environment: Mapping[str, str]
    ) -> ProcessResult:
        command = (toolchain.executable(action.arguments[0]), *action.arguments[1:])
        return self._processes.run(command, cwd=place.directory(action), environment=environment, output_path=place.log)

    def command(self, action: Action, toolchain: Toolchain, place: ExecutionRoot) -> str:
        """The same as a line to paste into a shell."""
        environment = self._environment(action, toolchain, place)
        if step_arguments(action.arguments) is not None:
            environment = self._workers.environment(environment)
        return shell_line(
            action.arguments, environment, place.directory(action), toolchain.executable(action.arguments[0])
        )

    def _environment(self, action: Action, toolchain: Toolchain, place: ExecutionRoot) -> dict[str, str]:
        return {**self._toolchains.environment(toolchain), "TMPDIR": place.tmp, **dict(action.environment)}
