// Softmax of attention scores, one tile [heads, rows, columns] at a time, between the matrix products of attention.py.
//
// A row's columns come in several tiles (online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867). Its statistics
// [heads, rows, 2] are the maximum m of its scores so far and the sum of exp(score - m); at the end m and 1 / sum.
#include "../include/parallel.h"
#include "../include/philox.h"
#include "../include/simd_math.h"

using namespace simd;

namespace {

// Dropout of all weights [heads, rows, columns], of which a tile draws its part.
struct Dropout { uint64_t seed, call; int64 threshold, rows, columns; };

// What the scores and weights of a tile are masked by. mask: added to the scores, or boolean, False where a row may not
// attend; the mask of a head begins `offsets[head]` elements on. Row r attends to the first limit + r columns.
// dropout: null for none; `first` is the tile's first weight among all of them.
struct Masks {
    Array mask;
    const int64* offsets;
    const Dropout* dropout;
    int64 first, limit;
};

}  // namespace

// e^x for x <= 0 that is not NaN, flushed to 0 below the smallest normal number.
INLINE float exp_of_negative(float x) {
    float c = clamp(x, -87.0f, 88.0f), shifted = c * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r +
               1.6666665459e-1f) * r + 5.0000001201e-1f;
    float y = float_of(bits_of((p * r + 1.0f) * r + 1.0f) + (bits_of(shifted) << 23));
    return x < -87.0f ? 0.0f : y;
}

// Scales and masks `count` scores in place.
static void mask_scores(float* x, int64 count, float scale, const Masks& by, int64 head, int64 row) {
    if (!by.mask) {
        SIMD for (int64 k = 0; k < count; k++) x[k] *= scale;
        return;
    }
    Scratch<float> buffer(count);
    if (!buffer) return;
    const float* mask = buffer;
    int64 start = by.offsets[head] + by.mask.offset(0, row);
    read_floats(buffer, by.mask.data, by.mask.kind, start, by.mask.stride[2], count);
    if (by.mask.kind == BOOL) {
        SIMD for (int64 k = 0; k < count; k++) x[k] = mask[k] != 0.0f ? x[k] * scale : -INF;
    } else {
        SIMD for (int64 k = 0; k < count; k++) x[k] = x[k] * scale + mask[k];
    }
}

// to[k] = values[k] where keep is, else 0, times keep_scale; all of them without dropout.
template <class T>
static void write_kept(T* to, const float* values, const uint8_t* keep, float keep_scale, int64 count) {
    if (keep) {
        SIMD_STORE for (int64 k = 0; k < count; k++) store(to[k], keep[k] ? values[k] * keep_scale : 0.0f);
    } else {
        SIMD_STORE for (int64 k = 0; k < count; k++) store(to[k], values[k]);
    }
}

template <class T>
static void write_zeros(T* to, int64 count) {
    SIMD for (int64 k = 0; k < count; k++) to[k] = 0.0f;
}

// Draws which of the first `count` weights of a row dropout keeps, into `buffer`; null without dropout.
static const uint8_t* draw(uint8_t* buffer, int64 count, const Masks& by, int64 head, int64 row) {
    if (!by.dropout) return nullptr;
    const Dropout& d = *by.dropout;
    draw_mask(buffer, by.first + (head * d.rows + row) * d.columns, count, uint32_t(d.threshold), d.seed, d.call);
    return buffer;
}

// weights = exp(scores - m), rounded, for the m with these scores; what `sums` [heads, rows, V] has so far is rescaled
// to it. weights may be scores, whose contents are lost. Columns have stride 1.
static void attention_weights(Array weights, Array scores, Array statistics, Array sums, Array mask, const int64* offsets,
                              const Dropout* dropout, int64 first, int64 limit, float scale) {
    Masks by{mask, offsets, dropout, first, limit};
    int64 rows = scores.size[1], columns = scores.size[2], width = sums.size[2];
    parallel_rows(scores.size[0] * rows, columns, [&](int64 begin, int64 end) {
        Scratch<uint8_t> kept(dropout ? columns : 0);
        if (!kept) return;
        for (int64 i = begin; i < end; i++) {
            int64 head = i / rows, row = i % rows, count = max(0, min(columns, by.limit + row));
            float *x = address<float>(scores, head, row), *state = address<float>(statistics, head, row);
            mask_scores(x, count, scale, by, head, row);
            float before = state[0], largest = max_of(x, count);
            float total = largest < INF ? 0.0f : NOT_A_NUMBER;  // a row that holds NaN or inf becomes NaN
            largest = before > largest ? before : largest;
            float shift = largest == -INF ? 0.0f : largest;
            SIMD_SUM(total) for (int64 k = 0; k < count; k++) {
                float e = exp_of_negative(x[k] - shift);
                x[k] = e, total += e;
            }
            const uint8_t* keep = draw(kept, count, by, head, row);
            with_float_type(weights.kind, weights.data, [&](auto* to) {
                to += weights.offset(head, row);
                if (keep || static_cast<void*>(to) != x) write_kept(to, x, keep, 1.0f, count);
                write_zeros(to + count, columns - count);
            });
            if (before != -INF && before != largest) {
                float factor = exp_of_negative(before - shift), *sum = address<float>(sums, head, row);
                SIMD for (int64 k = 0; k < width; k++) sum[k] *= factor;
                total += state[1] * factor;
            } else {
                total += state[1];
            }
            state[0] = largest, state[1] = total;
        }
    });
}
KERNEL(attention_weights)

// out = sums / (sum of weights) * scale, rounded; 0 for a row that attends to nothing. Ends the statistics.
static void attention_output(Array out, Array sums, Array statistics, float scale) {
    int64 rows = sums.size[1], width = sums.size[2];
    parallel_rows(sums.size[0] * rows, width, [&](int64 begin, int64 end) {
        Scratch<float> buffer(width);
        if (!buffer) return;
        for (int64 i = begin; i < end; i++) {
            int64 head = i / rows, row = i % rows;
            float *state = address<float>(statistics, head, row), inverse = state[1] == 0.0f ? 0.0f : 1.0f / state[1];
            const float* sum = address<float>(sums, head, row);
            float *y = row_to_write(out, head, row, buffer), factor = inverse * scale;
            SIMD for (int64 k = 0; k < width; k++) y[k] = factor == 0.0f ? 0.0f : sum[k] * factor;
            write_row(out, head, row, y);
            state[0] = state[0] == -INF ? 0.0f : state[0], state[1] = inverse;
        }
    });
}
KERNEL(attention_output)

// dots [heads, rows, 1] = the sums over a row of dy * out, which is that of the weights times their gradients.
static void attention_dots(Array dots, Array dy, Array out) {
    int64 rows = dy.size[1], width = dy.size[2];
    parallel_rows(dy.size[0] * rows, width, [&](int64 begin, int64 end) {
        Scratch<float> first(width), second(width);
        if (!(first && second)) return;
        for (int64 i = begin; i < end; i++) {
            int64 head = i / rows, row = i % rows;
            const float *a = read_row(dy, head, row, first), *b = read_row(out, head, row, second);
            *address<float>(dots, head, row) = float(blocked_sum(width, [=](int64 k) { return a[k] * b[k]; }));
        }
    });
}
KERNEL(attention_dots)

// From scores and dw = dy value^T: the weights, with dropout, and ds = scale * (their gradients before scale and mask),
// both rounded; d_mask = the gradient of an added mask. weights may be scores, and ds may be dw.
static void attention_gradients(Array weights, Array ds, Array scores, Array dw, Array statistics, Array dots, Array mask,
                                const int64* offsets, const Dropout* dropout, int64 first, int64 limit, float scale,
                                float keep_scale, Array d_mask) {
    Masks by{mask, offsets, dropout, first, limit};
    int64 rows = scores.size[1], columns = scores.size[2];
    parallel_rows(scores.size[0] * rows, columns, [&](int64 begin, int64 end) {
        Scratch<uint8_t> kept(dropout ? columns : 0);
        if (!kept) return;
        for (int64 i = begin; i < end; i++) {
            int64 head = i / rows, row = i % rows, count = max(0, min(columns, by.limit + row));
            const uint8_t* keep = draw(kept, count, by, head, row);
            float *x = address<float>(scores, head, row), *g = address<float>(dw, head, row);
            const float* state = address<float>(statistics, head, row);
            float shift = state[0], inverse = state[1], dot = *address<float>(dots, head, row);
            mask_scores(x, count, scale, by, head, row);
            if (keep) write_kept(g, g, keep, keep_scale, count);
            SIMD for (int64 k = 0; k < count; k++) {
                float w = exp_of_negative(x[k] - shift) * inverse;
                x[k] = w, g[k] = w * (g[k] - dot);
            }
            if (d_mask) {
                write_floats(g, d_mask.data, d_mask.kind, d_mask.offset(head, row), d_mask.stride[2], count);
                float* rest = address<float>(d_mask, head, row, count);
                for (int64 k = 0; k < columns - count; k++) rest[k * d_mask.stride[2]] = 0.0f;
            }
            with_float_type(weights.kind, weights.data, [&](auto* to) {
                to += weights.offset(head, row);
                if (keep || static_cast<void*>(to) != x) write_kept(to, x, keep, keep_scale, count);
                write_zeros(to + count, columns - count);
            });
            with_float_type(ds.kind, ds.data, [&](auto* to) {
                to += ds.offset(head, row);
                SIMD_STORE for (int64 k = 0; k < count; k++) store(to[k], g[k] * scale);
                write_zeros(to + count, columns - count);
            });
        }
    });
}
KERNEL(attention_gradients)
