from hidet_build.rule import Artifact, Context, Text, attr, rule


@rule(src=attr.file())
def no_outputs(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={}, outputs={})


@rule(src=attr.file())
def list_of_outputs(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={}, outputs=[ctx.output("a")])


@rule(src=attr.file())
def output_above(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={}, outputs={"../a": ctx.output("a")})


@rule(src=attr.file())
def output_of_another_target(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={}, outputs={"a": Artifact("k/y/a", ctx.platform.name)})


@rule(src=attr.file())
def output_is_a_source(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={}, outputs={"a": ctx.attrs.src})


@rule(src=attr.file())
def output_outside(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={}, outputs={"a": ctx.output("../y/a")})


@rule(src=attr.file())
def output_absolute(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={}, outputs={"a": ctx.output("/tmp/a")})


@rule(src=attr.file())
def no_arguments(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=[], inputs={}, outputs={"a": ctx.output("a")})


@rule(src=attr.file())
def one_string(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments="sh -c true", inputs={}, outputs={"a": ctx.output("a")})


@rule(src=attr.file())
def number(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", 5], inputs={}, outputs={"a": ctx.output("a")})


@rule(src=attr.file())
def unknown_tool(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="cmd:sh", arguments=["sh", "-c", "true"], inputs={}, outputs={"a": ctx.output("a")})


@rule(src=attr.file())
def absolute_input(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={"/etc/a": Text("")}, outputs={"a": ctx.output("a")})


@rule(src=attr.file())
def string_as_input(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={"a.txt": "content"}, outputs={"a": ctx.output("a")})


@rule(src=attr.file())
def folder_above(ctx: Context):
    """A rule of this workspace."""
    ctx.action("Step", tool="command:sh", arguments=["sh", "-c", "true"], inputs={}, working_directory="..", outputs={"a": ctx.output("a")})


@rule(src=attr.file())
def then_without_inputs(ctx: Context):
    """A rule of this workspace."""
    ctx.then([], [ctx.output("a")], lambda later, read: None)


@rule(src=attr.file())
def then_without_outputs(ctx: Context):
    """A rule of this workspace."""
    ctx.then([ctx.output("a")], [], lambda later, read: None)


@rule(src=attr.file())
def then_waits_for_a_source(ctx: Context):
    """A rule of this workspace."""
    ctx.then([ctx.attrs.src], [ctx.output("a")], lambda later, read: None)


@rule(src=attr.file())
def then_promises_a_source(ctx: Context):
    """A rule of this workspace."""
    ctx.then([ctx.output("a")], [ctx.attrs.src], lambda later, read: None)
