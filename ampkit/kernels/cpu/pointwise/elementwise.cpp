// out = f(x, y, z, w) of broadcast operands, and gradients, for each function of kernels/shared/functions.h.
//
// A tile of at most BLOCK elements at a time: operands are read as float32, in place or into a buffer, and a loop over
// the tile computes the function; short functions have loops that read and write tensors as they are stored. Tiles of rows
// of float32 are longer, as they need no buffers. Tiles do not depend on the number of threads.
#include "../include/tiles.h"
#include "../include/simd_special.h"

namespace {

struct Job {
    const Arguments& given;
    const Layout& layout;
    int64 rows, columns, tiles_down, tiles_across, tiles;

    explicit Job(const Arguments& arguments)
        : given(arguments), layout(arguments.layout), rows(layout.size[layout.axes - 2]),
          columns(layout.size[layout.axes - 1]), tiles_down(ceil_div(rows, layout.tile_rows)),
          tiles_across(ceil_div(columns, layout.tile_columns)), tiles(tiles_down * tiles_across) {
        for (int64 axis = 0; axis < layout.axes - 2; axis++) tiles *= layout.size[axis];
    }

    bool supported() const {
        bool all = true;
        for (int64 i = 0; i < OPERANDS; i++) all &= layout.kind[i] < 0 || is_aligned(given.in[i], ITEMSIZE[layout.kind[i]]);
        return all;
    }

    // visit(tile number, tiles of the operands and of the outputs, their reader) for all tiles, on all threads.
    template <class Visit>
    void for_each_tile(const Visit& visit) const {
        int64 elements = layout.row_step ? layout.tile_rows * layout.tile_columns : BLOCK;
        parallel_for(tiles, max(1, PARALLEL_ELEMENTS / elements), [&](int64 begin, int64 end) {
            Reader reader(given);
            Tile tile[OPERANDS + 1];
            for (int64 t = begin; t < end; t++) {
                // The next tile of the same rows begins tile_columns further; others are found by division.
                if (t == begin || t % tiles_across == 0) find_tile(t, tile);
                else next_tile(t, tile);
                visit(t, tile, reader);
            }
        });
    }

    void find_tile(int64 t, Tile* tile) const {
        int64 across = t % tiles_across, rest = t / tiles_across, down = rest % tiles_down, last = layout.axes - 1;
        int64 row = down * layout.tile_rows, column = across * layout.tile_columns;
        for (int64 i = 0; i <= OPERANDS; i++) {
            const int64* stride = layout.stride[i];
            int64 outer = rest / tiles_down, start = row * stride[last - 1] + column * stride[last];
            for (int64 axis = last - 2; axis >= 0; axis--) {
                start += outer % layout.size[axis] * stride[axis];
                outer /= layout.size[axis];
            }
            tile[i] = {start, min(layout.tile_rows, rows - row), min(layout.tile_columns, columns - column),
                       stride[last - 1], stride[last]};
        }
    }

    void next_tile(int64 t, Tile* tile) const {
        int64 width = min(layout.tile_columns, columns - t % tiles_across * layout.tile_columns);
        for (int64 i = 0; i <= OPERANDS; i++) {
            tile[i].start += layout.tile_columns * tile[i].column_stride;
            tile[i].columns = width;
        }
    }
};

constexpr int VALUE = -1;

// Whether vectors are so wide that it pays to read and write tensors as they are stored; without, the build is quicker.
#if defined(__AVX2__) || defined(__aarch64__)
constexpr bool IS_WIDE = true;
#else
constexpr bool IS_WIDE = false;
#endif

// The value of a function, or the gradient of its input number RESULT.
template <class F, int RESULT>
inline __attribute__((always_inline)) float compute(float a, float b, float c, float d) {
    if constexpr (RESULT == VALUE) {
        return F::forward(a, b, c, d);
    } else {
        float gradients[3];
        F::backward(a, b, c, d, gradients);
        return gradients[RESULT];
    }
}

template <class F, int RESULT>
void float32_loop(const float* const* operands, float* __restrict result, int64 n) {
    const float *__restrict a = operands[0], *__restrict b = operands[1], *__restrict c = operands[2],
                *__restrict d = operands[3];
    int64 begin = 0;
    for (; FOUR_VECTORS && begin + AT_A_TIME <= n; begin += AT_A_TIME)
        SIMD_AT_A_TIME for (int64 i = begin; i < begin + AT_A_TIME; i++)
            result[i] = compute<F, RESULT>(a[i], b[i], c[i], d[i]);
    SIMD for (int64 i = begin; i < n; i++) result[i] = compute<F, RESULT>(a[i], b[i], c[i], d[i]);
}

template <class F, int RESULT>
void plain_loop(const float* const* operands, float* result, int64 n) {
    for (int64 i = 0; i < n; i++) {
        result[i] = compute<F, RESULT>(operands[0][i], operands[1][i], operands[2][i], operands[3][i]);
    }
}

// What the results of a function of FUNCTION_SHORT are: results of arithmetic, or elements of its operands but for the
// sign, or also halves of them, or gradients that are dy or 0. Numbers are rounded to the stored dtype, except COMPUTED, and
// those of a threshold that elements are compared with.
enum Results { COMPUTED, MOVED, HALVED, GATED, MOVED_ABOVE, GATED_ABOVE };
[[maybe_unused]] constexpr bool is_gated(Results results) { return results == GATED || results == GATED_ABOVE; }
[[maybe_unused]] constexpr bool rounds_number(Results results, int operand) {
    return results == MOVED_ABOVE ? operand != 1 : results == GATED_ABOVE ? operand == 0 : results != COMPUTED;
}

}  // namespace

// All ones, which the compiler does not know.
extern "C" {
__attribute__((visibility("default"))) uint32_t elementwise_ones = ~uint32_t(0);
}

namespace {

// Elements and their halves are stored so that subnormals stay. bfloat16 needs for them little of what rounds any number,
// and is as quick as where subnormals become 0.
template <Results RESULTS, class T>
INLINE void store_result(T& to, float x) {
    if constexpr (RESULTS == COMPUTED) store(to, x);
    else to = x;
}
template <Results RESULTS>
INLINE void store_result(bfloat16& to, float x) {
    uint32_t half_bit = RESULTS == HALVED ? bits_of(x) >> 1 & 0x8000 : 0;  // rounds up where the last bit to keep is set
    if constexpr (RESULTS == COMPUTED) store(to, x);
    else to.bits = uint16_t((bits_of(x) + half_bit) >> 16);
}

template <class T>
float rounded_to(float x) { T rounded; rounded = x; return rounded; }

template <class F, int RESULT, Results RESULTS, class T, int ROWS>
void stored_loop(const void* const* rows, const float* numbers, void* to, int64 n, Ahead* ahead) {
    const T *__restrict a = static_cast<const T*>(rows[0]), *__restrict b = static_cast<const T*>(rows[1]),
            *__restrict c = static_cast<const T*>(rows[2]);
    auto number = [=](int i) { return rounds_number(RESULTS, i) ? rounded_to<T>(numbers[i]) : numbers[i]; };
    const float number_a = number(0), number_b = number(1), number_c = number(2), d = number(3);
    T* __restrict result = static_cast<T*>(to);
    // dy or 0 as a choice becomes a load of dy with a mask, which takes 1.2 to 1.4 times as long as dy & mask (AMD Zen 4).
    [[maybe_unused]] const float ones = __builtin_bit_cast(float, elementwise_ones);
    auto compute_one = [=](int64 i) __attribute__((always_inline)) {
        float first = ROWS & 1 ? float(a[i]) : number_a;
        float found = compute<F, RESULT>(is_gated(RESULTS) ? ones : first, ROWS & 2 ? float(b[i]) : number_b,
                                         ROWS & 4 ? float(c[i]) : number_c, d);
        if constexpr (is_gated(RESULTS)) found = __builtin_bit_cast(float, bits_of(first) & bits_of(found));
        store_result<RESULTS>(result[i], found);
    };
    int64 begin = 0;
    for (; FOUR_VECTORS && begin + AT_A_TIME <= n; begin += AT_A_TIME) {
        if (ahead) ahead->fetch();
        SIMD_AT_A_TIME for (int64 i = begin; i < begin + AT_A_TIME; i++) compute_one(i);
    }
    SIMD_STORE for (int64 i = begin; i < n; i++) compute_one(i);
}

template <class F, int RESULT, Results RESULTS, class T, int ROWS>
constexpr void add_stored(StoredLoop* loops) {
    if constexpr (ROWS > 0) {
        loops[ROWS] = stored_loop<F, RESULT, RESULTS, T, ROWS>;
        add_stored<F, RESULT, RESULTS, T, ROWS - 1>(loops);
    }
}

constexpr bool is_among(const char* names, const char* name) {
    for (const char* at = names; *at; at++) {
        const char *rest = at + 1, *letter = name;
        while (*letter && *rest == *letter) rest++, letter++;
        if (*at == ' ' && !*letter && *rest == ' ') return true;
    }
    return false;
}

constexpr Results results_of(const char* name, int result) {
    if (is_among(" Maximum Minimum ", name)) return result == VALUE ? MOVED : HALVED;
    if (is_among(" Threshold ", name)) return result == VALUE ? MOVED_ABOVE : GATED_ABOVE;
    if (is_among(" Relu Clamp HardTanh NanToNum ", name)) return result == VALUE ? MOVED : GATED;
    return is_among(" Neg Abs ", name) ? MOVED : COMPUTED;
}

// `tensors`: how many of the value's operands are; 0 for functions that have no loops for stored dtypes.
template <class F, int RESULT, bool PLAIN, int tensors, Results RESULTS>
constexpr Loops loops_of() {
    Loops loops{};
    if constexpr (RESULT < F::GRADIENTS) {
        if constexpr (PLAIN) loops.float32 = plain_loop<F, RESULT>;
        else loops.float32 = float32_loop<F, RESULT>;
        if constexpr (tensors > 0 && IS_WIDE) {
            constexpr int ALL = (1 << (RESULT == VALUE ? tensors : tensors + 1)) - 1;  // a gradient's operands are dy and these
            add_stored<F, RESULT, RESULTS, float, ALL>(loops.stored[FLOAT32]);
            add_stored<F, RESULT, RESULTS, bfloat16, ALL>(loops.stored[BFLOAT16]);
            add_stored<F, RESULT, RESULTS, float16, ALL>(loops.stored[FLOAT16]);
        }
    }
    return loops;
}

double sum_of(const Job& job, Loop loop) {
    Scratch<double> partial(job.tiles);
    if (!partial) return 0.0;
    double *parts = partial, sum = 0.0;
    job.for_each_tile([=](int64 t, const Tile* tile, Reader& reader) {
        float buffer[BLOCK];
        int64 count = tile[OPERANDS].rows * tile[OPERANDS].columns;
        loop(reader.read(tile), buffer, count);
        const float* values = buffer;
        parts[t] = blocked_sum(count, [=](int64 k) { return values[k]; });
    });
    for (int64 i = 0; i < job.tiles; i++) sum += parts[i];
    return sum;
}

}  // namespace

// Computes the wanted outputs, each by its loop, or stores at `sum` the sum of the first one's elements. An operand or output is
// an array, or None; numbers: in the places of operands that are none. -> whether it could: not for misaligned arrays.
EXPORT int64 elementwise(
    const Loops* loops, const Layout* layout, double* sum, const double* numbers, const PythonTuple* operands,
    const PythonTuple* outs) {
    Arguments arguments{loops, *layout};
    for (int64 i = 0; i < operands->count; i++) {
        if (layout->kind[i] >= 0) arguments.in[i] = operands->item(i)->data;
        else if (numbers) arguments.number[i] = float(numbers[i]);
    }
    for (int64 j = 0; j < outs->count; j++)
        if (layout->kind[OPERANDS + j] >= 0) arguments.out[j] = outs->item(j)->data;
    arguments.note_dtype_of_outputs();
    Job job(arguments);
    if (!job.supported()) return 0;
    if (sum) {
        *sum = sum_of(job, loops[0].float32);
        return 1;
    }
    job.for_each_tile([&](int64, const Tile* tile, Reader& reader) { compute_tile(arguments, tile, reader); });
    return 1;
}

extern "C" float fmodf(float, float), lgammaf_r(float, int*);

namespace simd {

INLINE float fmodf(float x, float y) {  // exact: a quotient of 29 bits times a mantissa of 24 fits into float64
    double a = fabsf(x), b = fabsf(y), quotient = a / b;
    if (!(quotient < 536870912.0 && b < double(INF))) return ::fmodf(x, y);
    double rest = a - double(int32_t(quotient)) * b;
    return copysignf(float(rest < 0.0 ? rest + b : rest), x);
}

INLINE float lgammaf(float x) { int sign; return ::lgammaf_r(x, &sign); }

#define HELPER INLINE
#define LOOP(NAME, RESULT, PLAIN, TENSORS) loops_of<NAME, RESULT, PLAIN, TENSORS, results_of(#NAME, RESULT)>()
#define LOOPS(NAME, PLAIN, TENSORS)                                                                      \
    EXPORT const Loops elementwise_##NAME[] = {LOOP(NAME, VALUE, PLAIN, TENSORS), LOOP(NAME, 0, PLAIN, TENSORS), \
        LOOP(NAME, 1, PLAIN, TENSORS), LOOP(NAME, 2, PLAIN, TENSORS)};
#define REGISTER(NAME) LOOPS(NAME, false, 0)
#define REGISTER_SHORT(NAME, TENSORS) LOOPS(NAME, false, TENSORS)
#define REGISTER_LOOPING(NAME) LOOPS(NAME, true, 0)
#include "../../shared/functions.h"

}  // namespace simd
