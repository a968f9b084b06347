// Numbers to 8-bit codes and back.
#include "../include/parallel.h"

constexpr int64 BLOCK = 2048;  // elements

struct Grid {
    float inverse, zero_point, low, high;
    Grid(float inverse, float zero_point, int64 is_signed)
        : inverse(inverse), zero_point(zero_point), low(is_signed ? -128.0f : 0.0f), high(is_signed ? 127.0f : 255.0f) {}
};

// code = saturate(round(x * inverse + zero_point)), to the nearest, ties to even, of `count` numbers. -> how many are NaN
static int32_t quantize_run(uint8_t* to, const float* from, int64 count, const Grid& grid) {
    int32_t invalid = 0;
    float inverse = grid.inverse, zero_point = grid.zero_point, low = grid.low, high = grid.high;
    SIMD_SUM(invalid) for (int64 i = 0; i < count; i++) {
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
        float value = from[i] * inverse + zero_point;
        invalid += value != value;
        value = value < low ? low : value;
        value = value > high ? high : value;
        float rounded = value + 12582912.0f;  // 1.5 * 2^23: the sum is an integer, whose low byte is the code
        int32_t bits;
        __builtin_memcpy(&bits, &rounded, 4);
        to[i] = uint8_t(bits);
    }
    return invalid;
}

static const float* floats(float* buffer, const void* x, int64 kind, int64 begin, int64 count) {
    if (kind == FLOAT32) return static_cast<const float*>(x) + begin;
    read_floats(buffer, x, kind, begin, 1, count);
    return buffer;
}

// The codes of numbers that follow each other in memory. -> whether some number is NaN
EXPORT int64 quantize_codes(const void* x, int64 kind, uint8_t* codes, int64 count, float inverse, float zero_point, int64 is_signed) {
    Grid grid(inverse, zero_point, is_signed);
    int64 invalid = 0;
    parallel_for(ceil_div(count, BLOCK), PARALLEL_ELEMENTS / BLOCK, [=, &invalid](int64 first, int64 last) {
        float buffer[BLOCK];
        int32_t found = 0;
        for (int64 begin = first * BLOCK; begin < min(last * BLOCK, count); begin += BLOCK) {
            int64 n = min(BLOCK, count - begin);
            found |= quantize_run(codes + begin, floats(buffer, x, kind, begin, n), n, grid);
        }
        if (found) __atomic_store_n(&invalid, 1, __ATOMIC_RELAXED);
    });
    return invalid;
}

// The codes [images, pixels, channels] of numbers [images, channels, pixels]. -> whether some number is NaN
EXPORT int64 quantize_images(const void* x, int64 kind, uint8_t* codes, int64 images, int64 channels, int64 pixels, float inverse,
                             float zero_point, int64 is_signed) {
    Grid grid(inverse, zero_point, is_signed);
    int64 invalid = 0, blocks = ceil_div(pixels, BLOCK);
    parallel_for(images * blocks, max(int64(1), PARALLEL_ELEMENTS / BLOCK / channels), [=, &invalid](int64 first, int64 last) {
        float buffer[BLOCK];
        uint8_t plane[BLOCK];
        int32_t found = 0;
        for (int64 block = first; block < last; block++) {
            int64 image = block / blocks, begin = block % blocks * BLOCK, n = min(BLOCK, pixels - begin);
            for (int64 c = 0; c < channels; c++) {
                found |= quantize_run(plane, floats(buffer, x, kind, (image * channels + c) * pixels + begin, n), n, grid);
                uint8_t* to = codes + (image * pixels + begin) * channels + c;
                for (int64 i = 0; i < n; i++) to[i * channels] = plane[i];
            }
        }
        if (found) __atomic_store_n(&invalid, 1, __ATOMIC_RELAXED);
    });
    return invalid;
}

// x = (code - zero_point) * scale
EXPORT void dequantize_codes(float* x, const uint8_t* codes, int64 count, float scale, float zero_point, int64 is_signed) {
    parallel_for(ceil_div(count, BLOCK), PARALLEL_ELEMENTS / BLOCK, [=](int64 first, int64 last) {
        int64 begin = first * BLOCK, end = min(last * BLOCK, count);
        if (is_signed) {
            const int8_t* from = reinterpret_cast<const int8_t*>(codes);
            SIMD for (int64 i = begin; i < end; i++) x[i] = (float(from[i]) - zero_point) * scale;
        } else {
            SIMD for (int64 i = begin; i < end; i++) x[i] = (float(codes[i]) - zero_point) * scale;
        }
    });
}
