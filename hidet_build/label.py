"""Labels name targets and source files; patterns name many targets at once. Knows no file and no graph."""

from __future__ import annotations

import re
from typing import NamedTuple

from hidet_build.errors import Location, UsageError

# What no name may hold: it would be read as something else in a label, a pattern, a path or a terminal.
_FORBIDDEN = re.compile("[:*\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# What nearly all paths look like: told at once, for a large workspace has a hundred thousand labels.
_PLAIN = re.compile("[A-Za-z0-9_][A-Za-z0-9_.+=/-]*")
_UNCLEAN = frozenset(("", ".", "..", "..."))
_ALLOWED = "letters, digits, blanks and punctuation except ':', '*', '\\' and control characters"


class Label(NamedTuple):
    """The absolute name of a target or a source file: `//package:name`. The root package is the empty string.

    The name of a source file is its path in the package, so it may hold slashes.
    """

    package: str
    name: str

    def __str__(self) -> str:
        return f"//{self.package}:{self.name}"

    @property
    def path(self) -> str:
        """The path from the workspace root of the file the label would name."""
        return f"{self.package}/{self.name}" if self.package else self.name

    @property
    def short(self) -> str:
        """The label without what can be left out: `//a/b` for `//a/b:b`."""
        return f"//{self.package}" if self.package.rpartition("/")[2] == self.name and self.name else str(self)


def parse_label(text: str, package: str, location: Location | None = None) -> Label:
    """The label `text` means in a file of `package`: `//a/b:c`, `//a/b`, `:c` or a plain `c`.

    Raises UsageError, at `location` when given.
    """
    if text.startswith("//"):
        where, colon, name = text[2:].partition(":")
        if not colon:
            name = where.rpartition("/")[2]
    else:
        where, name = package, text.removeprefix(":")
    if not _is_plain(name) or (where and not _is_plain(where)):
        _refuse_at_start(text, text, location)
        _check(text, where, name, location)
    return Label(where, name)


def _is_plain(path: str) -> bool:
    """Whether a look is enough to tell that this can be in a label; of many that can it is not."""
    return _PLAIN.fullmatch(path) is not None and "//" not in path and "/." not in path and path[-1] != "/"


def _refuse_at_start(text: str, label: str, location: Location | None) -> None:
    """Refuse what begins as no label does; `text` is what was typed, a minus before the label included."""
    if label.startswith("@"):
        raise UsageError(f"{text!r}: labels of other workspaces (`@...`) are not supported", location=location)
    if label.startswith("/") and not label.startswith("//"):
        is_file = ":" not in label and "." in label.rstrip("./").rpartition("/")[2]
        meant = text.replace("/", "//", 1)
        hint = (
            "a file is named by its path from the folder of the BUILD.yaml" if is_file else f"did you mean {meant!r}?"
        )
        raise UsageError(f"{text!r} is not a label: it begins with one slash", location=location, hint=hint)


def _check(text: str, package: str, name: str, location: Location | None) -> None:
    if not name:
        message = f"{text!r} has no name after the ':'" if text.endswith(":") else f"{text!r} names no target"
        raise UsageError(message, location=location, hint="a target of the root is `//:name`" if text == "//" else None)
    for part in (package, name):
        bad = _FORBIDDEN.search(part)
        if bad:
            raise UsageError(
                f"{text!r} is not a label: {bad.group()!r} is not allowed in a name",
                location=location,
                hint=f"a label is `//package:name` or `:name`; names may hold {_ALLOWED}",
            )
        if part and not _UNCLEAN.isdisjoint(part.split("/")):
            raise UsageError(
                f"{text!r} is not a label: {part!r} has an empty, '.', '..' or '...' segment",
                location=location,
                hint="labels are written from the workspace root, `//package:name`",
            )


class Pattern(NamedTuple):
    """A set of targets as it was typed.

    kind is `target` (one label), `package` (`:all`, `:*`) or `recursive` (`...`); `files` adds the source files
    (`:*`, `...:*`); `negative` takes the set away.
    """

    text: str
    kind: str
    package: str
    name: str
    files: bool
    negative: bool

    def covers(self, label: Label) -> bool:
        """Whether `label` belongs to the set, leaving `negative` aside."""
        if self.kind == "target":
            return label == (self.package, self.name)
        if self.kind == "package":
            return label.package == self.package
        return not self.package or label.package == self.package or label.package.startswith(self.package + "/")


def parse_pattern(text: str, package: str = "") -> Pattern:
    """The pattern `text` means when typed in the folder of `package`.

    `//a/b:c`, `//a/b`, `:c`, `//a/...`, `//a:all`, `//a:*`, `-//a/x/...`; and `a/b:c`, `a/...` from the
    workspace root. Raises UsageError.
    """
    negative = text.startswith("-")
    body = text[1:] if negative else text
    _refuse_at_start(text, body, None)
    if body.startswith(("//", ":")):
        absolute = body
    elif body.partition(":")[0] == "..." and package:
        absolute = f"//{package}/{body}"
    elif body == "..." or ":" in body or "/" in body:
        absolute = "//" + body
    else:
        absolute = ":" + body
    if absolute.startswith("//"):
        where, colon, name = absolute[2:].partition(":")
        where = where if colon else where.rstrip("/")
    else:
        where, colon, name = package, ":", absolute[1:]
    if where == "..." or where.endswith("/..."):
        if name not in ("", "all", "*", "all-targets"):
            raise UsageError(f"{text!r}: after `...` only `:all` or `:*` can stand")
        base = where[:-3].removesuffix("/")
        _check_package(text, base)
        return Pattern(text, "recursive", base, "", name in ("*", "all-targets"), negative)
    if name in ("all", "*", "all-targets"):
        _check_package(text, where)
        return Pattern(text, "package", where, "", name in ("*", "all-targets"), negative)
    if not colon:
        name = where.rpartition("/")[2]
    _check(text, where, name, None)
    return Pattern(text, "target", where, name, False, negative)


def _check_package(text: str, package: str) -> None:
    if package:
        _check(text, package, "all", None)  # any good name will do
