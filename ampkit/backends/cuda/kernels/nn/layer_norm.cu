// layer_norm and rms_norm along the rows of [rows, cols]: S stored, T answered; float32 between, one rounding. How a row is
// shared out, and the arithmetic: norm.cuh. The gradients of scales are sums over a block's rows, then over blocks, in a
// fixed order.
#include "include/norm.cuh"

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? K ? MOST_THREADS : MOST_KEPT : 32 * WARPS) layer_norm_forward(
    const S* x, const float* weight, const float* bias, T* out, float* mean, float* rstd, int64 rows, int64 cols,
    int64 kept, float eps) {
    forward<true, T, V, K, BLOCK>(Rows<S>{x}, Columns{weight, bias}, out, mean, rstd, rows, cols, kept, eps);
}

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? K ? MOST_THREADS : MOST_KEPT : 32 * WARPS) rms_norm_forward(
    const S* x, const float* weight, T* out, float* rstd, int64 rows, int64 cols, int64 kept, float eps) {
    forward<false, T, V, K, BLOCK>(Rows<S>{x}, Columns{weight, nullptr}, out, nullptr, rstd, rows, cols, kept, eps);
}

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? K ? MOST_THREADS : MOST_KEPT : 32 * WARPS) layer_norm_backward(
    const T* dy, const S* x, const float* weight, const float* mean, const float* rstd, S* dx, float* dw, float* db,
    int64 rows, int64 cols, int64 kept) {
    backward<true, S, T, V, K, BLOCK>(dy, x, Columns{weight, nullptr}, mean, rstd, Slopes<S>{dx}, dw, db, rows, cols, kept);
}

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? K ? MOST_THREADS : MOST_KEPT : 32 * WARPS) rms_norm_backward(
    const T* dy, const S* x, const float* weight, const float* rstd, S* dx, float* dw, int64 rows, int64 cols,
    int64 kept) {
    backward<false, S, T, V, K, BLOCK>(
        dy, x, Columns{weight, nullptr}, nullptr, rstd, Slopes<S>{dx}, dw, nullptr, rows, cols, kept);
}

// Sums of dy * hat and of dy over the rows of a block, [blocks along y, cols] each, or null: a thread has a column. mean:
// null for 0.
template <typename S, typename T>
__global__ void norm_weight_backward(
    const T* dy, const S* x, const float* mean, const float* rstd, float* dw, float* db, int64 rows, int64 cols) {
    int64 col = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    Blocked<Pairs, Pair> mine;
    for (int64 row = blockIdx.y; row < rows; row += gridDim.y) {
        float g = to_float(dy[row * cols + col]);
        mine.add({g * ((to_float(x[row * cols + col]) - (mean ? mean[row] : 0.0f)) * rstd[row]), g});
    }
    Pair sums = mine.total();
    if (dw) dw[blockIdx.y * cols + col] = sums.a;
    if (db) db[blockIdx.y * cols + col] = sums.b;
}

// The last sums: dw_parts and db_parts [parts, cols] -> dw and db [cols]; a null answer is left out. A lane has a column,
// a warp every warps-th part; blocks along y have the one and the other.
template <typename T>
__global__ void norm_weight_sums(const float* dw_parts, const float* db_parts, T* dw, T* db, int64 parts, int64 cols) {
    __shared__ float sums[32][33];
    const float* from = blockIdx.y ? db_parts : dw_parts;
    T* to = blockIdx.y ? db : dw;
    if (!to) return;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int64 col = (int64)blockIdx.x * 32 + lane;
    Blocked<Sum, float> mine;
    if (col < cols)
        for (int64 part = warp; part < parts; part += warps) mine.add(from[part * cols + col]);
    float sum = sums[warp][lane] = mine.total();
    __syncthreads();
    if (warp || col >= cols) return;
    for (int w = 1; w < warps; w++) sum += sums[w][lane];
    to[col] = from_float<T>(sum);
}

// set SHAPES = ((8, 1, false), (8, 4, false), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// entries: layer_norm_forward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: layer_norm_backward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: rms_norm_forward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: rms_norm_backward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: norm_weight_backward<S, T> for (S, T) in PAIRS
// entries: norm_weight_sums<T> for T in TYPES
