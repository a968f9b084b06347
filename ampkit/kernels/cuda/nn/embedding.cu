// Copies of table rows by index, in words of 1 to 16 bytes, whatever the dtype.
#include "include/storage.cuh"

template <typename W> __device__ __forceinline__ W all_ones() { return W(~W(0)); }
template <> __device__ __forceinline__ uint4 all_ones<uint4>() { return make_uint4(~0u, ~0u, ~0u, ~0u); }
template <> __device__ __forceinline__ uint2 all_ones<uint2>() { return make_uint2(~0u, ~0u); }

// out [outer, n, width] = table [outer, rows, width] at index [n]; width in words, fewer than 2^31 in all. An index out
// of range gives a row of ones in every bit, which is NaN in every floating-point format.
template <typename W, typename I>
__global__ void embedding_forward(const void* table, const I* index, void* out, unsigned outer, unsigned n, int64 rows,
                                  unsigned width) {
    unsigned total = outer * n * width;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        unsigned row = i / width, outer_index = row / n;
        int64 key = index[row - outer_index * n];
        bool in_range = key >= 0 && key < rows;
        const W* source = reinterpret_cast<const W*>(table) + (outer_index * rows + key) * width + (i - row * width);
        reinterpret_cast<W*>(out)[i] = in_range ? *source : all_ones<W>();
    }
}

// entries: embedding_forward<W, I> for W in (uint4, uint2, unsigned, unsigned short, unsigned char), I in (long long, int)
