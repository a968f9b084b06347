// Padding of arrays of any axes, row by row of the result, with a constant or with elements of the array; and the
// gradient of the latter, which adds to that of each element those of its copies.
#include "../include/parallel.h"

namespace {

enum Mode : int64 { CONSTANT, REFLECT, REPLICATE, CIRCULAR };
constexpr int64 AXES = 8;
constexpr int64 ALONE = 1 << 16;  // elements that one thread copies before another has started

// The axes, two or more, from the innermost. size: without padding, wide: with it, before: the padding in front; stride:
// of the array that is read, in elements.
struct Padding {
    int64 axes, mode, size[AXES], before[AXES], wide[AXES], stride[AXES];

    int64 after(int64 axis) const { return wide[axis] - before[axis] - size[axis]; }
};

// The element of n that is found at position `at`, which may be before or behind them; -1 for none.
inline int64 source(int64 mode, int64 at, int64 n) {
    if (at >= 0 && at < n) return at;
    switch (mode) {
        case REFLECT: return at < 0 ? -at : 2 * (n - 1) - at;
        case REPLICATE: return at < 0 ? 0 : n - 1;
        case CIRCULAR: return at < 0 ? at + n : at - n;
        default: return -1;
    }
}

// visit(position) for every position, from -before to n + after, where element j of n is found.
template <class Visit>
void for_each_copy(int64 mode, int64 j, int64 n, int64 before, int64 after, const Visit& visit) {
    visit(j);
    if (mode == REPLICATE) {
        for (int64 at = -before; j == 0 && at < 0; at++) visit(at);
        for (int64 at = n; j == n - 1 && at < n + after; at++) visit(at);
    } else {
        int64 in_front = mode == REFLECT ? -j : j - n, behind = mode == REFLECT ? 2 * (n - 1) - j : j + n;
        if (in_front < 0 && in_front >= -before) visit(in_front);
        if (behind >= n && behind < n + after) visit(behind);
    }
}

int64 rows_of(const Padding& p, const int64* size) {
    int64 rows = 1;
    for (int64 axis = 1; axis < p.axes; axis++) rows *= size[axis];
    return rows;
}

// work(row, count, at) for rows of `size` that follow each other along axis 1; at: the first one's positions, of which
// `work` may change that along axis 1.
template <class Work>
void for_rows(int64 begin, int64 end, int64 axes, const int64* size, const Work& work) {
    int64 at[AXES] = {}, rest = begin;
    for (int64 axis = 1; axis < axes; rest /= size[axis++]) at[axis] = rest % size[axis];
    for (int64 row = begin; row < end;) {
        int64 count = min(size[1] - at[1], end - row);
        work(row, count, at);
        row += count, at[1] = 0;
        for (int64 axis = 2; axis < axes && ++at[axis] == size[axis]; axis++) at[axis] = 0;
    }
}

template <class T>
void fill(T* to, T value, int64 count) { convert(to, 1, &value, 0, count); }

// Rows first to first + count, along axis 1, of which `from` is the array's first one.
template <class T>
void pad_rows(T* to, const T* from, const Padding& p, T value, int64 first, int64 count) {
    const int64 n = p.size[0], before = p.before[0], wide = p.wide[0], above = p.before[1], step = p.stride[1];
    if (p.mode == CONSTANT) {
        const int64 begin = max(first, above), end = min(first + count, above + p.size[1]);
        fill(to, value, count * wide);
        for (int64 j = begin; j < end; j++) convert_run(to + (j - first) * wide + before, from + (j - above) * step, n);
        return;
    }
    for (int64 j = first; j < first + count; j++, to += wide) {
        const T* row = from + source(p.mode, j - above, p.size[1]) * step;
        convert_run(to + before, row, n);
        for (int64 k = 0; k < before; k++) to[k] = row[source(p.mode, k - before, n)];
        for (int64 k = before + n; k < wide; k++) to[k] = row[source(p.mode, k - before, n)];
    }
}

template <class T>
void pad(T* out, const T* input, const Padding& p, T value) {
    const int64 wide = p.wide[0];
    parallel_rows(rows_of(p, p.wide), wide, [=, &p](int64 begin, int64 end) {
        for_rows(begin, end, p.axes, p.wide, [=, &p](int64 row, int64 count, const int64* at) {
            const T* from = input;
            for (int64 axis = 2; axis < p.axes; axis++) {
                int64 found = source(p.mode, at[axis] - p.before[axis], p.size[axis]);
                if (found < 0) return fill(out + row * wide, value, count * wide);
                from += found * p.stride[axis];
            }
            pad_rows(out + row * wide, from, p, value, at[1], count);
        });
    }, ALONE);
}

// sum [n] = or, but for the first row, += dy [wide], where each element of that is found.
void add_row(float* __restrict sum, const float* __restrict dy, const Padding& p, bool first) {
    const int64 n = p.size[0], before = p.before[0], wide = p.wide[0];
    if (first) {
        convert_run(sum, dy + before, n);
    } else {
        SIMD for (int64 k = 0; k < n; k++) sum[k] += dy[before + k];
    }
    for (int64 k = 0; k < before; k++) sum[source(p.mode, k - before, n)] += dy[k];
    for (int64 k = before + n; k < wide; k++) sum[source(p.mode, k - before, n)] += dy[k];
}

// add(start) for each row of padded elements that holds copies of the row of elements at the positions `at`.
template <class Add>
void for_each_row_of_copies(const Padding& p, int64 axis, const int64* at, int64 start, const Add& add) {
    if (axis == 0) return add(start);
    for_each_copy(p.mode, at[axis], p.size[axis], p.before[axis], p.after(axis), [&](int64 found) {
        for_each_row_of_copies(p, axis - 1, at, start + (p.before[axis] + found) * p.stride[axis], add);
    });
}

}  // namespace

// out, without gaps, from the input, whose rows have none. value: the bits of the constant. itemsize: 1, 2, 4 or 8.
EXPORT void pad_forward(void* out, void* input, int64 itemsize, uint64_t value, const Padding* padding) {
    auto pad_with = [=](auto bits) {
        using T = decltype(bits);
        pad(static_cast<T*>(out), static_cast<const T*>(input), *padding, bits);
    };
    if (itemsize == 1) pad_with(uint8_t(value));
    else if (itemsize == 2) pad_with(uint16_t(value));
    else if (itemsize == 4) pad_with(uint32_t(value));
    else pad_with(value);
}

// dx, without gaps: for each element, the sum of dy where it is found.
EXPORT void pad_backward(void* dx, int64 dx_kind, void* dy, int64 dy_kind, const Padding* padding) {
    const Padding& p = *padding;
    const int64 n = p.size[0];
    const bool in_place = dy_kind == FLOAT32 && p.stride[0] == 1;
    parallel_rows(rows_of(p, p.size), n, [=, &p](int64 begin, int64 end) {
        Scratch<float> dy_buffer(p.wide[0]), dx_buffer(n);
        if (!(dy_buffer && dx_buffer)) return;
        float *dy_row = dy_buffer, *dx_row = dx_buffer;
        for_rows(begin, end, p.axes, p.size, [=, &p](int64 row, int64 count, int64* at) {
            for (; count--; row++, at[1]++) {
                float* sum = dx_kind == FLOAT32 ? static_cast<float*>(dx) + row * n : dx_row;
                bool first = true;
                for_each_row_of_copies(p, p.axes - 1, at, 0, [=, &p, &first](int64 start) {
                    if (!in_place) read_floats(dy_row, dy, dy_kind, start, p.stride[0], p.wide[0]);
                    add_row(sum, in_place ? static_cast<const float*>(dy) + start : dy_row, p, first);
                    first = false;
                });
                if (sum == dx_row) write_floats(sum, dx, dx_kind, row * n, 1, n);
            }
        });
    });
}
