/* Convolutions of oneDNN, on one thread each. */
#ifndef RESNET_TPU_ONEDNN_H
#define RESNET_TPU_ONEDNN_H

#include "native.h"

typedef struct {
    Shape in, out;
    int64_t size, stride, before; /* of the kernel; padding before the image, that after it follows */
    int64_t dtype;
} Geometry;

typedef enum { FORWARD, TO_INPUT, TO_KERNEL } Direction;

/* A convolution or one of its gradients, compiled by oneDNN for one geometry, with the reordering of its kernel. */
typedef struct Convolution Convolution;

/* Whether oneDNN has the convolution of this geometry and its gradients. Makes none of them. */
int has_convolution(const Geometry *geometry);

/* The one for this geometry, made once. NULL: oneDNN has none. */
const Convolution *find_convolution(const Geometry *geometry, Direction direction);

/* Bytes of a kernel (or its gradient) as oneDNN wants to have it. */
size_t kernel_bytes(const Convolution *convolution);

/* Kernels, HWIO float32, into that form; of gradients (TO_KERNEL) back. An error, or NULL. */
const char *reorder_kernel(const Convolution *convolution, void *from, void *to);

/* input, kernel and output of the direction FORWARD; what the direction asks for is written. An error, or NULL. */
const char *convolve(const Convolution *convolution, void *input, void *kernel, void *output);

#endif
