/* Single passes over activations: batch norm together with the adjacent operations, and its gradients.

   Inputs and outputs are float32 or bfloat16; computations and sums are float32. */
#include <string.h>

#include "native.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH _Pragma("GCC ivdep") /* no value depends on another channel's */

enum { NOWHERE = 255 }; /* the place of a maximum that the ReLU set to 0, which gets no gradient */

static inline float from_bfloat16(uint16_t bits) {
    union {
        uint32_t bits;
        float value;
    } wide = {(uint32_t)bits << 16};
    return wide.value;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t to_bfloat16(float value) {
    union {
        float value;
        uint32_t bits;
    } wide = {value};
    uint32_t rounded = (wide.bits + 0x7fff + ((wide.bits >> 16) & 1)) >> 16;
    return value != value ? 0x7fc0 : (uint16_t)rounded;
}

/* Merges the statistics of two sets of rows. Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise
   algorithm", 1979. */
void merge_statistics(
    float *mean, float *square, int64_t count, const float *own_mean, const float *own_square, int64_t size,
    int64_t channels) {
    float fraction = (float)size / (count + size), weight = fraction * count;
    for (int64_t c = 0; c < channels; c++) {
        float difference = own_mean[c] - mean[c];
        mean[c] += difference * fraction;
        square[c] += own_square[c] + difference * difference * weight;
    }
}

#define VALUE float
#define LOAD(x) (x)
#define STORE(x) (x)
#define NAME(function) function##_float32
#include "rows_of_type.h"
#undef VALUE
#undef LOAD
#undef STORE
#undef NAME
#define VALUE uint16_t
#define LOAD(x) from_bfloat16(x)
#define STORE(x) to_bfloat16(x)
#define NAME(function) function##_bfloat16
#include "rows_of_type.h"

#define OF_TYPE(function, ...)                                                                                         \
    do {                                                                                                               \
        if (dtype == XLA_FFI_DataType_F32) function##_float32(__VA_ARGS__);                                                     \
        else function##_bfloat16(__VA_ARGS__);                                                                         \
    } while (0)

/* Several rows of few channels are processed as one wide row: a loop over 16 values is mostly overhead. */
enum { WIDTH = 256 };

static int64_t rows_at_once(int64_t rows, int64_t channels) {
    int64_t times = 1;
    while (2 * times * channels <= WIDTH && rows % (2 * times) == 0) times *= 2;
    return times;
}

static const float *repeat(const float *values, int64_t channels, int64_t times, float *own) {
    for (int64_t i = 0; i < times; i++) memcpy(own + i * channels, values, channels * sizeof *own);
    return own;
}

static Norm repeat_norm(Norm norm, int64_t channels, int64_t times, float own[3][WIDTH]) {
    if (times == 1) return norm;
    Norm wide = {
        repeat(norm.mean, channels, times, own[0]), repeat(norm.factor, channels, times, own[1]),
        repeat(norm.bias, channels, times, own[2])};
    return wide;
}

/* Where to accumulate `sum`: for wide rows in `own`, which is as wide; `gather` then adds it to `sum`. */
static float *accumulator(float *sum, int64_t times, float own[WIDTH]) {
    return times == 1 ? sum : memset(own, 0, WIDTH * sizeof *own);
}

static void gather(const float *wide, int64_t channels, int64_t times, float *sum) {
    for (int64_t i = 0; times > 1 && i < times; i++)
        for (int64_t c = 0; c < channels; c++) sum[c] += wide[i * channels + c];
}

void norm_relu(int dtype, const void *x, void *y, int64_t rows, int64_t channels, Norm norm) {
    int64_t times = rows_at_once(rows, channels);
    float own[3][WIDTH];
    norm = repeat_norm(norm, channels, times, own);
    OF_TYPE(norm_relu, x, y, rows / times, channels * times, norm);
}

void norm_relu_gradient(
    int dtype, const void *x, void *gradient, int64_t rows, int64_t channels, Norm norm, float *d_factor, float *d_bias) {
    int64_t times = rows_at_once(rows, channels);
    float own[3][WIDTH], sums[2][WIDTH], *factor = accumulator(d_factor, times, sums[0]), *bias = accumulator(d_bias, times, sums[1]);
    norm = repeat_norm(norm, channels, times, own);
    OF_TYPE(norm_relu_gradient, x, gradient, rows / times, channels * times, norm, factor, bias);
    gather(factor, channels, times, d_factor);
    gather(bias, channels, times, d_bias);
}

void norm_statistics_gradient(
    int dtype, const void *y, const void *gradient, void *out, int64_t rows, int64_t channels, Norm norm) {
    int64_t times = rows_at_once(rows, channels);
    float own[3][WIDTH];
    norm = repeat_norm(norm, channels, times, own);
    OF_TYPE(norm_statistics_gradient, y, gradient, out, rows / times, channels * times, norm);
}

void add_rows(int dtype, const void *x, void *y, int64_t size) { OF_TYPE(add_rows, x, y, size); }

void statistics(int dtype, const void *x, int64_t rows, int64_t channels, float *mean, float *square, float *own) {
    int64_t times = rows_at_once(rows, channels);
    if (times == 1) {
        OF_TYPE(statistics, x, rows, channels, mean, square, own);
        return;
    }
    float means[WIDTH], squares[WIDTH], rest[2 * WIDTH];
    OF_TYPE(statistics, x, rows / times, channels * times, means, squares, rest);
    memcpy(mean, means, channels * sizeof *mean);
    memcpy(square, squares, channels * sizeof *square);
    for (int64_t i = 1; i < times; i++)
        merge_statistics(
            mean, square, i * (rows / times), means + i * channels, squares + i * channels, rows / times, channels);
}

void norm_add_relu(
    int dtype, const void *x, Norm norm, const void *shortcut, const Norm *other, void *y, int64_t rows, int64_t channels) {
    int64_t times = rows_at_once(rows, channels);
    float own[3][WIDTH], own_other[3][WIDTH];
    norm = repeat_norm(norm, channels, times, own);
    Norm beside = other ? repeat_norm(*other, channels, times, own_other) : norm;
    OF_TYPE(norm_add_relu, x, norm, shortcut, other ? &beside : NULL, y, rows / times, channels * times);
}

void norm_add_relu_gradient(
    int dtype, const void *x, Norm norm, const void *shortcut, const Norm *other, const void *y, const void *gradient,
    void *dx, void *d_shortcut, int64_t rows, int64_t channels, float *d_factor, float *d_bias, float *d_other) {
    int64_t times = rows_at_once(rows, channels);
    float own[3][WIDTH], own_other[3][WIDTH], sums[3][WIDTH];
    float *factor = accumulator(d_factor, times, sums[0]), *bias = accumulator(d_bias, times, sums[1]);
    float *other_factor = accumulator(d_other, times, sums[2]);
    norm = repeat_norm(norm, channels, times, own);
    Norm beside = other ? repeat_norm(*other, channels, times, own_other) : norm;
    OF_TYPE(
        norm_add_relu_gradient, x, norm, shortcut, other ? &beside : NULL, y, gradient, dx, d_shortcut, rows / times,
        channels * times, factor, bias, other_factor);
    gather(factor, channels, times, d_factor);
    gather(bias, channels, times, d_bias);
    gather(other_factor, channels, times, d_other);
}

void pool_image(
    int dtype, const void *x, Shape in, Norm norm, void *y, uint8_t *places, Shape out, int64_t top, int64_t left, float *best) {
    OF_TYPE(pool_image, x, in, norm, y, places, out, top, left, best);
}

void pool_image_gradient(
    int dtype, const void *x, Shape in, Norm norm, const void *gradient, const uint8_t *places, Shape out, int64_t top,
    int64_t left, float *sums, void *dx, float *d_factor, float *d_bias) {
    OF_TYPE(pool_image_gradient, x, in, norm, gradient, places, out, top, left, sums, dx, d_factor, d_bias);
}
