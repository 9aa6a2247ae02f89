from dataclasses import dataclass
from hidet_build.rule import Context, DefaultInfo, Provider, Text, attr, rule
from . import table


@rule()
def mine(ctx: Context):
    """A rule of this workspace."""
    return table.lookup({}, 'key')
