// Pooling of volumes [N, C, D, H, W], S stored, T answered; float32 between, one rounding. Images are of one plane.
//
// Each thread makes V neighbours of the result: of one row, V = 1, or of 8 channels where channels lie last. A gradient is
// gathered: a pixel asks the windows that hold it, one after the other, so that sums have one order and nobody waits.
#include "include/block.cuh"

constexpr int AXES = 3;  // planes, rows, columns

// Where windows lie, and how arrays do. read: the strides of what is read; taps: those of the chosen taps. adaptive:
// `count` windows cover `size` pixels evenly, and the kernel says nothing.
struct Geometry {
    int64 read[2 + AXES], taps[2 + AXES];
    int kernel[AXES], stride[AXES], dilation[AXES], before[AXES], size[AXES], count[AXES], edge[AXES];
    float divisor;
    int channels, last, adaptive;
};

// Pixels, or windows, of one axis: from `first` to before `end`.
struct Range {
    int first, end;
};

// Adaptive window i of n takes the places from floor(i size / n) to ceil((i + 1) size / n).
__device__ __forceinline__ Range share(int64 i, int size, int n) {
    return {int(i * size / n), int(((i + 1) * size + n - 1) / n)};
}

__device__ __forceinline__ int64 offset(const int64 (&strides)[2 + AXES], int plane, int row, int column) {
    return plane * strides[2] + row * strides[3] + column * strides[4];
}

// Element i of a result of `size`, which lies in memory without gaps.
struct At {
    int64 image;
    int channel, place[AXES];

    __device__ __forceinline__ At(unsigned i, const Geometry& g, const int (&size)[AXES], int wide) {
        unsigned channels = g.channels / wide;
        if (g.last) channel = i % channels * wide, i /= channels;
#pragma unroll
        for (int axis = AXES - 1; axis >= 0; axis--) place[axis] = i % size[axis], i /= size[axis];
        if (!g.last) channel = i % channels, i /= channels;
        image = i;
    }

    __device__ __forceinline__ int64 start(const int64 (&strides)[2 + AXES]) const {
        return image * strides[0] + channel * strides[1];
    }

    // Calls visit(plane, row, column, tap) for each pixel of this window that is within the image.
    template <typename F>
    __device__ __forceinline__ void each_pixel(const Geometry& g, F visit) const {
        int first[AXES], taps[AXES];
#pragma unroll
        for (int axis = 0; axis < AXES; axis++) {
            Range places = {place[axis] * g.stride[axis] - g.before[axis], 0};
            if (g.adaptive) places = share(place[axis], g.size[axis], g.count[axis]);
            first[axis] = places.first, taps[axis] = g.adaptive ? places.end - places.first : g.kernel[axis];
        }
        for (int a = 0; a < taps[0]; a++) {
            int plane = first[0] + a * g.dilation[0];
            if (plane < 0 || plane >= g.size[0]) continue;
            for (int b = 0; b < taps[1]; b++) {
                int row = first[1] + b * g.dilation[1];
                if (row < 0 || row >= g.size[1]) continue;
                for (int c = 0; c < taps[2]; c++) {
                    int column = first[2] + c * g.dilation[2];
                    if (column < 0 || column >= g.size[2]) continue;
                    visit(plane, row, column, (a * taps[1] + b) * taps[2] + c);
                }
            }
        }
    }

    // The windows along `axis` between whose ends this pixel lies.
    __device__ __forceinline__ Range holding(const Geometry& g, int axis) const {
        // An adaptive window holds a pixel just where a pixel of `count` over `size` holds the window.
        if (g.adaptive) return share(place[axis], g.count[axis], g.size[axis]);
        int stride = g.stride[axis], at = place[axis] + g.before[axis];
        int before = at - g.dilation[axis] * (g.kernel[axis] - 1), end = at / stride + 1;
        return {before > 0 ? (before + stride - 1) / stride : 0, end < g.count[axis] ? end : g.count[axis]};
    }

    // Calls visit(plane, row, column) for these windows, the last first, which is the order of their taps.
    template <typename F>
    __device__ __forceinline__ void each_window(const Geometry& g, F visit) const {
        Range planes = holding(g, 0), rows = holding(g, 1), columns = holding(g, 2);
        for (int plane = planes.end - 1; plane >= planes.first; plane--)
            for (int row = rows.end - 1; row >= rows.first; row--)
                for (int column = columns.end - 1; column >= columns.first; column--) visit(plane, row, column);
    }

    // Which tap along `axis` of a window this pixel is; -1 where it lies between two.
    __device__ __forceinline__ int tap_of(const Geometry& g, int axis, int window) const {
        int from = place[axis] + g.before[axis] - window * g.stride[axis];
        if (g.dilation[axis] == 1) return from;
        int tap = from / g.dilation[axis];
        return tap * g.dilation[axis] == from ? tap : -1;
    }
};

// How many places a window of an average counts along `axis`: those within the image and the padding that counts.
__device__ __forceinline__ int counted(const Geometry& g, int axis, int window) {
    if (g.adaptive) {
        Range places = share(window, g.size[axis], g.count[axis]);
        return places.end - places.first;
    }
    int first = window * g.stride[axis] - g.before[axis], end = first + g.kernel[axis];
    int low = -g.edge[axis], high = g.size[axis] + g.edge[axis];
    return (end < high ? end : high) - (first > low ? first : low);
}

__device__ __forceinline__ float divisor(const Geometry& g, int plane, int row, int column) {
    return g.divisor != 0.0f ? g.divisor : float(counted(g, 0, plane) * counted(g, 1, row) * counted(g, 2, column));
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

template <typename S, typename T, int V>
struct MaxForward {
    static __device__ __forceinline__ void at(const S* x, T* out, unsigned char* place, const Geometry& g, unsigned i) {
        At to(i, g, g.count, V);
        float best[V], v[V];
        Pack<unsigned char, V> taps;
        fill(best, -INFINITY_F);
#pragma unroll
        for (int j = 0; j < V; j++) taps.value[j] = 0;
        x += to.start(g.read);
        to.each_pixel(g, [&](int plane, int row, int column, int tap) {
            load_floats<V>(x + offset(g.read, plane, row, column), v);
#pragma unroll
            for (int j = 0; j < V; j++) {
                if (v[j] > best[j] || v[j] != v[j]) taps.value[j] = tap;
                best[j] = Max::combine(best[j], v[j]);
            }
        });
        store_floats<V>(out + (int64)i * V, best);
        taps.store(place + (int64)i * V);
    }
};

// Where in its image the largest value of each window stands, T an integer: the first of equals, the last of NaNs.
template <typename S, typename T, int V>
struct MaxPlaces {
    static __device__ __forceinline__ void at(const S* x, T* out, unsigned char*, const Geometry& g, unsigned i) {
        At to(i, g, g.count, V);
        float best[V], v[V];
        Pack<T, V> places;
        x += to.start(g.read);
        to.each_pixel(g, [&](int plane, int row, int column, int tap) {
            load_floats<V>(x + offset(g.read, plane, row, column), v);
#pragma unroll
            for (int j = 0; j < V; j++) {
                if (tap && !(v[j] > best[j] || v[j] != v[j])) continue;
                best[j] = v[j], places.value[j] = (plane * g.size[1] + row) * g.size[2] + column;
            }
        });
        places.store(out + (int64)i * V);
    }
};

template <typename S, typename T, int V>
struct AvgForward {
    static __device__ __forceinline__ void at(const S* x, T* out, unsigned char*, const Geometry& g, unsigned i) {
        At to(i, g, g.count, V);
        float total[V], v[V];
        fill(total, 0.0f);
        x += to.start(g.read);
        to.each_pixel(g, [&](int plane, int row, int column, int) {
            load_floats<V>(x + offset(g.read, plane, row, column), v);
            add(total, v);
        });
        float by = divisor(g, to.place[0], to.place[1], to.place[2]);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] /= by;
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
        to.each_window(g, [&](int plane, int row, int column) {
            int a = to.tap_of(g, 0, plane), b = to.tap_of(g, 1, row), c = to.tap_of(g, 2, column);
            if (a < 0 || b < 0 || c < 0) return;
            load_floats<V>(dy + offset(g.read, plane, row, column), v);
            auto taps = Pack<unsigned char, V>::load(place + offset(g.taps, plane, row, column));
#pragma unroll
            for (int j = 0; j < V; j++) total[j] += taps.value[j] == (a * g.kernel[1] + b) * g.kernel[2] + c ? v[j] : 0.0f;
        });
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
        to.each_window(g, [&](int plane, int row, int column) {
            load_floats<V>(dy + offset(g.read, plane, row, column), v);
            add(total, v, divisor(g, plane, row, column));
        });
        store_floats<V>(dx + (int64)i * V, total);
    }
};

// All elements of a result, or packs of 8 channels: `total`, fewer than 2^31.
template <template <typename, typename, int> class Kernel, typename S, typename T>
__device__ __forceinline__ void all(const S* x, T* out, unsigned char* place, const Geometry& g, unsigned total, bool packs) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        if (packs) Kernel<S, T, 8>::at(x, out, place, g, i);
        else Kernel<S, T, 1>::at(x, out, place, g, i);
    }
}

template <typename S, typename T>
__global__ void max_pool_forward(const S* x, T* out, unsigned char* place, Geometry g, unsigned total, bool packs) {
    all<MaxForward>(x, out, place, g, total, packs);
}

template <typename S, typename T>
__global__ void max_pool_places(const S* x, T* out, unsigned char* place, Geometry g, unsigned total, bool packs) {
    all<MaxPlaces>(x, out, place, g, total, packs);
}

template <typename S, typename T>
__global__ void avg_pool_forward(const S* x, T* out, unsigned char* place, Geometry g, unsigned total, bool packs) {
    all<AvgForward>(x, out, place, g, total, packs);
}

template <typename S, typename T>
__global__ void max_pool_backward(const S* dy, T* dx, unsigned char* place, Geometry g, unsigned total, bool packs) {
    all<MaxBackward>(dy, dx, place, g, total, packs);
}

template <typename S, typename T>
__global__ void avg_pool_backward(const S* dy, T* dx, unsigned char* place, Geometry g, unsigned total, bool packs) {
    all<AvgBackward>(dy, dx, place, g, total, packs);
}

// entries: max_pool_forward<S, S> for S in TYPES
// entries: max_pool_places<S, long long> for S in TYPES
// entries: avg_pool_forward<S, S> for S in TYPES
// entries: max_pool_backward<S, T> for (S, T) in PAIRS
// entries: avg_pool_backward<S, T> for (S, T) in PAIRS
