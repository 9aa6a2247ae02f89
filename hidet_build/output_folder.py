"""The folders that the drivers fill for their callers: what hidet leaves in one, and how it gets there.

    source.cc, source.cu            the generated source of the last call, one whose compile failed included
    compile.sh                      compiles it by hand
    lib.so, func_types.pickle       the library of the last good call that made one, and its functions
    lib.o                           the object, likewise
    .lock                           serialises writers; hidet's own driver takes it too

As with hidet, a call leaves alone what it does not make. Knows files; nothing of IR, engines and flags of compilers.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from hidet_build.errors import BuildError, LockHeld
from hidet_build.files import remove, write_atomic
from hidet_build.lock import exclusive

TYPES = "func_types.pickle"
PRELUDE = "prelude.h"  # the includes that a generated source begins with, apart
_INCLUDE = f'#include "{PRELUDE}"\n'


def source_name(generated: str) -> str:
    """What hidet calls a generated source, our name of which is `module.cc` or `module.cu`."""
    return generated.replace("module", "source")


def joined_source(folders: Sequence[str], generated: str) -> bytes:
    """The generated source in these folders for people to read, the includes where they belong."""
    return "".join(_prelude(folder) + _body(folder, generated) for folder in folders).encode()


def in_joined_source(text: str, folders: Sequence[str], number: int, generated: str) -> str:
    """What a compiler says of the source in the folder with this number, with the lines of the joined source."""
    before = joined_source(folders[:number], generated).count(b"\n")
    # The line that includes the prelude is not in the joined source.
    shifts = {PRELUDE: before, generated: before + _prelude(folders[number]).count("\n") - 1}
    place = re.compile(rf"\b({'|'.join(map(re.escape, shifts))})(?:([:(])(\d+))?")
    name, shift, lines = source_name(generated), None, []

    def moved(found: re.Match[str]) -> str:
        return f"{name}{found[2]}{int(found[3]) + shifts[found[1]]}" if found[3] else name

    for line in text.split("\n"):
        quoted = re.match(r" *(\d+)(?= \|)", line)
        if quoted and shift is not None:
            lines.append(f"{int(quoted[1]) + shift:>{quoted.end()}}{line[quoted.end() :]}")
        elif quoted:
            lines.append(line)
        else:
            if re.match(r"[^\s:(]+[:(]\d", line):  # whose lines are quoted next
                found = place.match(line)
                shift = shifts[found[1]] if found else None
            lines.append(place.sub(moved, line))
    return "\n".join(lines)


def _prelude(folder: str) -> str:
    return content_of(os.path.join(folder, PRELUDE)).decode()


def _body(folder: str, generated: str) -> str:
    return content_of(os.path.join(folder, generated)).decode().removeprefix(_INCLUDE)


def publish(folder: str, contents: Mapping[str, bytes], say: Callable[[str], None], trees: Sequence[str] = ()) -> None:
    """Put files into a folder in this order, each at once, and copies of folders; what is right already stays.

    `say` is told of a long wait for another writer. Raises OSError or BuildError where the folder cannot be written to.
    """
    if not trees and _holds(folder, contents):
        return  # a folder in an image may be read-only
    with _held(folder, say):
        for tree in trees:
            shutil.copytree(tree, os.path.join(folder, os.path.basename(tree)), dirs_exist_ok=True)
        for name, one in contents.items():
            if name == TYPES:
                _put_types(folder, one)
            else:
                _put(folder, name, one)


def publish_task(folder: str, contents: Mapping[str, bytes], say: Callable[[str], None]) -> None:
    """Write a task's folder: to hidet it holds a task when version.txt, the library and its types are there."""
    if _holds(folder, contents):
        return
    with _held(folder, say):
        if _holds(folder, contents):
            return
        for name in ("version.txt", "dispatch_table.txt"):  # what was measured of another library
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        for name in sorted(contents, key=lambda name: (name == "version.txt", name == "lib.so", name)):
            _put(folder, name, contents[name])


def refusal(folder: str, error: BuildError | OSError) -> str:
    """Why a folder could not be written to."""
    place = os.path.abspath(folder)
    while place != "/" and not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        return f"cannot write to {folder}: {place} is {'a link to nothing' if os.path.islink(place) else 'a file'}"
    cause = error.__cause__ if isinstance(error, BuildError) else error
    reason = cause.strerror if isinstance(cause, OSError) else None
    return f"cannot write to {folder}: {reason or error}"


def content_of(path: str) -> bytes:
    """All of a file."""
    with open(path, "rb") as file:
        return file.read()


def _holds(folder: str, contents: Mapping[str, bytes]) -> bool:
    """Whether all these files are there with this content."""
    try:
        return all(content_of(os.path.join(folder, name)) == one for name, one in contents.items())
    except OSError:
        return False


@contextlib.contextmanager
def _held(folder: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of an output folder, which hidet's own driver takes too; a wait for it is said."""
    with contextlib.ExitStack() as stack:
        path = os.path.join(folder, ".lock")
        if not _enter_soon(stack, path):
            say(f"waiting for {path}: another process writes to this folder")
            stack.enter_context(exclusive(path))
        yield


def _enter_soon(stack: contextlib.ExitStack, path: str) -> bool:
    """Take a lock unless somebody holds it for longer than needs an explanation; whether we have it."""
    for pause in (0.02, 0.05, 0.1, 0.3, 0.0):
        try:
            stack.enter_context(exclusive(path, block=False))
            return True
        except LockHeld:
            time.sleep(pause)
    return False


def _put_types(folder: str, types: bytes) -> None:
    """Write the types of a library that comes next; one that they do not fit goes first.

    Who is killed in between leaves no library then, which hidet's own driver too takes for work to be done.
    """
    with contextlib.suppress(OSError):
        if content_of(os.path.join(folder, TYPES)) == types:
            return
    remove(os.path.join(folder, "lib.so"))
    _put(folder, TYPES, types)


def _put(folder: str, name: str, one: bytes) -> None:
    """Write a file at once, unless it has this content: whoever has the library mapped keeps it."""
    path = os.path.join(folder, name)
    with contextlib.suppress(OSError):
        if content_of(path) == one:
            return
    write_atomic(path, one)
