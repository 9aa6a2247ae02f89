"""Deletes what was built in a workspace, and nothing else. Knows the layout of an output folder; builds nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from hidet_build.errors import EnvironmentFailure, LockHeld
from hidet_build.execution import Layout, is_output_link
from hidet_build.files import remove
from hidet_build.lock import exclusive
from hidet_build.state import built_platforms


def clean(output_base: str, link: str, markers: Mapping[str, str]) -> None:
    """Delete the outputs, the state and the link to them; a folder that was not made by a build is left alone.

    `markers` are the files that a build puts into its output folder, by name; one with another content is somebody
    else's. An output folder may hold other things too: they stay, and the folder with them. Raises LockHeld while a
    build runs there.
    """
    layout = Layout("", output_base)
    if os.path.isdir(layout.state):
        try:
            with exclusive(layout.lock, block=False):
                _delete(layout, markers)
        except LockHeld:
            raise LockHeld(f"{_builder(layout)} is building here", hint="clean when it has ended") from None
    if link and is_output_link(link):
        os.unlink(link)


def _delete(layout: Layout, markers: Mapping[str, str]) -> None:
    try:
        for name in built_platforms(layout.state):
            remove(os.path.join(layout.output_base, name))
        remove(layout.state)
        for name, content in markers.items():
            path = os.path.join(layout.output_base, name)
            if _reads(path) == content:
                os.unlink(path)
    except OSError as error:
        raise EnvironmentFailure(f"cannot delete {error.filename}: {error.strerror}") from error
    with contextlib.suppress(OSError):
        os.rmdir(layout.output_base)


def _builder(layout: Layout) -> str:
    """Who builds, as far as the execution roots tell."""
    folder = os.path.join(layout.state, "exec")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.endswith(".lock"):
            try:
                with exclusive(os.path.join(folder, name), block=False):
                    pass
            except LockHeld:
                return f"process {name.partition('-')[0]}"
    return "another process"


def _reads(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None
