// Masters of weights in flat memory, and their 16-bit copies: walked V values at a time, rounded to the nearest or at
// random.
#pragma once
#include "include/block.cuh"
#include "include/philox.cuh"

// `part.at<N>(i)` for the N values from i on: V at once, and the last few one by one.
template <int V, typename Part>
__device__ __forceinline__ void over(int64 count, const Part& part) {
    int64 stride = (int64)gridDim.x * blockDim.x * V;
    for (int64 i = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * V; i < count; i += stride) {
        if (i + V <= count) {
            part.template at<V>(i);
        } else {
            for (int64 k = i; k < count; k++) part.template at<1>(k);
        }
    }
}

template <typename M, typename T>
struct Narrow {
    const M* master;
    T* copy;

    template <int N>
    __device__ __forceinline__ void at(int64 i) const {
        float p[N];
        load_floats<N>(master + i, p);
        store_floats<N>(copy + i, p);
    }
};

// Of a float32: how many bits T cuts off, and the bits of its largest finite number.
template <typename T> struct Format { static constexpr int DROPPED = 0, MOST = 0; };
template <> struct Format<__half> { static constexpr int DROPPED = 13, MOST = 0x477FE000; };
template <> struct Format<__nv_bfloat16> { static constexpr int DROPPED = 16, MOST = 0x7F7F0000; };

// One of the two values of T next to x, the nearer the likelier; finite where x is. word: 16 random bits.
template <typename T>
__device__ __forceinline__ float round_stochastically(float x, unsigned word) {
    constexpr int DROPPED = Format<T>::DROPPED;
    int bits = __float_as_int(x), size = bits & 0x7FFFFFFF;
    if (size >= 0x7F800000) return x;
    int raised = (size + int(word >> (16 - DROPPED))) & ~((1 << DROPPED) - 1);
    if (DROPPED == 13 && size < 0x38800000) {  // below the normal numbers of __half: multiples of 2^-24
        float wide = __int_as_float(size) * 16777216.0f, whole = floorf(wide);
        if (floorf((wide - whole) * 65536.0f) > float(word)) whole += 1.0f;
        raised = __float_as_int(whole * (1.0f / 16777216.0f));
    }
    raised = raised < Format<T>::MOST ? raised : Format<T>::MOST;
    return __int_as_float(raised | (bits & int(0x80000000u)));
}

// A word of 16 bits for each element, from element `start`, a multiple of 16, on: see philox.cuh.
struct RandomBits {
    uint64 seed, call;
    const uint64* draws;
    int64 start;

    // The N values from i on, 1 or, from a multiple of 4, 4: each as T holds it.
    template <typename T, int N>
    __device__ __forceinline__ void round(int64 i, float (&values)[N]) const {
        uint64 key = seed, number = call, words[4];
        int64 at = start + i;
        at_launch(draws, key, number);
        philox(key, number, at / 16, words);
        uint64 four = at % 16 < 8 ? (at % 16 < 4 ? words[0] : words[1]) : (at % 16 < 12 ? words[2] : words[3]);
#pragma unroll
        for (int j = 0; j < N; j++) values[j] = round_stochastically<T>(values[j], unsigned(four >> ((at + j) % 4 * 16)) & 0xffff);
    }
};

// Masters, in M, and where their 16-bit copies lie; null where there is none. Masters in 16 bits are rounded stochastically.
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

    // A step that is not real: the copies, which count as fresh after any step, and may not have been filled yet.
    template <int V>
    __device__ __forceinline__ void rewrite(int64 count) const {
        if (float16_copy) over<V>(count, Narrow<M, __half>{master, float16_copy});
        if (bfloat16_copy) over<V>(count, Narrow<M, __nv_bfloat16>{master, bfloat16_copy});
    }
};
