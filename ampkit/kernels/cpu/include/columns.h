// Rows along an axis that is not adjacent in memory: many of them at once, as the columns of a tile.
#pragma once
#include "parallel.h"

constexpr int64 WIDEST = 512, SUMMED = 512;  // columns of a tile; elements of a column that are summed in float32

// Moves rows that are [a, 1, n] to [1, a, n].
inline Array as_columns(Array array) {
    if (array.size[1] != 1) return array;
    array.size[1] = array.size[0], array.stride[1] = array.stride[0], array.size[0] = 1, array.stride[0] = 0;
    return array;
}

inline bool has_columns(const Array& array) {
    return array.stride[1] == 1 && array.stride[2] != 1 && array.size[1] > 1 && array.size[2] > 1;
}

// `count` columns from [i, first, :] on: element k of all of them is a row of float32.
struct ColumnTile {
    int64 i, first, count;
    const float* read(const Array& array, int64 k, float* buffer) const {
        if (array.kind == FLOAT32 && array.stride[1] == 1) return address<const float>(array, i, first, k);
        read_floats(buffer, array.data, array.kind, array.offset(i, first, k), array.stride[1], count);
        return buffer;
    }
    float* to_write(const Array& array, int64 k, float* buffer) const {
        return array.kind == FLOAT32 && array.stride[1] == 1 ? address<float>(array, i, first, k) : buffer;
    }
    void write(const Array& array, int64 k, const float* row) const {
        if (array.kind != FLOAT32 || array.stride[1] != 1)
            write_floats(row, array.data, array.kind, array.offset(i, first, k), array.stride[1], count);
    }
};

// work(tile) for tiles of all rows.
template <class Work>
void for_each_tile(const Array& array, const Work& work) {
    int64 n = array.size[2], inner = array.size[1], width = min(inner, max(64, min(WIDEST, 16384 / n / 16 * 16)));
    int64 tiles = ceil_div(inner, width);
    parallel_rows(array.size[0] * tiles, n * width, [&](int64 begin, int64 end) {
        for (int64 t = begin; t < end; t++) {
            int64 first = t % tiles * width;
            work(ColumnTile{t / tiles, first, min(width, inner - first)});
        }
    });
}

// sums[c] = the sum over k of row(k)[c]; float32 within SUMMED rows, float64 beyond.
template <class Row>
void sum_columns(float* sums, int64 n, int64 count, const Row& row) {
    double totals[WIDEST] = {};
    for (int64 begin = 0; begin < n; begin += SUMMED) {
        for (int64 c = 0; c < count; c++) sums[c] = 0.0f;
        for (int64 k = begin; k < min(begin + SUMMED, n); k++) row(k, sums);
        for (int64 c = 0; c < count; c++) totals[c] += sums[c];
    }
    for (int64 c = 0; c < count; c++) sums[c] = float(totals[c]);
}
