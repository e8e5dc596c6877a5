/* What XLA hands to a function that it calls: the part of its C interface (xla/ffi/api/c_api.h, version 0.3) used here.
   Its headers come with jaxlib, which is not there when this is compiled. Structs say their size: they only grow. */
#ifndef RESNET_TPU_FFI_H
#define RESNET_TPU_FFI_H

#include <stddef.h>
#include <stdint.h>

enum { FFI_FLOAT32 = 11, FFI_BFLOAT16 = 16 }; /* types */
enum { FFI_INTERNAL = 13 };                   /* kinds of errors */
enum { FFI_METADATA = 1, FFI_EXECUTE = 3 };   /* what a call is for */

typedef struct Extension {
    size_t struct_size;
    int type;
    struct Extension *next;
} Extension;

typedef struct {
    size_t struct_size;
    Extension *extension;
    int major, minor;
} Version;

typedef struct {
    Extension base;
    struct {
        size_t struct_size;
        Version version;
        uint32_t traits;
        int64_t state_type;
    } *metadata;
} MetadataExtension;

typedef struct {
    size_t struct_size;
    Extension *extension;
    int dtype;
    void *data;
    int64_t rank;
    const int64_t *dims;
} Buffer;

typedef struct {
    size_t struct_size;
    Extension *extension;
    int64_t size;
    int *types;
    Buffer **buffers;
} Buffers;

typedef struct {
    int dtype;
    size_t size;
    const int64_t *data;
} Numbers;

typedef struct {
    size_t struct_size;
    Extension *extension;
    int64_t size;
    int *types;
    void **names;
    Numbers **values;
} Attributes;

typedef struct {
    size_t struct_size;
    Extension *extension;
    const char *message;
    int code;
} ErrorArguments;

typedef struct {
    size_t struct_size;
    Extension *extension;
    void *context;
    void (*task)(void *);
    void *data;
} ScheduleArguments;

typedef struct {
    size_t struct_size;
    Extension *extension;
    void *context;
    int64_t *num_threads;
} NumThreadsArguments;

typedef struct {
    size_t struct_size;
    Extension *extension;
    Version version;
    const void *internal;
    void *(*error_create)(ErrorArguments *);
    void *others[10];
    void *(*schedule)(ScheduleArguments *);
    void *(*num_threads)(NumThreadsArguments *);
} Api;

typedef struct {
    size_t struct_size;
    Extension *extension;
    const Api *api;
    void *context;
    int stage;
    Buffers arguments, results;
    Attributes attributes;
} Call;

#endif
