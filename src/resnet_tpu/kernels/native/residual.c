/* The end of a residual block: relu(norm(branch) + shortcut), where a shortcut that is a projection is normalised too.
   Also the end of the stem: norm, ReLU, and a 3x3 max-pool with stride 2. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

enum { BLOCK_VALUES = 1 << 18 };

typedef struct {
    Call *call;
    int64_t rows, channels, block;
    int has_other;
    Norm norm, other;
    float *sums; /* [blocks, 3, channels] */
    const char *error;
} Work;

static Work work_of(Call *call) {
    Shape shape = shape_of(argument(call, 0));
    Work work = {.call = call, .rows = shape.images * shape.height * shape.width, .channels = shape.channels};
    work.block = (BLOCK_VALUES + shape.channels - 1) / shape.channels;
    work.has_other = settings_of(call)[0] != 0;
    work.norm = norm_at(call, 1), work.other = norm_at(call, 5);
    return work;
}

static int64_t count_blocks(const Work *work) { return (work->rows + work->block - 1) / work->block; }

static int64_t rows_of(const Work *work, int64_t block) {
    int64_t left = work->rows - block * work->block;
    return left < work->block ? left : work->block;
}

static void forward_work(void *data, int64_t block) {
    Work *work = data;
    const Call *call = work->call;
    int64_t first = block * work->block * work->channels;
    norm_add_relu(
        argument(call, 0)->dtype, at(argument(call, 0), first), work->norm, at(argument(call, 4), first),
        work->has_other ? &work->other : NULL, at(result(call, 0), first), rows_of(work, block), work->channels);
}

/* x, its norm (3), shortcut, its norm (3) -> y. */
static const char *forward(Call *call) {
    Work work = work_of(call);
    parallel(call, count_blocks(&work), forward_work, &work);
    return NULL;
}

static void backward_work(void *data, int64_t block) {
    Work *work = data;
    const Call *call = work->call;
    int64_t first = block * work->block * work->channels;
    float *sums = work->sums + 3 * work->channels * block;
    norm_add_relu_gradient(
        argument(call, 0)->dtype, at(argument(call, 0), first), work->norm, at(argument(call, 4), first),
        work->has_other ? &work->other : NULL, at(argument(call, 8), first), at(argument(call, 9), first),
        at(result(call, 0), first), at(result(call, 1), first), rows_of(work, block), work->channels, sums,
        sums + work->channels, sums + 2 * work->channels);
}

/* Adds up the sums of `parts` parts, each with `count` sums per channel, into `count` results from `first` on. */
static void total_up(Call *call, int first, int count, const float *sums, int64_t parts, int64_t channels) {
    for (int i = 0; i < count; i++) {
        float *total = result(call, first + i)->data;
        memset(total, 0, channels * sizeof *total);
        for (int64_t part = 0; part < parts; part++)
            add_rows(XLA_FFI_DataType_F32, sums + (part * count + i) * channels, total, channels);
    }
}

/* x, its norm (3), shortcut, its norm (3), y, its gradient -> gradients of x, shortcut, factor, bias, other factor. */
static const char *backward(Call *call) {
    Work work = work_of(call);
    int64_t blocks = count_blocks(&work);
    if (!(work.sums = calloc(blocks * 3 * work.channels, sizeof(float)))) return "no memory";
    parallel(call, blocks, backward_work, &work);
    total_up(call, 2, 3, work.sums, blocks, work.channels);
    free(work.sums);
    return NULL;
}

static void pool_work(void *data, int64_t image) {
    Work *work = data;
    const Call *call = work->call;
    const int64_t *before = settings_of(call);
    Shape in = shape_of(argument(call, 0)), out = shape_of(result(call, 0));
    int64_t to = image * image_size(out);
    float *best = scratch(SCRATCH_ROWS, in.channels * sizeof *best);
    if (!best) work->error = "no memory";
    else
        pool_image(
            argument(call, 0)->dtype, at(argument(call, 0), image * image_size(in)), in, work->norm,
            at(result(call, 0), to), (uint8_t *)result(call, 1)->data + to, out, before[0], before[0], best);
}

/* x, its norm (3) -> y, and the place in its window of each value of y. */
static const char *pool(Call *call) {
    Work work = {.call = call, .norm = norm_at(call, 1)};
    parallel(call, shape_of(argument(call, 0)).images, pool_work, &work);
    return work.error;
}

static void pool_backward_work(void *data, int64_t image) {
    Work *work = data;
    const Call *call = work->call;
    const int64_t *before = settings_of(call);
    Shape in = shape_of(argument(call, 0)), out = shape_of(argument(call, 4));
    int64_t from = image * image_size(in), to = image * image_size(out);
    float *wide = scratch(SCRATCH_GRADIENT, image_size(in) * sizeof *wide);
    float *sums = work->sums + 2 * in.channels * image;
    if (!wide) work->error = "no memory";
    else
        pool_image_gradient(
            argument(call, 0)->dtype, at(argument(call, 0), from), in, work->norm, at(argument(call, 4), to),
            (const uint8_t *)argument(call, 5)->data + to, out, before[0], before[0], wide, at(result(call, 0), from),
            sums, sums + in.channels);
}

/* x, its norm (3), gradient of y, places -> gradients of x, factor, bias. */
static const char *backward_pool(Call *call) {
    Shape in = shape_of(argument(call, 0));
    Work work = {.call = call, .norm = norm_at(call, 1)};
    if (!(work.sums = calloc(in.images * 2 * in.channels, sizeof(float)))) return "no memory";
    parallel(call, in.images, pool_backward_work, &work);
    total_up(call, 1, 2, work.sums, in.images, in.channels);
    free(work.sums);
    return work.error;
}

XLA_FUNCTION(residual_forward, forward)
XLA_FUNCTION(residual_backward, backward)
XLA_FUNCTION(pool_forward, pool)
XLA_FUNCTION(pool_backward, backward_pool)
