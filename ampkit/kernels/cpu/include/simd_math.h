// float32 functions that loops can vectorize: no calls, no branches. NaN propagates, infinities and subnormals are right.
//
// The names are those of C's <math.h>, in a namespace of their own, so that an expression reads as its formula.
// Coefficients of exp and log: Cephes (Moshier), single precision.
#pragma once
#include "array.h"

#define INLINE static inline __attribute__((always_inline))

namespace simd {

constexpr float INF = __builtin_inff(), NOT_A_NUMBER = __builtin_nanf("");

INLINE float fabsf(float x) { return __builtin_fabsf(x); }
INLINE float sqrtf(float x) { return __builtin_sqrtf(x); }
INLINE float copysignf(float x, float sign) { return __builtin_copysignf(x, sign); }

// Rounding to integers; from 2^23 on floats are integers. Without calls, which the plainest instruction set would need.
INLINE float if_small(float x, float rounded) { return fabsf(x) < 8388608.0f ? copysignf(rounded, x) : x; }
INLINE float truncf(float x) { return if_small(x, float(int32_t(fabsf(x) < 8388608.0f ? x : 0.0f))); }
INLINE float rintf(float x) { return if_small(x, (fabsf(x) + 8388608.0f) - 8388608.0f); }
INLINE float floorf(float x) { float t = truncf(x); return t > x ? t - 1.0f : t; }
INLINE float ceilf(float x) { float t = truncf(x); return if_small(x, t < x ? t + 1.0f : t); }

// x rounded to an integer, for |x| < 2^22.
INLINE float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

// y * 2^n for an integer n from -252 to 254, in two steps so that subnormal results are right.
INLINE float scale_by_power(float y, float n) {
    int32_t k = int32_t(n);
#if defined(__AVX512F__) && __clang_major__ >= 22
    return __builtin_ldexpf(y, k);
#else
    int32_t half = k >> 1;
    return y * float_of(uint32_t(half + 127) << 23) * float_of(uint32_t(k - half + 127) << 23);
#endif
}

INLINE float clamp(float x, float low, float high) {  // keeps NaN
    x = x > high ? high : x;
    return x < low ? low : x;
}

// e^r - 1 - r for |r| <= ln(2) / 2.
INLINE float exp_tail(float r) {
    float p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r +
               1.6666665459e-1f) * r + 5.0000001201e-1f;
    return p * r * r;
}

INLINE float expf(float x) {
    float c = clamp(x, -104.0f, 89.0f), n = nearest(c * 1.44269504f);
    n = n == n ? n : 0.0f;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    return scale_by_power(exp_tail(r) + r + 1.0f, n);
}

INLINE float expm1f(float x) {
    float c = clamp(x, -20.0f, 89.0f), n = nearest(c * 1.44269504f);
    n = n == n ? n : 0.0f;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    float power = scale_by_power(1.0f, n - 1.0f), y = power * (exp_tail(r) + r) + (power - 0.5f);  // (e^x - 1) / 2
    return fabsf(x) < 1e-5f ? x + 0.5f * x * x : y + y;
}

INLINE float logf(float x) {
    bool subnormal = x < 1.17549435e-38f;
    float scaled = subnormal ? x * 8388608.0f : x;
    uint32_t bits = bits_of(scaled);
    int32_t e = int32_t(bits - 0x3f3504f3u) >> 23;  // mantissa in [sqrt(1/2), sqrt(2))
    float m = float_of(bits - (uint32_t(e) << 23)) - 1.0f, n = float(e) - (subnormal ? 23.0f : 0.0f), z = m * m;
    float p = (((((((7.0376836292e-2f * m - 1.1514610310e-1f) * m + 1.1676998740e-1f) * m - 1.2420140846e-1f) * m +
                  1.4249322787e-1f) * m - 1.6668057665e-1f) * m + 2.0000714765e-1f) * m - 2.4999993993e-1f) * m +
              3.3333331174e-1f;
    float y = m * z * p - 2.12194440e-4f * n - 0.5f * z;
    y = (m + y) + 0.693359375f * n;
    y = x == 0.0f ? -INF : y;
    y = x < 0.0f ? NOT_A_NUMBER : y;
    return x == INF || x != x ? x : y;
}

INLINE float log1pf(float x) {
    float u = 1.0f + x, y = logf(u) + (x - (u - 1.0f)) / u;
    y = u == 1.0f ? x : y;
    return x == INF || x == -1.0f ? logf(u) : y;
}

INLINE float tanhf(float x) {
    float a = fabsf(x), e = expm1f(2.0f * (a > 10.0f ? 10.0f : a));
    return copysignf(e / (e + 2.0f), x);
}

// The largest of n values, NaN if there is one; -inf for none. Compared as integers that are ordered like the floats,
// because a maximum of floats that keeps NaN does not vectorize.
INLINE int32_t ordered(float x) { int32_t b = int32_t(bits_of(x)); return b ^ int32_t(uint32_t(b >> 31) >> 1); }
INLINE float from_ordered(int32_t r) { return float_of(uint32_t(r ^ int32_t(uint32_t(r >> 31) >> 1))); }

inline float max_of(const float* x, int64 n) {
    int32_t most = INT32_MIN, negative_nan = INT32_MAX;
    _Pragma("omp simd reduction(max : most) reduction(min : negative_nan)") for (int64 i = 0; i < n; i++) {
        int32_t key = ordered(x[i]);
        most = key > most ? key : most, negative_nan = key < negative_nan ? key : negative_nan;
    }
    if (n == 0) return -INF;
    float lowest = from_ordered(negative_nan);
    return lowest != lowest ? lowest : from_ordered(most);
}

// The largest value(k) for k in [0, count), or NaN where there is one: for long rows. Each lane has its own elements.
template <class Value>
INLINE float max_in_lanes(int64 count, const Value& value) {
    constexpr int64 LANES = 64;
    float most[LANES];
    int32_t is_nan[LANES] = {};
    for (float& each : most) each = -INF;
    auto take = [&](int64 lane, float x) { most[lane] = x > most[lane] ? x : most[lane], is_nan[lane] |= x != x; };
    int64 k = 0;
    for (; k + LANES <= count; k += LANES) {
        SIMD for (int64 lane = 0; lane < LANES; lane++) take(lane, value(k + lane));
    }
    for (int64 lane = 0; k + lane < count; lane++) take(lane, value(k + lane));
    for (int64 lane = 0; lane < LANES; lane++) most[lane] = is_nan[lane] ? NOT_A_NUMBER : most[lane];
    return max_of(most, LANES);
}

}  // namespace simd
