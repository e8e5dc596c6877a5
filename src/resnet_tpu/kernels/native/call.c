/* The interface to XLA: version query, errors, threads, and the scratch memory of each thread. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "native.h"

int interface_version(void) { return 3; }

int answered(Call *call) {
    if (call->extension_start && call->extension_start->type == XLA_FFI_Extension_Metadata) {
        XLA_FFI_Metadata *asked = ((XLA_FFI_Metadata_Extension *)call->extension_start)->metadata;
        /* The version that this was compiled for; XLA checks whether it is compatible. */
        asked->api_version.major_version = XLA_FFI_API_MAJOR;
        asked->api_version.minor_version = XLA_FFI_API_MINOR;
        asked->traits = 0;
        return 1;
    }
    return call->stage != XLA_FFI_ExecutionStage_EXECUTE;
}

XLA_FFI_Error *failure(const Call *call, const char *message) {
    XLA_FFI_Error_Create_Args arguments = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE, .message = message, .errc = XLA_FFI_Error_Code_INTERNAL};
    return call->api->XLA_FFI_Error_Create(&arguments);
}

typedef struct {
    void (*work)(void *, int64_t);
    void *task;
    int64_t count;
    atomic_llong next, done;
    atomic_int holders;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
} Loop;

static void take_part(Loop *loop) {
    int64_t i, own = 0;
    while ((i = atomic_fetch_add(&loop->next, 1)) < loop->count) loop->work(loop->task, i), own++;
    if (own && atomic_fetch_add(&loop->done, own) + own == loop->count) {
        pthread_mutex_lock(&loop->mutex);
        pthread_cond_signal(&loop->ended);
        pthread_mutex_unlock(&loop->mutex);
    }
}

static void let_go(Loop *loop) {
    if (atomic_fetch_sub(&loop->holders, 1) == 1) {
        pthread_mutex_destroy(&loop->mutex);
        pthread_cond_destroy(&loop->ended);
        free(loop);
    }
}

static void help(void *data) {
    take_part(data);
    let_go(data);
}

int64_t num_threads(const Call *call) {
    int64_t threads = 1;
    XLA_FFI_ThreadPool_NumThreads_Args asked = {
        .struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, .ctx = call->ctx, .num_threads = &threads};
    return call->api->XLA_FFI_ThreadPool_NumThreads(&asked) || threads < 1 ? 1 : threads;
}

/* This thread works too, and waits only for items that others have begun, so waiting threads cannot block the pool. */
void parallel(const Call *call, int64_t count, void (*work)(void *, int64_t), void *task) {
    int64_t threads = num_threads(call);
    Loop *loop = count > 1 && threads > 1 ? malloc(sizeof *loop) : NULL;
    if (!loop) {
        for (int64_t i = 0; i < count; i++) work(task, i);
        return;
    }
    int helpers = (int)((threads < count ? threads : count) - 1);
    loop->work = work, loop->task = task, loop->count = count;
    atomic_init(&loop->next, 0);
    atomic_init(&loop->done, 0);
    atomic_init(&loop->holders, helpers + 1);
    pthread_mutex_init(&loop->mutex, NULL);
    pthread_cond_init(&loop->ended, NULL);
    for (int i = 0; i < helpers; i++) {
        XLA_FFI_ThreadPool_Schedule_Args helper = {
            .struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, .ctx = call->ctx, .task = help, .data = loop};
        if (call->api->XLA_FFI_ThreadPool_Schedule(&helper)) let_go(loop);
    }
    take_part(loop);
    pthread_mutex_lock(&loop->mutex);
    while (atomic_load(&loop->done) < count) pthread_cond_wait(&loop->ended, &loop->mutex);
    pthread_mutex_unlock(&loop->mutex);
    let_go(loop);
}

void *scratch(int slot, size_t bytes) {
    static __thread struct {
        void *memory;
        size_t bytes;
    } own[NUM_SCRATCH];
    if (own[slot].bytes < bytes) {
        free(own[slot].memory);
        own[slot].memory = NULL;
        own[slot].bytes = posix_memalign(&own[slot].memory, 64, bytes) ? 0 : bytes;
    }
    return own[slot].bytes < bytes ? NULL : own[slot].memory;
}
