/* Decodes the window of a JPEG with libjpeg-turbo and resizes it: the functions that Python calls.

   The pixels equal those of the plain path: preprocess.py without this library. Unusual and damaged files are refused,
   and left to the plain path. Every thread has its own `decoder`, which keeps nothing between calls but memory. */

#include "native.h"

#define INTERFACE 3 /* increase it with every change of these functions; __init__.py checks it */

#ifndef MOST_KEPT
#define MOST_KEPT (64 << 20) /* bytes: a larger buffer is freed after the call */
#endif
#define EXIF_OR_XMP (JPEG_APP0 + 1)
#define MARGIN 2 /* columns that chroma interpolation reads beyond the window */

static void refuse(j_common_ptr jpeg) { longjmp(((decoder *)jpeg->client_data)->refused, 1); }

static void refuse_warning(j_common_ptr jpeg, int level) {
    if (level < 0)
        refuse(jpeg);
}

/* Skips a segment of EXIF or XMP data, and notes that there is one. jpeg_save_markers would tell this as well, but for
   each segment it walks along all that it has saved. */
static boolean note_metadata(j_decompress_ptr jpeg) {
    struct jpeg_source_mgr *source = jpeg->src;
    if (source->bytes_in_buffer < 2)
        refuse((j_common_ptr)jpeg);
    long length = source->next_input_byte[0] << 8 | source->next_input_byte[1]; /* with these two bytes */
    source->skip_input_data(jpeg, length < 2 ? 2 : length);
    ((decoder *)jpeg->client_data)->has_metadata = 1;
    return TRUE;
}

static void release(buffer *b, size_t most) {
    if (b->size <= most)
        return;
    free(b->data);
    *b = (buffer){NULL, 0};
}

static void release_all(decoder *d, size_t most) {
    release(&d->huffman.data, most);
    release(&d->huffman.starts, most);
    release(&d->pixels, most);
    release(&d->floats, most);
}

/* Whether the pixels of this file are known to equal those of the plain path. */
static int is_usual(const struct jpeg_decompress_struct *jpeg) {
    const jpeg_component_info *c = jpeg->comp_info;
    if (jpeg->progressive_mode || jpeg->arith_code || jpeg->data_precision != 8 ||
        jpeg->comps_in_scan != jpeg->num_components || c[0].h_samp_factor > 2 || c[0].v_samp_factor > 2)
        return 0;
    if (jpeg->num_components == 1)
        return jpeg->jpeg_color_space == JCS_GRAYSCALE && c[0].h_samp_factor == 1 && c[0].v_samp_factor == 1;
    return jpeg->num_components == 3 && jpeg->jpeg_color_space == JCS_YCbCr && c[1].h_samp_factor == 1 &&
           c[1].v_samp_factor == 1 && c[2].h_samp_factor == 1 && c[2].v_samp_factor == 1;
}

/* Decodes rows y ... y + h of the *width columns from *left on, which include at least x ... x + w. */
static int decode(decoder *d, int y, int x, int h, int w, JDIMENSION *left, JDIMENSION *width) {
    j_decompress_ptr jpeg = &d->jpeg;
    JDIMENSION right = (JDIMENSION)(x + w + MARGIN);
    jpeg->out_color_space = JCS_RGB;
    jpeg->dct_method = JDCT_IFAST;
    jpeg_start_decompress(jpeg);
    *left = x > MARGIN ? (JDIMENSION)(x - MARGIN) : 0;
    *width = (right < jpeg->output_width ? right : jpeg->output_width) - *left;
    jpeg_crop_scanline(jpeg, left, width);
    if (!huffman_start(d, *left, *width) || !reserve(&d->pixels, (size_t)h * *width * 3))
        return 0;
    if (y > 0 && jpeg_skip_scanlines(jpeg, (JDIMENSION)y) != (JDIMENSION)y)
        return 0;
    for (JDIMENSION row = 0, done; row < (JDIMENSION)h; row += done) {
        JSAMPROW rows[4];
        JDIMENSION count = (JDIMENSION)h - row < 4 ? (JDIMENSION)h - row : 4;
        for (JDIMENSION k = 0; k < count; k++)
            rows[k] = (JSAMPROW)d->pixels.data + (size_t)(row + k) * *width * 3;
        done = jpeg_read_scanlines(jpeg, rows, count);
        if (!done)
            return 0;
    }
    return 1;
}

/* Memory for a thread; NULL if it cannot be allocated. */
decoder *decoder_new(void) {
    decoder *d = calloc(1, sizeof *d);
    if (d) {
        d->jpeg.err = jpeg_std_error(&d->errors);
        d->errors.error_exit = refuse;
        d->errors.emit_message = refuse_warning;
        d->jpeg.client_data = d;
    }
    return d;
}

void decoder_free(decoder *d) {
    release_all(d, 0);
    free(d);
}

int interface_version(void) { return INTERFACE; }

/* Begins a file: libjpeg reads everything before the pixels. False when it is unusual; jumps when it is damaged. */
static int open_jpeg(decoder *d, const uint8_t *encoded, size_t length) {
    jpeg_create_decompress(&d->jpeg); /* anew: else tables of the last file would replace missing ones */
    d->has_metadata = 0;
    jpeg_set_marker_processor(&d->jpeg, EXIF_OR_XMP, note_metadata);
    jpeg_mem_src(&d->jpeg, encoded, (unsigned long)length);
    jpeg_read_header(&d->jpeg, TRUE);
    return is_usual(&d->jpeg);
}

/* Whether `resize_jpeg` may accept a file, judged by what precedes the pixels; if so, also its facts: height, width,
   and whether there is EXIF or XMP data. */
int read_facts(decoder *d, const uint8_t *encoded, size_t length, int facts[3]) {
    volatile int done = 0;
    if (!setjmp(d->refused) && open_jpeg(d, encoded, length)) {
        facts[0] = (int)d->jpeg.image_height;
        facts[1] = (int)d->jpeg.image_width;
        facts[2] = d->has_metadata;
        done = 1;
    }
    jpeg_destroy_decompress(&d->jpeg);
    return done;
}

/* Fills `out` [size, size, 3] with the h x w pixels from `image` on, rows `stride` bytes apart. False: no memory. */
int resize_pixels(decoder *d, const uint8_t *image, ptrdiff_t stride, int h, int w, uint8_t *out, int size,
                  int mirrored, int method) {
    int done = resize(&d->floats, image, stride, h, w, out, size, mirrored, method);
    release_all(d, MOST_KEPT);
    return done;
}

/* Fills `out` [size, size, 3] with a window of a JPEG. False: the plain path must do it. */
int resize_jpeg(decoder *d, const uint8_t *encoded, size_t length, int y, int x, int h, int w, uint8_t *out, int size,
                int mirrored, int method) {
    JDIMENSION left, width;
    volatile int done = 0;
    if (!setjmp(d->refused)) {
        if (open_jpeg(d, encoded, length) && y >= 0 && x >= 0 && h > 0 && w > 0 &&
            (JDIMENSION)y + h <= d->jpeg.image_height && (JDIMENSION)x + w <= d->jpeg.image_width &&
            decode(d, y, x, h, w, &left, &width))
            done = resize(&d->floats, (uint8_t *)d->pixels.data + 3 * ((size_t)x - left), (ptrdiff_t)width * 3, h, w,
                          out, size, mirrored, method);
    }
    jpeg_destroy_decompress(&d->jpeg);
    release_all(d, MOST_KEPT);
    return done;
}
