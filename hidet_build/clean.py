"""Deletes what was built in a workspace, and nothing else. Knows the layout of an output folder; builds nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from hidet_build.errors import EnvironmentFailure, LockHeld
from hidet_build.execution import is_output_link
from hidet_build.files import remove
from hidet_build.lock import exclusive
from hidet_build.state import built_platforms


def clean(output_base: str, link: str, markers: Mapping[str, str]) -> None:
    """Delete the outputs, the state and the link to them; a folder that was not made by a build is left alone.

    `markers` are the files that a build puts into its output folder, by name; one with another content is somebody
    else's. An output folder may hold other things too: they stay, and the folder with them. Raises LockHeld while a
    build runs there.
    """
    if link and is_output_link(link):
        os.unlink(link)
    state = os.path.join(output_base, ".state")
    if not os.path.isdir(state):
        return
    _refuse_while_building(state)
    try:
        for name in built_platforms(state):
            remove(os.path.join(output_base, name))
        remove(state)
        for name, content in markers.items():
            if _reads(os.path.join(output_base, name)) == content:
                os.unlink(os.path.join(output_base, name))
    except OSError as error:
        raise EnvironmentFailure(f"cannot delete {error.filename}: {error.strerror}") from error
    with contextlib.suppress(OSError):
        os.rmdir(output_base)


def _refuse_while_building(state: str) -> None:
    folder = os.path.join(state, "exec")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in names:
        if name.endswith(".lock"):
            try:
                with exclusive(os.path.join(folder, name), block=False):
                    pass
            except LockHeld:
                process = name.partition("-")[0]
                raise LockHeld(f"process {process} is building here", hint="clean when it has ended") from None


def _reads(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None
