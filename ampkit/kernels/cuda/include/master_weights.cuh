// Flat master weights and their 16-bit copies, V values per access, rounded to nearest or stochastically.
#pragma once
#include "include/block.cuh"
#include "include/philox.cuh"

// Grid-stride loop: part.apply<N>(i) for the N values from i on, V at a time and the remainder one by one.
template <int V, typename Part>
__device__ __forceinline__ void for_each_vector(int64 count, const Part& part) {
    int64 stride = (int64)gridDim.x * blockDim.x * V;
    for (int64 i = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * V; i < count; i += stride) {
        if (i + V <= count) {
            part.template apply<V>(i);
        } else {
            for (int64 k = i; k < count; k++) part.template apply<1>(k);
        }
    }
}

template <typename M, typename T>
struct CastCopy {
    const M* master;
    T* copy;

    template <int N>
    __device__ __forceinline__ void apply(int64 i) const {
        float p[N];
        load_floats<N>(master + i, p);
        store_floats<N>(copy + i, p);
    }
};

// Of a float32: the bits that T drops, and the bit pattern of T's largest finite value.
template <typename T> struct Format { static constexpr int DROPPED_BITS = 0, MOST = 0; };
template <> struct Format<__half> { static constexpr int DROPPED_BITS = 13, MOST = 0x477FE000; };
template <> struct Format<__nv_bfloat16> { static constexpr int DROPPED_BITS = 16, MOST = 0x7F7F0000; };

// Stochastic rounding to T: up with probability equal to the remainder; finite if x is. word: 16 random bits.
template <typename T>
__device__ __forceinline__ float round_stochastically(float x, unsigned word) {
    constexpr int DROPPED_BITS = Format<T>::DROPPED_BITS;
    int bits = __float_as_int(x), size = bits & 0x7FFFFFFF;
    if (size >= 0x7F800000) return x;
    int raised = (size + int(word >> (16 - DROPPED_BITS))) & ~((1 << DROPPED_BITS) - 1);
    if (DROPPED_BITS == 13 && size < 0x38800000) {  // subnormals of __half: multiples of 2^-24
        float wide = __int_as_float(size) * 16777216.0f, whole = floorf(wide);
        if (floorf((wide - whole) * 65536.0f) > float(word)) whole += 1.0f;
        raised = __float_as_int(whole * (1.0f / 16777216.0f));
    }
    raised = raised < Format<T>::MOST ? raised : Format<T>::MOST;
    return __int_as_float(raised | (bits & int(0x80000000u)));
}

// Random draw with 16 bits per element, starting at element `start`, a multiple of 16: see philox.cuh.
struct RandomBits {
    uint64 seed, call;
    const uint64* draws;
    int64 start;

    // Rounds the N values from i on (1, or 4 from a multiple of 4) to values of T.
    template <typename T, int N>
    __device__ __forceinline__ void round(int64 i, float (&values)[N]) const {
        uint64 key = seed, number = call, words[4];
        int64 at = start + i;
        replay_draw(draws, key, number);
        philox(key, number, at / 16, words);
        uint64 four = at % 16 < 8 ? (at % 16 < 4 ? words[0] : words[1]) : (at % 16 < 12 ? words[2] : words[3]);
#pragma unroll
        for (int j = 0; j < N; j++)
            values[j] = round_stochastically<T>(values[j], unsigned(four >> ((at + j) % 4 * 16)) & 0xffff);
    }
};

// Master weights of dtype M and their 16-bit copies, null for none. 16-bit masters are rounded stochastically.
template <typename M>
struct MasterWeights {
    M* master;
    __half* float16_copy;
    __nv_bfloat16* bfloat16_copy;
    RandomBits random_bits;

    template <int N>
    __device__ __forceinline__ void store(int64 i, float (&p)[N]) const {
        if (sizeof(M) == 2) random_bits.round<M>(i, p);
        store_floats<N>(master + i, p);
        if (float16_copy) store_floats<N>(float16_copy + i, p);
        if (bfloat16_copy) store_floats<N>(bfloat16_copy + i, p);
    }

    // A skipped step: only writes the copies, which must be valid after any step.
    template <int V>
    __device__ __forceinline__ void rewrite_copies(int64 count) const {
        if (float16_copy) for_each_vector<V>(count, CastCopy<M, __half>{master, float16_copy});
        if (bfloat16_copy) for_each_vector<V>(count, CastCopy<M, __nv_bfloat16>{master, bfloat16_copy});
    }
};
