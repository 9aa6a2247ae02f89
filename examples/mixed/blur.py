"""A 3 x 3 box blur; C++ fills in what lies beyond the border."""

import hidet
from hidet.ir.type import void
from hidet.lang import attrs, grid, tensor
from hidet.lang.types import f32, i32


def blur(channels: int, height: int, width: int):
    with hidet.script_module() as module:
        # A name with a dot is C++: imaging::mirror_border.
        mirror_border = module.declare_extern_func("imaging.mirror_border", [~f32, ~f32, i32, i32, i32, i32], void)

        @hidet.script
        def blur(image: f32[channels, height, width], out: f32[channels, height, width]):
            attrs.func_kind = "public"
            larger = tensor(f32, [channels, height + 2, width + 2])
            mirror_border(image, larger, channels, height, width, 1)
            for c, y, x in grid(channels, height, width):
                out[c, y, x] = 0.0
                for dy, dx in grid(3, 3):
                    out[c, y, x] += larger[c, y + dy, x + dx] / 9.0

    return module.ir_module()
