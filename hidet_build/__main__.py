"""The program: `hidet-build` and `python -m hidet_build`."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # without the import of typing
    from hidet_build.quick import Changes


def main() -> int:
    """Run the command line; the exit code is one of `hidet_build.errors.ExitCode`."""
    _open_missing_streams()
    gc.disable()  # nearly all that we make before actions run lives to the end: looking for garbage took a tenth of it
    try:
        answer = _answer(sys.argv[1:])
        if isinstance(answer, int):
            return answer
        from hidet_build import cli  # everything else, only when there may be something to do
    except KeyboardInterrupt:  # nothing was begun; and Python would end itself by the signal
        os._exit(8)

    return cli.main(sys.argv[1:], answer)


def _answer(arguments: list[str]) -> int | Changes | None:
    """Ask who answers at once, where nothing changed since the last time; imports no more than that needs."""
    if arguments[:1] == ["query"]:
        from hidet_build import inquiry

        return inquiry.answer(arguments[1:])
    from hidet_build import quick

    return quick.answer(arguments)


def _open_missing_streams() -> None:
    """Where a standard stream was closed, put one that leads nowhere: its number must not go to a file of ours."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def _leave_current_folder() -> None:
    """Take the current folder off the module path: `python -m` puts it first, and a workspace may hold a queue.py."""
    try:
        here = os.path.realpath(os.curdir)
    except OSError:  # it is gone, and with it what could be found in it
        return
    if here != os.path.dirname(os.path.dirname(os.path.realpath(__file__))):
        sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]


if __name__ == "__main__":
    _leave_current_folder()
    sys.exit(main())
