// Norms with what feeds them and what reads them: one kernel, which backends/cuda/launch/norm_source.py writes.
#pragma once
#include "include/chain.cuh"
#include "include/norm.cuh"

// The input of a norm: load(v, e) computes its values from element e on, in the dtype S.
template <typename S, typename F>
struct LoadBy {
    using Stored = S;
    const F& values;
    template <int V>
    __device__ __forceinline__ void load(float (&v)[V], int64 at) const { values(v, unsigned(at)); }
    template <int V>
    __device__ __forceinline__ void reload(float (&v)[V], int64 at) const { values(v, unsigned(at)); }
};

// The output of a norm: store(v, e) computes from its values what is stored.
template <typename F>
struct StoreBy {
    const F& stores;
    template <int V>
    __device__ __forceinline__ void store(float (&v)[V], int64 at) const { stores(v, unsigned(at)); }
};

template <typename S, typename F>
__device__ __forceinline__ LoadBy<S, F> load_by(const F& f) { return {f}; }
template <typename F>
__device__ __forceinline__ StoreBy<F> store_by(const F& f) { return {f}; }
