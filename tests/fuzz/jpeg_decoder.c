/* What libFuzzer calls: the decoder of windows on any bytes, with the sanitizers looking on.

   The last bytes of the input choose the window and the size, so that every JPEG is an input. */

#include "native.h"

#define MOST_PIXELS (1 << 20)
#define NUM_CHOICES 7

decoder *decoder_new(void);
void decoder_free(decoder *d);
int read_facts(decoder *d, const uint8_t *encoded, size_t length, int facts[3]);
int resize_jpeg(decoder *d, const uint8_t *encoded, size_t length, int y, int x, int h, int w, uint8_t *out, int size,
                int mirrored, int method);

int LLVMFuzzerTestOneInput(const uint8_t *encoded, size_t length) {
    static decoder *d; /* one for all, as a thread has it: nothing of one file may be left for the next */
    int facts[3] = {20, 20, 0};
    if (!d)
        d = decoder_new();
    if (length < NUM_CHOICES)
        return 0;
    const uint8_t *choice = encoded + length - NUM_CHOICES;
    int is_usual = read_facts(d, encoded, length, facts), height = facts[0], width = facts[1];
    if (is_usual && (height < 1 || width < 1))
        abort();
    if ((long)height * width > MOST_PIXELS)
        return 0;
    int y = choice[0] * height / 256, x = choice[1] * width / 256; /* inside, */
    int h = 1 + choice[2] * (height - y) / 256, w = 1 + choice[3] * (width - x) / 256;
    int is_beyond = choice[4] > 250; /* or now and then not */
    if (is_beyond)
        w = width - x + 1;
    int size = 1 + choice[5] % 40;
    uint8_t *out = malloc((size_t)size * size * 3); /* so large that the sanitizer sees a byte too many */
    int done = resize_jpeg(d, encoded, length, y, x, h, w, out, size, choice[6] & 1, choice[6] >> 1 & 1);
    if (done && (!is_usual || is_beyond))
        abort();
    free(out);
    return 0;
}
