// Reductions over a warp or a block, in a fixed order: the same bits each time, and in every thread that receives them.
//
// Blocks are one-dimensional and whole warps, at most 1024 threads. All threads of the block (or of the warp) take part.
#pragma once
#include "include/storage.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;
#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fffffff)

struct Sum {
    template <typename T>
    static __device__ __forceinline__ T combine(T a, T b) { return a + b; }
    template <typename T>
    static __device__ __forceinline__ T nothing() { return T(0); }
};

struct Product {
    static __device__ __forceinline__ float combine(float a, float b) { return a * b; }
    template <typename T>
    static __device__ __forceinline__ float nothing() { return 1.0f; }
};

// The larger one, NaN if either is: NumPy's maximum. CUDA's fmaxf drops a NaN.
struct Max {
    static __device__ __forceinline__ float combine(float a, float b) { return a > b || a != a ? a : b; }
    template <typename T>
    static __device__ __forceinline__ float nothing() { return -INFINITY_F; }
};

struct Min {
    static __device__ __forceinline__ float combine(float a, float b) { return a < b || a != a ? a : b; }
    template <typename T>
    static __device__ __forceinline__ float nothing() { return INFINITY_F; }
};

// A value and where it stood. An index of -1 is no value at all.
struct Place {
    float value;
    int64 index;
};

template <bool LARGEST>
struct Best {
    // The better one, NaN best of all; of equals the one that stood first: NumPy's argmax and argmin.
    static __device__ __forceinline__ Place combine(Place a, Place b) {
        if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
        bool nan_a = a.value != a.value, nan_b = b.value != b.value;
        bool better = LARGEST ? a.value > b.value : a.value < b.value, worse = LARGEST ? a.value < b.value : a.value > b.value;
        if (nan_a || nan_b) better = nan_a && !nan_b, worse = nan_b && !nan_a;
        return better || (!worse && a.index < b.index) ? a : b;
    }
    template <typename T>
    static __device__ __forceinline__ Place nothing() { return {0.0f, -1}; }
};
using ArgMax = Best<true>;
using ArgMin = Best<false>;

// The total of any number of values of one thread: sums of RUN additions are summed RUN at a time, and these sums again,
// so that rounding errors stay at those of a few hundred additions. Where not LONG, a plain total of a few values.
template <typename Op, typename T, bool LONG = true>
struct Blocked {
    static constexpr unsigned RUN = 32;
    T low = Op::template nothing<T>(), middle = low, high = low;
    unsigned count = 0;

    // After an addition to `low`.
    __device__ __forceinline__ void carry() {
        if (!LONG || ++count % RUN) return;
        middle = Op::combine(middle, low), low = Op::template nothing<T>();
        if (count % (RUN * RUN)) return;
        high = Op::combine(high, middle), middle = Op::template nothing<T>();
    }
    __device__ __forceinline__ void add(T value) {
        low = Op::combine(low, value);
        carry();
    }
    __device__ __forceinline__ T total() const { return LONG ? Op::combine(high, Op::combine(middle, low)) : low; }
};

template <typename T>
__device__ __forceinline__ T across(T value, int with) { return __shfl_xor_sync(ALL_LANES, value, with); }
__device__ __forceinline__ Place across(Place p, int with) {
    return {__shfl_xor_sync(ALL_LANES, p.value, with), __shfl_xor_sync(ALL_LANES, p.index, with)};
}

// All values of the warp combined; every lane receives it.
template <typename Op, typename T>
__device__ __forceinline__ T warp_reduce(T value) {
#pragma unroll
    for (int with = 16; with; with >>= 1) value = Op::combine(value, across(value, with));
    return value;
}

// All values of the block combined; every thread receives it.
template <typename Op, typename T>
__device__ __forceinline__ T block_reduce(T value) {
    __shared__ T of_warp[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    value = warp_reduce<Op>(value);
    if (warps == 1) return value;
    __syncthreads();  // the values of the call before have been read
    if (lane == 0) of_warp[warp] = value;
    __syncthreads();
    return warp_reduce<Op>(lane < warps ? of_warp[lane] : Op::template nothing<T>());
}

template <typename T>
__device__ __forceinline__ T warp_sum(T value) { return warp_reduce<Sum>(value); }
template <typename T>
__device__ __forceinline__ T block_sum(T value) { return block_reduce<Sum>(value); }
// NaN if any value is.
__device__ __forceinline__ float warp_max(float value) { return warp_reduce<Max>(value); }
__device__ __forceinline__ float block_max(float value) { return block_reduce<Max>(value); }
__device__ __forceinline__ float warp_min(float value) { return warp_reduce<Min>(value); }
__device__ __forceinline__ float block_min(float value) { return block_reduce<Min>(value); }
// The largest (or smallest) value of the block and the first place where it stands; index -1 in a thread without one.
__device__ __forceinline__ Place block_argmax(Place mine) { return block_reduce<ArgMax>(mine); }
__device__ __forceinline__ Place block_argmin(Place mine) { return block_reduce<ArgMin>(mine); }
