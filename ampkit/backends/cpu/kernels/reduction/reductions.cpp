// Reductions of x [a, b, c]: of the last axis, of rows to [a, b, 1]; of the middle one, of columns to [a, 1, c]; or of
// the first and the last, of the rows of all planes to [1, b, 1].
//
// Terms are computed in float32; blocks of them are added in float64. Where few results need many elements, chunks of
// fixed length give partial results, which are joined in order.
#include "../include/parallel.h"
#include "../include/simd_math.h"

using namespace simd;

namespace {

enum Term : int64 { SUM, ABSOLUTE, SQUARE, EQUAL, EXPONENTIAL, MAXIMUM, MINIMUM, LARGEST_ABSOLUTE, SMALLEST_ABSOLUTE };

constexpr int64 BLOCK = 512;     // columns that are reduced together
constexpr int64 TERMS = 2048;    // terms of a row that are added in float32, each lane of the vectors its own
constexpr int64 SHORT = 256;     // terms of a row below which vectors that are compared as integers are faster
constexpr int64 LONG = 1 << 16;  // elements of a chunk
constexpr int TOGETHER = 4;      // rows that are read at once: the addresses of more do not stay in registers
constexpr int64 FEW = 64;        // fewer results are computed from chunks

bool is_smallest(int64 term) { return term == MINIMUM || term == SMALLEST_ABSOLUTE; }

INLINE bool is_same(float x, float y) { return (x == y) | ((x != x) & (y != y)); }

// The terms value(x, shift), which are added, or of which the largest is found.
template <bool LARGEST, class Value>
struct Terms {
    static constexpr bool largest = LARGEST;
    static constexpr double none = LARGEST ? -__builtin_inf() : 0.0;
    Value value;

    template <class T>
    static T join(T a, T b) { return LARGEST ? (b > a || b != b ? b : a) : a + b; }
};
template <bool LARGEST, class Value>
Terms<LARGEST, Value> terms(Value value) { return {value}; }

template <class Visit>
void with_terms(int64 term, const Visit& visit) {
    const float sign = is_smallest(term) ? -1.0f : 1.0f;  // the smallest is the largest of the negated terms
    switch (term) {
        case SUM: return visit(terms<false>([](float x, float) { return x; }));
        case ABSOLUTE: return visit(terms<false>([](float x, float) { return fabsf(x); }));
        case SQUARE: return visit(terms<false>([](float x, float shift) { return (x - shift) * (x - shift); }));
        case EQUAL: return visit(terms<false>([](float x, float shift) { return is_same(x, shift) ? 1.0f : 0.0f; }));
        case EXPONENTIAL: return visit(terms<false>([](float x, float shift) { return expf(x - shift); }));
        case MAXIMUM: case MINIMUM: return visit(terms<true>([=](float x, float) { return x * sign; }));
        default: return visit(terms<true>([=](float x, float) { return fabsf(x) * sign; }));
    }
}

// What happens to a joined result before it is stored; `out` is contiguous.
struct Result {
    Array out, shift;
    double factor;
    int64 root, alone;  // elements that one thread reduces

    float shift_of_row(int64 i, int64 j) const {
        float found = 0.0f;
        if (shift) read_floats(&found, shift.data, shift.kind, shift.offset(i, j), 0, 1);
        return found;
    }
    void store(const double* total, int64 first, int64 count) const {
        float buffer[BLOCK];
        for (int64 at = 0; at < count; at += BLOCK) {
            int64 n = min(BLOCK, count - at);
            for (int64 k = 0; k < n; k++) {
                double value = total[at + k] * factor;
                buffer[k] = float(root ? __builtin_sqrt(value) : value);
            }
            write_floats(buffer, out.data, out.kind, first + at, 1, n);
        }
    }
};

template <class T, class Terms>
INLINE double reduce_row(const T* __restrict row, int64 count, float shift, Terms terms) {
    double total = Terms::none;
    for (int64 at = 0; at < count; at += TERMS) {
        int64 n = min(TERMS, count - at);
        const T* __restrict x = row + at;
        float block = 0.0f;
        if (Terms::largest) {
            auto value = [=](int64 k) { return terms.value(x[k], shift); };
            float values[SHORT];
            SIMD for (int64 k = 0; k < (n < SHORT ? n : 0); k++) values[k] = value(k);
            block = n < SHORT ? max_of(values, n) : max_in_lanes(n, value);
        } else {
            SIMD_SUM(block) for (int64 k = 0; k < n; k++) block += terms.value(x[k], shift);
        }
        total = Terms::join(total, double(block));
    }
    return total;
}

// The same of elements that are not adjacent, which are copied first.
template <class Terms>
double reduce_scattered_row(const Array& x, int64 start, int64 count, float shift, Terms terms) {
    float copies[TERMS];
    double total = Terms::none;
    for (int64 at = 0; at < count; at += TERMS) {
        int64 n = min(TERMS, count - at);
        read_floats(copies, x.data, x.kind, start + at * x.stride[2], x.stride[2], n);
        total = Terms::join(total, reduce_row(copies, n, shift, terms));
    }
    return total;
}

template <class Terms>
void reduce_rows(const Array& x, const Result& result, bool across_planes, Terms terms) {
    int64 inner = x.size[1], rows = x.size[0] * inner, n = x.size[2];
    int64 chunk = rows < FEW ? LONG : max(n, 1), chunks = max(ceil_div(n, chunk), 1);
    Scratch<double> totals(rows * chunks);
    if (!totals) return;
    double* total = totals;
    parallel_rows(rows * chunks, min(n, chunk), [&, total](int64 begin, int64 end) {
        with_float_type(x.kind, x.data, [&](auto* data) {
            // The place of each item is counted up: four divisions would take as long as 200 elements.
            int64 i = begin / chunks / inner, j = begin / chunks % inner, at = begin % chunks * chunk;
            for (int64 item = begin; item < end; item++) {
                int64 count = min(chunk, n - at);
                float shift = result.shift_of_row(i, j);
                total[item] = x.stride[2] == 1 ? reduce_row(data + x.offset(i, j, at), count, shift, terms)
                                               : reduce_scattered_row(x, x.offset(i, j, at), count, shift, terms);
                if ((at += chunk) >= n) at = 0, j++;
                if (j == inner) j = 0, i++;
            }
        });
        if (chunks == 1 && !across_planes) result.store(total + begin, begin, end - begin);
    }, result.alone);
    if (chunks == 1 && !across_planes) return;
    int64 results = across_planes ? inner : rows;
    for (int64 row = 0; row < results; row++) {
        double found = Terms::none;
        for (int64 same = row; same < rows; same += results) {
            for (int64 k = 0; k < chunks; k++) found = Terms::join(found, total[same * chunks + k]);
        }
        result.store(&found, row, 1);
    }
}

// The terms of N elements, `step` elements apart, joined in pairs.
template <int N, class T, class Terms>
INLINE float joined(const T* x, int64 step, float shift, Terms terms) {
    if constexpr (N == 1) return terms.value(*x, shift);
    else return Terms::join(joined<N / 2>(x, step, shift, terms), joined<N / 2>(x + N / 2 * step, step, shift, terms));
}

// total[k] joined with the terms of `rows` rows of `columns` elements, `step` elements apart.
template <class T, class Terms>
INLINE void reduce_columns(double* __restrict total, const T* __restrict x, int64 step, int64 rows, int64 columns,
                           const float* __restrict shift, Terms terms) {
    float first[BLOCK], last[BLOCK];
    int64 done = 0;
    for (; done + 4 * TOGETHER <= rows; done += 4 * TOGETHER) {
        const T *__restrict a = x + done * step, *__restrict b = a + TOGETHER * step, *__restrict c = b + TOGETHER * step,
                *__restrict d = c + TOGETHER * step;
        SIMD for (int64 k = 0; k < columns; k++) first[k] = joined<TOGETHER>(a + k, step, shift[k], terms);
        SIMD for (int64 k = 0; k < columns; k++)
            first[k] = Terms::join(first[k], joined<TOGETHER>(b + k, step, shift[k], terms));
        SIMD for (int64 k = 0; k < columns; k++) last[k] = joined<TOGETHER>(c + k, step, shift[k], terms);
        SIMD for (int64 k = 0; k < columns; k++) {
            float half = Terms::join(last[k], joined<TOGETHER>(d + k, step, shift[k], terms));
            total[k] = Terms::join(total[k], double(Terms::join(first[k], half)));
        }
    }
    for (; done < rows; done++) {
        const T* __restrict row = x + done * step;
        SIMD for (int64 k = 0; k < columns; k++) total[k] = Terms::join(total[k], double(terms.value(row[k], shift[k])));
    }
}

// The same of elements that are not adjacent, which are copied first.
template <class Terms>
void reduce_scattered_columns(double* total, const Array& x, int64 start, int64 rows, int64 columns, const float* shift,
                              Terms terms) {
    constexpr int64 COPIED = 4 * TOGETHER;
    float copies[COPIED * BLOCK];
    for (int64 first = 0; first < rows; first += COPIED) {
        int64 count = min(COPIED, rows - first);
        for (int64 i = 0; i < count; i++)
            read_floats(copies + i * columns, x.data, x.kind, start + (first + i) * x.stride[1], x.stride[2], columns);
        reduce_columns(total, copies, columns, count, columns, shift, terms);
    }
}

constexpr bool FOLDED_THEN_REST[] = {true, false};  // two turns of one loop: reduce_columns is compiled into it once

template <class Terms>
void reduce_middle(const Array& x, const Result& result, Terms terms) {
    int64 n = x.size[1], c = x.size[2], blocks = ceil_div(c, BLOCK), groups = x.size[0] * blocks;
    // Narrow rows that follow each other are read several at once, as one row.
    bool dense = x.stride[1] == c && x.stride[2] == 1 && 2 * c <= BLOCK && n >= FEW;
    int64 folded = dense ? BLOCK / c : 1, width = min(c, BLOCK);
    int64 chunk = groups < FEW ? ceil_div(LONG / width, folded) * folded : max(n, 1), chunks = max(ceil_div(n, chunk), 1);
    Scratch<double> totals(groups * chunks * width);
    if (!totals) return;
    double* all = totals;
    parallel_rows(groups * chunks, min(n, chunk) * width, [&, all](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 group = item / chunks, i = group / blocks, k = group % blocks * BLOCK, at = item % chunks * chunk;
            int64 rows = min(chunk, n - at), columns = min(BLOCK, c - k), wide = rows / folded;
            double parts[BLOCK], *total = all + item * width;
            float shift[BLOCK] = {};
            const Array& s = result.shift;
            for (int64 p = 0; p < columns * folded; p++) parts[p] = Terms::none;
            for (int64 fold = 0; s && fold < folded; fold++) {
                read_floats(shift + fold * columns, s.data, s.kind, s.offset(i, 0, k), s.stride[2], columns);
            }
            if (x.stride[2] == 1) {
                with_float_type(x.kind, x.data, [&](auto* data) {
                    for (bool fold : FOLDED_THEN_REST) {
                        int64 first = fold ? 0 : wide * folded, by = fold ? folded : 1, count = fold ? wide : rows - first;
                        reduce_columns(parts, data + x.offset(i, at + first, k), x.stride[1] * by, count, columns * by, shift, terms);
                    }
                });
            } else {
                reduce_scattered_columns(parts, x, x.offset(i, at, k), rows, columns, shift, terms);
            }
            for (int64 p = 0; p < columns; p++) {
                total[p] = parts[p];
                for (int64 fold = 1; fold < folded; fold++) total[p] = Terms::join(total[p], parts[fold * columns + p]);
            }
            if (chunks == 1) result.store(total, i * c + k, columns);
        }
    }, result.alone);
    for (int64 group = 0; chunks > 1 && group < groups; group++) {
        int64 k = group % blocks * BLOCK, columns = min(BLOCK, c - k);
        double* first = all + group * chunks * width;
        for (int64 part = 1; part < chunks; part++) {
            for (int64 p = 0; p < columns; p++) first[p] = Terms::join(first[p], first[part * width + p]);
        }
        result.store(first, group / blocks * c + k, columns);
    }
}

}  // namespace

// out = factor * the sum of terms, or the largest or smallest term; then its square root where `root`. shift, of out's
// shape, or null for 0: what is subtracted from x, or compared with it. axis: the one that is reduced; 0: the last one too.
static void reduce(Array out, Array x, Array shift, int64 term, int64 axis, double factor, int64 root) {
    if (is_smallest(term)) factor = -factor;
    bool across_planes = axis == 0;
    if (across_planes) shift.stride[0] = 0;
    Result result{out, shift, factor, root, term == EXPONENTIAL ? PARALLEL_ELEMENTS : PARALLEL_TERMS};
    with_terms(term, [&](auto terms) {
        if (axis == 1) reduce_middle(x, result, terms);
        else reduce_rows(x, result, across_planes, terms);
    });
}
KERNEL(reduce)

// `count` elements of x of the last axis from element `start` as float32: in place or in the buffer.
static const float* floats(const Array& x, int64 start, int64 count, float* buffer) {
    if (x.is_float32_row()) return static_cast<const float*>(x.data) + start;
    read_floats(buffer, x.data, x.kind, start, x.stride[2], count);
    return buffer;
}

// dx = dy * (x - shift), or dy * exp(x - shift), or dy where x equals shift and else 0. dy and shift are broadcast to x.
static void reduction_backward(Array dx, Array x, Array dy, Array shift, int64 term) {
    int64 inner = x.size[1], n = x.size[2], chunk = min(max(n, 1), LONG), chunks = ceil_div(n, chunk);
    parallel_rows(x.size[0] * inner * chunks, chunk, [=](int64 begin, int64 end) {
        float x_buffer[BLOCK], dy_buffer[BLOCK], shift_buffer[BLOCK] = {}, dx_buffer[BLOCK];
        for (int64 item = begin; item < end; item++) {
            int64 i = item / chunks / inner, j = item / chunks % inner, from = item % chunks * chunk;
            for (int64 at = from; at < min(n, from + chunk); at += BLOCK) {
                int64 count = min(BLOCK, min(n, from + chunk) - at), start = dx.offset(i, j, at);
                const float* value = floats(x, x.offset(i, j, at), count, x_buffer);
                const float* grad = floats(dy, dy.offset(i, j, at), count, dy_buffer);
                const float* s = shift ? floats(shift, shift.offset(i, j, at), count, shift_buffer) : shift_buffer;
                float* result = dx.is_float32_row() ? static_cast<float*>(dx.data) + start : dx_buffer;
                if (term == SQUARE) {
                    SIMD for (int64 k = 0; k < count; k++) result[k] = grad[k] * (value[k] - s[k]);
                } else if (term == EXPONENTIAL) {
                    SIMD for (int64 k = 0; k < count; k++) result[k] = grad[k] * expf(value[k] - s[k]);
                } else {
                    SIMD for (int64 k = 0; k < count; k++) result[k] = is_same(value[k], s[k]) ? grad[k] : 0.0f;
                }
                if (result == dx_buffer) write_floats(result, dx.data, dx.kind, start, dx.stride[2], count);
            }
        }
    });
}
KERNEL(reduction_backward)

// out [a, b, 1] = the product of each row of x, in order, so that it overflows where that of the reference does. Rows are
// multiplied eight at a time: each multiplication waits for the one before.
static void products_of_rows(Array out, Array x) {
    constexpr int TOGETHER = 8;
    int64 inner = x.size[1], rows = x.size[0] * inner, n = x.size[2], step = x.stride[2];
    parallel_for(rows, max(TOGETHER, round_up(PARALLEL_ELEMENTS / max(n, 1), TOGETHER)), [=](int64 begin, int64 end) {
        with_float_type(x.kind, x.data, [&](auto* data) {
            for (int64 first = begin; first < end; first += TOGETHER) {
                decltype(data) row[TOGETHER];
                float product[TOGETHER];
                for (int r = 0; r < TOGETHER; r++) {  // of fewer, the last one again
                    int64 item = min(first + r, end - 1);
                    row[r] = data + x.offset(item / inner, item % inner), product[r] = 1.0f;
                }
                for (int64 k = 0; k < n; k++) {
                    for (int r = 0; r < TOGETHER; r++) product[r] *= float(row[r][k * step]);
                }
                for (int64 item = first; item < min(first + TOGETHER, end); item++)
                    write_floats(product + (item - first), out.data, out.kind, out.offset(item / inner, item % inner), 1, 1);
            }
        });
    });
}
KERNEL(products_of_rows)
