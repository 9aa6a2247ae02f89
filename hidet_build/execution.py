"""Execution roots: a fresh folder for each action that holds its inputs and nothing else, and what it leaves there.

Knows files; does not know keys, caches or who runs what.

    <output_base>/.state/exec/<invocation>/         one for each running hidet-build, locked while it lives
        <n>/root/                                   the execution root
        <n>/tmp/                                    its TMPDIR
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence

from hidet_build import digest
from hidet_build.action import Action, ActionResult, Artifact, OutputFile, Text
from hidet_build.errors import ActionFailed, LockHeld
from hidet_build.files import remove
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

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.root = os.path.join(folder, "root")
        self.tmp = os.path.join(folder, "tmp")
        self.log = os.path.join(folder, "output.txt")

    def create(self) -> None:
        """Make the folders."""
        os.makedirs(self.root)
        os.mkdir(self.tmp)

    def directory(self, action: Action) -> str:
        """The folder the command runs in."""
        return os.path.join(self.root, action.working_directory)

    def moved(self, folder: str) -> ExecutionRoot:
        """The same execution root after its folder was renamed."""
        return ExecutionRoot(folder)

    def stage(
        self, action: Action, layout: Layout, folders: Mapping[str, Sequence[str]], trees: Mapping[str, str]
    ) -> None:
        """Put every input at its path: links to files, text as a file, toolchain folders under `external/`.

        `folders` gives for the id of each directory input the files in it.
        """
        made: set[str] = set()
        for where, content in action.inputs:
            target = os.path.join(self.root, where)
            self._folder(os.path.dirname(target), made)
            if isinstance(content, Text):
                with open(target, "w", encoding="utf-8") as file:
                    file.write(content.content)
            elif content.directory:
                self._folder(target, made)
                for name in folders[content.id]:
                    inner = os.path.join(target, name)
                    self._folder(os.path.dirname(inner), made)
                    os.link(os.path.join(layout.path(content), name), inner)
            elif content.is_source:
                # A link to the file, not the file: a hard link would change the source's ctime, which we watch.
                os.symlink(layout.path(content), target)
            else:
                os.link(layout.path(content), target)
        for name, path in trees.items():
            target = os.path.join(self.root, "external", name)
            self._folder(os.path.dirname(target), made)
            os.symlink(path, target)
        for where, artifact in action.outputs:
            target = os.path.join(self.root, action.working_directory, where)
            self._folder(target if artifact.directory else os.path.dirname(target), made)
        self._folder(os.path.join(self.root, action.working_directory), made)

    @staticmethod
    def _folder(path: str, made: set[str]) -> None:
        if path not in made:
            os.makedirs(path, exist_ok=True)
            made.add(path)

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
        if not f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(self.root)}/"):
            raise _is_link(action, os.path.dirname(name), folder)
        if os.path.islink(place):
            real = os.path.realpath(place)
            if not self._is_known(action, real):
                raise _is_link(action, name, place)
            os.unlink(place)
            shutil.copyfile(real, place)
            shutil.copymode(real, place)
        if not os.path.isfile(place):
            raise _is_not(action, name, place)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ActionFailed(
                f"{action.owner}: {action.mnemonic} left a file whose name is not UTF-8: {name!r}",
                location=action.location,
            ) from None
        return OutputFile(name, digest.of_file(place), bool(os.stat(place).st_mode & 0o100))

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

    def discard(self) -> None:
        """Delete the folder, read-only ones that a command left in it too."""
        with contextlib.suppress(OSError):
            remove(self.folder)


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
    """The execution roots of one invocation; deletes what killed invocations left behind."""

    def __init__(self, state: str) -> None:
        self._base = os.path.join(state, "exec")
        self._numbers = itertools.count()
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._folder = ""

    def new(self) -> ExecutionRoot:
        """A new, empty one. May be called from several threads."""
        with self._lock:
            if not self._folder:
                self._open()
        place = ExecutionRoot(os.path.join(self._folder, str(next(self._numbers))))
        place.create()
        return place

    def _open(self) -> None:
        self._sweep()
        folder = os.path.join(self._base, f"{os.getpid()}-{os.urandom(4).hex()}")
        # The lock first, then the folder: whoever finds a folder whose lock is free knows that its owner is gone.
        self._stack.enter_context(exclusive(folder + ".lock"))
        os.mkdir(folder)
        self._folder = folder

    def _sweep(self) -> None:
        """Delete the folders that killed invocations left."""
        try:
            names = os.listdir(self._base)
        except FileNotFoundError:
            return
        for name in names:
            folder = os.path.join(self._base, name)
            if name.endswith(".lock"):
                continue
            with contextlib.suppress(LockHeld, OSError), exclusive(folder + ".lock", block=False):
                remove(folder)
                remove(folder + ".lock")

    def close(self) -> None:
        """Delete the folder of this invocation."""
        if self._folder:
            with contextlib.suppress(OSError):
                remove(self._folder)
                remove(self._folder + ".lock")
            self._stack.close()
            self._folder = ""
