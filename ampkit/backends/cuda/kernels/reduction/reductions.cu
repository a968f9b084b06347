// Reductions of [outer, n, inner] over the axis in the middle, S stored, T answered; float32 between, one rounding.
//
// The n elements of a row or a column are shared out in parts, which leave [outer, parts, inner] for the next launch. How
// they are shared out depends on the shape alone, and partial results meet in a fixed order: the same bits every time.
#include "include/block.cuh"

// What is made of an element, of which `centre` is subtracted where there is one; and how two of them meet.
struct Add : Sum {
    static __device__ __forceinline__ float map(float x, float) { return x; }
};
struct AddSquares : Sum {
    static __device__ __forceinline__ float map(float x, float) { return x * x; }
};
struct AddSizes : Sum {
    static __device__ __forceinline__ float map(float x, float) { return fabsf(x); }
};
struct AddGaps : Sum {
    static __device__ __forceinline__ float map(float x, float centre) { return (x - centre) * (x - centre); }
};
struct AddExps : Sum {  // centre: the largest; of an infinite one nothing is subtracted
    static __device__ __forceinline__ float map(float x, float centre) { return expf(fabsf(centre) == INFINITY_F ? x : x - centre); }
};
struct AddTruths : Sum {
    static __device__ __forceinline__ float map(float x, float) { return float(x != 0.0f); }
};
struct AddUntruths : Sum {
    static __device__ __forceinline__ float map(float x, float) { return float(x == 0.0f); }
};
struct Multiply : Product {
    static __device__ __forceinline__ float map(float x, float) { return x; }
};
struct Largest : Max {
    static __device__ __forceinline__ float map(float x, float) { return x; }
};
struct LargestSize : Max {
    static __device__ __forceinline__ float map(float x, float) { return fabsf(x); }
};
struct Smallest : Min {
    static __device__ __forceinline__ float map(float x, float) { return x; }
};

template <typename T>
__device__ __forceinline__ T answer(float total, float divisor, bool root) {
    total /= divisor;
    return from_float<T>(root ? sqrtf(total) : total);
}

// x[first], x[first + step], ... below `end`, V values at a time, each place in the V with a total of its own.
template <typename Op, int V, typename S>
__device__ __forceinline__ void along(const S* x, int64 first, int64 end, int64 step, float (&centre)[V], float (&total)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) total[j] = Op::template nothing<float>();
    for (int64 at = first; at < end; at += step) {
        float v[V];
        load_floats<V>(x + at, v);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] = Op::combine(total[j], Op::map(v[j], centre[j]));
    }
}

template <typename Op, int V, typename S>
__device__ __forceinline__ float of_row(const S* x, int64 first, int64 end, int64 step, float centre) {
    float centres[V], total[V];
#pragma unroll
    for (int j = 0; j < V; j++) centres[j] = centre;
    along<Op, V>(x, first, end, step, centres, total);
#pragma unroll
    for (int half = V / 2; half; half /= 2)
#pragma unroll
        for (int j = 0; j < half; j++) total[j] = Op::combine(total[j], total[j + half]);
    return total[0];
}

// inner = 1. A warp for each of the rows, or, if `wide`, a block for each part of `each` elements of a row.
template <typename Op, typename S, typename T>
__global__ void reduce_rows(const S* x, T* out, const float* centres, int64 rows, int64 n, int64 each, int64 parts,
                            float divisor, bool root, bool packs, bool wide) {
    int threads = wide ? blockDim.x : 32, mine = threadIdx.x % threads;
    int64 place = wide ? (int64)blockIdx.x : (int64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int64 row = place / parts, start = place % parts * each;
    if (row >= rows) return;
    int64 end = start + each < n ? start + each : n;
    float centre = centres ? centres[row] : 0.0f;
    float total = packs ? of_row<Op, 8>(x + row * n, start + mine * 8, end, threads * 8, centre)
                        : of_row<Op, 1>(x + row * n, start + mine, end, threads, centre);
    total = wide ? block_reduce<Op>(total) : warp_reduce<Op>(total);
    if (mine == 0) out[place] = answer<T>(total, divisor, root);
}

// V columns of one outer each: `down` threads share a part of them, `across` such groups lie side by side in a block.
template <typename Op, int V, typename S, typename T>
__device__ __forceinline__ void columns(const S* x, T* out, const float* centres, int64 outer, int64 n, int64 inner,
                                        int64 each, int64 parts, int down, float divisor, bool root, float* held) {
    int across = blockDim.x / down, lane = threadIdx.x % across, depth = threadIdx.x / across;
    int64 units = inner / V, unit = blockIdx.x / parts * across + lane, part = blockIdx.x % parts;
    int64 beyond = unit / units, column = unit % units * V;
    bool here = beyond < outer;
    float centre[V], total[V];
    int64 end = (part + 1) * each < n ? (part + 1) * each : n;
    for (int j = 0; j < V; j++) {
        centre[j] = centres && here ? centres[beyond * inner + column + j] : 0.0f;
        total[j] = Op::template nothing<float>();
    }
    if (here) along<Op, V>(x + beyond * n * inner + column, (part * each + depth) * inner, end * inner, down * inner, centre, total);
    for (int half = down / 2; half; half /= 2) {
        __syncthreads();
        for (int j = 0; j < V; j++) held[threadIdx.x * V + j] = total[j];
        __syncthreads();
        if (depth < half)
            for (int j = 0; j < V; j++) total[j] = Op::combine(total[j], held[(threadIdx.x + half * across) * V + j]);
    }
    if (here && depth == 0)
        for (int j = 0; j < V; j++) out[(beyond * parts + part) * inner + column + j] = answer<T>(total[j], divisor, root);
}

template <typename Op, typename S, typename T>
__global__ void reduce_columns(const S* x, T* out, const float* centres, int64 outer, int64 n, int64 inner, int64 each,
                               int64 parts, int down, float divisor, bool root, bool packs) {
    __shared__ float held[256 * 8];
    if (packs) columns<Op, 8>(x, out, centres, outer, n, inner, each, parts, down, divisor, root, held);
    else columns<Op, 1>(x, out, centres, outer, n, inner, each, parts, down, divisor, root, held);
}

// Where in each row the best value stands, the first of equal ones; a block for a row.
template <typename Op, typename S>
__global__ void best_of_rows(const S* x, int64* out, int64 n) {
    Place mine = Op::template nothing<Place>();
    for (int64 at = threadIdx.x; at < n; at += blockDim.x) mine = Op::combine(mine, {to_float(x[blockIdx.x * n + at]), at});
    mine = block_reduce<Op>(mine);
    if (threadIdx.x == 0) out[blockIdx.x] = mine.index;
}

// set BACK = PAIRS + ((float, __half), (float, __nv_bfloat16))
// set READ = TYPES + (bool)
// entries: reduce_rows<Op, S, T> for Op in (Add, Multiply, Largest, Smallest), (S, T) in BACK
// entries: reduce_rows<Op, S, T> for Op in (AddSquares, AddSizes, AddGaps, LargestSize), (S, T) in PAIRS
// entries: reduce_rows<Op, S, float> for Op in (AddTruths, AddUntruths), S in READ
// entries: reduce_rows<AddExps, S, float> for S in TYPES
// entries: reduce_columns<Op, S, T> for Op in (Add, Multiply, Largest, Smallest), (S, T) in BACK
// entries: reduce_columns<Op, S, T> for Op in (AddSquares, AddSizes, AddGaps, LargestSize), (S, T) in PAIRS
// entries: reduce_columns<Op, S, float> for Op in (AddTruths, AddUntruths), S in READ
// entries: reduce_columns<AddExps, S, float> for S in TYPES
// entries: best_of_rows<Op, S> for Op in (ArgMax, ArgMin), S in TYPES
