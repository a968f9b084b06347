// Masks of dropout: those of NumPy's Philox4x64-10 (Salmon et al. 2011, SC'11), as random.keep_mask draws them.
#pragma once
#include "array.h"

struct PhiloxWords { uint64_t word[4]; };

// The words of the counter (block + 1, 0, 0, call), which NumPy begins with 1, under the key (seed, 0).
inline PhiloxWords philox(uint64_t seed, uint64_t call, uint64_t block) {
    constexpr uint64_t TIMES_0 = 0xD2E7470EE14C6C93, TIMES_1 = 0xCA5A826395121157;  // the paper's table 2
    constexpr uint64_t STEP_0 = 0x9E3779B97F4A7C15, STEP_1 = 0xBB67AE8584CAA73B;    // golden ratio, sqrt(3) - 1
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
