// Tiles of elementwise kernels: how the operands of a tile are read, and how its outputs are computed and written, by the
// loops of a function. elementwise.cpp computes one function by it, chain.cpp several, tile by tile.
#pragma once
#include "parallel.h"

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

// Loops take AT_A_TIME elements, in four vectors: an operation of a long function waits for the one before, so that a CPU
// finds work for its units in other elements alone, and looks but so far ahead (1.2 to 1.8 times as fast on AMD Zen 5). What
// is left over runs by another loop, which could round otherwise: tiles of whole rows are multiples of it.
constexpr int64 AT_A_TIME = 64;
#if defined(__AVX512F__) && defined(__clang__)
constexpr bool FOUR_VECTORS = true;
#define SIMD_AT_A_TIME _Pragma("clang loop vectorize(assume_safety) vectorize_width(16) interleave_count(4)")
#else
constexpr bool FOUR_VECTORS = false;
#define SIMD_AT_A_TIME SIMD
#endif

// Cache lines that a chain will read in its next tile, fetched a few at a time between the elements that loops take: the CPU
// does not see where 2 KB of several arrays in turns go on, and many at once would wait for each other.
struct Ahead {
    static constexpr int64 MOST = 512;
    const char* line[MOST];
    int64 next = 0, count = 0, at_a_time = 0;
    void fetch() {
        int64 end = min(next + at_a_time, count);
        for (; next < end; next++) __builtin_prefetch(line[next]);
    }
};

// A loop over n elements: one result of four operands.
using Loop = void (*)(const float* const* operands, float* result, int64 n);
// The same where some operands are rows of the result's dtype and the others numbers. ahead: null, or what it fetches.
using StoredLoop = void (*)(const void* const* rows, const float* numbers, void* result, int64 n, Ahead* ahead);

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
    int64 stored = NUMBER;  // the dtype of all outputs, or NUMBER if they differ
    Ahead* ahead = nullptr;

    void note_dtype_of_outputs() {
        for (int64 j = 0, wanted = 0; j < OUTPUTS; j++)
            if (out[j]) {
                int64 kind = layout.kind[OPERANDS + j];
                stored = wanted++ == 0 || kind == stored ? kind : NUMBER;
            }
    }
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

// Reads the operands of tiles as float32. One that is constant, and the same as in the tile before, is kept.
class Reader {
  public:
    explicit Reader(const Arguments& arguments) : given_(arguments) {}
    const float* const* read(const Tile* tile) {
        for (int64 i = 0; i < OPERANDS; i++) {
            int64 kind = given_.layout.kind[i], constant = tile[i].is_constant() ? tile[i].rows * tile[i].columns : 0;
            if (kind < NUMBER) {  // absent: the function reads nothing of it
                operands_[i] = operands_[0];
                continue;
            }
            if (constant && constant <= filled_[i] && tile[i].start == start_[i]) continue;
            filled_[i] = constant, start_[i] = tile[i].start;
            if (kind >= 0) operands_[i] = read_tile(given_.in[i], kind, tile[i], buffers_[i]);
            else if (!operands_[i]) operands_[i] = repeat(given_.number[i], buffers_[i]);
        }
        return operands_;
    }

  private:
    static const float* repeat(float number, float* buffer) {
        for (int64 k = 0; k < BLOCK; k++) buffer[k] = number;
        return buffer;
    }
    const Arguments& given_;
    const float* operands_[OPERANDS] = {};
    int64 filled_[OPERANDS] = {}, start_[OPERANDS] = {};
    float buffers_[OPERANDS][BLOCK];
};

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
bool compute_stored(const Arguments& arguments, const Tile* tile) {
    const int64 *kind = arguments.layout.kind, stored = arguments.stored;
    if (stored < FLOAT32 || stored > FLOAT16 || !tile[OPERANDS].is_row()) return false;
    const void* tensors[OPERANDS] = {};
    float numbers[OPERANDS];
    int64 rows = 0, bytes = stored == FLOAT32 ? 4 : 2;
    for (int64 i = 0; i < OPERANDS; i++) {
        numbers[i] = arguments.number[i];
        if (kind[i] < 0) continue;
        if (tile[i].is_constant()) {
            read_floats(numbers + i, arguments.in[i], kind[i], tile[i].start, 0, 1);
        } else if (kind[i] == stored && tile[i].is_row() && i < TENSORS) {
            tensors[i] = static_cast<const char*>(arguments.in[i]) + tile[i].start * bytes;
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
        if (rows) arguments.loops[j].stored[stored][rows](tensors, numbers, out, count, arguments.ahead);
        else fill(arguments.loops[j].float32, numbers, out, stored, count);
    }
    return true;
}

// The outputs of a tile, computed in float32.
void compute_floats(const Arguments& arguments, const float* const* operands, const Tile& tile) {
    float buffer[BLOCK];
    for (int64 j = 0; j < OUTPUTS; j++) {
        if (!arguments.out[j]) continue;
        void* out = arguments.out[j];
        int64 kind = arguments.layout.kind[OPERANDS + j];
        bool in_place = kind == FLOAT32 && tile.is_row();
        float* result = in_place ? static_cast<float*>(out) + tile.start : buffer;
        arguments.loops[j].float32(operands, result, tile.rows * tile.columns);
        if (!in_place) write_tile(buffer, out, kind, tile);
    }
}

// The outputs of a tile of float32, by rows that are read and written where they are. A tile may be larger than BLOCK: the
// time between two loops shows, as large arrays are written as fast as memory takes them.
void compute_in_place(const Arguments& arguments, const Tile* tile, Reader& reader) {
    for (int64 row = 0; row < tile[OPERANDS].rows; row++) {
        Tile part[OPERANDS + 1];
        auto cut = [&](int64 from, int64 columns) {
            for (int64 i = 0; i <= OPERANDS; i++) {
                int64 start = tile[i].start + row * tile[i].row_stride + from * tile[i].column_stride;
                part[i] = {start, 1, columns, 0, tile[i].column_stride};
            }
        };
        int64 columns = tile[OPERANDS].columns, step = arguments.layout.row_step;
        cut(0, columns);
        if (compute_stored(arguments, part)) continue;
        for (int64 from = 0; from < columns; from += step) {
            cut(from, min(step, columns - from));
            compute_floats(arguments, reader.read(part), part[OPERANDS]);
        }
    }
}

// Computes the wanted outputs of a tile.
void compute_tile(const Arguments& arguments, const Tile* tile, Reader& reader) {
    if (arguments.layout.row_step) compute_in_place(arguments, tile, reader);
    else if (!compute_stored(arguments, tile)) compute_floats(arguments, reader.read(tile), tile[OPERANDS]);
}

}  // namespace
