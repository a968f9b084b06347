// Sums and maxima of rows of a table by bags of indices, without writing those rows down.
#include "../include/parallel.h"

namespace {

constexpr int64 BLOCK = 512;  // columns of a bag that stay in the nearest cache

// The rows of one bag: begin to end of the index, without those equal to `skipped`. factors: null for 1.
struct Bag {
    const int64* index;
    const float* factors;
    int64 begin, end, skipped;
};

// result = the sum, or the mean, of `count` columns of the bag: in float32 for up to 32 rows, these sums in float64.
template <class T>
void sum_bag(float* __restrict result, const T* table, int64 step, const Bag& bag, int64 count, bool mean) {
    constexpr int64 RUN = 32;
    double total[BLOCK];
    int64 added = 0;
    for (int64 k = 0; k < count; k++) result[k] = 0.0f, total[k] = 0.0;
    for (int64 row = bag.begin; row < bag.end; row++) {
        if (bag.index[row] == bag.skipped) continue;
        const T* __restrict from = table + bag.index[row] * step;
        if (bag.factors) {
            const float factor = bag.factors[row];
            SIMD for (int64 k = 0; k < count; k++) result[k] += float(from[k]) * factor;
        } else {
            SIMD for (int64 k = 0; k < count; k++) result[k] += from[k];
        }
        if (++added % RUN == 0) {
            for (int64 k = 0; k < count; k++) total[k] += result[k], result[k] = 0.0f;
        }
    }
    if (added >= RUN) for (int64 k = 0; k < count; k++) result[k] = float(total[k] + result[k]);
    const float size = float(added);
    if (mean && added > 1) for (int64 k = 0; k < count; k++) result[k] /= size;
}

// result = the largest of each of `count` columns of the bag, 0 if it has no row; place: the first row that has it, or
// -1. NaN is largest.
template <class T>
void largest_in_bag(float* __restrict result, int64* place, const T* table, int64 step, const Bag& bag, int64 count) {
    int32_t found[BLOCK];
    for (int64 k = 0; k < count; k++) result[k] = 0.0f, found[k] = -1;
    for (int64 row = bag.begin; row < bag.end; row++) {
        if (bag.index[row] == bag.skipped) continue;
        const T* __restrict from = table + bag.index[row] * step;
        const int32_t here = int32_t(row);
        SIMD for (int64 k = 0; k < count; k++) {
            float value = from[k];
            bool wins = (found[k] < 0) | !((result[k] >= value) | (result[k] != result[k]));
            result[k] = wins ? value : result[k], found[k] = wins ? here : found[k];
        }
    }
    for (int64 k = 0; k < count; k++) place[k] = found[k];
}

}  // namespace

// out [bags, c] = the sum, mean or maximum of the rows of table [rows, c] at index [starts[b]] to [starts[b + 1] - 1],
// without those equal to `skipped`; factors, float32 like index, or null: what they are multiplied with. places [bags, c],
// int64, of a maximum: where in index it is, -1 for an empty bag; else null. Fewer than 2^31 indices.
static void reduce_bags(Array out, Array places, Array table, Array factors, const int64* index, const int64* starts,
                        int64 skipped, int64 mean) {
    int64 bags = out.size[1], c = out.size[2], blocks = ceil_div(c, BLOCK);
    int64 mostly = starts[bags] / max(bags, 1) + 1;
    parallel_rows(bags * blocks, min(c, BLOCK) * mostly, [=](int64 begin, int64 end) {
        float buffer[BLOCK];
        for (int64 item = begin; item < end; item++) {
            int64 b = item / blocks, first = item % blocks * BLOCK, count = min(BLOCK, c - first);
            Bag bag{index, static_cast<const float*>(factors.data), starts[b], starts[b + 1], skipped};
            with_float_type(table.kind, table.data, [&](auto* data) {
                if (places) largest_in_bag(buffer, address<int64>(places, 0, b, first), data + first, table.stride[1], bag, count);
                else sum_bag(buffer, data + first, table.stride[1], bag, count, mean);
            });
            write_floats(buffer, out.data, out.kind, out.offset(0, b, first), out.stride[2], count);
        }
    });
}
KERNEL(reduce_bags)
