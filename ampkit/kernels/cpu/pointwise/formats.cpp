// Codes of formats below 16 bits from floating-point values, and back; see kernels/shared/formats.h.
#include "../include/formats.h"
#include "../include/parallel.h"
#include "../include/philox.h"

constexpr int64 BLOCK = 1024;  // values that a thread converts at a time

// The numbers of `Format` in base/formats.py.
template <class Visit>
static void with_format(int64 format, const Visit& visit) {
    switch (format) {
        case 0: return visit(Float8E4M3FN{});
        case 1: return visit(Float8E5M2{});
        case 2: return visit(Float8E4M3FNUZ{});
        case 3: return visit(Float8E5M2FNUZ{});
        case 4: return visit(Float8E8M0FNU{});
        default: visit(Float4E2M1FN{});
    }
}

// The bits of a float64 as float32 rounded to odd: the next rounding cannot tell them apart.
static inline uint32_t odd_float32_bits(uint64_t wide) {
    uint32_t sign = uint32_t(wide >> 63) << 31;
    int32_t exponent = int32_t(wide >> 52 & 0x7ff) - 896;
    uint64_t mantissa = wide & 0xfffffffffffff, significand = exponent > -896 ? mantissa | uint64_t(1) << 52 : mantissa;
    int32_t more = exponent > 0 ? 0 : 1 - exponent, shift = 29 + more < 63 ? 29 + more : 63;
    uint64_t kept = significand >> shift;
    uint32_t inexact = (kept << shift) != significand;
    uint32_t bits = exponent > 0 ? (uint32_t(exponent) << 23) + (uint32_t(kept) & 0x7fffff) : uint32_t(kept);
    if (exponent >= 255) bits = exponent < 1151 ? 0x7f7fffff : mantissa ? 0x7fc00000 : 0x7f800000;
    else bits |= inexact;
    return bits | sign;
}

static void read_bits(uint32_t* bits, const void* data, int64 kind, int64 start, int64 count) {
    if (kind == FLOAT64) {
        const double* from = static_cast<const double*>(data) + start;
        SIMD for (int64 i = 0; i < count; i++) {
            uint64_t wide;
            memcpy(&wide, from + i, 8);
            bits[i] = odd_float32_bits(wide);
        }
        return;
    }
    float values[BLOCK];
    read_floats(values, data, kind, start, 1, count);
    memcpy(bits, values, count * sizeof(float));
}

// The 32-bit words [begin, begin + count) of a draw, as random.random_words has them; begin is a multiple of 8.
static void draw_words(uint32_t* words, int64 begin, int64 count, uint64_t seed, uint64_t call) {
    for (int64 i = 0; i < count; i += 8) {
        PhiloxWords drawn = philox(seed, call, uint64_t((begin + i) / 8));
        memcpy(words + i, drawn.word, 32);
    }
}

template <class F>
static void encode_block(uint8_t* codes, const uint32_t* bits, const uint32_t* words, int64 count, uint32_t beyond) {
    if (words) {
        SIMD for (int64 i = 0; i < count; i++) codes[i] = uint8_t(encode_stochastic<F>(bits[i], beyond, words[i]));
    } else {
        SIMD for (int64 i = 0; i < count; i++) codes[i] = uint8_t(encode<F>(bits[i], beyond));
    }
}

// codes [count], packed [count / 2], of contiguous values [count] of a floating-point dtype.
EXPORT void encode_format(const void* values, uint8_t* codes, int64 kind, int64 count, int64 format, int64 packed,
                          int64 beyond, int64 stochastic, uint64_t seed, uint64_t call) {
    parallel_for(ceil_div(count, BLOCK), PARALLEL_ELEMENTS / BLOCK, [=](int64 first, int64 last) {
        uint32_t bits[BLOCK], words[BLOCK];
        uint8_t unpacked[BLOCK];
        for (int64 begin = first * BLOCK; begin < min(last * BLOCK, count); begin += BLOCK) {
            int64 n = min(BLOCK, count - begin);
            read_bits(bits, values, kind, begin, n);
            if (stochastic) draw_words(words, begin, n, seed, call);
            uint8_t* to = packed ? unpacked : codes + begin;
            with_format(format, [&](auto chosen) {
                encode_block<decltype(chosen)>(to, bits, stochastic ? words : nullptr, n, uint32_t(beyond));
            });
            if (!packed) continue;
            uint8_t* pairs = codes + begin / 2;
            SIMD for (int64 i = 0; i < n / 2; i++) pairs[i] = uint8_t(unpacked[2 * i] | unpacked[2 * i + 1] << 4);
        }
    });
}

// values [count], of packed codes [2 * count], contiguous, of a floating-point dtype.
EXPORT void decode_format(const uint8_t* codes, void* values, int64 kind, int64 count, int64 format, int64 packed) {
    parallel_for(ceil_div(count, BLOCK), PARALLEL_ELEMENTS / BLOCK, [=](int64 first, int64 last) {
        uint32_t bits[2 * BLOCK];
        float found[2 * BLOCK];
        for (int64 begin = first * BLOCK; begin < min(last * BLOCK, count); begin += BLOCK) {
            int64 n = min(BLOCK, count - begin);
            const uint8_t* from = codes + begin;
            with_format(format, [&](auto chosen) {
                using F = decltype(chosen);
                if (packed) {
                    SIMD for (int64 i = 0; i < n; i++) {
                        bits[2 * i] = decode<F, Bits32>(from[i] & 15);
                        bits[2 * i + 1] = decode<F, Bits32>(from[i] >> 4);
                    }
                } else {
                    SIMD for (int64 i = 0; i < n; i++) bits[i] = decode<F, Bits32>(from[i]);
                }
            });
            int64 each = packed ? 2 : 1;
            memcpy(found, bits, each * n * sizeof(float));
            write_floats(found, values, kind, each * begin, 1, each * n);
        }
    });
}
