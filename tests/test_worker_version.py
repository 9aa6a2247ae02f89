"""The worker's code and STEP_VERSION change together, for the version is all that keys see of the code.

`python -m tests.test_worker_version` writes the golden file anew, once the version was raised; after a change that
cannot change what a step writes (a comment, a message), `python -m tests.test_worker_version --same-output` does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hidet_build import digest
from hidet_build.worker.version import STEP_VERSION

GOLDEN = Path(__file__).parent / "golden" / "worker_step.json"
WORKER = Path(__file__).parent.parent / "hidet_build" / "worker"
# The rest of the worker carries requests and messages, and writes no output.
FILES = ("candidates", "child", "distribution", "entry", "guard", "hidet_tools", "sources", "steps")
HOW = (
    "the worker's code changed: raise STEP_VERSION in hidet_build/worker/version.py and run\n"
    "    python -m tests.test_worker_version\n"
    "or, when no output of a step can have changed,\n"
    "    python -m tests.test_worker_version --same-output"
)


def current() -> dict[str, object]:
    """The version and the digests of the code, as the golden file keeps them."""
    return {"files": {name: digest.of_file(str(WORKER / f"{name}.py")).hash for name in FILES}, "version": STEP_VERSION}


def test_version_counts_the_changes_of_the_code() -> None:
    """The code is the one that was accepted under this version."""
    expected = json.loads(GOLDEN.read_text())

    assert expected == current(), HOW


def main() -> int:
    """Accept the code as it is."""
    accepted = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    changed = accepted.get("files") != current()["files"]
    if changed and accepted.get("version") == STEP_VERSION and "--same-output" not in sys.argv[1:]:
        print(HOW, file=sys.stderr)
        return 1
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(current(), indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
