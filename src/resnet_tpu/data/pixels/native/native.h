/* Declarations that the parts of the library share. */

#ifndef RESNET_TPU_NATIVE_H
#define RESNET_TPU_NATIVE_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

/* not with clang: there the function that chooses the variant has a name other than the one called */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define VECTORISED __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef VECTORISED
#define VECTORISED
#endif

typedef struct { /* memory that is reused */
    void *data;
    size_t size;
} buffer;

/* Makes room for `size` bytes; the old content may be lost. False if memory cannot be allocated. */
static inline int reserve(buffer *b, size_t size) {
    if (b->size >= size)
        return 1;
    free(b->data);
    b->data = malloc(size);
    b->size = b->data ? size : 0;
    return b->data != NULL;
}

#define LOOK_BITS 11 /* bits seen by one look-up; with 10 and 12, photos took 3 % longer */

typedef struct { /* what the next bits mean: one symbol and the number after it, or two such pairs */
    uint8_t length, steps;             /* bits, and steps along the block, of all; length 0: too long for the table */
    uint8_t first_length, first_steps; /* of the first symbol; if too long: bits of its code, 0 when unknown */
    int16_t first_value, second_value; /* the numbers; if too long: the symbol, if known */
} entry;

typedef struct {
    uint8_t lengths[17], symbols[256]; /* as in JHUFF_TBL: how many codes of each length, and what they stand for */
    int end[17], offset[17]; /* per length: one more than the last code; from a code to its place among the symbols */
    entry entries[1 << LOOK_BITS];
} code_table;

typedef struct {
    code_table dc_tables[NUM_HUFF_TBLS], ac_tables[NUM_HUFF_TBLS];
    const code_table *dc[MAX_COMPS_IN_SCAN], *ac[MAX_COMPS_IN_SCAN];
    buffer data;   /* the coded data, without stuffing and markers */
    buffer starts; /* size_t: where in `data` each interval between restarts begins; then the end of the last */
    size_t interval, intervals;
    unsigned to_restart;                   /* MCUs until the next restart */
    int column, first_column, last_column; /* of MCUs: the current one, and the first and last of the window */
    int last_dc[MAX_COMPS_IN_SCAN];
    uint64_t bits; /* the next ones, from the highest on */
    int count;     /* how many of them are valid */
    const uint8_t *next;
} huffman;

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf refused;
    int has_metadata; /* whether EXIF or XMP data precede the pixels */
    huffman huffman;
    buffer pixels; /* of the decoded window */
    buffer floats; /* of a resize */
} decoder;

enum { BICUBIC, BILINEAR };

int resize(buffer *memory, const uint8_t *image, ptrdiff_t stride, int h, int w, uint8_t *out, int size, int mirrored,
           int method);
int huffman_start(decoder *d, JDIMENSION left, JDIMENSION width);

#endif
