// Rows of a table by their index, in words of 1 to 16 bytes: values move as they are, whatever they are.
#include "include/storage.cuh"

template <typename W> __device__ __forceinline__ W nothing() { return W(~W(0)); }
template <> __device__ __forceinline__ uint4 nothing<uint4>() { return make_uint4(~0u, ~0u, ~0u, ~0u); }
template <> __device__ __forceinline__ uint2 nothing<uint2>() { return make_uint2(~0u, ~0u); }

// from [outer, rows, width], index [n] -> out [outer, n, width], in words, fewer than 2^31. An index outside the table
// reads nothing: its row is all ones, which is NaN in every floating-point format.
template <typename W, typename I>
__global__ void embedding_forward(const void* from, const I* index, void* out, unsigned outer, unsigned n, int64 rows,
                                  unsigned width) {
    unsigned total = outer * n * width;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        unsigned row = i / width, beyond = row / n;
        int64 at = index[row - beyond * n];
        bool here = at >= 0 && at < rows;
        const W* word = reinterpret_cast<const W*>(from) + (beyond * rows + at) * width + (i - row * width);
        reinterpret_cast<W*>(out)[i] = here ? *word : nothing<W>();
    }
}

// entries: embedding_forward<W, I> for W in (uint4, uint2, unsigned, unsigned short, unsigned char), I in (long long, int)
