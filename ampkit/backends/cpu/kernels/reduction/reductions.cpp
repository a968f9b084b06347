// Reductions of x [a, b, c]: of the last axis, of rows to [a, b, 1]; of the middle one, of columns to [a, 1, c]; or of
// the first and the last, of the rows of all planes to [1, b, 1].
//
// Terms are computed in float32; blocks of them are added in float64, and where a block over- or underflows its terms are
// computed once more in float64. Products are float64 throughout: they over- and
// underflow later than in float32. Where few results need many elements, chunks of fixed length give partial results,
// which are joined in order.
#include "../include/columns.h"
#include "../include/simd_math.h"

using namespace simd;

namespace {

enum Term : int64 {
    SUM, ABSOLUTE, SQUARE, EQUAL, EXPONENTIAL, MAXIMUM, MINIMUM, LARGEST_ABSOLUTE, SMALLEST_ABSOLUTE, PRODUCT
};
enum Join { ADDED, MULTIPLIED, COMPARED };

constexpr int64 BLOCK = 512;     // columns that are reduced together
constexpr int64 TERMS = 2048;    // terms of a row that are added in float32, each lane of the vectors its own
constexpr int64 FACTORS = 256;   // terms of a row that are multiplied so, 8 in each lane
constexpr int64 SHORT = 256;     // terms of a row below which vectors that are compared as integers are faster
constexpr int64 LONG = 1 << 16;  // elements of a chunk
constexpr int TOGETHER = 4;      // rows that are read at once: the addresses of more do not stay in registers
constexpr int64 FEW = 64;        // fewer results are computed from chunks

constexpr double SMALLEST = 0x1p-126;  // the least square that float32 holds with all its bits
constexpr double MOST = 1e300;         // finite, beyond float32's range, which sums of blocks may leave

bool is_smallest(int64 term) { return term == MINIMUM || term == SMALLEST_ABSOLUTE; }

INLINE bool is_same(float x, float y) { return (x == y) | ((x != x) & (y != y)); }

// The terms value(x, shift), which are added or multiplied, or of which the largest is found.
template <Join JOIN, class Value>
struct Terms {
    static constexpr Join how = JOIN;
    static constexpr double none = JOIN == ADDED ? 0.0 : JOIN == MULTIPLIED ? 1.0 : -__builtin_inf();
    Value value;
    using Type = decltype(value(0.0f, 0.0f));  // of a term, and of a few that are joined
    static constexpr bool wide = __is_same(decltype(value(0.0, 0.0)), double) && __is_same(Type, float);

    double least = 0.0;  // a sum is lost that is not finite or below `least` per term: it may have lost more than roundings

    template <class T>
    static T join(T a, T b) { return JOIN == ADDED ? a + b : JOIN == MULTIPLIED ? a * b : b > a || b != b ? b : a; }
};
template <Join JOIN, class Value>
Terms<JOIN, Value> terms(Value value, double least = 0.0) { return {value, least}; }

template <class Visit>
void with_terms(int64 term, const Visit& visit) {
    const float sign = is_smallest(term) ? -1.0f : 1.0f;  // the smallest is the largest of the negated terms
    switch (term) {
        case SUM: return visit(terms<ADDED>([](auto x, auto) { return x; }));
        case ABSOLUTE: return visit(terms<ADDED>([](auto x, auto) { return x < 0 ? -x : x; }));
        case SQUARE: return visit(terms<ADDED>([](auto x, auto shift) { return (x - shift) * (x - shift); }, SMALLEST));
        case EQUAL: return visit(terms<ADDED>([](float x, float shift) { return is_same(x, shift) ? 1.0f : 0.0f; }));
        case EXPONENTIAL: return visit(terms<ADDED>([](float x, float shift) { return expf(x - shift); }));
        case PRODUCT: return visit(terms<MULTIPLIED>([](float x, float) { return double(x); }));
        case MAXIMUM: case MINIMUM: return visit(terms<COMPARED>([=](float x, float) { return x * sign; }));
        default: return visit(terms<COMPARED>([=](float x, float) { return fabsf(x) * sign; }));
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

// The product of at most FACTORS elements; a lane, of 8, neither over- nor underflows, unless elements are subnormal.
template <class T>
INLINE double product(const T* __restrict x, int64 count) {
    constexpr int64 LANES = FACTORS / 8;
    double lane[LANES], total = 1.0;
    for (double& each : lane) each = 1.0;
    int64 k = 0;
    for (; k + LANES <= count; k += LANES) {
        SIMD for (int64 i = 0; i < LANES; i++) lane[i] *= double(x[k + i]);
    }
    for (; k < count; k++) total *= double(x[k]);
    for (int64 width = LANES / 2; width; width /= 2) {
        for (int64 i = 0; i < width; i++) lane[i] = lane[2 * i] * lane[2 * i + 1];
    }
    return total * lane[0];
}

template <class T, class Terms>
INLINE double reduce_row(const T* __restrict row, int64 count, float shift, Terms terms) {
    constexpr int64 LENGTH = Terms::how == MULTIPLIED ? FACTORS : TERMS;
    double total = Terms::none;
    for (int64 at = 0; at < count; at += LENGTH) {
        int64 n = min(LENGTH, count - at);
        const T* __restrict x = row + at;
        typename Terms::Type block = Terms::none;
        if constexpr (Terms::how == COMPARED) {
            auto value = [=](int64 k) { return terms.value(x[k], shift); };
            float values[SHORT];
            SIMD for (int64 k = 0; k < (n < SHORT ? n : 0); k++) values[k] = value(k);
            block = n < SHORT ? max_of(values, n) : max_in_lanes(n, value);
        } else if constexpr (Terms::how == MULTIPLIED) {
            block = product(x, n);
        } else {
            SIMD_SUM(block) for (int64 k = 0; k < n; k++) block += terms.value(float(x[k]), shift);
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

// How many of `total` are lost, as sums of `count` terms.
template <class Terms>
int64 count_lost(const double* total, int64 size, int64 count, Terms terms) {
    double least = terms.least * double(count);
    int64 lost = 0;
    SIMD_SUM(lost) for (int64 k = 0; k < size; k++) {
        double magnitude = __builtin_fabs(total[k]);
        lost += !((magnitude <= MOST) & (magnitude >= least));
    }
    return lost;
}

// `total` once more, in float64, if it is lost: of `count` elements of x from `start` on.
template <class Terms>
double repaired_row(double total, const Array& x, int64 start, int64 count, float shift, Terms terms) {
    if (!count_lost(&total, 1, count, terms)) return total;
    float copies[TERMS];
    total = 0.0;
    for (int64 at = 0; at < count; at += TERMS) {
        int64 n = min(TERMS, count - at);
        read_floats(copies, x.data, x.kind, start + at * x.stride[2], x.stride[2], n);
        SIMD_SUM(total) for (int64 k = 0; k < n; k++) total += terms.value(double(copies[k]), double(shift));
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
        if constexpr (Terms::wide) {
            int64 lost = count_lost(total + begin, end - begin, min(n, chunk), terms);
            for (int64 item = begin; lost && item < end; item++) {
                int64 i = item / chunks / inner, j = item / chunks % inner, at = item % chunks * chunk, start = x.offset(i, j, at);
                total[item] = repaired_row(total[item], x, start, min(chunk, n - at), result.shift_of_row(i, j), terms);
            }
        }
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
INLINE typename Terms::Type joined(const T* x, int64 step, float shift, Terms terms) {
    if constexpr (N == 1) return terms.value(float(*x), shift);
    else return Terms::join(joined<N / 2>(x, step, shift, terms), joined<N / 2>(x + N / 2 * step, step, shift, terms));
}

// total[k] joined with the terms of `rows` rows of `columns` elements, `step` elements apart.
template <class T, class Terms>
INLINE void reduce_columns(double* __restrict total, const T* __restrict x, int64 step, int64 rows, int64 columns,
                           const float* __restrict shift, Terms terms) {
    typename Terms::Type first[BLOCK], last[BLOCK];
    int64 done = 0;
    for (; done + 4 * TOGETHER <= rows; done += 4 * TOGETHER) {
        const T *__restrict a = x + done * step, *__restrict b = a + TOGETHER * step, *__restrict c = b + TOGETHER * step,
                *__restrict d = c + TOGETHER * step;
        SIMD for (int64 k = 0; k < columns; k++) first[k] = joined<TOGETHER>(a + k, step, shift[k], terms);
        SIMD for (int64 k = 0; k < columns; k++)
            first[k] = Terms::join(first[k], joined<TOGETHER>(b + k, step, shift[k], terms));
        SIMD for (int64 k = 0; k < columns; k++) last[k] = joined<TOGETHER>(c + k, step, shift[k], terms);
        SIMD for (int64 k = 0; k < columns; k++) {
            auto half = Terms::join(last[k], joined<TOGETHER>(d + k, step, shift[k], terms));
            total[k] = Terms::join(total[k], double(Terms::join(first[k], half)));
        }
    }
    for (; done < rows; done++) {
        const T* __restrict row = x + done * step;
        SIMD for (int64 k = 0; k < columns; k++) total[k] = Terms::join(total[k], double(terms.value(float(row[k]), shift[k])));
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

// total[k] once more, in float64, where it is lost: of rows of x from `start` on.
template <class Terms>
void repair_columns(double* total, const Array& x, int64 start, int64 rows, int64 columns, const float* shift, Terms terms) {
    if (!count_lost(total, columns, rows, terms)) return;
    float row[BLOCK];
    double again[BLOCK] = {};
    for (int64 i = 0; i < rows; i++) {
        read_floats(row, x.data, x.kind, start + i * x.stride[1], x.stride[2], columns);
        SIMD for (int64 k = 0; k < columns; k++) again[k] += terms.value(double(row[k]), double(shift[k]));
    }
    for (int64 k = 0; k < columns; k++) total[k] = count_lost(total + k, 1, rows, terms) ? again[k] : total[k];
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
            if constexpr (Terms::wide) repair_columns(total, x, x.offset(i, at, k), rows, columns, shift, terms);
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


namespace {

// Whether the product of x and others, divided by x, is not that of the others.
INLINE bool is_no_divisor(float x) { return (x == 0.0f) | !(fabsf(x) < INF); }

// dx [n] = dy times the product of the other elements of x [n], which is that of those before and of those behind.
void multiply_others(float* dx, const float* x, int64 n, double dy) {
    Scratch<double> products(n + 1);
    if (!products) return;
    double *behind = products, before = 1.0;
    behind[n] = 1.0;
    for (int64 k = n; k--;) behind[k] = behind[k + 1] * x[k];
    for (int64 k = 0; k < n; before *= x[k++]) dx[k] = float(dy * (before * behind[k + 1]));
}

void product_backward_row(float* dx, const float* x, int64 n, double dy) {
    double product = reduce_row(x, n, 0.0f, terms<MULTIPLIED>([](float value, float) { return double(value); }));
    int32_t bad = product != product;
    SIMD_SUM(bad) for (int64 k = 0; k < n; k++) bad += is_no_divisor(x[k]);
    if (bad) return multiply_others(dx, x, n, dy);
    SIMD for (int64 k = 0; k < n; k++) dx[k] = float(dy * (product / x[k]));
}

void product_backward_tile(const Array& dx, const Array& x, const Array& dy, const ColumnTile& tile) {
    int64 n = x.size[2], count = tile.count;
    double product[WIDEST];
    float x_buffer[WIDEST], dx_buffer[WIDEST], dy_buffer[WIDEST];
    int32_t bad[WIDEST] = {};
    for (int64 c = 0; c < count; c++) product[c] = 1.0;
    for (int64 k = 0; k < n; k++) {
        const float* value = tile.read(x, k, x_buffer);
        SIMD for (int64 c = 0; c < count; c++) product[c] *= value[c], bad[c] += is_no_divisor(value[c]);
    }
    const float* grad = tile.read(dy, 0, dy_buffer);
    for (int64 k = 0; k < n; k++) {
        const float* value = tile.read(x, k, x_buffer);
        float* result = tile.to_write(dx, k, dx_buffer);
        SIMD for (int64 c = 0; c < count; c++) result[c] = float(grad[c] * (product[c] / value[c]));
        tile.write(dx, k, result);
    }
    for (int64 c = 0; c < count; c++) {
        if (!bad[c] && product[c] == product[c]) continue;
        Scratch<float> column(n), result(n);
        if (!(column && result)) return;
        read_floats(column, x.data, x.kind, x.offset(tile.i, tile.first + c), x.stride[2], n);
        multiply_others(result, column, n, grad[c]);
        write_floats(result, dx.data, dx.kind, dx.offset(tile.i, tile.first + c), dx.stride[2], n);
    }
}

}  // namespace

// dx = dy [a, b, 1] times the product of the other elements of the row of x [a, b, n]: that of all divided by the element
// itself, but where one is 0 or not finite.
static void product_backward(Array dx, Array x, Array dy) {
    if (has_columns(x)) return for_each_tile(x, [=](const ColumnTile& tile) { product_backward_tile(dx, x, dy, tile); });
    int64 inner = x.size[1], n = x.size[2];
    parallel_rows(x.size[0] * inner, n, [=](int64 begin, int64 end) {
        Scratch<float> x_buffer(n), dx_buffer(n);
        if (!(x_buffer && dx_buffer)) return;
        for (int64 row = begin; row < end; row++) {
            int64 i = row / inner, j = row % inner;
            float grad, *result = row_to_write(dx, i, j, dx_buffer);
            read_floats(&grad, dy.data, dy.kind, dy.offset(i, j), 1, 1);
            product_backward_row(result, read_row(x, i, j, x_buffer), n, grad);
            write_row(dx, i, j, result);
        }
    });
}
KERNEL(product_backward)
