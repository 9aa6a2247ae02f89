"""command: any program with declared inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

from hidet_build.rule import AnalysisError, Context, DefaultInfo, Provider, attr, rule


@rule(
    arguments=attr.strings(required=True, doc="the command line; the first word is a program on PATH"),
    inputs=attr.files(doc="files the command reads: sources, globs, labels of targets (their files)"),
    outputs=attr.strings(required=True, doc="files the command writes; a name that ends with / is a folder"),
    env=attr.string_map(doc="environment variables for the command; nothing else is passed on"),
)
def command(ctx: Context) -> Sequence[Provider]:
    """Runs a command line.

    It runs in the folder of this package, in a tree that holds its inputs and nothing else: sources at their path in
    the workspace, files of other targets at `package/target/file`. No shell is involved; write `sh`, `-c`, `...` for
    one.
    """
    attrs = ctx.attrs
    package = ctx.label.package
    outputs = {}
    for name in attrs.outputs:
        clean = name.rstrip("/")
        if not clean or clean.startswith("/") or any(part in ("", ".", "..") for part in clean.split("/")):
            raise AnalysisError(
                f"output {name!r} is not a path below the folder of {ctx.label}", location=ctx.where("outputs")
            )
        if clean in outputs:
            raise AnalysisError(f"output {clean!r} is listed twice", location=ctx.where("outputs"))
        outputs[clean] = ctx.output(clean, directory=name.endswith("/"))
    inputs = ctx.by_path(attrs.inputs)
    for name in outputs:
        # Sources are links to the user's files: what is written to one is written there.
        if f"{package}/{name}".lstrip("/") in inputs:
            raise AnalysisError(
                f"{name!r} is an input of {ctx.label} and an output too",
                location=ctx.where("outputs"),
                hint="give the output another name",
            )
    if not outputs or not attrs.arguments:
        missing = "outputs" if attrs.arguments else "arguments"
        raise AnalysisError(f"{ctx.label}: {missing} is empty", location=ctx.where(missing))
    ctx.action(
        "Command",
        tool=f"command:{attrs.arguments[0]}",
        arguments=attrs.arguments,
        inputs=inputs,
        outputs=outputs,
        environment=dict(attrs.env),
        working_directory=package,
    )
    return [DefaultInfo(tuple(outputs.values()))]
