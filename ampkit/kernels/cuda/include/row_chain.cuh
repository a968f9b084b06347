// Chains of elementwise functions and of reductions of rows: one kernel, which backends/cuda/launch/row_source.py writes,
// computes them all, in as many passes over the registers that hold a row as reductions follow each other.
//
// A row [cols] has a warp or a block, as in reduce_rows of reductions.cu: the order of the sums is the same.
#pragma once
#include "include/chain.cuh"
#include "include/reduction.cuh"
#include "include/terms.cuh"

// In ChainLayout `vector` is the length of a row here.
template <bool PER_BLOCK>
struct Row {
    unsigned lane, lanes, index;
    __device__ __forceinline__ Row() {
        lane = PER_BLOCK ? threadIdx.x : threadIdx.x & 31, lanes = PER_BLOCK ? blockDim.x : 32;
        index = PER_BLOCK ? blockIdx.x : blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    }
};

template <bool PER_BLOCK, typename Op, typename T>
__device__ __forceinline__ T row_reduce(T value) {
    if constexpr (PER_BLOCK) return block_reduce<Op>(value);
    else return warp_reduce<Op>(value);
}

// The result of a reduction of a row, rounded to T, from the totals of each thread. value(col): one of the row.
template <bool PER_BLOCK, typename Op, typename T, int V, typename Value>
__device__ __forceinline__ float row_result(const Row<PER_BLOCK>& row, float (&totals)[V], unsigned cols, float divisor,
                                            bool root, Value value) {
    float total = row_reduce<PER_BLOCK, Op>(joined<Op>(totals));
    if constexpr (Op::WIDE) {
        if (is_lost<Op>(total, cols)) {  // the same for all threads of the row
            double wide = 0.0;
            for (unsigned col = row.lane; col < cols; col += row.lanes) wide += Op::term(double(value(col)), 0.0);
            return to_float(finish<T>(row_reduce<PER_BLOCK, Sum>(wide), divisor, root));
        }
    }
    return to_float(finish<T>(total, divisor, root));
}

template <typename Op, int V>
__device__ __forceinline__ void clear(float (&totals)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) totals[j] = Op::template identity<float>();
}

template <typename Op, int V>
__device__ __forceinline__ void accumulate(float (&totals)[V], const float (&values)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) totals[j] = Op::combine(totals[j], Op::term(values[j], 0.0f));
}
