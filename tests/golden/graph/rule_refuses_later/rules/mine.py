from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    from hidet_build.rule import AnalysisError

    out, later = ctx.output("a.txt"), ctx.output("b.txt")
    ctx.action("First", tool="command:sh", arguments=["sh", "-c", "echo 1 > a.txt"], inputs={}, outputs={"a.txt": out})

    def expand(after, read):
        raise AnalysisError(f"{ctx.label}: one is not enough", location=ctx.where("name"))

    ctx.then([out], [later], expand)
    return [DefaultInfo((later,))]
