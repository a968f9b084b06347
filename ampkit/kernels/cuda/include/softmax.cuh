// softmax and log_softmax of the rows of [rows, cols], float32 arithmetic, of what loads and stores a row: arrays, or the
// chains that backends/cuda/launch/template_source.py writes.
//
// K > 0: a warp per row of up to 32 * V * K values, held in registers: memory is read once. K = 0: a block per row, one
// pass for the maximum and the sum (backward: the sum), one to write; shared memory caches the first `cached` columns
// between them. V values per access; V = 8 requires cols and `cached` to be multiples of 8 and 16-byte aligned rows.
#pragma once
#include "include/online_softmax.cuh"

// One output. With an infinite or NaN maximum the row becomes NaN, through x - row_max or the sum.
template <bool LOG>
__device__ __forceinline__ float softmax_value(float x, float row_max, float normalizer) {
    return LOG ? (x - row_max) - normalizer : expf(x - row_max) * normalizer;
}

// The logarithm of the sum, or its inverse.
template <bool LOG>
__device__ __forceinline__ float normalizer(float sum) { return LOG ? logf(sum) : 1.0f / sum; }

// A warp's row begins at `start`; false if it has none.
__device__ __forceinline__ bool has_row(int64 rows, int64 cols, int64& start) {
    int64 row = (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    start = row * cols;
    return row < rows;
}

template <bool LOG, int V, int K, typename Source, typename Out>
__device__ __forceinline__ void softmax_warp(const Source& x, const Out& out, int64 rows, int64 cols) {
    int64 start;
    int lane = threadIdx.x & 31;
    if (!has_row(rows, cols, start)) return;
    float v[K][V];
    float row_max = -INFINITY_F, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int col = (k * 32 + lane) * V;
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = -INFINITY_F;
        if (col < cols) x.load(v[k], start + col);
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
        if (col < cols) out.store(v[k], start + col);
    }
}

template <bool LOG, int V, typename Source, typename Out>
__device__ __forceinline__ void softmax_block(const Source& x, const Out& out, int64 cols, int64 cached) {
    DYN_SHARED(typename Source::Stored, cache);
    int64 start = blockIdx.x * cols;
    BlockedReduction<OnlineSoftmax, MaxSum> maxima;
    for (int64 col = (int64)threadIdx.x * V; col < cols; col += (int64)blockDim.x * V) {
        float v[V], row_max = -INFINITY_F, sum = 0.0f;
        x.load(v, start + col);
        if (col < cached) store_floats<V>(cache + col, v);
#pragma unroll
        for (int j = 0; j < V; j++) row_max = Max::combine(row_max, v[j]);
#pragma unroll
        for (int j = 0; j < V; j++) sum += OnlineSoftmax::exp_difference(v[j], row_max);
        maxima.add({row_max, sum});
    }
    MaxSum mine = block_reduce<OnlineSoftmax>(maxima.total());
    if (!isfinite(mine.max)) mine.sum = NAN_F;
    float norm = normalizer<LOG>(mine.sum);
    for (int64 col = (int64)threadIdx.x * V; col < cols; col += (int64)blockDim.x * V) {
        float v[V];
        if (col < cached) load_floats<V>(cache + col, v);  // a thread reads back only what it wrote
        else x.reload(v, start + col);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = softmax_value<LOG>(v[j], mine.max, norm);
        out.store(v, start + col);
    }
}

// out = exp(x - max) / sum(exp(x - max)); with LOG x - max - log(sum(exp(x - max))).
template <bool LOG, int V, int K, typename Source, typename Out>
__device__ __forceinline__ void rows_softmax(Source x, Out out, int64 rows, int64 cols, int64 cached) {
    if constexpr (K == 0) softmax_block<LOG, V>(x, out, cols, cached);
    else softmax_warp<LOG, V, K>(x, out, rows, cols);
}

template <bool LOG>
__device__ __forceinline__ float summand(float dy, float out) { return LOG ? dy : dy * out; }
template <bool LOG>
__device__ __forceinline__ float softmax_gradient(float dy, float out, float sum) {
    return LOG ? dy - sum * expf(out) : (dy - sum) * out;
}

template <bool LOG, int V, int K, typename Grad, typename Source, typename Out>
__device__ __forceinline__ void gradient_warp(const Grad& dy, const Source& out, const Out& dx, int64 rows, int64 cols) {
    int64 start;
    int lane = threadIdx.x & 31;
    if (!has_row(rows, cols, start)) return;
    float g[K][V], y[K][V];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int col = (k * 32 + lane) * V;
        if (col >= cols) continue;
        dy.load(g[k], start + col);
        out.load(y[k], start + col);
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
        dx.store(g[k], start + col);
    }
}

template <bool LOG, int V, typename Grad, typename Source, typename Out>
__device__ __forceinline__ void gradient_block(const Grad& dy, const Source& out, const Out& dx, int64 cols,
                                               int64 cached) {
    DYN_SHARED(typename Grad::Stored, cache);  // cached columns of dy, then of out
    int64 start = blockIdx.x * cols;
    BlockedReduction<Sum, float> mine;
    for (int64 col = (int64)threadIdx.x * V; col < cols; col += (int64)blockDim.x * V) {
        float g[V], y[V], partial = 0.0f;
        dy.load(g, start + col);
        out.load(y, start + col);
        if (col < cached) store_floats<V>(cache + col, g), store_floats<V>(cache + cached + col, y);
#pragma unroll
        for (int j = 0; j < V; j++) partial += summand<LOG>(g[j], y[j]);
        mine.add(partial);
    }
    float sum = block_sum(mine.total());
    for (int64 col = (int64)threadIdx.x * V; col < cols; col += (int64)blockDim.x * V) {
        float g[V], y[V];
        if (col < cached) load_floats<V>(cache + col, g), load_floats<V>(cache + cached + col, y);
        else dy.reload(g, start + col), out.reload(y, start + col);
#pragma unroll
        for (int j = 0; j < V; j++) g[j] = softmax_gradient<LOG>(g[j], y[j], sum);
        dx.store(g, start + col);
    }
}

// dx = (dy - sum(dy * out)) * out; with LOG dy - sum(dy) * exp(out).
template <bool LOG, int V, int K, typename Grad, typename Source, typename Out>
__device__ __forceinline__ void rows_softmax_backward(Grad dy, Source out, Out dx, int64 rows, int64 cols, int64 cached) {
    if constexpr (K == 0) gradient_block<LOG, V>(dy, out, dx, cols, cached);
    else gradient_warp<LOG, V, K>(dy, out, dx, rows, cols);
}
