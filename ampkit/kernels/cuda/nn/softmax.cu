// softmax and log_softmax of the rows of [rows, cols]: S input, T output dtype, float32 arithmetic, one rounding.
//
// K > 0: a warp per row of up to 32 * V * K values, held in registers: memory is read once. K = 0: a block per row, one
// pass for the maximum and the sum (backward: the sum), one to write; shared memory caches the first `cached` columns
// between them. V values per access; V = 8 requires cols and `cached` to be multiples of 8 and 16-byte aligned rows.
#include "include/online_softmax.cuh"

// One output. With an infinite or NaN maximum the row becomes NaN, through x - row_max or the sum.
template <bool LOG>
__device__ __forceinline__ float softmax_value(float x, float row_max, float normalizer) {
    return LOG ? (x - row_max) - normalizer : expf(x - row_max) * normalizer;
}

// The logarithm of the sum, or its inverse.
template <bool LOG>
__device__ __forceinline__ float normalizer(float sum) { return LOG ? logf(sum) : 1.0f / sum; }

template <bool LOG, typename S, typename T, int V, int K>
__device__ __forceinline__ void forward_warp(const S* x, T* out, int64 rows, int64 cols) {
    int64 row = (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    x += row * cols, out += row * cols;
    float v[K][V];
    float row_max = -INFINITY_F, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int col = (k * 32 + lane) * V;
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = -INFINITY_F;
        if (col < cols) load_floats<V>(x + col, v[k]);
#pragma unroll
        for (int j = 0; j < V; j++) row_max = Max::combine(row_max, v[k][j]);
    }
    row_max = warp_max(row_max);
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < V; j++) sum += expf(v[k][j] - row_max);
    float norm = normalizer<LOG>(warp_sum(sum));
#pragma unroll
    for (int k = 0; k < K; k++) {
        int col = (k * 32 + lane) * V;
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = softmax_value<LOG>(v[k][j], row_max, norm);
        if (col < cols) store_floats<V>(out + col, v[k]);
    }
}

template <bool LOG, typename S, typename T, int V>
__device__ __forceinline__ void forward_block(const S* x, T* out, int64 cols, int64 cached) {
    DYN_SHARED(S, cache);
    x += blockIdx.x * cols, out += blockIdx.x * cols;
    BlockedReduction<OnlineSoftmax, MaxSum> maxima;
    for (int64 col = (int64)threadIdx.x * V; col < cols; col += (int64)blockDim.x * V) {
        Pack<S, V> pack = Pack<S, V>::load(x + col);
        if (col < cached) pack.store(cache + col);
        float row_max = -INFINITY_F, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < V; j++) row_max = Max::combine(row_max, to_float(pack.value[j]));
#pragma unroll
        for (int j = 0; j < V; j++) sum += OnlineSoftmax::exp_difference(to_float(pack.value[j]), row_max);
        maxima.add({row_max, sum});
    }
    MaxSum mine = block_reduce<OnlineSoftmax>(maxima.total());
    if (!isfinite(mine.max)) mine.sum = NAN_F;
    float norm = normalizer<LOG>(mine.sum);
    for (int64 col = (int64)threadIdx.x * V; col < cols; col += (int64)blockDim.x * V) {
        float v[V];
        load_floats<V>(col < cached ? cache + col : x + col, v);  // a thread reads back only what it wrote
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = softmax_value<LOG>(v[j], mine.max, norm);
        store_floats<V>(out + col, v);
    }
}

// dx = (dy - sum(dy * out)) * out, or for the logarithm dy - sum(dy) * exp(out).
template <bool LOG>
__device__ __forceinline__ float summand(float dy, float out) { return LOG ? dy : dy * out; }
template <bool LOG>
__device__ __forceinline__ float softmax_gradient(float dy, float out, float sum) {
    return LOG ? dy - sum * expf(out) : (dy - sum) * out;
}

template <bool LOG, typename S, typename T, int V, int K>
__device__ __forceinline__ void backward_warp(const T* dy, const T* out, S* dx, int64 rows, int64 cols) {
    int64 row = (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    dy += row * cols, out += row * cols, dx += row * cols;
    float g[K][V], y[K][V];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int col = (k * 32 + lane) * V;
        if (col >= cols) continue;
        load_floats<V>(dy + col, g[k]);
        load_floats<V>(out + col, y[k]);
#pragma unroll
        for (int j = 0; j < V; j++) sum += summand<LOG>(g[k][j], y[k][j]);
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int col = (k * 32 + lane) * V;
        if (col >= cols) continue;
#pragma unroll
        for (int j = 0; j < V; j++) g[k][j] = softmax_gradient<LOG>(g[k][j], y[k][j], sum);
        store_floats<V>(dx + col, g[k]);
    }
}

template <bool LOG, typename S, typename T, int V>
__device__ __forceinline__ void backward_block(const T* dy, const T* out, S* dx, int64 cols, int64 cached) {
    DYN_SHARED(T, cache);  // cached columns of dy, then of out
    dy += blockIdx.x * cols, out += blockIdx.x * cols, dx += blockIdx.x * cols;
    BlockedReduction<Sum, float> mine;
    for (int64 col = (int64)threadIdx.x * V; col < cols; col += (int64)blockDim.x * V) {
        Pack<T, V> g = Pack<T, V>::load(dy + col), y = Pack<T, V>::load(out + col);
        if (col < cached) g.store(cache + col), y.store(cache + cached + col);
        float partial = 0.0f;
#pragma unroll
        for (int j = 0; j < V; j++) partial += summand<LOG>(to_float(g.value[j]), to_float(y.value[j]));
        mine.add(partial);
    }
    float sum = block_sum(mine.total());
    for (int64 col = (int64)threadIdx.x * V; col < cols; col += (int64)blockDim.x * V) {
        float g[V], y[V];
        load_floats<V>(col < cached ? cache + col : dy + col, g);
        load_floats<V>(col < cached ? cache + cached + col : out + col, y);
#pragma unroll
        for (int j = 0; j < V; j++) g[j] = softmax_gradient<LOG>(g[j], y[j], sum);
        store_floats<V>(dx + col, g);
    }
}

template <bool LOG, typename S, typename T, int V, int K>
__device__ __forceinline__ void forward(const S* x, T* out, int64 rows, int64 cols, int64 cached) {
    if constexpr (K == 0) forward_block<LOG, S, T, V>(x, out, cols, cached);
    else forward_warp<LOG, S, T, V, K>(x, out, rows, cols);
}

template <bool LOG, typename S, typename T, int V, int K>
__device__ __forceinline__ void backward(const T* dy, const T* out, S* dx, int64 rows, int64 cols, int64 cached) {
    if constexpr (K == 0) backward_block<LOG, S, T, V>(dy, out, dx, cols, cached);
    else backward_warp<LOG, S, T, V, K>(dy, out, dx, rows, cols);
}

// out = exp(x - max) / sum(exp(x - max)).
template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) softmax_forward(const S* x, T* out, int64 rows, int64 cols,
                                                                  int64 cached) {
    forward<false, S, T, V, K>(x, out, rows, cols, cached);
}

// out = x - max - log(sum(exp(x - max))).
template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) log_softmax_forward(const S* x, T* out, int64 rows, int64 cols,
                                                                      int64 cached) {
    forward<true, S, T, V, K>(x, out, rows, cols, cached);
}

// dx = (dy - sum(dy * out)) * out.
template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) softmax_backward(const T* dy, const T* out, S* dx, int64 rows,
                                                                   int64 cols, int64 cached) {
    backward<false, S, T, V, K>(dy, out, dx, rows, cols, cached);
}

// dx = dy - sum(dy) * exp(out).
template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) log_softmax_backward(const T* dy, const T* out, S* dx, int64 rows,
                                                                       int64 cols, int64 cached) {
    backward<true, S, T, V, K>(dy, out, dx, rows, cols, cached);
}

// set SHAPES = ((8, 1), (8, 4), (8, 0), (1, 4), (1, 0))
// entries: softmax_forward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: log_softmax_forward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: softmax_backward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: log_softmax_backward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
