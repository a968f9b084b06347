// Matrix products in float32, as many sums at a time as the vector registers hold.
#pragma once
#include "parallel.h"

#if defined(__AVX512F__)
constexpr int64 LANES = 16, ROWS = 8;
#else
constexpr int64 LANES = 8, ROWS = 6;
#endif
constexpr int64 COLUMNS = 2 * LANES;  // `multiply` computes ROWS x COLUMNS sums
constexpr int64 GAP = 16;             // floats between rows or matrices that are read at once: at distances of some KB
                                      // from each other they would be in few sets of a cache
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

// sums[row * sums_step + column] = sum over k < count of a[row * row_step + k * k_step] * b[k * COLUMNS + column], plus
// what is there if `add`, for ROWS x COLUMNS sums.
inline void multiply(float* sums, int64 sums_step, const float* a, int64 row_step, int64 k_step, const float* b, int64 count,
                     bool add) {
    Vector total[ROWS][2] = {};
    if (add)
        for (int64 row = 0; row < ROWS; row++) memcpy(total[row], sums + row * sums_step, sizeof total[row]);
    for (int64 k = 0; k < count; k++) {
        Vector b_k[2];
        memcpy(b_k, b + k * COLUMNS, sizeof b_k);
        const float* a_k = a + k * k_step;
#pragma GCC unroll 8
        for (int64 row = 0; row < ROWS; row++) {
            float x = a_k[row * row_step];
            total[row][0] += x * b_k[0], total[row][1] += x * b_k[1];
        }
    }
    for (int64 row = 0; row < ROWS; row++) memcpy(sums + row * sums_step, total[row], sizeof total[row]);
}

// How many of `rows` to compute at a time, a multiple of ROWS: at most `most`, and so few that `parts` of their columns
// make several tasks for each thread, if there are enough.
inline int64 rows_of_task(int64 rows, int64 parts, int64 most) {
    most = min(most, round_up(ceil_div(rows * parts, 4 * team_size()), ROWS));
    return round_up(ceil_div(rows, ceil_div(rows, most)), ROWS);
}
