// Running sums along the middle axis of [outer, n, inner], S stored, T answered; float32 between, one rounding. `back`:
// from the end. The order of the sums depends on the shape alone: the same bits every time.
#include "block.cuh"

constexpr int EACH = 4;  // elements side by side of a thread

// inner = 1: a block for each row, which takes EACH elements per thread at a time.
template <typename S, typename T>
__global__ void running_rows(const S* x, T* out, int64 n, bool back) {
    __shared__ float of_warp[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int64 row = blockIdx.x * n;
    float before = 0.0f;  // what lies before this round
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
        float first = before + there + (lane ? ahead : 0.0f);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int64 i = mine + j;
            if (i < n) out[row + (back ? n - 1 - i : i)] = from_float<T>(first + sums[j]);
        }
        before += whole;
        __syncthreads();  // of_warp has been read
    }
}

// A thread for each column.
template <typename S, typename T>
__global__ void running_columns(const S* x, T* out, int64 columns, int64 n, int64 inner, bool back) {
    int64 column = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    int64 at = column / inner * n * inner + column % inner;
    float total = 0.0f;
    for (int64 i = 0; i < n; i++) {
        int64 place = at + (back ? n - 1 - i : i) * inner;
        total += to_float(x[place]);
        out[place] = from_float<T>(total);
    }
}

// set BACK = PAIRS + ((float, __half), (float, __nv_bfloat16))
// entries: running_rows<S, T> for (S, T) in BACK
// entries: running_columns<S, T> for (S, T) in BACK
