// The maximum of a row and the sum of exp(x - maximum) in one pass (Milakov, Gimelshein 2018, arXiv:1805.02867).
#pragma once
#include "include/block.cuh"

// The maximum of some values, and the sum of exp(value - maximum).
struct MaxSum {
    float max, sum;
};

__device__ __forceinline__ MaxSum shuffle_xor(MaxSum p, int lane_mask) {
    return {__shfl_xor_sync(ALL_LANES, p.max, lane_mask), __shfl_xor_sync(ALL_LANES, p.sum, lane_mask)};
}

struct OnlineSoftmax {
    static __device__ __forceinline__ MaxSum combine(MaxSum a, MaxSum b) {
        float max = Max::combine(a.max, b.max);
        return {max, a.sum * exp_difference(a.max, max) + b.sum * exp_difference(b.max, max)};
    }
    template <typename T>
    static __device__ __forceinline__ MaxSum identity() { return {-INFINITY_F, 0.0f}; }
    // exp(x - max), and 1 where both are the same infinity.
    static __device__ __forceinline__ float exp_difference(float x, float max) { return x == max ? 1.0f
        : expf(x - max); }
};
