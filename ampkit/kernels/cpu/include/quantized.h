// Codes of quantized matrices, 16 at a time, from float32 values, and back. See ops/linalg/quantization.py.
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

inline Words larger(Words a, Words b) { return a > b ? a : b; }
inline Floats all(float x) { return x - Floats{}; }
inline Words all_words(uint32_t x) { return x - Words{}; }
using ::bits_of;
using ::float_of;
inline Words bits_of(Floats x) { return bits_as<Words>(x); }
inline Floats float_of(Words x) { return bits_as<Floats>(x); }

}  // namespace

#include "formats.h"  // whose functions call these

namespace {

using E4M3 = Float8E4M3FN;
using E5M2 = Float8E5M2;
using E2M1 = Float4E2M1FN;
struct Int8 {};

enum Format : int64 { FORMAT_INT8 = -1, FORMAT_E4M3, FORMAT_E5M2, FORMAT_E2M1 = 5 };  // the numbers in base/formats.py

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

// The largest finite value of a format.
template <class F>
inline float largest_value() { return float_of(decode<F>(F::LARGEST)); }
template <>
inline float largest_value<Int8>() { return 127.0f; }

// Codes, and the values that they stand for.
struct Rounded {
    Words codes;
    Floats values;
};

// Codes to nearest even, or, with 16 random bits of each, up where the fraction of a unit in the last place is above
// bits / 65536: what stochastic_code does with ~(bits << 16). Infinities saturate, too.
template <class F, bool STOCHASTIC>
struct Encode {
    static constexpr uint32_t NOT_FINITE = F::SIGN < 7 ? 0 : F::NOT_NUMBER;  // a format without NaN has it in the scale

    static Rounded run(Floats x, Halves random) {
        Words sign = bits_of(x) & 0x80000000, codes;
        Words size = smaller_bits(bits_of(x) & 0x7fffffff, all_words(bits_of(largest_value<F>())));
        Floats values;
        if (STOCHASTIC) {
            constexpr uint32_t LEAST = 128 - F::BIAS;
            Words exponent = larger(size >> 23, all_words(LEAST));
            Floats units = float_of(size) * float_of((uint32_t(F::MANTISSA + 254) - exponent) << 23);  // exactly
            Integers whole = __builtin_convertvector(units, Integers);
            Floats fraction = (units - __builtin_convertvector(whole, Floats)) * 65536.0f;
            whole -= fraction > __builtin_convertvector(__builtin_convertvector(random, Integers), Floats);
            codes = bits_as<Words>(whole) + ((exponent - LEAST) << F::MANTISSA);
            values = __builtin_convertvector(whole, Floats) * float_of((exponent - uint32_t(F::MANTISSA)) << 23);
        } else {
            Words adder = rounding_adder<F>(size);
            Floats sum = float_of(size) + float_of(adder);
            codes = code_of_sum<F>(bits_of(sum), adder);
            values = sum - float_of(adder);
        }
        return {codes | sign >> (31 - F::SIGN), float_of(bits_of(values) | sign)};
    }
};

template <bool STOCHASTIC>
struct Encode<Int8, STOCHASTIC> {
    static constexpr uint32_t NOT_FINITE = 0;

    static Rounded run(Floats x, Halves) {
        constexpr float INTEGER = 12582912.0f;  // 1.5 * 2^23: added to a smaller float, it rounds to an integer in the low bits
        Floats least = all(-128.0f), most = all(127.0f);
        x = x < least ? least : x;
        Floats sum = (x > most ? most : x) + INTEGER;
        return {(bits_of(sum) - bits_of(INTEGER)) & 0xff, sum - INTEGER};
    }
};

template <class F>
struct Decode {
    static Floats run(Words code) { return float_of(decode<F>(code)); }
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

// In each element the larger one of two of the same vector, whose numbers differ in the bit DISTANCE; where that bit is 0
// they are of a, else of b.
template <int DISTANCE>
inline Words merge_largest(Words a, Words b) {
#define LANE(i) (((i) & DISTANCE) ? (i) + WIDTH : (i))
#define OTHER(i) (((i) & DISTANCE) ? (i) - DISTANCE + WIDTH : (i) + DISTANCE)
    return larger(__builtin_shufflevector(a, b, LANE(0), LANE(1), LANE(2), LANE(3), LANE(4), LANE(5), LANE(6), LANE(7), LANE(8), LANE(9),
                                          LANE(10), LANE(11), LANE(12), LANE(13), LANE(14), LANE(15)),
                  __builtin_shufflevector(a, b, OTHER(0), OTHER(1), OTHER(2), OTHER(3), OTHER(4), OTHER(5), OTHER(6), OTHER(7), OTHER(8),
                                          OTHER(9), OTHER(10), OTHER(11), OTHER(12), OTHER(13), OTHER(14), OTHER(15)));
#undef LANE
#undef OTHER
}

template <int DISTANCE>
inline Floats butterfly(Floats x) {
    constexpr float EVEN[2] = {1.0f, -1.0f};
#define SIGN(i) EVEN[(i) / DISTANCE & 1]
    constexpr Floats SIGNS = {SIGN(0), SIGN(1), SIGN(2), SIGN(3), SIGN(4), SIGN(5), SIGN(6), SIGN(7),
                              SIGN(8), SIGN(9), SIGN(10), SIGN(11), SIGN(12), SIGN(13), SIGN(14), SIGN(15)};
#undef SIGN
    return x * SIGNS + partner<DISTANCE>(x);
}

inline Floats hadamard(Floats x) {
    return butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(x * HADAMARD_SIGNS)))) * 0.25f;
}

enum Scaling : int64 { ONE_FACTOR, POWER_OF_2, E8M0, TWO_LEVELS };  // of Quantization.scale, in the order of _SCALES

// `count` scales of a row of blocks in float32.
void read_scales(float* to, const Array& scales, int64 scaling, int64 row, int64 first, int64 count) {
    if (scales.kind == FLOAT32) return void(memcpy(to, address<float>(scales, 0, row, first), count * sizeof(float)));
    const uint8_t* from = address<uint8_t>(scales, 0, row, first);
    for (int64 k = 0; k < count; k += WIDTH) {
        int64 n = min(WIDTH, count - k);
        Bytes bytes = {};
        memcpy(&bytes, from + k, n);
        Words codes = __builtin_convertvector(bytes, Words);
        Floats found;
        if (scaling == E8M0) found = float_of(decode<Float8E8M0FNU>(codes));
        else found = Decode<E4M3>::run(codes);
        memcpy(to + k, &found, n * sizeof(float));
    }
}

// Of a usual scale no value is subnormal or infinite in bfloat16: 2^-9 is E4M3's smallest, 57344 E5M2's largest.
bool are_usual(const float* scales, int64 count) {
    int32_t found = 1;
    for (int64 k = 0; k < count; k++) found &= int32_t(scales[k] >= 0x1p-100f) & int32_t(scales[k] <= 0x1p100f);
    return found;
}

// All bits set where bfloat16's normal numbers do not hold a value.
Words beyond_bfloat16(Floats values) {
    Words magnitude = bits_as<Words>(values) & 0x7fffffff, wrong = bits_as<Words>(magnitude < 0x00800000) & bits_as<Words>(magnitude > 0);
    return wrong | bits_as<Words>(magnitude == 0x7f800000);
}

bool any(Words bits) {
    uint32_t found = 0;
    for (int64 k = 0; k < WIDTH; k++) found |= bits[k];
    return found;
}

Halves upper_halves(Floats values) { return __builtin_convertvector(bits_as<Words>(values) >> 16, Halves); }

}  // namespace
