/* The passes of rows.c for one type of activations, VALUE. LOAD and STORE convert it to and from float. */

FAST static void NAME(norm_relu)(const VALUE *x, VALUE *y, int64_t rows, int64_t channels, Norm norm) {
    for (int64_t r = 0; r < rows; r++)
        EACH for (int64_t c = 0; c < channels; c++) {
            float value = (LOAD(x[r * channels + c]) - norm.mean[c]) * norm.factor[c] + norm.bias[c];
            y[r * channels + c] = STORE(value < 0 ? 0 : value);
        }
}

FAST static void NAME(norm_relu_gradient)(
    const VALUE *x, VALUE *gradient, int64_t rows, int64_t channels, Norm norm, float *d_factor, float *d_bias) {
    for (int64_t r = 0; r < rows; r++)
        EACH for (int64_t c = 0; c < channels; c++) {
            float centred = LOAD(x[r * channels + c]) - norm.mean[c];
            float value = LOAD(gradient[r * channels + c]);
            value = centred * norm.factor[c] + norm.bias[c] > 0 ? value : 0;
            d_factor[c] += value * centred;
            d_bias[c] += value;
            gradient[r * channels + c] = STORE(value * norm.factor[c]);
        }
}

FAST static void NAME(norm_statistics_gradient)(
    const VALUE *y, const VALUE *gradient, VALUE *out, int64_t rows, int64_t channels, Norm norm) {
    for (int64_t r = 0; r < rows; r++)
        EACH for (int64_t c = 0; c < channels; c++) {
            int64_t i = r * channels + c;
            out[i] = STORE(LOAD(gradient[i]) + (LOAD(y[i]) - norm.mean[c]) * norm.factor[c] + norm.bias[c]);
        }
}

FAST static void NAME(add_rows)(const VALUE *x, VALUE *y, int64_t size) {
    EACH for (int64_t i = 0; i < size; i++) y[i] = STORE(LOAD(x[i]) + LOAD(y[i]));
}

FAST static void NAME(sum_rows)(const VALUE *x, int64_t rows, int64_t channels, float *sum) {
    EACH for (int64_t c = 0; c < channels; c++) sum[c] = 0;
    for (int64_t r = 0; r < rows; r++)
        EACH for (int64_t c = 0; c < channels; c++) sum[c] += LOAD(x[r * channels + c]);
}

FAST static void NAME(square_rows)(const VALUE *x, int64_t rows, int64_t channels, const float *mean, float *square) {
    EACH for (int64_t c = 0; c < channels; c++) square[c] = 0;
    for (int64_t r = 0; r < rows; r++)
        EACH for (int64_t c = 0; c < channels; c++) {
            float centred = LOAD(x[r * channels + c]) - mean[c];
            square[c] += centred * centred;
        }
}

INLINE void NAME(add_rows_relu)(
    const VALUE *x, Norm norm, const VALUE *shortcut, Norm other, int has_other, VALUE *y, int64_t rows, int64_t channels) {
    for (int64_t r = 0; r < rows; r++)
        EACH for (int64_t c = 0; c < channels; c++) {
            int64_t i = r * channels + c;
            float value = (LOAD(x[i]) - norm.mean[c]) * norm.factor[c] + norm.bias[c], beside = LOAD(shortcut[i]);
            if (has_other) beside = (beside - other.mean[c]) * other.factor[c] + other.bias[c];
            value += beside;
            y[i] = STORE(value < 0 ? 0 : value);
        }
}

FAST static void NAME(norm_add_relu)(
    const VALUE *x, Norm norm, const VALUE *shortcut, const Norm *other, VALUE *y, int64_t rows, int64_t channels) {
    if (other) NAME(add_rows_relu)(x, norm, shortcut, *other, 1, y, rows, channels);
    else NAME(add_rows_relu)(x, norm, shortcut, norm, 0, y, rows, channels);
}

INLINE void NAME(add_rows_relu_gradient)(
    const VALUE *x, Norm norm, const VALUE *shortcut, Norm other, int has_other, const VALUE *y, const VALUE *gradient,
    VALUE *dx, VALUE *d_shortcut, int64_t rows, int64_t channels, float *d_factor, float *d_bias, float *d_other) {
    for (int64_t r = 0; r < rows; r++)
        EACH for (int64_t c = 0; c < channels; c++) {
            int64_t i = r * channels + c;
            float value = LOAD(gradient[i]);
            value = LOAD(y[i]) > 0 ? value : 0;
            d_factor[c] += value * (LOAD(x[i]) - norm.mean[c]);
            d_bias[c] += value;
            dx[i] = STORE(value * norm.factor[c]);
            if (has_other) d_other[c] += value * (LOAD(shortcut[i]) - other.mean[c]);
            d_shortcut[i] = STORE(has_other ? value * other.factor[c] : value);
        }
}

FAST static void NAME(norm_add_relu_gradient)(
    const VALUE *x, Norm norm, const VALUE *shortcut, const Norm *other, const VALUE *y, const VALUE *gradient,
    VALUE *dx, VALUE *d_shortcut, int64_t rows, int64_t channels, float *d_factor, float *d_bias, float *d_other) {
    if (other)
        NAME(add_rows_relu_gradient)(
            x, norm, shortcut, *other, 1, y, gradient, dx, d_shortcut, rows, channels, d_factor, d_bias, d_other);
    else
        NAME(add_rows_relu_gradient)(
            x, norm, shortcut, norm, 0, y, gradient, dx, d_shortcut, rows, channels, d_factor, d_bias, d_other);
}

/* For one row of channels: keeps in `best` the larger of `best` and normalised x, and in `places` its place. */
FAST static void NAME(take_larger)(const VALUE *x, int64_t channels, Norm norm, int place, float *best, uint8_t *places) {
    EACH for (int64_t c = 0; c < channels; c++) {
        float value = (LOAD(x[c]) - norm.mean[c]) * norm.factor[c] + norm.bias[c];
        int larger = value > best[c] || value != value;
        best[c] = larger ? value : best[c];
        places[c] = larger ? place : places[c];
    }
}

FAST static void NAME(store_row)(const float *from, VALUE *to, int64_t channels) {
    EACH for (int64_t c = 0; c < channels; c++) to[c] = STORE(from[c]);
}

/* Adds the gradient to `sum` for the channels whose largest value was at `place`. */
FAST static void NAME(give_back)(const VALUE *gradient, const uint8_t *places, int place, int64_t channels, float *sum) {
    EACH for (int64_t c = 0; c < channels; c++) sum[c] += places[c] == place ? LOAD(gradient[c]) : 0;
}

FAST static void NAME(norm_gradient)(
    const VALUE *x, const float *gradient, VALUE *dx, int64_t rows, int64_t channels, Norm norm, float *d_factor, float *d_bias) {
    for (int64_t r = 0; r < rows; r++)
        EACH for (int64_t c = 0; c < channels; c++) {
            float value = gradient[r * channels + c];
            d_factor[c] += value * (LOAD(x[r * channels + c]) - norm.mean[c]);
            d_bias[c] += value;
            dx[r * channels + c] = STORE(value * norm.factor[c]);
        }
}

static void NAME(statistics)(const VALUE *x, int64_t rows, int64_t channels, float *mean, float *square, float *own) {
    int64_t block = 32768 / channels + 8, count = 0;
    float *own_mean = own, *own_square = own + channels;
    EACH for (int64_t c = 0; c < channels; c++) mean[c] = square[c] = 0;
    for (int64_t begin = 0; begin < rows; begin += block) {
        int64_t size = rows - begin < block ? rows - begin : block;
        NAME(sum_rows)(x + begin * channels, size, channels, own_mean);
        EACH for (int64_t c = 0; c < channels; c++) own_mean[c] /= size;
        NAME(square_rows)(x + begin * channels, size, channels, own_mean, own_square);
        merge_statistics(mean, square, count, own_mean, own_square, size, channels);
        count += size;
    }
}

static void NAME(pool_image)(
    const VALUE *x, Shape in, Norm norm, VALUE *y, uint8_t *places, Shape out, int64_t top, int64_t left, float *best) {
    int64_t channels = in.channels;
    for (int64_t row = 0; row < out.height; row++)
        for (int64_t column = 0; column < out.width; column++, y += channels, places += channels) {
            EACH for (int64_t c = 0; c < channels; c++) best[c] = 0, places[c] = NOWHERE;
            for (int place = 0; place < 9; place++) {
                int64_t h = 2 * row - top + place / 3, w = 2 * column - left + place % 3;
                if (h >= 0 && w >= 0 && h < in.height && w < in.width)
                    NAME(take_larger)(x + (h * in.width + w) * channels, channels, norm, place, best, places);
            }
            NAME(store_row)(best, y, channels);
        }
}

static void NAME(pool_image_gradient)(
    const VALUE *x, Shape in, Norm norm, const VALUE *gradient, const uint8_t *places, Shape out, int64_t top,
    int64_t left, float *sums, VALUE *dx, float *d_factor, float *d_bias) {
    int64_t channels = in.channels;
    memset(sums, 0, image_size(in) * sizeof(float));
    for (int64_t row = 0; row < out.height; row++)
        for (int64_t column = 0; column < out.width; column++, gradient += channels, places += channels)
            for (int place = 0; place < 9; place++) {
                int64_t h = 2 * row - top + place / 3, w = 2 * column - left + place % 3;
                if (h >= 0 && w >= 0 && h < in.height && w < in.width)
                    NAME(give_back)(gradient, places, place, channels, sums + (h * in.width + w) * channels);
            }
    NAME(norm_gradient)(x, sums, dx, in.height * in.width, channels, norm, d_factor, d_bias);
}
