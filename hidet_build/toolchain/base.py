"""What a toolchain is, how the evidence of what it is made of is collected, and how it is remembered.

A toolchain's identity is a digest of content: of the programs, of the headers and libraries they read, of the version
they print. Paths, times and the machine stay out of it, so one compiler reached by two paths is one toolchain.
Finding that content takes a compiler half a second; it is remembered, and the memory holds while every file that was
read has the stat data it had:

    <memo folder>/toolchains-1/<digest of what was looked up>     32 bytes of SHA-256, then the marshalled record

Knows no compiler in particular.
"""

from __future__ import annotations

import marshal
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from hidet_build import digest
from hidet_build.errors import AnalysisError, EnvironmentFailure, Location
from hidet_build.files import Fingerprint, mark

Part = tuple[str, Fingerprint | None]
# Runs a short command with exactly this environment; gives its exit code, and its output and errors as one text.
Probe = Callable[[Sequence[str], Mapping[str, str]], tuple[int, bytes]]

SYSTEM_PATH = ("/usr/bin", "/bin")


@dataclass(frozen=True)
class Toolchain:
    """A toolchain as it was found.

    `executables` maps the plain names that stand in command lines to absolute paths, `path` is the PATH to run them
    with, `parts` all files and folders the identity was taken from. `architectures` are the names a compiler takes
    for -march (nvcc: as the device's), as far as it lists them. `variables` are set when its programs run, beside
    PATH; they name paths of this machine, and what lies there is in the identity. `looked_up` are the first programs
    of their names that PATH led to: where it leads elsewhere, the toolchain has to be found again.
    """

    name: str
    executables: Mapping[str, str]
    version: str
    identity: str
    path: str
    parts: tuple[Part, ...]
    architectures: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    looked_up: tuple[str, ...] = ()

    def executable(self, argv0: str) -> str:
        """The absolute path of the program a command line calls `argv0`.

        Run it with this path as its first argument too: a compiler that was moved finds its parts by that.
        AnalysisError where the toolchain has no such program.
        """
        found = self.executables.get(argv0)
        if found is None:
            raise AnalysisError(
                f"the toolchain {self.name!r} has no program {argv0!r}",
                hint=f"arguments[0] can be {' or '.join(sorted(self.executables))}",
            )
        return found

    def is_fresh(self) -> bool:
        """Whether every part still has the stat data it had. It does not look whether PATH leads elsewhere now."""
        return all(mark(path) == seen for path, seen in self.parts)


@dataclass(frozen=True)
class Search:
    """What looking for a toolchain needs: the environment of the user, a way to ask programs, and the memory."""

    environment: Mapping[str, str]
    run: Probe
    memo: Memo

    def path(self) -> list[str]:
        """The folders of PATH in which programs are looked for."""
        folders = self.environment.get("PATH", ":".join(SYSTEM_PATH)).split(":")
        # A relative folder would give another compiler in another working directory.
        return [folder for folder in folders if os.path.isabs(folder)]


class Memo:
    """What earlier probes found, a file each. A damaged, foreign or unwritable memory only costs a probe."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def recall(self, key: tuple[str, ...], probe: Callable[[], Toolchain]) -> Toolchain:
        """The toolchain remembered under `key` if its parts are unchanged, else what `probe` finds."""
        remembered = _toolchain_of(self._read(key))
        if remembered is not None and remembered.is_fresh():
            return remembered
        found = probe()
        self._write(
            key,
            (
                found.name,
                dict(found.executables),
                found.version,
                found.identity,
                found.path,
                found.parts,
                found.architectures,
                found.variables,
            ),
        )
        return found

    def recall_flags(self, key: tuple[str, ...], probe: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """The flags remembered under `key`, which must say all they depend on, else what `probe` finds."""
        remembered = self._read(key)
        if isinstance(remembered, tuple) and remembered and all(isinstance(flag, str) for flag in remembered):
            return remembered
        found = probe()
        self._write(key, found)
        return found

    def _place(self, key: tuple[str, ...]) -> str:
        # marshal's format is Python's own affair, so each Python has its own memory.
        words = (*key, sys.implementation.cache_tag or "", sys.version)
        return os.path.join(self._folder, digest.of_text("\0".join(words)).hash[:32])

    def _read(self, key: tuple[str, ...]) -> Any:
        try:
            with open(self._place(key), "rb") as file:
                stored = file.read()
        except OSError:
            return None
        # Checked first: marshal may do anything with bytes it did not write.
        return marshal.loads(stored[32:]) if sha256(stored[32:]).digest() == stored[:32] else None

    def _write(self, key: tuple[str, ...], value: Any) -> None:
        content = marshal.dumps(value)
        place = self._place(key)
        temporary = f"{place}.{os.getpid()}"
        try:
            os.makedirs(self._folder, exist_ok=True)
            write_file(temporary, sha256(content).digest() + content)
            os.replace(temporary, place)
        except OSError:
            return  # a full disk or a read-only folder: the next invocation asks again


def _toolchain_of(record: Any) -> Toolchain | None:
    return Toolchain(*record) if isinstance(record, tuple) and len(record) == 8 else None


class Evidence:
    """Collects what a toolchain's identity is made of, and the stat data of every file before it is read."""

    def __init__(self, name: str, version: str) -> None:
        self._name = name
        self._version = version
        self._hasher = sha256()
        self._parts: dict[str, Fingerprint | None] = {}
        self._said: set[tuple[str, str]] = set()
        self._say(name)
        self._say(version)

    def add(self, role: str, paths: Iterable[str]) -> None:
        """Let the content of each file count, in this order, as the `role` it plays; equal content counts once.

        Told apart by content, for which file is which under how many names is a matter of paths.
        """
        for path in paths:
            self.watch([path])
            content = digest.of_file(path).hash
            if (role, content) not in self._said:
                self._said.add((role, content))
                self._say(role)
                self._say(content)

    def count(self, text: str) -> None:
        """Let a text count."""
        self._say(text)

    def watch(self, paths: Iterable[str]) -> None:
        """Ask again when one of these files or folders changes, without letting it count."""
        for path in paths:
            self._parts.setdefault(path, mark(path))

    def toolchain(
        self,
        executables: Mapping[str, str],
        path: str,
        architectures: tuple[str, ...] = (),
        variables: tuple[tuple[str, str], ...] = (),
    ) -> Toolchain:
        """What was collected, as a toolchain."""
        parts = tuple(self._parts.items())
        identity = self._hasher.hexdigest()
        return Toolchain(self._name, executables, self._version, identity, path, parts, architectures, variables)

    def _say(self, text: str) -> None:
        content = text.encode(errors="surrogateescape")
        self._hasher.update(b"%d:" % len(content) + content)


class Questions:
    """Puts questions to one program, in the environment it will run in later."""

    def __init__(self, run: Probe, program: str, environment: Mapping[str, str], location: Location | None) -> None:
        self._run = run
        self._program = program
        self._environment = environment
        self._location = location

    def reply(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output."""
        code, output = self._run([self._program, *arguments], self._environment)
        return code, os.fsdecode(output)

    def text(self, *arguments: str) -> str:
        """The output; EnvironmentFailure where the program does not succeed."""
        code, output = self.reply(*arguments)
        if code != 0:
            lines = [line for line in output.splitlines() if "error: " in line] or output.splitlines()[-1:]
            raise EnvironmentFailure(
                f"{self._program} does not work: exit code {code}"
                + "".join(f"\n    {line.strip()}" for line in lines[:3]),
                location=self._location,
                hint=f"it was called as `{' '.join([self._program, *arguments])}`",
            )
        return output

    def program(self, name: str, path: str) -> str | None:
        """The program the compiler runs as `name`; None where it does without."""
        answer = self.text(f"-print-prog-name={name}").strip()
        return answer if os.path.isabs(answer) else next(programs(answer, path.split(":")), None)

    def loaded_libraries(self, program: str) -> list[str]:
        """The shared libraries `program` is made of: without libLLVM, clang++ is but a few kilobytes.

        The C library's loader lists them in place of starting the program; others start it, and say nothing of use.
        """
        _, output = self._run([program], {**self._environment, "LD_TRACE_LOADED_OBJECTS": "1"})
        found = re.findall(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", os.fsdecode(output), re.MULTILINE)
        return [library for library in found if os.path.isfile(library)]


def clean_environment(path: str) -> dict[str, str]:
    """What a program sees of the environment.

    The locale is fixed because a compiler's messages are kept and compared; CPATH, LIBRARY_PATH, NVCC_*,
    LD_LIBRARY_PATH and their like, which change what compilers make, are not there.
    """
    return {"HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "PATH": path}


def run_path(paths: Iterable[str]) -> str:
    """The PATH to run these programs with."""
    folders = [os.path.dirname(program) for program in paths]
    return ":".join(dict.fromkeys([*folders, *SYSTEM_PATH]))


def programs(name: str, folders: Iterable[str]) -> Iterator[str]:
    """The programs of this name in these folders, in their order."""
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def make_prerequisites(rule: str) -> list[str]:
    """The files after the colon of a Makefile rule as `-M` prints it."""
    _, _, files = rule.replace("\\\n", " ").partition(": ")
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in re.findall(r"(?:\\.|\S)+", files)]


def write_file(path: str, content: bytes) -> None:
    """Write a file that nobody reads yet."""
    with open(path, "wb") as file:
        file.write(content)
