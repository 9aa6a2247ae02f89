"""alias, filegroup and group: other names for what other targets make."""

from __future__ import annotations

from collections.abc import Sequence

from hidet_build.rule import Context, DefaultInfo, GroupInfo, Provider, attr, rule


@rule(actual=attr.label(required=True, doc="the target this is another name for"))
def alias(ctx: Context) -> Sequence[Provider]:
    """Another name for a target."""
    return list(ctx.attrs.actual.providers.values())


@rule(srcs=attr.files(doc="files, globs and targets"))
def filegroup(ctx: Context) -> Sequence[Provider]:
    """A name for several files."""
    return [DefaultInfo(ctx.attrs.srcs)]


@rule(members=attr.labels(required=True, doc="the targets"))
def group(ctx: Context) -> Sequence[Provider]:
    """A name for several targets: where a list of labels is wanted, it stands for all of them."""
    files = [file for member in ctx.attrs.members if (info := member.get(DefaultInfo)) for file in info.files]
    return [DefaultInfo(tuple(dict.fromkeys(files))), GroupInfo(ctx.attrs.members)]
