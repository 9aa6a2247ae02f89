#include "imaging.h"

namespace {

int32_t mirrored(int32_t i, int32_t size) {
  if (i < 0) return -i;
  return i < size ? i : 2 * (size - 1) - i;
}

}  // namespace

void imaging::mirror_border(float *image, float *larger, int32_t channels, int32_t height, int32_t width,
                            int32_t border) {
  for (int32_t c = 0; c < channels; ++c) {
    for (int32_t y = -border; y < height + border; ++y) {
      const float *row = image + (c * height + mirrored(y, height)) * width;
      for (int32_t x = -border; x < width + border; ++x) {
        *larger++ = row[mirrored(x, width)];
      }
    }
  }
}

void planes_from_pixels(const uint8_t *pixels, float *planes, int32_t channels, int32_t height, int32_t width) {
  for (int32_t c = 0; c < channels; ++c) {
    for (int32_t i = 0; i < height * width; ++i) {
      *planes++ = pixels[i * channels + c] / 255.0f;
    }
  }
}
