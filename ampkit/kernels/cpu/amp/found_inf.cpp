// Unscaling: flat float32 gradients times the inverse of the loss scale, and where the first is not finite.
#include "../include/parallel.h"

// The largest of the bits without sign, which order as magnitudes do: infinity and NaN are at the top.
static uint32_t scale_block(float* values, float inverse, bool scales, int64 count) {
    uint32_t largest = 0;
    SIMD_MAX(largest) for (int64 i = 0; i < count; i++) {
        float value = scales ? values[i] * inverse : values[i];
        values[i] = value;
        uint32_t magnitude = bits_of(value) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// gradient [n] *= inverse, where scales -> the index of the first value that is not finite then, n if all are.
static int64 unscale(Array gradient, float inverse, int64 scales) {
    int64 count = gradient.size[2], parts = ceil_div(count, PARALLEL_ELEMENTS);
    Scratch<int64> found_(parts);
    if (!found_) return 0;
    int64* found = found_;
    parallel_for(count, PARALLEL_ELEMENTS, [=](int64 begin, int64 end) {
        float* values = address<float>(gradient);
        int64 first = count;
        if (scale_block(values + begin, inverse, scales, end - begin) >= 0x7f800000)
            for (first = begin; (bits_of(values[first]) & 0x7fffffff) < 0x7f800000;) first++;
        found[begin / PARALLEL_ELEMENTS] = first;
    });
    int64 first = count;
    for (int64 part = 0; part < parts; part++) first = min(first, found[part]);
    return first;
}
KERNEL(unscale)
