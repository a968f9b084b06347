// Concatenation of up to 16 arrays in one launch, in words of 1 to 16 bytes, whatever the dtype.
#include "include/storage.cuh"

constexpr int PIECES = 16;

// Of each array: its address; where its part of an output row starts, and how long it is, in words.
struct Pieces {
    const void* source[PIECES];
    int64 start[PIECES];
    int64 length[PIECES];
};

// blockIdx.y selects the array. width: words of an output row; fewer than 2^31 words in all.
template <typename W>
__global__ void concatenate(void* out, const __grid_constant__ Pieces pieces, int rows, int64 width) {
    const W* source = reinterpret_cast<const W*>(pieces.source[blockIdx.y]);
    unsigned length = pieces.length[blockIdx.y], total = length * rows;
    W* target = reinterpret_cast<W*>(out) + pieces.start[blockIdx.y];
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        unsigned row = i / length;
        target[row * width + (i - row * length)] = source[i];
    }
}

// entries: concatenate<W> for W in (uint4, uint2, unsigned, unsigned short, unsigned char)
