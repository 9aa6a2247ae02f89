"""What the rules of a workspace declare, as text.

`python -m tests.declared ROOT` prints it, for another process to compare. Nothing runs: what continuations read is made
up by the file's name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hidet_build.action import Action, Artifact, Step
from hidet_build.analysis import Analysis, analyze
from hidet_build.graph import action_graph, load
from hidet_build.label import Label, parse_label
from hidet_build.loader import Loader
from hidet_build.platform import Platform, parse_target
from hidet_build.ruleset import built_in_folder
from hidet_build.workspace import Workspace


def functions(*names: str, globals: tuple[str, ...] = (), automatic_launch: bool = False, namespace: str = "") -> bytes:
    """A functions.json of these public functions."""
    rows = [{"name": name, "signature": f"{name}() -> void", "symbol": f"hidet_{name}"} for name in names]
    whole = {"automatic_launch": automatic_launch, "functions": rows, "globals": list(globals), "namespace": namespace}
    return json.dumps(whole).encode()


# By the end of the path; the first that fits counts.
CONTENTS = {
    "/tuned/lowered/task.json": b'{"main": {"pickle": "main.pickle"}, "candidates": [{"pickle": "0.pickle"}]}',
    "/tuned/candidates/0/functions.json": functions(
        "launch", globals=("_ZN9candidate1cE",), automatic_launch=True, namespace="candidate"
    ),
    "/tuned/candidates/0/symbols.txt": b"_ZN9candidate6launchEPfS0_ T 0 10\n_ZSt3cin B 0 8\n",
    "/several/lowered/modules.json": b'{"modules": [{"pickle": "0.pickle"}, {"pickle": "1.pickle"}]}',
    "/modules.json": b'{"modules": [{"pickle": "0.pickle"}]}',
    "/several/parts/0/functions.json": functions("fused", globals=("_ZL5table",)),
    "/several/parts/1/functions.json": functions("launch", automatic_launch=True),
    "/matmul/functions.json": functions("launch", "matmul", automatic_launch=True),
    "/functions.json": functions("softmax"),
    "/link.args": b"-lm\n",
    "/symbols.txt": b"blur T 0 10\n",
}


def analyzed(root: Path, *labels: str, platform: str = "cpu") -> Analysis:
    """The analysis of these targets, of all targets of the root package where none is named."""
    workspace = Workspace(str(root))
    loader = Loader(workspace)
    roots = [parse_label(label, "") for label in labels]
    roots = roots or [target.label for target in loader.package("", None).targets.values()]
    target = parse_target(platform)
    graph = load([(label, None) for label in roots], loader.package, workspace, target)

    def resolve(text: str, _: object) -> Platform:
        return parse_target(text)

    analysis = analyze(graph, target, resolve, built_in_folder())
    action_graph(step for steps in analysis.steps.values() for step in steps)
    return analysis


def text_of(analysis: Analysis, label: Label, contents: Mapping[str, bytes] = CONTENTS) -> str:
    """All that a target declares: its files and its steps, with those that come later below the step they wait for."""
    lines = [f"{label} makes"]
    info = analysis.default(label)
    lines += [f"  {file.id}" for file in (*info.files, *([info.folder] if info.folder else []))]
    for step in analysis.steps[label]:
        lines += ["", *_lines(step, contents)]
    return "\n".join(lines) + "\n"


def _lines(step: Step, contents: Mapping[str, bytes]) -> Iterator[str]:
    if isinstance(step, Action):
        yield f"{step.mnemonic} with {step.tool}" + (f" in {step.working_directory}" if step.working_directory else "")
        yield from (f"  argument {argument}" for argument in step.arguments)
        yield from (f"  variable {name}={value}" for name, value in step.environment)
        yield from (f"  tree {name}" for name in step.trees)
        yield from (f"  tag {name}" for name in step.tags)
        for where, content in step.inputs:
            yield f"  in {where} <- {content.id if isinstance(content, Artifact) else repr(content.content)}"
        for where, artifact in step.outputs:
            yield f"  out {where} -> {artifact.id}{'/' if artifact.directory else ''}"
        return
    yield "later, with " + ", ".join(artifact.id for artifact in step.inputs)
    yield "  promises " + ", ".join(artifact.id for artifact in step.outputs)

    def read(artifact: Artifact) -> bytes:
        return next(content for end, content in contents.items() if f"/{artifact.path}".endswith(end))

    for one in step.function(read):
        yield from (f"  {line}" for line in _lines(one, contents))


if __name__ == "__main__":
    declared = analyzed(Path(sys.argv[1]))
    sys.stdout.write("\n".join(text_of(declared, label) for label in sorted(declared.steps)))
