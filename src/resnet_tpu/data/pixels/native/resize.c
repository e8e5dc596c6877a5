/* Resizes as resize.py does, bit for bit: rows first, then columns, every sum in the order of its taps. */

#include "native.h"

#include <math.h>

/* The source pixels around output pixel i, as in resize.py: tap k is pixel first + k, with the edge repeated. */
static int weigh(int length, int size, int method, int i, float *weights) {
    float position = (float)i * ((float)length / (float)size), whole = floorf(position), t = position - whole;
    int at = whole < (float)length ? (int)whole : length - 1;
    if (method == BILINEAR) {
        weights[0] = 1 - t, weights[1] = t;
        return at;
    }
    t = rintf(t * 1024) / 1024;
    float a = 1 + t, b = 1 - t, c = 2 - t;
    weights[0] = ((-0.75f * a + 3.75f) * a - 6) * a + 3;
    weights[1] = (1.25f * t - 2.25f) * t * t + 1;
    weights[2] = (1.25f * b - 2.25f) * b * b + 1;
    weights[3] = ((-0.75f * c + 3.75f) * c - 6) * c + 3;
    return at - 1;
}

VECTORISED static void blend4(const uint8_t *const *rows, const float *weights, int count, float *restrict out) {
    const uint8_t *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    float wa = weights[0], wb = weights[1], wc = weights[2], wd = weights[3];
    for (int i = 0; i < count; i++)
        out[i] = wa * (float)a[i] + wb * (float)b[i] + wc * (float)c[i] + wd * (float)d[i];
}

VECTORISED static void blend2(const uint8_t *const *rows, const float *weights, int count, float *restrict out) {
    const uint8_t *a = rows[0], *b = rows[1];
    float wa = weights[0], wb = weights[1];
    for (int i = 0; i < count; i++)
        out[i] = wa * (float)a[i] + wb * (float)b[i];
}

typedef float pixel __attribute__((vector_size(16), aligned(4)));

/* Output pixels from 4 or 2 neighbours each; a pixel's fourth number is garbage, overwritten by the next pixel. */
VECTORISED static void gather4(const float *in, const int *first, const pixel *weights, int size, float *out) {
    for (int i = 0; i < size; i++, weights += 4) {
        const float *p = in + first[i];
        *(pixel *)(out + 3 * i) = weights[0] * *(const pixel *)p + weights[1] * *(const pixel *)(p + 3) +
                                  weights[2] * *(const pixel *)(p + 6) + weights[3] * *(const pixel *)(p + 9);
    }
}

VECTORISED static void gather2(const float *in, const int *first, const pixel *weights, int size, float *out) {
    for (int i = 0; i < size; i++, weights += 2) {
        const float *p = in + first[i];
        *(pixel *)(out + 3 * i) = weights[0] * *(const pixel *)p + weights[1] * *(const pixel *)(p + 3);
    }
}

/* Rounds half to even, and clips. */
VECTORISED static void round_off(const float *restrict in, int count, uint8_t *restrict out) {
    const float whole = 12582912; /* 1.5 * 2^23: adding it leaves no bits for a fraction */
    for (int i = 0; i < count; i++) {
        float value = in[i] + whole - whole;
        value = value < 0 ? 0 : value;
        out[i] = (uint8_t)(int)(value > 255 ? 255 : value);
    }
}

/* Fills `out` [size, size, 3] with h x w pixels that lie `stride` bytes apart from row to row. */
int resize(buffer *memory, const uint8_t *image, ptrdiff_t stride, int h, int w, uint8_t *out, int size, int mirrored,
           int method) {
    const int taps = method == BICUBIC ? 4 : 2;
    const size_t row_size = 3 * ((size_t)w + 5), table_size = 4 * (size_t)taps * size;
    if (h < 1 || w < 1 || size < 1 || !reserve(memory, sizeof(float) * (table_size + 4 * (size_t)size + 4 + row_size)))
        return 0;
    float *table = memory->data, *resized = table + table_size, *row = resized + 3 * size + 4;
    int *first = (int *)(row + row_size);
    for (int x = 0; x < size; x++) {
        float weights[4];
        int column = mirrored ? size - 1 - x : x;
        first[column] = 3 * weigh(w, size, method, x, weights);
        for (int k = 0; k < 4 * taps; k++)
            table[4 * taps * column + k] = weights[k / 4];
    }
    row += 3; /* the left edge, repeated */
    memset(row + 3 * w, 0, sizeof(float) * 9);
    for (int y = 0; y < size; y++) {
        float weights[4];
        const uint8_t *rows[4];
        int top = weigh(h, size, method, y, weights);
        for (int k = 0; k < taps; k++) {
            int at = top + k < 0 ? 0 : top + k < h ? top + k : h - 1;
            rows[k] = image + at * stride;
        }
        (taps == 4 ? blend4 : blend2)(rows, weights, 3 * w, row);
        memcpy(row - 3, row, sizeof(float) * 3);
        memcpy(row + 3 * w, row + 3 * w - 3, sizeof(float) * 3);
        memcpy(row + 3 * w + 3, row + 3 * w - 3, sizeof(float) * 3);
        (taps == 4 ? gather4 : gather2)(row, first, (const pixel *)table, size, resized);
        round_off(resized, 3 * size, out + (size_t)y * 3 * size);
    }
    return 1;
}

