// Running sums along the middle axis of [outer, n, inner], S stored, T answered; float32 between, one rounding. `back`:
// from the end. The order of the sums depends on the shape alone: the same bits every time.
#include "include/block.cuh"

constexpr int EACH = 4;  // elements side by side of a thread

// A running sum of any length: what an addition rounds off goes into the next one, exactly (Kahan 1965, Communications of
// the ACM 8, page 40; the error by Knuth, The Art of Computer Programming 2, section 4.2.2, theorem B), unless the sum is
// not finite.
struct Compensated {
    float sum = 0.0f, lost = 0.0f;

    __device__ __forceinline__ void add(float value) {
        value += lost;
        float next = sum + value, back = next - sum;
        lost = isfinite(next) ? (sum - (next - back)) + (value - back) : 0.0f;
        sum = next;
    }
    __device__ __forceinline__ float with(float more) const { return sum + (lost + more); }
};

// inner = 1: a block for each row, which takes EACH elements per thread at a time.
template <typename S, typename T>
__global__ void running_rows(const S* x, T* out, int64 n, bool back) {
    __shared__ float of_warp[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int64 row = blockIdx.x * n;
    Compensated before;  // what lies before this round
    for (int64 start = 0; start < n; start += blockDim.x * EACH) {
        int64 mine = start + threadIdx.x * EACH;
        float sums[EACH], total = 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int64 i = mine + j;
            if (i < n) total += to_float(x[row + (back ? n - 1 - i : i)]);
            sums[j] = total;
        }
#pragma unroll
        for (int by = 1; by < 32; by <<= 1) {
            float left = __shfl_up_sync(ALL_LANES, total, by);
            if (lane >= by) total += left;
        }
        float ahead = __shfl_up_sync(ALL_LANES, total, 1), whole = 0.0f, there = 0.0f;
        if (lane == 31) of_warp[warp] = total;
        __syncthreads();
        for (int w = 0; w < warps; w++) {
            if (w == warp) there = whole;
            whole += of_warp[w];
        }
        float first = there + (lane ? ahead : 0.0f);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int64 i = mine + j;
            if (i < n) out[row + (back ? n - 1 - i : i)] = from_float<T>(before.with(first + sums[j]));
        }
        before.add(whole);
        __syncthreads();  // of_warp has been read
    }
}

// A thread for each column.
template <typename S, typename T>
__global__ void running_columns(const S* x, T* out, int64 columns, int64 n, int64 inner, bool back) {
    int64 column = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    int64 at = column / inner * n * inner + column % inner;
    Compensated total;
    for (int64 i = 0; i < n; i++) {
        int64 place = at + (back ? n - 1 - i : i) * inner;
        total.add(to_float(x[place]));
        out[place] = from_float<T>(total.with(0.0f));
    }
}

// set BACK = PAIRS + ((float, __half), (float, __nv_bfloat16))
// entries: running_rows<S, T> for (S, T) in BACK
// entries: running_columns<S, T> for (S, T) in BACK
