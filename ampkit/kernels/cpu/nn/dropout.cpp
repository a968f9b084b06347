// dropout of `count` contiguous elements: out = x * keep * scale, and keep itself, one byte per element.
#include "../include/parallel.h"
#include "../include/philox.h"

EXPORT void dropout_forward(const void* x, void* out, uint8_t* keep, int64 kind, int64 count, int64 threshold, float scale,
                            uint64_t seed, uint64_t call) {
    constexpr int64 BLOCK = 1024;  // elements
    parallel_for(ceil_div(count, BLOCK), PARALLEL_ELEMENTS / BLOCK, [=](int64 first, int64 last) {
        float values[BLOCK];
        for (int64 begin = first * BLOCK; begin < min(last * BLOCK, count); begin += BLOCK) {
            int64 n = min(BLOCK, count - begin);
            uint8_t* kept = keep + begin;
            float* result = values;
            draw_mask(kept, begin, n, uint32_t(threshold), seed, call);
            read_floats(values, x, kind, begin, 1, n);
            SIMD for (int64 i = 0; i < n; i++) result[i] = result[i] * float(kept[i]) * scale;  // NaN stays NaN
            write_floats(values, out, kind, begin, 1, n);
        }
    });
}
