// Unscaling: times the inverse of the scale, and where the first value is that is not finite then, in one pass; and how
// the scale moves. Everything is read on the device.
#include "include/block.cuh"

struct Least {
    static __device__ __forceinline__ int64 combine(int64 a, int64 b) { return a < b ? a : b; }
    template <typename T>
    static __device__ __forceinline__ T nothing() { return 0x7fffffffffffffffLL; }
};

__device__ __forceinline__ bool finite(float x) { return (__float_as_int(x) & 0x7f800000) != 0x7f800000; }

// N values from i on, times `by` where `times`. -> the first place that is not finite, or `first`.
template <int N>
__device__ __forceinline__ int64 looked_at(float* gradient, int64 i, bool times, float by, int64 first) {
    float x[N];
    load_floats<N>(gradient + i, x);
#pragma unroll
    for (int j = N - 1; j >= 0; j--) {
        if (times) x[j] *= by;
        if (!finite(x[j])) first = Least::combine(first, i + j);
    }
    if (times) store_floats<N>(gradient + i, x);
    return first;
}

// inverse may be null: then values are looked at only. firsts: one place per block; count where all are finite. With
// V = 4 the gradient begins on a boundary of 16 bytes.
template <int V>
__global__ void unscale(float* gradient, const float* inverse, int64* firsts, int64 count) {
    bool times = inverse != nullptr;
    float by = times ? *inverse : 1.0f;
    int64 first = count, stride = (int64)gridDim.x * blockDim.x * V;
    for (int64 i = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * V; i < count; i += stride) {
        if (i + V <= count) {
            first = looked_at<V>(gradient, i, times, by, first);
        } else {
            for (int64 k = i; k < count; k++) first = looked_at<1>(gradient, k, times, by, first);
        }
    }
    first = block_reduce<Least>(first);
    if (threadIdx.x == 0) firsts[blockIdx.x] = first;
}

// One block: the least of `firsts`.
__global__ void unscale_finish(const int64* firsts, int64* out, int64 blocks) {
    int64 first = Least::nothing<int64>();
    for (int64 i = threadIdx.x; i < blocks; i += blockDim.x) first = Least::combine(first, firsts[i]);
    first = block_reduce<Least>(first);
    if (threadIdx.x == 0) *out = first;
}

// One thread: grow, back off or stay. A scale that would not be finite stays.
__global__ void update_scale(float* scale, int* tracker, int* patience, const bool* overflow, float growth, float backoff,
                           int interval, int hysteresis, float low, float high) {
    if (*overflow) {
        int left = *patience > 1 ? *patience - 1 : 0;
        float lowered = *scale * backoff;
        if (left <= 0) *scale = lowered > low ? lowered : low;
        *patience = left, *tracker = 0;
        return;
    }
    bool grow = *tracker + 1 >= interval;
    float grown = *scale * growth;
    if (grow && finite(grown)) *scale = grown < high ? grown : high;
    *patience = hysteresis, *tracker = grow ? 0 : *tracker + 1;
}

// entries: unscale<V> for V in (4, 1)
// entries: unscale_finish
// entries: update_scale
