"""Where the user's things lie and how much of the machine we may use: what environment variables decide."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hidet_build.errors import UsageError
from hidet_build.limits import processors

PROGRAM = "hidet-build"
DISK_CACHE = "HIDET_BUILD_DISK_CACHE"
REQUIRE_CACHED = "HIDET_BUILD_REQUIRE_CACHED"
QUIET = "HIDET_BUILD_QUIET"
WORKER_IDLE_TIMEOUT = "HIDET_BUILD_WORKER_IDLE_TIMEOUT"
_WORKER_IDLE_TIMEOUT = 600.0  # seconds
_NO = ("", "0", "no", "false")


def user_cache(environment: Mapping[str, str]) -> str:
    """The folder for what is shared by all workspaces of a user: findings about the machine, and the store."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # unset, or what the XDG specification tells us to ignore
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, PROGRAM)


def disk_cache(flag: str | None, environment: Mapping[str, str]) -> str:
    """The folder of the store: flag, variable, then the user's cache folder; empty where it is switched off."""
    chosen = flag if flag is not None else environment.get(DISK_CACHE)
    if chosen is None:
        return user_cache(environment)
    return os.path.abspath(os.path.expanduser(chosen)) if chosen else ""


def output_base(flag: str | None, environment: Mapping[str, str], root: str) -> str:
    """The folder of outputs and state: flag, variable, then `hidet-out` in the workspace.

    Raises UsageError where it would hold the workspace.
    """
    chosen = flag or environment.get("HIDET_BUILD_OUTPUT_BASE")
    base = os.path.abspath(os.path.expanduser(chosen)) if chosen else os.path.join(root, "hidet-out")
    if f"{root}/".startswith(f"{base.rstrip('/')}/"):
        raise UsageError(f"the output base {base} holds the workspace", hint="give the outputs a folder of their own")
    return base


def require_cached(flag: bool | None, environment: Mapping[str, str]) -> bool:
    """Whether nothing may run that a cache does not have: flag, then variable (anything but 0, no, false and empty)."""
    return environment.get(REQUIRE_CACHED, "").lower() not in _NO if flag is None else flag


def quiet(environment: Mapping[str, str]) -> bool:
    """Whether the drivers say nothing of what they are at."""
    return environment.get(QUIET, "").lower() not in _NO


def default_jobs(environment: Mapping[str, str]) -> int:
    """How many actions run at once unless a flag says otherwise: MAX_JOBS, else the processors we may use."""
    limit = environment.get("MAX_JOBS", "")
    return int(limit) if limit.isdecimal() and int(limit) else processors()


def worker_idle_timeout(flag: float | None, environment: Mapping[str, str]) -> float:
    """How many seconds a worker waits for the next command; 0 where it ends with this one.

    Flag, then variable, then 0 where `CI` is set. Raises UsageError.
    """
    text = environment.get(WORKER_IDLE_TIMEOUT, "")
    if flag is not None or not text:
        usual = 0.0 if environment.get("CI", "").lower() not in _NO else _WORKER_IDLE_TIMEOUT
        return usual if flag is None else flag
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{WORKER_IDLE_TIMEOUT} is {text!r}; expected a number of seconds")
    return seconds


def worker_folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where lasting workers may be met, the best first: the user's runtime folder, else one in the cache."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    # A home may be shared by machines; sockets work within one.
    cache = os.path.join(user_cache(environment), "workers-1", os.uname().nodename)
    usable = os.path.isabs(runtime) and os.path.isdir(runtime)  # it is not for us to make it
    return (os.path.join(runtime, PROGRAM), cache) if usable else (cache,)
