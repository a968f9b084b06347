// What reductions of rows have in common: sums that over- or underflow are computed once more, and the last steps.
#pragma once
#include "include/block.cuh"

// Whether a sum of n terms overflowed, or terms that underflowed may count in it.
template <typename Op>
__device__ __forceinline__ bool is_lost(float total, int64 n) {
    return !(fabsf(total) <= 3.4028234e38f && fabsf(total) >= Op::LEAST * float(n));
}

template <typename T>
__device__ __forceinline__ T finish(float total, float divisor, bool root) {
    total /= divisor;
    return from_float<T>(root ? sqrtf(total) : total);
}
template <typename T>
__device__ __forceinline__ T finish(double total, float divisor, bool root) {
    total /= double(divisor);
    return from_float<T>(float(root ? sqrt(total) : total));
}

// Joins the separate totals of a thread.
template <typename Op, int V>
__device__ __forceinline__ float joined(float (&total)[V]) {
#pragma unroll
    for (int half = V / 2; half; half /= 2)
#pragma unroll
        for (int j = 0; j < half; j++) total[j] = Op::combine(total[j], total[j + half]);
    return total[0];
}
