// Padding, in words of 1 to 8 bytes, and its gradient: a sum over the copies of each element.
#include "include/storage.cuh"

constexpr int AXES = 5;
enum Mode { CONSTANT, REFLECT, REPLICATE, CIRCULAR };

// Axes from the innermost; unused ones have size 1. size: of the input; padded: of the output; pad_before: added before
// the first element; stride: of the array that is read, in elements.
struct Padding {
    int64 stride[AXES];
    int size[AXES], padded[AXES], pad_before[AXES], mode;
};

// Coordinates of element i of a contiguous array.
__device__ __forceinline__ void unravel(unsigned i, const int (&size)[AXES], int (&index)[AXES]) {
#pragma unroll
    for (int d = 0; d < AXES; d++) {
        unsigned outer_index = size[d] == 1 ? i : i / size[d];
        index[d] = i - outer_index * size[d], i = outer_index;
    }
}

// The input index at padded index - pad_before, which may be outside [0, n); -1 if it is a constant.
__device__ __forceinline__ int source_index(int mode, int index, int n) {
    if (index >= 0 && index < n) return index;
    bool first = index < 0;
    if (mode == REFLECT) return first ? -index : 2 * (n - 1) - index;
    if (mode == REPLICATE) return first ? 0 : n - 1;
    return mode == CIRCULAR ? (first ? index + n : index - n) : -1;
}

// out: contiguous, fewer than 2^31 words. fill: the value of CONSTANT.
template <typename W>
__global__ void pad_forward(const void* from, void* out, const __grid_constant__ Padding e, unsigned long long fill,
                            unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int index[AXES];
        unravel(i, e.padded, index);
        int64 at = 0;
        bool has_source = true;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            int source = source_index(e.mode, index[d] - e.pad_before[d], e.size[d]);
            has_source &= source >= 0, at += source * e.stride[d];
        }
        reinterpret_cast<W*>(out)[i] = has_source ? reinterpret_cast<const W*>(from)[at] : W(fill);
    }
}

// Padded index of the k-th copy of element p along axis d, -1 if there is none. REPLICATE: k is that index. Else k =
// -1, 0, 1: the copy before, the element itself, the copy after.
__device__ __forceinline__ int copy_index(const Padding& e, int d, int p, int k) {
    int n = e.size[d], q = e.pad_before[d] + p + (e.mode == CIRCULAR ? k * n : 0);
    if (e.mode == REPLICATE) return k;
    if (e.mode == REFLECT && k) {
        if (p == (k > 0 ? n - 1 : 0)) return -1;  // the mirror itself has no copy
        q = e.pad_before[d] - p + (k > 0 ? 2 * (n - 1) : 0);
    }
    return q < e.padded[d] ? q : -1;
}

// The sum of dy over the copies of the element at `index`, from axis D inwards.
template <int D, typename S>
__device__ __forceinline__ float gather_sum(const S* dy, const Padding& e, const int (&index)[AXES], int64 at) {
    if constexpr (D < 0) {
        return to_float(dy[at]);
    } else {
        int p = index[D], own = e.pad_before[D] + p, first = -1, last = 1;
        if (e.mode == REPLICATE) first = p ? own : 0, last = p < e.size[D] - 1 ? own : e.padded[D] - 1;
        float total = 0.0f;
#pragma unroll 1
        for (int k = first; k <= last; k++) {
            int q = copy_index(e, D, p, k);
            if (q >= 0) total += gather_sum<D - 1>(dy, e, index, at + q * e.stride[D]);
        }
        return total;
    }
}

// dx: contiguous, fewer than 2^31 elements; a thread per element of dx gathers its copies.
template <typename S, typename T>
__global__ void pad_backward(const S* dy, T* dx, const __grid_constant__ Padding e, unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int index[AXES];
        unravel(i, e.size, index);
        dx[i] = from_float<T>(gather_sum<AXES - 1>(dy, e, index, 0));
    }
}

// entries: pad_forward<W> for W in (unsigned long long, unsigned, unsigned short, unsigned char)
// entries: pad_backward<S, T> for (S, T) in PAIRS
