// Norms of rows [rows, n]: y = (x - mean) * rstd * weight + bias; RMS norm without the mean. Sums of two passes, in blocks.
//
// x may be residual + keep * scale * branch, which is stored, rounded, in `total`. Arrays may be absent: mean (RMS norm),
// weight, bias, branch, keep. The statistics mean and rstd [rows] are float32.
#include "../include/parallel.h"

constexpr float SMALL_EPS = 1e-30f;  // below which squares that underflow count

// Weight or bias as float32, or `missing` in each place.
static const float* scales(const Array& array, float* buffer, int64 n, float missing) {
    if (array) return read_row(array, 0, 0, buffer);
    for (int64 k = 0; k < n; k++) buffer[k] = missing;
    return buffer;
}

// to = from * keep * scale, a product, so that NaN stays NaN.
static void drop(float* to, const float* from, const float* keep, float scale, int64 n) {
    SIMD for (int64 k = 0; k < n; k++) to[k] = from[k] * keep[k] * scale;
}

static const float* sum_row(const Array& total, const Array& x, const Array& branch, const Array& keep, float scale,
                            int64 row, float* sum, float* other, float* mask) {
    int64 n = x.size[2];
    const float *a = read_row(x, 0, row, sum), *b = read_row(branch, 0, row, other);
    if (keep) drop(other, b, read_row(keep, 0, row, mask), scale, n), b = other;
    float* to = row_to_write(total, 0, row, sum);
    SIMD for (int64 k = 0; k < n; k++) to[k] = a[k] + b[k];
    write_row(total, 0, row, to);
    return read_row(total, 0, row, sum);
}

static void normalize_row(float* y, const float* x, const float* w, const float* b, bool center, float eps, int64 n,
                          float* mean, float* rstd) {
    auto element = [=](int64 k, auto zero) { return decltype(zero)(x[k]); };
    float m = center ? float(wide_sum(n, -__builtin_inf(), element) / double(n)) : 0.0f;
    double squares = wide_sum(n, eps < SMALL_EPS ? 0x1p-126 * double(n) : 0.0, [=](int64 k, auto zero) {
        auto apart = decltype(zero)(x[k]) - decltype(zero)(m);
        return apart * apart;
    });
    float r = float(1.0 / __builtin_sqrt(squares / double(n) + eps));
    SIMD for (int64 k = 0; k < n; k++) y[k] = (x[k] - m) * r * w[k] + b[k];
    *mean = m, *rstd = r;
}

static void row_norm_forward(Array out, Array mean, Array rstd, Array x, Array weight, Array bias, double eps,
                             Array total, Array branch, Array keep, float scale) {
    int64 n = x.size[2];
    parallel_rows(x.size[1], n, [=](int64 begin, int64 end) {
        Scratch<float> x_buffer(n), y_buffer(n), w_buffer(n), b_buffer(n), mask(keep ? n : 0);
        if (!(x_buffer && y_buffer && w_buffer && b_buffer && mask)) return;
        const float *w = scales(weight, w_buffer, n, 1.0f), *b = scales(bias, b_buffer, n, 0.0f);
        for (int64 row = begin; row < end; row++) {
            const float* given = branch ? sum_row(total, x, branch, keep, scale, row, x_buffer, y_buffer, mask)
                                        : read_row(x, 0, row, x_buffer);
            float m, *y = row_to_write(out, 0, row, y_buffer);
            normalize_row(y, given, w, b, bool(mean), float(eps), n, &m, address<float>(rstd, 0, 0, row));
            if (mean) *address<float>(mean, 0, 0, row) = m;
            write_row(out, 0, row, y);
        }
    });
}
KERNEL(row_norm_forward)

// dx of one row, + more where it is not null; what it adds to the gradients of weight and bias is added to dw and db.
static void row_gradient(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                         const float* more, float m, float r, bool center, int64 n) {
    double sum = 0.0, dot = 0.0;
    for (int64 begin = 0; begin < n; begin += 512) {
        int64 end = min(begin + 512, n);
        float s = 0.0f, d = 0.0f;
        SIMD_SUM(s, d) for (int64 k = begin; k < end; k++) {
            float hat = (x[k] - m) * r, g = dy[k] * w[k];
            dw[k] += dy[k] * hat, db[k] += dy[k];
            s += g, d += g * hat;
        }
        sum += s, dot += d;
    }
    float even = center ? float(sum / double(n)) : 0.0f, along = float(dot / double(n));
    if (more) {
        SIMD for (int64 k = 0; k < n; k++) dx[k] = (dy[k] * w[k] - even - (x[k] - m) * r * along) * r + more[k];
    } else {
        SIMD for (int64 k = 0; k < n; k++) dx[k] = (dy[k] * w[k] - even - (x[k] - m) * r * along) * r;
    }
}

// out[k] = the sum over `count` parts of parts[i * step + k], in float64, in their order.
static void sum_parts(const Array& out, const float* parts, int64 count, int64 step) {
    if (!out) return;
    parallel_for(out.size[2], 256, [=](int64 begin, int64 end) {
        double sums[256] = {};
        float rounded[256];
        for (int64 i = 0; i < count; i++)
            for (int64 k = begin; k < end; k++) sums[k - begin] += parts[i * step + k];
        for (int64 k = 0; k < end - begin; k++) rounded[k] = float(sums[k]);
        write_floats(rounded, out.data, out.kind, begin, 1, end - begin);
    });
}

// dx, also of the branch, and the gradients of weight and bias; those that are not wanted are absent. dsum, or absent, is
// added: the gradient of `total`.
static void row_norm_backward(Array dx, Array dbranch, Array dweight, Array dbias, Array dy, Array dsum, Array x,
                              Array weight, Array mean, Array rstd, Array keep, float scale) {
    int64 rows = x.size[1], n = x.size[2], grain = min(128, max(8, 65536 / n)), parts = ceil_div(rows, grain);
    Scratch<float> sums(parts * 2 * n);  // of each part of the rows: dweight, dbias
    if (!sums) return;
    float* all_sums = sums;
    parallel_for(rows, grain, [=](int64 begin, int64 end) {
        Scratch<float> x_buffer(n), dy_buffer(n), w_buffer(n), dx_buffer(n), more_buffer(n), mask(keep ? n : 0);
        if (!(x_buffer && dy_buffer && w_buffer && dx_buffer && more_buffer && mask)) return;
        const float* w = scales(weight, w_buffer, n, 1.0f);
        float *dw = all_sums + begin / grain * 2 * n, *db = dw + n;
        memset(dw, 0, 2 * n * sizeof(float));
        for (int64 row = begin; row < end; row++) {
            const float* more = dsum ? read_row(dsum, 0, row, more_buffer) : nullptr;
            const float *grad = read_row(dy, 0, row, dy_buffer), *given = read_row(x, 0, row, x_buffer);
            float* to = dx ? row_to_write(dx, 0, row, dx_buffer) : dx_buffer;
            float m = mean ? *address<float>(mean, 0, 0, row) : 0.0f, r = *address<float>(rstd, 0, 0, row);
            row_gradient(to, dw, db, grad, given, w, more, m, r, bool(mean), n);
            if (dx) write_row(dx, 0, row, to);
            if (!dbranch) continue;
            float* branch = row_to_write(dbranch, 0, row, more_buffer);
            if (keep) drop(branch, to, read_row(keep, 0, row, mask), scale, n);
            else memcpy(branch, to, n * sizeof(float));
            write_row(dbranch, 0, row, branch);
        }
    });
    sum_parts(dweight, sums, parts, 2 * n);
    sum_parts(dbias, all_sums + n, parts, 2 * n);
}
KERNEL(row_norm_backward)
