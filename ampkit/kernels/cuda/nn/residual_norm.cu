// add_layer_norm: sum = residual + dropout(branch), norm = layer_norm(sum), of the rows of [rows, cols]. R: dtype of
// residual and sum, B of the branch, T of the norm; float32 arithmetic; the sum is rounded before it is normalized.
// norm.cuh has the arithmetic of the norm and the mapping of threads.
#include "include/norm.cuh"
#include "include/philox.cuh"

// Dropout as in dropout.cu; keep_mask: output, null without dropout.
struct Dropout {
    bool* keep_mask;
    unsigned threshold;
    float scale;
    uint64 seed, call;
    const uint64* draws;
};

template <int V>
__device__ __forceinline__ void apply_dropout(float (&v)[V], unsigned bits, float scale) {
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = apply_mask(v[j], bits >> j & 1, scale);
}

// Input of the norm: residual + dropout(branch), also stored in `total`.
template <typename R, typename B>
struct ResidualInput {
    using Stored = R;
    const R* residual;
    const B* branch;
    R* total;
    Dropout dropout;

    template <int V>
    __device__ __forceinline__ void load(float (&v)[V], int64 at) const {
        float b[V];
        load_floats<V>(residual + at, v);
        load_floats<V>(branch + at, b);
        if (dropout.keep_mask) {
            unsigned bits = keep_bits_at_launch(dropout.draws, dropout.seed, dropout.call, at / 16,
                dropout.threshold) >> at % 16;
            Pack<unsigned char, V> bytes;
#pragma unroll
            for (int j = 0; j < V; j++) bytes.value[j] = bits >> j & 1;
            bytes.store(reinterpret_cast<unsigned char*>(dropout.keep_mask) + at);
            apply_dropout(b, bits, dropout.scale);
        }
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = to_float(from_float<R>(v[j] + b[j]));
        store_floats<V>(total + at, v);
    }
    template <int V>
    __device__ __forceinline__ void reload(float (&v)[V], int64 at) const { load_floats<V>(total + at, v); }
};

// Output: dresidual and dbranch (either null) from the norm's gradient plus dsum, that of the sum (or null).
template <typename R, typename B>
struct ResidualGradOutput {
    const R* dsum;
    const bool* keep_mask;
    float scale;
    R* dresidual;
    B* dbranch;

    template <int V>
    __device__ __forceinline__ void store(float (&v)[V], int64 at) const {
        if (dsum) {
            float values[V];
            load_floats<V>(dsum + at, values);
#pragma unroll
            for (int j = 0; j < V; j++) v[j] += values[j];
        }
        if (dresidual) store_floats<V>(dresidual + at, v);
        if (!dbranch) return;
        if (keep_mask) {
            auto bytes = Pack<unsigned char, V>::load(reinterpret_cast<const unsigned char*>(keep_mask) + at);
            unsigned bits = 0;
#pragma unroll
            for (int j = 0; j < V; j++) bits |= unsigned(bytes.value[j] != 0) << j;
            apply_dropout(v, bits, scale);
        }
        store_floats<V>(dbranch + at, v);
    }
};

// total = residual + dropout(branch), norm = layer_norm(total); a warp or a block per row.
template <typename R, typename B, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(MAX_BLOCK<K, BLOCK>) add_layer_norm_forward(
    const R* residual, const B* branch, const float* weight, const float* bias, R* total, T* norm, float* mean,
    float* rstd, int64 rows, int64 cols, int64 cached, float eps, bool* keep_mask, unsigned threshold, float scale,
    uint64 seed, uint64 call, const uint64* draws) {
    ResidualInput<R, B> x = {residual, branch, total, {keep_mask, threshold, scale, seed, call, draws}};
    forward<true, V, K, BLOCK>(x, ColumnAffine{weight, bias}, ArrayOutput<T>{norm}, mean, rstd, rows, cols, cached, eps);
}

// dresidual, dbranch from dnorm and dsum; dw, db as in norm.cuh's backward. Rows are strided over the grid.
template <typename R, typename B, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(MAX_BLOCK<K, BLOCK>) add_layer_norm_backward(
    const T* dnorm, const R* dsum, const R* total, const float* weight, const float* mean, const float* rstd,
    R* dresidual, B* dbranch, float* dw, float* db, int64 rows, int64 cols, int64 cached, const bool* keep_mask,
    float scale) {
    ResidualGradOutput<R, B> out = {dsum, keep_mask, scale, dresidual, dbranch};
    backward<true, V, K, BLOCK>(ArrayInput<T>{dnorm}, ArrayInput<R>{total}, ColumnAffine{weight, nullptr}, mean, rstd, out, dw,
                                db, rows, cols, cached);
}

// set SHAPES = ((8, 1, false), (8, 4, false), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// set BACK = ((8, 1, false), (8, 1, true), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// set SAME = ((float, float, float), (__half, __half, __half), (__nv_bfloat16, __nv_bfloat16, __nv_bfloat16))
// set MIXED = ((float, __half, __half), (float, __half, float), (float, __nv_bfloat16, __nv_bfloat16)) + ((float, __nv_bfloat16, float))
// entries: add_layer_norm_forward<R, B, T, V, K, BLOCK> for (R, B, T) in SAME + MIXED, (V, K, BLOCK) in SHAPES
// entries: add_layer_norm_backward<R, B, T, V, K, BLOCK> for (R, B, T) in SAME + MIXED, (V, K, BLOCK) in BACK
