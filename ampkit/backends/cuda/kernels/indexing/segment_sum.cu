// Sums of the rows that share a key: keys are sorted together with where they stood, and a warp adds up each key's rows.
//
// The sort is by 8 bits at a time, lowest first, and keeps the order of equal keys; so rows are added in the order in
// which they stood, the same bits every time. A key outside [0, rows), or an ignored one, counts as `rows`, and its rows
// are left out.
#include "include/block.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, DIGITS = 256;
constexpr int TILE = 2048;  // keys of a block
constexpr int RUN = 64;     // rows that are added one after the other

__device__ __forceinline__ unsigned key_of(unsigned key, unsigned, int64) { return key; }  // of a later round
__device__ __forceinline__ unsigned key_of(int64 key, unsigned rows, int64 ignored) {
    return key < 0 || key >= rows || key == ignored ? rows : unsigned(key);
}
__device__ __forceinline__ unsigned key_of(int key, unsigned rows, int64 ignored) { return key_of(int64(key), rows, ignored); }

// How often each digit stands in each tile: counts [DIGITS, tiles].
template <typename I>
__global__ void segment_count(const I* keys, unsigned* counts, unsigned n, unsigned rows, int64 ignored, int shift) {
    __shared__ unsigned held[DIGITS];
    held[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * TILE + threadIdx.x; i < n && i < (blockIdx.x + 1) * TILE; i += THREADS)
        atomicAdd(&held[key_of(keys[i], rows, ignored) >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    counts[threadIdx.x * gridDim.x + blockIdx.x] = held[threadIdx.x];
}

// Each count becomes the sum of those before it. One block of 1024 threads.
__global__ void segment_scan(unsigned* counts, int n) {
    __shared__ unsigned held[1024];
    int each = (n + 1023) / 1024, first = threadIdx.x * each, end = first + each < n ? first + each : n;
    unsigned total = 0;
    for (int i = first; i < end; i++) total += counts[i];
    held[threadIdx.x] = total;
    __syncthreads();
    for (int by = 1; by < 1024; by *= 2) {
        unsigned before = threadIdx.x >= by ? held[threadIdx.x - by] : 0;
        __syncthreads();
        held[threadIdx.x] += before;
        __syncthreads();
    }
    unsigned sum = held[threadIdx.x] - total;
    for (int i = first; i < end; i++) {
        unsigned count = counts[i];
        counts[i] = sum;
        sum += count;
    }
}

// Keys, and where they stood at first (`places`; null: where they stand), in the order of one digit. A warp has
// consecutive keys; of those it looks at together, the ones with the same digit go one after the other.
template <typename I>
__global__ void segment_sort(const I* keys, const unsigned* places, const unsigned* counts, unsigned* sorted, unsigned* moved,
                             unsigned n, unsigned rows, int64 ignored, int shift) {
    __shared__ unsigned held[WARPS][DIGITS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    unsigned first = blockIdx.x * TILE + warp * (TILE / WARPS) + lane;
    for (int w = 0; w < WARPS; w++) held[w][threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < TILE / WARPS; k += 32)
        if (first + k < n) atomicAdd(&held[warp][key_of(keys[first + k], rows, ignored) >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    unsigned to = counts[threadIdx.x * gridDim.x + blockIdx.x];
    for (int w = 0; w < WARPS; w++) {
        unsigned count = held[w][threadIdx.x];
        held[w][threadIdx.x] = to;
        to += count;
    }
    __syncthreads();
    for (int k = 0; k < TILE / WARPS; k += 32) {
        unsigned i = first + k, key = i < n ? key_of(keys[i], rows, ignored) : 0, digit = key >> shift & (DIGITS - 1);
        unsigned same = __ballot_sync(ALL_LANES, i < n);
        for (int bit = 0; bit < 8; bit++) {
            unsigned set = __ballot_sync(ALL_LANES, digit >> bit & 1);
            same &= digit >> bit & 1 ? set : ~set;
        }
        unsigned before = __popc(same & ((1u << lane) - 1)), start = held[warp][digit];
        __syncwarp();
        if (i < n) {
            sorted[start + before] = key;
            moved[start + before] = places ? places[i] : i;
            if (before == 0) held[warp][digit] = start + __popc(same);
        }
        __syncwarp();
    }
}

// last[key]: the greatest i + 1 of the keys[i] that are it, 0 before; one outside [0, rows) is nobody's. Whole numbers meet
// by atomics in any order, and the greatest is the same.
template <typename I>
__global__ void segment_last(const I* keys, int* last, unsigned n, unsigned rows) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned key = key_of(keys[i], rows, -1);
        if (key < rows) atomicMax(last + key, int(i + 1));
    }
}

// starts[key]: how many of the sorted keys are smaller; for the keys from 0 to rows.
__global__ void segment_starts(const unsigned* sorted, unsigned* starts, unsigned n, unsigned rows) {
    unsigned key = blockIdx.x * blockDim.x + threadIdx.x, low = 0, high = n;
    if (key > rows) return;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (sorted[middle] < key) low = middle + 1;
        else high = middle;
    }
    starts[key] = low;
}

// The rows of values [n, width] at places[first .. end), V columns, added up.
template <int V, typename S>
__device__ __forceinline__ void add_rows(const S* values, const unsigned* places, unsigned first, unsigned end, int64 width,
                                         float (&total)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) total[j] = 0.0f;
#pragma unroll 4
    for (unsigned p = first; p < end; p++) {
        float v[V];
        load_floats<V>(values + places[p] * width, v);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] += v[j];
    }
}

template <int V, typename S>
__device__ __forceinline__ void part_of_row(const S* values, const unsigned* places, float* out, unsigned first, unsigned end,
                                            int64 width) {
    for (int64 c = (int64)threadIdx.x * V; c < width; c += THREADS * V) {
        float total[V];
        add_rows<V>(values + c, places, first, end, width, total);
        store_floats<V>(out + c, total);
    }
}

// Of keys with more than RUN rows, the sums by RUN sorted places: partial [outer, tiles, 2, width] holds for a tile that
// of the key it begins with, and that of the key it ends with. A block for each tile and outer.
template <typename S>
__global__ void segment_parts(const S* values, const unsigned* sorted, const unsigned* places, const unsigned* starts,
                              float* partial, unsigned n, unsigned rows, int64 width, bool packs) {
    unsigned first = blockIdx.x * RUN, end = first + RUN < n ? first + RUN : n;
    values += blockIdx.y * n * width;
    partial += (blockIdx.y * (int64)gridDim.x + blockIdx.x) * 2 * width;
    unsigned opens = sorted[first], closes = sorted[end - 1];
    for (int at = 0; at < 2; at++) {
        unsigned key = at ? closes : opens;
        if (key >= rows || starts[key + 1] - starts[key] <= RUN || (at && closes == opens)) continue;
        unsigned from = at ? starts[key] : first, to = at || starts[key + 1] > end ? end : starts[key + 1];
        if (packs) part_of_row<8>(values, places, partial + at * width, from, to, width);
        else part_of_row<1>(values, places, partial + at * width, from, to, width);
    }
}

// The parts of a key whose sorted places are [start, end), V columns; sums of 32 parts are parts of the sum.
template <int V>
__device__ __forceinline__ void add_parts(const float* partial, unsigned start, unsigned end, int64 width, float (&total)[V]) {
    float some[V];
#pragma unroll
    for (int j = 0; j < V; j++) total[j] = some[j] = 0.0f;
    for (unsigned tile = start / RUN; tile <= (end - 1) / RUN; tile++) {
        float v[V];
        load_floats<V>(partial + (tile * int64(2) + (tile * RUN < start)) * width, v);
        bool full = tile % 32 == 31;
#pragma unroll
        for (int j = 0; j < V; j++) {
            some[j] += v[j];
            if (full) total[j] += some[j], some[j] = 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) total[j] += some[j];
}

template <int V, typename S, typename T>
__device__ __forceinline__ void sum_of_row(const S* values, const unsigned* places, const float* partial, T* out,
                                           unsigned start, unsigned end, int64 width) {
    for (int64 c = (int64)(threadIdx.x & 31) * V; c < width; c += 32 * V) {
        float total[V];
        if (end - start <= RUN) add_rows<V>(values + c, places, start, end, width, total);
        else add_parts<V>(partial + c, start, end, width, total);
        store_floats<V>(out + c, total);
    }
}

// values [outer, n, width] -> out [outer, rows, width], a warp for each of its rows.
template <typename S, typename T>
__global__ void segment_sums(const S* values, const unsigned* places, const unsigned* starts, const float* partial, T* out,
                             unsigned n, unsigned rows, unsigned outer, int64 width, bool packs) {
    int64 row = (int64)blockIdx.x * WARPS + (threadIdx.x >> 5), beyond = row / rows, key = row % rows;
    if (beyond >= outer) return;
    unsigned start = starts[key], end = starts[key + 1];
    values += beyond * n * width;
    partial += beyond * ((n + RUN - 1) / RUN) * 2 * width;
    if (packs) sum_of_row<8>(values, places, partial, out + row * width, start, end, width);
    else sum_of_row<1>(values, places, partial, out + row * width, start, end, width);
}

// entries: segment_count<I> for I in (long long, int, unsigned)
// entries: segment_scan
// entries: segment_sort<I> for I in (long long, int, unsigned)
// entries: segment_last<I> for I in (long long, int)
// entries: segment_starts
// entries: segment_parts<S> for S in TYPES
// entries: segment_sums<S, T> for (S, T) in PAIRS
