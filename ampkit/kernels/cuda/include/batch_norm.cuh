// The first pass of batch_norm's backward, of what loads dy: an array, or a chain that
// backends/cuda/launch/template_source.py writes; and how threads go through channels.
#pragma once
#include "include/block.cuh"

constexpr int THREADS = 256;

// sum(dy) and sum(dy * centered x).
struct GradSums {
    float sum, dot;

    static __device__ __forceinline__ GradSums combine(GradSums a, GradSums b) { return {a.sum + b.sum,
        a.dot + b.dot}; }
    template <typename T>
    static __device__ __forceinline__ GradSums identity() { return {0.0f, 0.0f}; }
};

__device__ __forceinline__ GradSums shuffle_xor(GradSums s, int lane_mask) {
    return {__shfl_xor_sync(ALL_LANES, s.sum, lane_mask), __shfl_xor_sync(ALL_LANES, s.dot, lane_mask)};
}

struct Shape {
    unsigned samples, channels, spatial, width;  // width: threads along the channels, V each, if CHANNELS_LAST
};

// This thread's first channel: it has V of them with CHANNELS_LAST, else its block has one.
template <int V, bool CHANNELS_LAST>
__device__ __forceinline__ unsigned first_channel(Shape n) {
    return CHANNELS_LAST ? (blockIdx.x * n.width + threadIdx.x % n.width) * V : blockIdx.x;
}

// One number per channel of this thread; 0 if `from` is null.
template <int V, bool CHANNELS_LAST>
struct PerChannel {
    float value[CHANNELS_LAST ? V : 1];

    __device__ __forceinline__ PerChannel(const float* from, Shape n) {
        unsigned first = first_channel<V, CHANNELS_LAST>(n);
#pragma unroll
        for (int j = 0; j < (CHANNELS_LAST ? V : 1); j++)
            value[j] = from && first < n.channels ? from[first + j] : 0.0f;
    }
    __device__ __forceinline__ float operator[](int j) const { return value[CHANNELS_LAST ? j : 0]; }
};

// Calls f(offset) for each V values of this thread's channels.
template <int V, bool CHANNELS_LAST, typename F>
__device__ __forceinline__ void for_each_pack(Shape n, F f) {
    if constexpr (CHANNELS_LAST) {
        unsigned lanes = blockDim.x / n.width, channel = first_channel<V, CHANNELS_LAST>(n);
        if (channel < n.channels)
#pragma unroll 4
            for (unsigned row = blockIdx.y * lanes + threadIdx.x / n.width; row < n.samples; row += gridDim.y * lanes)
                f(int64(row) * n.channels + channel);
    } else {
        unsigned per = n.spatial / V, packs = n.samples * per, channel = first_channel<V, CHANNELS_LAST>(n);
#pragma unroll 4
        for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < packs; i += gridDim.y * blockDim.x)
            f((int64(i / per) * n.channels + channel) * n.spatial + i % per * V);
    }
}

// Reduces over the block and stores to parts [channels, gridDim.y].
template <int V, bool CHANNELS_LAST, int CHANNELS, typename Acc>
__device__ __forceinline__ void store_partials(Shape n, const Acc (&mine)[CHANNELS], Acc* parts) {
    if constexpr (CHANNELS_LAST) {
        DYN_SHARED(Acc, cache);  // [V, threads]
        unsigned channel = first_channel<V, CHANNELS_LAST>(n), lane = threadIdx.x / n.width;
#pragma unroll
        for (int j = 0; j < V; j++) cache[j * THREADS + threadIdx.x] = mine[j];
        for (unsigned half = blockDim.x / n.width / 2; half; half /= 2) {
            __syncthreads();
            if (lane < half)
                for (int j = 0; j < V; j++) {
                    Acc& accumulator = cache[j * THREADS + threadIdx.x];
                    accumulator = Acc::combine(accumulator, cache[j * THREADS + threadIdx.x + half * n.width]);
                }
        }
        if (lane == 0 && channel < n.channels)
            for (int j = 0; j < V; j++)
                parts[(channel + j) * gridDim.y + blockIdx.y] = cache[j * THREADS + threadIdx.x];
    } else {
        Acc all = block_reduce<Acc>(mine[0]);
        if (threadIdx.x == 0) parts[blockIdx.x * gridDim.y + blockIdx.y] = all;
    }
}

// Whether ReLU passes y once it is stored as S. NaN passes.
template <typename S>
__device__ __forceinline__ bool relu_passes(float y) { return !(to_float(from_float<S>(y)) <= 0.0f); }

// parts: sum(dy) and sum(dy * (x - center - centered_mean)), centered_mean null for 0. With scale and offset (null without
// ReLU, or with a residual) only of the dy that ReLU passes. With a residual `out` shows what ReLU passes, and that dy,
// else 0, is stored to dresidual.
template <int V, bool CHANNELS_LAST, typename Grad, typename S>
__device__ __forceinline__ void grad_sums(const Grad& dy, const S* x, const S* out, S* dresidual, const float* center,
                                          const float* centered_mean, const float* scale, const float* offset,
                                          GradSums* parts, Shape n) {
    constexpr int CHANNELS = CHANNELS_LAST ? V : 1;
    GradSums mine[CHANNELS];
#pragma unroll
    for (int j = 0; j < CHANNELS; j++) mine[j] = GradSums::identity<GradSums>();
    PerChannel<V, CHANNELS_LAST> centers(center, n), residuals(centered_mean, n), scales(scale, n), offsets(offset, n);
    for_each_pack<V, CHANNELS_LAST>(n, [&](int64 at) {
        float g[V], v[V];
        dy.load(g, at);
        load_floats<V>(x + at, v);
        if (out) {
            float y[V];
            load_floats<V>(out + at, y);
#pragma unroll
            for (int j = 0; j < V; j++)
                if (y[j] == 0.0f) g[j] = 0.0f;
            store_floats<V>(dresidual + at, g);
        }
#pragma unroll
        for (int j = 0; j < V; j++) {
            GradSums& to = mine[CHANNELS_LAST ? j : 0];
            if (offset && !relu_passes<S>((v[j] - centers[j]) * scales[j] + offsets[j])) continue;
            to.sum += g[j];
            to.dot += g[j] * (v[j] - centers[j] - residuals[j]);
        }
    });
    store_partials<V, CHANNELS_LAST>(n, mine, parts);
}
