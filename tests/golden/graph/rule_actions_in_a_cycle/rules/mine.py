from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    a, b = ctx.output("a.txt"), ctx.output("b.txt")
    ctx.action("First", tool="command:cp", arguments=["cp", "b", "a"], inputs={"b": b}, outputs={"a": a})
    ctx.action("Second", tool="command:cp", arguments=["cp", "a", "b"], inputs={"a": a}, outputs={"b": b})
    return [DefaultInfo((a, b))]
