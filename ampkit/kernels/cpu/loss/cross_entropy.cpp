// Cross entropy of scores [a, b, classes] along the last axis, with labels or probabilities [a, b(, classes)].
//
// Per row: lse = log(sum exp(x)), loss = (1 - s) w[label] (lse - x[label]) + s / classes * sum_k w[k] (lse - x[k]), with
// the smoothing s and class weights w. Saved are lse and the scores, no probabilities.
#include "../include/columns.h"
#include "../include/simd_math.h"

using namespace simd;

namespace {

struct Row { float largest, log, spread; };  // log: of sum exp(x - largest). spread: sum w (largest - x)

// Class weights as float32, 1 without any, and their sum.
struct Weights {
    Scratch<float> values;
    float total;
    Weights(const Array& weight, int64 classes) : values(classes) {
        float* to = values;
        if (!to) return;
        if (weight) read_floats(to, weight.data, weight.kind, 0, weight.stride[2], classes);
        else for (int64 k = 0; k < classes; k++) to[k] = 1.0f;
        total = float(blocked_sum(classes, [=](int64 k) { return to[k]; }));
    }
    operator const float*() { return values; }
};

// Labels as they were given, of which those that are `ignored` do not count.
struct Labels {
    const int64* at;
    int64 ignored;
    bool counts(int64 row) const { return at[row] != ignored; }
    int64 of(int64 row) const { return counts(row) ? at[row] : 0; }  // a class in any case
    double weight(const float* w, int64 rows) const {
        double sum = 0.0;
        for (int64 row = 0; row < rows; row++) sum += counts(row) ? w[at[row]] : 0.0f;
        return sum;
    }
};

Row log_sum(const float* x, const float* w, bool smooth, int64 n) {
    float largest = max_of(x, n);
    float log = float(__builtin_log(blocked_sum(n, [=](int64 k) { return expf(x[k] - largest); })));
    float spread = smooth ? float(blocked_sum(n, [=](int64 k) { return w[k] * (largest - x[k]); })) : 0.0f;
    return {largest, log, spread};
}

// The same for each column of a tile.
void log_sums(const Array& input, const ColumnTile& tile, const float* w, bool smooth, Row* rows) {
    int64 n = input.size[2], count = tile.count;
    float largest[WIDEST], sums[WIDEST], spread[WIDEST], buffer[WIDEST];
    for (int64 c = 0; c < count; c++) largest[c] = -INF, spread[c] = 0.0f;
    for (int64 k = 0; k < n; k++) {
        const float* x = tile.read(input, k, buffer);
        SIMD for (int64 c = 0; c < count; c++) largest[c] = x[c] > largest[c] ? x[c] : largest[c];
    }
    sum_columns(sums, n, count, [&](int64 k, float* partial) {
        const float* x = tile.read(input, k, buffer);
        SIMD for (int64 c = 0; c < count; c++) partial[c] += expf(x[c] - largest[c]);
    });
    if (smooth)
        sum_columns(spread, n, count, [&](int64 k, float* partial) {
            const float *x = tile.read(input, k, buffer), weight = w[k];
            SIMD for (int64 c = 0; c < count; c++) partial[c] += weight * (largest[c] - x[c]);
        });
    for (int64 c = 0; c < count; c++) rows[c] = {largest[c], logf(sums[c]), spread[c]};
}

// work(row, log_sum of it) for every row.
template <class Work>
void for_each_log_sum(const Array& given, const float* w, bool smooth, const Work& work) {
    Array input = as_columns(given);
    int64 inner = input.size[1], n = input.size[2];
    if (has_columns(input))
        return for_each_tile(input, [&](const ColumnTile& tile) {
            Row rows[WIDEST];
            log_sums(input, tile, w, smooth, rows);
            for (int64 c = 0; c < tile.count; c++) work(tile.i * inner + tile.first + c, rows[c]);
        });
    parallel_rows(input.size[0] * inner, n, [&](int64 begin, int64 end) {
        Scratch<float> buffer(n);
        if (!buffer) return;
        for (int64 row = begin; row < end; row++)
            work(row, log_sum(read_row(input, row / inner, row % inner, buffer), w, smooth, n));
    });
}

float score(const Array& input, int64 row, int64 label) {
    float found;
    int64 inner = input.size[1];
    read_floats(&found, input.data, input.kind, input.offset(row / inner, row % inner, label), 1, 1);
    return found;
}

void write_gradients(float* dx, const float* x, const float* w, float lse, float by, float minus, int64 n) {
    SIMD for (int64 k = 0; k < n; k++) dx[k] = expf(x[k] - lse) * by - minus * w[k];
}

}  // namespace

// loss, lse [rows] float32; labels [rows] int64, of which `ignored` ones have no loss. totals [2] float64: the sum of the
// losses, and that sum divided by the labels' weights. -> the row of the first label that is no class, or -1.
static int64 cross_entropy_forward(Array loss, Array lse, Array totals, Array input, Array labels, Array weight,
                                   int64 ignored, float smoothing) {
    int64 n = input.size[2], rows = labels.size[2];
    Labels classes{address<int64>(labels, 0, 0), ignored};
    for (int64 row = 0; row < rows; row++)
        if (classes.counts(row) && (classes.at[row] < 0 || classes.at[row] >= n)) return row;
    Weights weights(weight, n);
    if (!weights) return -1;
    const float *w = weights, total = weights.total, even = smoothing / float(n);
    for_each_log_sum(input, w, smoothing != 0.0f, [=](int64 row, Row found) {
        int64 label = classes.of(row);
        float own = (1.0f - smoothing) * w[label] * (found.log - (score(input, row, label) - found.largest));
        float others = smoothing ? even * (total * found.log + found.spread) : 0.0f;
        *address<float>(loss, 0, 0, row) = classes.counts(row) ? own + others : 0.0f;
        *address<float>(lse, 0, 0, row) = found.log + found.largest;
    });
    double sum = 0.0;
    for (int64 row = 0; row < rows; row++) sum += *address<float>(loss, 0, 0, row);
    double* out = address<double>(totals, 0, 0);
    out[0] = sum, out[1] = sum / classes.weight(w, rows);
    return -1;
}
KERNEL(cross_entropy_forward)

// The gradient of the scores, whose memory dx may be. grad float32: of each loss [rows], of their sum [1], or of their
// mean [1] if `mean`.
static void cross_entropy_backward(Array dx, Array input, Array lse, Array labels, Array grad, Array weight,
                                   int64 ignored, float smoothing, int64 mean) {
    dx = as_columns(dx), input = as_columns(input);
    int64 n = input.size[2], inner = input.size[1], rows = labels.size[2];
    Weights weights(weight, n);
    if (!weights) return;
    const float *w = weights, total = weights.total;
    Labels classes{address<int64>(labels, 0, 0), ignored};
    const float divisor = mean ? float(classes.weight(w, rows)) : 1.0f;
    auto fix_label = [=](int64 row, float x, float at, float even) {  // exp(x) - 1 without cancellation
        int64 label = classes.of(row);
        x -= *address<float>(lse, 0, 0, row);
        float value = expm1f(x) * at + expf(x) * even * total - even * w[label];
        write_floats(&value, dx.data, dx.kind, dx.offset(row / inner, row % inner, label), 1, 1);
    };
    auto parts = [=](int64 row, float* at, float* even) {
        float g = classes.counts(row) ? *address<float>(grad, 0, 0, grad.size[2] > 1 ? row : 0) / divisor : 0.0f;
        *at = (1.0f - smoothing) * w[classes.of(row)] * g, *even = g * (smoothing / float(n));
    };
    if (has_columns(input))
        return for_each_tile(input, [&](const ColumnTile& tile) {
            int64 first = tile.i * inner + tile.first, count = tile.count;
            float at[WIDEST], even[WIDEST], by[WIDEST], own[WIDEST], buffer[WIDEST], dx_buffer[WIDEST];
            const float* log = address<float>(lse, 0, 0, first);
            for (int64 c = 0; c < count; c++) {
                parts(first + c, at + c, even + c), by[c] = at[c] + even[c] * total;
                own[c] = score(input, first + c, classes.of(first + c));
            }
            for (int64 k = 0; k < n; k++) {
                const float *x = tile.read(input, k, buffer), weight = w[k];
                float* to = tile.to_write(dx, k, dx_buffer);
                SIMD for (int64 c = 0; c < count; c++) to[c] = expf(x[c] - log[c]) * by[c] - even[c] * weight;
                tile.write(dx, k, to);
            }
            for (int64 c = 0; c < count; c++) fix_label(first + c, own[c], at[c], even[c]);
        });
    parallel_rows(input.size[0] * inner, n, [=](int64 begin, int64 end) {
        Scratch<float> buffer(n), dx_buffer(n);
        if (!(buffer && dx_buffer)) return;
        for (int64 row = begin; row < end; row++) {
            int64 i = row / inner, j = row % inner;
            float at, even, own = score(input, row, classes.of(row)), *to = row_to_write(dx, i, j, dx_buffer);
            parts(row, &at, &even);
            write_gradients(to, read_row(input, i, j, buffer), w, *address<float>(lse, 0, 0, row), at + even * total, even, n);
            write_row(dx, i, j, to);
            fix_label(row, own, at, even);
        }
    });
}
KERNEL(cross_entropy_backward)

// Of rows [rows, classes] with probabilities, t = w (p (1 - s) + s / classes): loss = sum_k t[k] (lse - x[k]). Without
// dx the losses and lse are written; else dx = grad (exp(x - lse) sum t - t).
static void cross_entropy_of_probabilities(Array dx, Array loss, Array lse, Array input, Array probabilities, Array weight,
                                           Array grad, float smoothing) {
    int64 n = input.size[2], inner = input.size[1];
    Weights weights(weight, n);
    if (!weights) return;
    const float *w = weights, stay = 1.0f - smoothing, even = smoothing / float(n);
    parallel_rows(input.size[0] * inner, n, [=](int64 begin, int64 end) {
        Scratch<float> x_buffer(n), t(n), dx_buffer(n);
        if (!(x_buffer && t && dx_buffer)) return;
        for (int64 row = begin; row < end; row++) {
            int64 i = row / inner, j = row % inner;
            const float *x = read_row(input, i, j, x_buffer), *p = read_row(probabilities, i, j, t);
            float *shares = t, *to = dx_buffer, *log = address<float>(lse, 0, 0, row);
            SIMD for (int64 k = 0; k < n; k++) shares[k] = (p[k] * stay + even) * w[k];
            if (!dx) {
                Row found = log_sum(x, w, false, n);
                *log = found.log + found.largest;
                *address<float>(loss, 0, 0, row) = float(blocked_sum(n, [=](int64 k) {
                    return shares[k] * (found.log - (x[k] - found.largest));
                }));
                continue;
            }
            float g = *address<float>(grad, 0, 0, row), sum = float(blocked_sum(n, [=](int64 k) { return shares[k]; }));
            float shift = *log;
            SIMD for (int64 k = 0; k < n; k++) to[k] = g * (expf(x[k] - shift) * sum - shares[k]);
            write_floats(to, dx.data, dx.kind, dx.offset(i, j), dx.stride[2], n);
        }
    });
}
KERNEL(cross_entropy_of_probabilities)
