// Optimizer updates with their 16-bit copies, the gradient norm and clipping on flat memory, one pass each.
//
// Hyperparameters (lr, betas, momentum), the step count and the `all_finite` flag are read on the device, so that the
// host never waits. V values per access; V > 1 requires flat arrays aligned to V values.
#include "include/master_weights.cuh"

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

// Per-step scalars of Adam, rounded from float64.
struct AdamRates {
    float rate, root, decay_factor, mean_weight, old_weight, new_weight;
};

__device__ __forceinline__ AdamRates adam_rates(double lr, double first, double second, double count, double decay) {
    double new_square = 1.0 - second;
    return {float(lr / (1.0 - pow(first, count))), float(sqrt(1.0 - pow(second, count))), float(1.0 - lr * decay),
            float(1.0 - first), float(1.0 - new_square), float(new_square)};
}

template <typename M>
struct Adam {
    MasterWeights<M> weights;
    const float* gradient;
    float *mean, *square, *max_squares;
    AdamRates r;
    float eps, penalty;
    bool maximize;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[N], g[N], m[N], v[N], max_square[N];
        load_floats<N>(weights.master + i, p);
        load_floats<N>(gradient + i, g);
        load_floats<N>(mean + i, m);
        load_floats<N>(square + i, v);
        if (max_squares) load_floats<N>(max_squares + i, max_square);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float d = update_direction(p[j], g[j], penalty, maximize);
            m[j] += (d - m[j]) * r.mean_weight;
            v[j] = v[j] * r.old_weight + d * d * r.new_weight;
            max_square[j] = max_squares ? Max::combine(max_square[j], v[j]) : v[j];
            p[j] = p[j] * r.decay_factor - m[j] / (sqrtf(max_square[j]) / r.root + eps) * r.rate;
        }
        store_floats<N>(mean + i, m);
        store_floats<N>(square + i, v);
        if (max_squares) store_floats<N>(max_squares + i, max_square);
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
    __shared__ AdamRates rates;
    if (threadIdx.x == 0) rates = adam_rates(*lr, betas[0], betas[1], double(*steps + 1), decay);
    __syncthreads();
    for_each_vector<V>(count, Adam<M>{weights, gradient, mean, square, max_squares, rates, eps, penalty, maximize});
}

template <typename M>
struct Sgd {
    MasterWeights<M> weights;
    const float* gradient;
    float* buffer;
    float rate, momentum, new_weight, penalty;
    bool nesterov, maximize;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[N], g[N], m[N];
        load_floats<N>(weights.master + i, p);
        load_floats<N>(gradient + i, g);
        if (buffer) load_floats<N>(buffer + i, m);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float d = update_direction(p[j], g[j], penalty, maximize);
            if (buffer) {
                m[j] = m[j] * momentum + d * new_weight;
                d = nesterov ? m[j] * momentum + d : m[j];
            }
            p[j] -= d * rate;
        }
        if (buffer) store_floats<N>(buffer + i, m);
        weights.template store<N>(i, p);
    }
};

// SGD with momentum. buffer, copies, all_finite, draws: null for none. The first step sets the buffer to the gradient.
template <typename M, int V>
__global__ void sgd_update(M* master, const float* gradient, float* buffer, __half* float16_copy,
                           __nv_bfloat16* bfloat16_copy, uint64 seed, uint64 call, const uint64* draws, int64 start,
                           const int64* steps, const double* lr, const double* momentum, const bool* all_finite,
                           double dampening, float penalty, bool nesterov, bool maximize, int64 count) {
    MasterWeights<M> weights{master, float16_copy, bfloat16_copy, {seed, call, draws, start}};
    if (all_finite && !*all_finite) return weights.template rewrite_copies<V>(count);
    float new_weight = *steps == 0 ? 1.0f : float(1.0 - dampening);
    for_each_vector<V>(count, Sgd<M>{weights, gradient, buffer, float(*lr), float(*momentum), new_weight, penalty,
                       nesterov, maximize});
}

// The other optimizers. A rule updates the weight p and the moments m from the gradient d and the per-step scalars n;
// moments and scalars are in the order of `update_elements` in ampkit/optim/<name>.py; has: which moments exist.

__device__ __forceinline__ float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

#define UPDATE_RULE(Name, COUNT, ...)                                                                          \
    struct Name {                                                                                              \
        static constexpr int MOMENTS = COUNT;                                                                  \
        static __device__ __forceinline__ void step(float& p, float d, float (&m)[3], const bool (&has)[3],    \
                                                    const float* n) {                                          \
            __VA_ARGS__                                                                                        \
        }                                                                                                      \
    };
#define MEAN(m, new) m += (d - m) * new;
#define SQUARE(v, old_weight, new_weight) v = v * old_weight + d * d * new_weight;

UPDATE_RULE(Adadelta, 2, SQUARE(m[0], n[1], n[2]) float u = sqrtf(m[1] + n[3]) / sqrtf(m[0] + n[3]) * d;
     m[1] = m[1] * n[1] + u * u * n[2]; p -= u * n[0];)
UPDATE_RULE(Adagrad, 1, m[0] += n[1]; m[0] += d * d; p -= d / (sqrtf(m[0]) + n[2]) * n[0];)
UPDATE_RULE(Adamax, 2, MEAN(m[0], n[1]) m[1] = Max::combine(m[1] * n[2], fabsf(d) + n[3]); p -= m[0] / m[1] * n[0];)
UPDATE_RULE(ASGD, 1, p *= n[0]; p -= d * n[1]; m[0] = n[2] == 1.0f ? p : m[0] + (p - m[0]) * n[2];)
UPDATE_RULE(Lion, 1, p *= n[1]; p -= sign(m[0] + (d - m[0]) * n[2]) * n[0]; MEAN(m[0], n[3]))
UPDATE_RULE(NAdam, 2, MEAN(m[0], n[4]) SQUARE(m[1], n[5], n[6]) p *= n[3];
     p -= (d * n[0] + m[0] * n[1]) / (sqrtf(m[1]) / n[2] + n[7]);)
UPDATE_RULE(RAdam, 2, MEAN(m[0], n[2]) SQUARE(m[1], n[3], n[4]) p *= n[1];
     p -= m[0] / (sqrtf(m[1]) * n[5] + n[6]) * n[0];)
UPDATE_RULE(RMSprop, 3, SQUARE(m[0], n[2], n[3]) float var = m[0]; if (has[2]) {
    MEAN(m[2], n[3]) var = Max::combine(m[0] - m[2] * m[2], 0.0f); } float u = d / (sqrtf(var) + n[4]);
     if (has[1]) u = m[1] = m[1] * n[1] + u; p -= u * n[0];)
UPDATE_RULE(Rprop, 2, m[1] = m[1] * n[1] + n[0]; float side = m[0] * d;
     m[1] = Min::combine(Max::combine(m[1] * (side > 0.0f ? n[3] : side < 0.0f ? n[2] : 1.0f), n[4]), n[5]);
     m[0] = side < 0.0f ? 0.0f : d; p -= sign(m[0]) * m[1];)

template <typename UpdateRule, typename M>
struct Update {
    MasterWeights<M> weights;
    const float* gradient;
    float* moments[3];
    const float* numbers;
    float penalty;
    bool maximize;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[N], g[N], m[3][N];
        bool has[3];
        load_floats<N>(weights.master + i, p);
        load_floats<N>(gradient + i, g);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            has[k] = k < UpdateRule::MOMENTS && moments[k];
            if (has[k]) load_floats<N>(moments[k] + i, m[k]);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            float own[3] = {m[0][j], has[1] ? m[1][j] : 0.0f, has[2] ? m[2][j] : 0.0f};
            UpdateRule::step(p[j], update_direction(p[j], g[j], penalty, maximize), own, has, numbers);
#pragma unroll
            for (int k = 0; k < 3; k++) m[k][j] = own[k];
        }
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (has[k]) store_floats<N>(moments[k] + i, m[k]);
        weights.template store<N>(i, p);
    }
};

// One step of UpdateRule. Moments after the first, copies, all_finite, draws: null for none. numbers: the per-step
// scalars.
template <typename UpdateRule, typename M, int V>
__global__ void update(M* master, const float* gradient, float* moment_0, float* moment_1, float* moment_2,
                       __half* float16_copy, __nv_bfloat16* bfloat16_copy, uint64 seed, uint64 call,
                       const uint64* draws, int64 start, const float* numbers, const bool* all_finite, float penalty,
                       bool maximize, int64 count) {
    MasterWeights<M> weights{master, float16_copy, bfloat16_copy, {seed, call, draws, start}};
    if (all_finite && !*all_finite) return weights.template rewrite_copies<V>(count);
    for_each_vector<V>(count, Update<UpdateRule, M>{weights, gradient, {moment_0, moment_1, moment_2}, numbers, penalty,
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
// entries: update<R, M, V> for R in (Adadelta, Adagrad, Adamax, ASGD, Lion, NAdam, RAdam, RMSprop,
//     Rprop), (M, V) in STORAGE
// entries: cast_copy<T, V> for (T, V) in NARROW
// entries: round_stochastically<T, V> for (T, V) in NARROW
// entries: power_sum<T, V, O> for (T, V) in VECTORS, O in (0, 1, 2)
// entries: power_sum_finish<O> for O in (0, 1, 2)
// entries: scale_gradients<T, V> for (T, V) in VECTORS
// entries: advance_schedule
