/* Passes over activations, each over memory once: batch norm with what stands beside it, and its gradients.

   In and out are float32 or bfloat16; what is computed and summed is float32. */
#include <string.h>

#include "native.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH _Pragma("GCC ivdep") /* no value depends on one of another channel */

enum { NOWHERE = 255 }; /* of a maximum that the ReLU cut: no gradient goes back */

static inline float from_bfloat16(uint16_t bits) {
    union {
        uint32_t bits;
        float value;
    } wide = {(uint32_t)bits << 16};
    return wide.value;
}

/* To the nearest, ties to even; not a number stays that. */
static inline uint16_t to_bfloat16(float value) {
    union {
        float value;
        uint32_t bits;
    } wide = {value};
    uint32_t rounded = (wide.bits + 0x7fff + ((wide.bits >> 16) & 1)) >> 16;
    return value != value ? 0x7fc0 : (uint16_t)rounded;
}

/* Two sets of rows into one: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm", 1979. */
void merge_statistics(
    float *mean, float *square, int64_t count, const float *own_mean, const float *own_square, int64_t size,
    int64_t channels) {
    float share = (float)size / (count + size), weight = share * count;
    for (int64_t c = 0; c < channels; c++) {
        float difference = own_mean[c] - mean[c];
        mean[c] += difference * share;
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

void norm_relu(int dtype, const void *x, void *y, int64_t rows, int64_t channels, Norm norm) {
    OF_TYPE(norm_relu, x, y, rows, channels, norm);
}

void norm_relu_gradient(
    int dtype, const void *x, void *gradient, int64_t rows, int64_t channels, Norm norm, float *d_factor, float *d_bias) {
    OF_TYPE(norm_relu_gradient, x, gradient, rows, channels, norm, d_factor, d_bias);
}

void norm_statistics_gradient(
    int dtype, const void *y, const void *gradient, void *out, int64_t rows, int64_t channels, Norm norm) {
    OF_TYPE(norm_statistics_gradient, y, gradient, out, rows, channels, norm);
}

void add_rows(int dtype, const void *x, void *y, int64_t size) { OF_TYPE(add_rows, x, y, size); }

void statistics(int dtype, const void *x, int64_t rows, int64_t channels, float *mean, float *square, float *own) {
    OF_TYPE(statistics, x, rows, channels, mean, square, own);
}

void norm_add_relu(
    int dtype, const void *x, Norm norm, const void *shortcut, const Norm *other, void *y, int64_t rows, int64_t channels) {
    OF_TYPE(norm_add_relu, x, norm, shortcut, other, y, rows, channels);
}

void norm_add_relu_gradient(
    int dtype, const void *x, Norm norm, const void *shortcut, const Norm *other, const void *y, const void *gradient,
    void *dx, void *d_shortcut, int64_t rows, int64_t channels, float *d_factor, float *d_bias, float *d_other) {
    OF_TYPE(
        norm_add_relu_gradient, x, norm, shortcut, other, y, gradient, dx, d_shortcut, rows, channels, d_factor, d_bias,
        d_other);
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
