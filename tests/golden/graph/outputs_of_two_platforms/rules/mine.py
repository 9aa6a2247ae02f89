from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    other = ctx.target_platform('cpu --arch=x86-64-v4')
    ctx.action('Step', tool='command:sh', arguments=['sh', '-c', 'true'], inputs={}, outputs={'a': ctx.output('a'), 'b': ctx.output('b', platform=other)})
    return [DefaultInfo()]
