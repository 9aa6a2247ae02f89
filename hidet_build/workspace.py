"""A workspace on disk: its root, its packages, its globs. Reads folders, and knows no YAML, no rule and no target.

Whatever follows from a folder's content says which folders were listed and which files were looked into, so that a
later build can tell by their stat whether it still holds. What is no part of a workspace is decided here, once:

    .name/                  hidden folders
    any/pyvenv.cfg          the folder is a virtual environment
    __pycache__/            Python's
    hidet-out/, hidet-bin   our outputs, whatever --output_base and --symlink_prefix call them
    .hidetbuildignore       one folder, file or pattern a line, from the root; `#` starts a comment
    any/BUILD.yaml          with a `workspace:` section: another workspace
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from hidet_build.errors import BuildError, LoadError, Location, nearest, raise_all

BUILD_FILE = "BUILD.yaml"
IGNORE_FILE = ".hidetbuildignore"
OUTPUT_FOLDER = "hidet-out"
OUTPUT_LINK = "hidet-bin"
SYMLINK_PREFIX = "hidet-"
VENV_FILE = "pyvenv.cfg"
_BARRIERS = frozenset((BUILD_FILE, VENV_FILE))  # a glob does not enter a folder that holds one of them

# A top-level `workspace:` in block style, or first in flow style. No parser: that would cost every start 17 ms.
_WORKSPACE_KEY = re.compile(rb"(?:\A(?:\xef\xbb\xbf)?|(?<=[\r\n]))(?:\{\s*)?[\"']?workspace[\"']?[ \t]*:(?=[\s{]|\Z)")


def find_root(start: str) -> str | None:
    """The nearest folder, from `start` upward, whose BUILD.yaml has a top-level `workspace:`; an absolute path."""
    folder = os.path.abspath(start)
    while not declares_workspace(os.path.join(folder, BUILD_FILE)):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return folder


def declares_workspace(path: str) -> bool:
    """Whether the file is there, can be read and has a top-level `workspace:`."""
    try:
        with open(path, "rb") as file:
            return _WORKSPACE_KEY.search(file.read()) is not None
    except OSError:
        return False


class Walk(NamedTuple):
    """The packages below a folder, the folders listed to find them, the files looked into; all sorted.

    A file that is not there counts too: it must not appear.
    """

    packages: tuple[str, ...]
    folders: tuple[str, ...]
    files: tuple[str, ...]


class Found(NamedTuple):
    """The files a glob matched, as paths from its package, and the folders listed, from the root; both sorted."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


class Listing(NamedTuple):
    """What a folder holds, sorted by name; `links` are those of `folders` that are symbolic links.

    Names are the keys of dictionaries, for a folder may hold thousands, each of which is asked for.
    """

    files: Mapping[str, None]
    folders: Mapping[str, None]
    links: frozenset[str]


class Workspace:
    """The folder tree of one build. Paths are from the root, with slashes; the root itself is the empty string.

    Each folder is listed once in the life of the object, which is one build.
    """

    def __init__(self, root: str, output_base: str = "", symlink_prefix: str = SYMLINK_PREFIX) -> None:
        self.root = os.path.abspath(root)
        self.output_base = os.path.abspath(output_base or os.path.join(self.root, OUTPUT_FOLDER))
        self.symlink_prefix = symlink_prefix
        self._real_root = os.path.realpath(self.root)
        self._real_output = os.path.realpath(self.output_base)
        self._listings: dict[str, Listing | None] = {}
        self._nested: dict[str, bool] = {}
        self._owners: dict[str, str | None] = {}
        self._left_out: dict[str, str | None] = {"": None}

    def absolute(self, path: str) -> str:
        """The path on disk."""
        return f"{self.root}/{path}" if path else self.root

    @cached_property
    def ignored(self) -> tuple[GlobPattern, ...]:
        """What `.hidetbuildignore` names; raises LoadErrors where a line of it cannot be read."""
        try:
            with open(self.absolute(IGNORE_FILE), encoding="utf-8-sig", errors="surrogateescape") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise LoadError(f"cannot read {IGNORE_FILE}: {error.strerror}") from None
        return _read_ignore_file(lines)

    def listing(self, folder: str) -> Listing | None:
        """What the folder holds, or None where there is no such folder or it may not be read."""
        if folder not in self._listings:
            self._listings[folder] = _scan(self.absolute(folder))
        return self._listings[folder]

    def listed(self) -> tuple[str, ...]:
        """Every folder listed so far, or found missing: all this object ever said follows from what they hold."""
        return tuple(sorted(self._listings))

    def looked_into(self) -> tuple[str, ...]:
        """The files whose content it follows from too, or that must stay missing."""
        return (IGNORE_FILE, *sorted(f"{path}/{BUILD_FILE}" for path, nested in self._nested.items() if nested))

    def is_package(self, folder: str) -> bool:
        """Whether the folder has a BUILD.yaml and belongs to this workspace."""
        listing = self.listing(folder)
        return listing is not None and BUILD_FILE in listing.files and self.excluded(folder) is None

    def owner(self, path: str) -> str | None:
        """The package a file belongs to: the nearest folder above it that has a BUILD.yaml."""
        folder = os.path.dirname(path)
        below: list[str] = []
        while folder not in self._owners:
            below.append(folder)
            if self.is_package(folder) or not folder:
                self._owners[folder] = folder if self.is_package(folder) else None
            else:
                folder = os.path.dirname(folder)
        found = self._owners[folder]
        self._owners.update(dict.fromkeys(below, found))
        return found

    def excluded(self, path: str) -> str | None:
        """Why the folder or file is no part of the workspace ("is in a hidden folder (.git)"), or None where it is."""
        parent, _, name = path.rpartition("/")
        why = self._folder_left_out(parent)
        if why:
            return why
        listing = self.listing(parent)
        if listing is not None and name in listing.folders:
            return self._folder_left_out(path)
        return f"is named in {IGNORE_FILE} ({path})" if self._is_ignored(path) else None

    def _folder_left_out(self, path: str) -> str | None:
        parent = ""
        for name in path.split("/") if path not in self._left_out else ():
            folder = _join(parent, name)
            if folder not in self._left_out:
                self._left_out[folder] = self._left_out[parent] or self._excluded_folder(parent, name)
            parent = folder
        return self._left_out[path]

    def walk_packages(self, package: str = "") -> Walk:
        """The packages in `package` and below.

        A symbolic link to a folder inside the workspace is not followed: the folder is found under its own name.
        """
        packages: list[str] = []
        folders: list[str] = []
        files = [IGNORE_FILE]
        seen: set[str] = set()
        pending = [] if self.excluded(package) else [package]
        while pending:
            folder = pending.pop()
            folders.append(folder)
            listing = self.listing(folder)
            if listing is None:
                continue
            if BUILD_FILE in listing.files:
                packages.append(folder)
            for name in listing.folders:
                path = _join(folder, name)
                if self._excluded_name(folder, name) or (name in listing.links and not self._may_follow(path, seen)):
                    continue
                if not self._excluded_content(path):
                    pending.append(path)
                    continue
                # Whether it stays out depends on what it holds.
                folders.append(path)
                if self._is_nested(path):
                    files.append(f"{path}/{BUILD_FILE}")
        return Walk(tuple(sorted(packages)), tuple(sorted(folders)), tuple(sorted(files)))

    def glob(
        self,
        package: str,
        include: Sequence[str],
        exclude: Sequence[str] = (),
        location: Location | None = None,
    ) -> Found:
        """The files of the package that match one of `include` and none of `exclude`.

        `**` is any number of folders; `*`, `?` and `[...]` stay inside a name, and match a leading dot only where one
        is written. Other packages, BUILD.yaml itself and what the workspace leaves out never match. The answer also
        depends on IGNORE_FILE. Raises LoadError at `location` for a pattern that cannot be read.

        Real folders come first, each under its one path, then the links to folders: one that leads back up, or to a
        folder that was visited, is not followed, so every cycle ends.
        """
        wanted = [parse_glob(pattern, location) for pattern in include]
        unwanted = [parse_glob(pattern, location) for pattern in exclude]
        files: list[str] = []
        folders: list[str] = []
        seen: set[str] = set()
        start = [pattern.start() for pattern in wanted]
        pending = deque([(package, "", os.path.realpath(self.absolute(package)), start)])
        links: deque[tuple[str, str, str, list[frozenset[int]]]] = deque()
        while pending or links:
            if pending:
                folder, prefix, real, states = pending.popleft()
            else:
                folder, prefix, came_from, states = links.popleft()
                real = os.path.realpath(self.absolute(folder))
                if real in seen or _is_inside(came_from, real):
                    continue
            seen.add(real)
            folders.append(folder)
            listing = self.listing(folder)
            if listing is None or (prefix and not _BARRIERS.isdisjoint(listing.files)):
                continue
            for name in listing.files:
                path = prefix + name
                if (
                    any(pattern.ends(state, name) for pattern, state in zip(wanted, states, strict=True))
                    and name != BUILD_FILE
                    and not any(pattern.matches(path) for pattern in unwanted)
                    and not self._is_ignored(_join(folder, name))
                ):
                    files.append(path)
            for name in listing.folders:
                below = [pattern.enter(state, name) for pattern, state in zip(wanted, states, strict=True)]
                if not any(below) or self._excluded_name(folder, name):
                    continue
                if name in listing.links:
                    links.append((_join(folder, name), f"{prefix}{name}/", real, below))
                else:
                    pending.append((_join(folder, name), f"{prefix}{name}/", f"{real}/{name}", below))
        return Found(tuple(sorted(files)), tuple(sorted(folders)))

    def near_packages(self, package: str) -> tuple[str, ...]:
        """Packages with a name like `package`, the nearest first. For hints: it walks the whole workspace."""
        packages = [name for name in self.walk_packages().packages if name and name != package]
        last = package.rpartition("/")[2]
        same_name = [name for name in packages if name.rpartition("/")[2] == last]
        return tuple(dict.fromkeys([*nearest(package, packages, least=0.75), *same_name]))[:3]

    def near_files(self, path: str) -> tuple[str, ...]:
        """Files with a name like `path`: beside it, else of the same name elsewhere in its package. For hints."""
        folder, _, name = path.rpartition("/")
        listing = self.listing(folder)
        beside = nearest(name, listing.files) if listing else []
        if beside:
            return tuple(_join(folder, near) for near in beside)
        package = self.owner(path)
        if package is None or "\\" in name or not name:
            return ()
        literal = re.sub(r"[*?\[]", r"[\g<0>]", name)
        return tuple(_join(package, near) for near in self.glob(package, [f"**/{literal}"]).files[:3])

    def _excluded_folder(self, parent: str, name: str) -> str | None:
        return self._excluded_name(parent, name) or self._excluded_content(_join(parent, name))

    def _excluded_name(self, parent: str, name: str) -> str | None:
        """Why a folder is left out whatever it holds; such a folder is never listed."""
        path = _join(parent, name)
        if name.startswith("."):
            return f"is in a hidden folder ({path})"
        if name == "__pycache__":
            return f"is in a folder of Python's ({path})"
        if self._is_output(parent, name):
            return f"is in an output folder ({path})"
        if self._is_ignored(path):
            return f"is named in {IGNORE_FILE} ({path})"
        return None

    def _excluded_content(self, path: str) -> str | None:
        listing = self.listing(path)
        if listing is not None and VENV_FILE in listing.files:
            return f"is in a virtual environment ({path})"
        if self._is_nested(path):
            return f"is in another workspace ({path})"
        return None

    def _is_output(self, parent: str, name: str) -> bool:
        if not parent and name in (OUTPUT_FOLDER, OUTPUT_LINK):
            return True
        absolute = self.absolute(_join(parent, name))
        if absolute == self.output_base:
            return True
        listing = self.listing(parent)
        if listing is None or name not in listing.links:
            return False
        named = os.path.join(self.root, self.symlink_prefix)
        return absolute in (named + "bin", named + "testlogs") or _is_inside(
            os.path.realpath(absolute), self._real_output
        )

    def _is_nested(self, path: str) -> bool:
        if path not in self._nested:
            listing = self.listing(path)
            has_file = bool(path) and listing is not None and BUILD_FILE in listing.files
            self._nested[path] = has_file and declares_workspace(f"{self.absolute(path)}/{BUILD_FILE}")
        return self._nested[path]

    def _is_ignored(self, path: str) -> bool:
        return any(pattern.matches(path) for pattern in self.ignored)

    def _may_follow(self, path: str, seen: set[str]) -> bool:
        real = os.path.realpath(self.absolute(path))
        if real in seen or _is_inside(real, self._real_root) or _is_inside(self._real_root, real):
            return False
        seen.add(real)
        return True


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _scan(path: str) -> Listing | None:
    files: list[str] = []
    folders: list[str] = []
    links: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                # A link that goes round in circles, or to where we may not look, is neither.
                with suppress(OSError):
                    if entry.is_dir():
                        folders.append(entry.name)
                        if entry.is_symlink():
                            links.append(entry.name)
                    elif entry.is_file():
                        files.append(entry.name)
    except OSError:
        return None
    return Listing(dict.fromkeys(sorted(files)), dict.fromkeys(sorted(folders)), frozenset(links))


def _read_ignore_file(lines: Sequence[str]) -> tuple[GlobPattern, ...]:
    patterns: list[GlobPattern] = []
    errors: list[BuildError] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            patterns.append(parse_glob(text.removeprefix("/").rstrip("/"), Location(IGNORE_FILE, number, 1, line)))
        except LoadError as error:
            errors.append(error)
    raise_all(errors)
    return tuple(patterns)


class GlobPattern:
    """A pattern cut at its slashes, matched a name at a time; a state is the set of segments that may come next."""

    __slots__ = ("_dotted", "_segments")

    def __init__(self, segments: Sequence[re.Pattern[str] | None], dotted: Sequence[bool]) -> None:
        self._segments = tuple(segments)  # None is `**`
        self._dotted = tuple(dotted)  # whether a segment asks for a leading dot, and so may match one

    def start(self) -> frozenset[int]:
        """The state in the folder the pattern begins at."""
        return self._closed({0})

    def enter(self, state: frozenset[int], name: str, dots: bool = False) -> frozenset[int]:
        """The state in the folder `name`; empty where nothing in it can match. `dots`: see `matches`."""
        last = len(self._segments) - 1
        found = set()
        for index in state:
            segment = self._segments[index]
            if segment is None:
                found.add(index)
            elif index < last and segment.match(name) and (dots or self._shows(index, name)):
                found.add(index + 1)
        return self._closed(found)

    def ends(self, state: frozenset[int], name: str, dots: bool = False) -> bool:
        """Whether a file `name` in a folder of this state matches."""
        last = len(self._segments) - 1
        if last not in state or not (dots or self._shows(last, name)):
            return False
        segment = self._segments[last]
        return segment is None or segment.match(name) is not None

    def matches(self, path: str) -> bool:
        """Whether the whole path matches, a leading dot like any character: what `exclude` means."""
        *folders, name = path.split("/")
        state = self.start()
        for folder in folders:
            state = self.enter(state, folder, dots=True)
        return self.ends(state, name, dots=True)

    def _shows(self, index: int, name: str) -> bool:
        return not name.startswith(".") or self._dotted[index]

    def _closed(self, state: set[int]) -> frozenset[int]:
        last = len(self._segments) - 1
        for index in sorted(state):
            while index < last and self._segments[index] is None:
                index += 1
                state.add(index)
        return frozenset(state)


def parse_glob(text: str, location: Location | None = None) -> GlobPattern:
    """The pattern `text` means; LoadError at `location` where it cannot be one."""
    if text.startswith(("//", ":")):
        raise _glob_error(text, "a glob finds files of its own package, not labels", location)
    segments: list[re.Pattern[str] | None] = []
    dotted: list[bool] = []
    for part in text.split("/"):
        if part in ("", ".", ".."):
            raise _glob_error(text, f"{part!r} cannot stand between slashes" if text else "it is empty", location)
        if "**" in part and part != "**":
            raise _glob_error(text, "`**` must stand alone between slashes", location)
        segments.append(None if part == "**" else _translate(text, part, location))
        dotted.append(part.startswith("."))
    return GlobPattern(segments, dotted)


def _glob_error(text: str, problem: str, location: Location | None) -> LoadError:
    hint = 'a pattern is a path from the folder it stands in, with *, ?, [...] and **: "kernels/**/*.py"'
    return LoadError(f"{text!r} is not a pattern: {problem}", location=location, hint=hint)


def _translate(text: str, part: str, location: Location | None) -> re.Pattern[str]:
    found: list[str] = []
    position = 0
    while position < len(part):
        character = part[position]
        position += 1
        if character == "*":
            found.append(".*")
        elif character == "?":
            found.append(".")
        elif character == "\\":
            raise _glob_error(text, "folders are written with '/', and nothing is escaped", location)
        elif character == "[":
            end = part.find("]", position + (2 if part.startswith("!", position) else 1))
            if end < 0:
                raise _glob_error(text, "a '[' has no ']'", location)
            found.append(_character_set(part[position:end]))
            position = end + 1
        else:
            found.append(re.escape(character))
    try:
        return re.compile(f"(?s:{''.join(found)})\\Z")
    except re.error:
        raise _glob_error(text, f"the range of characters in {part!r} is upside down", location) from None


def _character_set(inside: str) -> str:
    body = re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", inside.removeprefix("!"))
    return f"[{'^' if inside.startswith('!') else ''}{body}]"
