// batch_norm: S input and output dtype, float32 arithmetic, one rounding.
//
// Input is [samples, channels, spatial], or with CHANNELS_LAST [rows, channels] (spatial = 1); V values per access.
// Many blocks sum over a channel, and their partials are combined in a fixed order. Statistics are those of x - center,
// where center is the channel's first value: a mean large against the deviation costs no digits.
#include "include/batch_norm.cuh"

// Count, mean and sum of squared deviations: Chan, Golub, LeVeque 1983, The American Statistician 37, eq. 2.1.
struct Moments {
    float count, mean, squares;

    static __device__ __forceinline__ Moments combine(Moments a, Moments b) {
        float count = a.count + b.count, share = count > 0.0f ? b.count / count : 0.0f, delta = b.mean - a.mean;
        return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
    }
    template <typename T>
    static __device__ __forceinline__ Moments identity() { return {0.0f, 0.0f, 0.0f}; }
};

__device__ __forceinline__ Moments shuffle_xor(Moments m, int lane_mask) {
    return {__shfl_xor_sync(ALL_LANES, m.count, lane_mask), __shfl_xor_sync(ALL_LANES, m.mean, lane_mask),
            __shfl_xor_sync(ALL_LANES, m.squares, lane_mask)};
}
// Combines the partials of a channel over a warp; lane 0 has the result.
template <typename Acc>
__device__ __forceinline__ Acc combine_partials(const Acc* parts, int64 channel, int count) {
    Acc mine = Acc::template identity<Acc>();
    for (int i = threadIdx.x & 31; i < count; i += 32) mine = Acc::combine(mine, parts[channel * count + i]);
    return warp_reduce<Acc>(mine);
}

// parts [channels, gridDim.y]: moments of x - center.
template <typename S, int V, bool CHANNELS_LAST>
__global__ void batch_norm_moments(const S* x, Moments* parts, unsigned samples, unsigned channels, unsigned spatial,
                                   unsigned width) {
    Shape n = {samples, channels, spatial, width};
    constexpr int CHANNELS = CHANNELS_LAST ? V : 1;
    Moments mine[CHANNELS];
    float center[CHANNELS], count = 0.0f;
    unsigned first = first_channel<V, CHANNELS_LAST>(n);
#pragma unroll
    for (int j = 0; j < CHANNELS; j++) {
        mine[j] = Moments::identity<Moments>();
        center[j] = first < n.channels ? to_float(x[int64(first + j) * n.spatial]) : 0.0f;
    }
    for_each_pack<V, CHANNELS_LAST>(n, [&](int64 at) {
        float v[V], sum = 0.0f, squares = 0.0f;
        load_floats<V>(x + at, v);
        if constexpr (CHANNELS_LAST) {
            float share = 1.0f / ++count;
#pragma unroll
            for (int j = 0; j < V; j++) {
                float delta = v[j] - center[j] - mine[j].mean;
                mine[j].mean += delta * share;
                mine[j].squares += delta * (v[j] - center[j] - mine[j].mean);
            }
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) sum += v[j] -= center[0];
            float mean = sum / V;
#pragma unroll
            for (int j = 0; j < V; j++) squares += (v[j] - mean) * (v[j] - mean);
            mine[0] = Moments::combine(mine[0], {float(V), mean, squares});
        }
    });
    if (CHANNELS_LAST)
        for (int j = 0; j < CHANNELS; j++) mine[j].count = count;
    store_partials<V, CHANNELS_LAST>(n, mine, parts);
}

// mean, var, rstd from the partial moments, and out = (x - center) * scale + offset as center, scale, offset;
// centered_mean = mean - center. A warp per channel.
template <typename S>
__global__ void batch_norm_statistics(const S* x, const Moments* parts, const float* weight, const float* bias,
                                      float* mean, float* var, float* rstd, float* center, float* centered_mean,
                                      float* scale, float* offset, int channels, int64 spatial, int count, float eps) {
    int64 c = (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (c >= channels) return;
    Moments all = combine_partials(parts, c, count);
    if (threadIdx.x & 31) return;
    float variance = all.squares / all.count, inv_std = 1.0f / sqrtf(variance + eps), first = to_float(x[c * spatial]);
    mean[c] = first + all.mean;
    var[c] = variance;
    rstd[c] = inv_std;
    center[c] = first;
    centered_mean[c] = all.mean;
    scale[c] = weight ? inv_std * weight[c] : inv_std;
    offset[c] = (bias ? bias[c] : 0.0f) - all.mean * scale[c];
}

// rstd, scale and offset from running statistics; the center is the mean. A thread per channel.
__global__ void batch_norm_coefficients(const float* var, const float* weight, const float* bias, float* rstd,
                                        float* scale, float* offset, int channels, float eps) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    rstd[c] = 1.0f / sqrtf(var[c] + eps);
    scale[c] = weight ? rstd[c] * weight[c] : rstd[c];
    offset[c] = bias ? bias[c] : 0.0f;
}

// out = (x - center) * scale + offset + residual if it is not null, then ReLU if `relu`.
template <typename S, int V, bool CHANNELS_LAST>
__global__ void batch_norm_forward(const S* x, const S* residual, const float* center, const float* scale,
                                   const float* offset, S* out, bool relu, unsigned samples, unsigned channels,
                                   unsigned spatial, unsigned width) {
    Shape n = {samples, channels, spatial, width};
    PerChannel<V, CHANNELS_LAST> centers(center, n), scales(scale, n), offsets(offset, n);
    for_each_pack<V, CHANNELS_LAST>(n, [&](int64 at) {
        float v[V], r[V];
        load_floats<V>(x + at, v);
        if (residual) load_floats<V>(residual + at, r);
#pragma unroll
        for (int j = 0; j < V; j++) {
            v[j] = (v[j] - centers[j]) * scales[j] + offsets[j];
            if (residual) v[j] += r[j];
            if (relu && !relu_passes<S>(v[j])) v[j] = 0.0f;
        }
        store_floats<V>(out + at, v);
    });
}

// See grad_sums in batch_norm.cuh.
template <typename S, int V, bool CHANNELS_LAST>
__global__ void batch_norm_grad_sums(const S* dy, const S* x, const S* out, S* dresidual, const float* center,
                                     const float* centered_mean, const float* scale, const float* offset,
                                     GradSums* parts, unsigned samples, unsigned channels, unsigned spatial,
                                     unsigned width) {
    grad_sums<V, CHANNELS_LAST>(ArrayInput<S>{dy}, x, out, dresidual, center, centered_mean, scale, offset, parts,
                                {samples, channels, spatial, width});
}

// dweight and dbias, and dx = dy * scale + (x - center) * x_coef + constant as scale, x_coef, constant. dmean, dvar:
// gradients of the statistics, null where those are running ones. A warp per channel.
__global__ void batch_norm_weight_backward(const GradSums* parts, const float* weight, const float* rstd,
                                           const float* centered_mean, const float* dmean, const float* dvar,
                                           float* dweight, float* dbias, float* dot, float* scale, float* x_coef,
                                           float* constant, int channels, float values, int count) {
    int64 c = (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (c >= channels) return;
    GradSums all = combine_partials(parts, c, count);
    if (threadIdx.x & 31) return;
    float inv_std = rstd[c], s = weight ? inv_std * weight[c] : inv_std;
    dweight[c] = all.dot * inv_std;
    dbias[c] = all.sum;
    dot[c] = all.dot;
    scale[c] = s;
    if (!dmean) return;
    x_coef[c] = (2.0f * dvar[c] - s * inv_std * inv_std * all.dot) / values;
    constant[c] = (dmean[c] - s * all.sum) / values - centered_mean[c] * x_coef[c];
}

// dx = dy * scale + (x - center) * x_coef + constant; x_coef and constant null for running statistics, offset null
// without ReLU.
template <typename S, int V, bool CHANNELS_LAST>
__global__ void batch_norm_backward(const S* dy, const S* x, const float* center, const float* scale,
                                    const float* x_coef, const float* constant, const float* offset, S* dx,
                                    unsigned samples, unsigned channels, unsigned spatial, unsigned width) {
    Shape n = {samples, channels, spatial, width};
    PerChannel<V, CHANNELS_LAST> centers(center, n), scales(scale, n), x_coefs(x_coef, n), constants(constant, n),
        offsets(offset, n);
    for_each_pack<V, CHANNELS_LAST>(n, [&](int64 at) {
        float g[V], v[V];
        load_floats<V>(dy + at, g);
        if (x_coef || offset) load_floats<V>(x + at, v);
#pragma unroll
        for (int j = 0; j < V; j++) {
            if (offset && !relu_passes<S>((v[j] - centers[j]) * scales[j] + offsets[j])) g[j] = 0.0f;
            g[j] *= scales[j];
            if (x_coef) g[j] += (v[j] - centers[j]) * x_coefs[j] + constants[j];
        }
        store_floats<V>(dx + at, g);
    });
}

// running = stay * running + move * batch, unless a statistic of the batch is not finite. One block.
__global__ void batch_norm_update(float* running_mean, float* running_var, const float* mean, const float* var,
                                  int channels, float stay, float move, float unbiased) {
    bool finite = true;
    for (int c = threadIdx.x; c < channels; c += blockDim.x) finite = finite && isfinite(mean[c]) && isfinite(var[c]);
    if (!__syncthreads_and(finite)) return;
    for (int c = threadIdx.x; c < channels; c += blockDim.x) {
        running_mean[c] = stay * running_mean[c] + move * mean[c];
        running_var[c] = stay * running_var[c] + move * (var[c] * unbiased);
    }
}

// set LAYOUTS = ((1, false), (8, false), (1, true), (8, true))
// entries: batch_norm_moments<S, V, CHANNELS_LAST> for S in TYPES, (V, CHANNELS_LAST) in LAYOUTS
// entries: batch_norm_statistics<S> for S in TYPES
// entries: batch_norm_coefficients
// entries: batch_norm_forward<S, V, CHANNELS_LAST> for S in TYPES, (V, CHANNELS_LAST) in LAYOUTS
// entries: batch_norm_grad_sums<S, V, CHANNELS_LAST> for S in TYPES, (V, CHANNELS_LAST) in LAYOUTS
// entries: batch_norm_weight_backward
// entries: batch_norm_backward<S, V, CHANNELS_LAST> for S in TYPES, (V, CHANNELS_LAST) in LAYOUTS
// entries: batch_norm_update
