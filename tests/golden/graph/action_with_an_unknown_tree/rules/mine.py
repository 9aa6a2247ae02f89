from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    ctx.action('Step', tool='command:sh', arguments=['sh', '-c', 'true'], inputs={}, outputs={'a': ctx.output('a')}, trees=['hidet/includes'])
    return [DefaultInfo((ctx.output('a'),))]
