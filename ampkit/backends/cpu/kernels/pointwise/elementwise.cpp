// out = f(x, y, z, w) of broadcast operands, and gradients, for each function of backends/elementwise/functions.h.
//
// A tile of at most BLOCK elements at a time: operands are read as float32, in place or into a buffer, and a loop over
// the tile computes the function. Tiles do not depend on the number of threads.
#include "../include/parallel.h"
#include "../include/simd_special.h"

namespace {

constexpr int64 OPERANDS = 4, OUTPUTS = 3, AXES = 6, BLOCK = 2048, NUMBER = -1;

// `struct Layout` of elementwise.py. The last two axes are cut into tiles. An operand's kind is NUMBER, or less if it is absent.
// stride: in elements, a row for each operand and a last one for all outputs; 0 along a broadcast axis.
struct Layout {
    int64 axes, tile_rows, tile_columns;
    int64 kind[OPERANDS + OUTPUTS];
    int64 size[AXES], stride[OPERANDS + 1][AXES];
};

// A loop over n elements: one result of four operands.
using Loop = void (*)(const float* const* operands, float* result, int64 n);

struct Arguments {
    const Loop* loops;  // one per output
    const Layout* layout;
    double* sum;                     // where to store the sum of the first output, instead of the outputs
    const void* const* in[OPERANDS]; // where NumPy's array object holds the address of its data, null for a number
    void* const* out[OUTPUTS];       // likewise; null: not wanted
    double number[OPERANDS];
};

struct Tile {
    int64 start, rows, columns, row_stride, column_stride;
    bool is_row() const { return column_stride == 1 && (rows == 1 || row_stride == columns); }
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

bool aligned(const void* data, int64 kind) {
    int64 bytes = kind == FLOAT32 ? 4 : kind == BOOL ? 1 : 2;
    return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

struct Job {
    const Layout& layout;
    const void* in[OPERANDS];
    float number[OPERANDS];
    int64 rows, columns, tiles_down, tiles_across, tiles;

    explicit Job(const Arguments& arguments)
        : layout(*arguments.layout), rows(layout.size[layout.axes - 2]), columns(layout.size[layout.axes - 1]),
          tiles_down(ceil_div(rows, layout.tile_rows)), tiles_across(ceil_div(columns, layout.tile_columns)),
          tiles(tiles_down * tiles_across) {
        for (int64 axis = 0; axis < layout.axes - 2; axis++) tiles *= layout.size[axis];
        for (int64 i = 0; i < OPERANDS; i++) {
            in[i] = arguments.in[i] ? *arguments.in[i] : nullptr;
            number[i] = float(arguments.number[i]);
        }
    }

    bool supported() const {
        bool all = true;
        for (int64 i = 0; i < OPERANDS; i++) all &= layout.kind[i] < 0 || aligned(in[i], layout.kind[i]);
        return all;
    }

    // visit(tile number, operands as float32, tile of the outputs) for all tiles, on all threads.
    template <class Visit>
    void for_each_tile(const Visit& visit) const {
        parallel_for(tiles, PARALLEL_ELEMENTS / BLOCK, [&](int64 begin, int64 end) {
            float buffers[OPERANDS][BLOCK];
            const float* operands[OPERANDS];
            for (int64 i = 0; i < OPERANDS; i++) {
                operands[i] = buffers[i];
                for (int64 k = 0; layout.kind[i] == NUMBER && k < BLOCK; k++) buffers[i][k] = number[i];
            }
            Tile tile[OPERANDS + 1];
            for (int64 t = begin; t < end; t++) {
                // The next tile of the same rows begins tile_columns further; others are found by division.
                if (t == begin || t % tiles_across == 0) find_tile(t, tile);
                else next_tile(t, tile);
                for (int64 i = 0; i < OPERANDS; i++)
                    if (layout.kind[i] >= 0) operands[i] = read_tile(in[i], layout.kind[i], tile[i], buffers[i]);
                visit(t, operands, tile[OPERANDS]);
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

template <class F>
void forward_loop(const float* const* operands, float* __restrict result, int64 n) {
    const float *__restrict x = operands[0], *__restrict y = operands[1], *__restrict z = operands[2],
                *__restrict w = operands[3];
    SIMD for (int64 i = 0; i < n; i++) result[i] = F::forward(x[i], y[i], z[i], w[i]);
}

template <class F, int RESULT>
void backward_loop(const float* const* operands, float* __restrict result, int64 n) {
    const float *__restrict dy = operands[0], *__restrict x = operands[1], *__restrict y = operands[2],
                *__restrict z = operands[3];
    SIMD for (int64 i = 0; i < n; i++) {
        float gradients[3];
        F::backward(dy[i], x[i], y[i], z[i], gradients);
        result[i] = gradients[RESULT];
    }
}

template <class F>
void forward_plain_loop(const float* const* operands, float* result, int64 n) {
    for (int64 i = 0; i < n; i++) result[i] = F::forward(operands[0][i], operands[1][i], operands[2][i], operands[3][i]);
}

template <class F, int RESULT>
void backward_plain_loop(const float* const* operands, float* result, int64 n) {
    for (int64 i = 0; i < n; i++) {
        float gradients[3];
        F::backward(operands[0][i], operands[1][i], operands[2][i], operands[3][i], gradients);
        result[i] = gradients[RESULT];
    }
}

template <class F, int RESULT, bool PLAIN>
constexpr Loop gradient() {
    if constexpr (RESULT >= F::GRADIENTS) return nullptr;
    else if constexpr (PLAIN) return backward_plain_loop<F, RESULT>;
    else return backward_loop<F, RESULT>;
}

double sum_of(const Job& job, Loop loop) {
    Scratch<double> partial(job.tiles);
    if (!partial) return 0.0;
    double *parts = partial, sum = 0.0;
    job.for_each_tile([=](int64 t, const float* const* operands, const Tile& tile) {
        float buffer[BLOCK];
        loop(operands, buffer, tile.rows * tile.columns);
        const float* values = buffer;
        parts[t] = blocked_sum(tile.rows * tile.columns, [=](int64 k) { return values[k]; });
    });
    for (int64 i = 0; i < job.tiles; i++) sum += parts[i];
    return sum;
}

}  // namespace

// Computes the wanted outputs, each by its loop, or the sum. -> whether it could: not for misaligned arrays.
EXPORT int64 elementwise(const Arguments* arguments) {
    Job job(*arguments);
    if (!job.supported()) return 0;
    if (arguments->sum) {
        *arguments->sum = sum_of(job, arguments->loops[0]);
        return 1;
    }
    job.for_each_tile([&](int64, const float* const* operands, const Tile& tile) {
        float buffer[BLOCK];
        for (int64 j = 0; j < OUTPUTS; j++) {
            if (!arguments->out[j]) continue;
            void* out = *arguments->out[j];
            int64 kind = job.layout.kind[OPERANDS + j];
            bool in_place = kind == FLOAT32 && tile.is_row();
            arguments->loops[j](operands, in_place ? static_cast<float*>(out) + tile.start : buffer, tile.rows * tile.columns);
            if (!in_place) write_tile(buffer, out, kind, tile);
        }
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
#define LOOPS(NAME) \
    EXPORT const Loop elementwise_##NAME[] = {forward_loop<NAME>, gradient<NAME, 0, false>(), gradient<NAME, 1, false>(), \
        gradient<NAME, 2, false>()};
#define PLAIN_LOOPS(NAME) \
    EXPORT const Loop elementwise_##NAME[] = {forward_plain_loop<NAME>, gradient<NAME, 0, true>(), \
        gradient<NAME, 1, true>(), gradient<NAME, 2, true>()};
#define REGISTER LOOPS
#define REGISTER_LOOPING PLAIN_LOOPS
#include "../../../elementwise/functions.h"

}  // namespace simd
