// Reductions of columns: of [outer, n, inner] over n, of an array or of a prologue (see ArrayInput in storage.cuh).
#pragma once
#include "include/reduction.cuh"

constexpr int COLUMN_TOTALS = 256 * 8;  // floats of shared memory that `columns` needs

// The sum of the terms of x[first], x[first + step], ... below `end` in float64.
template <typename Op, typename X>
__device__ __forceinline__ double wide_total(const X& x, int64 first, int64 end, int64 step, float center) {
    double total = 0.0;
    for (int64 at = first; at < end; at += step) {
        float v[1];
        x.load(v, at);
        total += Op::term(double(v[0]), double(center));
    }
    return total;
}

// Reduces x[first], x[first + step], ... below `end`, V values per access, into V separate totals.
template <typename Op, int V, typename X>
__device__ __forceinline__ void accumulate(const X& x, int64 first, int64 end, int64 step, float (&center)[V],
                                           float (&total)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) total[j] = Op::template identity<float>();
    for (int64 at = first; at < end; at += step) {
        float v[V];
        x.load(v, at);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] = Op::combine(total[j], Op::term(v[j], center[j]));
    }
}

// V adjacent columns per group of `depth_threads` threads, which split a part of n among them.
template <typename Op, int V, typename X, typename T>
__device__ __forceinline__ void columns(const X& x, T* out, const float* centers, int64 outer, int64 n, int64 inner,
                                        int64 part_size, int64 parts, int depth_threads, float divisor, bool root,
                                        float* shared) {
    int across = blockDim.x / depth_threads, lane = threadIdx.x % across, depth = threadIdx.x / across;
    int64 units = inner / V, unit = blockIdx.x / parts * across + lane, part = blockIdx.x % parts;
    int64 outer_index = unit / units, column = unit % units * V;
    bool in_range = outer_index < outer;
    int64 first = outer_index * n * inner + column;
    float center[V], total[V];
    int64 end = (part + 1) * part_size < n ? (part + 1) * part_size : n;
    for (int j = 0; j < V; j++) {
        center[j] = centers && in_range ? centers[outer_index * inner + column + j] : 0.0f;
        total[j] = Op::template identity<float>();
    }
    if (in_range)
        accumulate<Op, V>(x, first + (part * part_size + depth) * inner, first + end * inner, depth_threads * inner,
                          center, total);
    for (int half = depth_threads / 2; half; half /= 2) {
        __syncthreads();
        for (int j = 0; j < V; j++) shared[threadIdx.x * V + j] = total[j];
        __syncthreads();
        if (depth < half)
            for (int j = 0; j < V; j++) total[j] = Op::combine(total[j], shared[(threadIdx.x + half * across) * V + j]);
    }
    if (in_range && depth == 0)
        for (int j = 0; j < V; j++) {
            T* to = out + (outer_index * parts + part) * inner + column + j;
            *to = finish<T>(total[j], divisor, root);
            if constexpr (Op::WIDE) {
                if (!is_lost<Op>(total[j], end - part * part_size)) continue;
                double wide = wide_total<Op>(x, first + j + part * part_size * inner, first + j + end * inner, inner,
                                             center[j]);
                *to = finish<T>(wide, divisor, root);
            }
        }
}
