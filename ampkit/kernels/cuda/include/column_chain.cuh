// Reductions of columns with a prologue: one kernel, which backends/cuda/launch/column_source.py writes.
#pragma once
#include "include/chain.cuh"
#include "include/columns.cuh"
#include "include/terms.cuh"

// A prologue that computes eight values at once, and single ones.
template <typename S, typename F, typename G>
struct WidePrologue {
    using Stored = S;
    const F& eight;
    const G& one;
    __device__ __forceinline__ void load(float (&v)[8], int64 at) const { eight(v, unsigned(at)); }
    __device__ __forceinline__ void load(float (&v)[1], int64 at) const { one(v, unsigned(at)); }
};

template <typename S, typename F, typename G>
__device__ __forceinline__ WidePrologue<S, F, G> prologue(const F& eight, const G& one) { return {eight, one}; }
