// The maximum of a row and the sum of exponentials under it, found together and combined in any order.
#pragma once
#include "include/block.cuh"

// The maximum of some values, and the sum of exp(value - maximum).
struct Peak {
    float most, sum;
};

__device__ __forceinline__ Peak across(Peak p, int with) {
    return {__shfl_xor_sync(ALL_LANES, p.most, with), __shfl_xor_sync(ALL_LANES, p.sum, with)};
}

struct Peaks {
    static __device__ __forceinline__ Peak combine(Peak a, Peak b) {
        float most = Max::combine(a.most, b.most);
        return {most, a.sum * shrunk(a.most, most) + b.sum * shrunk(b.most, most)};
    }
    template <typename T>
    static __device__ __forceinline__ Peak nothing() { return {-INFINITY_F, 0.0f}; }
    // exp(from - to), and 1 where both are the same infinity.
    static __device__ __forceinline__ float shrunk(float from, float to) { return from == to ? 1.0f : expf(from - to); }
};
