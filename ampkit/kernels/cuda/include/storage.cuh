// Storage: float, __half or __nv_bfloat16 in memory, float in registers, one rounding when stored.
//
// A `.cu` file ends with comments that list its entries, the instances of its kernels. `entries` of nvrtc.py reads
// them, and the tests compile and run exactly those:
//
//     // entries: softmax_forward<S, T> for (S, T) in PAIRS
//     // entries: elementwise_forward<Op> for Op in (Exp, Log,
//     //     Sqrt)
//     // entries: segment_scan
//     // set UNARY = (Exp, Log, Sqrt)
//
// `for` binds names to each member of a set, in all combinations. A set is written out or named: TYPES is (float,
// __half, __nv_bfloat16); PAIRS, input and output dtype, is each of these with itself and both 16-bit types with float.
// Sets add with +. A line that begins with four spaces after its slashes continues the one before.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>

#ifndef CUDA_ON_CPU
// The block's dynamic shared memory as an array of T, aligned to 16 bytes.
#define DYN_SHARED(T, name)                                            \
    extern __shared__ __align__(16) unsigned char dynamic_shared[];    \
    T* name = reinterpret_cast<T*>(dynamic_shared)
#define CHECK_ALIGNED(p, bytes)
#endif

using int64 = long long;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bool x) { return float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// x rounded to the nearest value of T, ties to even; values above the largest become infinity.
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// Whether p is a multiple of `bytes`, a power of two.
__device__ __forceinline__ bool aligned(const void* p, int bytes) {
    return (reinterpret_cast<unsigned long long>(p) & (bytes - 1)) == 0;
}

// The integer type of one access of 2 to 16 bytes.
template <int BYTES> struct Word;
template <> struct Word<1> { using type = unsigned char; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned int; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };

// N stored values, loaded and stored in 16-byte accesses, or in one smaller access where they are fewer bytes. p must
// be aligned to the access.
template <typename T, int N = 16 / sizeof(T)>
struct Pack {
    static constexpr int BYTES = N * sizeof(T) < 16 ? int(N * sizeof(T)) : 16;
    static constexpr int EACH = BYTES / sizeof(T);
    using Access = typename Word<BYTES>::type;
    static_assert(N % EACH == 0, "a pack is a whole number of accesses");
    T value[N];

    static __device__ __forceinline__ Pack load(const T* p) {
        CHECK_ALIGNED(p, BYTES);
        Pack pack;
#pragma unroll
        for (int i = 0; i < N / EACH; i++) {
            Access word = reinterpret_cast<const Access*>(p)[i];
            memcpy(pack.value + i * EACH, &word, BYTES);
        }
        return pack;
    }

    __device__ __forceinline__ void store(T* p) const {
        CHECK_ALIGNED(p, BYTES);
#pragma unroll
        for (int i = 0; i < N / EACH; i++) {
            Access word;
            memcpy(&word, value + i * EACH, BYTES);
            reinterpret_cast<Access*>(p)[i] = word;
        }
    }
};

// Loads N consecutive values as float32; alignment as in Pack.
template <int N, typename T>
__device__ __forceinline__ void load_floats(const T* p, float (&out)[N]) {
    Pack<T, N> pack = Pack<T, N>::load(p);
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = to_float(pack.value[i]);
}

// Stores N consecutive values, each rounded once; alignment as in Pack.
template <int N, typename T>
__device__ __forceinline__ void store_floats(T* p, const float (&in)[N]) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++) pack.value[i] = from_float<T>(in[i]);
    pack.store(p);
}

// What a kernel reads: the elements of x. reload: of one that was loaded before.
template <typename S>
struct ArrayInput {
    using Stored = S;
    const S* x;
    template <int V>
    __device__ __forceinline__ void load(float (&v)[V], int64 at) const { load_floats<V>(x + at, v); }
    template <int V>
    __device__ __forceinline__ void reload(float (&v)[V], int64 at) const { load_floats<V>(x + at, v); }
};

// What a kernel stores: the elements of `to`.
template <typename S>
struct ArrayOutput {
    S* to;
    template <int V>
    __device__ __forceinline__ void store(float (&v)[V], int64 at) const { store_floats<V>(to + at, v); }
};
