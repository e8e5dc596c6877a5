/* Huffman decoding of baseline JPEGs in one scan, faster than libjpeg-turbo's.

   It replaces libjpeg's `decode_mcu` for a file in memory. One look-up gives up to two codes together with the numbers
   after them, and blocks outside the window are read but not kept. */

#include "native.h"

#include <jpegint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "refill() reads numbers of 8 bytes from the lowest on"
#endif

#define MOST_IN_MCU 2048 /* bytes: 6 blocks of 64 codes of up to 16 bits with 15 bits after each, and a look ahead */
#define END_OF_BLOCK 128 /* as a number of steps along the block */
#define RUN_OF_16 0xF0

/* Places in a block along the zigzag. A step beyond the end leads to the last place, and writes a zero there. */
static const uint8_t places[64 + 16 + END_OF_BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,
    7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46,
    53, 60, 61, 54, 47, 55, 62, [63 ... 63 + 16 + END_OF_BLOCK] = 63};

/* The entry of a symbol whose code has `length` bits and is followed by `after`, of which `spare` bits are known. */
static inline entry make_entry(int symbol, int is_dc, int length, int after, int spare) {
    int size = is_dc ? symbol : symbol & 15;
    if (size > spare)
        return (entry){.first_length = (uint8_t)length, .first_value = (int16_t)symbol};
    int steps = is_dc || size || symbol == RUN_OF_16 ? (symbol >> 4) + 1 : END_OF_BLOCK;
    int bits = after >> (spare - size), value = size && bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
    length += size;
    return (entry){(uint8_t)length, (uint8_t)steps, (uint8_t)length, (uint8_t)steps, (int16_t)value, 0};
}

/* Fills the table of a code; false for a code that libjpeg would not accept. */
static int make_table(code_table *table, const JHUFF_TBL *source, int is_dc) {
    if (!memcmp(table->lengths, source->bits, sizeof table->lengths) &&
        !memcmp(table->symbols, source->huffval, sizeof table->symbols))
        return 1; /* the same as in the last file: most encoders use the same codes for all files */
    entry single[1 << LOOK_BITS] = {{0}};
    int code = 0, first = 0;
    table->lengths[0] = 1; /* no real code has this: marks the table as unfinished */
    memcpy(table->symbols, source->huffval, sizeof table->symbols);
    for (int length = 1; length <= 16; length++, code <<= 1) {
        int count = source->bits[length], spare = LOOK_BITS - length;
        if (first + count > 256 || code + count > 1 << length)
            return 0;
        table->offset[length] = first - code;
        table->end[length] = code + count;
        for (int i = 0; i < count; i++, code++, first++) {
            int symbol = source->huffval[first];
            if (is_dc && symbol > 15)
                return 0;
            for (int after = 0; spare >= 0 && after < 1 << spare; after++)
                single[code << spare | after] = make_entry(symbol, is_dc, length, after, spare);
        }
    }
    for (int i = 0; i < 1 << LOOK_BITS; i++) { /* two symbols in one entry, wherever both fit */
        entry e = single[i], next = single[i << e.length & ((1 << LOOK_BITS) - 1)];
        if (!is_dc && e.length && e.steps < END_OF_BLOCK && next.length && e.length + next.length <= LOOK_BITS) {
            e.length += next.length;
            e.steps += next.steps;
            e.second_value = next.first_value;
        }
        table->entries[i] = e;
    }
    memcpy(table->lengths, source->bits, sizeof table->lengths);
    return 1;
}

typedef struct { /* as in `huffman`, small enough for registers */
    uint64_t bits;
    int count;
    const uint8_t *next;
} reader;

static inline void refill(reader *r) {
    uint64_t more;
    memcpy(&more, r->next, sizeof more);
    r->bits |= __builtin_bswap64(more) >> r->count;
    r->next += (63 - r->count) >> 3;
    r->count |= 56;
}

static inline void drop(reader *r, int count) {
    r->bits <<= count;
    r->count -= count;
}

/* The entry for a code that, with its number, is too long for the table; its length is 0 for an invalid code. */
static __attribute__((noinline)) entry look_further(uint64_t bits, const code_table *table, entry known, int is_dc) {
    int length = known.first_length, symbol = known.first_value;
    if (!length) {
        for (length = LOOK_BITS + 1; length <= 16 && (int)(bits >> (64 - length)) >= table->end[length];)
            length++;
        if (length > 16)
            return (entry){0};
        symbol = table->symbols[((int)(bits >> (64 - length)) + table->offset[length]) & 255];
    }
    return make_entry(symbol, is_dc, length, (int)(bits << length >> (64 - 15)), 15);
}

/* Reads a block, into `block` if it is kept; false when the block is invalid. */
static inline int read_block(reader *r, const code_table *dc, const code_table *ac, int *last_dc, JCOEF *block,
                             int is_kept) {
    refill(r);
    entry e = dc->entries[r->bits >> (64 - LOOK_BITS)];
    if (!e.length && !(e = look_further(r->bits, dc, e, 1)).length)
        return 0;
    drop(r, e.length);
    *last_dc += e.first_value;
    if (*last_dc != (int16_t)*last_dc)
        return 0;
    if (is_kept)
        block[0] = (JCOEF)*last_dc;
    int k = 0; /* the last place that has been read */
    uint64_t bits;
    do {
        refill(r);
        for (int i = 0; i < 3; i++) { /* 3 look-ups, or 2 and a long code, use no more bits than there are */
            bits = r->bits;
            e = ac->entries[bits >> (64 - LOOK_BITS)];
            if (__builtin_expect(!e.length, 0)) {
                if (!(e = look_further(bits, ac, e, 0)).length)
                    return 0;
                i = 2;
            }
            drop(r, e.length);
            if (is_kept) {
                block[places[k + e.steps]] = e.second_value; /* overwritten at once if there is only one */
                block[places[k + e.first_steps]] = e.first_value;
            }
            k += e.steps;
            if (k >= 63)
                break;
        }
    } while (k < 63);
    if (k == 63 || (k >= END_OF_BLOCK && k < END_OF_BLOCK + 63))
        return 1;
    if (k - e.steps + e.first_steps != 63)
        return 0;
    r->bits = bits << e.first_length; /* the first symbol filled the block: the second belongs to the next */
    r->count += e.length - e.first_length;
    return 1;
}

/* Moves to the next interval; false when there is none. */
static int restart(huffman *h, j_decompress_ptr jpeg) {
    if (++h->interval >= h->intervals)
        return 0;
    h->bits = 0, h->count = 0, h->next = (const uint8_t *)h->data.data + ((const size_t *)h->starts.data)[h->interval];
    h->to_restart = jpeg->restart_interval - 1; /* the next MCU is the first of the interval */
    memset(h->last_dc, 0, sizeof h->last_dc);
    return 1;
}

static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    huffman *h = &((decoder *)jpeg->client_data)->huffman;
    int is_kept = blocks && h->column >= h->first_column && h->column <= h->last_column;
    int is_right = !jpeg->restart_interval || h->to_restart-- || restart(h, jpeg);
    reader r = {h->bits, h->count, h->next};
    for (int i = 0; i < jpeg->blocks_in_MCU && is_right; i++) {
        int c = jpeg->MCU_membership[i];
        is_right = is_kept ? read_block(&r, h->dc[c], h->ac[c], &h->last_dc[c], blocks[i][0], 1)
                           : read_block(&r, h->dc[c], h->ac[c], &h->last_dc[c], NULL, 0);
    }
    /* The bits used so far end `count` bits before `next`. */
    size_t place = (size_t)(r.next - (const uint8_t *)h->data.data) * 8 - (size_t)r.count;
    if (!is_right || place > ((const size_t *)h->starts.data)[h->interval + 1] * 8)
        jpeg->err->error_exit((j_common_ptr)jpeg);
    h->bits = r.bits, h->count = r.count, h->next = r.next;
    h->column = h->column + 1 < (int)jpeg->MCUs_per_row ? h->column + 1 : 0;
    return TRUE;
}

/* Copies the coded data without the markers and without the zeros stuffed in after every 0xFF.

   False if the data do not end with the image, restarts are out of order or missing, or there is no memory. */
static int unstuff(huffman *h, const uint8_t *from, size_t length, size_t intervals) {
    const uint8_t *end = from + length, *mark;
    if (intervals > length || !reserve(&h->data, length + MOST_IN_MCU) ||
        !reserve(&h->starts, (intervals + 1) * sizeof(size_t)))
        return 0;
    uint8_t *to = h->data.data;
    size_t *starts = h->starts.data, found = 0;
    for (starts[0] = 0;; from = mark + 2) {
        mark = memchr(from, 0xFF, (size_t)(end - from));
        if (!mark || mark + 1 == end)
            return 0;
        memcpy(to, from, (size_t)(mark - from));
        to += mark - from;
        if (mark[1] == 0) {
            *to++ = 0xFF;
            continue;
        }
        starts[++found] = (size_t)(to - (uint8_t *)h->data.data);
        if (mark[1] == JPEG_EOI || found == intervals || mark[1] != JPEG_RST0 + ((found - 1) & 7))
            break;
    }
    memset(to, 0, MOST_IN_MCU);
    h->intervals = found;
    return mark[1] == JPEG_EOI && found == intervals;
}

/* Lets `decode_mcu` decode the file whose header libjpeg has read; false when the file is unusual. */
int huffman_start(decoder *d, JDIMENSION left, JDIMENSION width) {
    huffman *h = &d->huffman;
    j_decompress_ptr jpeg = &d->jpeg;
    int mcu_width = jpeg->num_components == 1 ? DCTSIZE : DCTSIZE * jpeg->max_h_samp_factor;
    size_t mcus = (size_t)jpeg->MCUs_per_row * jpeg->MCU_rows_in_scan, each = jpeg->restart_interval;
    if (!unstuff(h, jpeg->src->next_input_byte, jpeg->src->bytes_in_buffer, each ? (mcus + each - 1) / each : 1))
        return 0;
    for (int i = 0; i < jpeg->comps_in_scan; i++) {
        int dc = jpeg->cur_comp_info[i]->dc_tbl_no & 3, ac = jpeg->cur_comp_info[i]->ac_tbl_no & 3;
        h->dc[i] = &h->dc_tables[dc], h->ac[i] = &h->ac_tables[ac], h->last_dc[i] = 0;
        if (!make_table(&h->dc_tables[dc], jpeg->dc_huff_tbl_ptrs[dc], 1) ||
            !make_table(&h->ac_tables[ac], jpeg->ac_huff_tbl_ptrs[ac], 0))
            return 0;
    }
    h->bits = 0, h->count = 0, h->next = h->data.data, h->interval = 0, h->to_restart = jpeg->restart_interval;
    h->column = 0, h->first_column = (int)left / mcu_width, h->last_column = (int)(left + width - 1) / mcu_width;
    jpeg->entropy->decode_mcu = decode_mcu;
    return 1;
}
