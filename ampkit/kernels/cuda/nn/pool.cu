// Pooling of [N, C, D, H, W] (2-D: D = 1), S input, T output dtype, float32 arithmetic, one rounding.
//
// A thread computes one output, or 8 channels of a channels-last output. A gradient is a gather: each input pixel
// visits the windows that contain it in a fixed order; no atomics.
#include "include/block.cuh"

constexpr int AXES = 3;  // depth, height, width

// Window geometry and array strides. stride_in: of the array read; taps: of the array of taps. adaptive: `count`
// windows cover `size` pixels evenly, and kernel, stride and padding are unused. counted_pad: padding that an average
// counts.
struct Geometry {
    int64 stride_in[2 + AXES], taps[2 + AXES];
    int kernel[AXES], stride[AXES], dilation[AXES], pad[AXES], size[AXES], count[AXES], counted_pad[AXES];
    float divisor;
    int channels, last, adaptive;
};

// Pixels or windows along one axis: [first, end).
struct Range {
    int first, end;
};

// Adaptive window i of n covers [floor(i size / n), ceil((i + 1) size / n)).
__device__ __forceinline__ Range adaptive_range(int64 i, int size, int n) {
    return {int(i * size / n), int(((i + 1) * size + n - 1) / n)};
}

__device__ __forceinline__ int64 offset(const int64 (&strides)[2 + AXES], int plane, int row, int column) {
    return plane * strides[2] + row * strides[3] + column * strides[4];
}

// Coordinates of element i of a contiguous output.
struct Element {
    int64 image;
    int channel, coord[AXES];

    __device__ __forceinline__ Element(unsigned i, const Geometry& g, const int (&size)[AXES], int vector) {
        unsigned channels = g.channels / vector;
        if (g.last) channel = i % channels * vector, i /= channels;
#pragma unroll
        for (int axis = AXES - 1; axis >= 0; axis--) coord[axis] = i % size[axis], i /= size[axis];
        if (!g.last) channel = i % channels, i /= channels;
        image = i;
    }

    __device__ __forceinline__ int64 start(const int64 (&strides)[2 + AXES]) const {
        return image * strides[0] + channel * strides[1];
    }

    // Calls visit(plane, row, column, tap) for each pixel of this window inside the image.
    template <typename F>
    __device__ __forceinline__ void each_pixel(const Geometry& g, F visit) const {
        int first[AXES], taps[AXES];
#pragma unroll
        for (int axis = 0; axis < AXES; axis++) {
            Range span = {coord[axis] * g.stride[axis] - g.pad[axis], 0};
            if (g.adaptive) span = adaptive_range(coord[axis], g.size[axis], g.count[axis]);
            first[axis] = span.first, taps[axis] = g.adaptive ? span.end - span.first : g.kernel[axis];
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

    // The windows along `axis` that may contain this pixel.
    __device__ __forceinline__ Range windows_of(const Geometry& g, int axis) const {
        // Window i contains pixel p exactly if adaptive window p of `size` over `count` contains i.
        if (g.adaptive) return adaptive_range(coord[axis], g.count[axis], g.size[axis]);
        int stride = g.stride[axis], at = coord[axis] + g.pad[axis];
        int pad = at - g.dilation[axis] * (g.kernel[axis] - 1), end = at / stride + 1;
        return {pad > 0 ? (pad + stride - 1) / stride : 0, end < g.count[axis] ? end : g.count[axis]};
    }

    // Calls visit(plane, row, column) for these windows, last first: the order of their taps.
    template <typename F>
    __device__ __forceinline__ void each_window(const Geometry& g, F visit) const {
        Range planes = windows_of(g, 0), rows = windows_of(g, 1), columns = windows_of(g, 2);
        for (int plane = planes.end - 1; plane >= planes.first; plane--)
            for (int row = rows.end - 1; row >= rows.first; row--)
                for (int column = columns.end - 1; column >= columns.first; column--) visit(plane, row, column);
    }

    // This pixel's tap in a window; -1 if it lies between two (dilation).
    __device__ __forceinline__ int tap_of(const Geometry& g, int axis, int window) const {
        int distance = coord[axis] + g.pad[axis] - window * g.stride[axis];
        if (g.dilation[axis] == 1) return distance;
        int tap = distance / g.dilation[axis];
        return tap * g.dilation[axis] == distance ? tap : -1;
    }
};

// Pixels that an average counts along `axis`: inside the image and the counted padding.
__device__ __forceinline__ int window_size(const Geometry& g, int axis, int window) {
    if (g.adaptive) {
        Range span = adaptive_range(window, g.size[axis], g.count[axis]);
        return span.end - span.first;
    }
    int first = window * g.stride[axis] - g.pad[axis], end = first + g.kernel[axis];
    int low = -g.counted_pad[axis], high = g.size[axis] + g.counted_pad[axis];
    return (end < high ? end : high) - (first > low ? first : low);
}

__device__ __forceinline__ float divisor(const Geometry& g, int plane, int row, int column) {
    return g.divisor != 0.0f ? g.divisor : float(window_size(g, 0, plane) * window_size(g, 1, row) * window_size(g, 2,
                                                 column));
}

template <int V>
__device__ __forceinline__ void fill(float (&values)[V], float value) {
#pragma unroll
    for (int j = 0; j < V; j++) values[j] = value;
}

template <int V>
__device__ __forceinline__ void add(float (&total)[V], const float (&more)[V], float denominator = 1.0f) {
#pragma unroll
    for (int j = 0; j < V; j++) total[j] += more[j] / denominator;
}

template <typename S, typename T, int V>
struct MaxForward {
    static __device__ __forceinline__ void at(const S* x, T* out, unsigned char* tap, const Geometry& g, unsigned i) {
        Element element(i, g, g.count, V);
        float best[V], v[V];
        Pack<unsigned char, V> taps;
        fill(best, -INFINITY_F);
#pragma unroll
        for (int j = 0; j < V; j++) taps.value[j] = 0;
        x += element.start(g.stride_in);
        element.each_pixel(g, [&](int plane, int row, int column, int tap) {
            load_floats<V>(x + offset(g.stride_in, plane, row, column), v);
#pragma unroll
            for (int j = 0; j < V; j++) {
                if (v[j] > best[j] || v[j] != v[j]) taps.value[j] = tap;
                best[j] = Max::combine(best[j], v[j]);
            }
        });
        store_floats<V>(out + (int64)i * V, best);
        taps.store(tap + (int64)i * V);
    }
};

// Index within the image of each window's maximum: the first of equal ones, the last NaN.
template <typename S, typename T, int V>
struct MaxIndices {
    static __device__ __forceinline__ void at(const S* x, T* out, unsigned char*, const Geometry& g, unsigned i) {
        Element element(i, g, g.count, V);
        float best[V], v[V];
        Pack<T, V> indices;
        x += element.start(g.stride_in);
        element.each_pixel(g, [&](int plane, int row, int column, int tap) {
            load_floats<V>(x + offset(g.stride_in, plane, row, column), v);
#pragma unroll
            for (int j = 0; j < V; j++) {
                if (tap && !(v[j] > best[j] || v[j] != v[j])) continue;
                best[j] = v[j], indices.value[j] = (plane * g.size[1] + row) * g.size[2] + column;
            }
        });
        indices.store(out + (int64)i * V);
    }
};

template <typename S, typename T, int V>
struct AvgForward {
    static __device__ __forceinline__ void at(const S* x, T* out, unsigned char*, const Geometry& g, unsigned i) {
        Element element(i, g, g.count, V);
        float total[V], v[V];
        fill(total, 0.0f);
        x += element.start(g.stride_in);
        element.each_pixel(g, [&](int plane, int row, int column, int) {
            load_floats<V>(x + offset(g.stride_in, plane, row, column), v);
            add(total, v);
        });
        float denominator = divisor(g, element.coord[0], element.coord[1], element.coord[2]);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] /= denominator;
        store_floats<V>(out + (int64)i * V, total);
    }
};

template <typename S, typename T, int V>
struct MaxBackward {
    static __device__ __forceinline__ void at(const S* dy, T* dx, const unsigned char* tap, const Geometry& g,
                                              unsigned i) {
        Element element(i, g, g.size, V);
        float total[V], v[V];
        fill(total, 0.0f);
        dy += element.start(g.stride_in), tap += element.start(g.taps);
        element.each_window(g, [&](int plane, int row, int column) {
            int a = element.tap_of(g, 0, plane), b = element.tap_of(g, 1, row), c = element.tap_of(g, 2, column);
            if (a < 0 || b < 0 || c < 0) return;
            load_floats<V>(dy + offset(g.stride_in, plane, row, column), v);
            auto taps = Pack<unsigned char, V>::load(tap + offset(g.taps, plane, row, column));
#pragma unroll
            for (int j = 0; j < V; j++) total[j] += taps.value[j] == (a * g.kernel[1] + b)
                * g.kernel[2] + c ? v[j] : 0.0f;
        });
        store_floats<V>(dx + (int64)i * V, total);
    }
};

template <typename S, typename T, int V>
struct AvgBackward {
    static __device__ __forceinline__ void at(const S* dy, T* dx, const unsigned char*, const Geometry& g, unsigned i) {
        Element element(i, g, g.size, V);
        float total[V], v[V];
        fill(total, 0.0f);
        dy += element.start(g.stride_in);
        element.each_window(g, [&](int plane, int row, int column) {
            load_floats<V>(dy + offset(g.stride_in, plane, row, column), v);
            add(total, v, divisor(g, plane, row, column));
        });
        store_floats<V>(dx + (int64)i * V, total);
    }
};

// Grid-stride loop over `total` outputs, or over groups of 8 channels if vectorized.
template <template <typename, typename, int> class Kernel, typename S, typename T>
__device__ __forceinline__ void for_each_element(const S* x, T* out, unsigned char* tap, const Geometry& g,
                                                 unsigned total, bool vectorized) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        if (vectorized) Kernel<S, T, 8>::at(x, out, tap, g, i);
        else Kernel<S, T, 1>::at(x, out, tap, g, i);
    }
}

// out = maximum of each window, tap = its tap.
template <typename S, typename T>
__global__ void max_pool_forward(const S* x, T* out, unsigned char* tap, Geometry g, unsigned total, bool vectorized) {
    for_each_element<MaxForward>(x, out, tap, g, total, vectorized);
}

// out = index of each window's maximum within its image.
template <typename S, typename T>
__global__ void max_pool_indices(const S* x, T* out, unsigned char* tap, Geometry g, unsigned total, bool vectorized) {
    for_each_element<MaxIndices>(x, out, tap, g, total, vectorized);
}

// out = sum of each window / divisor.
template <typename S, typename T>
__global__ void avg_pool_forward(const S* x, T* out, unsigned char* tap, Geometry g, unsigned total, bool vectorized) {
    for_each_element<AvgForward>(x, out, tap, g, total, vectorized);
}

// dx = sum of dy over the windows whose maximum this pixel is.
template <typename S, typename T>
__global__ void max_pool_backward(const S* dy, T* dx, unsigned char* tap, Geometry g, unsigned total, bool vectorized) {
    for_each_element<MaxBackward>(dy, dx, tap, g, total, vectorized);
}

// dx = sum of dy / divisor over the windows that contain this pixel.
template <typename S, typename T>
__global__ void avg_pool_backward(const S* dy, T* dx, unsigned char* tap, Geometry g, unsigned total, bool vectorized) {
    for_each_element<AvgBackward>(dy, dx, tap, g, total, vectorized);
}

// entries: max_pool_forward<S, S> for S in TYPES
// entries: max_pool_indices<S, long long> for S in TYPES
// entries: avg_pool_forward<S, S> for S in TYPES
// entries: max_pool_backward<S, T> for (S, T) in PAIRS
// entries: avg_pool_backward<S, T> for (S, T) in PAIRS
