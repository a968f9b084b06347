// Adafactor, a parameter at a time: running mean squares of rows and columns, the size of the update that they give, the
// step. A parameter is [outer, rows, columns], or without factors a vector. Sums are in float64, in an order that the
// sizes alone decide.
//
// Learning rate, the count of steps and the flag of a step that is real are read here: all_finite may be null.
#include "include/flat_update.cuh"

// The weight of a new square in the running means, t^decay.
__device__ __forceinline__ float fresh(const int64* steps, double decay) { return float(pow(double(*steps + 1), decay)); }

// part(i) for all i below count, added up by `lanes` threads side by side, a power of two up to 32 or the whole block; all
// of them receive the sum. All threads of the block take part.
template <typename Part>
__device__ __forceinline__ double line_sum(unsigned count, unsigned lanes, const Part& part) {
    double total = 0.0;
#pragma unroll 4
    for (unsigned i = threadIdx.x % lanes; i < count; i += lanes) total += part(i);
    if (lanes > 32) return block_sum(total);
    for (unsigned with = lanes / 2; with; with /= 2) total += across(total, int(with));
    return total;
}

// rows [lines] take in the mean square of each line of gradient [lines, columns].
__global__ void row_squares(const float* gradient, float* rows, const int64* steps, const bool* all_finite, double decay,
                            unsigned lines, unsigned columns, unsigned lanes) {
    if (all_finite && !*all_finite) return;
    float take = fresh(steps, decay);
    unsigned together = blockDim.x / lanes;
    for (unsigned first = blockIdx.x * together; first < lines; first += gridDim.x * together) {
        unsigned line = first + threadIdx.x / lanes;
        const float* mine = gradient + (int64)line * columns;
        double total = line_sum(line < lines ? columns : 0, lanes, [=](unsigned i) { return double(mine[i] * mine[i]); });
        if (line < lines && threadIdx.x % lanes == 0) rows[line] += (float(total / columns) - rows[line]) * take;
    }
}

// means [outer]: of each one's `count` rows.
__global__ void row_means(const float* rows, float* means, const bool* all_finite, unsigned outer, unsigned count,
                          unsigned lanes) {
    if (all_finite && !*all_finite) return;
    unsigned together = blockDim.x / lanes;
    for (unsigned first = blockIdx.x * together; first < outer; first += gridDim.x * together) {
        unsigned line = first + threadIdx.x / lanes;
        const float* mine = rows + (int64)line * count;
        double total = line_sum(line < outer ? count : 0, lanes, [=](unsigned i) { return double(mine[i]); });
        if (line < outer && threadIdx.x % lanes == 0) means[line] = float(total / count);
    }
}

// parts [gridDim.y, outer * columns]: the squares of each column, of `each` rows.
__global__ void column_squares(const float* gradient, double* parts, const bool* all_finite, unsigned outer, unsigned rows,
                               unsigned columns, unsigned each) {
    unsigned place = blockIdx.x * blockDim.x + threadIdx.x, all = outer * columns;
    if ((all_finite && !*all_finite) || place >= all) return;
    unsigned first = blockIdx.y * each, end = first + each < rows ? first + each : rows;
    const float* mine = gradient + (int64)(place / columns) * rows * columns + place % columns;
    double total = 0.0;
#pragma unroll 4
    for (unsigned r = first; r < end; r++) {
        float g = mine[(int64)r * columns];
        total += double(g * g);
    }
    parts[(int64)blockIdx.y * all + place] = total;
}

// columns [all] take in their mean squares, of `count` rows in so many parts.
__global__ void column_means(const double* parts, float* columns, const int64* steps, const bool* all_finite, double decay,
                             unsigned all, unsigned number, unsigned count) {
    unsigned place = blockIdx.x * blockDim.x + threadIdx.x;
    if ((all_finite && !*all_finite) || place >= all) return;
    double total = 0.0;
    for (unsigned i = 0; i < number; i++) total += parts[(int64)i * all + place];
    columns[place] += (float(total / count) - columns[place]) * fresh(steps, decay);
}

// The mean square of an element: of factors, or without columns its own.
struct Estimate {
    const float *rows, *columns, *means;
    unsigned height, width;
    float least, floor;

    // What the gradient at i is multiplied with.
    __device__ __forceinline__ float scale(unsigned i) const {
        float found = rows[columns ? i / width : i];
        if (columns) {
            unsigned line = i / width, outer = line / height;
            found = found / Max::combine(means[outer], least) * columns[outer * width + (i - line * width)];
        }
        return 1.0f / sqrtf(Max::combine(found, floor));
    }
};

// sums [blocks, 2]: the squares of weights and of their updates. A vector's mean squares are taken in on the way.
__global__ void update_size(const float* master, const float* gradient, float* rows, const float* columns,
                            const float* means, double* sums, const int64* steps, const bool* all_finite, double decay,
                            unsigned height, unsigned width, float least, float floor, bool maximize, unsigned count) {
    if (all_finite && !*all_finite) return;
    Estimate estimate{rows, columns, means, height, width, least, floor};
    float take = columns ? 0.0f : fresh(steps, decay);
    double length = 0.0, moved = 0.0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        float g = maximize ? -gradient[i] : gradient[i];
        if (!columns) rows[i] += (g * g - rows[i]) * take;
        double wide = master[i], u = estimate.scale(i) * g;
        length += wide * wide;
        moved += u * u;
    }
    length = block_sum(length);
    moved = block_sum(moved);
    if (threadIdx.x == 0) sums[2 * blockIdx.x] = length, sums[2 * blockIdx.x + 1] = moved;
}

__device__ __forceinline__ double above(double x, double least) { return x > least || x != x ? x : least; }

// One block: what updates are multiplied with, from the root mean squares of all `count` weights and updates.
__global__ void update_rate(const double* sums, float* rate, const int64* steps, const double* lr, const bool* all_finite,
                            double least_scale, double limit, unsigned parts, unsigned count) {
    if (all_finite && !*all_finite) return;
    double length = 0.0, moved = 0.0;
    for (unsigned i = threadIdx.x; i < parts; i += blockDim.x) length += sums[2 * i], moved += sums[2 * i + 1];
    length = block_sum(length);
    moved = block_sum(moved);
    double time = 1.0 / sqrt(double(*steps + 1)), pace = *lr < time ? *lr : time;
    double size = above(sqrt(length / count), least_scale) * pace;
    if (threadIdx.x == 0) *rate = float(size / above(sqrt(moved / count) / limit, 1.0));
}

struct Stride {
    MasterWeights<float> weights;
    const float* gradient;
    Estimate estimate;
    float decay_factor, rate;
    bool maximize;

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float p[1] = {weights.master[i]}, g = maximize ? -gradient[i] : gradient[i];
        p[0] = p[0] * decay_factor - estimate.scale(unsigned(i)) * g * rate;
        weights.store<1>(i, p);
    }
};

// columns and means are null for a vector; the copies may be null.
__global__ void adafactor_move(float* master, const float* gradient, const float* rows, const float* columns,
                               const float* means, __half* float16_copy, __nv_bfloat16* bfloat16_copy, const float* rate,
                               const double* lr, const bool* all_finite, double decay, unsigned height, unsigned width,
                               float least, float floor, bool maximize, unsigned count) {
    MasterWeights<float> weights{master, float16_copy, bfloat16_copy, {}};
    if (all_finite && !*all_finite) return weights.rewrite<1>(count);
    Estimate estimate{rows, columns, means, height, width, least, floor};
    over<1>(count, Stride{weights, gradient, estimate, float(1.0 - *lr * decay), *rate, maximize});
}

// entries: row_squares
// entries: row_means
// entries: column_squares
// entries: column_means
// entries: update_size
// entries: update_rate
// entries: adafactor_move
