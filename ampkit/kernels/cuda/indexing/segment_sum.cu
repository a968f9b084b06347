// Sums of rows by key: the keys are sorted with their positions, and a warp adds the rows of each key.
//
// A stable radix sort, 8 bits per pass, keeps the order of equal keys, so rows are added in their original order: the
// same bits every time. Keys outside [0, rows) and the ignored key sort last, as `rows`, and are left out.
#include "include/block.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, DIGITS = 256;
constexpr int TILE = 2048;  // keys per block
constexpr int RUN = 64;     // rows added sequentially

__device__ __forceinline__ unsigned key_of(unsigned key, unsigned, int64) { return key; }  // already mapped by the first pass
__device__ __forceinline__ unsigned key_of(int64 key, unsigned rows, int64 ignored) {
    return key < 0 || key >= rows || key == ignored ? rows : unsigned(key);
}
__device__ __forceinline__ unsigned key_of(int key, unsigned rows, int64 ignored) {
    return key_of(int64(key), rows, ignored);
}

// counts [DIGITS, tiles]: histogram of the current digit in each tile of keys.
template <typename I>
__global__ void segment_count(const I* keys, unsigned* counts, unsigned n, unsigned rows, int64 ignored, int shift) {
    __shared__ unsigned shared_counts[DIGITS];
    shared_counts[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * TILE + threadIdx.x; i < n && i < (blockIdx.x + 1) * TILE; i += THREADS)
        atomicAdd(&shared_counts[key_of(keys[i], rows, ignored) >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    counts[threadIdx.x * gridDim.x + blockIdx.x] = shared_counts[threadIdx.x];
}

// counts becomes its exclusive prefix sum. One block of 1024 threads.
__global__ void segment_scan(unsigned* counts, int n) {
    __shared__ unsigned shared_counts[1024];
    int each = (n + 1023) / 1024, first = threadIdx.x * each, end = first + each < n ? first + each : n;
    unsigned total = 0;
    for (int i = first; i < end; i++) total += counts[i];
    shared_counts[threadIdx.x] = total;
    __syncthreads();
    for (int by = 1; by < 1024; by *= 2) {
        unsigned before = threadIdx.x >= by ? shared_counts[threadIdx.x - by] : 0;
        __syncthreads();
        shared_counts[threadIdx.x] += before;
        __syncthreads();
    }
    unsigned sum = shared_counts[threadIdx.x] - total;
    for (int i = first; i < end; i++) {
        unsigned count = counts[i];
        counts[i] = sum;
        sum += count;
    }
}

// One stable pass of the radix sort: keys and positions (null: 0, 1, ...) scattered by the current digit. A warp has
// consecutive keys; lanes with equal digits are ranked by ballot.
template <typename I>
__global__ void segment_sort(const I* keys, const unsigned* positions, const unsigned* counts, unsigned* sorted,
                             unsigned* sorted_positions, unsigned n, unsigned rows, int64 ignored, int shift) {
    __shared__ unsigned shared_counts[WARPS][DIGITS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    unsigned first = blockIdx.x * TILE + warp * (TILE / WARPS) + lane;
    for (int w = 0; w < WARPS; w++) shared_counts[w][threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < TILE / WARPS; k += 32)
        if (first + k < n)
            atomicAdd(&shared_counts[warp][key_of(keys[first + k], rows, ignored) >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    unsigned to = counts[threadIdx.x * gridDim.x + blockIdx.x];
    for (int w = 0; w < WARPS; w++) {
        unsigned count = shared_counts[w][threadIdx.x];
        shared_counts[w][threadIdx.x] = to;
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
        unsigned before = __popc(same & ((1u << lane) - 1)), start = shared_counts[warp][digit];
        __syncwarp();
        if (i < n) {
            sorted[start + before] = key;
            sorted_positions[start + before] = positions ? positions[i] : i;
            if (before == 0) shared_counts[warp][digit] = start + __popc(same);
        }
        __syncwarp();
    }
}

// last[key] = greatest i + 1 with keys[i] == key; last is 0 before. atomicMax on integers: independent of order.
template <typename I>
__global__ void segment_last(const I* keys, int* last, unsigned n, unsigned rows) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned key = key_of(keys[i], rows, -1);
        if (key < rows) atomicMax(last + key, int(i + 1));
    }
}

// starts[key] = number of sorted keys below key, for key in [0, rows]; binary search, a thread per key.
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

// Sum of the rows at positions[first .. end) of values [n, width], V columns.
template <int V, typename S>
__device__ __forceinline__ void sum_rows(const S* values, const unsigned* positions, unsigned first, unsigned end,
                                         int64 width, float (&total)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) total[j] = 0.0f;
#pragma unroll 4
    for (unsigned p = first; p < end; p++) {
        float v[V];
        load_floats<V>(values + positions[p] * width, v);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] += v[j];
    }
}

template <int V, typename S>
__device__ __forceinline__ void store_partial(const S* values, const unsigned* positions, float* out, unsigned first,
                                              unsigned end, int64 width) {
    for (int64 c = (int64)threadIdx.x * V; c < width; c += THREADS * V) {
        float total[V];
        sum_rows<V>(values + c, positions, first, end, width, total);
        store_floats<V>(out + c, total);
    }
}

// For keys with more than RUN rows: sums per tile of RUN sorted positions. partial [outer, tiles, 2, width] holds the
// sum of the tile's first key and of its last. Grid: tiles x outer.
template <typename S>
__global__ void segment_partials(const S* values, const unsigned* sorted, const unsigned* positions,
                                 const unsigned* starts, float* partial, unsigned n, unsigned rows, int64 width,
                                 bool vectorized) {
    unsigned first = blockIdx.x * RUN, end = first + RUN < n ? first + RUN : n;
    values += blockIdx.y * n * width;
    partial += (blockIdx.y * (int64)gridDim.x + blockIdx.x) * 2 * width;
    unsigned first_key = sorted[first], last_key = sorted[end - 1];
    for (int at = 0; at < 2; at++) {
        unsigned key = at ? last_key : first_key;
        if (key >= rows || starts[key + 1] - starts[key] <= RUN || (at && last_key == first_key)) continue;
        unsigned from = at ? starts[key] : first, to = at || starts[key + 1] > end ? end : starts[key + 1];
        if (vectorized) store_partial<8>(values, positions, partial + at * width, from, to, width);
        else store_partial<1>(values, positions, partial + at * width, from, to, width);
    }
}

// Sum of the partials of a key whose sorted positions are [start, end), V columns; 32 partials form a partial of the
// sum.
template <int V>
__device__ __forceinline__ void sum_partials(const float* partial, unsigned start, unsigned end, int64 width,
                                             float (&total)[V]) {
    float part[V];
#pragma unroll
    for (int j = 0; j < V; j++) total[j] = part[j] = 0.0f;
    for (unsigned tile = start / RUN; tile <= (end - 1) / RUN; tile++) {
        float v[V];
        load_floats<V>(partial + (tile * int64(2) + (tile * RUN < start)) * width, v);
        bool full = tile % 32 == 31;
#pragma unroll
        for (int j = 0; j < V; j++) {
            part[j] += v[j];
            if (full) total[j] += part[j], part[j] = 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) total[j] += part[j];
}

template <int V, typename S, typename T>
__device__ __forceinline__ void store_sum(const S* values, const unsigned* positions, const float* partial, T* out,
                                          unsigned start, unsigned end, int64 width) {
    for (int64 c = (int64)(threadIdx.x & 31) * V; c < width; c += 32 * V) {
        float total[V];
        if (end - start <= RUN) sum_rows<V>(values + c, positions, start, end, width, total);
        else sum_partials<V>(partial + c, start, end, width, total);
        store_floats<V>(out + c, total);
    }
}

// out [outer, rows, width] = sum of the rows of values [outer, n, width] of each key; a warp per output row.
template <typename S, typename T>
__global__ void segment_sums(const S* values, const unsigned* positions, const unsigned* starts, const float* partial,
                             T* out, unsigned n, unsigned rows, unsigned outer, int64 width, bool vectorized) {
    int64 row = (int64)blockIdx.x * WARPS + (threadIdx.x >> 5), outer_index = row / rows, key = row % rows;
    if (outer_index >= outer) return;
    unsigned start = starts[key], end = starts[key + 1];
    values += outer_index * n * width;
    partial += outer_index * ((n + RUN - 1) / RUN) * 2 * width;
    if (vectorized) store_sum<8>(values, positions, partial, out + row * width, start, end, width);
    else store_sum<1>(values, positions, partial, out + row * width, start, end, width);
}

// entries: segment_count<I> for I in (long long, int, unsigned)
// entries: segment_scan
// entries: segment_sort<I> for I in (long long, int, unsigned)
// entries: segment_last<I> for I in (long long, int)
// entries: segment_starts
// entries: segment_partials<S> for S in TYPES
// entries: segment_sums<S, T> for (S, T) in PAIRS
