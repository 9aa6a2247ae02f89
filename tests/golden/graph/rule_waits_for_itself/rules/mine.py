from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    out = ctx.output("a.txt")
    ctx.then([out], [out], lambda after, read: None)
    return [DefaultInfo((out,))]
