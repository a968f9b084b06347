// Optimizer updates with their 16-bit copies, the gradient norm and clipping on flat memory, one pass each.
//
// Hyperparameters (lr, betas, momentum), the step count and the `all_finite` flag are read on the device, so that the
// host never waits. V values per access; V > 1 requires flat arrays aligned to V values.
#include "include/master_weights.cuh"

#define HELPER static __device__ __forceinline__
#define REGISTER_RULE(NAME)
#include "shared/optimizers.h"

// copy = T(master), rounded to nearest.
template <typename T, int V>
__global__ void cast_copy(const float* master, T* copy, int64 count) {
    for_each_vector<V>(count, CastCopy<float, T>{master, copy});
}

template <typename T>
struct RoundStochastically {
    const float* values;
    T* weights;
    RandomBits random_bits;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[N];
        load_floats<N>(values + i, p);
        random_bits.round<T>(i, p);
        store_floats<N>(weights + i, p);
    }
};

// weights = T(values), rounded stochastically.
template <typename T, int V>
__global__ void round_stochastically(const float* values, T* weights, uint64 seed, uint64 call, const uint64* draws,
                                     int64 start, int64 count) {
    for_each_vector<V>(count, RoundStochastically<T>{values, weights, {seed, call, draws, start}});
}

// The gradient to descend: negated if `maximize`, plus the L2 penalty.
__device__ __forceinline__ float update_direction(float p, float g, float decay, bool maximize) {
    if (maximize) g = -g;
    return decay != 0.0f ? p * decay + g : g;
}

template <typename Rule, typename M>
struct Update {
    MasterWeights<M> weights;
    const float* gradient;
    float* moments[3];
    const float* numbers;
    float penalty;
    bool maximize;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[N], g[N], m[3][N] = {};
        bool has[3];
        load_floats<N>(weights.master + i, p);
        load_floats<N>(gradient + i, g);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            has[k] = k < Rule::MOMENTS && moments[k];
            if (has[k]) load_floats<N>(moments[k] + i, m[k]);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            float direction = update_direction(p[j], g[j], penalty, maximize);
            Rule::apply(p[j], direction, m[0][j], m[1][j], m[2][j], numbers, has);
        }
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (has[k]) store_floats<N>(moments[k] + i, m[k]);
        weights.template store<N>(i, p);
    }
};

// Adam, AdamW, AMSGrad. max_squares, copies, all_finite, draws: null for none. decay: decoupled, of weights; penalty:
// L2.
template <typename M, int V>
__global__ void adam_update(M* master, const float* gradient, float* mean, float* square, float* max_squares,
                            __half* float16_copy, __nv_bfloat16* bfloat16_copy, uint64 seed, uint64 call,
                            const uint64* draws, int64 start, const int64* steps, const double* lr, const double* betas,
                            const bool* all_finite, float eps, double decay, float penalty, bool maximize,
                            int64 count) {
    MasterWeights<M> weights{master, float16_copy, bfloat16_copy, {seed, call, draws, start}};
    if (all_finite && !*all_finite) return weights.template rewrite_copies<V>(count);
    __shared__ float numbers[7];  // the scalars of Adam, rounded from float64
    if (threadIdx.x == 0) {
        double time = double(*steps + 1), new_square = 1.0 - betas[1];
        numbers[0] = float(*lr / (1.0 - pow(betas[0], time))), numbers[1] = float(sqrt(1.0 - pow(betas[1], time)));
        numbers[2] = float(1.0 - *lr * decay), numbers[3] = float(1.0 - betas[0]);
        numbers[4] = float(1.0 - new_square), numbers[5] = float(new_square), numbers[6] = eps;
    }
    __syncthreads();
    for_each_vector<V>(count, Update<Adam, M>{weights, gradient, {mean, square, max_squares}, numbers, penalty,
                       maximize});
}

// SGD with momentum. buffer, copies, all_finite, draws: null for none. The first step sets the buffer to the gradient.
template <typename M, int V>
__global__ void sgd_update(M* master, const float* gradient, float* buffer, __half* float16_copy,
                           __nv_bfloat16* bfloat16_copy, uint64 seed, uint64 call, const uint64* draws, int64 start,
                           const int64* steps, const double* lr, const double* momentum, const bool* all_finite,
                           double dampening, float penalty, bool nesterov, bool maximize, int64 count) {
    MasterWeights<M> weights{master, float16_copy, bfloat16_copy, {seed, call, draws, start}};
    if (all_finite && !*all_finite) return weights.template rewrite_copies<V>(count);
    float new_weight = *steps == 0 ? 1.0f : float(1.0 - dampening);
    const float numbers[4] = {float(*lr), float(*momentum), new_weight, float(nesterov)};
    for_each_vector<V>(count, Update<SGD, M>{weights, gradient, {buffer}, numbers, penalty, maximize});
}

// One step of Rule. Moments after the first, copies, all_finite, draws: null for none. numbers: the per-step
// scalars.
template <typename Rule, typename M, int V>
__global__ void update(M* master, const float* gradient, float* moment_0, float* moment_1, float* moment_2,
                       __half* float16_copy, __nv_bfloat16* bfloat16_copy, uint64 seed, uint64 call,
                       const uint64* draws, int64 start, const float* numbers, const bool* all_finite, float penalty,
                       bool maximize, int64 count) {
    MasterWeights<M> weights{master, float16_copy, bfloat16_copy, {seed, call, draws, start}};
    if (all_finite && !*all_finite) return weights.template rewrite_copies<V>(count);
    for_each_vector<V>(count, Update<Rule, M>{weights, gradient, {moment_0, moment_1, moment_2}, numbers, penalty,
                       maximize});
}

// Norms, summed in float64, where the square of a float32 cannot overflow. ORDER 0: the maximum, NaN if any is; 1: any
// order.

struct Largest {
    static __device__ __forceinline__ double combine(double a, double b) { return a > b || a != a ? a : b; }
    template <typename T>
    static __device__ __forceinline__ T identity() { return 0.0; }
};
template <int ORDER> struct Norm { using Op = Sum; };
template <> struct Norm<0> { using Op = Largest; };

template <int ORDER>
__device__ __forceinline__ double power(float x, double order) {
    double wide = x;
    return ORDER == 2 ? wide * wide : ORDER == 0 ? fabs(wide) : pow(fabs(wide), order);
}

template <typename T, int ORDER>
struct PowerSum {
    const T* values;
    double order;
    double* total;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float x[N];
        load_floats<N>(values + i, x);
#pragma unroll
        for (int j = 0; j < N; j++) *total = Norm<ORDER>::Op::combine(*total, power<ORDER>(x[j], order));
    }
};

// parts [gridDim.x]: the block's sum of |x|^order, or its maximum.
template <typename T, int V, int ORDER>
__global__ void power_sum(const T* values, double* parts, double order, int64 count) {
    double total = 0.0;
    for_each_vector<V>(count, PowerSum<T, ORDER>{values, order, &total});
    total = block_reduce<typename Norm<ORDER>::Op>(total);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// out = sum (or maximum) of parts. One block.
template <int ORDER>
__global__ void power_sum_finish(const double* parts, double* out, int64 count) {
    double total = 0.0;
    for (int64 i = threadIdx.x; i < count; i += blockDim.x) total = Norm<ORDER>::Op::combine(total, parts[i]);
    total = block_reduce<typename Norm<ORDER>::Op>(total);
    if (threadIdx.x == 0) *out = total;
}

template <typename T>
struct ScaleGradients {
    T* values;
    float by;
    bool all_finite;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float x[N];
        load_floats<N>(values + i, x);
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = (all_finite ? x[j] : 0.0f) * by;
        store_floats<N>(values + i, x);
    }
};

// values *= *factor, or 0 if not *all_finite; returns early where both leave the values as they are.
template <typename T, int V>
__global__ void scale_gradients(T* values, const double* factor, const bool* all_finite, int64 count) {
    if (*all_finite && *factor == 1.0) return;
    for_each_vector<V>(count, ScaleGradients<T>{values, to_float(from_float<T>(float(*factor))), *all_finite});
}

// count advances by one if steps did since `seen`; row = table [rows, width] at count, or its last row. One block.
__global__ void advance_schedule(int64* count, int64* seen, const int64* steps, const double* table, double* row,
                                 int64 rows, int64 width) {
    int64 now = *count + (*steps > *seen), at = now < rows ? now : rows - 1;
    __syncthreads();  // all threads have read count and seen
    if (threadIdx.x == 0) *count = now, *seen = *steps;
    for (int64 i = threadIdx.x; i < width; i += blockDim.x) row[i] = table[at * width + i];
}

// set VECTORS = ((float, 4), (float, 1), (__half, 8), (__half, 1), (__nv_bfloat16, 8), (__nv_bfloat16, 1))
// set NARROW = ((__half, 4), (__half, 1), (__nv_bfloat16, 4), (__nv_bfloat16, 1))
// set STORAGE = ((float, 4), (float, 1), (__half, 4), (__nv_bfloat16, 4))
// entries: adam_update<M, V> for (M, V) in STORAGE
// entries: sgd_update<M, V> for (M, V) in STORAGE
// entries: update<R, M, V> for R in RULES, (M, V) in STORAGE
// entries: cast_copy<T, V> for (T, V) in NARROW
// entries: round_stochastically<T, V> for (T, V) in NARROW
// entries: power_sum<T, V, O> for (T, V) in VECTORS, O in (0, 1, 2)
// entries: power_sum_finish<O> for O in (0, 1, 2)
// entries: scale_gradients<T, V> for (T, V) in VECTORS
// entries: advance_schedule
