// Random bits: those of NumPy's Philox4x64-10 (Salmon et al. 2011, SC'11), as core/random.py draws them.
#pragma once
#include "array.h"

// Functions that pass vectors are inlined: no other file sees how they are passed where registers are shorter.
#pragma GCC diagnostic ignored "-Wpsabi"

struct PhiloxWords { uint64_t word[4]; };

namespace {
constexpr uint64_t TIMES_0 = 0xD2E7470EE14C6C93, TIMES_1 = 0xCA5A826395121157;  // the paper's table 2
constexpr uint64_t STEP_0 = 0x9E3779B97F4A7C15, STEP_1 = 0xBB67AE8584CAA73B;    // golden ratio, sqrt(3) - 1
}  // namespace

// The words of the counter (block + 1, 0, 0, call), which NumPy begins with 1, under the key (seed, 0).
inline PhiloxWords philox(uint64_t seed, uint64_t call, uint64_t block) {
    uint64_t a = block + 1, b = 0, c = 0, d = call, key_0 = seed, key_1 = 0;
    for (int round = 0; round < 10; round++) {
        unsigned __int128 first = static_cast<unsigned __int128>(TIMES_0) * a, second = static_cast<unsigned __int128>(TIMES_1) * c;
        a = uint64_t(second >> 64) ^ b ^ key_0, b = uint64_t(second), c = uint64_t(first >> 64) ^ d ^ key_1, d = uint64_t(first);
        key_0 += STEP_0, key_1 += STEP_1;
    }
    return {{a, b, c, d}};
}

// keep[i] = whether dropout keeps element begin + i of draw `call`. Each element has 16 bits, 16 elements are one block
// of the generator; an element is kept where its bits are at least `threshold`.
inline void draw_mask(uint8_t* __restrict keep, int64 begin, int64 count, uint32_t threshold, uint64_t seed, uint64_t call) {
    constexpr int64 BLOCKS = 64, ELEMENTS = 16 * BLOCKS;
    while (count > 0) {
        int64 before = begin % 16, drawn = min(count, ELEMENTS - before);
        PhiloxWords words[BLOCKS];
        for (int64 i = 0; i < ceil_div(before + drawn, 16); i++) words[i] = philox(seed, call, uint64_t(begin / 16 + i));
        uint16_t bits[ELEMENTS];
        memcpy(bits, words, sizeof(bits));
        SIMD for (int64 i = 0; i < drawn; i++) keep[i] = bits[before + i] >= threshold;
        keep += drawn, begin += drawn, count -= drawn;
    }
}

namespace {

// Eight blocks at once.
typedef uint64_t Words64 __attribute__((vector_size(64), aligned(8)));
struct PhiloxVectors { Words64 word[4]; };

struct Products { Words64 high, low; };

// The 128 bits of each x * times.
inline Products multiply(Words64 x, uint64_t times) {
    Words64 low_half = 0xffffffff - Words64{}, low = (times & 0xffffffff) - Words64{}, high = (times >> 32) - Words64{};
    Words64 x_low = x & low_half, x_high = x >> 32, lowest = x_low * low;
    Words64 middle = x_high * low + (lowest >> 32), other = (middle & low_half) + x_low * high;
    return {x_high * high + (middle >> 32) + (other >> 32), other << 32 | (lowest & low_half)};
}

inline PhiloxVectors philox_of_8(uint64_t seed, uint64_t call, Words64 blocks) {
    // In the first two rounds some factors are 0 or the same in all blocks.
    Products first = multiply(blocks + 1, TIMES_0), second = multiply(first.high ^ call, TIMES_1);
    unsigned __int128 same = static_cast<unsigned __int128>(TIMES_0) * seed;
    uint64_t key_0 = seed + STEP_0, key_1 = STEP_1;
    Words64 a = second.high ^ key_0, b = second.low, c = first.low ^ (uint64_t(same >> 64) ^ key_1), d = uint64_t(same) - Words64{};
    for (int round = 2; round < 10; round++) {
        key_0 += STEP_0, key_1 += STEP_1;
        first = multiply(a, TIMES_0), second = multiply(c, TIMES_1);
        a = second.high ^ b ^ key_0, b = second.low, c = first.high ^ d ^ key_1, d = first.low;
    }
    return {{a, b, c, d}};
}

// The 16-bit words [begin, begin + count) of a draw, as random.random_bits has them.
inline void draw_bits(uint16_t* to, int64 begin, int64 count, uint64_t seed, uint64_t call) {
#define PICK(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
    for (; begin % 16 == 0 && count >= 128; to += 128, begin += 128, count -= 128) {
        PhiloxVectors drawn = philox_of_8(seed, call, uint64_t(begin / 16) + Words64{0, 1, 2, 3, 4, 5, 6, 7});
        auto [a, b, c, d] = drawn.word;
        // The transpose: a block is in four neighbours.
        Words64 even_ab = PICK(a, b, 0, 8, 2, 10, 4, 12, 6, 14), odd_ab = PICK(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
        Words64 even_cd = PICK(c, d, 0, 8, 2, 10, 4, 12, 6, 14), odd_cd = PICK(c, d, 1, 9, 3, 11, 5, 13, 7, 15);
        Words64 blocks_04 = PICK(even_ab, even_cd, 0, 1, 8, 9, 4, 5, 12, 13), blocks_15 = PICK(odd_ab, odd_cd, 0, 1, 8, 9, 4, 5, 12, 13);
        Words64 blocks_26 = PICK(even_ab, even_cd, 2, 3, 10, 11, 6, 7, 14, 15), blocks_37 = PICK(odd_ab, odd_cd, 2, 3, 10, 11, 6, 7, 14, 15);
        Words64 found[4] = {PICK(blocks_04, blocks_15, 0, 1, 2, 3, 8, 9, 10, 11), PICK(blocks_26, blocks_37, 0, 1, 2, 3, 8, 9, 10, 11),
                            PICK(blocks_04, blocks_15, 4, 5, 6, 7, 12, 13, 14, 15), PICK(blocks_26, blocks_37, 4, 5, 6, 7, 12, 13, 14, 15)};
        memcpy(to, found, sizeof(found));
    }
#undef PICK
    while (count > 0) {
        PhiloxWords words = philox(seed, call, uint64_t(begin / 16));
        uint16_t bits[16];
        memcpy(bits, words.word, 32);
        int64 before = begin % 16, drawn = min(count, 16 - before);
        memcpy(to, bits + before, drawn * sizeof(uint16_t));
        to += drawn, begin += drawn, count -= drawn;
    }
}

// The words of draw_bits at begin + r + c * `apart` in row r and column c of `to`, whose rows are `step` apart.
inline void draw_columns(uint16_t* to, int64 step, int64 rows, int64 columns, int64 begin, int64 apart, uint64_t seed,
                         uint64_t call) {
    typedef uint16_t Halves8 __attribute__((vector_size(16), aligned(2)));
    bool whole = begin % 16 == 0 && apart % 16 == 0 && rows % 16 == 0;
    int64 c = 0;
    for (; whole && c + 8 <= columns; c += 8) {
        Words64 first = uint64_t((begin + c * apart) / 16) + Words64{0, 1, 2, 3, 4, 5, 6, 7} * uint64_t(apart / 16);
        for (int64 r = 0; r < rows; r += 16) {
            PhiloxVectors drawn = philox_of_8(seed, call, first + uint64_t(r / 16));
            for (int64 k = 0; k < 16; k++) {
                Halves8 bits = __builtin_convertvector(drawn.word[k / 4] >> (k % 4 * 16), Halves8);
                memcpy(to + (r + k) * step + c, &bits, sizeof(bits));
            }
        }
    }
    for (; c < columns; c++)
        for (int64 r = 0; r < rows; r += 16) {
            uint16_t bits[16];
            int64 drawn = min(16, rows - r);
            draw_bits(bits, begin + c * apart + r, drawn, seed, call);
            for (int64 k = 0; k < drawn; k++) to[(r + k) * step + c] = bits[k];
        }
}

}  // namespace
