from hidet_build.rule import Context, DefaultInfo, attr, rule


@rule(src=attr.file())
def returns_one_provider(ctx: Context):
    """A rule of this workspace."""
    return DefaultInfo()


@rule(src=attr.file())
def returns_a_number(ctx: Context):
    """A rule of this workspace."""
    return 5


@rule(src=attr.file())
def returns_text(ctx: Context):
    """A rule of this workspace."""
    return "abc"


@rule(src=attr.file())
def returns_a_number_in_a_list(ctx: Context):
    """A rule of this workspace."""
    return [DefaultInfo(), 5]


@rule(src=attr.file())
def returns_one_type_twice(ctx: Context):
    """A rule of this workspace."""
    return [DefaultInfo(), DefaultInfo()]


@rule(src=attr.file())
def is_a_generator(ctx: Context):
    """A rule of this workspace."""
    yield DefaultInfo()


@rule(src=attr.file())
def gives_files_as_text(ctx: Context):
    """A rule of this workspace."""
    return [DefaultInfo(("a.txt",))]


@rule(src=attr.file())
def gives_one_file(ctx: Context):
    """A rule of this workspace."""
    return [DefaultInfo(ctx.output("a.txt"))]


@rule(src=attr.file())
def gives_a_number_of_files(ctx: Context):
    """A rule of this workspace."""
    return [DefaultInfo(1)]


@rule(src=attr.file())
def returns_a_class(ctx: Context):
    """A rule of this workspace."""
    return [DefaultInfo]
