// Codes of 8 bits for the moments of optimizers, as ampkit/optim/flat/blockwise.py defines them, step by step.
//
// A backend includes this file after it has defined HELPER, what stands before a function, and the functions of <math.h>.
#pragma once

struct BlockCode {
    float values[256], magnitudes[256], largest;
    int zero, negative, direction, most_positive, most_negative, least;
};

// The elements that share a scale.
#define CODE_BLOCK 256
// The word in place of a random one that rounds to nearest.
#define NEAREST_WORD 0x7FFF

// The scale of a block with this largest magnitude; NaN if it is not finite.
HELPER float block_scale(const BlockCode& code, float largest) {
    return (largest - largest == 0.0f ? largest : largest - largest) / code.largest;
}

// The code of x. word: 16 random bits.
HELPER int block_code(const BlockCode& code, float x, float scale, int word) {
    float scaled = fabsf(x) / scale;
    int place = 0;
    for (int step = 128; step; step >>= 1) place += code.magnitudes[place + step] <= scaled ? step : 0;
    int most = x < 0.0f ? code.most_negative : code.most_positive;
    place = place < most ? place : most;
    float low = code.magnitudes[place], high = code.magnitudes[place < 255 ? place + 1 : 255];
    float part_of_step = (scaled - low) / (high - low) * 65536.0f;
    place += place < most && floorf(part_of_step) > float(word) ? 1 : 0;
    place = x > 0.0f && place < code.least ? code.least : place;
    return x < 0.0f ? code.negative + code.direction * place : code.zero + place;
}
