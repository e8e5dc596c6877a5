/* A convolution that normalises and activates its input and computes the statistics of its output, and its gradient.
   It works on a few images at a time, so that intermediate results stay in the cache. */
#include <stdlib.h>
#include <string.h>

#include "onednn.h"

enum { CHUNK_BYTES = 4 << 20, KERNELS_BYTES = 32 << 20, SUM_BLOCK = 1 << 16 };
enum { NORMED = 1, MEASURED = 2, FORKED = 4, NEEDS_INPUT = 8 };

typedef struct {
    const Call *call;
    Geometry geometry; /* of a whole batch */
    int64_t flags, per_chunk, chunks;
    Buffer *x, *y, *gradient, *dx, *beside;
    Norm norm, measured;
    char *kernel; /* in oneDNN's layout */
    char *kernels; /* gradients of all chunks */
    size_t kernel_bytes;
    float *sums; /* [chunks, 2, channels] */
    const char *error;
} Task;

static void set_geometry(Task *task, Buffer *x, Buffer *kernel, Buffer *y) {
    const int64_t *settings = settings_of(task->call);
    Geometry *g = &task->geometry;
    g->in = shape_of(x), g->out = shape_of(y), g->size = kernel->dims[0], g->dtype = x->dtype;
    g->stride = settings[0], g->before = settings[1], task->flags = settings[2];
}

/* Splits the batch into equal chunks, at least one per thread. A chunk fits in the cache, unless the gradients of the
   kernel, one per chunk, would then be too large. */
static void set_chunks(Task *task, int64_t kernel_bytes) {
    const Geometry *g = &task->geometry;
    int64_t image = (image_size(g->in) + image_size(g->out)) * item_size(g->dtype), n = g->in.images;
    int64_t most = n / num_threads(task->call);
    task->per_chunk = 1;
    for (int64_t divisor = 2; divisor <= most; divisor++)
        if (n % divisor == 0 && (divisor * image <= CHUNK_BYTES || n / task->per_chunk * kernel_bytes > KERNELS_BYTES))
            task->per_chunk = divisor;
    task->chunks = n / task->per_chunk;
}

static Geometry geometry_of_chunk(const Task *task) {
    Geometry own = task->geometry;
    own.in.images = own.out.images = task->per_chunk;
    return own;
}

static int64_t rows(Shape shape) { return shape.images * shape.height * shape.width; }

/* The images of a chunk, normalised and activated if NORMED. */
static void *input_of_chunk(Task *task, const Geometry *own, void *x) {
    if (!(task->flags & NORMED)) return x;
    void *normed = scratch(SCRATCH_INPUT, rows(own->in) * own->in.channels * item_size(own->dtype));
    if (normed) norm_relu(own->dtype, x, normed, rows(own->in), own->in.channels, task->norm);
    return normed;
}

static const char *forward_chunk(Task *task, int64_t chunk) {
    const Geometry own = geometry_of_chunk(task), *whole = &task->geometry;
    char *y = at(task->y, chunk * task->per_chunk * image_size(whole->out));
    void *x = input_of_chunk(task, &own, at(task->x, chunk * task->per_chunk * image_size(whole->in)));
    const Convolution *convolution = find_convolution(&own, FORWARD);
    if (!x || !convolution) return x ? "oneDNN has no such convolution" : "no memory";
    const char *error = convolve(convolution, x, task->kernel, y);
    if (error || !(task->flags & MEASURED)) return error;
    int64_t channels = own.out.channels;
    float *mean = task->sums + 2 * channels * chunk, *rest = scratch(SCRATCH_ROWS, 2 * channels * sizeof *rest);
    if (!rest) return "no memory";
    statistics(own.dtype, y, rows(own.out), channels, mean, mean + channels, rest);
    return NULL;
}

static void forward_work(void *data, int64_t chunk) {
    const char *error = forward_chunk(data, chunk);
    if (error) ((Task *)data)->error = error;
}

/* Mean and biased variance of the whole batch from those of the chunks. */
static void merge_chunks(const Task *task, float *mean, float *var) {
    int64_t channels = task->geometry.out.channels, count = 0, own = rows(geometry_of_chunk(task).out);
    memset(mean, 0, channels * sizeof *mean);
    memset(var, 0, channels * sizeof *var);
    for (int64_t chunk = 0; chunk < task->chunks; chunk++) {
        const float *sums = task->sums + 2 * channels * chunk;
        merge_statistics(mean, var, count, sums, sums + channels, own, channels);
        count += own;
    }
    for (int64_t c = 0; c < channels; c++) var[c] /= count;
}

/* Copies the kernel to new memory, in oneDNN's layout for this direction. */
static const char *take_kernel(Task *task, Direction direction, void *plain) {
    Geometry own = geometry_of_chunk(task);
    const Convolution *convolution = find_convolution(&own, direction);
    if (!convolution) return "oneDNN has no such convolution";
    if (posix_memalign((void **)&task->kernel, 64, kernel_bytes(convolution))) return "no memory";
    return reorder_kernel(convolution, plain, task->kernel);
}

/* x, kernel, mean, factor, bias (of x) -> y, mean, variance (of y). */
static const char *forward(Call *call) {
    Task task = {.call = call, .x = argument(call, 0), .y = result(call, 0), .norm = norm_at(call, 2)};
    set_geometry(&task, task.x, argument(call, 1), task.y);
    set_chunks(&task, 0);
    task.error = take_kernel(&task, FORWARD, argument(call, 1)->data);
    task.sums = malloc(task.chunks * 2 * task.geometry.out.channels * sizeof(float));
    if (!task.sums) task.error = "no memory";
    if (!task.error) parallel(call, task.chunks, forward_work, &task);
    if (!task.error && task.flags & MEASURED) merge_chunks(&task, result(call, 1)->data, result(call, 2)->data);
    free(task.kernel);
    free(task.sums);
    return task.error;
}

static const char *backward_chunk(Task *task, int64_t chunk) {
    const Geometry own = geometry_of_chunk(task), *whole = &task->geometry;
    int64_t first = chunk * task->per_chunk, channels = own.in.channels, size = rows(own.in) * channels;
    char *x = at(task->x, first * image_size(whole->in));
    char *gradient = at(task->gradient, first * image_size(whole->out));
    if (task->flags & MEASURED) {
        void *full = scratch(SCRATCH_GRADIENT, rows(own.out) * own.out.channels * item_size(own.dtype));
        if (!full) return "no memory";
        char *y = at(task->y, first * image_size(whole->out));
        norm_statistics_gradient(own.dtype, y, gradient, full, rows(own.out), own.out.channels, task->measured);
        gradient = full;
    }
    const Convolution *to_kernel = find_convolution(&own, TO_KERNEL), *to_input = find_convolution(&own, TO_INPUT);
    void *normed = input_of_chunk(task, &own, x);
    if (!to_kernel || !to_input || !normed) return normed ? "oneDNN has no such convolution" : "no memory";
    const char *error = convolve(to_kernel, normed, task->kernels + chunk * task->kernel_bytes, gradient);
    if (error || !(task->flags & NEEDS_INPUT)) return error;
    char *dx = at(task->dx, first * image_size(whole->in));
    error = convolve(to_input, dx, task->kernel, gradient);
    float *sums = task->sums + 2 * channels * chunk;
    if (task->flags & NORMED)
        norm_relu_gradient(own.dtype, x, dx, rows(own.in), channels, task->norm, sums, sums + channels);
    if (task->flags & FORKED) add_rows(own.dtype, at(task->beside, first * image_size(whole->in)), dx, size);
    return error;
}

static void backward_work(void *data, int64_t chunk) {
    const char *error = backward_chunk(data, chunk);
    if (error) ((Task *)data)->error = error;
}

/* A block of the kernel's gradient: the sum over the chunks, in their order. */
static void sum_work(void *data, int64_t block) {
    Task *task = data;
    int64_t size = task->kernel_bytes / sizeof(float), begin = block * SUM_BLOCK;
    float *total = (float *)task->kernels + begin;
    for (int64_t chunk = 1; chunk < task->chunks; chunk++)
        add_rows(
            XLA_FFI_DataType_F32, (float *)(task->kernels + chunk * task->kernel_bytes) + begin, total,
            size - begin < SUM_BLOCK ? size - begin : SUM_BLOCK);
}

static const char *backward_all(Task *task, Call *call) {
    const int64_t channels = task->geometry.in.channels;
    Geometry own = geometry_of_chunk(task);
    const Convolution *to_kernel = find_convolution(&own, TO_KERNEL);
    const char *error = task->flags & NEEDS_INPUT ? take_kernel(task, TO_INPUT, argument(call, 1)->data) : NULL;
    if (error || !to_kernel) return error ? error : "oneDNN has no such convolution";
    task->kernel_bytes = (kernel_bytes(to_kernel) + 63) / 64 * 64;
    task->sums = calloc(task->chunks * 2 * channels, sizeof(float));
    if (!task->sums || posix_memalign((void **)&task->kernels, 64, task->chunks * task->kernel_bytes))
        return "no memory";
    parallel(call, task->chunks, backward_work, task);
    if (task->error) return task->error;
    int64_t blocks = (task->kernel_bytes / sizeof(float) + SUM_BLOCK - 1) / SUM_BLOCK;
    if (task->chunks > 1) parallel(call, blocks, sum_work, task);
    for (int i = 0; i < 2; i++) {
        float *total = result(call, 1 + i)->data;
        if (!(task->flags & NORMED)) continue;
        memset(total, 0, channels * sizeof *total);
        for (int64_t chunk = 0; chunk < task->chunks; chunk++)
            add_rows(XLA_FFI_DataType_F32, task->sums + (2 * chunk + i) * channels, total, channels);
    }
    return reorder_kernel(to_kernel, task->kernels, result(call, 3)->data);
}

/* x, kernel, its norm (3), y, its gradient, norm of the statistics' gradient (3), gradient of x used elsewhere
   -> gradients of x, factor, bias, kernel. */
static const char *backward(Call *call) {
    Task task = {
        .call = call, .x = argument(call, 0), .y = argument(call, 5), .gradient = argument(call, 6),
        .beside = argument(call, 10), .dx = result(call, 0), .norm = norm_at(call, 2), .measured = norm_at(call, 7)};
    set_geometry(&task, task.x, argument(call, 1), task.gradient);
    Geometry *g = &task.geometry;
    set_chunks(&task, g->size * g->size * g->in.channels * g->out.channels * sizeof(float));
    const char *error = backward_all(&task, call);
    free(task.kernel);
    free(task.kernels);
    free(task.sums);
    return error;
}

XLA_FUNCTION(conv_forward, forward)
XLA_FUNCTION(conv_backward, backward)
