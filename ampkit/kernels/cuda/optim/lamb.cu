// LAMB in three passes: moments with both norms, the trust ratio of each parameter, the update. Norms are summed in
// float64 in an order that depends on the sizes alone.
//
// Hyperparameters (lr, betas, momentum), the step count and the `all_finite` flag are read on the device, so that the
// host never waits. V values per access; V > 1 requires flat arrays aligned to V values. Segments are slots of the
// arena.
#include "include/master_weights.cuh"

constexpr int SEGMENTS = 64;

// Ranges of parameters in flat memory, one per blockIdx.y.
struct Segments {
    int64 start[SEGMENTS];
    int64 stop[SEGMENTS];
};

// Per-step scalars, rounded from float64.
struct LambRates {
    float mean_weight, old_weight, new_weight, correction, root;
};

__device__ __forceinline__ LambRates lamb_rates(double first, double second, double count) {
    return {float(1.0 - first), float(second), float(1.0 - second), float(1.0 - pow(first, count)),
            float(sqrt(1.0 - pow(second, count)))};
}

__device__ __forceinline__ float update_direction(float p, float m, float v, const LambRates& r, float eps,
    float decay) {
    float step = m / r.correction / (sqrtf(v) / r.root + eps);
    return decay != 0.0f ? step + p * decay : step;
}

struct LambMoments {
    const float *master, *gradient;
    float *mean, *square;
    LambRates r;
    float eps, decay;
    bool maximize;
    double *weight_norm, *update_norm;  // sums of squares of this thread

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[N], g[N], m[N], v[N];
        load_floats<N>(master + i, p);
        load_floats<N>(gradient + i, g);
        load_floats<N>(mean + i, m);
        load_floats<N>(square + i, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float d = maximize ? -g[j] : g[j];
            m[j] += (d - m[j]) * r.mean_weight;
            v[j] = v[j] * r.old_weight + d * d * r.new_weight;
            double u = update_direction(p[j], m[j], v[j], r, eps, decay), wide = p[j];
            *weight_norm += wide * wide;
            *update_norm += u * u;
        }
        store_floats<N>(mean + i, m);
        store_floats<N>(square + i, v);
    }
};

// Updates both moments; sums [segments, gridDim.x, 2]: the block's squared norms of the weights and of their updates.
template <int V>
__global__ void lamb_moments(const float* master, const float* gradient, float* mean, float* square, double* sums,
                             const __grid_constant__ Segments segments, const int64* steps, const double* betas,
                             const bool* all_finite, float eps, float decay, bool maximize) {
    if (all_finite && !*all_finite) return;
    int64 start = segments.start[blockIdx.y], count = segments.stop[blockIdx.y] - start;
    double weight_norm = 0.0, update_norm = 0.0;
    __shared__ LambRates rates;
    if (threadIdx.x == 0) rates = lamb_rates(betas[0], betas[1], double(*steps + 1));
    __syncthreads();
    for_each_vector<V>(count, LambMoments{master + start, gradient + start, mean + start, square + start, rates, eps,
                       decay, maximize, &weight_norm, &update_norm});
    weight_norm = block_sum(weight_norm);
    update_norm = block_sum(update_norm);
    double* mine = sums + 2 * ((int64)blockIdx.y * gridDim.x + blockIdx.x);
    if (threadIdx.x == 0) mine[0] = weight_norm, mine[1] = update_norm;
}

// rates[segment] = lr * |weights| / |update|, lr where either is 0. A block per segment.
__global__ void lamb_trust_ratio(const double* sums, float* rates, const double* lr, const bool* all_finite,
    int parts) {
    if (all_finite && !*all_finite) return;
    const double* mine = sums + 2 * (int64)blockIdx.x * parts;
    double weight_norm = 0.0, update_norm = 0.0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) weight_norm += mine[2 * i], update_norm += mine[2 * i + 1];
    weight_norm = block_sum(weight_norm);
    update_norm = block_sum(update_norm);
    double trust = weight_norm > 0.0 && update_norm > 0.0 ? sqrt(weight_norm / update_norm) : 1.0;
    if (threadIdx.x == 0) rates[blockIdx.x] = float(*lr * trust);
}

struct LambStep {
    MasterWeights<float> weights;
    const float *mean, *square;
    LambRates r;
    float eps, decay, rate;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[N], m[N], v[N];
        load_floats<N>(weights.master + i, p);
        load_floats<N>(mean + i, m);
        load_floats<N>(square + i, v);
#pragma unroll
        for (int j = 0; j < N; j++) p[j] -= update_direction(p[j], m[j], v[j], r, eps, decay) * rate;
        weights.store<N>(i, p);
    }
};

// weights -= rate * update. copies, all_finite: null for none.
template <int V>
__global__ void lamb_update(float* master, const float* mean, const float* square, __half* float16_copy,
                            __nv_bfloat16* bfloat16_copy, const float* rates, const __grid_constant__ Segments segments,
                            const int64* steps, const double* betas, const bool* all_finite, float eps, float decay) {
    int64 start = segments.start[blockIdx.y], count = segments.stop[blockIdx.y] - start;
    MasterWeights<float> weights{master + start, float16_copy ? float16_copy + start : nullptr, bfloat16_copy
        ? bfloat16_copy + start : nullptr, {}};
    if (all_finite && !*all_finite) return weights.rewrite_copies<V>(count);
    __shared__ LambRates shared;
    if (threadIdx.x == 0) shared = lamb_rates(betas[0], betas[1], double(*steps + 1));
    __syncthreads();
    for_each_vector<V>(count, LambStep{weights, mean + start, square + start, shared, eps, decay, rates[blockIdx.y]});
}

// entries: lamb_moments<V> for V in (4, 1)
// entries: lamb_trust_ratio
// entries: lamb_update<V> for V in (4, 1)
