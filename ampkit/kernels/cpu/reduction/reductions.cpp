// Reductions of x [a, b, c]: of the last axis, of rows to [a, b, 1]; of the middle one, of columns to [a, 1, c]; or of
// the first and the last, of the rows of all planes to [1, b, 1].
//
// Terms are computed in float32; blocks of them are added in float64, and where a block over- or underflows its terms are
// computed once more in float64. Products are float64 throughout: they over- and underflow later than in float32. Where
// few results need many elements, chunks of fixed length give partial results, which are joined in order.
#include "../include/columns.h"
#include "../include/simd_math.h"

using namespace simd;

namespace simd::terms {

// How the terms of reductions.h are joined, and in which type a few of them are.
enum Join { ADDED, MULTIPLIED, COMPARED };
struct Sum {
    static constexpr Join HOW = ADDED;
    using Type = float;
};
struct Product {
    static constexpr Join HOW = MULTIPLIED;
    using Type = double;
};
struct Max {
    static constexpr Join HOW = COMPARED;
    static constexpr float SIGN = 1.0f;
    using Type = float;
};
struct Min : Max {  // the smallest is the largest of the negated terms
    static constexpr float SIGN = -1.0f;
};
struct AddExps;

}  // namespace simd::terms

using namespace simd::terms;

namespace {

constexpr int64 BLOCK = 512;     // columns that are reduced together
constexpr int64 TERMS = 2048;    // terms of a row that are added in float32, each lane of the vectors its own
constexpr int64 FACTORS = 256;   // terms of a row that are multiplied so, 8 in each lane
constexpr int64 SHORT = 256;     // terms of a row below which vectors that are compared as integers are faster
constexpr int64 LONG = 1 << 16;  // elements of a chunk
constexpr int TOGETHER = 4;      // rows that are read at once: the addresses of more do not stay in registers
constexpr int64 FEW = 64;        // fewer results are computed from chunks

constexpr double MOST = 1e300;         // finite, beyond float32's range, which sums of blocks may leave

// A term of reductions.h, with its sign where the smallest is sought.
template <class Term>
struct Terms {
    static constexpr Join how = Term::HOW;
    static constexpr bool wide = Term::WIDE;
    static constexpr double none = how == ADDED ? 0.0 : how == MULTIPLIED ? 1.0 : -__builtin_inf();
    using Type = typename Term::Type;

    INLINE Type value(float x, float center) {
        if constexpr (how == COMPARED) return Term::term(x, center) * Term::SIGN;
        else return Type(Term::term(x, center));
    }
    INLINE double wide_value(double x, double center) { return Term::term(x, center); }
    static constexpr double least() { return Term::LEAST; }
    static constexpr double sign() {
        if constexpr (how == COMPARED) return Term::SIGN;
        else return 1.0;
    }
    template <class T>
    static T join(T a, T b) { return how == ADDED ? a + b : how == MULTIPLIED ? a * b : b > a || b != b ? b : a; }
};

// What happens to a joined result before it is stored; `out` is contiguous.
struct Result {
    Array out, center;
    double factor;
    int64 root, alone;  // elements that one thread reduces

    float center_of_row(int64 i, int64 j) const {
        float found = 0.0f;
        if (center) read_floats(&found, center.data, center.kind, center.offset(i, j), 0, 1);
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
INLINE double reduce_row(const T* __restrict row, int64 count, float center, Terms terms) {
    constexpr int64 LENGTH = Terms::how == MULTIPLIED ? FACTORS : TERMS;
    double total = Terms::none;
    for (int64 at = 0; at < count; at += LENGTH) {
        int64 n = min(LENGTH, count - at);
        const T* __restrict x = row + at;
        typename Terms::Type block = Terms::none;
        if constexpr (Terms::how == COMPARED) {
            auto value = [=](int64 k) { return terms.value(float(x[k]), center); };
            float values[SHORT];
            SIMD for (int64 k = 0; k < (n < SHORT ? n : 0); k++) values[k] = value(k);
            block = n < SHORT ? max_of(values, n) : max_in_lanes(n, value);
        } else if constexpr (Terms::how == MULTIPLIED) {
            block = product(x, n);
        } else {
            SIMD_SUM(block) for (int64 k = 0; k < n; k++) block += terms.value(float(x[k]), center);
        }
        total = Terms::join(total, double(block));
    }
    return total;
}

// The same of elements that are not adjacent, which are copied first.
template <class Terms>
double reduce_scattered_row(const Array& x, int64 start, int64 count, float center, Terms terms) {
    float copies[TERMS];
    double total = Terms::none;
    for (int64 at = 0; at < count; at += TERMS) {
        int64 n = min(TERMS, count - at);
        read_floats(copies, x.data, x.kind, start + at * x.stride[2], x.stride[2], n);
        total = Terms::join(total, reduce_row(copies, n, center, terms));
    }
    return total;
}

// How many of `total` are lost, as sums of `count` terms.
template <class Terms>
int64 count_lost(const double* total, int64 size, int64 count, Terms) {
    double least = Terms::least() * double(count);
    int64 lost = 0;
    SIMD_SUM(lost) for (int64 k = 0; k < size; k++) {
        double magnitude = __builtin_fabs(total[k]);
        lost += !((magnitude <= MOST) & (magnitude >= least));
    }
    return lost;
}

// `total` once more, in float64, if it is lost: of `count` elements of x from `start` on.
template <class Terms>
double repaired_row(double total, const Array& x, int64 start, int64 count, float center, Terms terms) {
    if (!count_lost(&total, 1, count, terms)) return total;
    float copies[TERMS];
    total = 0.0;
    for (int64 at = 0; at < count; at += TERMS) {
        int64 n = min(TERMS, count - at);
        read_floats(copies, x.data, x.kind, start + at * x.stride[2], x.stride[2], n);
        SIMD_SUM(total) for (int64 k = 0; k < n; k++) total += terms.wide_value(double(copies[k]), double(center));
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
                float center = result.center_of_row(i, j);
                total[item] = x.stride[2] == 1 ? reduce_row(data + x.offset(i, j, at), count, center, terms)
                                               : reduce_scattered_row(x, x.offset(i, j, at), count, center, terms);
                if ((at += chunk) >= n) at = 0, j++;
                if (j == inner) j = 0, i++;
            }
        });
        if constexpr (Terms::wide) {
            int64 lost = count_lost(total + begin, end - begin, min(n, chunk), terms);
            for (int64 item = begin; lost && item < end; item++) {
                int64 i = item / chunks / inner, j = item / chunks % inner, at = item % chunks * chunk, start = x.offset(i, j, at);
                total[item] = repaired_row(total[item], x, start, min(chunk, n - at), result.center_of_row(i, j), terms);
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
INLINE typename Terms::Type joined(const T* x, int64 step, float center, Terms terms) {
    if constexpr (N == 1) return terms.value(float(*x), center);
    else return Terms::join(joined<N / 2>(x, step, center, terms), joined<N / 2>(x + N / 2 * step, step, center, terms));
}

// total[k] joined with the terms of `rows` rows of `columns` elements, `step` elements apart.
template <class T, class Terms>
INLINE void reduce_columns(double* __restrict total, const T* __restrict x, int64 step, int64 rows, int64 columns,
                           const float* __restrict center, Terms terms) {
    typename Terms::Type first[BLOCK], last[BLOCK];
    int64 done = 0;
    for (; done + 4 * TOGETHER <= rows; done += 4 * TOGETHER) {
        const T *__restrict a = x + done * step, *__restrict b = a + TOGETHER * step, *__restrict c = b + TOGETHER * step,
                *__restrict d = c + TOGETHER * step;
        SIMD for (int64 k = 0; k < columns; k++) first[k] = joined<TOGETHER>(a + k, step, center[k], terms);
        SIMD for (int64 k = 0; k < columns; k++)
            first[k] = Terms::join(first[k], joined<TOGETHER>(b + k, step, center[k], terms));
        SIMD for (int64 k = 0; k < columns; k++) last[k] = joined<TOGETHER>(c + k, step, center[k], terms);
        SIMD for (int64 k = 0; k < columns; k++) {
            auto half = Terms::join(last[k], joined<TOGETHER>(d + k, step, center[k], terms));
            total[k] = Terms::join(total[k], double(Terms::join(first[k], half)));
        }
    }
    for (; done < rows; done++) {
        const T* __restrict row = x + done * step;
        SIMD for (int64 k = 0; k < columns; k++) total[k] = Terms::join(total[k], double(terms.value(float(row[k]), center[k])));
    }
}

// The same of elements that are not adjacent, which are copied first.
template <class Terms>
void reduce_scattered_columns(double* total, const Array& x, int64 start, int64 rows, int64 columns, const float* center,
                              Terms terms) {
    constexpr int64 COPIED = 4 * TOGETHER;
    float copies[COPIED * BLOCK];
    for (int64 first = 0; first < rows; first += COPIED) {
        int64 count = min(COPIED, rows - first);
        for (int64 i = 0; i < count; i++)
            read_floats(copies + i * columns, x.data, x.kind, start + (first + i) * x.stride[1], x.stride[2], columns);
        reduce_columns(total, copies, columns, count, columns, center, terms);
    }
}

// total[k] once more, in float64, where it is lost: of rows of x from `start` on.
template <class Terms>
void repair_columns(double* total, const Array& x, int64 start, int64 rows, int64 columns, const float* center, Terms terms) {
    if (!count_lost(total, columns, rows, terms)) return;
    float row[BLOCK];
    double again[BLOCK] = {};
    for (int64 i = 0; i < rows; i++) {
        read_floats(row, x.data, x.kind, start + i * x.stride[1], x.stride[2], columns);
        SIMD for (int64 k = 0; k < columns; k++) again[k] += terms.wide_value(double(row[k]), double(center[k]));
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
            float center[BLOCK] = {};
            const Array& s = result.center;
            for (int64 p = 0; p < columns * folded; p++) parts[p] = Terms::none;
            for (int64 fold = 0; s && fold < folded; fold++) {
                read_floats(center + fold * columns, s.data, s.kind, s.offset(i, 0, k), s.stride[2], columns);
            }
            if (x.stride[2] == 1) {
                with_float_type(x.kind, x.data, [&](auto* data) {
                    for (bool fold : FOLDED_THEN_REST) {
                        int64 first = fold ? 0 : wide * folded, by = fold ? folded : 1, count = fold ? wide : rows - first;
                        reduce_columns(parts, data + x.offset(i, at + first, k), x.stride[1] * by, count, columns * by, center, terms);
                    }
                });
            } else {
                reduce_scattered_columns(parts, x, x.offset(i, at, k), rows, columns, center, terms);
            }
            for (int64 p = 0; p < columns; p++) {
                total[p] = parts[p];
                for (int64 fold = 1; fold < folded; fold++) total[p] = Terms::join(total[p], parts[fold * columns + p]);
            }
            if constexpr (Terms::wide) repair_columns(total, x, x.offset(i, at, k), rows, columns, center, terms);
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

using Reduce = void (*)(const Array& out, const Array& x, Array center, int64 axis, double factor, int64 root);

template <class Term>
constexpr int64 ALONE = PARALLEL_TERMS;
template <>
constexpr int64 ALONE<AddExps> = PARALLEL_ELEMENTS;

template <class Term>
void reduce_terms(const Array& out, const Array& x, Array center, int64 axis, double factor, int64 root) {
    Terms<Term> terms;
    if (axis == 0) center.stride[0] = 0;
    Result result{out, center, factor * terms.sign(), root, ALONE<Term>};
    if (axis == 1) reduce_middle(x, result, terms);
    else reduce_rows(x, result, axis == 0, terms);
}

}  // namespace

// `reduction_<term>` of the library: the reduction of each term.
namespace simd::terms {

#define HELPER INLINE
#define REGISTER_TERM(NAME) EXPORT const Reduce reduction_##NAME = reduce_terms<NAME>;
#include "../../shared/reductions.h"

}  // namespace simd::terms

// out = factor * the sum of terms, or the largest or smallest term; then its square root where `root`. term: one of those.
// center, of out's shape, or null for 0. axis: the one that is reduced; 0: the last one too.
static void reduce(const Reduce* term, Array out, Array x, Array center, int64 axis, double factor, int64 root) {
    (*term)(out, x, center, axis, factor, root);
}
KERNEL(reduce)

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
    double product = reduce_row(x, n, 0.0f, Terms<Multiply>());
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
