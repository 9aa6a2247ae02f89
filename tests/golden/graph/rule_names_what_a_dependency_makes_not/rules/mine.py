from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    from hidet_build.rule import Artifact

    return [DefaultInfo((Artifact('k/other/a.txt', ctx.platform.name),))]
