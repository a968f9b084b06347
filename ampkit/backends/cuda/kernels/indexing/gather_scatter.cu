// Single elements along an axis, at the places that an index names; values move in words of 1 to 8 bytes, whatever they are.
#include "include/storage.cuh"

constexpr int AXES = 6;

// The axes of an index, outermost first, and by how much a step along each moves in it and in the array whose places it
// names: there by nothing along the axis of these places, which has `length` of them, `step` apart.
struct Walk {
    int64 index[AXES], array[AXES], step, length;
    unsigned size[AXES];
    int axes;
};

// Where element i of the index lies, and the place in the array that it would name by 0.
struct At {
    int64 index = 0, array = 0;

    __device__ __forceinline__ At(const Walk& walk, unsigned i) {
        for (int d = walk.axes - 1; d >= 0; d--) {
            unsigned beyond = i / walk.size[d], at = i - beyond * walk.size[d];
            index += at * walk.index[d], array += at * walk.array[d];
            i = beyond;
        }
    }

    // Whether there is a place of number `at`.
    static __device__ __forceinline__ bool has(const Walk& walk, int64 at) { return at >= 0 && at < walk.length; }
};

// out[i], the elements of the index in their order; all ones, NaN of a floating-point number, for an index outside.
template <typename W, typename I>
__global__ void gather_along(const void* from, const I* index, void* out, const __grid_constant__ Walk walk, unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        At to(walk, i);
        int64 at = index[to.index];
        const W* word = reinterpret_cast<const W*>(from) + to.array + at * walk.step;
        reinterpret_cast<W*>(out)[i] = At::has(walk, at) ? *word : W(~W(0));
    }
}

// The places that the elements of the index name, -1 for one outside; there are fewer than 2^31.
template <typename I>
__global__ void places_along(const I* index, int* places, const __grid_constant__ Walk walk, unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        At to(walk, i);
        int64 at = index[to.index];
        places[i] = At::has(walk, at) ? int(to.array + at * walk.step) : -1;
    }
}

// out[i] = input[i], or the value that element last[i] - 1 of the index brings; walk: that of the values.
template <typename W>
__global__ void scatter_along(const void* input, const void* values, const int* last, void* out,
                              const __grid_constant__ Walk walk, unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int brought = last[i];
        const W* word = reinterpret_cast<const W*>(input) + i;
        if (brought) word = reinterpret_cast<const W*>(values) + At(walk, brought - 1).index;
        reinterpret_cast<W*>(out)[i] = *word;
    }
}

// set WORDS = (unsigned long long, unsigned, unsigned short, unsigned char)
// entries: gather_along<W, I> for W in WORDS, I in (long long, int)
// entries: places_along<I> for I in (long long, int)
// entries: scatter_along<W> for W in WORDS
