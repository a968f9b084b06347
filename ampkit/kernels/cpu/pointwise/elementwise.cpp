// out = f(x, y, z, w) of broadcast operands, and gradients, for each function of kernels/shared/functions.h.
//
// A tile of at most BLOCK elements at a time: operands are read as float32, in place or into a buffer, and a loop over
// the tile computes the function; short functions have loops that read and write tensors as they are stored. Tiles of rows
// of float32 are longer, as they need no buffers. Tiles do not depend on the number of threads.
#include "../include/parallel.h"
#include "../include/simd_special.h"

namespace {

constexpr int64 OPERANDS = 4, OUTPUTS = 3, TENSORS = 3, AXES = 6, BLOCK = 2048, NUMBER = -1;

// `struct Layout` of elementwise.py. The last two axes are cut into tiles. An operand's kind is NUMBER, or less if it is absent.
// stride: in elements, a row for each operand and a last one for all outputs; 0 along a broadcast axis.
// row_step: where all tensors are rows of float32, or broadcast along them, how many elements of a row are computed at a
// time, in place; else 0.
struct Layout {
    int64 axes, tile_rows, tile_columns, row_step;
    int64 kind[OPERANDS + OUTPUTS];
    int64 size[AXES], stride[OPERANDS + 1][AXES];
};

// A loop over n elements: one result of four operands.
using Loop = void (*)(const float* const* operands, float* result, int64 n);
// The same where some operands are rows of the result's dtype and the others numbers.
using StoredLoop = void (*)(const void* const* rows, const float* numbers, void* result, int64 n);

// The loops of one result: of float32; and of rows by their kind and by which operands they are, bit i for operand i, null
// where there is none.
struct Loops {
    Loop float32;
    StoredLoop stored[FLOAT16 + 1][1 << TENSORS];
};

struct Arguments {
    const Loops* loops;  // one per output
    const Layout& layout;
    const void* in[OPERANDS] = {};  // null for a number
    void* out[OUTPUTS] = {};        // null: not wanted
    float number[OPERANDS] = {};
};

struct Tile {
    int64 start, rows, columns, row_stride, column_stride;
    bool is_row() const { return column_stride == 1 && (rows == 1 || row_stride == columns); }
    bool is_constant() const { return column_stride == 0 && (rows == 1 || row_stride == 0); }
};

const float* read_tile(const void* data, int64 kind, const Tile& tile, float* buffer) {
    if (kind == FLOAT32 && tile.is_row()) return static_cast<const float*>(data) + tile.start;
    with_type(kind, const_cast<void*>(data), [&](auto* from) {
        from += tile.start;
        int64 rows = tile.rows, columns = tile.columns, row_stride = tile.row_stride, stride = tile.column_stride;
        if (tile.is_row()) {
            convert(buffer, 1, from, 1, rows * columns);
        } else if (row_stride == 1 && stride > 1) {
            for (int64 j = 0; j < columns; j++) convert(buffer + j, columns, from + j * stride, 1, rows);
        } else {
            for (int64 i = 0; i < rows; i++) convert(buffer + i * columns, 1, from + i * row_stride, stride, columns);
        }
    });
    return buffer;
}

void write_tile(const float* buffer, void* data, int64 kind, const Tile& tile) {
    if (tile.is_row()) return write_floats(buffer, data, kind, tile.start, 1, tile.rows * tile.columns);
    for (int64 i = 0; i < tile.rows; i++)
        write_floats(buffer + i * tile.columns, data, kind, tile.start + i * tile.row_stride, tile.column_stride, tile.columns);
}

struct Job {
    const Layout& layout;
    const void* const* in;
    const float* number;
    int64 stored = NUMBER;  // the dtype of all outputs, or NUMBER if they differ
    int64 rows, columns, tiles_down, tiles_across, tiles;

    explicit Job(const Arguments& arguments)
        : layout(arguments.layout), in(arguments.in), number(arguments.number), rows(layout.size[layout.axes - 2]),
          columns(layout.size[layout.axes - 1]), tiles_down(ceil_div(rows, layout.tile_rows)),
          tiles_across(ceil_div(columns, layout.tile_columns)), tiles(tiles_down * tiles_across) {
        for (int64 axis = 0; axis < layout.axes - 2; axis++) tiles *= layout.size[axis];
        for (int64 j = 0, wanted = 0; j < OUTPUTS; j++)
            if (arguments.out[j]) {
                int64 kind = layout.kind[OPERANDS + j];
                stored = wanted++ == 0 || kind == stored ? kind : NUMBER;
            }
    }

    bool supported() const {
        bool all = true;
        for (int64 i = 0; i < OPERANDS; i++) all &= layout.kind[i] < 0 || is_aligned(in[i], ITEMSIZE[layout.kind[i]]);
        return all;
    }

    // visit(tile number, tiles of the operands and of the outputs, their reader) for all tiles, on all threads.
    template <class Visit>
    void for_each_tile(const Visit& visit) const {
        int64 elements = layout.row_step ? layout.tile_rows * layout.tile_columns : BLOCK;
        parallel_for(tiles, max(1, PARALLEL_ELEMENTS / elements), [&](int64 begin, int64 end) {
            Reader reader(*this);
            Tile tile[OPERANDS + 1];
            for (int64 t = begin; t < end; t++) {
                // The next tile of the same rows begins tile_columns further; others are found by division.
                if (t == begin || t % tiles_across == 0) find_tile(t, tile);
                else next_tile(t, tile);
                visit(t, tile, reader);
            }
        });
    }

    // Reads the operands of tiles as float32. One that is constant, and the same as in the tile before, is kept.
    class Reader {
      public:
        explicit Reader(const Job& job) : job_(job) {}
        const float* const* read(const Tile* tile) {
            for (int64 i = 0; i < OPERANDS; i++) {
                int64 kind = job_.layout.kind[i], constant = tile[i].is_constant() ? tile[i].rows * tile[i].columns : 0;
                if (kind < NUMBER) {  // absent: the function reads nothing of it
                    operands_[i] = operands_[0];
                    continue;
                }
                if (constant && constant <= filled_[i] && tile[i].start == start_[i]) continue;
                filled_[i] = constant, start_[i] = tile[i].start;
                if (kind >= 0) operands_[i] = read_tile(job_.in[i], kind, tile[i], buffers_[i]);
                else if (!operands_[i]) operands_[i] = repeat(job_.number[i], buffers_[i]);
            }
            return operands_;
        }

      private:
        static const float* repeat(float number, float* buffer) {
            for (int64 k = 0; k < BLOCK; k++) buffer[k] = number;
            return buffer;
        }
        const Job& job_;
        const float* operands_[OPERANDS] = {};
        int64 filled_[OPERANDS] = {}, start_[OPERANDS] = {};
        float buffers_[OPERANDS][BLOCK];
    };

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
    SIMD for (int64 i = 0; i < n; i++) result[i] = compute<F, RESULT>(a[i], b[i], c[i], d[i]);
}

template <class F, int RESULT>
void plain_loop(const float* const* operands, float* result, int64 n) {
    for (int64 i = 0; i < n; i++) {
        result[i] = compute<F, RESULT>(operands[0][i], operands[1][i], operands[2][i], operands[3][i]);
    }
}

// What the results of a function of FUNCTION_SHORT are: results of arithmetic, or elements of its operands but for the
// sign, or also halves of them.
enum Results { COMPUTED, MOVED, HALVED };

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
void stored_loop(const void* const* rows, const float* numbers, void* to, int64 n) {
    const T *__restrict a = static_cast<const T*>(rows[0]), *__restrict b = static_cast<const T*>(rows[1]),
            *__restrict c = static_cast<const T*>(rows[2]);
    auto number = [=](int64 i) { return RESULTS != COMPUTED ? rounded_to<T>(numbers[i]) : numbers[i]; };
    const float number_a = number(0), number_b = number(1), number_c = number(2), d = number(3);
    T* __restrict result = static_cast<T*>(to);
    SIMD_STORE for (int64 i = 0; i < n; i++) {
        float found = compute<F, RESULT>(ROWS & 1 ? float(a[i]) : number_a, ROWS & 2 ? float(b[i]) : number_b,
                                         ROWS & 4 ? float(c[i]) : number_c, d);
        store_result<RESULTS>(result[i], found);
    }
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
    return is_among(" Neg Abs Relu Threshold Clamp HardTanh NanToNum ", name) ? MOVED : COMPUTED;
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
    job.for_each_tile([=](int64 t, const Tile* tile, Job::Reader& reader) {
        float buffer[BLOCK];
        int64 count = tile[OPERANDS].rows * tile[OPERANDS].columns;
        loop(reader.read(tile), buffer, count);
        const float* values = buffer;
        parts[t] = blocked_sum(count, [=](int64 k) { return values[k]; });
    });
    for (int64 i = 0; i < job.tiles; i++) sum += parts[i];
    return sum;
}

// Fills an output with the one value of operands that are all constant.
void fill(Loop loop, const float* numbers, void* out, int64 kind, int64 count) {
    const float* operands[OPERANDS] = {numbers, numbers + 1, numbers + 2, numbers + 3};
    float value;
    loop(operands, &value, 1);
    with_float_type(kind, out, [&](auto* to) {
        *to = value;
        convert(to + 1, 1, to, 0, count - 1);
    });
}

// The outputs of a tile whose operands are rows of the outputs' dtype, or constant, by the loops for them. -> whether there are.
bool compute_stored(const Job& job, const Arguments& arguments, const Tile* tile) {
    const int64 *kind = job.layout.kind, stored = job.stored;
    if (stored < FLOAT32 || stored > FLOAT16 || !tile[OPERANDS].is_row()) return false;
    const void* tensors[OPERANDS] = {};
    float numbers[OPERANDS];
    int64 rows = 0, bytes = stored == FLOAT32 ? 4 : 2;
    for (int64 i = 0; i < OPERANDS; i++) {
        numbers[i] = job.number[i];
        if (kind[i] < 0) continue;
        if (tile[i].is_constant()) {
            read_floats(numbers + i, job.in[i], kind[i], tile[i].start, 0, 1);
        } else if (kind[i] == stored && tile[i].is_row() && i < TENSORS) {
            tensors[i] = static_cast<const char*>(job.in[i]) + tile[i].start * bytes;
            rows |= 1 << i;
        } else {
            return false;
        }
    }
    for (int64 j = 0; j < OUTPUTS; j++)
        if (rows && arguments.out[j] && !arguments.loops[j].stored[stored][rows]) return false;
    int64 count = tile[OPERANDS].rows * tile[OPERANDS].columns;
    for (int64 j = 0; j < OUTPUTS; j++) {
        if (!arguments.out[j]) continue;
        void* out = static_cast<char*>(arguments.out[j]) + tile[OPERANDS].start * bytes;
        if (rows) arguments.loops[j].stored[stored][rows](tensors, numbers, out, count);
        else fill(arguments.loops[j].float32, numbers, out, stored, count);
    }
    return true;
}

// The outputs of a tile, computed in float32.
void compute_floats(const Job& job, const Arguments& arguments, const float* const* operands, const Tile& tile) {
    float buffer[BLOCK];
    for (int64 j = 0; j < OUTPUTS; j++) {
        if (!arguments.out[j]) continue;
        void* out = arguments.out[j];
        int64 kind = job.layout.kind[OPERANDS + j];
        bool in_place = kind == FLOAT32 && tile.is_row();
        float* result = in_place ? static_cast<float*>(out) + tile.start : buffer;
        arguments.loops[j].float32(operands, result, tile.rows * tile.columns);
        if (!in_place) write_tile(buffer, out, kind, tile);
    }
}

// The outputs of a tile of float32, by rows that are read and written where they are. A tile may be larger than BLOCK: the
// time between two loops shows, as large arrays are written as fast as memory takes them.
void compute_in_place(const Job& job, const Arguments& arguments, const Tile* tile, Job::Reader& reader) {
    for (int64 row = 0; row < tile[OPERANDS].rows; row++) {
        Tile part[OPERANDS + 1];
        auto cut = [&](int64 from, int64 columns) {
            for (int64 i = 0; i <= OPERANDS; i++) {
                int64 start = tile[i].start + row * tile[i].row_stride + from * tile[i].column_stride;
                part[i] = {start, 1, columns, 0, tile[i].column_stride};
            }
        };
        int64 columns = tile[OPERANDS].columns, step = job.layout.row_step;
        cut(0, columns);
        if (compute_stored(job, arguments, part)) continue;
        for (int64 from = 0; from < columns; from += step) {
            cut(from, min(step, columns - from));
            compute_floats(job, arguments, reader.read(part), part[OPERANDS]);
        }
    }
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
    Job job(arguments);
    if (!job.supported()) return 0;
    if (sum) {
        *sum = sum_of(job, loops[0].float32);
        return 1;
    }
    job.for_each_tile([&](int64, const Tile* tile, Job::Reader& reader) {
        if (job.layout.row_step) compute_in_place(job, arguments, tile, reader);
        else if (!compute_stored(job, arguments, tile)) compute_floats(job, arguments, reader.read(tile), tile[OPERANDS]);
    });
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
