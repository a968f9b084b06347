// group_norm: rows are groups of channels, S stored, T answered; float32 between, one rounding. How a row is shared out:
// norm.cuh. The backward has two kernels: sums over each channel of each sample, which serve the gradients of the scales,
// too; then dx.
#include "norm.cuh"

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
__global__ void __launch_bounds__(BLOCK ? MOST_THREADS : 32 * WARPS) group_norm_forward(
    const S* x, const float* weight, const float* bias, T* out, float* mean, float* rstd, int64 rows, int64 cols, float eps,
    int groups, int many, int spots) {
    Channels scales = {weight, bias, unsigned(groups), unsigned(many), unsigned(spots)};
    forward<true, T, V, K, BLOCK>(Rows<S>{x}, scales, out, mean, rstd, rows, cols, eps);
}

// Sums of dy * hat and of dy over each channel of each sample, [samples * channels]; a block has one.
template <typename S, typename T>
__global__ void group_norm_sums(
    const T* dy, const S* x, const float* mean, const float* rstd, float* along, float* total, int many, int64 spots) {
    int64 plane = blockIdx.x, row = plane / many;
    float middle = mean[row], scale = rstd[row];
    Blocked<Pairs, Pair> mine;
    for (int64 at = plane * spots + threadIdx.x; at < (plane + 1) * spots; at += blockDim.x) {
        float g = to_float(dy[at]);
        mine.add({g * ((to_float(x[at]) - middle) * scale), g});
    }
    Pair sums = block_reduce<Pairs>(mine.total());
    if (threadIdx.x == 0) along[plane] = sums.a, total[plane] = sums.b;
}

// dx, given those sums; blocks along x have a row each, those along y a share of it.
template <typename S, typename T, int V>
__global__ void group_norm_backward(
    const T* dy, const S* x, const float* weight, const float* mean, const float* rstd, const float* along,
    const float* total, S* dx, int64 cols, int groups, int many, int spots) {
    int64 row = blockIdx.x, first = row % groups * many;
    Channels scales = {weight, nullptr, unsigned(groups), unsigned(many), unsigned(spots)};
    Blocked<Pairs, Pair> mine;
    for (int64 c = threadIdx.x; c < many; c += blockDim.x) {
        float w = weight ? weight[first + c] : 1.0f;
        mine.add({w * along[row * many + c], w * total[row * many + c]});
    }
    Pair sums = block_reduce<Pairs>(mine.total());
    float slant = sums.a / cols, level = sums.b / cols, middle = mean[row], scale = rstd[row];
    int64 step = (int64)gridDim.y * blockDim.x * V;
    for (int64 at = ((int64)blockIdx.y * blockDim.x + threadIdx.x) * V; at < cols; at += step) {
        float g[V], v[V];
        load_floats<V>(dy + row * cols + at, g);
        load_floats<V>(x + row * cols + at, v);
        scales.scale(g, row, at);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = (g[j] - (v[j] - middle) * scale * slant - level) * scale;
        store_floats<V>(dx + row * cols + at, v);
    }
}

// set SHAPES = ((8, 1, false), (8, 4, false), (8, 2, true), (8, 0, true), (1, 4, false), (1, 0, true))
// entries: group_norm_forward<S, T, V, K, BLOCK> for (S, T) in PAIRS, (V, K, BLOCK) in SHAPES
// entries: group_norm_sums<S, T> for (S, T) in PAIRS
// entries: group_norm_backward<S, T, V> for (S, T) in PAIRS, V in (1, 8)
