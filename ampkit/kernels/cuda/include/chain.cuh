// Chains of elementwise functions: one kernel, which backends/cuda/launch/chain_source.py writes, computes them all.
//
// Each function has its own result, rounded to the dtype that the op answers in, as it would have through memory.
#pragma once
#include "include/functions.cuh"

// What a function hands to the next one: rounded to the dtype of its op, and through an integer operation. zero is 0, which
// no compiler knows: neither NVRTC nor the assembler after it contracts operations of two functions into one instruction,
// as they do within one.
template <int KIND>
__device__ __forceinline__ float handed_on(float x, unsigned zero) {
    return KIND == FLOAT32 ? as<float>(as<unsigned>(x) ^ zero) : decode(encode(x, KIND), KIND);
}

// count: elements of each result. vector: as in Layout. axes, size: as there. stride: of the arrays that have not the
// memory order in which the kernel goes through the results, in elements; their last row is unused. zero: of `handed_on`.
template <int STRIDED>
struct ChainLayout {
    unsigned count;
    int vector, axes;
    unsigned zero, size[AXES];
    int stride[STRIDED + 1][AXES];
};

// The offsets of element e in those operands.
template <int STRIDED>
__device__ __forceinline__ void chain_offsets(const ChainLayout<STRIDED>& layout, unsigned e, int (&at)[STRIDED + 1]) {
#pragma unroll
    for (int i = 0; i < STRIDED; i++) at[i] = 0;
    if (!STRIDED) return;
    for (int d = layout.axes - 1; d > 0; d--) {
        unsigned rest = e / layout.size[d], index = e - rest * layout.size[d];
#pragma unroll
        for (int i = 0; i < STRIDED; i++) at[i] += int(index) * layout.stride[i][d];
        e = rest;
    }
#pragma unroll
    for (int i = 0; i < STRIDED; i++) at[i] += int(e) * layout.stride[i][0];
}

// Which elements a thread computes, as in `apply` of elementwise.cuh: eight at once, from `first` and from `second` on
// (whole), or those of `element`.
struct Span {
    unsigned vector, first, second;
    bool whole;

    template <int STRIDED>
    __device__ __forceinline__ explicit Span(const ChainLayout<STRIDED>& layout) {
        vector = layout.vector, first = blockIdx.x * (BLOCK * PER_THREAD) + threadIdx.x * vector;
        second = vector == PER_THREAD ? first + PER_THREAD / 2 : first + BLOCK * vector;
        whole = vector > 1 && second + PER_THREAD / 2 <= layout.count;
    }
    __device__ __forceinline__ unsigned element(unsigned k) const {
        return first + k % vector + k / vector * (BLOCK * vector);
    }
};

// A prologue in the place of an ArrayInput: values(v, e) computes the elements from e on, in the dtype S.
template <typename S, typename F>
struct Prologue {
    using Stored = S;
    const F& values;
    template <int V>
    __device__ __forceinline__ void load(float (&v)[V], int64 at) const { values(v, unsigned(at)); }
    template <int V>
    __device__ __forceinline__ void reload(float (&v)[V], int64 at) const { values(v, unsigned(at)); }
};

template <typename S, typename F>
__device__ __forceinline__ Prologue<S, F> prologue(const F& f) { return {f}; }
