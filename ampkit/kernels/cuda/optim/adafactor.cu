// Adafactor, one parameter at a time: running mean squares of rows and columns, the norm of the update, the update. A
// parameter is [outer, rows, columns], or a vector without factors. Sums in float64, in an order that depends on the
// sizes alone.
//
// Learning rate, step count and the `all_finite` flag (may be null) are read on the device.
#include "include/master_weights.cuh"

// Weight of the new square in the running means, t^decay.
__device__ __forceinline__ float square_weight(const int64* steps, double decay) {
    return float(pow(double(*steps + 1), decay));
}

// Sum of part(i) for i < count over `lanes` adjacent threads, a power of two up to 32, or over the whole block; all of
// them receive it. All threads of the block take part.
template <typename Part>
__device__ __forceinline__ double row_sum(unsigned count, unsigned lanes, const Part& part) {
    double total = 0.0;
#pragma unroll 4
    for (unsigned i = threadIdx.x % lanes; i < count; i += lanes) total += part(i);
    if (lanes > 32) return block_sum(total);
    for (unsigned with = lanes / 2; with; with /= 2) total += shuffle_xor(total, int(with));
    return total;
}

// rows [row_count]: moves towards the mean square of each row of gradient [row_count, columns].
__global__ void adafactor_row_squares(const float* gradient, float* rows, const int64* steps, const bool* all_finite,
                                      double decay, unsigned row_count, unsigned columns, unsigned lanes) {
    if (all_finite && !*all_finite) return;
    float new_weight = square_weight(steps, decay);
    unsigned rows_per_block = blockDim.x / lanes;
    for (unsigned first = blockIdx.x * rows_per_block; first < row_count; first += gridDim.x * rows_per_block) {
        unsigned row = first + threadIdx.x / lanes;
        const float* mine = gradient + (int64)row * columns;
        auto square = [=](unsigned i) { return double(mine[i] * mine[i]); };
        double total = row_sum(row < row_count ? columns : 0, lanes, square);
        if (row < row_count && threadIdx.x % lanes == 0) rows[row] += (float(total / columns) - rows[row]) * new_weight;
    }
}

// means [outer]: mean of `count` rows each.
__global__ void adafactor_row_means(const float* rows, float* means, const bool* all_finite, unsigned outer,
                                    unsigned count, unsigned lanes) {
    if (all_finite && !*all_finite) return;
    unsigned rows_per_block = blockDim.x / lanes;
    for (unsigned first = blockIdx.x * rows_per_block; first < outer; first += gridDim.x * rows_per_block) {
        unsigned row = first + threadIdx.x / lanes;
        const float* mine = rows + (int64)row * count;
        double total = row_sum(row < outer ? count : 0, lanes, [=](unsigned i) { return double(mine[i]); });
        if (row < outer && threadIdx.x % lanes == 0) means[row] = float(total / count);
    }
}

// parts [gridDim.y, outer * columns]: sum of squares of each column over `each` rows.
__global__ void adafactor_column_squares(const float* gradient, double* parts, const bool* all_finite, unsigned outer,
                                         unsigned rows, unsigned columns, unsigned each) {
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x, all = outer * columns;
    if ((all_finite && !*all_finite) || column >= all) return;
    unsigned first = blockIdx.y * each, end = first + each < rows ? first + each : rows;
    const float* mine = gradient + (int64)(column / columns) * rows * columns + column % columns;
    double total = 0.0;
#pragma unroll 4
    for (unsigned r = first; r < end; r++) {
        float g = mine[(int64)r * columns];
        total += double(g * g);
    }
    parts[(int64)blockIdx.y * all + column] = total;
}

// columns [all]: moves towards the mean square of each column, from `number` parts of `count` rows in all.
__global__ void adafactor_column_means(const double* parts, float* columns, const int64* steps, const bool* all_finite,
                                       double decay, unsigned all, unsigned number, unsigned count) {
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if ((all_finite && !*all_finite) || column >= all) return;
    double total = 0.0;
    for (unsigned i = 0; i < number; i++) total += parts[(int64)i * all + column];
    columns[column] += (float(total / count) - columns[column]) * square_weight(steps, decay);
}

// Estimated mean square of an element: from the factors, or for a vector its own.
struct Estimate {
    const float *rows, *columns, *means;
    unsigned height, width;
    float least, floor;

    // The factor of the gradient at i.
    __device__ __forceinline__ float scale(unsigned i) const {
        float found = rows[columns ? i / width : i];
        if (columns) {
            unsigned row = i / width, outer = row / height;
            found = found / Max::combine(means[outer], least) * columns[outer * width + (i - row * width)];
        }
        return 1.0f / sqrtf(Max::combine(found, floor));
    }
};

// sums [gridDim.x, 2]: squared norms of weights and of updates. For a vector it also updates the mean squares.
__global__ void adafactor_norms(const float* master, const float* gradient, float* rows, const float* columns,
                                const float* means, double* sums, const int64* steps, const bool* all_finite,
                                double decay, unsigned height, unsigned width, float least, float floor, bool maximize,
                                unsigned count) {
    if (all_finite && !*all_finite) return;
    Estimate estimate{rows, columns, means, height, width, least, floor};
    float new_weight = columns ? 0.0f : square_weight(steps, decay);
    double weight_norm = 0.0, update_norm = 0.0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        float g = maximize ? -gradient[i] : gradient[i];
        if (!columns) rows[i] += (g * g - rows[i]) * new_weight;
        double wide = master[i], u = estimate.scale(i) * g;
        weight_norm += wide * wide;
        update_norm += u * u;
    }
    weight_norm = block_sum(weight_norm);
    update_norm = block_sum(update_norm);
    if (threadIdx.x == 0) sums[2 * blockIdx.x] = weight_norm, sums[2 * blockIdx.x + 1] = update_norm;
}

__device__ __forceinline__ double at_least(double x, double least) { return x > least || x != x ? x : least; }

// rate = step size / clipping, from the root mean squares of weights and updates. One block.
__global__ void adafactor_rate(const double* sums, float* rate, const int64* steps, const double* lr,
                               const bool* all_finite, double least_scale, double limit, unsigned parts,
                               unsigned count) {
    if (all_finite && !*all_finite) return;
    double weight_norm = 0.0, update_norm = 0.0;
    for (unsigned i = threadIdx.x; i < parts; i += blockDim.x)
        weight_norm += sums[2 * i], update_norm += sums[2 * i + 1];
    weight_norm = block_sum(weight_norm);
    update_norm = block_sum(update_norm);
    double time = 1.0 / sqrt(double(*steps + 1)), pace = *lr < time ? *lr : time;
    double size = at_least(sqrt(weight_norm / count), least_scale) * pace;
    if (threadIdx.x == 0) *rate = float(size / at_least(sqrt(update_norm / count) / limit, 1.0));
}

struct AdafactorStep {
    MasterWeights<float> weights;
    const float* gradient;
    Estimate estimate;
    float decay_factor, rate;
    bool maximize;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[1] = {weights.master[i]}, g = maximize ? -gradient[i] : gradient[i];
        p[0] = p[0] * decay_factor - estimate.scale(unsigned(i)) * g * rate;
        weights.store<1>(i, p);
    }
};

// weights = weights * (1 - lr * decay) - rate * update. columns, means: null for a vector; copies: null for none.
__global__ void adafactor_update(float* master, const float* gradient, const float* rows, const float* columns,
                                 const float* means, __half* float16_copy, __nv_bfloat16* bfloat16_copy,
                                 const float* rate, const double* lr, const bool* all_finite, double decay,
                                 unsigned height, unsigned width, float least, float floor, bool maximize,
                                 unsigned count) {
    MasterWeights<float> weights{master, float16_copy, bfloat16_copy, {}};
    if (all_finite && !*all_finite) return weights.rewrite_copies<1>(count);
    Estimate estimate{rows, columns, means, height, width, least, floor};
    for_each_vector<1>(count, AdafactorStep{weights, gradient, estimate, float(1.0 - *lr * decay), *rate, maximize});
}

// entries: adafactor_row_squares
// entries: adafactor_row_means
// entries: adafactor_column_squares
// entries: adafactor_column_means
// entries: adafactor_norms
// entries: adafactor_rate
// entries: adafactor_update
