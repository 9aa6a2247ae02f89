"""lookup_table: a Python module of function values, computed when the workspace is built."""

from collections.abc import Sequence

from hidet_build.rules.py_library import PyInfo

from hidet_build.rule import AnalysisError, Context, DefaultInfo, Provider, attr, rule


@rule(
    generator=attr.file(required=True, suffixes=[".py"], doc="the program that writes the table"),
    function=attr.string(required=True, doc="the function to tabulate, by the name the generator knows it by"),
    low=attr.string(required=True, doc="where the table begins"),
    high=attr.string(required=True, doc="where it ends"),
    intervals=attr.integer(required=True, doc="how many intervals lie between its points"),
)
def lookup_table(ctx: Context) -> Sequence[Provider]:
    """Writes `LOW`, `HIGH` and `VALUES` to a module named after the target, which kernels with this dep can import."""
    attrs = ctx.attrs
    if attrs.intervals < 1:
        raise AnalysisError(f"intervals must be positive, not {attrs.intervals}", location=ctx.where("intervals"))

    module = ctx.output(f"{ctx.label.name}.py")
    ctx.action(
        "LookupTable",
        tool="command:python3",
        arguments=[
            "python3",
            attrs.generator.path,
            f"--function={attrs.function}",
            f"--low={attrs.low}",
            f"--high={attrs.high}",
            f"--intervals={attrs.intervals}",
            "--out=table.py",
        ],
        inputs={attrs.generator.path: attrs.generator},
        outputs={"table.py": module},
    )
    # A kernel finds the module by its plain name in the folder of this target's outputs.
    return [DefaultInfo((module,)), PyInfo(sources=(module,), imports=(ctx.output("").path,))]
