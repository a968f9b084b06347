// Normalization of each row of [rows, cols] by a warp, or by a block (BLOCK).
//
// K > 0: the row stays in registers, V values per access and K accesses per thread, so that memory is read once. K = 0:
// the block caches the first `cached` columns (a multiple of 8) in shared memory and reads the rest again in each pass;
// a thread reads back only what it wrote, so no barrier is needed. V = 8 requires cols % 8 == 0 and 16-byte aligned
// rows.
#pragma once
#include "include/block.cuh"

constexpr int WARPS = 4;  // rows per block where each row has a warp
constexpr int MAX_THREADS = 512;  // of a block whose row is in registers
constexpr int MAX_THREADS_CACHED = 1024;  // of a block whose row is in shared memory

// The most threads of a block, for __launch_bounds__.
template <int K, bool BLOCK>
constexpr int MAX_BLOCK = BLOCK ? (K ? MAX_THREADS : MAX_THREADS_CACHED) : 32 * WARPS;

// Two sums reduced together.
struct Sum2 {
    float a, b;
};

__device__ __forceinline__ Sum2 shuffle_xor(Sum2 p, int lane_mask) {
    return {__shfl_xor_sync(ALL_LANES, p.a, lane_mask), __shfl_xor_sync(ALL_LANES, p.b, lane_mask)};
}

struct AddSum2 {
    static __device__ __forceinline__ Sum2 combine(Sum2 p, Sum2 q) { return {p.a + q.a, p.b + q.b}; }
    template <typename T>
    static __device__ __forceinline__ Sum2 identity() { return {0.0f, 0.0f}; }
};

template <bool BLOCK>
struct RowThreads {
    static __device__ __forceinline__ int lane() { return BLOCK ? threadIdx.x : threadIdx.x & 31; }
    static __device__ __forceinline__ int lanes() { return BLOCK ? blockDim.x : 32; }
    static __device__ __forceinline__ int per_block() { return BLOCK ? 1 : blockDim.x >> 5; }
    static __device__ __forceinline__ int64 index() {
        return (int64)blockIdx.x * per_block() + (BLOCK ? 0 : threadIdx.x >> 5);
    }
    template <typename Op, typename T>
    static __device__ __forceinline__ T reduce(T value) {
        if constexpr (BLOCK) return block_reduce<Op>(value);
        else return warp_reduce<Op>(value);
    }
};

// Calls f(k, at) for each V columns of this thread; `at` is the first column, k the register index (0 if K = 0).
template <int V, int K, bool BLOCK, typename F>
__device__ __forceinline__ void for_each_pack(int64 cols, F f) {
    int64 step = (int64)RowThreads<BLOCK>::lanes() * V, at = (int64)RowThreads<BLOCK>::lane() * V;
    if constexpr (K == 0) {
        for (; at < cols; at += step) f(0, at);
    } else {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (at + k * step < cols) f(k, at + k * step);
    }
}

// out = affine((x - mean) * rstd), with rstd = 1 / sqrt(mean((x - mean)^2) + eps); without CENTERED the mean is 0. Two
// passes over the row. Writes means (if CENTERED) and rstds [rows].
template <bool CENTERED, int V, int K, bool BLOCK, typename Source, typename Scales, typename Out>
__device__ __forceinline__ void forward(Source x, Scales affine, Out out, float* means, float* rstds, int64 rows,
                                        int64 cols, int64 cached, float eps) {
    using Threads = RowThreads<BLOCK>;
    int64 row = Threads::index();
    if (row >= rows) return;  // the whole warp or block returns: no barrier is missed
    int64 start = row * cols;
    float v[K ? K : 1][V];
    DYN_SHARED(typename Source::Stored, cache);
    auto load = [&](int k, int64 at) {
        x.load(v[k], start + at);
        if (K == 0 && at < cached) store_floats<V>(cache + at, v[k]);
    };
    auto reload = [&](int k, int64 at) {
        if (K > 0) return;
        if (at < cached) load_floats<V>(cache + at, v[k]);
        else x.reload(v[k], start + at);
    };
    BlockedReduction<Sum, float, K == 0> sum, squares;
    if (CENTERED || K > 0)
        for_each_pack<V, K, BLOCK>(cols, [&](int k, int64 at) {
            load(k, at);
            float partial = 0.0f;
#pragma unroll
            for (int j = 0; j < V; j++) partial += v[k][j];
            sum.add(partial);
        });
    float mean = CENTERED ? Threads::template reduce<Sum>(sum.total()) / cols : 0.0f;
    for_each_pack<V, K, BLOCK>(cols, [&](int k, int64 at) {
        if (CENTERED || K > 0) reload(k, at);
        else load(k, at);
        float partial = 0.0f;
#pragma unroll
        for (int j = 0; j < V; j++) partial += (v[k][j] - mean) * (v[k][j] - mean);
        squares.add(partial);
    });
    float rstd = 1.0f / sqrtf(Threads::template reduce<Sum>(squares.total()) / cols + eps);
    for_each_pack<V, K, BLOCK>(cols, [&](int k, int64 at) {
        reload(k, at);
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = (v[k][j] - mean) * rstd;
        affine.scale(v[k], row, at);
        affine.shift(v[k], row, at);
        out.store(v[k], start + at);
    });
    if (Threads::lane() == 0) {
        if (CENTERED) means[row] = mean;
        rstds[row] = rstd;
    }
}

// Weight and bias per column; either may be null.
struct ColumnAffine {
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

// Sums the per-thread values over the block's warps into out [cols].
template <int V, int K, bool BLOCK>
__device__ __forceinline__ void store_block_sums(const float (&cache)[K][V], float* out, int64 cols) {
    DYN_SHARED(float, shared);  // [WARPS, cols], where warps have rows of their own
    if constexpr (BLOCK) {
        for_each_pack<V, K, BLOCK>(cols, [&](int k, int64 at) { store_floats<V>(out + at, cache[k]); });
    } else {
        __syncthreads();  // the previous call's values have been read
        float* mine = shared + (threadIdx.x >> 5) * cols;
        for_each_pack<V, K, BLOCK>(cols, [&](int k, int64 at) { store_floats<V>(mine + at, cache[k]); });
        __syncthreads();
        for (int64 c = threadIdx.x; c < cols; c += blockDim.x) {
            float sum = shared[c];
            for (int w = 1; w < WARPS; w++) sum += shared[w * cols + c];
            out[c] = sum;
        }
    }
}

// Shared memory of the K = 0 backward: float sums for dw and db (each only if wanted) over all columns, then `cached`
// columns of dy and of x.
template <typename S, typename T>
struct SharedRows {
    float *dw, *db;
    T* dy;
    S* x;

    __device__ __forceinline__ SharedRows(bool with_dw, bool with_db, int64 cols, int64 cached) {
        DYN_SHARED(float, shared);
        int64 padded_cols = (cols + 7) / 8 * 8;
        dw = shared, db = dw + (with_dw ? padded_cols : 0);
        dy = reinterpret_cast<T*>(db + (with_db ? padded_cols : 0));
        x = reinterpret_cast<S*>(dy + cached);
    }
};

// Each thread clears, adds to and copies only its own columns of these sums.
template <int V>
__device__ __forceinline__ void clear(float* sums, int64 cols) {
    for_each_pack<V, 0, true>(cols, [&](int, int64 at) { store_floats<V>(sums + at, {}); });
}

template <int V>
__device__ __forceinline__ void copy(const float* sums, float* to, int64 cols) {
    for_each_pack<V, 0, true>(cols, [&](int, int64 at) { Pack<float, V>::load(sums + at).store(to + at); });
}

template <int V>
__device__ __forceinline__ void add_to(float* sums, const float (&values)[V]) {
    float sum[V];
    load_floats<V>(sums, sum);
#pragma unroll
    for (int j = 0; j < V; j++) sum[j] += values[j];
    store_floats<V>(sums, sum);
}

// dx = (g - x_hat * mean(g * x_hat) - mean(g)) * rstd, with g = dy * weight, x_hat = (x - mean) * rstd; without CENTERED
// mean(g) is left out. dw, db (or null): sums of dy * x_hat and of dy over the block's rows, [blocks, cols].
template <bool CENTERED, int V, int K, bool BLOCK, typename Grad, typename Source, typename Out>
__device__ __forceinline__ void backward(Grad dy, Source x, ColumnAffine affine, const float* means,
                                         const float* rstds, Out out, float* dw, float* db, int64 rows, int64 cols,
                                         int64 cached) {
    using Threads = RowThreads<BLOCK>;
    SharedRows<typename Source::Stored, typename Grad::Stored> cache(dw, db, cols, cached);
    if (K == 0 && dw) clear<V>(cache.dw, cols);
    if (K == 0 && db) clear<V>(cache.db, cols);
    float g[K ? K : 1][V], x_hat[K ? K : 1][V], dws[K ? K : 1][V] = {}, dbs[K ? K : 1][V] = {};
    for (int64 row = Threads::index(); row < rows; row += (int64)gridDim.x * Threads::per_block()) {
        float mean = CENTERED ? means[row] : 0.0f, rstd = rstds[row];
        auto read = [&](int k, int64 at, bool reload) {
            bool in_cache = K == 0 && at < cached;
            if (reload && in_cache) {
                load_floats<V>(cache.dy + at, g[k]), load_floats<V>(cache.x + at, x_hat[k]);
            } else if (reload) {
                dy.reload(g[k], row * cols + at), x.reload(x_hat[k], row * cols + at);
            } else {
                dy.load(g[k], row * cols + at), x.load(x_hat[k], row * cols + at);
            }
            if (in_cache && !reload) store_floats<V>(cache.dy + at, g[k]), store_floats<V>(cache.x + at, x_hat[k]);
#pragma unroll
            for (int j = 0; j < V; j++) x_hat[k][j] = (x_hat[k][j] - mean) * rstd;
        };
        BlockedReduction<AddSum2, Sum2, K == 0> mine;
        for_each_pack<V, K, BLOCK>(cols, [&](int k, int64 at) {
            read(k, at, false);
#pragma unroll
            for (int j = 0; j < V; j++) {
                dws[k][j] = g[k][j] * x_hat[k][j] + (K > 0 ? dws[k][j] : 0.0f);
                if (CENTERED) dbs[k][j] = g[k][j] + (K > 0 ? dbs[k][j] : 0.0f);
            }
            if (K == 0 && dw) add_to<V>(cache.dw + at, dws[k]);
            if (K == 0 && db) add_to<V>(cache.db + at, dbs[k]);
            affine.scale(g[k], row, at);
            Sum2 partial = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < V; j++) {
                partial.a += g[k][j] * x_hat[k][j];
                if (CENTERED) partial.b += g[k][j];
            }
            mine.add(partial);
        });
        Sum2 sums = Threads::template reduce<AddSum2>(mine.total());
        float mean_g_xhat = sums.a / cols, mean_g = sums.b / cols;
        for_each_pack<V, K, BLOCK>(cols, [&](int k, int64 at) {
            if (K == 0) {
                read(k, at, true);
                affine.scale(g[k], row, at);
            }
#pragma unroll
            for (int j = 0; j < V; j++) g[k][j] = (g[k][j] - x_hat[k][j] * mean_g_xhat - mean_g) * rstd;
            out.store(g[k], row * cols + at);
        });
    }
    if constexpr (K > 0) {
        if (dw) store_block_sums<V, K, BLOCK>(dws, dw + blockIdx.x * cols, cols);
        if (CENTERED && db) store_block_sums<V, K, BLOCK>(dbs, db + blockIdx.x * cols, cols);
    } else {
        if (dw) copy<V>(cache.dw, dw + blockIdx.x * cols, cols);
        if (db) copy<V>(cache.db, db + blockIdx.x * cols, cols);
    }
}
