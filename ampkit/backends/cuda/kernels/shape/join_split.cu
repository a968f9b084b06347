// Rows of several arrays side by side, in words of 1 to 16 bytes: values move as they are, whatever they are.
#include "include/storage.cuh"

constexpr int PIECES = 16;

// Where pieces come from, where in a row of the result they begin, and how long they are there, in words.
struct Pieces {
    const void* from[PIECES];
    int64 start[PIECES];
    int64 length[PIECES];
};

// A piece for each blockIdx.y. width: words of a row of the result; there are fewer than 2^31 words in all.
template <typename W>
__global__ void join_pieces(void* out, const __grid_constant__ Pieces pieces, int rows, int64 width) {
    const W* from = reinterpret_cast<const W*>(pieces.from[blockIdx.y]);
    unsigned length = pieces.length[blockIdx.y], total = length * rows;
    W* to = reinterpret_cast<W*>(out) + pieces.start[blockIdx.y];
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        unsigned row = i / length;
        to[row * width + (i - row * length)] = from[i];
    }
}

// entries: join_pieces<W> for W in (uint4, uint2, unsigned, unsigned short, unsigned char)
