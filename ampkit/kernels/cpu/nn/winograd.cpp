// Convolutions with kernels of 3 x 3 and stride 1, by Winograd's minimal filtering F(2 x 2, 3 x 3): Lavin and Gray 2016,
// "Fast algorithms for convolutional neural networks", arXiv:1509.09308, section 4.1.
//
//     output tile [2, 2] = A^T [(G kernel G^T) * (B^T input tile [4, 4] B)] A
//
// An output tile takes 16 multiplications per pair of channels instead of 36. The sums over channels are one matrix
// product for each of the 16 positions in a transformed tile. The weight gradient is the transpose of that:
// G^T [sum over tiles of (A output gradient tile A^T) * (B^T input tile B)] G. Images are channels-last.
//
// Where an input is infinite, differences in the transform make NaN of what would be an infinity. So the functions
// return whether all results are finite; where they are not, the caller computes them by the definition.
#include "../include/multiply.h"

#if defined(__FMA__)  // `multiply` was written for CPUs that multiply and add at once

namespace {

constexpr int64 POSITIONS = 16;  // in a transformed tile
constexpr int64 TILES = 48;      // tiles that are transformed before their products: they stay in the L2 cache
constexpr int64 OUTPUTS = 128;   // output channels that are computed from them at a time
constexpr int64 RUN = 16;        // input channels of kernels that are transformed at a time
constexpr int64 BLOCK = 64;      // input and output channels of a block of the weight gradient

// The matrices of the 16 positions, one behind the other.
struct Matrices {
    float* data;
    int64 columns, step;
    Matrices(float* data_, int64 rows, int64 columns_)
        : data(data_), columns(columns_), step(size(rows, columns) / POSITIONS) {}
    static int64 size(int64 rows, int64 columns) { return POSITIONS * (rows * columns + GAP); }
    float* at(int64 position, int64 row, int64 column = 0) const { return data + position * step + row * columns + column; }
};

// Images [N * height, width, channels] in tiles: 2 x 2 pixels of an output, from the 4 x 4 of an input that they read.
struct Tiling {
    int64 height, width, out_height, out_width, top, left, tall, wide, tiles;

    // Output pixel (i, j) reads the 3 x 3 input pixels from (i - top, j - left) on.
    Tiling(const Array& input, const Array& output, int64 height_, int64 out_height_, int64 top_, int64 left_)
        : height(height_), width(input.size[1]), out_height(out_height_), out_width(output.size[1]), top(top_), left(left_),
          tall(ceil_div(out_height, 2)), wide(ceil_div(out_width, 2)), tiles(input.size[0] / height * tall * wide) {}

    // The addresses of a tile's 4 x 4 input pixels, or `outside` beyond the edge.
    template <class T>
    void find_input(T* (&pixels)[16], T* data, int64 channels, T* outside, int64 tile) const {
        int64 row = tile / wide % tall * 2 - top, column = tile % wide * 2 - left;
        find(pixels, 4, data + tile / (tall * wide) * height * width * channels, channels, outside, row, column, height, width);
    }
    // The same for its 2 x 2 output pixels.
    template <class T>
    void find_output(T* (&pixels)[4], T* data, int64 channels, T* outside, int64 tile) const {
        int64 row = tile / wide % tall * 2, column = tile % wide * 2, size = out_height * out_width;
        find(pixels, 2, data + tile / (tall * wide) * size * channels, channels, outside, row, column, out_height, out_width);
    }

  private:
    template <class T>
    static void find(T** pixels, int64 side, T* image, int64 channels, T* outside, int64 row, int64 column, int64 h, int64 w) {
        for (int64 i = row; i < row + side; i++)
            for (int64 j = column; j < column + side; j++)
                *pixels++ = i >= 0 && i < h && j >= 0 && j < w ? image + (i * w + j) * channels : outside;
    }
};

// to[position * step + c] = B^T x B for the channels from + c of a tile's 16 pixels x.
template <class T>
void transform_input(float* __restrict to, int64 step, T* const (&x)[16], int64 from, int64 count) {
    SIMD for (int64 c = 0; c < count; c++) {
        float rows[4][4];
        for (int64 j = 0; j < 4; j++) {
            float a = x[j][from + c], b = x[4 + j][from + c], d = x[8 + j][from + c], e = x[12 + j][from + c];
            rows[0][j] = a - d, rows[1][j] = b + d, rows[2][j] = d - b, rows[3][j] = b - e;
        }
        for (int64 i = 0; i < 4; i++) {
            float *out = to + 4 * i * step + c, *r = rows[i];
            out[0] = r[0] - r[2], out[step] = r[1] + r[2], out[2 * step] = r[2] - r[1], out[3 * step] = r[1] - r[3];
        }
    }
}

// to[position * step + o] = A dy A^T for the channels from + o of a tile's 4 pixels dy.
template <class T>
void transform_gradient(float* __restrict to, int64 step, T* const (&dy)[4], int64 from, int64 count) {
    SIMD for (int64 o = 0; o < count; o++) {
        float a = dy[0][from + o], b = dy[1][from + o], c = dy[2][from + o], d = dy[3][from + o];
        float rows[4][2] = {{a, b}, {a + c, b + d}, {a - c, b - d}, {-c, -d}};
        for (int64 i = 0; i < 4; i++) {
            float *out = to + 4 * i * step + o, *r = rows[i];
            out[0] = r[0], out[step] = r[0] + r[1], out[2 * step] = r[0] - r[1], out[3 * step] = -r[1];
        }
    }
}

// y = A^T sums A + bias for `count` channels of a tile's 4 pixels y, rounded; not 0 if one of them is not finite.
template <class T>
float transform_sums(T* const (&y)[4], int64 from, const float* __restrict sums, int64 step, const float* bias, int64 count) {
    float check = 0.0f;
    SIMD_SUM(check) for (int64 o = 0; o < count; o++) {
        float rows[2][4];
        for (int64 j = 0; j < 4; j++) {
            const float* s = sums + j * step + o;
            float a = s[0], b = s[4 * step], c = s[8 * step], d = s[12 * step];
            rows[0][j] = a + b + c, rows[1][j] = b - c - d;
        }
        for (int64 i = 0; i < 2; i++) {
            float left = rows[i][0] + rows[i][1] + rows[i][2] + bias[o], right = rows[i][1] - rows[i][2] - rows[i][3] + bias[o];
            check += (left - left) + (right - right);
            store(y[2 * i][from + o], left), store(y[2 * i + 1][from + o], right);
        }
    }
    return check;
}

// to[position * step + o] = G kernel G^T for COLUMNS kernels, given by taps.
void transform_kernels(float* __restrict to, int64 step, const float (&taps)[9][COLUMNS]) {
    SIMD for (int64 o = 0; o < COLUMNS; o++) {
        float rows[4][3];
        for (int64 j = 0; j < 3; j++) {
            float a = taps[j][o], b = taps[3 + j][o], c = taps[6 + j][o];
            rows[0][j] = a, rows[1][j] = 0.5f * (a + b + c), rows[2][j] = 0.5f * (a - b + c), rows[3][j] = c;
        }
        for (int64 i = 0; i < 4; i++) {
            float a = rows[i][0], b = rows[i][1], c = rows[i][2], *out = to + 4 * i * step + o;
            out[0] = a, out[step] = 0.5f * (a + b + c), out[2 * step] = 0.5f * (a - b + c), out[3 * step] = c;
        }
    }
}

// Blocks of at most BLOCK channels, of about the same size.
int64 block_of(int64 channels, int64 multiple) { return round_up(ceil_div(channels, ceil_div(channels, BLOCK)), multiple); }

// to [9][BLOCK] = G^T sums G for a row of the sums of the 16 positions.
void transform_kernel_sums(float (&to)[9][BLOCK], const float* sums, int64 step, int64 count) {
    SIMD for (int64 c = 0; c < count; c++) {
        float rows[3][4];
        for (int64 j = 0; j < 4; j++) {
            const float* s = sums + j * step + c;
            float a = s[0], sum = 0.5f * (s[4 * step] + s[8 * step]), difference = 0.5f * (s[4 * step] - s[8 * step]);
            rows[0][j] = a + sum, rows[1][j] = difference, rows[2][j] = sum + s[12 * step];
        }
        for (int64 i = 0; i < 3; i++) {
            float *r = rows[i], sum = 0.5f * (r[1] + r[2]);
            to[3 * i][c] = r[0] + sum, to[3 * i + 1][c] = 0.5f * (r[1] - r[2]), to[3 * i + 2][c] = sum + r[3];
        }
    }
}

// x = B^T x B of `width` channels of `count` input tiles, and of the last one again up to a multiple of ROWS; as panels
// [TILES, panel] one behind the other.
void read_tiles(const Matrices& x, const Tiling& tiling, const Array& images, float* zeros, int64 first, int64 count,
                int64 from, int64 width, int64 panel) {
    with_float_type(images.kind, images.data, [&](auto* data) {
        decltype(data) pixels[16], outside = reinterpret_cast<decltype(data)>(zeros);
        for (int64 t = 0; t < round_up(count, ROWS); t++) {
            tiling.find_input(pixels, data, images.size[2], outside, first + min(t, count - 1));
            for (int64 c = 0; c < width; c += panel)
                transform_input(x.data + c * TILES + t * panel, x.step, pixels, from + c, min(panel, width - c));
        }
    });
}

// The output tiles from `first` on, in `width` channels from `from` on; not 0 if a value is not finite.
float write_tiles(const Array& out, const Tiling& tiling, const Matrices& sums, const float* bias, float* unused, int64 first,
                  int64 count, int64 from, int64 width) {
    float check = 0.0f;
    with_float_type(out.kind, out.data, [&](auto* data) {
        decltype(data) pixels[4], outside = reinterpret_cast<decltype(data)>(unused);
        for (int64 t = 0; t < count; t++) {
            tiling.find_output(pixels, data, out.size[2], outside, first + t);
            check += transform_sums(pixels, from, sums.at(0, t), sums.step, bias + from, width);
        }
    });
    return check;
}

// y = A dy A^T of `width` channels of the tiles of an output gradient.
void read_gradients(const Matrices& y, const Tiling& tiling, const Array& dy, float* zeros, int64 first, int64 count,
                    int64 from, int64 width) {
    with_float_type(dy.kind, dy.data, [&](auto* data) {
        decltype(data) pixels[4], outside = reinterpret_cast<decltype(data)>(zeros);
        for (int64 t = 0; t < count; t++) {
            tiling.find_output(pixels, data, dy.size[2], outside, first + t);
            transform_gradient(y.at(0, t), y.step, pixels, from, width);
        }
    });
}

// to [outputs, inputs, 9] = G^T sums G for a block of `o_count` outputs and `c_count` inputs; not 0 if a value is not finite.
float write_kernels(float* to, const Matrices& sums, int64 inputs, int64 o_count, int64 c_count) {
    float check = 0.0f;
    for (int64 o = 0; o < o_count; o++) {
        float taps[9][BLOCK], *row = to + o * inputs * 9;
        transform_kernel_sums(taps, sums.at(0, o), sums.step, c_count);
        for (int64 k = 0; k < 9 * c_count; k++) row[k] = taps[k % 9][k / 9], check += row[k] - row[k];
    }
    return check;
}

}  // namespace

// How many floats the transformed kernels of a convolution take.
EXPORT int64 winograd_kernels_size(int64 outputs, int64 inputs) {
    return Matrices::size(inputs, round_up(outputs, COLUMNS));
}

// to [16, panels, inputs, COLUMNS] = G kernel G^T of kernels [outputs, inputs, 9]; a panel has COLUMNS of the outputs.
static void winograd_kernels(float* to, Array kernels) {
    int64 outputs = kernels.size[0], inputs = kernels.size[1], panels = ceil_div(outputs, COLUMNS);
    Matrices out(to, panels * inputs, COLUMNS);
    int64 runs = ceil_div(inputs, RUN);
    with_float_type(kernels.kind, kernels.data, [&](const auto* data) {
        parallel_for(panels * runs, 1, [&](int64 begin, int64 end) {
            for (int64 task = begin; task < end; task++) {
                int64 first_o = task / runs * COLUMNS, first_c = task % runs * RUN;
                float taps[RUN][9][COLUMNS] = {};
                for (int64 o = 0; o < min(COLUMNS, outputs - first_o); o++)
                    for (int64 c = 0; c < min(RUN, inputs - first_c); c++)
                        for (int64 tap = 0; tap < 9; tap++)
                            taps[c][tap][o] = data[kernels.offset(first_o + o, first_c + c, tap)];
                for (int64 c = 0; c < min(RUN, inputs - first_c); c++)
                    transform_kernels(out.at(0, task / runs * inputs + first_c + c), out.step, taps[c]);
            }
        });
    });
}
KERNEL(winograd_kernels)

// out [N * out_height, out_width, O] = the convolution of images [N * height, width, C] with kernels that
// winograd_kernels transformed, plus bias [O]. -> whether all of it is finite and memory was there.
static int64 winograd_output(Array out, Array images, float* kernels, Array bias, int64 height, int64 out_height, int64 top,
                             int64 left) {
    Tiling tiling(images, out, height, out_height, top, left);
    int64 inputs = images.size[2], outputs = out.size[2], parts = ceil_div(outputs, OUTPUTS);
    int64 tiles = rows_of_task(tiling.tiles, parts, TILES), blocks = ceil_div(tiling.tiles, tiles);
    int64 widest = max(inputs, outputs);
    Matrices factors(kernels, ceil_div(outputs, COLUMNS) * inputs, COLUMNS);
    Scratch<float> offset(outputs);
    if (!offset) return false;
    memset(offset, 0, outputs * sizeof(float));
    if (bias) read_floats(offset, bias.data, bias.kind, 0, bias.stride[2], outputs);
    bool finite = true;
    parallel_for(blocks * parts, 1, [&](int64 begin, int64 end) {
        Scratch<float> memory(Matrices::size(tiles, inputs) + Matrices::size(tiles, OUTPUTS) + 2 * widest);
        if (!memory) return __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
        float *zeros = memory, *unused = zeros + widest;
        memset(zeros, 0, widest * sizeof(float));
        Matrices x(unused + widest, tiles, inputs), sums(x.data + Matrices::size(tiles, inputs), tiles, OUTPUTS);
        for (int64 task = begin; task < end; task++) {
            int64 first = task / parts * tiles, count = min(tiles, tiling.tiles - first);
            int64 from = task % parts * OUTPUTS, width = min(OUTPUTS, outputs - from);
            read_tiles(x, tiling, images, zeros, first, count, 0, inputs, inputs);
            for (int64 p = 0; p < POSITIONS; p++)
                for (int64 column = 0; column < width; column += COLUMNS)
                    for (int64 t = 0; t < count; t += ROWS)
                        multiply(sums.at(p, t, column), OUTPUTS, x.at(p, t), inputs, 1,
                                 factors.at(p, (from + column) / COLUMNS * inputs), inputs, false);
            float check = write_tiles(out, tiling, sums, offset, unused, first, count, from, width);
            if (check != 0.0f) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
        }
    });
    return finite;
}
KERNEL(winograd_output)

// out [O, C, 9] = the gradient of the kernels, from images [N * height, width, C] and dy [N * out_height, out_width, O].
// -> whether all of it is finite and memory was there.
static int64 winograd_weight_gradient(Array out, Array images, Array dy, int64 height, int64 out_height, int64 top,
                                      int64 left) {
    Tiling tiling(images, dy, height, out_height, top, left);
    int64 inputs = images.size[2], outputs = dy.size[2], size = outputs * inputs * 9, widest = max(inputs, outputs);
    int64 c_block = block_of(inputs, COLUMNS), o_block = block_of(outputs, ROWS);
    int64 across = ceil_div(inputs, c_block), blocks = across * ceil_div(outputs, o_block);
    // Groups of tiles, whose sums are added up in the end: where there are few blocks, and tiles enough.
    int64 groups = max(1, min(ceil_div(16, blocks), tiling.tiles / (4 * TILES)));
    Scratch<float> partial(groups > 1 ? groups * size : 0);
    if (!partial) return false;
    bool finite = true;
    parallel_for(groups * blocks, 1, [&](int64 begin, int64 end) {
        int64 x_size = Matrices::size(c_block, TILES), y_size = Matrices::size(TILES, o_block);
        Scratch<float> memory(x_size + y_size + Matrices::size(o_block, c_block) + widest);
        if (!memory) return __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
        float* zeros = memory;
        memset(zeros, 0, (widest + x_size + y_size) * sizeof(float));
        Matrices x(zeros + widest, c_block, TILES), y(x.data + x_size, TILES, o_block), sums(y.data + y_size, o_block, c_block);
        for (int64 task = begin; task < end; task++) {
            int64 group = task / blocks, from_o = task % blocks / across * o_block, from_c = task % across * c_block;
            int64 o_count = min(o_block, outputs - from_o), c_count = min(c_block, inputs - from_c);
            int64 group_begin = tiling.tiles * group / groups, group_end = tiling.tiles * (group + 1) / groups;
            for (int64 first = group_begin; first < group_end; first += TILES) {
                int64 count = min(TILES, group_end - first);
                read_tiles(x, tiling, images, zeros, first, count, from_c, c_count, COLUMNS);
                read_gradients(y, tiling, dy, zeros, first, count, from_o, o_count);
                for (int64 p = 0; p < POSITIONS; p++)
                    for (int64 c = 0; c < c_count; c += COLUMNS)
                        for (int64 o = 0; o < o_count; o += ROWS)
                            multiply(sums.at(p, o, c), c_block, y.at(p, 0, o), 1, o_block, x.at(p, c), count,
                                     first > group_begin);
            }
            float* to = (groups > 1 ? partial + group * size : address<float>(out)) + (from_o * inputs + from_c) * 9;
            float check = write_kernels(to, sums, inputs, o_count, c_count);
            if (check != 0.0f) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
        }
    });
    if (groups > 1)
        parallel_rows(size, groups, [&](int64 begin, int64 end) {
            float *to = address<float>(out), *from = partial;
            memcpy(to + begin, from + begin, (end - begin) * sizeof(float));
            for (int64 group = 1; group < groups; group++)
                SIMD for (int64 k = begin; k < end; k++) to[k] += from[group * size + k];
        });
    return finite;
}
KERNEL(winograd_weight_gradient)

#endif  // __FMA__
