// Moments of optimizers as they are stored, in float32, bfloat16 or 8 bits by blocks: read and written a block at a time.
#pragma once
#include "philox.h"
#include "simd_math.h"

namespace simd {

#define HELPER INLINE
#include "../../shared/block_codes.h"

// Random words of 16 bits: one per element of a draw, from element `start`, a multiple of 16, on.
struct RandomBits {
    uint64_t seed, call;
    int64 start;

    // The words of the elements from `begin` on, a multiple of 16; at most CODE_BLOCK.
    void words(int64 begin, int64 count, uint16_t* to) const {
        PhiloxWords drawn[CODE_BLOCK / 16];
        for (int64 i = 0; i < ceil_div(count, 16); i++) drawn[i] = philox(seed, call, uint64_t((start + begin) / 16 + i));
        memcpy(to, drawn, size_t(ceil_div(count, 16)) * sizeof(PhiloxWords));
    }
};

// A finite x to one of the two neighbours in bfloat16; finite values stay finite.
INLINE uint16_t round_stochastically(float x, uint32_t word) {
    uint32_t bits = bits_of(x), size = bits & 0x7fffffff, raised = (size + word) & 0xffff0000;
    raised = raised < 0x7f7f0000 ? raised : 0x7f7f0000;
    uint32_t special = size > 0x7f800000 ? size | 0x400000 : size;
    return uint16_t(((size < 0x7f800000 ? raised : special) | (bits & 0x80000000)) >> 16);
}

// A flat moment; null data for none. code: of one in 8 bits, whose scales these are.
struct Moment {
    Array data;
    float* scales;
    const BlockCode* code;

    explicit operator bool() const { return bool(data); }
    bool is_float32() const { return data.kind == FLOAT32; }

    // The elements from `begin`, of a block, on: at most CODE_BLOCK.
    void read(float* __restrict to, int64 begin, int64 count) const {
        if (data.kind != UINT8) return read_floats(to, data.data, data.kind, begin, 1, count);
        const uint8_t* __restrict codes = address<uint8_t>(data) + begin;
        const float scale = scales[begin / CODE_BLOCK], * __restrict values = code->values;
        SIMD for (int64 i = 0; i < count; i++) to[i] = values[codes[i]] * scale;
    }

    // Stores values, rounded stochastically.
    void write(const float* __restrict from, int64 begin, int64 count, const RandomBits& bits) const {
        uint16_t word[CODE_BLOCK];
        bits.words(begin, count, word);
        if (data.kind == UINT8) return write_codes(from, begin, count, word);
        uint16_t* __restrict to = address<uint16_t>(data) + begin;
        SIMD for (int64 i = 0; i < count; i++) to[i] = round_stochastically(from[i], word[i]);
    }

    void write_codes(const float* __restrict from, int64 begin, int64 count, const uint16_t* __restrict word) const {
        float size[CODE_BLOCK];
        SIMD for (int64 i = 0; i < count; i++) size[i] = fabsf(from[i]);
        const BlockCode table = *code;
        const float scale = block_scale(table, max_of(size, count));
        scales[begin / CODE_BLOCK] = scale;
        uint8_t* __restrict to = address<uint8_t>(data) + begin;
        SIMD for (int64 i = 0; i < count; i++) to[i] = uint8_t(block_code(table, from[i], scale, word[i]));
    }
};

}  // namespace simd
