// Counting of values by binary exponent and by the limits of narrow formats, and of updates that 16 bits would lose.
// Counts are integers, so that the order of atomic additions does not change them.
#include "include/block.cuh"

constexpr int EXPONENTS = 256, LIMITS = 14;

struct MaxInt {
    static __device__ __forceinline__ int combine(int a, int b) { return a > b ? a : b; }
    template <typename T>
    static __device__ __forceinline__ T identity() { return 0; }
};

__device__ __forceinline__ void add(int64* to, int count) {
    if (count) atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(count));
}

// values [count]; counts [EXPONENTS + LIMITS + 1], see amp/exponents.py. EXPONENTS threads per block.
template <typename T>
__global__ void count_exponents(const T* values, int64* counts, int64 count) {
    __shared__ int shared_counts[EXPONENTS];
    shared_counts[threadIdx.x] = 0;
    __syncthreads();
    const int limits[LIMITS] = {0x00000001, 0x7f800001, 0x477ff000, 0x387fe000, 0x33000001, 0x7f7f8000, 0x007f8000,
                                0x00008001, 0x43e80001, 0x3c700000, 0x3a800001, 0x47700000, 0x38600000, 0x37000001};  // LIMITS of amp/exponents.py
    int at_least[LIMITS] = {}, largest = 0;
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64)gridDim.x * blockDim.x) {
        int bits = __float_as_int(to_float(values[i])) & 0x7fffffff;
        atomicAdd(&shared_counts[bits >> 23], 1);
#pragma unroll
        for (int k = 0; k < LIMITS; k++) at_least[k] += bits >= limits[k];
        if (bits < 0x7f800000 && bits > largest) largest = bits;
    }
    __syncthreads();
    add(counts + threadIdx.x, shared_counts[threadIdx.x]);
#pragma unroll
    for (int k = 0; k < LIMITS; k++) {
        int sum = block_reduce<Sum>(at_least[k]);
        if (threadIdx.x == 0) add(counts + EXPONENTS + k, sum);
    }
    largest = block_reduce<MaxInt>(largest);
    if (threadIdx.x == 0)
        atomicMax(reinterpret_cast<unsigned long long*>(counts + EXPONENTS + LIMITS), static_cast<unsigned long long>(largest));
}

// Whether a weight, rounded to T, does not change by an update.
template <typename T>
__device__ __forceinline__ int stays(float weight, float update) {
    float rounded = to_float(from_float<T>(weight));
    return to_float(from_float<T>(rounded + update)) == rounded;
}

// before, after [count]; counts [3] += how many changed, and how many updates float16 and bfloat16 would lose.
__global__ void count_lost_updates(const float* before, const float* after, int64* counts, int64 count) {
    int found[3] = {};
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64)gridDim.x * blockDim.x) {
        float update = after[i] - before[i];
        int changes = update != 0.0f;
        found[0] += changes;
        found[1] += changes & stays<__half>(before[i], update);
        found[2] += changes & stays<__nv_bfloat16>(before[i], update);
    }
#pragma unroll
    for (int k = 0; k < 3; k++) {
        int sum = block_reduce<Sum>(found[k]);
        if (threadIdx.x == 0) add(counts + k, sum);
    }
}

// entries: count_exponents<T> for T in TYPES
// entries: count_lost_updates
