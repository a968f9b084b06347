// A row of [rows, cols], normalized by its team: a warp, or a block (BLOCK).
//
// The row lies in its team's registers: V values at once, K times, one pass over memory. A longer row (K = 0) is read again
// by its block for each pass. With V = 8, cols is a multiple of 8 and rows and scales lie on 16-byte boundaries.
#pragma once
#include "block.cuh"

constexpr int WARPS = 4;  // rows at a time of a block, where a warp has one each
constexpr int MOST_THREADS = 512;  // of a block that has a row

// Two sums at once.
struct Pair {
    float a, b;
};

__device__ __forceinline__ Pair across(Pair p, int with) {
    return {__shfl_xor_sync(ALL_LANES, p.a, with), __shfl_xor_sync(ALL_LANES, p.b, with)};
}

struct Pairs {
    static __device__ __forceinline__ Pair combine(Pair p, Pair q) { return {p.a + q.a, p.b + q.b}; }
    template <typename T>
    static __device__ __forceinline__ Pair nothing() { return {0.0f, 0.0f}; }
};

template <bool BLOCK>
struct Team {
    static __device__ __forceinline__ int lane() { return BLOCK ? threadIdx.x : threadIdx.x & 31; }
    static __device__ __forceinline__ int lanes() { return BLOCK ? blockDim.x : 32; }
    static __device__ __forceinline__ int of_block() { return BLOCK ? 1 : blockDim.x >> 5; }
    static __device__ __forceinline__ int64 number() {
        return (int64)blockIdx.x * of_block() + (BLOCK ? 0 : threadIdx.x >> 5);
    }
    template <typename Op, typename T>
    static __device__ __forceinline__ T reduce(T value) {
        if constexpr (BLOCK) return block_reduce<Op>(value);
        else return warp_reduce<Op>(value);
    }
};

// f(k, at) for each V columns from `at` on that are this thread's; in registers they are number k.
template <int V, int K, bool BLOCK, typename F>
__device__ __forceinline__ void each(int64 cols, F f) {
    int64 step = (int64)Team<BLOCK>::lanes() * V, at = (int64)Team<BLOCK>::lane() * V;
    if constexpr (K == 0) {
        for (; at < cols; at += step) f(0, at);
    } else {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (at + k * step < cols) f(k, at + k * step);
    }
}

// out = (x - mean) / deviation, scaled and shifted; where not CENTRED, the mean is taken for 0. Statistics in two passes.
template <bool CENTRED, typename S, typename T, int V, int K, bool BLOCK, typename Scales>
__device__ __forceinline__ void forward(
    const S* x, Scales scales, T* out, float* means, float* rstds, int64 rows, int64 cols, float eps) {
    using Mine = Team<BLOCK>;
    int64 row = Mine::number();
    if (row >= rows) return;  // whole teams: never a part of a block that meets
    x += row * cols, out += row * cols;
    float v[K ? K : 1][V], sum = 0.0f, squares = 0.0f;
    if (CENTRED || K > 0)
        each<V, K, BLOCK>(cols, [&](int k, int64 at) {
            load_floats<V>(x + at, v[k]);
#pragma unroll
            for (int j = 0; j < V; j++) sum += v[k][j];
        });
    float mean = CENTRED ? Mine::template reduce<Sum>(sum) / cols : 0.0f;
    each<V, K, BLOCK>(cols, [&](int k, int64 at) {
        if (K == 0) load_floats<V>(x + at, v[k]);
#pragma unroll
        for (int j = 0; j < V; j++) squares += (v[k][j] - mean) * (v[k][j] - mean);
    });
    float rstd = 1.0f / sqrtf(Mine::template reduce<Sum>(squares) / cols + eps);
    each<V, K, BLOCK>(cols, [&](int k, int64 at) {
        if (K == 0) load_floats<V>(x + at, v[k]);
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = (v[k][j] - mean) * rstd;
        scales.scale(v[k], row, at);
        scales.shift(v[k], row, at);
        store_floats<V>(out + at, v[k]);
    });
    if (Mine::lane() == 0) {
        if (CENTRED) means[row] = mean;
        rstds[row] = rstd;
    }
}
