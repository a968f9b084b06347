// Unscaling of gradients with the check for inf and NaN in one pass, and the update of the loss scale; all state on the
// device.
#include "include/block.cuh"

struct MinIndex {
    static __device__ __forceinline__ int64 combine(int64 a, int64 b) { return a < b ? a : b; }
    template <typename T>
    static __device__ __forceinline__ T identity() { return 0x7fffffffffffffffLL; }
};

__device__ __forceinline__ bool finite(float x) { return (__float_as_int(x) & 0x7f800000) != 0x7f800000; }

// Multiplies N values from i on by `factor` if `rescale`; returns the first index that is not finite, or `first`.
template <int N>
__device__ __forceinline__ int64 unscale_pack(float* gradient, int64 i, bool rescale, float factor, int64 first) {
    float x[N];
    load_floats<N>(gradient + i, x);
#pragma unroll
    for (int j = N - 1; j >= 0; j--) {
        if (rescale) x[j] *= factor;
        if (!finite(x[j])) first = MinIndex::combine(first, i + j);
    }
    if (rescale) store_floats<N>(gradient + i, x);
    return first;
}

// gradient *= *inverse (null: only check). firsts [gridDim.x]: the block's first non-finite index, count if there is
// none. V = 4 requires a 16-byte aligned gradient.
template <int V>
__global__ void unscale(float* gradient, const float* inverse, int64* firsts, int64 count) {
    bool rescale = inverse != nullptr;
    float factor = rescale ? *inverse : 1.0f;
    int64 first = count, stride = (int64)gridDim.x * blockDim.x * V;
    for (int64 i = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * V; i < count; i += stride) {
        if (i + V <= count) {
            first = unscale_pack<V>(gradient, i, rescale, factor, first);
        } else {
            for (int64 k = i; k < count; k++) first = unscale_pack<1>(gradient, k, rescale, factor, first);
        }
    }
    first = block_reduce<MinIndex>(first);
    if (threadIdx.x == 0) firsts[blockIdx.x] = first;
}

// out = minimum of firsts. One block.
__global__ void unscale_reduce(const int64* firsts, int64* out, int64 blocks) {
    int64 first = MinIndex::identity<int64>();
    for (int64 i = threadIdx.x; i < blocks; i += blockDim.x) first = MinIndex::combine(first, firsts[i]);
    first = block_reduce<MinIndex>(first);
    if (threadIdx.x == 0) *out = first;
}

// Grow, back off or keep the scale; a scale that would not be finite is kept. One thread.
__global__ void update_scale(float* scale, int* tracker, int* patience, const bool* overflow, float growth,
                             float backoff, int interval, int hysteresis, float low, float high) {
    if (*overflow) {
        int remaining = *patience > 1 ? *patience - 1 : 0;
        float lowered = *scale * backoff;
        if (remaining <= 0) *scale = lowered > low ? lowered : low;
        *patience = remaining, *tracker = 0;
        return;
    }
    bool grow = *tracker + 1 >= interval;
    float grown = *scale * growth;
    if (grow && finite(grown)) *scale = grown < high ? grown : high;
    *patience = hysteresis, *tracker = grow ? 0 : *tracker + 1;
}

// entries: unscale<V> for V in (4, 1)
// entries: unscale_reduce
// entries: update_scale
