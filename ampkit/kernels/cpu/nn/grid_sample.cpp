// Samples of images at the points of grids (ops/nn/grid_sample.py), and gradients.
//
// images [N, C, pixels] in float32, samples [N, C, S], grid [N, S, 2 or 3] of (x, y) or (x, y, z). Where channels are
// adjacent in memory, rows of channels are added up, sample by sample; else samples side by side, channel by
// channel.
#include "../include/parallel.h"
#include "../include/simd_math.h"

namespace {

constexpr int64 BLOCK = 64;     // samples that are computed at a time
constexpr int64 CHANNELS = 64;  // and channels of them, at most
constexpr int64 PIXELS = 16;    // that a sample reads, at most

// As grid_sample.py has them. size: depth, height and width of an image.
enum { BILINEAR, NEAREST, BICUBIC };
enum { ZEROS, BORDER, REFLECTION };
struct Options {
    int64 mode, padding, corners, size[3];
};

// Along an axis of n pixels, the coordinates of a block of samples in pixels; the derivatives by those in the grid.
struct Coordinates {
    float n, at[BLOCK], derivative[BLOCK];

    // Clamped to the axis, or reflected into it.
    void pad(int64 padding, bool corners) {
#if defined(__clang__)
#pragma clang fp contract(off)  // so that huge coordinates, too, come to the pixels of the reference
#endif
        const float end = n - 1.0f, low = corners ? 0.0f : -0.5f, span = corners ? end : n;
        const float period = span > 0.0f ? span : 1.0f;
        if (padding == REFLECTION) SIMD for (int64 s = 0; s < BLOCK; s++) {
            float away = simd::fabsf(at[s] - low), folds = simd::floorf(away / period), rest = away - folds * period;
            bool odd = folds - 2.0f * simd::floorf(0.5f * folds) == 1.0f;
            derivative[s] = odd == (at[s] < low) ? derivative[s] : -derivative[s];
            at[s] = span > 0.0f ? (odd ? span - rest : rest) + low : 0.0f * at[s];
        }
        SIMD for (int64 s = 0; s < BLOCK; s++) {
            derivative[s] = at[s] > 0.0f && at[s] < end ? derivative[s] : 0.0f;
            at[s] = simd::clamp(at[s], 0.0f, end);
        }
    }
};

// Along an axis, the pixels that each sample of a block reads, -1 outside; their weights, and the derivatives of those.
struct Taps {
    int64 count;
    int32_t pixel[4][BLOCK];
    float weight[4][BLOCK], derivative[4][BLOCK];

    // Of n pixels the one `at`, or none: for NaN, too.
    void set(int64 k, int64 s, float at, float n, float weight_, float derivative_) {
        pixel[k][s] = int32_t(at >= 0.0f && at <= n - 1.0f ? at : -1.0f);
        weight[k][s] = weight_, derivative[k][s] = derivative_;
    }

    void linear(const Coordinates& x) {
        count = 2;
        SIMD for (int64 s = 0; s < BLOCK; s++) {
            float low = simd::floorf(x.at[s]), t = x.at[s] - low;
            set(0, s, low, x.n, 1.0f - t, -x.derivative[s]), set(1, s, low + 1.0f, x.n, t, x.derivative[s]);
        }
    }

    void nearest(const Coordinates& x) {
        count = 1;
        SIMD for (int64 s = 0; s < BLOCK; s++)
            set(0, s, simd::rintf(x.at[s]), x.n, x.at[s] == x.at[s] ? 1.0f : x.at[s], 0.0f);
    }

    void cubic(const Coordinates& x, int64 padding, bool corners) {
        constexpr float A = -0.75f;
        count = 4;
        for (int64 k = 0; k < count; k++) {
            Coordinates pixels{x.n, {}, {}};
            float ahead = float(k - 1), sign = k < 2 ? 1.0f : -1.0f;  // of the distance t - ahead
            bool far = k == 0 || k == 3;
            SIMD for (int64 s = 0; s < BLOCK; s++) pixels.at[s] = simd::floorf(x.at[s]) + ahead;
            if (padding != ZEROS) pixels.pad(padding, corners);
            SIMD for (int64 s = 0; s < BLOCK; s++) {
                float d = sign * (x.at[s] - simd::floorf(x.at[s]) - ahead);
                float near = ((A + 2) * d - (A + 3)) * d * d + 1, beyond = ((A * d - 5 * A) * d + 8 * A) * d - 4 * A;
                float derivative = far ? (3 * A * d - 10 * A) * d + 8 * A : (3 * (A + 2) * d - 2 * (A + 3)) * d;
                set(k, s, simd::rintf(pixels.at[s]), x.n, far ? beyond : near, sign * x.derivative[s] * derivative);
            }
        }
    }

    // side: coordinates in the grid, from -1 to 1 over n pixels.
    void find(const float* side, float n, const Options& o) {
#if defined(__clang__)
#pragma clang fp contract(off)  // so that the nearest pixel is that of the reference
#endif
        Coordinates x{n, {}, {}};
        const float scale = o.corners ? 0.5f * (n - 1.0f) : 0.5f * n, first = o.corners ? 0.0f : -0.5f;
        SIMD for (int64 s = 0; s < BLOCK; s++) x.at[s] = (side[s] + 1.0f) * scale + first, x.derivative[s] = scale;
        if (o.padding != ZEROS && o.mode != BICUBIC) x.pad(o.padding, o.corners);
        if (o.mode == BILINEAR) linear(x);
        else if (o.mode == NEAREST) nearest(x);
        else cubic(x, o.padding, o.corners);
    }
};

// The pixels that each sample of a block reads, -1 outside, and their weights.
struct Samples {
    int64 image, first, count, axes, pixels;
    int32_t size[3], pixel[PIXELS][BLOCK];
    float weight[PIXELS][BLOCK];
    Taps axis[3];

    Samples(const Array& grid, const Options& o, int64 image_, int64 first_)
        : image(image_), first(first_), count(min(BLOCK, grid.size[1] - first_)), axes(grid.size[2]) {
        float side[BLOCK] = {};
        for (int64 i = 0; i < axes; i++) {
            size[i] = int32_t(o.size[3 - axes + i]);
            read_floats(side, grid.data, grid.kind, grid.offset(image, first, axes - 1 - i), grid.stride[1], count);
            axis[i].find(side, float(size[i]), o);
        }
        multiply();
    }

    // All combinations of the axes' taps. The weights are products, or the derivatives of those along axis `along`.
    void multiply(int64 along = -1) {
        pixels = 1;
        for (int64 s = 0; s < count; s++) pixel[0][s] = 0, weight[0][s] = 1.0f;
        for (int64 i = 0; i < axes; pixels *= axis[i++].count)
            for (int64 p = pixels - 1; p >= 0; p--)
                for (int64 k = axis[i].count - 1; k >= 0; k--) {
                    const int32_t *row = pixel[p], *tap = axis[i].pixel[k], n = size[i];
                    const float *before = weight[p], *factor = i == along ? axis[i].derivative[k] : axis[i].weight[k];
                    int32_t* at = pixel[p * axis[i].count + k];
                    float* product = weight[p * axis[i].count + k];
                    SIMD for (int64 s = 0; s < count; s++) {
                        at[s] = (row[s] | tap[s]) < 0 ? -1 : row[s] * n + tap[s], product[s] = before[s] * factor[s];
                    }
                }
    }
};

// to[j][i] = from[i][j]: `rows` rows of `columns` elements, `step` elements apart.
void transpose(float* __restrict to, int64 to_step, const float* __restrict from, int64 step, int64 rows,
               int64 columns) {
    typedef float Four __attribute__((vector_size(16)));
    const int64 fours = rows & ~3, across = columns & ~3;
    for (int64 i = 0; i < fours; i += 4)
        for (int64 j = 0; j < across; j += 4) {
            Four row[4], pair[4];
            for (int64 k = 0; k < 4; k++) memcpy(&row[k], from + (i + k) * step + j, sizeof(Four));
            pair[0] = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
            pair[1] = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
            pair[2] = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
            pair[3] = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
            for (int64 k = 0; k < 4; k += 2) {
                Four first = __builtin_shufflevector(pair[k], pair[k + 1], 0, 1, 4, 5);
                Four second = __builtin_shufflevector(pair[k], pair[k + 1], 2, 3, 6, 7);
                memcpy(to + (j + k) * to_step + i, &first, sizeof(Four));
                memcpy(to + (j + k + 1) * to_step + i, &second, sizeof(Four));
            }
        }
    for (int64 i = 0; i < rows; i++)
        for (int64 j = i < fours ? across : 0; j < columns; j++) to[j * to_step + i] = from[i * step + j];
}

// Some channels of a block of samples: rows of channels where `rows`, else rows of samples.
struct Tile {
    bool rows;
    int64 channel = 0, count = 0;  // the first of them, and how many
    float values[BLOCK * CHANNELS];

    explicit Tile(const Array& images) : rows(images.stride[1] == 1 && images.size[1] > 1) {}

    float* sample(int64 s) { return values + s * CHANNELS; }
    float* plane(int64 k) { return values + k * BLOCK; }

    void read(const Array& samples, const Samples& at) {
        float buffer[BLOCK * CHANNELS], *to = rows ? buffer : values;
        bool in_place = rows && samples.is_float32_row();
        for (int64 k = 0; !in_place && k < count; k++)
            read_floats(to + k * BLOCK, samples.data, samples.kind, start(samples, at, k), samples.stride[2], at.count);
        const float* from = in_place ? static_cast<float*>(samples.data) + start(samples, at, 0) : buffer;
        if (rows) transpose(values, CHANNELS, from, in_place ? samples.stride[1] : BLOCK, count, at.count);
    }

    void write(const Array& samples, const Samples& at) {
        float buffer[BLOCK * CHANNELS];
        if (rows) transpose(buffer, BLOCK, values, CHANNELS, at.count, count);
        const float* from = rows ? buffer : values;
        for (int64 k = 0; k < count; k++)
            write_floats(from + k * BLOCK, samples.data, samples.kind, start(samples, at, k), samples.stride[2],
                         at.count);
    }

    int64 start(const Array& samples, const Samples& at, int64 k) const {
        return samples.offset(at.image, channel + k, at.first);
    }
};

// work(tile) for all groups of channels.
template <class Work>
void for_each_group(Tile& tile, int64 channels, const Work& work) {
    for (tile.channel = 0; tile.channel < channels; tile.channel += CHANNELS) {
        tile.count = min(CHANNELS, channels - tile.channel);
        work();
    }
}

INLINE float value(const float* plane, int32_t pixel) { return pixel < 0 ? 0.0f : plane[pixel < 0 ? 0 : pixel]; }

// tile += weight * pixel, of all pixels that its samples read.
void add_pixels(Tile& tile, const Samples& at, const Array& images) {
    const float zeros[CHANNELS] = {};
    const int64 count = tile.count;
    for (int64 p = 0; p < at.pixels; p++) {
        const int32_t* pixel = at.pixel[p];
        const float* weight = at.weight[p];
        for (int64 s = 0; tile.rows && s < at.count; s++) {
            const float *__restrict x = pixel[s] < 0 ? zeros : address<float>(images, at.image, tile.channel, pixel[s]);
            const float w = weight[s];
            float* __restrict sum = tile.sample(s);
            SIMD for (int64 k = 0; k < count; k++) sum[k] += w * x[k];
        }
        for (int64 k = 0; !tile.rows && k < count; k++) {
            const float* x = address<float>(images, at.image, tile.channel + k);
            float* sum = tile.plane(k);
            SIMD for (int64 s = 0; s < at.count; s++) sum[s] += weight[s] * value(x, pixel[s]);
        }
    }
}

// The tile's channels of an image = 0.
void set_to_zero(const Array& images, int64 image, const Tile& tile) {
    int64 rows = tile.rows ? images.size[2] : tile.count, length = tile.rows ? tile.count : images.size[2];
    for (int64 i = 0; i < rows; i++) {
        int64 channel = tile.channel + (tile.rows ? 0 : i), pixel = tile.rows ? i : 0;
        memset(address<float>(images, image, channel, pixel), 0, length * sizeof(float));
    }
}

// Of all pixels that samples read, dimages += weight * tile.
void add_gradients(const Array& dimages, const Samples& at, Tile& tile) {
    const int64 count = tile.count;
    for (int64 p = 0; p < at.pixels; p++) {
        const int32_t* pixel = at.pixel[p];
        const float* weight = at.weight[p];
        for (int64 s = 0; tile.rows && s < at.count; s++) {
            if (pixel[s] < 0) continue;
            float* __restrict sum = address<float>(dimages, at.image, tile.channel, pixel[s]);
            const float *__restrict dy = tile.sample(s), w = weight[s];
            SIMD for (int64 k = 0; k < count; k++) sum[k] += w * dy[k];
        }
        for (int64 k = 0; !tile.rows && k < count; k++) {
            float* sum = address<float>(dimages, at.image, tile.channel + k);
            const float* dy = tile.plane(k);
            for (int64 s = 0; s < at.count; s++)
                if (pixel[s] >= 0) sum[pixel[s]] += weight[s] * dy[s];
        }
    }
}

// dots [pixels, samples] += the products of tile and pixel, added over the channels: the gradients of the weights.
void add_products(float (*dots)[BLOCK], const Samples& at, const Array& images, Tile& tile) {
    const float zeros[CHANNELS] = {};
    const int64 count = tile.count;
    for (int64 p = 0; p < at.pixels; p++) {
        const int32_t* pixel = at.pixel[p];
        float* dot = dots[p];
        for (int64 s = 0; tile.rows && s < at.count; s++) {
            const float* x = pixel[s] < 0 ? zeros : address<float>(images, at.image, tile.channel, pixel[s]);
            const float* dy = tile.sample(s);
            float sum = 0.0f;
            SIMD_SUM(sum) for (int64 k = 0; k < count; k++) sum += x[k] * dy[k];
            dot[s] += sum;
        }
        for (int64 k = 0; !tile.rows && k < count; k++) {
            const float *x = address<float>(images, at.image, tile.channel + k), *dy = tile.plane(k);
            SIMD for (int64 s = 0; s < at.count; s++) dot[s] += dy[s] * value(x, pixel[s]);
        }
    }
}

}  // namespace

static void grid_sample_forward(Array out, Array images, Array grid, const Options* options) {
    int64 blocks = ceil_div(grid.size[1], BLOCK), channels = images.size[1];
    parallel_rows(grid.size[0] * blocks, BLOCK * channels, [=](int64 begin, int64 end) {
        Tile tile(images);
        for (int64 item = begin; item < end; item++) {
            Samples at(grid, *options, item / blocks, item % blocks * BLOCK);
            for_each_group(tile, channels, [&] {
                memset(tile.values, 0, (tile.rows ? at.count * CHANNELS : tile.count * BLOCK) * sizeof(float));
                add_pixels(tile, at, images);
                tile.write(out, at);
            });
        }
    });
}
KERNEL(grid_sample_forward)

// dimages [N, C, pixels], float32, stored like images: added up in float32, sample by sample.
static void grid_sample_input_gradient(Array dimages, Array dout, Array grid, const Options* options) {
    int64 samples = grid.size[1], channels = dimages.size[1], groups = ceil_div(channels, CHANNELS);
    parallel_rows(grid.size[0] * groups, samples * CHANNELS, [=](int64 begin, int64 end) {
        Tile tile(dimages);
        for (int64 item = begin; item < end; item++) {
            tile.channel = item % groups * CHANNELS, tile.count = min(CHANNELS, channels - tile.channel);
            set_to_zero(dimages, item / groups, tile);
            for (int64 first = 0; first < samples; first += BLOCK) {
                Samples at(grid, *options, item / groups, first);
                tile.read(dout, at);
                add_gradients(dimages, at, tile);
            }
        }
    });
}
KERNEL(grid_sample_input_gradient)

// dgrid: the gradients of the weights times the derivatives of those.
static void grid_sample_grid_gradient(Array dgrid, Array dout, Array images, Array grid, const Options* options) {
    int64 blocks = ceil_div(grid.size[1], BLOCK), channels = images.size[1];
    parallel_rows(grid.size[0] * blocks, BLOCK * channels, [=](int64 begin, int64 end) {
        Tile tile(images);
        for (int64 item = begin; item < end; item++) {
            Samples at(grid, *options, item / blocks, item % blocks * BLOCK);
            float dots[PIXELS][BLOCK] = {};
            for_each_group(tile, channels, [&] {
                tile.read(dout, at);
                add_products(dots, at, images, tile);
            });
            for (int64 i = 0; i < at.axes; i++) {
                float sums[BLOCK] = {};
                at.multiply(i);
                for (int64 p = 0; p < at.pixels; p++) {
                    SIMD for (int64 s = 0; s < at.count; s++) sums[s] += dots[p][s] * at.weight[p][s];
                }
                int64 start = dgrid.offset(at.image, at.first, at.axes - 1 - i);
                write_floats(sums, dgrid.data, dgrid.kind, start, dgrid.stride[1], at.count);
            }
        }
    });
}
KERNEL(grid_sample_grid_gradient)
