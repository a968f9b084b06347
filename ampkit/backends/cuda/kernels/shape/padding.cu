// Arrays with more at their edges, in words of 1 to 8 bytes; and the gradient: what stands in for an element, added up.
#include "include/storage.cuh"

constexpr int AXES = 5;
enum Mode { CONSTANT, REFLECT, REPLICATE, CIRCULAR };

// The axes from the innermost, those that are missing of one element. size: elements inside; wide: with the edges, which
// have `before` of them at the start; read: how far apart the elements lie that are read.
struct Edges {
    int64 read[AXES];
    int size[AXES], wide[AXES], before[AXES], mode;
};

// Where element i of a result of `size` stands.
__device__ __forceinline__ void split(unsigned i, const int (&size)[AXES], int (&place)[AXES]) {
#pragma unroll
    for (int d = 0; d < AXES; d++) {
        unsigned beyond = size[d] == 1 ? i : i / size[d];
        place[d] = i - beyond * size[d], i = beyond;
    }
}

// The element inside that stands at `place` of n, as far outside as the mode goes; -1 where none does.
__device__ __forceinline__ int inside(int mode, int place, int n) {
    if (place >= 0 && place < n) return place;
    bool first = place < 0;
    if (mode == REFLECT) return first ? -place : 2 * (n - 1) - place;
    if (mode == REPLICATE) return first ? 0 : n - 1;
    return mode == CIRCULAR ? (first ? place + n : place - n) : -1;
}

// out, without gaps: fewer than 2^31 words. fill: what stands outside in the mode CONSTANT.
template <typename W>
__global__ void extend(const void* from, void* out, const __grid_constant__ Edges e, unsigned long long fill, unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int place[AXES];
        split(i, e.wide, place);
        int64 at = 0;
        bool there = true;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            int of = inside(e.mode, place[d] - e.before[d], e.size[d]);
            there &= of >= 0, at += of * e.read[d];
        }
        reinterpret_cast<W*>(out)[i] = there ? reinterpret_cast<const W*>(from)[at] : W(fill);
    }
}

// Of what stands in for element p of axis d, the k-th: its place, below 0 where there is none. REPLICATE has a run, the
// others one before the first (k is -1), one inside, and one after the last (1), where the width reaches so far.
__device__ __forceinline__ int stand_in(const Edges& e, int d, int p, int k) {
    int n = e.size[d], q = e.before[d] + p + (e.mode == CIRCULAR ? k * n : 0);
    if (e.mode == REPLICATE) return k;
    if (e.mode == REFLECT && k) {
        if (p == (k > 0 ? n - 1 : 0)) return -1;  // the mirror
        q = e.before[d] - p + (k > 0 ? 2 * (n - 1) : 0);
    }
    return q < e.wide[d] ? q : -1;
}

// The sum of what stands in for the element at `place`, from axis D inwards; dy is read from `at` on.
template <int D, typename S>
__device__ __forceinline__ float standing_in(const S* dy, const Edges& e, const int (&place)[AXES], int64 at) {
    if constexpr (D < 0) {
        return to_float(dy[at]);
    } else {
        int p = place[D], own = e.before[D] + p, first = -1, last = 1;
        if (e.mode == REPLICATE) first = p ? own : 0, last = p < e.size[D] - 1 ? own : e.wide[D] - 1;
        float total = 0.0f;
#pragma unroll 1
        for (int k = first; k <= last; k++) {
            int q = stand_in(e, D, p, k);
            if (q >= 0) total += standing_in<D - 1>(dy, e, place, at + q * e.read[D]);
        }
        return total;
    }
}

// dx, without gaps: fewer than 2^31 elements.
template <typename S, typename T>
__global__ void add_edges(const S* dy, T* dx, const __grid_constant__ Edges e, unsigned total) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int place[AXES];
        split(i, e.size, place);
        dx[i] = from_float<T>(standing_in<AXES - 1>(dy, e, place, 0));
    }
}

// entries: extend<W> for W in (unsigned long long, unsigned, unsigned short, unsigned char)
// entries: add_edges<S, T> for (S, T) in PAIRS
