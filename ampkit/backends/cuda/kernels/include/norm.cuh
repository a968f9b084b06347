// A row of [rows, cols], normalized by its team: a warp, or a block (BLOCK).
//
// The row lies in its team's registers: V values at once, K times, one pass over memory. Of a longer row (K = 0) its block
// keeps the first `kept` columns, a multiple of 8, in shared memory, and reads the others again for each pass. A thread
// reads only what it has left there, which needs no barrier. With V = 8, cols is a multiple of 8 and rows and scales lie on
// 16-byte boundaries.
#pragma once
#include "include/block.cuh"

constexpr int WARPS = 4;  // rows at a time of a block, where a warp has one each
constexpr int MOST_THREADS = 512;  // of a block that has a row in registers
constexpr int MOST_KEPT = 1024;  // of one that keeps it in shared memory

// Two sums at once.
struct Pair {
    float a, b;
};

__device__ __forceinline__ Pair across(Pair p, int with) {
    return {__shfl_xor_sync(ALL_LANES, p.a, with), __shfl_xor_sync(ALL_LANES, p.b, with)};
}

struct Pairs {
    static __device__ __forceinline__ Pair combine(Pair p, Pair q) { return {p.a + q.a, p.b + q.b}; }
    template <typename T>
    static __device__ __forceinline__ Pair nothing() { return {0.0f, 0.0f}; }
};

template <bool BLOCK>
struct Team {
    static __device__ __forceinline__ int lane() { return BLOCK ? threadIdx.x : threadIdx.x & 31; }
    static __device__ __forceinline__ int lanes() { return BLOCK ? blockDim.x : 32; }
    static __device__ __forceinline__ int of_block() { return BLOCK ? 1 : blockDim.x >> 5; }
    static __device__ __forceinline__ int64 number() {
        return (int64)blockIdx.x * of_block() + (BLOCK ? 0 : threadIdx.x >> 5);
    }
    template <typename Op, typename T>
    static __device__ __forceinline__ T reduce(T value) {
        if constexpr (BLOCK) return block_reduce<Op>(value);
        else return warp_reduce<Op>(value);
    }
};

// f(k, at) for each V columns from `at` on that are this thread's; in registers they are number k.
template <int V, int K, bool BLOCK, typename F>
__device__ __forceinline__ void each(int64 cols, F f) {
    int64 step = (int64)Team<BLOCK>::lanes() * V, at = (int64)Team<BLOCK>::lane() * V;
    if constexpr (K == 0) {
        for (; at < cols; at += step) f(0, at);
    } else {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (at + k * step < cols) f(k, at + k * step);
    }
}

// What is normalized as it lies: x [rows, cols].
template <typename S>
struct Rows {
    using Stored = S;
    const S* x;
    template <int V>
    __device__ __forceinline__ void load(float (&v)[V], int64 at) const { load_floats<V>(x + at, v); }
    template <int V>
    __device__ __forceinline__ void again(float (&v)[V], int64 at) const { load_floats<V>(x + at, v); }
};

// Its gradient as it will lie: dx [rows, cols].
template <typename S>
struct Slopes {
    S* dx;
    template <int V>
    __device__ __forceinline__ void store(float (&v)[V], int64 at) const { store_floats<V>(dx + at, v); }
};

// out = (x - mean) / deviation, scaled and shifted; where not CENTRED, the mean is taken for 0. Statistics in two passes.
// `x` is asked to load each value once, and again for each further pass, unless shared memory has it as Source::Stored.
template <bool CENTRED, typename T, int V, int K, bool BLOCK, typename Source, typename Scales>
__device__ __forceinline__ void forward(
    Source x, Scales scales, T* out, float* means, float* rstds, int64 rows, int64 cols, int64 kept, float eps) {
    using Mine = Team<BLOCK>;
    int64 row = Mine::number();
    if (row >= rows) return;  // whole teams: never a part of a block that meets
    int64 start = row * cols;
    float v[K ? K : 1][V];
    DYN_SHARED(typename Source::Stored, held);
    auto load = [&](int k, int64 at) {
        x.load(v[k], start + at);
        if (K == 0 && at < kept) store_floats<V>(held + at, v[k]);
    };
    auto again = [&](int k, int64 at) {
        if (K > 0) return;
        if (at < kept) load_floats<V>(held + at, v[k]);
        else x.again(v[k], start + at);
    };
    Blocked<Sum, float, K == 0> sum, squares;
    if (CENTRED || K > 0)
        each<V, K, BLOCK>(cols, [&](int k, int64 at) {
            load(k, at);
            float some = 0.0f;
#pragma unroll
            for (int j = 0; j < V; j++) some += v[k][j];
            sum.add(some);
        });
    float mean = CENTRED ? Mine::template reduce<Sum>(sum.total()) / cols : 0.0f;
    each<V, K, BLOCK>(cols, [&](int k, int64 at) {
        if (CENTRED || K > 0) again(k, at);
        else load(k, at);
        float some = 0.0f;
#pragma unroll
        for (int j = 0; j < V; j++) some += (v[k][j] - mean) * (v[k][j] - mean);
        squares.add(some);
    });
    float rstd = 1.0f / sqrtf(Mine::template reduce<Sum>(squares.total()) / cols + eps);
    each<V, K, BLOCK>(cols, [&](int k, int64 at) {
        again(k, at);
#pragma unroll
        for (int j = 0; j < V; j++) v[k][j] = (v[k][j] - mean) * rstd;
        scales.scale(v[k], row, at);
        scales.shift(v[k], row, at);
        store_floats<V>(out + start + at, v[k]);
    });
    if (Mine::lane() == 0) {
        if (CENTRED) means[row] = mean;
        rstds[row] = rstd;
    }
}

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

// What a block keeps with K = 0: sums for dw and for db, where these are asked for, of all columns, and dy and x of a row,
// [kept] each.
template <typename S, typename T>
struct Kept {
    float *dw, *db;
    T* dy;
    S* x;

    __device__ __forceinline__ Kept(bool dw_asked, bool db_asked, int64 cols, int64 kept) {
        DYN_SHARED(float, shared);
        int64 wide = (cols + 7) / 8 * 8;
        dw = shared, db = dw + (dw_asked ? wide : 0);
        dy = reinterpret_cast<T*>(db + (db_asked ? wide : 0));
        x = reinterpret_cast<S*>(dy + kept);
    }
};

// Of those sums each thread clears, adds to and copies the columns of a row that are its own.
template <int V>
__device__ __forceinline__ void clear(float* sums, int64 cols) {
    each<V, 0, true>(cols, [&](int, int64 at) { store_floats<V>(sums + at, {}); });
}

template <int V>
__device__ __forceinline__ void copy(const float* sums, float* to, int64 cols) {
    each<V, 0, true>(cols, [&](int, int64 at) { Pack<float, V>::load(sums + at).store(to + at); });
}

template <int V>
__device__ __forceinline__ void add_to(float* sums, const float (&more)[V]) {
    float sum[V];
    load_floats<V>(sums, sum);
#pragma unroll
    for (int j = 0; j < V; j++) sum[j] += more[j];
    store_floats<V>(sums, sum);
}

// `out` takes dx = (g - hat * mean(g * hat) - mean(g)) * rstd, with g = dy * weight and hat = (x - mean) * rstd; where not
// CENTRED, without mean(g). dw and db, or null: sums of dy * hat and dy over the rows of a block, [blocks, cols].
template <bool CENTRED, typename S, typename T, int V, int K, bool BLOCK, typename Out>
__device__ __forceinline__ void backward(
    const T* dy, const S* x, Columns scales, const float* means, const float* rstds, Out out, float* dw, float* db,
    int64 rows, int64 cols, int64 kept) {
    using Mine = Team<BLOCK>;
    Kept<S, T> held(dw, db, cols, kept);
    if (K == 0 && dw) clear<V>(held.dw, cols);
    if (K == 0 && db) clear<V>(held.db, cols);
    float g[K ? K : 1][V], hat[K ? K : 1][V], dws[K ? K : 1][V] = {}, dbs[K ? K : 1][V] = {};
    for (int64 row = Mine::number(); row < rows; row += (int64)gridDim.x * Mine::of_block()) {
        const T* slope = dy + row * cols;
        const S* from = x + row * cols;
        float mean = CENTRED ? means[row] : 0.0f, rstd = rstds[row];
        auto read = [&](int k, int64 at, bool again) {
            bool here = K == 0 && at < kept;
            load_floats<V>(again && here ? held.dy + at : slope + at, g[k]);
            load_floats<V>(again && here ? held.x + at : from + at, hat[k]);
            if (here && !again) store_floats<V>(held.dy + at, g[k]), store_floats<V>(held.x + at, hat[k]);
#pragma unroll
            for (int j = 0; j < V; j++) hat[k][j] = (hat[k][j] - mean) * rstd;
        };
        Blocked<Pairs, Pair, K == 0> mine;
        each<V, K, BLOCK>(cols, [&](int k, int64 at) {
            read(k, at, false);
#pragma unroll
            for (int j = 0; j < V; j++) {
                dws[k][j] = g[k][j] * hat[k][j] + (K > 0 ? dws[k][j] : 0.0f);
                if (CENTRED) dbs[k][j] = g[k][j] + (K > 0 ? dbs[k][j] : 0.0f);
            }
            if (K == 0 && dw) add_to<V>(held.dw + at, dws[k]);
            if (K == 0 && db) add_to<V>(held.db + at, dbs[k]);
            scales.scale(g[k], row, at);
            Pair some = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < V; j++) {
                some.a += g[k][j] * hat[k][j];
                if (CENTRED) some.b += g[k][j];
            }
            mine.add(some);
        });
        Pair sums = Mine::template reduce<Pairs>(mine.total());
        float along = sums.a / cols, level = sums.b / cols;
        each<V, K, BLOCK>(cols, [&](int k, int64 at) {
            if (K == 0) {
                read(k, at, true);
                scales.scale(g[k], row, at);
            }
#pragma unroll
            for (int j = 0; j < V; j++) g[k][j] = (g[k][j] - hat[k][j] * along - level) * rstd;
            out.store(g[k], row * cols + at);
        });
    }
    if constexpr (K > 0) {
        if (dw) leave<V, K, BLOCK>(dws, dw + blockIdx.x * cols, cols);
        if (CENTRED && db) leave<V, K, BLOCK>(dbs, db + blockIdx.x * cols, cols);
    } else {
        if (dw) copy<V>(held.dw, dw + blockIdx.x * cols, cols);
        if (db) copy<V>(held.db, db + blockIdx.x * cols, cols);
    }
}
