// Norms with a prologue and an epilogue: one kernel, which backends/cuda/launch/norm_source.py writes.
#pragma once
#include "include/chain.cuh"
#include "include/norm.cuh"

// An epilogue in the place of a RowOutput: stores(v, e) computes from its values what is stored, from element e on.
template <typename F>
struct Epilogue {
    const F& stores;
    template <int V>
    __device__ __forceinline__ void store(float (&v)[V], int64 at) const { stores(v, unsigned(at)); }
};

template <typename F>
__device__ __forceinline__ Epilogue<F> epilogue(const F& f) { return {f}; }
