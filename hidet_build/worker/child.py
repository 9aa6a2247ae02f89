"""Runs one step in this process, from its arguments to an exit code: what a forked child does, and the plain command.

Knows the process it is in (environment, temporary folder, output); knows nothing of other requests. It changes the
process for good, so it runs once.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence

from hidet_build.worker import distribution, failure, steps
from hidet_build.worker.fork import Slots
from hidet_build.worker.protocol import StepExit
from hidet_build.worker.sources import Sources

_NO_HIDET_HINT = "pip install 'hidet-build[hidet]'"


def perform(argv: Sequence[str], modules: frozenset[str] | None = None, slots: Slots | None = None) -> StepExit:
    """Do the step `argv` in the current folder, with all it has to say on standard output and error.

    `modules` are the modules that come with hidet, and `slots` are for children of its own, where the caller has them.
    """
    try:
        arguments = steps.parse(argv)
    except steps.UsageFailure as error:
        print(error, file=sys.stderr)
        return StepExit.USAGE
    root = os.getcwd()
    temporary = make_private()
    try:
        if modules is None:
            refusal = import_hidet()
            if refusal:
                print(refusal, file=sys.stderr)
                return StepExit.NO_HIDET
            modules = distribution.modules_of_hidet()
        sources = Sources()
        try:
            steps.run(arguments, sources, modules, temporary, slots)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's code may raise anything, SystemExit too
            return _report(error, sources, failure.cleaner(root, temporary))
        return StepExit.OK
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_private() -> str:
    """Make a folder that is the process's home, so that no configuration of the user's counts, and its TMPDIR."""
    # The parent may have asked for a temporary folder before the environment named ours.
    tempfile.tempdir = None
    temporary = tempfile.mkdtemp(prefix="hidet-build-")
    tempfile.tempdir = os.environ["TMPDIR"] = temporary
    homes = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    os.environ.update(dict.fromkeys(homes, temporary))
    os.environ.pop("HIDET_NUM_WORKERS", None)
    os.environ["TQDM_DISABLE"] = "1"
    return temporary


def import_hidet() -> str:
    """Import hidet and pin what must not depend on the machine; says in one line why that cannot be done, else ""."""
    # One thread, and none left over in a child: OpenBLAS starts its threads when it is imported.
    os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    try:
        from hidet_build.worker import candidates, entry, hidet_tools  # noqa: F401 - all of it, for the children
    except ModuleNotFoundError as error:
        if error.name == "hidet":
            return f"hidet is not installed in {sys.executable}: {_NO_HIDET_HINT}"
        return _refusal(error)
    except Exception as error:  # importing runs much foreign code: torch, CUDA bindings
        return _refusal(error)
    hidet_tools.pin_environment()
    return ""


def _refusal(error: Exception) -> str:
    summary = " ".join(str(error).split())
    return f"hidet cannot be imported by {sys.executable}: {type(error).__name__}: {summary}"


def _report(error: BaseException, sources: Sources, clean: Callable[[str], str]) -> StepExit:
    """Print what went wrong: a bug of ours with all its frames, anything else short and with a line for programs."""
    sys.stdout.flush()
    if isinstance(error, MemoryError) or failure.blames_user(error, sources.paths):
        text, described = failure.describe(error, sources.paths, clean)
        print(text, file=sys.stderr)
        print(described.as_line(), file=sys.stderr)
        return StepExit.USER
    traceback.print_exception(type(error), error, error.__traceback__)
    return StepExit.BUG
