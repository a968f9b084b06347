// Formats below 16 bits, 16 values at a time: codes of float32 values, and back. See ops/linalg/quantization.py.
#pragma once
#include "array.h"

// Functions that pass vectors are inlined: no other file sees how they are passed where registers are shorter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace {  // names such as `load` that other files may have, too

constexpr int64 WIDTH = 16;
typedef float Floats __attribute__((vector_size(64), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(64), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2)));
typedef uint8_t Bytes __attribute__((vector_size(16), aligned(1)));

template <class To, class From>
inline To bits_as(From from) { To to; static_assert(sizeof to == sizeof from, ""); memcpy(&to, &from, sizeof to); return to; }
template <class To, class T>
inline To load(const T* from) { To to; memcpy(&to, from, sizeof to); return to; }
template <class From, class T>
inline void save(T* to, From from) { memcpy(to, &from, sizeof from); }

inline Words smaller(Words a, Words b) { return a < b ? a : b; }
inline Words larger(Words a, Words b) { return a > b ? a : b; }
inline Floats all(float x) { return x - Floats{}; }
inline Words all_words(uint32_t x) { return x - Words{}; }
inline Floats of_exponents(Words biased) {  // of float8_e8m0fnu
    return bits_as<Floats>(biased == 0 ? all_words(0x400000) : biased << 23);
}

// The fields: bits of the mantissa, exponent of the smallest normal value, place of the sign, code of NaN, the largest value
// and its code, and whether the code above is infinity.
#define FORMAT(NAME, MANTISSA_, LEAST_, SIGN_, NAN_, LARGEST_, LARGEST_CODE_, INFINITE_)                              \
    struct NAME {                                                                                                    \
        static constexpr int MANTISSA = MANTISSA_, LEAST = LEAST_, SIGN = SIGN_;                                     \
        static constexpr uint32_t NOT_NUMBER = NAN_, LARGEST_CODE = LARGEST_CODE_;                                   \
        static constexpr float LARGEST = LARGEST_;                                                                   \
        static constexpr bool INFINITE = INFINITE_;                                                                  \
    };
FORMAT(E4M3, 3, -6, 7, 0x7f, 448.0f, 0x7e, false)
FORMAT(E5M2, 2, -14, 7, 0x7e, 57344.0f, 0x7b, true)
FORMAT(E2M1, 1, 0, 3, 0, 6.0f, 7, false)
struct Int8 { static constexpr float LARGEST = 127.0f; };
#undef FORMAT

enum Format : int64 { FORMAT_E4M3, FORMAT_E5M2, FORMAT_E2M1, FORMAT_INT8 };  // as in kernels/cpu/linalg/quantization.py

// visit(a value of the format's type).
template <class Visit>
inline void with_format(int64 format, const Visit& visit) {
    switch (format) {
        case FORMAT_E4M3: return visit(E4M3{});
        case FORMAT_E5M2: return visit(E5M2{});
        case FORMAT_E2M1: return visit(E2M1{});
        default: visit(Int8{});
    }
}

constexpr float INTEGER = 12582912.0f;  // 1.5 * 2^23: added to a smaller float, it rounds to an integer in the low bits

// Codes to nearest even, or, with 16 random bits of each, up where the fraction is above bits / 65536.
template <class F, bool STOCHASTIC>
struct Encode {
    static Words run(Floats values, Halves random) {
        Words bits = bits_as<Words>(values), magnitude = bits & 0x7fffffff;
        Words size = smaller(magnitude, bits_of(F::LARGEST) - Words{});
        Words exponent = larger(size >> 23, uint32_t(127 + F::LEAST) - Words{});
        Floats steps = bits_as<Floats>(size) * bits_as<Floats>((uint32_t(F::MANTISSA + 254) - exponent) << 23);
        Words code;
        if (STOCHASTIC) {
            Integers below = __builtin_convertvector(steps, Integers);
            Floats above = (steps - __builtin_convertvector(below, Floats)) * 65536.0f;
            Floats drawn = __builtin_convertvector(__builtin_convertvector(random, Integers), Floats);
            code = bits_as<Words>(below) - bits_as<Words>(above > drawn);
        } else {
            code = bits_as<Words>(steps + INTEGER) - bits_of(INTEGER);
        }
        code += (exponent - uint32_t(127 + F::LEAST)) << F::MANTISSA;
        code |= bits >> 31 << F::SIGN;
        return magnitude < 0x7f800000 ? code : all_words(F::NOT_NUMBER);
    }
};

template <bool STOCHASTIC>
struct Encode<Int8, STOCHASTIC> {
    static Words run(Floats values, Halves) {
        Floats least = all(-128.0f), most = all(127.0f);
        Words magnitude = bits_as<Words>(values) & 0x7fffffff;
        values = magnitude < 0x7f800000 ? values : Floats{};
        values = values < least ? least : values;
        values = values > most ? most : values;
        return (bits_as<Words>(values + INTEGER) - bits_of(INTEGER)) & 0xff;
    }
};

template <class F>
struct Decode {
    static Floats run(Words code) {
        Words magnitude = code & ((1u << F::SIGN) - 1), sign = (code >> F::SIGN) << 31;
        Words normal = (magnitude << (23 - F::MANTISSA)) + (uint32_t(126 + F::LEAST) << 23);
        constexpr uint32_t UNIT = uint32_t(127 + F::LEAST) << 23;  // a subnormal value is this more, less this
        Floats subnormal = bits_as<Floats>(normal + (1u << 23)) - bits_as<Floats>(UNIT - Words{});
        Words found = magnitude >= (1u << F::MANTISSA) ? normal : bits_as<Words>(subnormal);
        if (F::LARGEST_CODE < (1u << F::SIGN) - 1) {
            Words beyond = 0x7fc00000 - Words{};
            if (F::INFINITE) beyond = magnitude == F::LARGEST_CODE + 1 ? 0x7f800000 - Words{} : beyond;
            found = magnitude > F::LARGEST_CODE ? beyond : found;
        }
        return bits_as<Floats>(found | sign);
    }
};

template <>
struct Decode<Int8> {
    static Floats run(Words code) { return __builtin_convertvector(bits_as<Integers>(code << 24) >> 24, Floats); }
};

// The sums and differences of 16 neighbours that multiply them by the Hadamard matrix with signs, as _hadamard adds them.
constexpr Floats HADAMARD_SIGNS = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};

// In the place of each element, the one whose number differs in the bit DISTANCE.
template <int DISTANCE, class T>
inline T partner(T x) {
#define LANE(i) ((i) ^ DISTANCE)
    return __builtin_shufflevector(x, x, LANE(0), LANE(1), LANE(2), LANE(3), LANE(4), LANE(5), LANE(6), LANE(7), LANE(8), LANE(9),
                                   LANE(10), LANE(11), LANE(12), LANE(13), LANE(14), LANE(15));
#undef LANE
}

template <int DISTANCE>
inline Floats butterfly(Floats x) {
    Words minus = (Words{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} / DISTANCE & 1) << 31;
    return partner<DISTANCE>(x) + bits_as<Floats>(bits_as<Words>(x) ^ minus);
}

inline Floats hadamard(Floats x) {
    return butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(x * HADAMARD_SIGNS)))) * 0.25f;
}

}  // namespace
