from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    out, later, more = ctx.output("a.txt"), ctx.output("b.txt"), ctx.output("c.txt")
    ctx.action("First", tool="command:sh", arguments=["sh", "-c", "echo 1 > a.txt"], inputs={}, outputs={"a.txt": out})

    def expand(after, read):
        after.action("Second", tool="command:sh", arguments=["sh", "-c", "echo 1 > b.txt"], inputs={}, outputs={"b.txt": later})

    ctx.then([out], [later, more], expand)
    return [DefaultInfo((later, more))]
