// layer_norm and rms_norm along the rows of [rows, cols]: S stored, T answered; float32 between, one rounding. How a row is
// shared out: norm.cuh. The gradients of scales are sums over a block's rows, then over blocks, in a fixed order.
#include "norm.cuh"

// A weight and a bias, or neither, for each column.
struct Columns {
    const float *weight, *bias;

    template <int V>
    __device__ __forceinline__ void scale(float (&v)[V], int64 row, int64 at) const {
        if (!weight) return;
        float w[V];
        load_floats<V>(weight + at, w);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] *= w[j];
    }
    template <int V>
    __device__ __forceinline__ void shift(float (&v)[V], int64 row, int64 at) const {
        if (!bias) return;
        float b[V];
        load_floats<V>(bias + at, b);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] += b[j];
    }
};

// What each thread of each warp holds of a row, added up over the warps of the block: `out` [cols].
template <int V, int K, bool BLOCK>
__device__ __forceinline__ void leave(const float (&held)[K][V], float* out, int64 cols) {
    DYN_SHARED(float, shared);  // [WARPS, cols], where warps have rows of their own
    if constexpr (BLOCK) {
        each<V, K, BLOCK>(cols, [&](int k, int64 at) { store_floats<V>(out + at, held[k]); });
    } else {
        __syncthreads();  // what the call before left here has been read
        float* mine = shared + (threadIdx.x >> 5) * cols;
        each<V, K, BLOCK>(cols, [&](int k, int64 at) { store_floats<V>(mine + at, held[k]); });
        __syncthreads();
        for (int64 c = threadIdx.x; c < cols; c += blockDim.x) {
            float sum = shared[c];
            for (int w = 1; w < WARPS; w++) sum += shared[w * cols + c];
            out[c] = sum;
        }
    }
}

// dx = (g - hat * mean(g * hat) - mean(g)) * rstd, with g = dy * weight and hat = (x - mean) * rstd; where not CENTRED,
// without mean(g). dw and db, or null: sums of dy * hat and dy over the rows of a block, [blocks, cols]; not with K = 0.
template <bool CENTRED, typename S, typename T, int V, int K, bool BLOCK>
__device__ __forceinline__ void backward(
    const T* dy, const S* x, Columns scales, const float* means, const float* rstds, S* dx, float* dw, float* db,
    int64 rows, int64 cols) {
    using Mine = Team<BLOCK>;
    float g[K ? K : 1][V], hat[K ? K : 1][V], dws[K ? K : 1][V] = {}, dbs[K ? K : 1][V] = {};
    for (int64 row = Mine::number(); row < rows; row += (int64)gridDim.x * Mine::of_block()) {
        const T* slope = dy + row * cols;
        const S* from = x + row * cols;
        S* to = dx + row * cols;
        float mean = CENTRED ? means[row] : 0.0f, rstd = rstds[row];
        auto read = [&](int k, int64 at) {
            load_floats<V>(slope + at, g[k]);
            load_floats<V>(from + at, hat[k]);
#pragma unroll
            for (int j = 0; j < V; j++) hat[k][j] = (hat[k][j] - mean) * rstd;
        };
        Pair sums = {0.0f, 0.0f};
        each<V, K, BLOCK>(cols, [&](int k, int64 at) {
            read(k, at);
#pragma unroll
            for (int j = 0; j < V && K > 0; j++) {
                dws[k][j] += g[k][j] * hat[k][j];
                if (CENTRED) dbs[k][j] += g[k][j];
            }
            scales.scale(g[k], row, at);
#pragma unroll
            for (int j = 0; j < V; j++) {
                sums.a += g[k][j] * hat[k][j];
                if (CENTRED) sums.b += g[k][j];
            }
        });
        sums = Mine::template reduce<Pairs>(sums);
        float along = sums.a / cols, level = sums.b / cols;
        each<V, K, BLOCK>(cols, [&](int k, int64 at) {
            if (K == 0) {
                read(k, at);
                scales.scale(g[k], row, at);
            }
#pragma unroll
            for (int j = 0; j < V; j++) g[k][j] = (g[k][j] - hat[k][j] * along - level) * rstd;
            store_floats<V>(to + at, g[k]);
        });
    }
    if constexpr (K > 0) {
        if (dw) leave<V, K, BLOCK>(dws, dw + blockIdx.x * cols, cols);
        if (CENTRED && db) leave<V, K, BLOCK>(dbs, db + blockIdx.x * cols, cols);
    }
}

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? MOST_THREADS : 32 * WARPS) layer_norm_forward(
    const S* x, const float* weight, const float* bias, T* out, float* mean, float* rstd, int64 rows, int64 cols,
    float eps) {
    forward<true, S, T, V, K, BLOCK>(x, Columns{weight, bias}, out, mean, rstd, rows, cols, eps);
}

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? MOST_THREADS : 32 * WARPS) rms_norm_forward(
    const S* x, const float* weight, T* out, float* rstd, int64 rows, int64 cols, float eps) {
    forward<false, S, T, V, K, BLOCK>(x, Columns{weight, nullptr}, out, nullptr, rstd, rows, cols, eps);
}

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? MOST_THREADS : 32 * WARPS) layer_norm_backward(
    const T* dy, const S* x, const float* weight, const float* mean, const float* rstd, S* dx, float* dw, float* db,
    int64 rows, int64 cols) {
    backward<true, S, T, V, K, BLOCK>(dy, x, Columns{weight, nullptr}, mean, rstd, dx, dw, db, rows, cols);
}

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? MOST_THREADS : 32 * WARPS) rms_norm_backward(
    const T* dy, const S* x, const float* weight, const float* rstd, S* dx, float* dw, int64 rows, int64 cols) {
    backward<false, S, T, V, K, BLOCK>(dy, x, Columns{weight, nullptr}, nullptr, rstd, dx, dw, nullptr, rows, cols);
}

// Sums of dy * hat and of dy over the rows of a block, [blocks along y, cols] each, or null: a thread has a column. mean:
// null for 0.
template <typename S, typename T>
__global__ void norm_weight_backward(
    const T* dy, const S* x, const float* mean, const float* rstd, float* dw, float* db, int64 rows, int64 cols) {
    int64 col = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float along = 0.0f, total = 0.0f;
    for (int64 row = blockIdx.y; row < rows; row += gridDim.y) {
        float g = to_float(dy[row * cols + col]);
        along += g * ((to_float(x[row * cols + col]) - (mean ? mean[row] : 0.0f)) * rstd[row]);
        total += g;
    }
    if (dw) dw[blockIdx.y * cols + col] = along;
    if (db) db[blockIdx.y * cols + col] = total;
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
    float sum = 0.0f;
    if (col < cols)
        for (int64 part = warp; part < parts; part += warps) sum += from[part * cols + col];
    sums[warp][lane] = sum;
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
