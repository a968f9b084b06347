// layer_norm and rms_norm of the rows of [rows, cols]: S input, T output dtype, float32 arithmetic, one rounding.
// norm.cuh has the arithmetic and the mapping of threads. Gradients of weight and bias: sums over each block's rows,
// then over blocks, in a fixed order.
#include "include/norm.cuh"

// out = (x - mean) * rstd * weight + bias; a warp or a block per row. weight, bias: null for none.
template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(MAX_BLOCK<K, BLOCK>) layer_norm_forward(
    const S* x, const float* weight, const float* bias, T* out, float* mean, float* rstd, int64 rows, int64 cols,
    int64 cached, float eps) {
    forward<true, V, K, BLOCK>(ArrayInput<S>{x}, ColumnAffine{weight, bias}, ArrayOutput<T>{out}, mean, rstd, rows, cols,
                               cached, eps);
}

// out = x * rstd * weight; a warp or a block per row.
template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(MAX_BLOCK<K, BLOCK>) rms_norm_forward(const S* x, const float* weight, T* out,
                                                                        float* rstd, int64 rows, int64 cols,
                                                                        int64 cached, float eps) {
    forward<false, V, K, BLOCK>(ArrayInput<S>{x}, ColumnAffine{weight, nullptr}, ArrayOutput<T>{out}, nullptr, rstd, rows,
                                cols, cached, eps);
}

// dx, and the block's share of dw and db [gridDim.x, cols], null if not wanted; rows are strided over the grid.
template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(MAX_BLOCK<K, BLOCK>) layer_norm_backward(
    const T* dy, const S* x, const float* weight, const float* mean, const float* rstd, S* dx, float* dw, float* db,
    int64 rows, int64 cols, int64 cached) {
    backward<true, V, K, BLOCK>(ArrayInput<T>{dy}, ArrayInput<S>{x}, ColumnAffine{weight, nullptr}, mean, rstd,
                                ArrayOutput<S>{dx}, dw, db, rows, cols, cached);
}

// dx, and the block's share of dw [gridDim.x, cols], null if not wanted.
template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(MAX_BLOCK<K, BLOCK>) rms_norm_backward(
    const T* dy, const S* x, const float* weight, const float* rstd, S* dx, float* dw, int64 rows, int64 cols,
    int64 cached) {
    backward<false, V, K, BLOCK>(ArrayInput<T>{dy}, ArrayInput<S>{x}, ColumnAffine{weight, nullptr}, nullptr, rstd,
                                 ArrayOutput<S>{dx}, dw, nullptr, rows, cols, cached);
}

// dw, db [gridDim.y, cols]: sums of dy * x_hat and of dy over every gridDim.y-th row; a thread per column. mean: null
// for 0.
template <typename S, typename T>
__global__ void norm_weight_backward(const T* dy, const S* x, const float* mean, const float* rstd, float* dw,
                                     float* db, int64 rows, int64 cols) {
    int64 col = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    BlockedReduction<AddSum2, Sum2> mine;
    for (int64 row = blockIdx.y; row < rows; row += gridDim.y) {
        float g = to_float(dy[row * cols + col]);
        mine.add({g * ((to_float(x[row * cols + col]) - (mean ? mean[row] : 0.0f)) * rstd[row]), g});
    }
    Sum2 sums = mine.total();
    if (dw) dw[blockIdx.y * cols + col] = sums.a;
    if (db) db[blockIdx.y * cols + col] = sums.b;
}

// dw, db [cols] = sums of dw_parts, db_parts [parts, cols]; a lane per column, warps stride over parts; blockIdx.y
// selects dw or db.
template <typename T>
__global__ void norm_weight_sums(const float* dw_parts, const float* db_parts, T* dw, T* db, int64 parts, int64 cols) {
    __shared__ float sums[32][33];
    const float* partials = blockIdx.y ? db_parts : dw_parts;
    T* to = blockIdx.y ? db : dw;
    if (!to) return;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int64 col = (int64)blockIdx.x * 32 + lane;
    BlockedReduction<Sum, float> mine;
    if (col < cols)
        for (int64 part = warp; part < parts; part += warps) mine.add(partials[part * cols + col]);
    float sum = sums[warp][lane] = mine.total();
    __syncthreads();
    if (warp || col >= cols) return;
    for (int w = 1; w < warps; w++) sum += sums[w][lane];
    to[col] = from_float<T>(sum);
}

// set SHAPES = ((8, 1, false), (8, 4, false), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// set BACK = ((8, 1, false), (8, 1, true), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// entries: layer_norm_forward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: layer_norm_backward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in BACK
// entries: rms_norm_forward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: rms_norm_backward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in BACK
// entries: norm_weight_backward<S, T> for (S, T) in PAIRS
// entries: norm_weight_sums<T> for T in TYPES
