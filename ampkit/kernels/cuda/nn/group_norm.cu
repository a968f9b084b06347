// group_norm: a row is one group of channels of one sample, S input, T output dtype, float32 arithmetic, one rounding.
// norm.cuh has the forward. The backward needs sums per channel and sample, from which the gradients of weight and bias
// follow too: the dx kernel computes them where shared memory holds the row of dy and x, else group_norm_channel_sums
// does, before it.
#include "include/norm.cuh"

// Weight and bias per channel, either null. A row is one of `groups` groups of `group_channels` channels of `spatial`
// values.
struct ChannelAffine {
    const float *weight, *bias;
    unsigned groups, group_channels, spatial;

    template <int V, typename F>
    __device__ __forceinline__ void for_each_pack(int64 row, int64 at, F f) const {
        unsigned channel = unsigned(row) % groups * group_channels + unsigned(at) / spatial,
            position = unsigned(at) % spatial;
#pragma unroll
        for (int j = 0; j < V; j++) {
            f(j, channel);
            if (++position == spatial) position = 0, channel++;
        }
    }
    template <int V>
    __device__ __forceinline__ void scale(float (&v)[V], int64 row, int64 at) const {
        if (weight) for_each_pack<V>(row, at, [&](int j, unsigned channel) { v[j] *= weight[channel]; });
    }
    template <int V>
    __device__ __forceinline__ void shift(float (&v)[V], int64 row, int64 at) const {
        if (bias) for_each_pack<V>(row, at, [&](int j, unsigned channel) { v[j] += bias[channel]; });
    }
};

// out = (x - mean) * rstd * weight + bias; a warp or a block per row.
template <typename S, typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(MAX_BLOCK<K, BLOCK>) group_norm_forward(
    const S* x, const float* weight, const float* bias, T* out, float* mean, float* rstd, int64 rows, int64 cols,
    int64 cached, float eps, int groups, int group_channels, int spatial) {
    ChannelAffine affine = {weight, bias, unsigned(groups), unsigned(group_channels), unsigned(spatial)};
    forward<true, V, K, BLOCK>(ArrayInput<S>{x}, affine, ArrayOutput<T>{out}, mean, rstd, rows, cols, cached, eps);
}

// This lane's share of sum(dy * x_hat) and sum(dy) of one channel.
template <typename S, typename T>
__device__ __forceinline__ Sum2 channel_sums(const T* dy, const S* x, int64 spatial, int lane, int lanes,
                                             float row_mean, float scale) {
    BlockedReduction<AddSum2, Sum2> mine;
    for (int64 at = lane; at < spatial; at += lanes) {
        float g = to_float(dy[at]);
        mine.add({g * ((to_float(x[at]) - row_mean) * scale), g});
    }
    return mine.total();
}

// dot, sum [samples * channels]: sum(dy * x_hat) and sum(dy) of each channel; a block each.
template <typename S, typename T>
__global__ void group_norm_channel_sums(const T* dy, const S* x, const float* mean, const float* rstd, float* dot,
                                        float* sum, int group_channels, int64 spatial) {
    int64 plane = blockIdx.x, row = plane / group_channels;
    Sum2 mine = channel_sums(dy + plane * spatial, x + plane * spatial, spatial, threadIdx.x, blockDim.x, mean[row],
                             rstd[row]);
    Sum2 sums = block_reduce<AddSum2>(mine);
    if (threadIdx.x == 0) dot[plane] = sums.a, sum[plane] = sums.b;
}

// dot, sum [group_channels] of one row: a warp per channel, or the block if there are fewer channels than warps.
template <typename S, typename T>
__device__ __forceinline__ void row_sums(const T* dy, const S* x, float* dot, float* sum, int group_channels,
                                         int64 spatial, float row_mean, float scale) {
    int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    bool by_warp = group_channels >= warps;
    int lane = by_warp ? threadIdx.x & 31 : threadIdx.x, lanes = by_warp ? 32 : blockDim.x;
    for (int c = by_warp ? warp : 0; c < group_channels; c += by_warp ? warps : 1) {
        Sum2 mine = channel_sums(dy + c * spatial, x + c * spatial, spatial, lane, lanes, row_mean, scale);
        Sum2 sums = by_warp ? warp_reduce<AddSum2>(mine) : block_reduce<AddSum2>(mine);
        if (lane == 0) dot[c] = sums.a, sum[c] = sums.b;
    }
}

// dx; blockIdx.x is the row, blockIdx.y a share of it. CACHED: the block holds the whole row in shared memory and
// computes dot and sum of its channels; else they are inputs.
template <typename S, typename T, int V, bool CACHED>
__global__ void __launch_bounds__(MAX_THREADS_CACHED) group_norm_backward(
    const T* dy, const S* x, const float* weight, const float* mean, const float* rstd, float* dot, float* sum, S* dx,
    int64 cols, int groups, int group_channels, int spatial) {
    DYN_SHARED(S, cache_x);
    T* cache_dy = reinterpret_cast<T*>(cache_x + (cols + 7) / 8 * 8);
    int64 row = blockIdx.x, first = row % groups * group_channels;
    float row_mean = mean[row], scale = rstd[row];
    dy += row * cols, x += row * cols, dx += row * cols, dot += row * group_channels, sum += row * group_channels;
    if (CACHED) {
        for (int64 at = (int64)threadIdx.x * V; at < cols; at += (int64)blockDim.x * V) {
            Pack<T, V>::load(dy + at).store(cache_dy + at);
            Pack<S, V>::load(x + at).store(cache_x + at);
        }
        dy = cache_dy, x = cache_x;
        __syncthreads();
        row_sums(dy, x, dot, sum, group_channels, spatial, row_mean, scale);
        __syncthreads();  // sums written by other threads are read below
    }
    ChannelAffine affine = {weight, nullptr, unsigned(groups), unsigned(group_channels), unsigned(spatial)};
    BlockedReduction<AddSum2, Sum2> mine;
    for (int64 c = threadIdx.x; c < group_channels; c += blockDim.x) {
        float w = weight ? weight[first + c] : 1.0f;
        mine.add({w * dot[c], w * sum[c]});
    }
    Sum2 sums = block_reduce<AddSum2>(mine.total());
    float mean_g_xhat = sums.a / cols, mean_g = sums.b / cols;
    int64 step = (int64)gridDim.y * blockDim.x * V;
    for (int64 at = ((int64)blockIdx.y * blockDim.x + threadIdx.x) * V; at < cols; at += step) {
        float g[V], v[V];
        load_floats<V>(dy + at, g);
        load_floats<V>(x + at, v);
        affine.scale(g, row, at);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = (g[j] - (v[j] - row_mean) * scale * mean_g_xhat - mean_g) * scale;
        store_floats<V>(dx + at, v);
    }
}

// set SHAPES = ((8, 1, false), (8, 4, false), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// entries: group_norm_forward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: group_norm_channel_sums<S, T> for (S, T) in PAIRS
// entries: group_norm_backward<S, T, V, CACHED> for (S, T) in PAIRS, V in (1, 8), CACHED in (false, true)
