"""Failures of a step that are the user's, and how they are told: only the user's frames, no absolute paths, no colours.

Knows tracebacks and the files of the execution root; knows nothing of hidet but what its messages look like.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection
from types import TracebackType

from hidet_build.worker.protocol import Failure

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY_FRAMES = 4
# A source's module as Python calls it, and the file Python may add: '//.kernels.tiles' (kernels/tiles.py)
_MODULE = re.compile(r"(?P<quote>'?)//\.(?P<name>[^\s'\"()/]+)(?P=quote)(?P<file> \([^\s()]+\))?")
# Stands for a dot in the name of a folder or file, where a real one would end the name of a package.
DOT = "\u2024"


class StepFailure(Exception):
    """The step cannot be done because of what the user wrote; the failure says it all."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class UndeclaredImport(ModuleNotFoundError):
    """The kernel imports what it does not declare.

    An ImportError, so that `try: import x` / `except ImportError` sees an absent module. `name` stays None: with it
    `from package import x` would swallow the error. `hint` takes a while to find out, and who catches the error needs
    none.
    """

    def __init__(self, module: str, message: str, hint: Callable[[], str] = str) -> None:
        super().__init__(message)
        self.module = module
        self.hint = hint


class UndeclaredFile(FileNotFoundError):
    """The kernel reads a file or runs a program that is no input of the step; for the kernel it is not there.

    No PermissionError: Python's tempfile would try to mend that, again and again.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def user_failure(message: str, *, file: str = "", line: int = 0, hint: str = "") -> StepFailure:
    """A failure of kind `kernel`, at a line of a source or at the source as a whole."""
    text = linecache.getline(file, line).rstrip("\n") if line else ""
    return StepFailure(Failure("kernel", message, file=file, line=line, column=1 if line else 0, text=text, hint=hint))


def describe(error: BaseException, sources: Collection[str], clean: Callable[[str], str]) -> tuple[str, Failure]:
    """What to print for an error that left the user's code, or hidet's, and the same for a program.

    `sources` are the user's files as their code objects name them; `clean` takes absolute paths out of a text.
    """
    failure = _failure(error, sources, clean)
    if isinstance(error, StepFailure):
        return _short(failure), failure
    lines = []
    for frame in _frames(error.__traceback__, sources):
        lines.append(f"  {frame.filename}:{frame.lineno} in {frame.name}")
        lines.append(f"    {(frame.line or '').strip()}")
    lines += _library_frames(error.__traceback__, sources, clean)
    if lines:
        lines.insert(0, "Traceback (your files only, the last call at the bottom):")
    lines.append(failure.message)
    cause = error.__cause__
    while cause is not None:
        at = _frames(cause.__traceback__, sources)
        place = f" ({at[-1].filename}:{at[-1].lineno})" if at else ""
        lines.append(f"caused by {_without_names(clean(_summary(cause)), sources)}{place}")
        cause = cause.__cause__
    # No hint here: who knows the workspace has a better one, or shows this one.
    return "\n".join(lines), failure


def blames_user(error: BaseException, sources: Collection[str]) -> bool:
    """Whether an error came out of the user's code, or out of a library, and not out of our own."""
    if isinstance(error, (StepFailure, UndeclaredImport, UndeclaredFile)):
        return True
    if isinstance(error, SyntaxError) and error.filename in sources:
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename in sources for frame in frames) or not frames[-1].filename.startswith(_OWN_FOLDER)


def cleaner(root: str, temporary: str) -> Callable[[str], str]:
    """A function that takes the execution root, the temporary folder, library folders and colours out of a text."""
    folders = dict.fromkeys((root, os.path.realpath(root)), "")
    folders.update({folder: "$TMPDIR/" for folder in (temporary, os.path.realpath(temporary)) if folder})
    folders.update({path: "" for path in sys.path if os.path.isabs(path)})

    def clean(text: str) -> str:
        text = _COLOURS.sub("", text)
        for folder in sorted(folders, key=len, reverse=True):
            text = text.replace(folder.rstrip("/") + "/", folders[folder])
        return text

    return clean


def _short(failure: Failure) -> str:
    place = f"{failure.file}:{failure.line}:{failure.column}: " if failure.line else ""
    if not place and failure.file:
        place = f"{failure.file}: "
    return f"{place}{failure.message}" + (f"\nhint: {failure.hint}" if failure.hint else "")


def _failure(error: BaseException, sources: Collection[str], clean: Callable[[str], str]) -> Failure:
    if isinstance(error, StepFailure):
        return error.failure
    kind, subject, hint = "kernel", "", ""
    if isinstance(error, UndeclaredImport):
        kind, subject, hint = "undeclared-import", error.module, error.hint()
    elif isinstance(error, UndeclaredFile):
        kind, subject = "undeclared-file", error.path
    elif isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        # It may well be in the workspace, and not among the inputs.
        kind, subject = "undeclared-file", os.path.relpath(error.filename)
    file, line, column, text = _place(error, sources)
    message = _without_names(clean(_summary(error)), sources)
    return Failure(kind, message, subject, file, line, column, text, hint)


def _place(error: BaseException, sources: Collection[str]) -> tuple[str, int, int, str]:
    if isinstance(error, SyntaxError) and error.filename in sources:
        text = (error.text or "").rstrip("\n")
        return str(error.filename), error.lineno or 0, error.offset or 1, text
    # hidet's errors about a script know the place in the script itself.
    file = os.path.relpath(getattr(error, "file", None) or ".")
    if file in sources and isinstance(getattr(error, "lineno", None), int):
        line = error.lineno - 1  # type: ignore[attr-defined]
        return file, line, getattr(error, "column", 0) + 1, linecache.getline(file, line).rstrip("\n")
    frames = _frames(error.__traceback__, sources)
    if not frames:
        return "", 0, 0, ""
    file, line = frames[-1].filename, frames[-1].lineno or 0
    text = linecache.getline(file, line).rstrip("\n")
    return file, line, len(text) - len(text.lstrip()) + 1, text


def _summary(error: BaseException) -> str:
    if isinstance(error, (UndeclaredImport, UndeclaredFile, StepFailure)):
        return str(error)
    if isinstance(error, SystemExit):
        return f"the kernel called sys.exit({error.code!r})"
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _without_names(text: str, sources: Collection[str]) -> str:
    """The text with paths, or plain dotted names, in place of the names our modules have inside Python."""

    def path(match: re.Match[str]) -> str:
        name = match["name"].replace(DOT, ".")
        inner = match["name"].replace(".", "/").replace(DOT, ".")
        found = next((file for file in (f"{inner}.py", f"{inner}/__init__.py") if file in sources), None)
        quote = match["quote"]
        if found is None:
            return f"{quote}{name}{quote}{match['file'] or ''}"
        return found if match["file"] == f" ({found})" else f"{found}{match['file'] or ''}"

    return _MODULE.sub(path, text)


def _frames(trace: TracebackType | None, sources: Collection[str]) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(trace) if frame.filename in sources]


def _library_frames(trace: TracebackType | None, sources: Collection[str], clean: Callable[[str], str]) -> list[str]:
    """Where in hidet or another library the error arose, when it did: the innermost few frames, one line each."""
    frames = traceback.extract_tb(trace)
    inner = []
    for frame in reversed(frames):
        if frame.filename in sources or frame.filename.startswith((_OWN_FOLDER, "<frozen importlib")):
            break
        inner.append(f"  in {clean(frame.filename)}:{frame.lineno} {frame.name}")
    return inner[:_LIBRARY_FRAMES][::-1]
