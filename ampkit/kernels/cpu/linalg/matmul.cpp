// Matrix products of operands stored in 16 bits, summed in float32, for CPUs without instructions for such products.
//
// Operands are converted a block at a time, where a product in float32 would copy it into another order too. Blocks of
// `a` and of the sums stay in the L2 cache: Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication".
#include "../include/multiply.h"

#if defined(__FMA__)  // `multiply` was written for CPUs that multiply and add at once

constexpr int64 BLOCK_ROWS = 96, BLOCK_COLUMNS = 384, DEPTH = 384;

// to [depth, COLUMNS] = `count` columns of b from `from` on, then zeros.
template <class T>
static void pack_columns(float* to, const T* from, int64 k_stride, int64 stride, int64 count, int64 depth) {
    constexpr int64 RUN = 16;
    if (count < COLUMNS) memset(to, 0, depth * COLUMNS * sizeof(float));
    if (stride == 1) {
        for (int64 k = 0; k < depth; k++) convert(to + k * COLUMNS, 1, from + k * k_stride, 1, count);
        return;
    }
    for (int64 begin = 0; begin < depth; begin += RUN) {
        float rows[COLUMNS][RUN];
        int64 length = min(RUN, depth - begin);
        for (int64 j = 0; j < count; j++) convert(rows[j], 1, from + begin * k_stride + j * stride, k_stride, length);
        for (int64 k = 0; k < length; k++)
            for (int64 j = 0; j < count; j++) to[(begin + k) * COLUMNS + j] = rows[j][k];
    }
}

// A block of a in float32: row-major where its rows are contiguous, else ROWS rows at a time, [depth, ROWS], so that
// `multiply` reads adjacent elements.
struct BlockOfA {
    float* data;
    int64 row_step, k_step, start_step;  // start_step: between rows that `multiply` begins with

    static constexpr int64 SIZE = BLOCK_ROWS * (DEPTH + GAP);

    // The rows beyond `rows`, to a multiple of ROWS, repeat the last: their sums are not used.
    template <class T>
    void read(const T* from, int64 row_stride, int64 k_stride, int64 rows, int64 depth) {
        int64 padded = round_up(rows, ROWS);
        if (row_stride != 1) {
            row_step = start_step = DEPTH + GAP, k_step = 1;
            for (int64 row = 0; row < padded; row++)
                convert(data + row * row_step, 1, from + min(row, rows - 1) * row_stride, k_stride, depth);
            return;
        }
        row_step = 1, k_step = ROWS, start_step = depth;
        float column[BLOCK_ROWS];
        for (int64 k = 0; k < depth; k++) {
            convert(column, 1, from + k * k_stride, 1, rows);
            for (int64 row = rows; row < padded; row++) column[row] = column[rows - 1];
            for (int64 row = 0; row < padded; row += ROWS)
                memcpy(data + row * depth + k * ROWS, column + row, ROWS * sizeof(float));
        }
    }
};
static_assert(BLOCK_ROWS % ROWS == 0, "");

// out [batch, M, N] = a [batch, M, K] b [batch, K, N] + bias [N], rounded once; of any strides and floating-point dtypes.
static void matmul(Array out, Array a, Array b, Array bias) {
    int64 batch = out.size[0], m = out.size[1], n = out.size[2], depth = a.size[2], panels = ceil_div(n, COLUMNS);
    Scratch<float> packed(batch * panels * depth * COLUMNS), offset(bias ? n : 0);
    if (!(packed && offset)) return;
    if (bias) read_floats(offset, bias.data, bias.kind, 0, bias.stride[2], n);
    // Panel `p` from row k on: [K - k, COLUMNS].
    auto panel = [&](int64 matrix, int64 p, int64 k) { return packed + ((matrix * panels + p) * depth + k) * COLUMNS; };
    int64 parts = ceil_div(depth, DEPTH);
    with_float_type(b.kind, b.data, [&](auto* data) {
        parallel_for(batch * panels * parts, 1, [&](int64 begin, int64 end) {
            for (int64 i = begin; i < end; i++) {
                int64 matrix = i / (panels * parts), p = i / parts % panels, k = i % parts * DEPTH, column = p * COLUMNS;
                pack_columns(panel(matrix, p, k), data + b.offset(matrix, k, column), b.stride[1], b.stride[2],
                             min(COLUMNS, n - column), min(DEPTH, depth - k));
            }
        });
    });
    int64 across = ceil_div(n, BLOCK_COLUMNS), height = rows_of_task(m, across * batch, BLOCK_ROWS), down = ceil_div(m, height);
    parallel_for(batch * down * across, 1, [&](int64 begin, int64 end) {
        Scratch<float> memory(BlockOfA::SIZE + height * BLOCK_COLUMNS);
        if (!memory) return;
        BlockOfA block{memory, 0, 0, 0};
        float* sums = block.data + BlockOfA::SIZE;
        for (int64 task = begin; task < end; task++) {  // down the rows first: what is read of b stays in a cache
            int64 matrix = task / (down * across), row = task % down * height, column = task / down % across * BLOCK_COLUMNS;
            int64 rows = min(height, m - row), columns = min(BLOCK_COLUMNS, n - column);
            for (int64 k = 0; k < depth; k += DEPTH) {
                int64 count = min(DEPTH, depth - k);
                with_float_type(a.kind, a.data, [&](auto* data) {
                    block.read(data + a.offset(matrix, row, k), a.stride[1], a.stride[2], rows, count);
                });
                for (int64 c = 0; c < columns; c += COLUMNS)
                    for (int64 r = 0; r < rows; r += ROWS)
                        multiply(sums + r * BLOCK_COLUMNS + c, BLOCK_COLUMNS, block.data + r * block.start_step,
                                 block.row_step, block.k_step, panel(matrix, (column + c) / COLUMNS, k), count, k > 0);
            }
            for (int64 r = 0; r < rows; r++) {
                float* sum = sums + r * BLOCK_COLUMNS;
                const float* added = offset + column;
                if (bias) SIMD for (int64 c = 0; c < columns; c++) sum[c] += added[c];
                write_floats(sum, out.data, out.kind, out.offset(matrix, row + r, column), out.stride[2], columns);
            }
        }
    });
}
KERNEL(matmul)

#endif  // __FMA__
