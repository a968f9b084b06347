// softmax and log_softmax along the rows of [rows, cols], S stored, T answered; float32 between, one rounding.
//
// A row of up to 32 * V * K values belongs to a warp and lies in its registers: one pass over memory. With K = 0 it
// belongs to a block: a pass for its maximum and the sum under it (backward: for a sum), and one that answers, for which
// shared memory keeps the first `kept` columns. V values are accessed at once; with V = 8, cols and kept are multiples of 8
// and rows lie on 16-byte boundaries.
#include "include/row_max.cuh"

// One value of the answer. An infinite or NaN maximum spoils the row: x - most is NaN there, or the sum is.
template <bool LOG>
__device__ __forceinline__ float answer(float x, float most, float below) {
    return LOG ? (x - most) - below : expf(x - most) * below;
}

// What `answer` needs of the sum: its logarithm, or its inverse.
template <bool LOG>
__device__ __forceinline__ float below(float sum) { return LOG ? logf(sum) : 1.0f / sum; }

template <bool LOG, typename S, typename T, int V, int K>
__device__ __forceinline__ void forward_warp(const S* x, T* out, int64 rows, int64 cols) {
    int64 row = (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    x += row * cols, out += row * cols;
    float v[K][V];
    float most = -INFINITY_F, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int at = (k * 32 + lane) * V;
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = -INFINITY_F;
        if (at < cols) load_floats<V>(x + at, v[k]);
#pragma unroll
        for (int j = 0; j < V; j++) most = Max::combine(most, v[k][j]);
    }
    most = warp_max(most);
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int j = 0; j < V; j++) sum += expf(v[k][j] - most);
    float under = below<LOG>(warp_sum(sum));
#pragma unroll
    for (int k = 0; k < K; k++) {
        int at = (k * 32 + lane) * V;
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = answer<LOG>(v[k][j], most, under);
        if (at < cols) store_floats<V>(out + at, v[k]);
    }
}

template <bool LOG, typename S, typename T, int V>
__device__ __forceinline__ void forward_block(const S* x, T* out, int64 cols, int64 kept) {
    DYN_SHARED(S, held);
    x += blockIdx.x * cols, out += blockIdx.x * cols;
    Blocked<Peaks, Peak> peaks;
    for (int64 at = (int64)threadIdx.x * V; at < cols; at += (int64)blockDim.x * V) {
        Pack<S, V> pack = Pack<S, V>::load(x + at);
        if (at < kept) pack.store(held + at);
        float most = -INFINITY_F, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < V; j++) most = Max::combine(most, to_float(pack.value[j]));
#pragma unroll
        for (int j = 0; j < V; j++) sum += Peaks::shrunk(to_float(pack.value[j]), most);
        peaks.add({most, sum});
    }
    Peak mine = block_reduce<Peaks>(peaks.total());
    if (!isfinite(mine.most)) mine.sum = NAN_F;
    float under = below<LOG>(mine.sum);
    for (int64 at = (int64)threadIdx.x * V; at < cols; at += (int64)blockDim.x * V) {
        float v[V];
        load_floats<V>(at < kept ? held + at : x + at, v);  // each thread reads what it has left there
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = answer<LOG>(v[j], mine.most, under);
        store_floats<V>(out + at, v);
    }
}

// dx = (dy - sum(dy * out)) * out, or for the logarithm dy - sum(dy) * exp(out).
template <bool LOG>
__device__ __forceinline__ float summand(float dy, float out) { return LOG ? dy : dy * out; }
template <bool LOG>
__device__ __forceinline__ float slope(float dy, float out, float sum) {
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
        int at = (k * 32 + lane) * V;
        if (at >= cols) continue;
        load_floats<V>(dy + at, g[k]);
        load_floats<V>(out + at, y[k]);
#pragma unroll
        for (int j = 0; j < V; j++) sum += summand<LOG>(g[k][j], y[k][j]);
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int at = (k * 32 + lane) * V;
        if (at >= cols) continue;
#pragma unroll
        for (int j = 0; j < V; j++) g[k][j] = slope<LOG>(g[k][j], y[k][j], sum);
        store_floats<V>(dx + at, g[k]);
    }
}

template <bool LOG, typename S, typename T, int V>
__device__ __forceinline__ void backward_block(const T* dy, const T* out, S* dx, int64 cols, int64 kept) {
    DYN_SHARED(T, held);  // dy, then out
    dy += blockIdx.x * cols, out += blockIdx.x * cols, dx += blockIdx.x * cols;
    Blocked<Sum, float> mine;
    for (int64 at = (int64)threadIdx.x * V; at < cols; at += (int64)blockDim.x * V) {
        Pack<T, V> g = Pack<T, V>::load(dy + at), y = Pack<T, V>::load(out + at);
        if (at < kept) g.store(held + at), y.store(held + kept + at);
        float some = 0.0f;
#pragma unroll
        for (int j = 0; j < V; j++) some += summand<LOG>(to_float(g.value[j]), to_float(y.value[j]));
        mine.add(some);
    }
    float sum = block_sum(mine.total());
    for (int64 at = (int64)threadIdx.x * V; at < cols; at += (int64)blockDim.x * V) {
        float g[V], y[V];
        load_floats<V>(at < kept ? held + at : dy + at, g);
        load_floats<V>(at < kept ? held + kept + at : out + at, y);
#pragma unroll
        for (int j = 0; j < V; j++) g[j] = slope<LOG>(g[j], y[j], sum);
        store_floats<V>(dx + at, g);
    }
}

template <bool LOG, typename S, typename T, int V, int K>
__device__ __forceinline__ void forward(const S* x, T* out, int64 rows, int64 cols, int64 kept) {
    if constexpr (K == 0) forward_block<LOG, S, T, V>(x, out, cols, kept);
    else forward_warp<LOG, S, T, V, K>(x, out, rows, cols);
}

template <bool LOG, typename S, typename T, int V, int K>
__device__ __forceinline__ void backward(const T* dy, const T* out, S* dx, int64 rows, int64 cols, int64 kept) {
    if constexpr (K == 0) backward_block<LOG, S, T, V>(dy, out, dx, cols, kept);
    else backward_warp<LOG, S, T, V, K>(dy, out, dx, rows, cols);
}

template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) softmax_forward(const S* x, T* out, int64 rows, int64 cols, int64 kept) {
    forward<false, S, T, V, K>(x, out, rows, cols, kept);
}

template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) log_softmax_forward(const S* x, T* out, int64 rows, int64 cols, int64 kept) {
    forward<true, S, T, V, K>(x, out, rows, cols, kept);
}

template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) softmax_backward(const T* dy, const T* out, S* dx, int64 rows, int64 cols, int64 kept) {
    backward<false, S, T, V, K>(dy, out, dx, rows, cols, kept);
}

template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) log_softmax_backward(const T* dy, const T* out, S* dx, int64 rows, int64 cols, int64 kept) {
    backward<true, S, T, V, K>(dy, out, dx, rows, cols, kept);
}

// set SHAPES = ((8, 1), (8, 4), (8, 0), (1, 4), (1, 0))
// entries: softmax_forward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: log_softmax_forward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: softmax_backward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: log_softmax_backward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
