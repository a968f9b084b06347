// The updates of Adam and SGD, their 16-bit copies, the norm of gradients and clipping, on flat memory: one pass each.
//
// Learning rates, betas, momentum, the count of steps and the flag of a step that is real are read here, so that nobody
// waits for them. V values are accessed at once: with V > 1 flat arrays begin on a boundary of V values.
#include "block.cuh"

// `part.at<N>(i)` for the N values from i on: V at once, and the last few one by one.
template <int V, typename Part>
__device__ __forceinline__ void over(int64 count, const Part& part) {
    int64 stride = (int64)gridDim.x * blockDim.x * V;
    for (int64 i = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * V; i < count; i += stride) {
        if (i + V <= count) {
            part.template at<V>(i);
        } else {
            for (int64 k = i; k < count; k++) part.template at<1>(k);
        }
    }
}

template <typename T>
struct Narrow {
    const float* master;
    T* copy;

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float p[N];
        load_floats<N>(master + i, p);
        store_floats<N>(copy + i, p);
    }
};

template <typename T, int V>
__global__ void narrow(const float* master, T* copy, int64 count) { over<V>(count, Narrow<T>{master, copy}); }

// Masters, and where their 16-bit copies lie; null where there is none.
struct Home {
    float* master;
    __half* half_copy;
    __nv_bfloat16* brain_copy;

    template <int N>
    __device__ __forceinline__ void store(int64 i, const float (&p)[N]) const {
        store_floats<N>(master + i, p);
        if (half_copy) store_floats<N>(half_copy + i, p);
        if (brain_copy) store_floats<N>(brain_copy + i, p);
    }

    // A step that is not real: the copies, which count as fresh after any step, and may not have been filled yet.
    template <int V>
    __device__ __forceinline__ void rewrite(int64 count) const {
        if (half_copy) over<V>(count, Narrow<__half>{master, half_copy});
        if (brain_copy) over<V>(count, Narrow<__nv_bfloat16>{master, brain_copy});
    }
};

// The gradient of what is minimized, L2 penalty included.
__device__ __forceinline__ float direction(float p, float g, float decay, bool maximize) {
    if (maximize) g = -g;
    return decay != 0.0f ? p * decay + g : g;
}

// What is the same for all parameters in a step of Adam, rounded from float64.
struct AdamRates {
    float rate, root, shrink, share, hold, take;
};

__device__ __forceinline__ AdamRates adam_rates(double lr, double first, double second, double count, double decay) {
    double new_square = 1.0 - second;
    return {float(lr / (1.0 - pow(first, count))), float(sqrt(1.0 - pow(second, count))), float(1.0 - lr * decay),
            float(1.0 - first), float(1.0 - new_square), float(new_square)};
}

struct Adam {
    Home home;
    const float* gradient;
    float *mean, *square, *largest;
    AdamRates r;
    float eps, penalty;
    bool maximize;

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float p[N], g[N], m[N], v[N], most[N];
        load_floats<N>(home.master + i, p);
        load_floats<N>(gradient + i, g);
        load_floats<N>(mean + i, m);
        load_floats<N>(square + i, v);
        if (largest) load_floats<N>(largest + i, most);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float d = direction(p[j], g[j], penalty, maximize);
            m[j] += (d - m[j]) * r.share;
            v[j] = v[j] * r.hold + d * d * r.take;
            most[j] = largest ? Max::combine(most[j], v[j]) : v[j];
            p[j] = p[j] * r.shrink - m[j] / (sqrtf(most[j]) / r.root + eps) * r.rate;
        }
        store_floats<N>(mean + i, m);
        store_floats<N>(square + i, v);
        if (largest) store_floats<N>(largest + i, most);
        home.store<N>(i, p);
    }
};

// largest, the copies and go may be null. decay: of masters, decoupled; penalty: of what is minimized.
template <int V>
__global__ void adam_update(float* master, const float* gradient, float* mean, float* square, float* largest,
                            __half* half_copy, __nv_bfloat16* brain_copy, const int64* steps, const double* lr,
                            const double* betas, const bool* go, float eps, double decay, float penalty, bool maximize,
                            int64 count) {
    Home home{master, half_copy, brain_copy};
    if (go && !*go) return home.rewrite<V>(count);
    __shared__ AdamRates rates;
    if (threadIdx.x == 0) rates = adam_rates(*lr, betas[0], betas[1], double(*steps + 1), decay);
    __syncthreads();
    over<V>(count, Adam{home, gradient, mean, square, largest, rates, eps, penalty, maximize});
}

struct Sgd {
    Home home;
    const float* gradient;
    float* buffer;
    float rate, push, take, penalty;
    bool nesterov, maximize;

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float p[N], g[N], m[N];
        load_floats<N>(home.master + i, p);
        load_floats<N>(gradient + i, g);
        if (buffer) load_floats<N>(buffer + i, m);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float d = direction(p[j], g[j], penalty, maximize);
            if (buffer) {
                m[j] = m[j] * push + d * take;
                d = nesterov ? m[j] * push + d : m[j];
            }
            p[j] -= d * rate;
        }
        if (buffer) store_floats<N>(buffer + i, m);
        home.store<N>(i, p);
    }
};

// buffer, the copies and go may be null. The first gradient starts the buffer whole.
template <int V>
__global__ void sgd_update(float* master, const float* gradient, float* buffer, __half* half_copy,
                           __nv_bfloat16* brain_copy, const int64* steps, const double* lr, const double* momentum,
                           const bool* go, double dampening, float penalty, bool nesterov, bool maximize, int64 count) {
    Home home{master, half_copy, brain_copy};
    if (go && !*go) return home.rewrite<V>(count);
    float take = *steps == 0 ? 1.0f : float(1.0 - dampening);
    over<V>(count, Sgd{home, gradient, buffer, float(*lr), float(*momentum), take, penalty, nesterov, maximize});
}

// Norms: sums in float64, where no square of a float32 overflows. ORDER 0 is that of the largest, NaN above all; 1, any.

struct Largest {
    static __device__ __forceinline__ double combine(double a, double b) { return a > b || a != a ? a : b; }
    template <typename T>
    static __device__ __forceinline__ T nothing() { return 0.0; }
};
template <int ORDER> struct Norm { using Op = Sum; };
template <> struct Norm<0> { using Op = Largest; };

template <int ORDER>
__device__ __forceinline__ double power(float x, double order) {
    double wide = x;
    return ORDER == 2 ? wide * wide : ORDER == 0 ? fabs(wide) : pow(fabs(wide), order);
}

template <typename T, int ORDER>
struct Powers {
    const T* values;
    double order;
    double* total;

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float x[N];
        load_floats<N>(values + i, x);
#pragma unroll
        for (int j = 0; j < N; j++) *total = Norm<ORDER>::Op::combine(*total, power<ORDER>(x[j], order));
    }
};

// What each block's share comes to, into `parts`.
template <typename T, int V, int ORDER>
__global__ void power_sum(const T* values, double* parts, double order, int64 count) {
    double total = 0.0;
    over<V>(count, Powers<T, ORDER>{values, order, &total});
    total = block_reduce<typename Norm<ORDER>::Op>(total);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// One block.
template <int ORDER>
__global__ void power_sum_finish(const double* parts, double* out, int64 count) {
    double total = 0.0;
    for (int64 i = threadIdx.x; i < count; i += blockDim.x) total = Norm<ORDER>::Op::combine(total, parts[i]);
    total = block_reduce<typename Norm<ORDER>::Op>(total);
    if (threadIdx.x == 0) *out = total;
}

template <typename T>
struct Shrink {
    T* values;
    float by;
    bool go;

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float x[N];
        load_floats<N>(values + i, x);
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = (go ? x[j] : 0.0f) * by;
        store_floats<N>(values + i, x);
    }
};

// Times the factor, or where not go zeros; gradients that are short enough are not touched.
template <typename T, int V>
__global__ void shrink(T* values, const double* factor, const bool* go, int64 count) {
    if (*go && *factor == 1.0) return;
    over<V>(count, Shrink<T>{values, to_float(from_float<T>(float(*factor))), *go});
}

// One block: count moves on if there were steps since they were last seen, and row becomes that row of table [rows, width].
__global__ void follow(int64* count, int64* seen, const int64* steps, const double* table, double* row, int64 rows,
                       int64 width) {
    int64 now = *count + (*steps > *seen), at = now < rows ? now : rows - 1;
    __syncthreads();  // all have read
    if (threadIdx.x == 0) *count = now, *seen = *steps;
    for (int64 i = threadIdx.x; i < width; i += blockDim.x) row[i] = table[at * width + i];
}

// set FORMS = ((float, 4), (float, 1), (__half, 8), (__half, 1), (__nv_bfloat16, 8), (__nv_bfloat16, 1))
// set NARROW = ((__half, 4), (__half, 1), (__nv_bfloat16, 4), (__nv_bfloat16, 1))
// entries: adam_update<V> for V in (4, 1)
// entries: sgd_update<V> for V in (4, 1)
// entries: narrow<T, V> for (T, V) in NARROW
// entries: power_sum<T, V, O> for (T, V) in FORMS, O in (0, 1, 2)
// entries: power_sum_finish<O> for O in (0, 1, 2)
// entries: shrink<T, V> for (T, V) in FORMS
// entries: follow
