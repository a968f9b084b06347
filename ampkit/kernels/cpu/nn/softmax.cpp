// Softmax and log-softmax of rows [a, b, n] along the last axis, in float32, one rounding when stored.
//
// Where not the elements of a row but those of the axis before are adjacent in memory, many rows are computed at once, as
// the columns of a tile. A row that holds NaN, +inf or only -inf gives NaN: exp(inf - inf) is NaN, and so is its sum.
#include "../include/columns.h"
#include "../include/simd_math.h"

using namespace simd;

// work(i, j) for every row [i, j, :].
template <class Work>
static void for_each_row(const Array& array, const Work& work) {
    int64 inner = array.size[1];
    parallel_rows(array.size[0] * inner, array.size[2], [&](int64 begin, int64 end) {
        for (int64 row = begin; row < end; row++) work(row / inner, row % inner);
    });
}

static void add_exponentials(float* sums, float* y, const float* x, const float* largest, int64 count) {
    SIMD for (int64 c = 0; c < count; c++) {
        float e = expf(x[c] - largest[c]);
        sums[c] += e, y[c] = e;
    }
}

static void forward_tile(const Array& out, const Array& input, const ColumnTile& tile, bool logarithm) {
    int64 n = input.size[2], count = tile.count;
    bool in_place = out.kind == FLOAT32 && out.stride[1] == 1;
    Scratch<float> powers(in_place || logarithm ? 0 : n * count);  // of 16-bit results, which are rounded once
    if (!powers) return;
    float largest[WIDEST], sums[WIDEST], buffer[WIDEST], other[WIDEST];
    for (int64 c = 0; c < count; c++) largest[c] = -INF;
    for (int64 k = 0; k < n; k++) {
        const float* x = tile.read(input, k, buffer);
        SIMD for (int64 c = 0; c < count; c++) largest[c] = x[c] > largest[c] ? x[c] : largest[c];
    }
    auto power = [&](int64 k) { return logarithm ? other : tile.to_write(out, k, powers + k * count); };
    sum_columns(sums, n, count, [&](int64 k, float* partial) {
        add_exponentials(partial, power(k), tile.read(input, k, buffer), largest, count);
    });
    for (int64 c = 0; c < count; c++) sums[c] = logarithm ? logf(sums[c]) : 1.0f / sums[c];
    for (int64 k = 0; k < n; k++) {
        float* y = logarithm ? tile.to_write(out, k, other) : power(k);
        if (logarithm) {
            const float* x = tile.read(input, k, buffer);
            SIMD for (int64 c = 0; c < count; c++) y[c] = (x[c] - largest[c]) - sums[c];
        } else {
            SIMD for (int64 c = 0; c < count; c++) y[c] *= sums[c];
        }
        tile.write(out, k, y);
    }
}

static void backward_tile(const Array& dx, const Array& dy, const Array& out, const ColumnTile& tile, bool logarithm) {
    int64 n = out.size[2], count = tile.count;
    float sums[WIDEST], dy_buffer[WIDEST], out_buffer[WIDEST], dx_buffer[WIDEST];
    sum_columns(sums, n, count, [&](int64 k, float* partial) {
        const float *grad = tile.read(dy, k, dy_buffer), *y = logarithm ? nullptr : tile.read(out, k, out_buffer);
        if (logarithm) {
            SIMD for (int64 c = 0; c < count; c++) partial[c] += grad[c];
        } else {
            SIMD for (int64 c = 0; c < count; c++) partial[c] += grad[c] * y[c];
        }
    });
    for (int64 k = 0; k < n; k++) {
        const float *grad = tile.read(dy, k, dy_buffer), *y = tile.read(out, k, out_buffer);
        float* result = tile.to_write(dx, k, dx_buffer);
        if (logarithm) {
            SIMD for (int64 c = 0; c < count; c++) result[c] = grad[c] - expf(y[c]) * sums[c];
        } else {
            SIMD for (int64 c = 0; c < count; c++) result[c] = (grad[c] - sums[c]) * y[c];
        }
        tile.write(dx, k, result);
    }
}

// out may be input.
static void softmax_forward(Array out, Array input, int64 logarithm) {
    out = as_columns(out), input = as_columns(input);
    if (has_columns(input))
        return for_each_tile(input, [=](const ColumnTile& t) { forward_tile(out, input, t, logarithm); });
    int64 n = input.size[2];
    for_each_row(input, [=](int64 i, int64 j) {
        Scratch<float> buffer(n), other(n);
        if (!(buffer && other)) return;
        const float* x = read_row(input, i, j, buffer);
        float* y = row_to_write(out, i, j, other);
        float largest = max_of(x, n);
        if (logarithm) {
            float shift = float(__builtin_log(blocked_sum(n, [=](int64 k) { return expf(x[k] - largest); })));
            SIMD for (int64 k = 0; k < n; k++) y[k] = (x[k] - largest) - shift;
        } else {
            float scale = float(1.0 / blocked_sum(n, [=](int64 k) { return y[k] = expf(x[k] - largest); }));
            SIMD for (int64 k = 0; k < n; k++) y[k] *= scale;
        }
        write_row(out, i, j, y);
    });
}
KERNEL(softmax_forward)

// dx of rows that lie in one piece each, all of T, by loops that read and write them as they are stored.
template <class T>
static void backward_rows(T*, const Array& dx, const Array& dy, const Array& out, bool logarithm) {
    for_each_row(out, [=](int64 i, int64 j) {
        const int64 n = out.size[2];
        const T *__restrict grad = address<const T>(dy, i, j), *__restrict y = address<const T>(out, i, j);
        T* __restrict result = address<T>(dx, i, j);
        if (logarithm) {
            float sum = float(blocked_sum(n, [=](int64 k) { return float(grad[k]); }));
            SIMD_STORE for (int64 k = 0; k < n; k++) store(result[k], float(grad[k]) - expf(float(y[k])) * sum);
        } else {
            float dot = float(blocked_sum(n, [=](int64 k) { return float(grad[k]) * float(y[k]); }));
            SIMD_STORE for (int64 k = 0; k < n; k++) store(result[k], (float(grad[k]) - dot) * float(y[k]));
        }
    });
}

// dx from dy and the op's output.
static void softmax_backward(Array dx, Array dy, Array out, int64 logarithm) {
    dx = as_columns(dx), dy = as_columns(dy), out = as_columns(out);
    if (has_columns(out)) return for_each_tile(out, [=](const ColumnTile& t) { backward_tile(dx, dy, out, t, logarithm); });
    if (dx.kind == out.kind && dy.kind == out.kind && dx.stride[2] == 1 && dy.stride[2] == 1 && out.stride[2] == 1)
        return with_float_type(out.kind, out.data, [&](auto* type) { backward_rows(type, dx, dy, out, logarithm); });
    int64 n = out.size[2];
    for_each_row(out, [=](int64 i, int64 j) {
        Scratch<float> dy_buffer(n), out_buffer(n), dx_buffer(n);
        if (!(dy_buffer && out_buffer && dx_buffer)) return;
        const float* grad = read_row(dy, i, j, dy_buffer);
        const float* y = read_row(out, i, j, out_buffer);
        float* result = row_to_write(dx, i, j, dx_buffer);
        if (logarithm) {
            float sum = float(blocked_sum(n, [=](int64 k) { return grad[k]; }));
            SIMD for (int64 k = 0; k < n; k++) result[k] = grad[k] - expf(y[k]) * sum;
        } else {
            float dot = float(blocked_sum(n, [=](int64 k) { return grad[k] * y[k]; }));
            SIMD for (int64 k = 0; k < n; k++) result[k] = (grad[k] - dot) * y[k];
        }
        write_row(dx, i, j, result);
    });
}
KERNEL(softmax_backward)
