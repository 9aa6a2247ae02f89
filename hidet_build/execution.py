"""Execution roots: a folder for each running action that holds its inputs and nothing else, and what it leaves there.

Knows files; does not know keys, caches or who runs what.

    <output_base>/.state/exec/<invocation>/         one for each running hidet-build, locked while it lives
        <n>/root/                                   the execution root
        <n>/tmp/                                    its TMPDIR
        links/<n>                                   a symbolic link to each source that was an input
        logs/<n>                                    what commands said of which a process lives on

A root is emptied after its action and used again by the next one, with its log unless somebody still has that open, and
a link to a source is made once: whenever ext4 makes a file it passes one by one over the inodes deleted in the last
minute, so a build that deletes some for each action spends most of its time there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from stat import S_ISLNK, S_ISREG

from hidet_build import digest
from hidet_build.action import Action, ActionResult, Artifact, OutputFile, Text
from hidet_build.errors import ActionFailed, LockHeld
from hidet_build.files import duplicate, is_closed, remove
from hidet_build.lock import exclusive


class Layout:
    """Where sources and outputs lie on disk."""

    def __init__(self, root: str, output_base: str) -> None:
        self.root = root
        self.output_base = output_base
        self.state = os.path.join(output_base, ".state")
        self.lock = os.path.join(self.state, "lock")  # shared by the builds here, and held alone by `clean`

    def path(self, artifact: Artifact) -> str:
        """The absolute path of an artifact."""
        if artifact.is_source:
            return os.path.join(self.root, artifact.path)
        return os.path.join(self.output_base, artifact.platform, artifact.path)


def link_path(root: str, prefix: str) -> str:
    """Where the link to the outputs goes in the workspace at `root`; empty where `prefix` says there is none."""
    return "" if prefix in ("", "/") else os.path.join(root, prefix + "bin")


def is_output_link(path: str) -> bool:
    """Whether this is a link to outputs, of this output folder or another, and not somebody else's file or link."""
    if not os.path.islink(path):
        return False
    target = os.path.join(os.path.dirname(path), os.readlink(path))
    return not os.path.exists(target) or os.path.isdir(os.path.join(os.path.dirname(target), ".state"))


class ExecutionRoot:
    """The folder one action runs in."""

    def __init__(self, folder: str, link: Callable[[str, str], None] = os.symlink) -> None:
        """`link(source, path)` puts a symbolic link to a source at `path`."""
        self.folder = folder
        self.root = os.path.join(folder, "root")
        self.tmp = os.path.join(folder, "tmp")
        self.log = os.path.join(folder, "output.txt")
        self._link = link
        self._folders: set[str] = set()  # those that staging made, from the root
        self._mode = 0  # of a new folder

    def create(self) -> None:
        """Make the folders."""
        os.makedirs(self.root)
        os.mkdir(self.tmp)
        self._mode = os.lstat(self.root).st_mode

    def directory(self, action: Action) -> str:
        """The folder the command runs in."""
        return os.path.join(self.root, action.working_directory)

    def moved(self, folder: str) -> ExecutionRoot:
        """The same execution root after its folder was renamed."""
        return ExecutionRoot(folder, self._link)

    def stage(
        self, action: Action, layout: Layout, folders: Mapping[str, Sequence[str]], trees: Mapping[str, str]
    ) -> None:
        """Put every input at its path: links to files, text as a file, toolchain folders under `external/`.

        `folders` gives for the id of each directory input the files in it.
        """
        self._arrange(_needed_folders(action, folders, trees))
        for where, content in action.inputs:
            target = f"{self.root}/{where}"
            if isinstance(content, Text):
                with open(target, "w", encoding="utf-8") as file:
                    file.write(content.content)
            elif content.directory:
                for name in folders[content.id]:
                    os.link(os.path.join(layout.path(content), name), f"{target}/{name}")
            elif content.is_source:
                # A link to the file, not the file: a hard link would change the source's ctime, which we watch.
                self._link(layout.path(content), target)
            else:
                os.link(layout.path(content), target)
        for name, path in trees.items():
            self._link(path, f"{self.root}/external/{name}")

    def _arrange(self, needed: set[str]) -> None:
        """Have exactly these folders, given as paths from the root."""
        old, new = sorted(self._folders - needed, reverse=True), sorted(needed - self._folders)
        if len(old) == len(new) == 1:  # another dependency: a new name costs a fourth of a new folder
            os.rename(f"{self.root}/{old[0]}", f"{self.root}/{new[0]}")
        else:
            for folder in old:
                os.rmdir(f"{self.root}/{folder}")
            for folder in new:
                os.mkdir(f"{self.root}/{folder}")
        self._folders = needed

    def collect(self, action: Action, output: bytes, seconds: float) -> tuple[ActionResult, dict[str, str]]:
        """What the action left: the result, and for each of its files where it lies now.

        Raises ActionFailed where a declared output is missing or is not what was declared.
        """
        files: list[OutputFile] = []
        places: dict[str, str] = {}
        directories = []
        base = os.path.join(self.root, action.working_directory)
        for where, artifact in action.outputs:
            path = os.path.join(base, where)
            if artifact.directory:
                directories.append(where)
                found = list(self._walk(action, path, where))
            else:
                found = [(where, path)]
            for name, place in found:
                files.append(self._file(action, name, place))
                places[name] = place
        files.sort()
        return ActionResult(tuple(files), tuple(sorted(directories)), output, seconds), places

    def _walk(self, action: Action, path: str, where: str) -> Iterator[tuple[str, str]]:
        if os.path.islink(path):
            raise _is_link(action, where, path)
        if not os.path.isdir(path):
            raise _is_not(action, where, path)
        for folder, folders, names in os.walk(path):
            for name in folders:
                place = os.path.join(folder, name)
                if os.path.islink(place):
                    raise _is_link(action, f"{where}/{os.path.relpath(place, path)}", place)
            for name in names:
                place = os.path.join(folder, name)
                yield f"{where}/{os.path.relpath(place, path)}", place

    def _file(self, action: Action, name: str, place: str) -> OutputFile:
        folder = os.path.dirname(place)
        if not self._is_inside(folder):
            raise _is_link(action, os.path.dirname(name), folder)
        try:
            status = os.lstat(place)
        except OSError:
            raise _is_not(action, name, place) from None
        if S_ISLNK(status.st_mode):
            real = os.path.realpath(place)
            if not self._is_known(action, real):
                raise _is_link(action, name, place)
            os.unlink(place)
            duplicate(real, place)
            status = os.lstat(place)
        if not S_ISREG(status.st_mode):
            raise _is_not(action, name, place)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ActionFailed(
                f"{action.owner}: {action.mnemonic} left a file whose name is not UTF-8: {name!r}",
                location=action.location,
            ) from None
        return OutputFile(name, digest.of_file(place), bool(status.st_mode & 0o100))

    def _is_inside(self, folder: str) -> bool:
        """Whether a path in the execution root names a folder of it, whatever links it goes through."""
        inner = folder[len(self.root) + 1 :].rstrip("/")
        while inner and not os.path.islink(f"{self.root}/{inner}"):
            inner = inner.rpartition("/")[0]
        if not inner and ".." not in folder:
            return True
        return f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(self.root)}/")

    def _is_known(self, action: Action, real: str) -> bool:
        """Whether a file that an output links to is in the execution root, or a source that is an input."""
        if not os.path.isfile(real):
            return False
        sources = (
            os.path.realpath(os.path.join(self.root, where))
            for where, content in action.inputs
            if isinstance(content, Artifact) and content.is_source
        )
        return real.startswith(os.path.realpath(self.root) + os.sep) or real in sources

    def clear(self, action: Action) -> None:
        """Take the outputs away, as before the action ran: they may be one file with what was published."""
        for where, artifact in action.outputs:
            path = os.path.join(self.directory(action), where)
            remove(path)
            if artifact.directory:
                os.mkdir(path)

    def empty(self, log: str) -> bool:
        """Delete what the action had and left, and say whether this can be the root of another action.

        It cannot where the command changed the folders themselves or put something beside them. The file of what the
        command said is moved to `log` where a process of it lives on, which may say more.
        """
        try:
            if not is_closed(self.log):
                os.rename(self.log, log)
            names = set(os.listdir(self.folder)) - {os.path.basename(self.log)}
            if len(names) != 2 or not self._is_as_made(self.root) or not self._is_as_made(self.tmp):
                return False
            for name in os.listdir(self.tmp):
                remove(f"{self.tmp}/{name}")
            self._folders = set(self._emptied(""))
            return all(self._is_as_made(f"{self.root}/{folder}") for folder in self._folders)
        except OSError:
            return False

    def _is_as_made(self, folder: str) -> bool:
        return os.lstat(folder).st_mode == self._mode

    def _emptied(self, folder: str) -> Iterator[str]:
        """Delete all that is below a folder but folders that staging made; gives those that are still there."""
        with os.scandir(f"{self.root}/{folder}") as entries:
            found = list(entries)
        for entry in found:
            where = f"{folder}/{entry.name}".lstrip("/")
            if where in self._folders and entry.is_dir(follow_symlinks=False):
                yield where
                yield from self._emptied(where)
            else:
                remove(entry.path)

    def discard(self) -> None:
        """Delete the folder, read-only ones that a command left in it too."""
        with contextlib.suppress(OSError):
            remove(self.folder)


def _needed_folders(action: Action, folders: Mapping[str, Sequence[str]], trees: Mapping[str, str]) -> set[str]:
    """The folders that inputs, outputs and the command itself need in an execution root."""
    found: set[str] = set()
    base = action.working_directory
    _add_folder(found, base)
    for where, content in action.inputs:
        if isinstance(content, Artifact) and content.directory:
            _add_folder(found, where)
            for name in folders[content.id]:
                _add_folder(found, f"{where}/{name}".rpartition("/")[0])
        else:
            _add_folder(found, where.rpartition("/")[0])
    for name in trees:
        _add_folder(found, f"external/{name}".rpartition("/")[0])
    for where, artifact in action.outputs:
        path = os.path.normpath(f"{base}/{where}".lstrip("/"))
        _add_folder(found, path if artifact.directory else path.rpartition("/")[0])
    return found


def _add_folder(found: set[str], folder: str) -> None:
    """Add a folder and those around it."""
    while folder and folder not in found:
        found.add(folder)
        folder = folder.rpartition("/")[0]


def _is_not(action: Action, name: str, place: str) -> ActionFailed:
    """The error about an output that is not what was declared."""
    if os.path.isdir(place):
        kind = "a folder"
    elif os.path.isfile(place):
        kind = "a file"
    else:
        kind = "neither a file nor a folder" if os.path.lexists(place) else "missing"
    return ActionFailed(
        f"{action.owner}: {action.mnemonic} ended well, but its output {name} is {kind}",
        location=action.location,
        hint="outputs are paths relative to the folder the command runs in; a folder is declared as `name/`",
    )


def _is_link(action: Action, name: str, place: str) -> ActionFailed:
    target = os.readlink(place) if os.path.islink(place) else os.path.realpath(place)
    return ActionFailed(
        f"{action.owner}: {action.mnemonic} left {name} as a link to {target}",
        location=action.location,
        hint="outputs are files: copy instead of linking",
    )


class ExecutionRoots:
    """The execution roots of one invocation; deletes what killed invocations left behind.

    May be used from several threads.
    """

    def __init__(self, state: str) -> None:
        self._base = os.path.join(state, "exec")
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._own: OwnFolder | None = None
        self._free: list[ExecutionRoot] = []
        self._links: dict[str, str] = {}  # source -> a symbolic link to it

    def new(self) -> ExecutionRoot:
        """An empty one."""
        with self._lock:
            if self._own is None:
                self._own = OwnFolder(self._base)
                for name in ("links", "logs"):
                    os.mkdir(os.path.join(self._own.path, name))
            if self._free:
                return self._free.pop()
        place = ExecutionRoot(os.path.join(self._own.path, str(next(self._numbers))), self._link)
        place.create()
        return place

    def give_back(self, place: ExecutionRoot) -> None:
        """Take back one that `new` gave, with what its action left there."""
        assert self._own is not None
        if place.empty(f"{self._own.path}/logs/{next(self._numbers)}"):
            self._free.append(place)
        else:
            place.discard()

    def _link(self, source: str, path: str) -> None:
        """A symbolic link to a source: another name of the one that was made before."""
        assert self._own is not None
        link = self._links.get(source)
        if link is None:
            link = f"{self._own.path}/links/{next(self._numbers)}"
            os.symlink(source, link)
            self._links[source] = link
        try:
            os.link(link, path, follow_symlinks=False)
        except OSError:  # links to links cannot be had everywhere
            os.symlink(source, path)

    def close(self) -> None:
        """Delete the folder of this invocation."""
        if self._own is not None:
            self._own.close()
            self._own = None
            self._free.clear()


class OwnFolder:
    """A new folder below `base` that is ours while we live. What the dead left there is deleted first."""

    def __init__(self, base: str) -> None:
        _sweep(base)
        self.path = os.path.join(base, f"{os.getpid()}-{os.urandom(4).hex()}")
        self._stack = contextlib.ExitStack()
        # The lock first, then the folder: whoever finds a folder whose lock is free knows that its owner is gone.
        self._stack.enter_context(exclusive(self.path + ".lock"))
        os.mkdir(self.path)

    def close(self) -> None:
        """Delete it, and what is in it."""
        with contextlib.suppress(OSError):
            remove(self.path)
            remove(self.path + ".lock")
        self._stack.close()


def _sweep(base: str) -> None:
    """Delete the folders that killed processes left."""
    try:
        names = os.listdir(base)
    except FileNotFoundError:
        return
    for name in names:
        folder = os.path.join(base, name)
        if name.endswith(".lock"):
            continue
        with contextlib.suppress(LockHeld, OSError), exclusive(folder + ".lock", block=False):
            remove(folder)
            remove(folder + ".lock")
