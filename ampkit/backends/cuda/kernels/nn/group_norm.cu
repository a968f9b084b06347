// group_norm: rows are groups of channels, S stored, T answered; float32 between, one rounding. How a row is shared out:
// norm.cuh. The backward needs sums over each channel of each sample, which serve the gradients of the scales, too: the
// kernel of dx finds them where shared memory keeps a row of dy and x; else another kernel does, before it.
#include "include/norm.cuh"

// A weight and a bias, or neither, for each channel: a row is one of `groups` groups of `many` channels of `spots` values.
struct Channels {
    const float *weight, *bias;
    unsigned groups, many, spots;

    template <int V, typename F>
    __device__ __forceinline__ void each(int64 row, int64 at, F f) const {
        unsigned channel = unsigned(row) % groups * many + unsigned(at) / spots, spot = unsigned(at) % spots;
#pragma unroll
        for (int j = 0; j < V; j++) {
            f(j, channel);
            if (++spot == spots) spot = 0, channel++;
        }
    }
    template <int V>
    __device__ __forceinline__ void scale(float (&v)[V], int64 row, int64 at) const {
        if (weight) each<V>(row, at, [&](int j, unsigned channel) { v[j] *= weight[channel]; });
    }
    template <int V>
    __device__ __forceinline__ void shift(float (&v)[V], int64 row, int64 at) const {
        if (bias) each<V>(row, at, [&](int j, unsigned channel) { v[j] += bias[channel]; });
    }
};

template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? K ? MOST_THREADS : MOST_KEPT : 32 * WARPS) group_norm_forward(
    const S* x, const float* weight, const float* bias, T* out, float* mean, float* rstd, int64 rows, int64 cols,
    int64 kept, float eps, int groups, int many, int spots) {
    Channels scales = {weight, bias, unsigned(groups), unsigned(many), unsigned(spots)};
    forward<true, T, V, K, BLOCK>(Rows<S>{x}, scales, out, mean, rstd, rows, cols, kept, eps);
}

// Sums of dy * hat and of dy over the values of a channel that are one lane's.
template <typename S, typename T>
__device__ __forceinline__ Pair channel_sums(
    const T* dy, const S* x, int64 spots, int lane, int lanes, float middle, float scale) {
    Blocked<Pairs, Pair> mine;
    for (int64 at = lane; at < spots; at += lanes) {
        float g = to_float(dy[at]);
        mine.add({g * ((to_float(x[at]) - middle) * scale), g});
    }
    return mine.total();
}

// These sums over each channel of each sample, [samples * channels]; a block has one.
template <typename S, typename T>
__global__ void group_norm_sums(
    const T* dy, const S* x, const float* mean, const float* rstd, float* along, float* total, int many, int64 spots) {
    int64 plane = blockIdx.x, row = plane / many;
    Pair mine = channel_sums(
        dy + plane * spots, x + plane * spots, spots, threadIdx.x, blockDim.x, mean[row], rstd[row]);
    Pair sums = block_reduce<Pairs>(mine);
    if (threadIdx.x == 0) along[plane] = sums.a, total[plane] = sums.b;
}

// Leaves the sums over each channel of a row in along and total: a channel belongs to a warp, or to the block where there
// are fewer channels than warps.
template <typename S, typename T>
__device__ __forceinline__ void row_sums(
    const T* dy, const S* x, float* along, float* total, int many, int64 spots, float middle, float scale) {
    int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    bool by_warp = many >= warps;
    int lane = by_warp ? threadIdx.x & 31 : threadIdx.x, lanes = by_warp ? 32 : blockDim.x;
    for (int c = by_warp ? warp : 0; c < many; c += by_warp ? warps : 1) {
        Pair mine = channel_sums(dy + c * spots, x + c * spots, spots, lane, lanes, middle, scale);
        Pair sums = by_warp ? warp_reduce<Pairs>(mine) : block_reduce<Pairs>(mine);
        if (lane == 0) along[c] = sums.a, total[c] = sums.b;
    }
}

// dx; blocks along x have a row each, those along y a share of it. KEPT: a block has a whole row in shared memory, and finds
// the sums over its channels; else they are given.
template <typename S, typename T, int V, bool KEPT>
__global__ void __launch_bounds__(MOST_KEPT) group_norm_backward(
    const T* dy, const S* x, const float* weight, const float* mean, const float* rstd, float* along, float* total, S* dx,
    int64 cols, int groups, int many, int spots) {
    DYN_SHARED(S, held_x);
    T* held_dy = reinterpret_cast<T*>(held_x + (cols + 7) / 8 * 8);
    int64 row = blockIdx.x, first = row % groups * many;
    float middle = mean[row], scale = rstd[row];
    dy += row * cols, x += row * cols, dx += row * cols, along += row * many, total += row * many;
    if (KEPT) {
        for (int64 at = (int64)threadIdx.x * V; at < cols; at += (int64)blockDim.x * V) {
            Pack<T, V>::load(dy + at).store(held_dy + at);
            Pack<S, V>::load(x + at).store(held_x + at);
        }
        dy = held_dy, x = held_x;
        __syncthreads();
        row_sums(dy, x, along, total, many, spots, middle, scale);
        __syncthreads();  // each thread reads sums that others left
    }
    Channels scales = {weight, nullptr, unsigned(groups), unsigned(many), unsigned(spots)};
    Blocked<Pairs, Pair> mine;
    for (int64 c = threadIdx.x; c < many; c += blockDim.x) {
        float w = weight ? weight[first + c] : 1.0f;
        mine.add({w * along[c], w * total[c]});
    }
    Pair sums = block_reduce<Pairs>(mine.total());
    float slant = sums.a / cols, level = sums.b / cols;
    int64 step = (int64)gridDim.y * blockDim.x * V;
    for (int64 at = ((int64)blockIdx.y * blockDim.x + threadIdx.x) * V; at < cols; at += step) {
        float g[V], v[V];
        load_floats<V>(dy + at, g);
        load_floats<V>(x + at, v);
        scales.scale(g, row, at);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = (g[j] - (v[j] - middle) * scale * slant - level) * scale;
        store_floats<V>(dx + at, v);
    }
}

// set SHAPES = ((8, 1, false), (8, 4, false), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// entries: group_norm_forward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: group_norm_sums<S, T> for (S, T) in PAIRS
// entries: group_norm_backward<S, T, V, KEPT> for (S, T) in PAIRS, V in (1, 8), KEPT in (false, true)
