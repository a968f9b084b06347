// gather and scatter along one axis, in words of 1 to 8 bytes, whatever the dtype.
#include "include/storage.cuh"

constexpr int AXES = 6;

// Axes of the index, outermost first, with their strides in the index and in the array; the array's stride along the
// indexed axis is 0 there, and `step` here; `length` is its size.
struct IndexLayout {
    int64 index[AXES], array[AXES], step, length;
    unsigned size[AXES];
    int axes;
};

// Offsets of element i of the index: in the index, and in the array for index 0.
struct Element {
    int64 index = 0, array = 0;

    __device__ __forceinline__ Element(const IndexLayout& layout, unsigned i) {
        for (int d = layout.axes - 1; d >= 0; d--) {
            unsigned outer_index = i / layout.size[d], key = i - outer_index * layout.size[d];
            index += key * layout.index[d], array += key * layout.array[d];
            i = outer_index;
        }
    }

    // Whether `key` is a valid index.
    static __device__ __forceinline__ bool in_range(const IndexLayout& layout, int64 key) {
        return key >= 0 && key < layout.length;
    }
};

// out[i] = array at index[i]; all bits set (NaN in a floating-point format) for an index out of range.
template <typename W, typename I>
__global__ void gather_forward(const void* array, const I* index, void* out, const __grid_constant__ IndexLayout layout,
                               unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        Element element(layout, i);
        int64 key = index[element.index];
        const W* word = reinterpret_cast<const W*>(array) + element.array + key * layout.step;
        reinterpret_cast<W*>(out)[i] = Element::in_range(layout, key) ? *word : W(~W(0));
    }
}

// out[i] = flat offset that index[i] names, -1 if out of range; fewer than 2^31.
template <typename I>
__global__ void flat_index(const I* index, int* out, const __grid_constant__ IndexLayout layout, unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        Element element(layout, i);
        int64 key = index[element.index];
        out[i] = Element::in_range(layout, key) ? int(element.array + key * layout.step) : -1;
    }
}

// out[i] = input[i], or the value of element last[i] - 1 if last[i] > 0; layout: that of the values.
template <typename W>
__global__ void scatter_forward(const void* input, const void* values, const int* last, void* out,
                                const __grid_constant__ IndexLayout layout, unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int position = last[i];
        const W* word = reinterpret_cast<const W*>(input) + i;
        if (position) word = reinterpret_cast<const W*>(values) + Element(layout, position - 1).index;
        reinterpret_cast<W*>(out)[i] = *word;
    }
}

// set WORDS = (unsigned long long, unsigned, unsigned short, unsigned char)
// entries: gather_forward<W, I> for W in WORDS, I in (long long, int)
// entries: flat_index<I> for I in (long long, int)
// entries: scatter_forward<W> for W in WORDS
