// Codes below 16 bits and the scales of their blocks, with the bits of the reference in ops/linalg/quantization.py.
#pragma once
#include "include/philox.cuh"
#include "include/storage.cuh"

using Bits32 = unsigned;
using Bits64 = uint64;

#define HELPER __device__ __forceinline__
HELPER Bits32 bits_of(float x) { return __float_as_uint(x); }
HELPER float float_of(Bits32 bits) { return __uint_as_float(bits); }
#include "shared/formats.h"

HELPER bool is_tiny(Bits32 bits) { return (bits & 0x7f800000) == 0; }  // subnormal or zero
HELPER bool is_zero(Bits32 bits) { return (bits & 0x7fffffff) == 0; }
HELPER bool is_finite(Bits32 bits) { return (bits & 0x7fffffff) < 0x7f800000; }

// CuPy has float32 arithmetic compiled to flush subnormal numbers to zero; NumPy's keeps them, and scales of tiny values
// are subnormal. These instructions keep them, too, at the same speed; C++ has no name for them.
#ifndef CUDA_ON_CPU
#define KEEPING_SUBNORMALS(name, instruction)                                          \
    HELPER float name(float a, float b) {                                              \
        float found;                                                                   \
        asm(instruction ".rn.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));          \
        return found;                                                                  \
    }
KEEPING_SUBNORMALS(add_kept, "add")
KEEPING_SUBNORMALS(multiply_kept, "mul")
KEEPING_SUBNORMALS(divide_kept, "div")
#undef KEEPING_SUBNORMALS
#endif

// x as float64; a conversion would flush what is subnormal.
HELPER double widened(float x) {
    Bits32 bits = bits_of(x);
    if (!is_tiny(bits)) return double(x);
    double size = double(int(bits & 0x7fffff)) * 0x1p-149;
    return bits >> 31 ? -size : size;
}

// The values of the formats' largest codes.
struct Int8 {};
template <class F> struct Limits;
template <> struct Limits<Float8E4M3FN> { static constexpr float LARGEST = 448.0f; };
template <> struct Limits<Float8E5M2> { static constexpr float LARGEST = 57344.0f; };
template <> struct Limits<Float4E2M1FN> { static constexpr float LARGEST = 6.0f; };
template <> struct Limits<Int8> { static constexpr float LARGEST = 127.0f; };

// Codes to nearest even, or, with 16 random bits, up where the fraction is above bits / 65536. Finite values saturate.
template <class F>
struct Coded {
    static constexpr int PER_BYTE = F::SIGN == 3 ? 2 : 1;

    static HELPER Bits32 encode(float x, bool stochastic, Bits32 random) {
        Bits32 bits = bits_of(x), magnitude = bits & 0x7fffffff, code;
        if (!is_finite(bits)) return PER_BYTE == 2 ? 0 : F::NOT_NUMBER;  // E2M1 has none
        if (stochastic) {
            constexpr Bits32 LEAST = 128 - F::BIAS;  // the exponent of the smallest normal value, biased as float32's
            magnitude = smaller_bits(magnitude, bits_of(Limits<F>::LARGEST));
            Bits32 exponent = larger_bits(magnitude >> 23, LEAST);
            float steps = __fmul_rn(float_of(magnitude), float_of((F::MANTISSA + 254 - exponent) << 23));
            int below = int(steps);
            bool up = __fmul_rn(steps - float(below), 65536.0f) > float(int(random));
            if (is_tiny(magnitude)) up = magnitude != 0 && random == 0;
            code = Bits32(below) + up + ((exponent - LEAST) << F::MANTISSA);
        } else {
            code = smaller_bits(nearest_code<F>(magnitude), F::LARGEST);
        }
        return code | bits >> 31 << F::SIGN;
    }
    static HELPER float decode(Bits32 code) { return float_of(::decode<F>(code)); }
};

template <>
struct Coded<Int8> {
    static constexpr int PER_BYTE = 1;
    static HELPER Bits32 encode(float x, bool, Bits32) {
        if (!is_finite(bits_of(x))) return 0;
        x = x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x;
        return Bits32(__float2int_rn(x)) & 0xff;
    }
    static HELPER float decode(Bits32 code) { return float(int(code << 24) >> 24); }
};

// x times its multiplier; a finite value that would overflow becomes the largest float32, so that its code saturates.
HELPER float scaled(float x, float by) {
    float product = multiply_kept(x, by);
    bool overflows = is_finite(bits_of(x)) && (bits_of(product) & 0x7fffffff) == 0x7f800000;
    return overflows ? float_of(bits_of(product) - 1) : product;
}

enum Scaling : unsigned { ONE_FACTOR, POWER_OF_2, E8M0, TWO_LEVELS };  // of Quantization.scale

HELPER float limited(float x) { return x < 3.402823466e38f ? x : 3.402823466e38f; }

// The encoding factor of a matrix of two levels, and its reciprocal, from the bits of its largest magnitude.
template <class F>
HELPER float encoding_factor(Bits32 most) {
    float found = is_tiny(most) ? 3.402823466e38f : limited(__fdiv_rn(448.0f * Limits<F>::LARGEST, float_of(most)));
    return found == 0.0f ? 1.0f : found;
}

// What values of a block are multiplied by, and the bits of its scale, from the bits of its largest magnitude: _scales
// of the reference, with its roundings. encode: of two levels.
template <class F>
HELPER float multiplier_of(Bits32 largest, unsigned scaling, float epsilon, float encode, Bits32& scale) {
    constexpr float TOP = Limits<F>::LARGEST;
    bool finite = largest < 0x7f800000;
    if (!finite) largest = bits_of(1.0f);
    float multiplier, not_a_number = float_of(0x7fc00000);
    if (scaling == E8M0) {
        Bits32 value = bits_of(multiply_kept(float_of(largest), 1.0f / TOP)), exponent = value >> 23, mantissa = value & 0x7fffff;
        exponent += mantissa > 0 && exponent != 254 && !(exponent == 0 && mantissa <= 0x400000);
        scale = finite ? exponent : 255;
        multiplier = float_of(exponent == 254 ? 0x400000 : (254 - exponent) << 23);
    } else if (scaling == TWO_LEVELS) {
        float wanted = multiply_kept(float_of(largest), encode * (1.0f / TOP)), decoding = divide_kept(1.0f, encode);
        Bits32 code = Coded<Float8E4M3FN>::encode(wanted < 448.0f ? wanted : 448.0f, false, 0);
        scale = finite ? code : 0x7f;
        multiplier = limited(divide_kept(1.0f, multiply_kept(Coded<Float8E4M3FN>::decode(code), decoding)));
    } else {
        largest = larger_bits(largest, bits_of(epsilon));
        float factor;
        if (TOP == 127.0f) {
            factor = divide_kept(float_of(largest), TOP), multiplier = divide_kept(1.0f, factor);
        } else {
            multiplier = is_tiny(largest) ? 3.402823466e38f : limited(__fdiv_rn(TOP, float_of(largest)));
            if (scaling == POWER_OF_2) multiplier = float_of(bits_of(multiplier) & 0x7f800000);
            if (largest == 0) multiplier = 1.0f;
            factor = divide_kept(1.0f, multiplier);
        }
        scale = bits_of(finite ? factor : not_a_number);
        return multiplier;
    }
    return finite ? multiplier : not_a_number;
}

HELPER float scale_value(const void* scales, int64 at, unsigned scaling) {
    if (scaling <= POWER_OF_2) return reinterpret_cast<const float*>(scales)[at];
    Bits32 code = reinterpret_cast<const unsigned char*>(scales)[at];
    return scaling == E8M0 ? float_of(::decode<Float8E8M0FNU>(code)) : Coded<Float8E4M3FN>::decode(code);
}

HELPER float negated(float x) { return float_of(bits_of(x) ^ 0x80000000); }  // -x would flush it

// 16 neighbours times the Hadamard matrix with signs, as `hadamard` of the reference adds them.
constexpr Bits32 HADAMARD_SIGNS = 0xd7e8;  // bit i: element i is negated; checked by the tests

HELPER void hadamard(float (&x)[16]) {
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = float_of(bits_of(x[i]) ^ ((HADAMARD_SIGNS >> i & 1) << 31));
#pragma unroll
    for (int distance = 1; distance < 16; distance *= 2)
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (!(i & distance)) {
                float first = x[i], second = x[i + distance];
                x[i] = add_kept(first, second), x[i + distance] = add_kept(first, negated(second));
            }
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = multiply_kept(x[i], 0.25f);
}

// The 16-bit words [at, at + 16) of a draw, four in each of `words`.
HELPER void draw(uint64 (&words)[4], uint64 seed, uint64 call, uint64 at) {
    philox(seed, call, at / 16, words);
    unsigned first = unsigned(at % 16);
    if (!first) return;
    uint64 both[8];
    philox(seed, call, at / 16 + 1, reinterpret_cast<uint64(&)[4]>(both[4]));
#pragma unroll
    for (int i = 0; i < 4; i++) both[i] = words[i];
#pragma unroll
    for (int i = 0; i < 6; i++) both[i] = first & 8 ? both[i + 2] : both[i];
#pragma unroll
    for (int i = 0; i < 5; i++) both[i] = first & 4 ? both[i + 1] : both[i];
    unsigned shift = first % 4 * 16;
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = shift ? both[i] >> shift | both[i + 1] << (64 - shift) : both[i];
}
