// LAMB in three passes: moments and the squares of both norms, the rate of each parameter, the step. Norms are summed in
// float64 in an order that the sizes alone decide.
//
// Learning rate, betas, the count of steps and the flag of a step that is real are read here. V values are accessed at
// once: with V > 1 flat arrays begin on a boundary of V values; so do segments, which are slots of the arena.
#include "include/flat_update.cuh"

constexpr int SEGMENTS = 64;

// Where parameters lie in flat memory; one for each blockIdx.y.
struct Segments {
    int64 start[SEGMENTS];
    int64 stop[SEGMENTS];
};

// What is the same for all elements, rounded from float64.
struct LambRates {
    float share, hold, take, correction, root;
};

__device__ __forceinline__ LambRates lamb_rates(double first, double second, double count) {
    return {float(1.0 - first), float(second), float(1.0 - second), float(1.0 - pow(first, count)),
            float(sqrt(1.0 - pow(second, count)))};
}

__device__ __forceinline__ float direction(float p, float m, float v, const LambRates& r, float eps, float decay) {
    float move = m / r.correction / (sqrtf(v) / r.root + eps);
    return decay != 0.0f ? move + p * decay : move;
}

struct Learn {
    const float *master, *gradient;
    float *mean, *square;
    LambRates r;
    float eps, decay;
    bool maximize;
    double *length, *moved;  // the sums of squares, of this thread

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float p[N], g[N], m[N], v[N];
        load_floats<N>(master + i, p);
        load_floats<N>(gradient + i, g);
        load_floats<N>(mean + i, m);
        load_floats<N>(square + i, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float d = maximize ? -g[j] : g[j];
            m[j] += (d - m[j]) * r.share;
            v[j] = v[j] * r.hold + d * d * r.take;
            double u = direction(p[j], m[j], v[j], r, eps, decay), wide = p[j];
            *length += wide * wide;
            *moved += u * u;
        }
        store_floats<N>(mean + i, m);
        store_floats<N>(square + i, v);
    }
};

// sums [segments, blocks, 2]: of each block the squares of weights and of their directions.
template <int V>
__global__ void lamb_learn(const float* master, const float* gradient, float* mean, float* square, double* sums,
                           const __grid_constant__ Segments segments, const int64* steps, const double* betas,
                           const bool* all_finite, float eps, float decay, bool maximize) {
    if (all_finite && !*all_finite) return;
    int64 start = segments.start[blockIdx.y], count = segments.stop[blockIdx.y] - start;
    double length = 0.0, moved = 0.0;
    __shared__ LambRates rates;
    if (threadIdx.x == 0) rates = lamb_rates(betas[0], betas[1], double(*steps + 1));
    __syncthreads();
    over<V>(count, Learn{master + start, gradient + start, mean + start, square + start, rates, eps, decay, maximize,
                         &length, &moved});
    length = block_sum(length);
    moved = block_sum(moved);
    double* mine = sums + 2 * ((int64)blockIdx.y * gridDim.x + blockIdx.x);
    if (threadIdx.x == 0) mine[0] = length, mine[1] = moved;
}

// rates: of each segment, a block each, lr times the quotient of the norms; times 1 where either is 0.
__global__ void lamb_trust(const double* sums, float* rates, const double* lr, const bool* all_finite, int parts) {
    if (all_finite && !*all_finite) return;
    const double* mine = sums + 2 * (int64)blockIdx.x * parts;
    double length = 0.0, moved = 0.0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) length += mine[2 * i], moved += mine[2 * i + 1];
    length = block_sum(length);
    moved = block_sum(moved);
    double trust = length > 0.0 && moved > 0.0 ? sqrt(length / moved) : 1.0;
    if (threadIdx.x == 0) rates[blockIdx.x] = float(*lr * trust);
}

struct Move {
    MasterWeights<float> weights;
    const float *mean, *square;
    LambRates r;
    float eps, decay, rate;

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float p[N], m[N], v[N];
        load_floats<N>(weights.master + i, p);
        load_floats<N>(mean + i, m);
        load_floats<N>(square + i, v);
#pragma unroll
        for (int j = 0; j < N; j++) p[j] -= direction(p[j], m[j], v[j], r, eps, decay) * rate;
        weights.store<N>(i, p);
    }
};

// The copies and all_finite may be null.
template <int V>
__global__ void lamb_move(float* master, const float* mean, const float* square, __half* float16_copy,
                          __nv_bfloat16* bfloat16_copy, const float* rates, const __grid_constant__ Segments segments,
                          const int64* steps, const double* betas, const bool* all_finite, float eps, float decay) {
    int64 start = segments.start[blockIdx.y], count = segments.stop[blockIdx.y] - start;
    MasterWeights<float> weights{master + start, float16_copy ? float16_copy + start : nullptr, bfloat16_copy ? bfloat16_copy + start : nullptr, {}};
    if (all_finite && !*all_finite) return weights.rewrite<V>(count);
    __shared__ LambRates shared;
    if (threadIdx.x == 0) shared = lamb_rates(betas[0], betas[1], double(*steps + 1));
    __syncthreads();
    over<V>(count, Move{weights, mean + start, square + start, shared, eps, decay, rates[blockIdx.y]});
}

// entries: lamb_learn<V> for V in (4, 1)
// entries: lamb_trust
// entries: lamb_move<V> for V in (4, 1)
