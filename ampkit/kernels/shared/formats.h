// Formats below 16 bits: a float32 to its code in one of them, and back. The formulas are those of base/formats.py.
//
// A backend includes this file after it has defined HELPER, what stands before a function; Bits32 and Bits64, unsigned
// integers; and the functions `Bits32 bits_of(float)` and `float float_of(Bits32)`. Functions of `Bits` take Bits32 or a
// vector of them, for which a backend that has such defines bits_of and float_of, too.
#pragma once

// The fields of `Format` in base/formats.py, but SIGN, the place of the sign's bit, and INFINITE, the code of infinity, 0
// where there is none.
#define FORMAT(NAME, MANTISSA_, BIAS_, LARGEST_, OVERFLOW_, NAN_, SIGN_, INF_)                               \
    struct NAME {                                                                                           \
        static constexpr int MANTISSA = MANTISSA_, BIAS = BIAS_, SIGN = SIGN_;                              \
        static constexpr Bits32 LARGEST = LARGEST_, BEYOND = OVERFLOW_, NOT_NUMBER = NAN_, INFINITE = INF_; \
    };
FORMAT(Float8E4M3FN, 3, 7, 0x7e, 0x7f, 0x7f, 7, 0)
FORMAT(Float8E5M2, 2, 15, 0x7b, 0x7c, 0x7f, 7, 0x7c)
FORMAT(Float8E4M3FNUZ, 3, 8, 0x7f, 0x80, 0x80, 7, 0)
FORMAT(Float8E5M2FNUZ, 2, 16, 0x7f, 0x80, 0x80, 7, 0)
FORMAT(Float8E8M0FNU, 0, 127, 0xfe, 0xff, 0xff, 8, 0)  // powers of two alone, without sign
FORMAT(Float4E2M1FN, 1, 1, 0x7, 0x7, 0x8, 3, 0)

template <class Bits>
HELPER Bits each(Bits32 x) { return Bits{} + x; }
template <class Bits>
HELPER Bits larger_bits(Bits a, Bits b) { return a > b ? a : b; }
template <class Bits>
HELPER Bits smaller_bits(Bits a, Bits b) { return a < b ? a : b; }

// What rounds a magnitude to nearest, ties to even, where it is added: the bits of a power of two that many binades above,
// which moves the bits to be dropped below the end of float32's mantissa.
template <class F, class Bits>
HELPER Bits rounding_adder(Bits magnitude) {
    constexpr Bits32 LEAST = Bits32(128 - F::BIAS) << 23, DROPPED = Bits32(23 - F::MANTISSA) << 23;
    return (larger_bits(magnitude, each<Bits>(LEAST)) & 0x7f800000) + DROPPED;
}

// The code of a magnitude from that adder and the sum.
template <class F, class Bits>
HELPER Bits code_of_sum(Bits sum, Bits adder) {
    constexpr Bits32 LEAST_ADDER = Bits32(128 - F::BIAS + 23 - F::MANTISSA) << 23;
    return sum - adder + ((adder - LEAST_ADDER) >> (23 - F::MANTISSA));
}

// A magnitude rounded to nearest, ties to even. What is far beyond the format only has to stay so.
template <class F, class Bits>
HELPER Bits nearest_code(Bits magnitude) {
    if (F::MANTISSA == 0) return (magnitude + (magnitude >= 0x800000 ? each<Bits>(0x400000) : each<Bits>(0x3fffff))) >> 23;
    Bits finite = smaller_bits(magnitude, each<Bits>(0x71800000)), adder = rounding_adder<F, Bits>(finite);
    return code_of_sum<F, Bits>(bits_of(float_of(finite) + float_of(adder)), adder);
}

// A magnitude rounded up where its fraction of a unit in the last place, rounded up to 32 bits, and word / 2^32 reach 1.
template <class F>
HELPER Bits32 stochastic_code(Bits32 magnitude, Bits32 word) {
    if (F::MANTISSA == 0) {
        Bits32 above = magnitude > 0x400000 ? (magnitude - 0x400000) * 2 : 0;
        return ((magnitude < 0x800000 ? above : magnitude) + (word >> 9)) >> 23;
    }
    constexpr Bits32 LEAST = 128 - F::BIAS;
    Bits32 exponent = larger_bits<Bits32>(magnitude >> 23, 1), field = larger_bits(exponent, LEAST);
    Bits32 significand = magnitude < 0x800000 ? magnitude : (magnitude & 0x7fffff) | 0x800000;
    Bits32 shift = smaller_bits<Bits32>(23 - F::MANTISSA + field - exponent, 63);
    Bits64 units = ((Bits64(significand) << 32) + (Bits64(1) << shift) - 1) >> shift;
    return Bits32((units + word) >> 32) + ((field - LEAST) << F::MANTISSA);
}

// The code of a rounded magnitude with the sign of `bits`. beyond: F::LARGEST to saturate, else F::BEYOND.
template <class F, class Bits>
HELPER Bits finished_code(Bits bits, Bits code, Bits32 beyond) {
    Bits magnitude = bits & 0x7fffffff, sign = bits >> 31;
    code = code > F::LARGEST ? each<Bits>(beyond) : code;
    code = magnitude > 0x7f800000 ? each<Bits>(F::NOT_NUMBER) : code;
    if (F::SIGN > 7) return code;
    if (F::NOT_NUMBER == 0x80) sign = code - 1 < 0x7f ? sign : each<Bits>(0);  // there is no -0
    return code ^ (sign << F::SIGN);
}

template <class F, class Bits>
HELPER Bits encode(Bits bits, Bits32 beyond) {
    return finished_code<F>(bits, nearest_code<F, Bits>(bits & 0x7fffffff), beyond);
}

template <class F>
HELPER Bits32 encode_stochastic(Bits32 bits, Bits32 beyond, Bits32 word) {
    return finished_code<F>(bits, stochastic_code<F>(bits & 0x7fffffff, word), beyond);
}

// The bits of the float32 of a code.
template <class F, class Bits>
HELPER Bits decode(Bits code) {
    if (F::MANTISSA == 0) {
        Bits power = code == 0 ? each<Bits>(0x400000) : code << 23;
        return code == 0xff ? each<Bits>(0x7fc00000) : power;
    }
    constexpr Bits32 SIGN_BIT = 1u << F::SIGN, ONE = 1u << 23, LEAST = Bits32(128 - F::BIAS) << 23;
    Bits magnitude = code & (SIGN_BIT - 1), sign = (code & SIGN_BIT) << (31 - F::SIGN);
    Bits normal = (magnitude << (23 - F::MANTISSA)) + (Bits32(127 - F::BIAS) << 23);
    Bits subnormal = bits_of(float_of(normal + ONE) - float_of(each<Bits>(LEAST)));  // read as normal it is this much more
    Bits value = magnitude < (1u << F::MANTISSA) ? subnormal : normal;
    if (F::NOT_NUMBER == 0x80) return code == 0x80 ? each<Bits>(0xffc00000) : value | sign;
    if (F::LARGEST < SIGN_BIT - 1) {
        Bits beyond = magnitude == F::INFINITE ? each<Bits>(0x7f800000) : each<Bits>(0x7fc00000);
        value = magnitude > F::LARGEST ? beyond : value;
    }
    return value | sign;
}
