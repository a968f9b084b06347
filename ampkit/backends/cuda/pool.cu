// Pooling of images [N, C, H, W], S stored, T answered; float32 between, one rounding.
//
// Each thread makes V neighbours of the result: of one row, V = 1, or of 8 channels where channels lie last. A gradient is
// gathered: a pixel asks the windows that hold it, tap after tap, so that sums have one order and nobody waits.
#include "block.cuh"


// Where windows lie, and how arrays do. read: the strides of what is read; taps: those of the chosen taps.
struct Geometry {
    int64 read[4], taps[4];
    int kernel[2], stride[2], dilation[2], before[2], size[2], count[2], edge[2];
    float divisor;
    int channels, last;
};

// Element i of a result of `rows` x `columns`, which lies in memory without gaps.
struct At {
    int64 image;
    int channel, row, column;

    __device__ __forceinline__ At(unsigned i, const Geometry& g, const int (&size)[2], int wide) {
        unsigned channels = g.channels / wide;
        if (g.last) channel = i % channels * wide, i /= channels;
        column = i % size[1], i /= size[1];
        row = i % size[0], i /= size[0];
        if (!g.last) channel = i % channels, i /= channels;
        image = i;
    }
    __device__ __forceinline__ int64 start(const int64 (&strides)[4]) const {
        return image * strides[0] + channel * strides[1];
    }
};

// The window along `axis` that has its tap `tap` at `place`; -1 where there is none.
__device__ __forceinline__ int window_at(const Geometry& g, int axis, int place, int tap) {
    int from = place + g.before[axis] - tap * g.dilation[axis], window = from / g.stride[axis];
    return from < 0 || window * g.stride[axis] != from || window >= g.count[axis] ? -1 : window;
}

// How many places a window of an average counts along `axis`: those within the image and the padding that counts.
__device__ __forceinline__ int counted(const Geometry& g, int axis, int window) {
    int first = window * g.stride[axis] - g.before[axis], end = first + g.kernel[axis];
    int low = -g.edge[axis], high = g.size[axis] + g.edge[axis];
    return (end < high ? end : high) - (first > low ? first : low);
}

__device__ __forceinline__ float divisor(const Geometry& g, int row, int column) {
    return g.divisor != 0.0f ? g.divisor : float(counted(g, 0, row) * counted(g, 1, column));
}

template <int V>
__device__ __forceinline__ void fill(float (&values)[V], float value) {
#pragma unroll
    for (int j = 0; j < V; j++) values[j] = value;
}

template <int V>
__device__ __forceinline__ void add(float (&total)[V], const float (&more)[V], float by = 1.0f) {
#pragma unroll
    for (int j = 0; j < V; j++) total[j] += more[j] / by;
}

template <typename S, int V>
struct MaxForward {
    static __device__ __forceinline__ void at(const S* x, S* out, unsigned char* place, const Geometry& g, unsigned i) {
        At to(i, g, g.count, V);
        float best[V];
        Pack<unsigned char, V> taps;
        x += to.start(g.read);
        for (int a = 0, k = 0; a < g.kernel[0]; a++) {
            int row = to.row * g.stride[0] + a * g.dilation[0] - g.before[0];
            for (int b = 0; b < g.kernel[1]; b++, k++) {
                int column = to.column * g.stride[1] + b * g.dilation[1] - g.before[1];
                float v[V];
                fill(v, -INFINITY_F);
                if (row >= 0 && row < g.size[0] && column >= 0 && column < g.size[1])
                    load_floats<V>(x + row * g.read[2] + column * g.read[3], v);
#pragma unroll
                for (int j = 0; j < V; j++) {
                    if (k == 0) best[j] = v[j];
                    if (k == 0 || v[j] > best[j] || v[j] != v[j]) taps.value[j] = k;
                    best[j] = Max::combine(best[j], v[j]);
                }
            }
        }
        store_floats<V>(out + (int64)i * V, best);
        taps.store(place + (int64)i * V);
    }
};

template <typename S, int V>
struct AvgForward {
    static __device__ __forceinline__ void at(const S* x, S* out, unsigned char*, const Geometry& g, unsigned i) {
        At to(i, g, g.count, V);
        float total[V], v[V];
        fill(total, 0.0f);
        x += to.start(g.read);
        for (int a = 0; a < g.kernel[0]; a++) {
            int row = to.row * g.stride[0] + a - g.before[0];
            if (row < 0 || row >= g.size[0]) continue;
            for (int b = 0; b < g.kernel[1]; b++) {
                int column = to.column * g.stride[1] + b - g.before[1];
                if (column < 0 || column >= g.size[1]) continue;
                load_floats<V>(x + row * g.read[2] + column * g.read[3], v);
                add(total, v);
            }
        }
        float by = divisor(g, to.row, to.column);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] /= by;
        store_floats<V>(out + (int64)i * V, total);
    }
};

// Window i of n takes the places from floor(i size / n) to ceil((i + 1) size / n).
__device__ __forceinline__ int first_of(int64 i, int size, int n) { return i * size / n; }
__device__ __forceinline__ int end_of(int64 i, int size, int n) { return ((i + 1) * size + n - 1) / n; }

template <typename S, int V>
struct AdaptiveForward {
    static __device__ __forceinline__ void at(const S* x, S* out, unsigned char*, const Geometry& g, unsigned i) {
        At to(i, g, g.count, V);
        int top = first_of(to.row, g.size[0], g.count[0]), bottom = end_of(to.row, g.size[0], g.count[0]);
        int left = first_of(to.column, g.size[1], g.count[1]), right = end_of(to.column, g.size[1], g.count[1]);
        float total[V], v[V];
        fill(total, 0.0f);
        x += to.start(g.read);
        for (int row = top; row < bottom; row++)
            for (int column = left; column < right; column++) {
                load_floats<V>(x + row * g.read[2] + column * g.read[3], v);
                add(total, v);
            }
#pragma unroll
        for (int j = 0; j < V; j++) total[j] /= (bottom - top) * (right - left);
        store_floats<V>(out + (int64)i * V, total);
    }
};

template <typename S, typename T, int V>
struct MaxBackward {
    static __device__ __forceinline__ void at(const S* dy, T* dx, const unsigned char* place, const Geometry& g, unsigned i) {
        At to(i, g, g.size, V);
        float total[V], v[V];
        fill(total, 0.0f);
        dy += to.start(g.read), place += to.start(g.taps);
        for (int a = 0, k = 0; a < g.kernel[0]; a++) {
            int row = window_at(g, 0, to.row, a);
            for (int b = 0; b < g.kernel[1]; b++, k++) {
                int column = window_at(g, 1, to.column, b);
                if (row < 0 || column < 0) continue;
                load_floats<V>(dy + row * g.read[2] + column * g.read[3], v);
                auto taps = Pack<unsigned char, V>::load(place + row * g.taps[2] + column * g.taps[3]);
#pragma unroll
                for (int j = 0; j < V; j++) total[j] += taps.value[j] == k ? v[j] : 0.0f;
            }
        }
        store_floats<V>(dx + (int64)i * V, total);
    }
};

template <typename S, typename T, int V>
struct AvgBackward {
    static __device__ __forceinline__ void at(const S* dy, T* dx, const unsigned char*, const Geometry& g, unsigned i) {
        At to(i, g, g.size, V);
        float total[V], v[V];
        fill(total, 0.0f);
        dy += to.start(g.read);
        for (int a = 0; a < g.kernel[0]; a++) {
            int row = window_at(g, 0, to.row, a);
            for (int b = 0; b < g.kernel[1]; b++) {
                int column = window_at(g, 1, to.column, b);
                if (row < 0 || column < 0) continue;
                load_floats<V>(dy + row * g.read[2] + column * g.read[3], v);
                add(total, v, divisor(g, row, column));
            }
        }
        store_floats<V>(dx + (int64)i * V, total);
    }
};

template <typename S, typename T, int V>
struct AdaptiveBackward {
    static __device__ __forceinline__ void at(const S* dy, T* dx, const unsigned char*, const Geometry& g, unsigned i) {
        At to(i, g, g.size, V);
        const int (&n)[2] = g.count, (&size)[2] = g.size;
        float total[V], v[V];
        fill(total, 0.0f);
        dy += to.start(g.read);
        // A window holds a place just where a place of n over `size` holds the window.
        for (int row = first_of(to.row, n[0], size[0]); row < end_of(to.row, n[0], size[0]); row++)
            for (int column = first_of(to.column, n[1], size[1]); column < end_of(to.column, n[1], size[1]); column++) {
                int high = end_of(row, size[0], n[0]) - first_of(row, size[0], n[0]);
                int wide = end_of(column, size[1], n[1]) - first_of(column, size[1], n[1]);
                load_floats<V>(dy + row * g.read[2] + column * g.read[3], v);
                add(total, v, high * wide);
            }
        store_floats<V>(dx + (int64)i * V, total);
    }
};

// All elements of a result, or packs of 8 channels: `total`, fewer than 2^31.
template <template <typename, int> class Body, typename S>
__device__ __forceinline__ void forward(const S* x, S* out, unsigned char* place, const Geometry& g, unsigned total, bool packs) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        if (packs) Body<S, 8>::at(x, out, place, g, i);
        else Body<S, 1>::at(x, out, place, g, i);
    }
}

template <template <typename, typename, int> class Body, typename S, typename T>
__device__ __forceinline__ void backward(const S* dy, T* dx, const unsigned char* place, const Geometry& g, unsigned total,
                                         bool packs) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        if (packs) Body<S, T, 8>::at(dy, dx, place, g, i);
        else Body<S, T, 1>::at(dy, dx, place, g, i);
    }
}

template <typename S>
__global__ void max_pool_forward(const S* x, S* out, unsigned char* place, Geometry g, unsigned total, bool packs) {
    forward<MaxForward>(x, out, place, g, total, packs);
}

template <typename S>
__global__ void avg_pool_forward(const S* x, S* out, unsigned char* place, Geometry g, unsigned total, bool packs) {
    forward<AvgForward>(x, out, place, g, total, packs);
}

template <typename S>
__global__ void adaptive_avg_pool_forward(const S* x, S* out, unsigned char* place, Geometry g, unsigned total, bool packs) {
    forward<AdaptiveForward>(x, out, place, g, total, packs);
}

template <typename S, typename T>
__global__ void max_pool_backward(const S* dy, T* dx, const unsigned char* place, Geometry g, unsigned total, bool packs) {
    backward<MaxBackward>(dy, dx, place, g, total, packs);
}

template <typename S, typename T>
__global__ void avg_pool_backward(const S* dy, T* dx, const unsigned char* place, Geometry g, unsigned total, bool packs) {
    backward<AvgBackward>(dy, dx, place, g, total, packs);
}

template <typename S, typename T>
__global__ void adaptive_avg_pool_backward(const S* dy, T* dx, const unsigned char* place, Geometry g, unsigned total, bool packs) {
    backward<AdaptiveBackward>(dy, dx, place, g, total, packs);
}

// entries: max_pool_forward<S> for S in TYPES
// entries: avg_pool_forward<S> for S in TYPES
// entries: adaptive_avg_pool_forward<S> for S in TYPES
// entries: max_pool_backward<S, T> for (S, T) in PAIRS
// entries: avg_pool_backward<S, T> for (S, T) in PAIRS
// entries: adaptive_avg_pool_backward<S, T> for (S, T) in PAIRS
