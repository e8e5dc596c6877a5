/* Convolutions of oneDNN, on one thread each. */
#ifndef RESNET_TPU_ONEDNN_H
#define RESNET_TPU_ONEDNN_H

#include "native.h"

typedef struct {
    Shape in, out;
    int64_t size, stride, before; /* of the kernel; padding before the image, which determines the padding after it */
    int64_t dtype;
} Geometry;

typedef enum { FORWARD, TO_INPUT, TO_KERNEL } Direction;

/* A convolution or one of its gradients, compiled by oneDNN for one geometry, with the reordering of its kernel. */
typedef struct Convolution Convolution;

/* Whether oneDNN has the convolution of this geometry and its gradients. Creates none of them. */
int has_convolution(const Geometry *geometry);

/* The convolution for this geometry, created once. NULL: oneDNN has none. */
const Convolution *find_convolution(const Geometry *geometry, Direction direction);

/* Bytes of a kernel (or its gradient) in oneDNN's layout. */
size_t kernel_bytes(const Convolution *convolution);

/* Converts a kernel from HWIO float32 to that layout; for TO_KERNEL, a gradient back. Returns an error, or NULL. */
const char *reorder_kernel(const Convolution *convolution, void *from, void *to);

/* Computes input, kernel or output (named as in FORWARD), by direction, from the others. Returns an error, or NULL. */
const char *convolve(const Convolution *convolution, void *input, void *kernel, void *output);

#endif
