// Distances of rows from the differences, which do not cancel as a product of matrices does: out [a, P, R] of x1 [a, P, M]
// and x2 [a, R, M], float32 with contiguous rows.
#include "../include/parallel.h"

namespace {

constexpr int64 TERMS = 2048;  // squares that are added in float32; these sums in float64
constexpr int64 ROWS = 16;     // rows of x1 that meet each four rows of x2 while those are in the nearest cache

// The distances of row a from four rows.
void four_distances(float* out, const float* __restrict a, const float* const* rows, int64 n) {
    double total[4] = {};
    for (int64 at = 0; at < n; at += TERMS) {
        int64 count = min(TERMS, n - at);
        const float *__restrict x = a + at, *__restrict p = rows[0] + at, *__restrict q = rows[1] + at,
                    *__restrict r = rows[2] + at, *__restrict s = rows[3] + at;
        float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
        SIMD_SUM(sum0, sum1, sum2, sum3) for (int64 k = 0; k < count; k++) {
            sum0 += (x[k] - p[k]) * (x[k] - p[k]), sum1 += (x[k] - q[k]) * (x[k] - q[k]);
            sum2 += (x[k] - r[k]) * (x[k] - r[k]), sum3 += (x[k] - s[k]) * (x[k] - s[k]);
        }
        total[0] += sum0, total[1] += sum1, total[2] += sum2, total[3] += sum3;
    }
    for (int i = 0; i < 4; i++) out[i] = float(__builtin_sqrt(total[i]));
}

}  // namespace

// out, float32 and contiguous = the distances.
static void distances(Array out, Array x1, Array x2) {
    int64 left = x1.size[1], right = x2.size[1], n = x1.size[2], blocks = ceil_div(left, ROWS);
    parallel_for(x1.size[0] * blocks, max(1, PARALLEL_ELEMENTS / max(ROWS * right * n, 1)), [=](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 i = item / blocks, first = item % blocks * ROWS, last = min(left, first + ROWS);
            for (int64 j = 0; j < right; j += 4) {
                const float* rows[4];  // of fewer, the last one again
                for (int64 r = 0; r < 4; r++) rows[r] = address<const float>(x2, i, min(j + r, right - 1));
                for (int64 row = first; row < last; row++) {
                    float found[4];
                    four_distances(found, address<const float>(x1, i, row), rows, n);
                    memcpy(address<float>(out, i, row, j), found, min(4, right - j) * sizeof(float));
                }
            }
        }
    });
}
KERNEL(distances)

// dx1 [a, P, M], float32 = the sums over R of weight [a, P, R] * (x1 - x2): in float32 for up to 32 rows of x2, these sums
// in float64.
static void distances_backward(Array dx1, Array x1, Array x2, Array weight) {
    constexpr int64 BLOCK = 512, RUN = 32;
    int64 left = x1.size[1], right = x2.size[1], n = x1.size[2], blocks = ceil_div(n, BLOCK);
    // Rows of x1 are the inner loop's order, so that a block of x2 is read from a cache.
    parallel_rows(x1.size[0] * blocks * left, right * min(n, BLOCK), [=](int64 begin, int64 end) {
        float partial[BLOCK];
        double total[BLOCK];
        for (int64 item = begin; item < end; item++) {
            int64 row = item % left, first = item / left % blocks * BLOCK, i = item / left / blocks;
            int64 count = min(BLOCK, n - first);
            const float* __restrict x = address<const float>(x1, i, row, first);
            for (int64 k = 0; k < count; k++) partial[k] = 0.0f, total[k] = 0.0;
            for (int64 j = 0; j < right; j++) {
                const float* __restrict y = address<const float>(x2, i, j, first);
                const float w = *address<const float>(weight, i, row, j);
                float* __restrict sum = partial;
                SIMD for (int64 k = 0; k < count; k++) sum[k] += w * (x[k] - y[k]);
                if (j % RUN == RUN - 1 || j == right - 1) {
                    for (int64 k = 0; k < count; k++) total[k] += sum[k], sum[k] = 0.0f;
                }
            }
            float* __restrict to = address<float>(dx1, i, row, first);
            for (int64 k = 0; k < count; k++) to[k] = float(total[k]);
        }
    });
}
KERNEL(distances_backward)
