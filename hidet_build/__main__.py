"""The program: `hidet-build` and `python -m hidet_build`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; the exit code is one of `hidet_build.errors.ExitCode`."""
    from hidet_build import quick

    code = quick.answer(sys.argv[1:])
    if code is not None:
        return code
    from hidet_build import cli  # everything else, only when there may be something to do

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
