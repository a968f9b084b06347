// Distances of rows from the differences, which do not cancel as a product of matrices does: out [a, P, R] of x1 [a, P, M]
// and x2 [a, R, M], float32 with contiguous rows.
#include "../include/parallel.h"

namespace {

constexpr int64 LANES = 16, WIDE = 2 * LANES;
constexpr int64 ROWS = 4;      // that meet each vector of others while it is in a register
constexpr int64 RUN = 64;      // terms that are added in float32; these sums in float64
constexpr int64 CHUNK = 256;   // rows of x1 for which rows of x2 are transposed once
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

struct Sums {
    double of[ROWS][WIDE] = {};

    void add(const Vector (&sum)[ROWS][2]) {
        for (int64 r = 0; r < ROWS; r++) {
            float part[WIDE];
            memcpy(part, sum[r], sizeof part);
            SIMD for (int64 k = 0; k < WIDE; k++) of[r][k] += part[k];
        }
    }
};

// Addresses of ROWS rows of x from `first` on; of fewer, the last one again.
struct Rows {
    const float* of[ROWS];

    Rows(const Array& x, int64 i, int64 first) {
        for (int64 r = 0; r < ROWS; r++) of[r] = address<const float>(x, i, min(first + r, x.size[1] - 1));
    }
};

// others [n, WIDE]: rows of x2 from `first` on as columns; of fewer, the last one again.
void transpose(float* others, const Array& x2, int64 i, int64 first) {
    for (int64 j = 0; j < WIDE; j++) {
        const float* row = address<const float>(x2, i, min(first + j, x2.size[1] - 1));
        for (int64 k = 0; k < x2.size[2]; k++) others[k * WIDE + j] = row[k];
    }
}

// The squares of the distances of the rows from the columns of others [n, WIDE].
void square_distances(Sums& total, const Rows& rows, const float* others, int64 n) {
    for (int64 first = 0; first < n; first += RUN) {
        Vector sum[ROWS][2] = {};
        for (int64 k = first; k < min(first + RUN, n); k++) {
            Vector other[2];
            memcpy(other, others + k * WIDE, sizeof other);
            for (int64 r = 0; r < ROWS; r++)
                for (int64 half = 0; half < 2; half++) {
                    Vector gap = rows.of[r][k] - other[half];
                    sum[r][half] += gap * gap;
                }
        }
        total.add(sum);
    }
}

// The square of the distance of one row from column k once more in float64, where it over- or underflowed.
double repaired(double square, const float* row, const float* others, int64 k, int64 n) {
    if (square <= 3.4028234e38 && square >= 0x1p-126 * double(n)) return square;
    double again = 0.0;
    SIMD_SUM(again) for (int64 j = 0; j < n; j++) {
        double gap = double(row[j]) - double(others[j * WIDE + k]);
        again += gap * gap;
    }
    return again;
}

// The sums over the rows of x2 of weights [R, ROWS] times the differences of WIDE columns from `at` on, or if not WHOLE of
// `count` of them.
template <bool WHOLE>
void weighted_gaps(Sums& total, const Rows& rows, const Array& x2, int64 i, const float* weights, int64 at, int64 count) {
    auto read = [=](Vector (&to)[2], const float* row) {
        if (!WHOLE) to[0] = to[1] = Vector{};
        memcpy(to, row + at, WHOLE ? sizeof to : count * sizeof(float));
    };
    Vector x[ROWS][2];
    for (int64 r = 0; r < ROWS; r++) read(x[r], rows.of[r]);
    for (int64 first = 0; first < x2.size[1]; first += RUN) {
        Vector sum[ROWS][2] = {};
        for (int64 j = first; j < min(first + RUN, x2.size[1]); j++) {
            Vector other[2];
            read(other, address<const float>(x2, i, j));
            for (int64 r = 0; r < ROWS; r++)
                for (int64 half = 0; half < 2; half++) sum[r][half] += weights[j * ROWS + r] * (x[r][half] - other[half]);
        }
        total.add(sum);
    }
}

}  // namespace

// out, float32 of any strides = the distances.
static void distances(Array out, Array x1, Array x2) {
    int64 left = x1.size[1], right = x2.size[1], n = x1.size[2], blocks = ceil_div(right, WIDE), chunks = ceil_div(left, CHUNK);
    int64 work = WIDE * min(left, CHUNK) * max(n, 1);
    parallel_for(x1.size[0] * blocks * chunks, max(1, PARALLEL_ELEMENTS / work), [=](int64 begin, int64 end) {
        Scratch<float> others(n * WIDE);
        if (!others) return;
        for (int64 item = begin; item < end; item++) {
            int64 i = item / chunks / blocks, first = item / chunks % blocks * WIDE, top = item % chunks * CHUNK;
            transpose(others, x2, i, first);
            for (int64 row = top; row < min(left, top + CHUNK); row += ROWS) {
                Sums total;
                Rows rows(x1, i, row);
                square_distances(total, rows, others, n);
                for (int64 r = 0; r < min(ROWS, left - row); r++) {
                    float found[WIDE];
                    int32_t lost = 0;
                    SIMD_SUM(lost) for (int64 k = 0; k < WIDE; k++)
                        lost += !(total.of[r][k] <= 3.4028234e38 && total.of[r][k] >= 0x1p-126 * double(n));
                    for (int64 k = 0; lost && k < WIDE; k++)
                        total.of[r][k] = repaired(total.of[r][k], rows.of[r], others, k, n);
                    for (int64 k = 0; k < WIDE; k++) found[k] = float(__builtin_sqrt(total.of[r][k]));
                    convert(address<float>(out, i, row + r, first), out.stride[2], found, 1, min(WIDE, right - first));
                }
            }
        }
    });
}
KERNEL(distances)

// dx1 [a, P, M], float32 = the sums over R of dy / out * (x1 - x2), without those whose distance is 0. dy, out [a, P, R]:
// float32 of any strides.
static void distances_backward(Array dx1, Array x1, Array x2, Array dy, Array out) {
    int64 left = x1.size[1], right = x2.size[1], n = x1.size[2], groups = ceil_div(left, ROWS);
    parallel_for(x1.size[0] * groups, max(1, PARALLEL_ELEMENTS / (ROWS * right * max(n, 1))), [=](int64 begin, int64 end) {
        Scratch<float, 4096> weights(right * ROWS);
        if (!weights) return;
        float* weight = weights;
        for (int64 item = begin; item < end; item++) {
            int64 i = item / groups, first = item % groups * ROWS;
            for (int64 r = 0; r < ROWS; r++) {
                int64 row = min(first + r, left - 1);
                for (int64 j = 0; j < right; j++) {
                    float distance = *address<float>(out, i, row, j);
                    weight[j * ROWS + r] = distance == 0.0f ? 0.0f : *address<float>(dy, i, row, j) / distance;
                }
            }
            Rows rows(x1, i, first);
            for (int64 at = 0; at < n; at += WIDE) {
                Sums total;
                int64 count = min(WIDE, n - at);
                if (count == WIDE) weighted_gaps<true>(total, rows, x2, i, weight, at, count);
                else weighted_gaps<false>(total, rows, x2, i, weight, at, count);
                for (int64 r = 0; r < min(ROWS, left - first); r++) {
                    float* to = address<float>(dx1, i, first + r, at);
                    for (int64 k = 0; k < count; k++) to[k] = float(total.of[r][k]);
                }
            }
        }
    });
}
KERNEL(distances_backward)
