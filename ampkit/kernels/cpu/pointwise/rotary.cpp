// Rotary position embedding: pairs of channels of rows [a, b, n], turned by the angles of row [a, b] of cos and sin.
#include "../include/parallel.h"

namespace {

// (a cos - b sin, b cos + a sin) of pairs; `step` elements apart, the second channel `apart` behind the first.
void turn(float* __restrict out, const float* x, const float* cos, const float* sin, float sign, int64 pairs, int64 step,
          int64 apart) {
    if (step == 1) {
        SIMD for (int64 i = 0; i < pairs; i++) {
            float a = x[i], b = x[i + apart], s = sign * sin[i];
            out[i] = a * cos[i] - b * s;
            out[i + apart] = b * cos[i] + a * s;
        }
    } else {
        SIMD for (int64 i = 0; i < pairs; i++) {
            float a = x[2 * i], b = x[2 * i + 1], s = sign * sin[i];
            out[2 * i] = a * cos[i] - b * s;
            out[2 * i + 1] = b * cos[i] + a * s;
        }
    }
}

}  // namespace

// x [a, b, n], cos and sin [a, b, pairs] -> out [a, b, n]; sign: 1, or -1 to turn back.
static void rotary(Array out, Array x, Array cos, Array sin, float sign, int64 interleaved) {
    int64 inner = x.size[1], n = x.size[2], pairs = cos.size[2];
    parallel_rows(x.size[0] * inner, n, [=](int64 begin, int64 end) {
        Scratch<float> memory(2 * n + 2 * pairs);
        if (!memory) return;
        float *from = memory, *to = from + n, *cosines = to + n, *sines = cosines + pairs;
        for (int64 row = begin; row < end; row++) {
            int64 i = row / inner, j = row % inner;
            const float* values = read_row(x, i, j, from);
            float* turned = row_to_write(out, i, j, to);
            turn(turned, values, read_row(cos, i, j, cosines), read_row(sin, i, j, sines), sign, pairs,
                 interleaved ? 2 : 1, interleaved ? 1 : pairs);
            if (n > 2 * pairs) memcpy(turned + 2 * pairs, values + 2 * pairs, (n - 2 * pairs) * sizeof(float));
            write_row(out, i, j, turned);
        }
    });
}
KERNEL(rotary)
