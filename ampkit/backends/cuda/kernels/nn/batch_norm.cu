// batch_norm: S stored and answered, float32 between, one rounding.
//
// The input lies as [samples, channels, spots], or with the channels last as [rows, channels] (ROWS, spots = 1); it is
// read V values at a time. Sums over a channel are made by many blocks, and put together in a fixed order. Statistics are
// those of x - shift, with the channel's first value for shift: a mean that is large beside the deviation costs no digits.
#include "include/block.cuh"

constexpr int THREADS = 256;

// How many values, their mean, and the sum of the squares of what is left: Chan, Golub, LeVeque 1983, The American
// Statistician 37, eq. 2.1.
struct Moments {
    float count, mean, squares;

    static __device__ __forceinline__ Moments combine(Moments a, Moments b) {
        float count = a.count + b.count, share = count > 0.0f ? b.count / count : 0.0f, apart = b.mean - a.mean;
        return {count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share};
    }
    template <typename T>
    static __device__ __forceinline__ Moments nothing() { return {0.0f, 0.0f, 0.0f}; }
};

// Sums of dy and of dy * centred x.
struct Slopes {
    float total, along;

    static __device__ __forceinline__ Slopes combine(Slopes a, Slopes b) { return {a.total + b.total, a.along + b.along}; }
    template <typename T>
    static __device__ __forceinline__ Slopes nothing() { return {0.0f, 0.0f}; }
};

__device__ __forceinline__ Moments across(Moments m, int with) {
    return {__shfl_xor_sync(ALL_LANES, m.count, with), __shfl_xor_sync(ALL_LANES, m.mean, with),
            __shfl_xor_sync(ALL_LANES, m.squares, with)};
}
__device__ __forceinline__ Slopes across(Slopes s, int with) {
    return {__shfl_xor_sync(ALL_LANES, s.total, with), __shfl_xor_sync(ALL_LANES, s.along, with)};
}

struct Sizes {
    unsigned samples, channels, spots, width;  // width: threads side by side, V channels each, where channels are last
};

// The first of a thread's channels: with ROWS it has V of them, else its block has one.
template <int V, bool ROWS>
__device__ __forceinline__ unsigned own(Sizes n) {
    return ROWS ? (blockIdx.x * n.width + threadIdx.x % n.width) * V : blockIdx.x;
}

// A number of each of a thread's channels; `from` null: 0.
template <int V, bool ROWS>
struct Held {
    float value[ROWS ? V : 1];

    __device__ __forceinline__ Held(const float* from, Sizes n) {
        unsigned first = own<V, ROWS>(n);
#pragma unroll
        for (int j = 0; j < (ROWS ? V : 1); j++) value[j] = from && first < n.channels ? from[first + j] : 0.0f;
    }
    __device__ __forceinline__ float operator[](int j) const { return value[ROWS ? j : 0]; }
};

// f(at) for each V values of the channels of a thread.
template <int V, bool ROWS, typename F>
__device__ __forceinline__ void walk(Sizes n, F f) {
    if constexpr (ROWS) {
        unsigned lanes = blockDim.x / n.width, channel = own<V, ROWS>(n);
        if (channel < n.channels)
#pragma unroll 4
            for (unsigned row = blockIdx.y * lanes + threadIdx.x / n.width; row < n.samples; row += gridDim.y * lanes)
                f(int64(row) * n.channels + channel);
    } else {
        unsigned per = n.spots / V, packs = n.samples * per, channel = own<V, ROWS>(n);
#pragma unroll 4
        for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < packs; i += gridDim.y * blockDim.x)
            f((int64(i / per) * n.channels + channel) * n.spots + i % per * V);
    }
}

// What the threads of a block hold of their channels, to `parts` [channels, blocks along y].
template <int V, bool ROWS, int HELD, typename Acc>
__device__ __forceinline__ void leave(Sizes n, const Acc (&mine)[HELD], Acc* parts) {
    if constexpr (ROWS) {
        DYN_SHARED(Acc, held);  // [V, threads]
        unsigned channel = own<V, ROWS>(n), lane = threadIdx.x / n.width;
#pragma unroll
        for (int j = 0; j < V; j++) held[j * THREADS + threadIdx.x] = mine[j];
        for (unsigned half = blockDim.x / n.width / 2; half; half /= 2) {
            __syncthreads();
            if (lane < half)
                for (int j = 0; j < V; j++) {
                    Acc& own = held[j * THREADS + threadIdx.x];
                    own = Acc::combine(own, held[j * THREADS + threadIdx.x + half * n.width]);
                }
        }
        if (lane == 0 && channel < n.channels)
            for (int j = 0; j < V; j++) parts[(channel + j) * gridDim.y + blockIdx.y] = held[j * THREADS + threadIdx.x];
    } else {
        Acc all = block_reduce<Acc>(mine[0]);
        if (threadIdx.x == 0) parts[blockIdx.x * gridDim.y + blockIdx.y] = all;
    }
}

// The parts of a channel, by a warp; lane 0 has the answer.
template <typename Acc>
__device__ __forceinline__ Acc gather(const Acc* parts, int64 channel, int count) {
    Acc mine = Acc::template nothing<Acc>();
    for (int i = threadIdx.x & 31; i < count; i += 32) mine = Acc::combine(mine, parts[channel * count + i]);
    return warp_reduce<Acc>(mine);
}

// Moments of each channel of x, in parts.
template <typename S, int V, bool ROWS>
__global__ void batch_norm_moments(
    const S* x, Moments* parts, unsigned samples, unsigned channels, unsigned spots, unsigned width) {
    Sizes n = {samples, channels, spots, width};
    constexpr int HELD = ROWS ? V : 1;
    Moments mine[HELD];
    float shift[HELD], count = 0.0f;
    unsigned first = own<V, ROWS>(n);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        mine[j] = Moments::nothing<Moments>();
        shift[j] = first < n.channels ? to_float(x[int64(first + j) * n.spots]) : 0.0f;
    }
    walk<V, ROWS>(n, [&](int64 at) {
        float v[V], sum = 0.0f, squares = 0.0f;
        load_floats<V>(x + at, v);
        if constexpr (ROWS) {
            float share = 1.0f / ++count;
#pragma unroll
            for (int j = 0; j < V; j++) {
                float apart = v[j] - shift[j] - mine[j].mean;
                mine[j].mean += apart * share;
                mine[j].squares += apart * (v[j] - shift[j] - mine[j].mean);
            }
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) sum += v[j] -= shift[0];
            float mean = sum / V;
#pragma unroll
            for (int j = 0; j < V; j++) squares += (v[j] - mean) * (v[j] - mean);
            mine[0] = Moments::combine(mine[0], {float(V), mean, squares});
        }
    });
    if (ROWS)
        for (int j = 0; j < HELD; j++) mine[j].count = count;
    leave<V, ROWS>(n, mine, parts);
}

// Of the parts: mean, var, rstd, and what turns x into the answer, (x - shift) * scale + offset; slip: mean - shift. A
// warp has a channel.
template <typename S>
__global__ void batch_norm_statistics(
    const S* x, const Moments* parts, const float* weight, const float* bias, float* mean, float* var, float* rstd,
    float* shift, float* slip, float* scale, float* offset, int channels, int64 spots, int count, float eps) {
    int64 c = (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (c >= channels) return;
    Moments all = gather(parts, c, count);
    if (threadIdx.x & 31) return;
    float spread = all.squares / all.count, steep = 1.0f / sqrtf(spread + eps), first = to_float(x[c * spots]);
    mean[c] = first + all.mean;
    var[c] = spread;
    rstd[c] = steep;
    shift[c] = first;
    slip[c] = all.mean;
    scale[c] = weight ? steep * weight[c] : steep;
    offset[c] = (bias ? bias[c] : 0.0f) - all.mean * scale[c];
}

// The same of given statistics; the shift is the mean.
__global__ void batch_norm_given(
    const float* var, const float* weight, const float* bias, float* rstd, float* scale, float* offset, int channels,
    float eps) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    rstd[c] = 1.0f / sqrtf(var[c] + eps);
    scale[c] = weight ? rstd[c] * weight[c] : rstd[c];
    offset[c] = bias ? bias[c] : 0.0f;
}

// Whether ReLU lets the answer y through, which is stored as S. NaN passes.
template <typename S>
__device__ __forceinline__ bool passes(float y) { return !(to_float(from_float<S>(y)) <= 0.0f); }

// relu: whether ReLU follows.
template <typename S, int V, bool ROWS>
__global__ void batch_norm_forward(
    const S* x, const float* shift, const float* scale, const float* offset, S* out, bool relu, unsigned samples,
    unsigned channels, unsigned spots, unsigned width) {
    Sizes n = {samples, channels, spots, width};
    Held<V, ROWS> low(shift, n), steep(scale, n), up(offset, n);
    walk<V, ROWS>(n, [&](int64 at) {
        float v[V];
        load_floats<V>(x + at, v);
#pragma unroll
        for (int j = 0; j < V; j++) {
            v[j] = (v[j] - low[j]) * steep[j] + up[j];
            if (relu && !passes<S>(v[j])) v[j] = 0.0f;
        }
        store_floats<V>(out + at, v);
    });
}

// Sums of dy and of dy * (x - shift - slip), in parts; slip: null for 0. scale and offset: null where no ReLU followed;
// else of dy only what it let through.
template <typename S, int V, bool ROWS>
__global__ void batch_norm_slopes(
    const S* dy, const S* x, const float* shift, const float* slip, const float* scale, const float* offset,
    Slopes* parts, unsigned samples, unsigned channels, unsigned spots, unsigned width) {
    Sizes n = {samples, channels, spots, width};
    constexpr int HELD = ROWS ? V : 1;
    Slopes mine[HELD];
#pragma unroll
    for (int j = 0; j < HELD; j++) mine[j] = Slopes::nothing<Slopes>();
    Held<V, ROWS> low(shift, n), rest(slip, n), steep(scale, n), lift(offset, n);
    walk<V, ROWS>(n, [&](int64 at) {
        float g[V], v[V];
        load_floats<V>(dy + at, g);
        load_floats<V>(x + at, v);
#pragma unroll
        for (int j = 0; j < V; j++) {
            Slopes& to = mine[ROWS ? j : 0];
            if (offset && !passes<S>((v[j] - low[j]) * steep[j] + lift[j])) continue;
            to.total += g[j];
            to.along += g[j] * (v[j] - low[j] - rest[j]);
        }
    });
    leave<V, ROWS>(n, mine, parts);
}

// Of the parts: the gradients of weight and bias, and what makes dx = dy * scale + (x - shift) * bend + level. dmean and
// dvar: the gradients of the statistics; null where those were given. total, along: the sums themselves. A warp has a
// channel.
__global__ void batch_norm_gradients(
    const Slopes* parts, const float* weight, const float* rstd, const float* slip, const float* dmean, const float* dvar,
    float* dweight, float* dbias, float* along, float* scale, float* bend, float* level, int channels, float values,
    int count) {
    int64 c = (int64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (c >= channels) return;
    Slopes all = gather(parts, c, count);
    if (threadIdx.x & 31) return;
    float steep = rstd[c], s = weight ? steep * weight[c] : steep;
    dweight[c] = all.along * steep;
    dbias[c] = all.total;
    along[c] = all.along;
    scale[c] = s;
    if (!dmean) return;
    bend[c] = (2.0f * dvar[c] - s * steep * steep * all.along) / values;
    level[c] = (dmean[c] - s * all.total) / values - slip[c] * bend[c];
}

// bend and level: null where the statistics were given; offset: where no ReLU followed.
template <typename S, int V, bool ROWS>
__global__ void batch_norm_backward(
    const S* dy, const S* x, const float* shift, const float* scale, const float* bend, const float* level,
    const float* offset, S* dx, unsigned samples, unsigned channels, unsigned spots, unsigned width) {
    Sizes n = {samples, channels, spots, width};
    Held<V, ROWS> low(shift, n), steep(scale, n), curve(bend, n), up(level, n), lift(offset, n);
    walk<V, ROWS>(n, [&](int64 at) {
        float g[V], v[V];
        load_floats<V>(dy + at, g);
        if (bend || offset) load_floats<V>(x + at, v);
#pragma unroll
        for (int j = 0; j < V; j++) {
            if (offset && !passes<S>((v[j] - low[j]) * steep[j] + lift[j])) g[j] = 0.0f;
            g[j] *= steep[j];
            if (bend) g[j] += (v[j] - low[j]) * curve[j] + up[j];
        }
        store_floats<V>(dx + at, g);
    });
}

// The running statistics moved towards those of a batch, unless one of these is not finite. One block.
__global__ void batch_norm_update(
    float* running_mean, float* running_var, const float* mean, const float* var, int channels, float stay, float move,
    float unbiased) {
    bool finite = true;
    for (int c = threadIdx.x; c < channels; c += blockDim.x) finite = finite && isfinite(mean[c]) && isfinite(var[c]);
    if (!__syncthreads_and(finite)) return;
    for (int c = threadIdx.x; c < channels; c += blockDim.x) {
        running_mean[c] = stay * running_mean[c] + move * mean[c];
        running_var[c] = stay * running_var[c] + move * (var[c] * unbiased);
    }
}

// set LAYOUTS = ((1, false), (8, false), (1, true), (8, true))
// entries: batch_norm_moments<S, V, ROWS> for S in TYPES, (V, ROWS) in LAYOUTS
// entries: batch_norm_statistics<S> for S in TYPES
// entries: batch_norm_given
// entries: batch_norm_forward<S, V, ROWS> for S in TYPES, (V, ROWS) in LAYOUTS
// entries: batch_norm_slopes<S, V, ROWS> for S in TYPES, (V, ROWS) in LAYOUTS
// entries: batch_norm_gradients
// entries: batch_norm_backward<S, V, ROWS> for S in TYPES, (V, ROWS) in LAYOUTS
// entries: batch_norm_update
