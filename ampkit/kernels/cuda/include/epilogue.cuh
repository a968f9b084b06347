// What generated kernels hand to the templates of norms and softmax; backends/cuda/launch/template_source.py writes them.
#pragma once
#include "include/chain.cuh"

// An epilogue in the place of a ArrayOutput: stores(v, e) computes from its values what is stored, from element e on.
template <typename F>
struct Epilogue {
    const F& stores;
    template <int V>
    __device__ __forceinline__ void store(float (&v)[V], int64 at) const { stores(v, unsigned(at)); }
};

template <typename F>
__device__ __forceinline__ Epilogue<F> epilogue(const F& f) { return {f}; }
