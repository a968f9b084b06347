// Reductions of [outer, n, inner] over n: S input, T output dtype, float32 arithmetic, one rounding.
//
// The n elements are split into parts, whose results [outer, parts, inner] are the next launch's input. The split
// depends on the shape alone, and partial results are combined in a fixed order: the same bits every time. A sum, of
// squares or not, that over- or underflows is computed once more in float64; of parts of squares the roots are stored,
// whose squares the next launch adds.
#include "include/columns.cuh"

#define HELPER static __device__ __forceinline__
#define REGISTER_TERM(NAME)
#include "shared/reductions.h"

template <typename Op, int V, typename S>
__device__ __forceinline__ float row_total(ArrayInput<S> x, int64 first, int64 end, int64 step, float center) {
    float centers[V], total[V];
#pragma unroll
    for (int j = 0; j < V; j++) centers[j] = center;
    accumulate<Op, V>(x, first, end, step, centers, total);
    return joined<Op>(total);
}

// inner = 1: a warp per row, or a block per part of `part_size` elements (block_per_row). The result is divided, then
// its root taken if `root`.
template <typename Op, typename S, typename T>
__global__ void reduce_rows(const S* x, T* out, const float* centers, int64 rows, int64 n, int64 part_size, int64 parts,
                            float divisor, bool root, bool vectorized, bool block_per_row) {
    int threads = block_per_row ? blockDim.x : 32, mine = threadIdx.x % threads;
    int64 result_index = block_per_row ? (int64)blockIdx.x : (int64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int64 row = result_index / parts, start = result_index % parts * part_size;
    if (row >= rows) return;
    int64 end = start + part_size < n ? start + part_size : n;
    float center = centers ? centers[row] : 0.0f;
    ArrayInput<S> values{x + row * n};
    float total = vectorized ? row_total<Op, 8>(values, start + mine * 8, end, threads * 8, center)
                             : row_total<Op, 1>(values, start + mine, end, threads, center);
    total = block_per_row ? block_reduce<Op>(total) : warp_reduce<Op>(total);
    if constexpr (Op::WIDE) {
        if (is_lost<Op>(total, end - start)) {  // the same for all threads of the row
            double wide = wide_total<Op>(values, start + mine, end, threads, center);
            wide = block_per_row ? block_reduce<Sum>(wide) : warp_reduce<Sum>(wide);
            if (mine == 0) out[result_index] = finish<T>(wide, divisor, root);
            return;
        }
    }
    if (mine == 0) out[result_index] = finish<T>(total, divisor, root);
}

// inner > 1: depth_threads threads per column, or per 8 columns if vectorized; blockIdx.x covers columns and parts.
template <typename Op, typename S, typename T>
__global__ void reduce_columns(const S* x, T* out, const float* centers, int64 outer, int64 n, int64 inner,
                               int64 part_size, int64 parts, float divisor, bool root, bool vectorized,
                               int depth_threads) {
    __shared__ float shared[COLUMN_TOTALS];
    if (vectorized)
        columns<Op, 8>(ArrayInput<S>{x}, out, centers, outer, n, inner, part_size, parts, depth_threads, divisor, root, shared);
    else
        columns<Op, 1>(ArrayInput<S>{x}, out, centers, outer, n, inner, part_size, parts, depth_threads, divisor, root, shared);
}

// out = index of the best value of each row, the first of equal ones; a block per row.
template <typename Op, typename S>
__global__ void argbest_rows(const S* x, int64* out, int64 n) {
    ValueIndex mine = Op::template identity<ValueIndex>();
    for (int64 at = threadIdx.x; at < n; at += blockDim.x)
        mine = Op::combine(mine, {to_float(x[blockIdx.x * n + at]), at});
    mine = block_reduce<Op>(mine);
    if (threadIdx.x == 0) out[blockIdx.x] = mine.index;
}

// set PARTIAL = PAIRS + ((float, __half), (float, __nv_bfloat16))
// set READ = TYPES + (bool)
// entries: reduce_rows<Op, S, T> for Op in (Add, AddSquares, Multiply, Maximum, Minimum), (S, T) in PARTIAL
// entries: reduce_rows<Op, S, T> for Op in (AddAbs, MaxAbs, MinAbs), (S, T) in PAIRS
// entries: reduce_rows<Op, S, float> for Op in (CountNonzero, CountZero), S in READ
// entries: reduce_rows<Op, S, float> for Op in (AddExps, CountEqual), S in TYPES
// entries: reduce_columns<Op, S, T> for Op in (Add, AddSquares, Multiply, Maximum, Minimum), (S, T) in PARTIAL
// entries: reduce_columns<Op, S, T> for Op in (AddAbs, MaxAbs, MinAbs), (S, T) in PAIRS
// entries: reduce_columns<Op, S, float> for Op in (CountNonzero, CountZero), S in READ
// entries: reduce_columns<Op, S, float> for Op in (AddExps, CountEqual), S in TYPES
// entries: argbest_rows<Op, S> for Op in (ArgMax, ArgMin), S in TYPES
