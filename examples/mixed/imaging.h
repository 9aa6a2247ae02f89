#pragma once

#include <cstdint>

namespace imaging {

// Copies an image into the middle of one that is `border` pixels larger on each side, and mirrors it outwards.
void mirror_border(float *image, float *larger, int32_t channels, int32_t height, int32_t width, int32_t border);

}  // namespace imaging

extern "C" {

// Bytes as cameras and files hold them (height, width, channel) to floats from 0 to 1 (channel, height, width).
void planes_from_pixels(const uint8_t *pixels, float *planes, int32_t channels, int32_t height, int32_t width);

}
