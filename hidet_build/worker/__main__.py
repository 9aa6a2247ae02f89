"""The worker program: `python3 -m hidet_build.worker STEP ...` does one step, `--persistent`, `--lasting` many.

The only file of the worker that reads the command line and exits.
"""

import os
import sys

# `python -m` looks for modules in the current folder first, and that is a kernel's.
sys.path[:] = [path for path in sys.path if os.path.realpath(path) != os.path.realpath(os.curdir)]
sys.dont_write_bytecode = True

from hidet_build.worker import child, server  # noqa: E402
from hidet_build.worker.protocol import StepExit  # noqa: E402

USAGE = """\
usage: python3 -m hidet_build.worker lower --src FILE --entry NAME --target TARGET --out FOLDER [...]
       python3 -m hidet_build.worker lower-task --src FILE --entry NAME --target TARGET --out FOLDER --files FOLDER ...
       python3 -m hidet_build.worker codegen --target TARGET PICKLE --out FOLDER
       python3 -m hidet_build.worker merge-types SPECIFICATION --out FILE
       python3 -m hidet_build.worker --persistent                   (a command on standard input and output)
       python3 -m hidet_build.worker --lasting FOLDER WORKSPACE     (all that connect to the socket on standard input)
"""


def main(argv: list[str]) -> int:
    """Run the worker; `argv` is the command line without the program."""
    if argv == ["--persistent"]:
        return server.serve()
    if argv[:1] == ["--lasting"] and len(argv) == 3:
        return server.serve_all(*argv[1:])
    if argv in ([], ["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return StepExit.OK if argv else StepExit.USAGE
    return child.perform(argv)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: taking hidet and torch down costs a tenth of a second and can only fail.
    os._exit(code)
