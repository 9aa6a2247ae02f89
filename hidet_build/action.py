"""Artifacts and actions: all that loading hands to running. Data only; knows nothing of rules, keys or processes.

An action is a command line with declared inputs and outputs; lower, codegen, compile and link are mnemonics of this
one class. It runs in an execution root of its own that holds its inputs and nothing else, so every file has two
names: its path in the execution root (the key sees only this one) and the artifact it is (see `Artifact`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Union

from hidet_build.digest import Digest
from hidet_build.errors import Location
from hidet_build.label import Label


class Artifact(NamedTuple):
    """A file or folder of the build.

    A source file has its path from the workspace root and no platform; a made one has the path
    `package/target/file` under the output folder of its platform (`cpu-x86-64-v3`).
    """

    path: str
    platform: str = ""
    directory: bool = False

    @property
    def is_source(self) -> bool:
        """Whether people write this file."""
        return not self.platform

    @property
    def id(self) -> str:
        """One string for one artifact: sources as `pkg/file`, made ones as `/platform/pkg/target/file`."""
        return f"/{self.platform}/{self.path}" if self.platform else self.path

    def child(self, name: str) -> Artifact:
        """The file `name` inside this directory artifact."""
        return Artifact(f"{self.path}/{name}", self.platform)


class Text(NamedTuple):
    """An input whose content the rule itself writes: an argument file, a specification. It needs no action."""

    content: str


Input = Union[Artifact, Text]


@dataclass(frozen=True)
class Action:
    """A command line, its inputs and its outputs.

    arguments[0] is a plain name; `tool` says whose identity counts in the key and which binary that name is.
    """

    owner: Label
    mnemonic: str
    platform: str  # the output folder, for messages; not part of the key
    tool: str  # "cxx", "nvcc", "hidet", "binutils" or "command:NAME"
    arguments: tuple[str, ...]
    inputs: tuple[tuple[str, Input], ...]  # path in the execution root -> content, sorted
    outputs: tuple[tuple[str, Artifact], ...]  # path from the working directory -> artifact, sorted
    environment: tuple[tuple[str, str], ...] = ()  # sorted by name
    working_directory: str = ""  # a folder of the execution root; "" is the root itself
    trees: tuple[str, ...] = ()  # toolchain folders staged under external/, by name ("hidet/include")
    tags: tuple[str, ...] = ()  # no-cache, no-remote-cache, local, exclusive
    location: Location | None = None  # the target in its BUILD.yaml

    @property
    def id(self) -> str:
        """What the action is called between builds: the id of its first output."""
        return self.outputs[0][1].id


class OutputFile(NamedTuple):
    """One file an execution left: its path from the working directory, its content, whether it may be executed."""

    path: str
    digest: Digest
    executable: bool


@dataclass(frozen=True)
class ActionResult:
    """What came out of a successful execution, as caches keep it.

    `files` holds every output file, those inside output folders too, sorted by path; `directories` the outputs that
    were declared as folders. Output is the tool's text (standard output and error, in the order they came).
    """

    files: tuple[OutputFile, ...]
    directories: tuple[str, ...] = ()
    output: bytes = b""
    seconds: float = 0.0


# Reads a made file the continuation waited for.
Reader = Callable[[Artifact], bytes]


@dataclass(frozen=True)
class Continuation:
    """Actions that can be declared only when some files exist: how many modules an entry returned, for one.

    When all `inputs` are made, `function(read)` returns further steps; between them they must make `outputs`.
    It must depend on nothing but the content of `inputs`.
    """

    owner: Label
    platform: str
    inputs: tuple[Artifact, ...]
    outputs: tuple[Artifact, ...]
    function: Callable[[Reader], tuple[Step, ...]]
    location: Location | None = None

    @property
    def id(self) -> str:
        """What the continuation is called between builds: one may promise what another, nested in it, promises too."""
        return f"+{','.join(one.id for one in self.inputs)}>{','.join(one.id for one in self.outputs)}"


Step = Union[Action, Continuation]
