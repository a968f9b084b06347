// Codes of formats below 16 bits from floating-point values, and back; see kernels/shared/formats.h.
#include "include/storage.cuh"
#include "include/philox.cuh"

using Bits32 = unsigned;
using Bits64 = uint64;

#define HELPER __device__ __forceinline__
HELPER Bits32 bits_of(float x) { return __float_as_uint(x); }
HELPER float float_of(Bits32 bits) { return __uint_as_float(bits); }
#include "shared/formats.h"

constexpr int EACH = 8;  // values of a thread: one block of the generator has as many words of 32 bits

template <typename T>
HELPER Bits32 float32_bits(T x) { return __float_as_uint(to_float(x)); }
template <>
HELPER Bits32 float32_bits(__half x) {  // the conversion of NaN loses its sign
    Bits32 sign = Bits32(__half_as_ushort(x) & 0x8000) << 16;
    return (__float_as_uint(to_float(x)) & 0x7fffffff) | sign;
}

// Subnormals, too: arithmetic may make them zero.
template <typename T>
HELPER T of_float32_bits(Bits32 bits) { return from_float<T>(__uint_as_float(bits)); }
template <>
HELPER __nv_bfloat16 of_float32_bits(Bits32 bits) { return __ushort_as_bfloat16((unsigned short)(bits >> 16)); }

// codes [count], with PACKED [count / 2], of values [count]. beyond: the code of what is beyond the largest magnitude.
// vectorized: both are aligned to 16 bytes.
template <typename F, typename T, bool PACKED>
__global__ void encode_format(const T* values, unsigned char* codes, int64 count, unsigned beyond, bool stochastic,
                              uint64 seed, uint64 call, const uint64* draw, bool vectorized) {
    int64 block = (int64)blockIdx.x * blockDim.x + threadIdx.x, at = block * EACH;
    if (at >= count) return;
    uint64 words[4] = {};
    if (stochastic) {
        replay_draw(draw, seed, call);
        philox(seed, call, block, words);
    }
    bool whole = vectorized && at + EACH <= count;
    Pack<T, EACH> x;
    if (whole) x = Pack<T, EACH>::load(values + at);
    else for (int i = 0; i < EACH; i++) x.value[i] = values[at + i < count ? at + i : count - 1];
    constexpr int BYTES = PACKED ? EACH / 2 : EACH;
    Pack<unsigned char, BYTES> found;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        Bits32 bits = float32_bits(x.value[i]), word = Bits32(words[i / 2] >> (i % 2 * 32));
        Bits32 code = stochastic ? encode_stochastic<F>(bits, beyond, word) : encode<F>(bits, beyond);
        if (!PACKED) found.value[i] = code;
        else if (i % 2) found.value[i / 2] |= code << 4;
        else found.value[i / 2] = code;
    }
    unsigned char* to = codes + block * BYTES;
    if (whole) return found.store(to);
    int64 left = PACKED ? (count - at) / 2 : count - at;
    for (int i = 0; i < BYTES && i < left; i++) to[i] = found.value[i];
}

// values [count], with PACKED [2 * count], of codes [count].
template <typename F, typename T, bool PACKED>
__global__ void decode_format(const unsigned char* codes, T* values, int64 count, bool vectorized) {
    constexpr int BYTES = PACKED ? EACH / 2 : EACH;
    int64 block = (int64)blockIdx.x * blockDim.x + threadIdx.x, at = block * BYTES;
    if (at >= count) return;
    bool whole = vectorized && at + BYTES <= count;
    Pack<unsigned char, BYTES> from;
    if (whole) from = Pack<unsigned char, BYTES>::load(codes + at);
    else for (int i = 0; i < BYTES; i++) from.value[i] = codes[at + i < count ? at + i : count - 1];
    Pack<T, EACH> found;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        Bits32 code = PACKED ? from.value[i / 2] >> (i % 2 * 4) & 15 : from.value[i];
        found.value[i] = of_float32_bits<T>(decode<F, Bits32>(code));
    }
    T* to = values + block * EACH;
    if (whole) return found.store(to);
    int64 left = (count - at) * (EACH / BYTES);
    for (int i = 0; i < EACH && i < left; i++) to[i] = found.value[i];
}

// Those named fnuz are formats of other vendors, and float64 is rare: references serve them.
// set BYTE_FORMATS = (Float8E4M3FN, Float8E5M2, Float8E8M0FNU)
// entries: encode_format<F, T, false> for F in BYTE_FORMATS, T in TYPES
// entries: encode_format<Float4E2M1FN, T, true> for T in TYPES
// entries: decode_format<F, T, false> for F in BYTE_FORMATS, T in TYPES
// entries: decode_format<Float4E2M1FN, T, true> for T in TYPES
