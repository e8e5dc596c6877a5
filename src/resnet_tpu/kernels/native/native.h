/* Shared by the files of this library. Images are NHWC, kernels HWIO float32, activations float32 or bfloat16.
   XLA's C interface is that of jaxlib's own header. */
#ifndef RESNET_TPU_KERNELS_NATIVE_H
#define RESNET_TPU_KERNELS_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#include "xla/ffi/api/c_api.h"

typedef XLA_FFI_CallFrame Call;
typedef XLA_FFI_Buffer Buffer;

/* Compiles a function for several kinds of processor; the loader picks the version for the one it runs on. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FAST
#endif

/* A function that XLA calls: answers its version query, or else runs `body`, which returns an error or NULL. */
#define XLA_FUNCTION(name, body)                                                                                       \
    XLA_FFI_Error *name(Call *call) {                                                                                  \
        if (answered(call)) return NULL;                                                                               \
        const char *error = body(call);                                                                                \
        return error ? failure(call, error) : NULL;                                                                    \
    }
int answered(Call *call);
XLA_FFI_Error *failure(const Call *call, const char *message);

/* Calls work(task, i) for i from 0 to count - 1, on XLA's threads and this one. */
int64_t num_threads(const Call *call);
void parallel(const Call *call, int64_t count, void (*work)(void *task, int64_t i), void *task);

/* Memory of this thread, 64-byte aligned, which the next call with the same slot reuses. NULL: out of memory. */
enum { SCRATCH_INPUT, SCRATCH_THINNED, SCRATCH_GRADIENT, SCRATCH_LIBRARY, SCRATCH_ROWS, NUM_SCRATCH };
void *scratch(int slot, size_t bytes);

/* A batch norm by channel: (x - mean) * factor + bias. */
typedef struct {
    const float *mean, *factor, *bias;
} Norm;

typedef struct {
    int64_t images, height, width, channels;
} Shape;

static inline Shape shape_of(const Buffer *buffer) {
    const int64_t *d = buffer->dims;
    Shape shape = {d[0], d[1], d[2], d[3]};
    return shape;
}

static inline int64_t image_size(Shape shape) { return shape.height * shape.width * shape.channels; }
/* The `settings` that `call` in __init__.py passes. */
static inline const int64_t *settings_of(const Call *call) { return ((XLA_FFI_Array *)call->attrs.attrs[0])->data; }

static inline size_t item_size(int dtype) { return dtype == XLA_FFI_DataType_F32 ? 4 : 2; }
static inline Buffer *argument(const Call *call, int i) { return call->args.args[i]; }
static inline Buffer *result(const Call *call, int i) { return call->rets.rets[i]; }
static inline char *at(const Buffer *buffer, int64_t items) {
    return (char *)buffer->data + items * item_size(buffer->dtype);
}
static inline Norm norm_at(const Call *call, int i) {
    Norm norm = {argument(call, i)->data, argument(call, i + 1)->data, argument(call, i + 2)->data};
    return norm;
}

/* Passes over `rows` rows of `channels` values of type `dtype`; see rows.c. Sums are added to existing values. */
void norm_relu(int dtype, const void *x, void *y, int64_t rows, int64_t channels, Norm norm);
void norm_relu_gradient(
    int dtype, const void *x, void *gradient, int64_t rows, int64_t channels, Norm norm, float *d_factor, float *d_bias);
/* out: the gradient, plus the part that comes through mean and variance: (y - mean) * factor + bias. */
void norm_statistics_gradient(
    int dtype, const void *y, const void *gradient, void *out, int64_t rows, int64_t channels, Norm norm);
void add_rows(int dtype, const void *x, void *y, int64_t size);
/* Mean, and sum of squares around it; own: memory for 2 * channels. */
void statistics(int dtype, const void *x, int64_t rows, int64_t channels, float *mean, float *square, float *own);
void merge_statistics(
    float *mean, float *square, int64_t count, const float *own_mean, const float *own_square, int64_t size,
    int64_t channels);
void norm_add_relu(
    int dtype, const void *x, Norm norm, const void *shortcut, const Norm *other, void *y, int64_t rows,
    int64_t channels);
void norm_add_relu_gradient(
    int dtype, const void *x, Norm norm, const void *shortcut, const Norm *other, const void *y, const void *gradient,
    void *dx, void *d_shortcut, int64_t rows, int64_t channels, float *d_factor, float *d_bias, float *d_other);
void pool_image(
    int dtype, const void *x, Shape in, Norm norm, void *y, uint8_t *places, Shape out, int64_t top, int64_t left,
    float *best);
void pool_image_gradient(
    int dtype, const void *x, Shape in, Norm norm, const void *gradient, const uint8_t *places, Shape out, int64_t top,
    int64_t left, float *sums, void *dx, float *d_factor, float *d_bias);

#endif
