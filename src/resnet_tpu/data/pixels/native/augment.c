/* The slowest augmentations of operations.py, with the same float32 arithmetic in the same order. Images are RGB, rows
   without gaps. */

#include "native.h"

#include <math.h>

#define PART 512 /* pixels at a time, so that their greys stay in the cache */

/* a at factor 0, b at 1, or beyond; clipped, the fraction cut off. */
static inline uint8_t blend(float a, float b, float factor) {
    float value = b - a;
    value *= factor;
    value += a;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Blends the image with its grey version. */
VECTORISED void color(const uint8_t *restrict image, size_t pixels, float factor, uint8_t *restrict out) {
    const float unit = 1.0f / 255;
    float grey[3 * PART];
    for (size_t start = 0; start < pixels; start += PART) {
        size_t count = pixels - start < PART ? pixels - start : PART;
        const uint8_t *in = image + 3 * start;
        for (size_t i = 0; i < count; i++) {
            float red = in[3 * i] * unit * 0.2989f, green = in[3 * i + 1] * unit * 0.5870f;
            float blue = in[3 * i + 2] * unit * 0.1140f;
            grey[3 * i] = grey[3 * i + 1] = grey[3 * i + 2] = (float)(uint8_t)((red + green + blue) * 255.5f);
        }
        for (size_t i = 0; i < 3 * count; i++)
            out[3 * start + i] = blend(grey[i], in[i], factor);
    }
}

/* Blends the image with its smoothed version, whose border is not smoothed. */
VECTORISED void sharpness(const uint8_t *restrict image, int h, int w, float factor, uint8_t *restrict out) {
    const float near = 1.0f / 13, own = 5.0f / 13;
    const ptrdiff_t row = 3 * (ptrdiff_t)w;
    memcpy(out, image, (size_t)(h * row));
    for (int y = 1; y < h - 1; y++) {
        const uint8_t *at = image + y * row, *above = at - row, *below = at + row;
        for (ptrdiff_t i = 3; i < row - 3; i++) {
            float total = above[i - 3] * near;
            total += above[i] * near;
            total += above[i + 3] * near;
            total += at[i - 3] * near;
            total += at[i] * own;
            total += at[i + 3] * near;
            total += below[i - 3] * near;
            total += below[i] * near;
            total += below[i + 3] * near;
            out[y * row + i] = blend((float)(uint8_t)total, at[i], factor);
        }
    }
}

/* out(x, y) = image(xx * x + xy * y + x0, yx * x + yy * y + y0), the nearest pixel; `fill` where there is none. */
VECTORISED void warp(const uint8_t *restrict image, int h, int w, float xx, float xy, float x0, float yx, float yy,
                     float y0, float below_half, uint8_t fill, uint8_t *restrict out) {
    const uint8_t filler[3] = {fill, fill, fill};
    int32_t sources[PART];
    for (int y = 0; y < h; y++) {
        float x_of_y = xy * (float)y, y_of_y = yy * (float)y;
        for (int start = 0; start < w; start += PART) {
            int count = w - start < PART ? w - start : PART;
            for (int i = 0; i < count; i++) {
                float x = floorf(xx * (float)(start + i) + x_of_y + x0 + below_half);
                float y = floorf(yx * (float)(start + i) + y_of_y + y0 + below_half);
                int is_inside = (x >= 0) & (x < (float)w) & (y >= 0) & (y < (float)h);
                sources[i] = is_inside ? (int32_t)y * w + (int32_t)x : -1;
            }
            for (int i = 0; i < count; i++, out += 3) {
                const uint8_t *from = sources[i] < 0 ? filler : image + 3 * (size_t)sources[i];
                out[0] = from[0], out[1] = from[1], out[2] = from[2];
            }
        }
    }
}
