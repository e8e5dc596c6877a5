/* oneDNN 3, loaded at run time: the part of its C interface that is used here. */
#include "onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Symbol versions that every glibc has: otherwise a library linked with glibc 2.34 would need 2.34 at run time. */
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__) && defined(__GLIBC__)
__asm__(".symver dlopen, dlopen@GLIBC_2.17");
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif

enum { CPU = 1, IN_ORDER = 1, BFLOAT16 = 2, FLOAT32 = 3, ANY = 1, NHWC = 22, HWIO = 28, TRAINING = 64, DIRECT = 1 };
enum { QUERY_WEIGHTS = 131, QUERY_DIFF_WEIGHTS = 132, QUERY_SCRATCHPAD = 136, USER_SCRATCHPAD = 1 };
enum { SRC = 1, DST = 17, WEIGHTS = 33, SCRATCHPAD = 80, DIFF_SRC = 129, DIFF_DST = 145, DIFF_WEIGHTS = 161 };

typedef void *Handle;
typedef const int64_t *Dims;
typedef struct {
    int name;
    Handle memory;
} Argument;

static struct {
    int (*engine_create)(Handle *, int, size_t);
    int (*stream_create)(Handle *, Handle, unsigned);
    int (*stream_wait)(Handle);
    int (*memory_desc_create_with_tag)(Handle *, int, Dims, int, int);
    int (*memory_desc_destroy)(Handle);
    size_t (*memory_desc_get_size)(Handle);
    int (*memory_create)(Handle *, Handle, Handle, void *);
    int (*memory_destroy)(Handle);
    int (*primitive_attr_create)(Handle *);
    int (*primitive_attr_set_scratchpad_mode)(Handle, int);
    int (*convolution_forward_primitive_desc_create)(
        Handle *, Handle, int, int, Handle, Handle, Handle, Handle, Dims, Dims, Dims, Dims, Handle);
    int (*convolution_backward_data_primitive_desc_create)(
        Handle *, Handle, int, Handle, Handle, Handle, Dims, Dims, Dims, Dims, Handle, Handle);
    int (*convolution_backward_weights_primitive_desc_create)(
        Handle *, Handle, int, Handle, Handle, Handle, Handle, Dims, Dims, Dims, Dims, Handle, Handle);
    int (*reorder_primitive_desc_create)(Handle *, Handle, Handle, Handle, Handle, Handle);
    Handle (*primitive_desc_query_md)(Handle, int, int);
    int (*primitive_desc_destroy)(Handle);
    int (*primitive_create)(Handle *, Handle);
    int (*primitive_execute)(Handle, Handle, int, const Argument *);
} dnnl;
static void (*set_num_threads)(int);
static Handle engine, attributes;

struct Convolution {
    Geometry geometry;
    Direction direction;
    int is_thinned; /* whether oneDNN is given only the pixels of the input that the stride would keep */
    Handle primitive, reorder;
    Handle input, kernel, output, plain, scratchpad, reorder_scratchpad; /* descriptions of memory */
    const Convolution *next;
};

static const char *const names[] = {
    "engine_create", "stream_create", "stream_wait", "memory_desc_create_with_tag", "memory_desc_destroy",
    "memory_desc_get_size", "memory_create", "memory_destroy", "primitive_attr_create",
    "primitive_attr_set_scratchpad_mode", "convolution_forward_primitive_desc_create",
    "convolution_backward_data_primitive_desc_create", "convolution_backward_weights_primitive_desc_create",
    "reorder_primitive_desc_create", "primitive_desc_query_md", "primitive_desc_destroy", "primitive_create",
    "primitive_execute",
};

static int load(const char *path) {
    Handle library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0;
    void **functions = (void **)&dnnl;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[80] = "dnnl_";
        if (!(functions[i] = dlsym(library, strcat(name, names[i])))) return 0;
    }
    const int *(*version)(void) = (const int *(*)(void))dlsym(library, "dnnl_version");
    if (!version || *version() != 3) return 0;
    set_num_threads = (void (*)(int))dlsym(library, "omp_set_num_threads");
    return !dnnl.engine_create(&engine, CPU, 0) && !dnnl.primitive_attr_create(&attributes) &&
           !dnnl.primitive_attr_set_scratchpad_mode(attributes, USER_SCRATCHPAD);
}

/* The stream of this thread. oneDNN's own threads are not used: `parallel` gives each of XLA's threads a part. */
static Handle own_stream(void) {
    static __thread Handle stream;
    if (!stream) {
        if (set_num_threads) set_num_threads(1);
        if (dnnl.stream_create(&stream, engine, IN_ORDER)) stream = NULL;
    }
    return stream;
}

static Handle describe(const int64_t dims[4], int type, int tag) {
    Handle described;
    return dnnl.memory_desc_create_with_tag(&described, 4, dims, type, tag) ? NULL : described;
}

/* oneDNN 3.2 writes past the end of its scratchpad in the kernel's gradient of a strided 1x1 convolution whose channels
   do not fill a vector (https://github.com/uxlfoundation/oneDNN/issues/6035, reported for 3.12). It is therefore given
   such convolutions without the stride. */
static int needs_thinning(const Geometry *g, Direction direction) {
    return direction == TO_KERNEL && g->size == 1 && g->stride > 1 && g->in.channels < 16;
}

/* Copies the pixels that a 1x1 kernel with the stride reads. */
static void thin(const Geometry *g, const char *from, char *to) {
    size_t pixel = g->in.channels * item_size(g->dtype);
    for (int64_t image = 0; image < g->in.images; image++)
        for (int64_t h = 0; h < g->out.height; h++)
            for (int64_t w = 0; w < g->out.width; w++, to += pixel)
                memcpy(to, from + ((image * g->in.height + h * g->stride) * g->in.width + w * g->stride) * pixel, pixel);
}

/* Describes the input and output, and asks oneDNN for the operation. */
static int choose(Convolution *made, Handle *chosen) {
    Geometry own = made->geometry;
    const Geometry *g = &own;
    made->is_thinned = needs_thinning(g, made->direction);
    if (made->is_thinned) own.in.height = own.out.height, own.in.width = own.out.width, own.stride = 1;
    int type = g->dtype == XLA_FFI_DataType_F32 ? FLOAT32 : BFLOAT16;
    int64_t in[4] = {g->in.images, g->in.channels, g->in.height, g->in.width};
    int64_t out[4] = {g->out.images, g->out.channels, g->out.height, g->out.width};
    int64_t kernel[4] = {g->out.channels, g->in.channels, g->size, g->size};
    int64_t stride[2] = {g->stride, g->stride}, dilation[2] = {0, 0}, before[2] = {g->before, g->before};
    int64_t after[2] = {
        (out[2] - 1) * g->stride + g->size - in[2] - g->before, (out[3] - 1) * g->stride + g->size - in[3] - g->before};
    made->input = describe(in, type, NHWC), made->output = describe(out, type, NHWC);
    made->plain = describe(kernel, FLOAT32, HWIO);
    Handle any = describe(kernel, type, ANY), wide = describe(kernel, FLOAT32, ANY), forward = NULL;
    int failed = !made->input || !made->output || !made->plain || !any || !wide || !own_stream() ||
                 dnnl.convolution_forward_primitive_desc_create(
                     &forward, engine, TRAINING, DIRECT, made->input, any, NULL, made->output, stride, dilation, before,
                     after, attributes);
    if (!failed && made->direction == FORWARD) *chosen = forward;
    else if (!failed && made->direction == TO_INPUT)
        failed = dnnl.convolution_backward_data_primitive_desc_create(
            chosen, engine, DIRECT, made->input, any, made->output, stride, dilation, before, after, forward,
            attributes);
    else if (!failed)
        failed = dnnl.convolution_backward_weights_primitive_desc_create(
            chosen, engine, DIRECT, made->input, wide, NULL, made->output, stride, dilation, before, after, forward,
            attributes);
    if (made->direction != FORWARD) dnnl.primitive_desc_destroy(forward);
    dnnl.memory_desc_destroy(any);
    dnnl.memory_desc_destroy(wide);
    return !failed;
}

static int make(Convolution *made) {
    Handle chosen = NULL, reordering;
    if (!choose(made, &chosen)) return 0;
    int to_kernel = made->direction == TO_KERNEL;
    made->kernel = dnnl.primitive_desc_query_md(chosen, to_kernel ? QUERY_DIFF_WEIGHTS : QUERY_WEIGHTS, 0);
    made->scratchpad = dnnl.primitive_desc_query_md(chosen, QUERY_SCRATCHPAD, 0);
    Handle from = to_kernel ? made->kernel : made->plain, to = to_kernel ? made->plain : made->kernel;
    if (dnnl.reorder_primitive_desc_create(&reordering, from, engine, to, engine, attributes)) return 0;
    made->reorder_scratchpad = dnnl.primitive_desc_query_md(reordering, QUERY_SCRATCHPAD, 0);
    return !dnnl.primitive_create(&made->primitive, chosen) && !dnnl.primitive_create(&made->reorder, reordering);
}

int has_convolution(const Geometry *geometry) {
    /* oneDNN 3.2 would divide by a size that has overflowed */
    int has_all = image_size(geometry->in) <= INT32_MAX && image_size(geometry->out) <= INT32_MAX;
    for (Direction direction = FORWARD; has_all && direction <= TO_KERNEL; direction++) {
        Convolution asked = {.geometry = *geometry, .direction = direction};
        Handle chosen = NULL;
        has_all = choose(&asked, &chosen);
        dnnl.primitive_desc_destroy(chosen);
        dnnl.memory_desc_destroy(asked.input);
        dnnl.memory_desc_destroy(asked.output);
        dnnl.memory_desc_destroy(asked.plain);
    }
    return has_all;
}

const Convolution *find_convolution(const Geometry *geometry, Direction direction) {
    static const Convolution *first;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    const Convolution *found = first;
    while (found && (found->direction != direction || memcmp(&found->geometry, geometry, sizeof *geometry)))
        found = found->next;
    if (!found) {
        Convolution *made = calloc(1, sizeof *made);
        if (made) {
            memcpy(&made->geometry, geometry, sizeof *geometry);
            made->direction = direction;
            if (make(made)) {
                made->next = first;
                found = first = made;
            }
        }
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

size_t kernel_bytes(const Convolution *convolution) { return dnnl.memory_desc_get_size(convolution->kernel); }

static const char *execute(
    Handle primitive, const int *names, int count, const Handle *descriptions, void *const *data, Handle scratchpad) {
    Argument arguments[4];
    int made = 0, failed = 0;
    Handle stream = own_stream();
    size_t bytes = dnnl.memory_desc_get_size(scratchpad);
    void *own = bytes ? scratch(SCRATCH_LIBRARY, bytes) : NULL;
    if (bytes && !own) return "no memory";
    for (; made < count && !failed; made++) {
        arguments[made].name = names[made];
        failed = dnnl.memory_create(&arguments[made].memory, descriptions[made], engine, data[made]);
    }
    if (bytes && !failed) {
        arguments[made].name = SCRATCHPAD;
        failed = dnnl.memory_create(&arguments[made++].memory, scratchpad, engine, own);
    }
    failed = failed || !stream || dnnl.primitive_execute(primitive, stream, made, arguments) || dnnl.stream_wait(stream);
    while (made--) dnnl.memory_destroy(arguments[made].memory);
    return failed ? "oneDNN failed" : NULL;
}

const char *reorder_kernel(const Convolution *convolution, void *from, void *to) {
    static const int names[] = {SRC, DST};
    int back = convolution->direction == TO_KERNEL;
    Handle plain = convolution->plain, own = convolution->kernel;
    const Handle descriptions[] = {back ? own : plain, back ? plain : own};
    void *const data[] = {from, to};
    return execute(convolution->reorder, names, 2, descriptions, data, convolution->reorder_scratchpad);
}

const char *convolve(const Convolution *convolution, void *input, void *kernel, void *output) {
    static const int names[][3] = {{SRC, WEIGHTS, DST}, {DIFF_SRC, WEIGHTS, DIFF_DST}, {SRC, DIFF_WEIGHTS, DIFF_DST}};
    const Handle descriptions[] = {convolution->input, convolution->kernel, convolution->output};
    if (convolution->is_thinned) {
        char *thinned = scratch(SCRATCH_THINNED, dnnl.memory_desc_get_size(convolution->input));
        if (!thinned) return "no memory";
        thin(&convolution->geometry, input, thinned);
        input = thinned;
    }
    void *const data[] = {input, kernel, output};
    return execute(
        convolution->primitive, names[convolution->direction], 3, descriptions, data, convolution->scratchpad);
}

/* Loads oneDNN from `path`, once. Returns whether it has convolutions of float32 (bit 0) and of bfloat16 (bit 1). */
int load_onednn(const char *path) {
    static int able;
    if (able || !load(path)) return able; /* streams and convolutions are those of the first engine */
    for (int i = 0; i < 2; i++) {
        Geometry small;
        memset(&small, 0, sizeof small);
        small.in = small.out = (Shape){1, 8, 8, 16};
        small.size = 3, small.stride = 1, small.before = 1;
        small.dtype = i ? XLA_FFI_DataType_BF16 : XLA_FFI_DataType_F32;
        able |= has_convolution(&small) << i;
    }
    return able;
}
