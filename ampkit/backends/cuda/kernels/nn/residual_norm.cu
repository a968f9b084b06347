// A residual sum with dropout in front, and the layer_norm of it, along the rows of [rows, cols]: R the residual and the
// sum, B the branch, T the norm. float32 between; the sum is rounded before it is normalized. How a row is shared out, and
// the arithmetic of the norm: norm.cuh.
#include "include/norm.cuh"
#include "include/philox.cuh"

// Dropout as dropout.cu does it: what is kept, or null, and its draw.
struct Draw {
    bool* keep;
    unsigned least;
    float scale;
    uint64 seed, call;
    const uint64* draws;
};

template <int V>
__device__ __forceinline__ void mask(float (&v)[V], unsigned bits, float scale) {
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = masked(v[j], bits >> j & 1, scale);
}

// What is normalized: residual + dropout(branch), left in `total`.
template <typename R, typename B>
struct Sums {
    using Stored = R;
    const R* residual;
    const B* branch;
    R* total;
    Draw draw;

    template <int V>
    __device__ __forceinline__ void load(float (&v)[V], int64 at) const {
        float b[V];
        load_floats<V>(residual + at, v);
        load_floats<V>(branch + at, b);
        if (draw.keep) {
            unsigned bits = kept_in(draw.draws, draw.seed, draw.call, at / 16, draw.least) >> at % 16;
            Pack<unsigned char, V> bytes;
#pragma unroll
            for (int j = 0; j < V; j++) bytes.value[j] = bits >> j & 1;
            bytes.store(reinterpret_cast<unsigned char*>(draw.keep) + at);
            mask(b, bits, draw.scale);
        }
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = to_float(from_float<R>(v[j] + b[j]));
        store_floats<V>(total + at, v);
    }
    template <int V>
    __device__ __forceinline__ void again(float (&v)[V], int64 at) const { load_floats<V>(total + at, v); }
};

// The gradients of residual and branch, or null: the norm's, and that of the sum itself, or null.
template <typename R, typename B>
struct Split {
    const R* dsum;
    const bool* keep;
    float scale;
    R* dresidual;
    B* dbranch;

    template <int V>
    __device__ __forceinline__ void store(float (&v)[V], int64 at) const {
        if (dsum) {
            float more[V];
            load_floats<V>(dsum + at, more);
#pragma unroll
            for (int j = 0; j < V; j++) v[j] += more[j];
        }
        if (dresidual) store_floats<V>(dresidual + at, v);
        if (!dbranch) return;
        if (keep) {
            auto bytes = Pack<unsigned char, V>::load(reinterpret_cast<const unsigned char*>(keep) + at);
            unsigned bits = 0;
#pragma unroll
            for (int j = 0; j < V; j++) bits |= unsigned(bytes.value[j] != 0) << j;
            mask(v, bits, scale);
        }
        store_floats<V>(dbranch + at, v);
    }
};

template <typename R, typename B, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? K ? MOST_THREADS : MOST_KEPT : 32 * WARPS) add_layer_norm_forward(
    const R* residual, const B* branch, const float* weight, const float* bias, R* total, T* norm, float* mean,
    float* rstd, int64 rows, int64 cols, int64 kept, float eps, bool* keep, unsigned least, float scale, uint64 seed, uint64 call,
    const uint64* draws) {
    Sums<R, B> x = {residual, branch, total, {keep, least, scale, seed, call, draws}};
    forward<true, T, V, K, BLOCK>(x, Columns{weight, bias}, norm, mean, rstd, rows, cols, kept, eps);
}

// dw and db: as in norm.cuh's backward. dnorm: the gradient of the norm.
template <typename R, typename B, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? K ? MOST_THREADS : MOST_KEPT : 32 * WARPS) add_layer_norm_backward(
    const T* dnorm, const R* dsum, const R* total, const float* weight, const float* mean, const float* rstd,
    R* dresidual, B* dbranch, float* dw, float* db, int64 rows, int64 cols, int64 kept, const bool* keep,
    float scale) {
    Split<R, B> out = {dsum, keep, scale, dresidual, dbranch};
    backward<true, R, T, V, K, BLOCK>(dnorm, total, Columns{weight, nullptr}, mean, rstd, out, dw, db, rows, cols, kept);
}

// set SHAPES = ((8, 1, false), (8, 4, false), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// set ALIKE = ((float, float, float), (__half, __half, __half), (__nv_bfloat16, __nv_bfloat16, __nv_bfloat16))
// set MIXED = ((float, __half, __half), (float, __half, float), (float, __nv_bfloat16, __nv_bfloat16)) + ((float, __nv_bfloat16, float))
// entries: add_layer_norm_forward<R, B, T, V, K, BLOCK> for (R, B, T) in ALIKE + MIXED, (V, K, BLOCK) in SHAPES
// entries: add_layer_norm_backward<R, B, T, V, K, BLOCK> for (R, B, T) in ALIKE + MIXED, (V, K, BLOCK) in SHAPES
