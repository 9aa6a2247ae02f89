from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    out = ctx.output("a.txt")
    ctx.action("First", tool="command:sh", arguments=["sh", "-c", "echo 1 > a.txt"], inputs={}, outputs={"a.txt": out})
    yield DefaultInfo((out,))
