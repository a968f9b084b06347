// Random words: NumPy's Philox4x64-10 (Salmon et al. 2011, SC'11), so the same bits as on a CPU.
#pragma once

using uint64 = unsigned long long;

// Philox4x64-10 of the counter (block + 1, 0, 0, call), which NumPy begins with 1, under the key (seed, 0).
__device__ __forceinline__ void philox(uint64 seed, uint64 call, uint64 block, uint64 (&words)[4]) {
    constexpr uint64 TIMES_0 = 0xD2E7470EE14C6C93ull, TIMES_1 = 0xCA5A826395121157ull;  // the paper's table 2
    constexpr uint64 STEP_0 = 0x9E3779B97F4A7C15ull, STEP_1 = 0xBB67AE8584CAA73Bull;    // golden ratio, sqrt(3) - 1
    uint64 a = block + 1, b = 0, c = 0, d = call, key_0 = seed, key_1 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64 high_0 = __umul64hi(TIMES_0, a), low_0 = TIMES_0 * a;
        uint64 high_1 = __umul64hi(TIMES_1, c), low_1 = TIMES_1 * c;
        a = high_1 ^ b ^ key_0, b = low_1, c = high_0 ^ d ^ key_1, d = low_0;
        key_0 += STEP_0, key_1 += STEP_1;
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}

// In a captured graph the draw is read at each launch: draws holds (seed, offset to call) in device memory. Null: the
// arguments are the draw.
__device__ __forceinline__ void replay_draw(const uint64* draws, uint64& seed, uint64& call) {
    if (draws) seed = draws[0], call += draws[1];
}

// The dropout mask of 16 elements: bit i is set where the i-th 16-bit word is at least `threshold`.
__device__ __forceinline__ unsigned keep_bits(uint64 seed, uint64 call, uint64 block, unsigned threshold) {
    uint64 words[4];
    philox(seed, call, block, words);
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) bits |= unsigned((words[i / 4] >> (i % 4 * 16) & 0xffff) >= threshold) << i;
    return bits;
}

__device__ __forceinline__ unsigned keep_bits_at_launch(const uint64* draws, uint64 seed, uint64 call, uint64 block,
                                                        unsigned threshold) {
    replay_draw(draws, seed, call);
    return keep_bits(seed, call, block, threshold);
}

// x * keep * scale as a product, so that NaN propagates.
__device__ __forceinline__ float apply_mask(float x, bool keep, float scale) {
    return x * (keep ? 1.0f : 0.0f) * scale;
}
