// Cumulative sums along n of [outer, n, inner]: S input, T output dtype, float32 arithmetic, one rounding. reverse:
// from the end. The order of additions depends on the shape alone: the same bits every time.
#include "include/block.cuh"

constexpr int PER_THREAD = 4;  // consecutive elements of a thread

// A compensated sum: the rounding error of an addition is added to the next value (Kahan 1965, Communications of the
// ACM 8, page 40; Knuth, The Art of Computer Programming 2, section 4.2.2, theorem B), unless the sum is not finite.
struct Compensated {
    float sum = 0.0f, lost = 0.0f;

    __device__ __forceinline__ void add(float value) {
        value += lost;
        float next = sum + value, added = next - sum;
        lost = isfinite(next) ? (sum - (next - added)) + (value - added) : 0.0f;
        sum = next;
    }
    __device__ __forceinline__ float with(float more) const { return sum + (lost + more); }
};

// inner = 1: a block per row, PER_THREAD elements per thread and round, a warp scan within the round.
template <typename S, typename T>
__global__ void cumsum_rows(const S* x, T* out, int64 n, bool reverse) {
    __shared__ float warp_values[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int64 row = blockIdx.x * n;
    Compensated prefix;  // sum of the rounds before
    for (int64 start = 0; start < n; start += blockDim.x * PER_THREAD) {
        int64 begin = start + threadIdx.x * PER_THREAD;
        float sums[PER_THREAD], total = 0.0f;
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            int64 i = begin + j;
            if (i < n) total += to_float(x[row + (reverse ? n - 1 - i : i)]);
            sums[j] = total;
        }
#pragma unroll
        for (int by = 1; by < 32; by <<= 1) {
            float neighbour = __shfl_up_sync(ALL_LANES, total, by);
            if (lane >= by) total += neighbour;
        }
        float exclusive = __shfl_up_sync(ALL_LANES, total, 1), round_total = 0.0f, warp_offset = 0.0f;
        if (lane == 31) warp_values[warp] = total;
        __syncthreads();
        for (int w = 0; w < warps; w++) {
            if (w == warp) warp_offset = round_total;
            round_total += warp_values[w];
        }
        float first = warp_offset + (lane ? exclusive : 0.0f);
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            int64 i = begin + j;
            if (i < n) out[row + (reverse ? n - 1 - i : i)] = from_float<T>(prefix.with(first + sums[j]));
        }
        prefix.add(round_total);
        __syncthreads();  // warp_values has been read
    }
}

// inner > 1: a thread per column.
template <typename S, typename T>
__global__ void cumsum_columns(const S* x, T* out, int64 columns, int64 n, int64 inner, bool reverse) {
    int64 column = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    int64 at = column / inner * n * inner + column % inner;
    Compensated total;
    for (int64 i = 0; i < n; i++) {
        int64 offset = at + (reverse ? n - 1 - i : i) * inner;
        total.add(to_float(x[offset]));
        out[offset] = from_float<T>(total.with(0.0f));
    }
}

// set DTYPES = PAIRS + ((float, __half), (float, __nv_bfloat16))
// entries: cumsum_rows<S, T> for (S, T) in DTYPES
// entries: cumsum_columns<S, T> for (S, T) in DTYPES
