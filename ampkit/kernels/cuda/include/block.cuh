// Reductions over a warp or a block in a fixed order: the same bits in every run and in every thread that receives
// them.
//
// Blocks are one-dimensional, of whole warps, at most 1024 threads. All threads of the block (or of the warp) take
// part.
#pragma once
#include "include/storage.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;
#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fffffff)

struct Sum {
    template <typename T>
    static __device__ __forceinline__ T combine(T a, T b) { return a + b; }
    template <typename T>
    static __device__ __forceinline__ T identity() { return T(0); }
};

struct Product {
    static __device__ __forceinline__ float combine(float a, float b) { return a * b; }
    template <typename T>
    static __device__ __forceinline__ float identity() { return 1.0f; }
};

// NumPy's maximum: NaN if either is NaN. CUDA's fmaxf drops a NaN.
struct Max {
    static __device__ __forceinline__ float combine(float a, float b) { return a > b || a != a ? a : b; }
    template <typename T>
    static __device__ __forceinline__ float identity() { return -INFINITY_F; }
};

struct Min {
    static __device__ __forceinline__ float combine(float a, float b) { return a < b || a != a ? a : b; }
    template <typename T>
    static __device__ __forceinline__ float identity() { return INFINITY_F; }
};

// A value and its index; index -1 marks an empty entry.
struct ValueIndex {
    float value;
    int64 index;
};

template <bool LARGEST>
struct ArgBest {
    // NumPy's argmax and argmin: NaN wins, and of equal values the first index.
    static __device__ __forceinline__ ValueIndex combine(ValueIndex a, ValueIndex b) {
        if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
        bool nan_a = a.value != a.value, nan_b = b.value != b.value;
        bool better = LARGEST ? a.value > b.value : a.value < b.value, worse = LARGEST ? a.value < b.value
            : a.value > b.value;
        if (nan_a || nan_b) better = nan_a && !nan_b, worse = nan_b && !nan_a;
        return better || (!worse && a.index < b.index) ? a : b;
    }
    template <typename T>
    static __device__ __forceinline__ ValueIndex identity() { return {0.0f, -1}; }
};
using ArgMax = ArgBest<true>;
using ArgMin = ArgBest<false>;

// A running reduction of one thread in three levels: RUN values form a partial result, RUN of these the next, so that
// rounding errors stay those of a few hundred additions. Without LONG: one level, for a few values.
template <typename Op, typename T, bool LONG = true>
struct BlockedReduction {
    static constexpr unsigned RUN = 32;
    T low = Op::template identity<T>(), middle = low, high = low;
    unsigned count = 0;

    // Call after combining a value into `low`.
    __device__ __forceinline__ void carry() {
        if (!LONG || ++count % RUN) return;
        middle = Op::combine(middle, low), low = Op::template identity<T>();
        if (count % (RUN * RUN)) return;
        high = Op::combine(high, middle), middle = Op::template identity<T>();
    }
    __device__ __forceinline__ void add(T value) {
        low = Op::combine(low, value);
        carry();
    }
    __device__ __forceinline__ T total() const { return LONG ? Op::combine(high, Op::combine(middle, low)) : low; }
};

template <typename T>
__device__ __forceinline__ T shuffle_xor(T value, int lane_mask) {
    return __shfl_xor_sync(ALL_LANES, value, lane_mask);
}
__device__ __forceinline__ ValueIndex shuffle_xor(ValueIndex p, int lane_mask) {
    return {__shfl_xor_sync(ALL_LANES, p.value, lane_mask), __shfl_xor_sync(ALL_LANES, p.index, lane_mask)};
}

// Reduces one value per lane; every lane receives the result.
template <typename Op, typename T>
__device__ __forceinline__ T warp_reduce(T value) {
#pragma unroll
    for (int lane_mask = 16; lane_mask; lane_mask >>= 1) value = Op::combine(value, shuffle_xor(value, lane_mask));
    return value;
}

// Reduces one value per thread; every thread receives the result.
template <typename Op, typename T>
__device__ __forceinline__ T block_reduce(T value) {
    __shared__ T warp_values[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    value = warp_reduce<Op>(value);
    if (warps == 1) return value;
    __syncthreads();  // the previous call's values have been read
    if (lane == 0) warp_values[warp] = value;
    __syncthreads();
    return warp_reduce<Op>(lane < warps ? warp_values[lane] : Op::template identity<T>());
}

template <typename T>
__device__ __forceinline__ T warp_sum(T value) { return warp_reduce<Sum>(value); }
template <typename T>
__device__ __forceinline__ T block_sum(T value) { return block_reduce<Sum>(value); }
// NaN if any value is NaN.
__device__ __forceinline__ float warp_max(float value) { return warp_reduce<Max>(value); }
__device__ __forceinline__ float block_max(float value) { return block_reduce<Max>(value); }
__device__ __forceinline__ float warp_min(float value) { return warp_reduce<Min>(value); }
__device__ __forceinline__ float block_min(float value) { return block_reduce<Min>(value); }
// The maximum (or minimum) of the block and its first index; pass index -1 from a thread without a value.
__device__ __forceinline__ ValueIndex block_argmax(ValueIndex mine) { return block_reduce<ArgMax>(mine); }
__device__ __forceinline__ ValueIndex block_argmin(ValueIndex mine) { return block_reduce<ArgMin>(mine); }
