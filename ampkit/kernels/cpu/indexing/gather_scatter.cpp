// Elements along an axis by an index of the same shape [a, n, c], and rows by an index [n].
//
// x is [a, 1, c]: x[i, 0, k] is the element that index[i, j, k] counts from; `step`: from one to the next along the
// axis, in elements. Of the indices of one element, those further along the axis come later: additions have a fixed
// order. An index that is not below the axis' length counts as 0, and the result is whether there was one.
#include "../include/parallel.h"

namespace {

// visit(T*) with the pointer of an unsigned integer of the stored type's size.
template <class Visit>
auto with_words(const Array& array, const Visit& visit) {
    switch (array.kind) {
        case FLOAT64: case INT64: return visit(static_cast<uint64_t*>(array.data));
        case FLOAT32: case INT32: return visit(static_cast<uint32_t*>(array.data));
        case BOOL: case UINT8: return visit(static_cast<uint8_t*>(array.data));
        default: return visit(static_cast<uint16_t*>(array.data));
    }
}

// Places along an axis, in elements, and whether an index was outside.
struct Axis {
    int64 step, length;
    bool outside = false;
    int64 place(int64 index) {
        bool inside = uint64_t(index) < uint64_t(length);
        outside |= !inside;
        return inside ? index * step : 0;
    }
};

// visit(place in x, place in y) for every index, along the axis in order. -> whether one was outside.
template <class Visit>
int64 for_each_index(const Array& index, const Array& x, const Array& y, int64 step, int64 length, const Visit& visit) {
    constexpr int64 BLOCK = 256;
    int64 n = index.size[1], c = index.size[2], blocks = ceil_div(c, BLOCK), outside = 0;
    if (c == 1) {
        parallel_rows(index.size[0], n, [&](int64 begin, int64 end) {
            Axis axis = {step, length};
            for (int64 i = begin; i < end; i++) {
                const int64* at = address<const int64>(index, i);
                int64 x_row = x.offset(i, 0), y_row = y.offset(i, 0), at_step = index.stride[1], y_step = y.stride[1];
                for (int64 j = 0; j < n; j++) visit(x_row + axis.place(at[j * at_step]), y_row + j * y_step);
            }
            if (axis.outside) __atomic_store_n(&outside, 1, __ATOMIC_RELAXED);
        });
        return outside;
    }
    parallel_rows(index.size[0] * blocks, n * min(c, BLOCK), [&](int64 begin, int64 end) {
        Axis axis = {step, length};
        for (int64 item = begin; item < end; item++) {
            int64 i = item / blocks, first = item % blocks * BLOCK, last = min(c, first + BLOCK);
            for (int64 j = 0; j < n; j++) {
                const int64* at = address<const int64>(index, i, j);
                int64 x_row = x.offset(i, 0), y_row = y.offset(i, j);
                int64 at_step = index.stride[2], x_step = x.stride[2], y_step = y.stride[2];
                for (int64 k = first; k < last; k++) visit(x_row + k * x_step + axis.place(at[k * at_step]), y_row + k * y_step);
            }
        }
        if (axis.outside) __atomic_store_n(&outside, 1, __ATOMIC_RELAXED);
    });
    return outside;
}

}  // namespace

// out = x at the index.
static int64 gather(Array out, Array x, Array index, int64 step, int64 length) {
    return with_words(x, [&](auto* from) {
        auto* to = static_cast<decltype(from)>(out.data);
        return for_each_index(index, x, out, step, length, [=](int64 at, int64 place) { to[place] = from[at]; });
    });
}
KERNEL(gather)

// x at the index = values; of several the last.
static int64 scatter(Array x, Array values, Array index, int64 step, int64 length) {
    return with_words(x, [&](auto* to) {
        auto* from = static_cast<decltype(to)>(values.data);
        return for_each_index(index, x, values, step, length, [=](int64 at, int64 place) { to[at] = from[place]; });
    });
}
KERNEL(scatter)

// x, float32, at the index += values.
static int64 scatter_add(Array x, Array values, Array index, int64 step, int64 length) {
    float* to = static_cast<float*>(x.data);
    int64 outside = 0;
    with_float_type(values.kind, values.data, [&](auto* from) {
        outside = for_each_index(index, x, values, step, length, [=](int64 at, int64 place) { to[at] += from[place]; });
    });
    return outside;
}
KERNEL(scatter_add)

// Rows of out [a, length]: start, or zeros where it is absent, plus values [a, n] at index [a, n] of the row, in float32.
static int64 scatter_add_rows(Array out, Array start, Array values, Array index) {
    int64 n = index.size[2], length = out.size[2], outside = 0;
    parallel_rows(out.size[1], n + length, [&](int64 begin, int64 end) {
        Scratch<float> sums(length);
        if (!sums) return;
        Axis axis = {1, length};
        for (int64 row = begin; row < end; row++) {
            if (start) read_floats(sums, start.data, start.kind, start.offset(0, row), start.stride[2], length);
            else memset(sums, 0, length * sizeof(float));
            const int64* at = address<const int64>(index, 0, row);
            with_float_type(values.kind, values.data, [&](auto* data) {
                auto* from = data + values.offset(0, row);
                int64 at_step = index.stride[2], step = values.stride[2];
                for (int64 j = 0; j < n; j++) sums[axis.place(at[j * at_step])] += from[j * step];
            });
            write_floats(sums, out.data, out.kind, out.offset(0, row), out.stride[2], length);
        }
        if (axis.outside) __atomic_store_n(&outside, 1, __ATOMIC_RELAXED);
    });
    return outside;
}
KERNEL(scatter_add_rows)

// out [a, n, c] = rows index [n] of x [a, rows, c], whose last axis is contiguous.
static void take_rows(Array out, Array x, const int64* index) {
    int64 n = out.size[1], c = out.size[2];
    with_words(x, [&](auto* from) {
        auto* to = static_cast<decltype(from)>(out.data);
        parallel_rows(out.size[0] * n, c, [=](int64 begin, int64 end) {
            for (int64 row = begin; row < end; row++) {
                int64 i = row / n, j = row % n;
                memcpy(to + out.offset(i, j), from + x.offset(i, index[j]), c * sizeof(*from));
            }
        });
    });
}
KERNEL(take_rows)

// out [a, rows, c] = the sum of the rows of values [a, .., c] for each row that index [n] names; 0 for row `skipped`. In
// float32 for up to 32 rows, these sums in float64. sources [n]: which rows of values these are; null: the first n.
static void sum_rows(Array out, Array values, const int64* index, const int64* sources, int64 n, int64 skipped) {
    constexpr int64 BLOCK = 512, RUN = 32;
    int64 rows = out.size[1], c = out.size[2], blocks = ceil_div(c, BLOCK);
    Scratch<int64> memory(rows + 1 + n);
    if (!memory) return;
    int64 *ends = memory, *order = ends + rows + 1;  // after the sort, row r has order[ends[r - 1]] to order[ends[r] - 1]
    memset(ends, 0, (rows + 1) * sizeof(int64));
    for (int64 j = 0; j < n; j++) ends[index[j] + 1]++;
    for (int64 r = 0; r < rows; r++) ends[r + 1] += ends[r];
    for (int64 j = 0; j < n; j++) order[ends[index[j]]++] = sources ? sources[j] : j;
    parallel_rows(out.size[0] * rows * blocks, min(c, BLOCK), [=](int64 begin, int64 end) {
        float partial[BLOCK];
        double total[BLOCK];
        for (int64 item = begin; item < end; item++) {
            int64 first = item % blocks * BLOCK, r = item / blocks % rows, i = item / blocks / rows;
            int64 from = r ? ends[r - 1] : 0, to = r == skipped ? from : ends[r], count = min(BLOCK, c - first);
            if (from == to && out.stride[2] == 1) {
                with_float_type(out.kind, out.data, [&](auto* data) { memset(data + out.offset(i, r, first), 0, count * sizeof(*data)); });
                continue;
            }
            for (int64 k = 0; k < count; k++) partial[k] = 0.0f;
            if (to - from > RUN) for (int64 k = 0; k < count; k++) total[k] = 0.0;
            with_float_type(values.kind, values.data, [&](auto* data) {
                for (int64 at = from; at < to; at++) {
                    auto* __restrict row = data + values.offset(i, order[at], first);
                    int64 step = values.stride[2];
                    float* __restrict sum = partial;
                    if (step == 1) {
                        SIMD for (int64 k = 0; k < count; k++) sum[k] += row[k];
                    } else {
                        for (int64 k = 0; k < count; k++) sum[k] += row[k * step];
                    }
                    if (to - from > RUN && ((at - from) % RUN == RUN - 1 || at == to - 1)) {
                        for (int64 k = 0; k < count; k++) total[k] += sum[k], sum[k] = at == to - 1 ? float(total[k]) : 0.0f;
                    }
                }
            });
            write_floats(partial, out.data, out.kind, out.offset(i, r, first), out.stride[2], count);
        }
    });
}
KERNEL(sum_rows)

// As sum_rows, for rows too short to be worth sorting the index, and without a row to skip: in float64.
static void sum_short_rows(Array out, Array values, const int64* index) {
    int64 rows = out.size[1], n = values.size[1], c = out.size[2];
    parallel_rows(out.size[0], n * c, [=](int64 begin, int64 end) {
        Scratch<double> memory(rows * c);
        if (!memory) return;
        double* total = memory;
        for (int64 i = begin; i < end; i++) {
            memset(total, 0, rows * c * sizeof(double));
            with_float_type(values.kind, values.data, [&](auto* data) {
                for (int64 j = 0; j < n; j++) {
                    auto* row = data + values.offset(i, j);
                    double* sum = total + index[j] * c;
                    for (int64 k = 0; k < c; k++) sum[k] += row[k * values.stride[2]];
                }
            });
            for (int64 r = 0; r < rows; r++) {
                float buffer[16];
                for (int64 k = 0; k < c; k++) buffer[k] = float(total[r * c + k]);
                write_floats(buffer, out.data, out.kind, out.offset(i, r), out.stride[2], c);
            }
        }
    });
}
KERNEL(sum_short_rows)
