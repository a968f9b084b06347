// Numbers to 8-bit codes and back, over elements that follow each other in memory.
#include "../include/parallel.h"

constexpr int64 BLOCK = 2048;  // elements

// code = saturate(round(x * inverse + zero_point)), to the nearest, ties to even. -> whether some x is NaN
EXPORT int64 quantize_codes(const void* x, int64 kind, uint8_t* codes, int64 count, float inverse, float zero_point, int64 is_signed) {
    // Adding and subtracting 1.5 * 2^23 rounds to an integer, after which the code is the low byte of the sum.
    const float low = is_signed ? -128.0f : 0.0f, high = is_signed ? 127.0f : 255.0f;
    int64 invalid = 0;
    parallel_for(ceil_div(count, BLOCK), PARALLEL_ELEMENTS / BLOCK, [=, &invalid](int64 first, int64 last) {
        float values[BLOCK];
        int32_t found = 0;
        for (int64 begin = first * BLOCK; begin < min(last * BLOCK, count); begin += BLOCK) {
            int64 n = min(BLOCK, count - begin);
            const float* from = static_cast<const float*>(x) + begin;
            if (kind != FLOAT32) {
                read_floats(values, x, kind, begin, 1, n);
                from = values;
            }
            uint8_t* to = codes + begin;
            int32_t wrong = 0;
            SIMD_SUM(wrong) for (int64 i = 0; i < n; i++) {
#pragma clang fp contract(off)
                float value = from[i] * inverse + zero_point;
                wrong += value != value;
                value = value < low ? low : value;
                value = value > high ? high : value;
                float rounded = value + 12582912.0f;
                int32_t bits;
                __builtin_memcpy(&bits, &rounded, 4);
                to[i] = uint8_t(bits);
            }
            found |= wrong;
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
