// float32 functions for loops that vectorize, computed in float64 where that is what makes them precise: the error is
// that of the last rounding, but for about 1 % of a unit in the last place.
//
// Polynomials: least squares over Chebyshev nodes, weights raised where the relative error was largest.
#pragma once
#include "simd_math.h"

namespace simd {

INLINE uint64_t bits_of_double(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }
INLINE double double_of(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
INLINE double sqrt(double x) { return __builtin_sqrt(x); }
INLINE float or_nan(bool valid, float y) { return valid ? y : NOT_A_NUMBER; }

constexpr double LN2 = 0.69314718055994530942, PI_2 = 1.57079632679489661923;

// c[0] + c[1] x + c[2] x^2 + ...
template <int N>
INLINE double polynomial(double x, const double (&c)[N]) {
    double y = c[N - 1];
    for (int i = N - 2; i >= 0; i--) y = y * x + c[i];
    return y;
}

INLINE double exp_wide(double x) {  // clamped to e^-700 and e^700; keeps NaN
    constexpr double C[] = {0.9999999999997602, 0.9999999999804801, 0.5000000000623156, 0.16666666886706957,
                            0.041666664205784715, 0.008333266773617893, 0.0013889179733439043, 0.00019915567383915772,
                            2.472710453207185e-05};
    constexpr double MAGIC = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, in the lowest bits
    x = x > 700.0 ? 700.0 : x;
    x = x < -700.0 ? -700.0 : x;
    double shifted = x * (1.0 / LN2) + MAGIC, power = double_of((bits_of_double(shifted) << 52) + bits_of_double(1.0));
    return polynomial(x - (shifted - MAGIC) * LN2, C) * power;
}

INLINE double log_wide(double x) {  // of a float32 number or its equal in magnitude: not subnormal as float64
    constexpr double C[] = {2 * 0.9999999999999745, 2 * 0.3333333333987304, 2 * 0.19999997420972634,
                            2 * 0.1428608565756556, 2 * 0.11087016688561716, 2 * 0.09805623525526413};
    uint64_t bits = bits_of_double(x);
    int32_t exponent = int32_t(uint32_t(bits >> 32) - 0x3fe6a09eu) >> 20;  // the mantissa is in [sqrt(1/2), sqrt(2))
    double m = double_of(bits - (uint64_t(uint32_t(exponent)) << 52)), s = (m - 1.0) / (m + 1.0);
    double y = s * polynomial(s * s, C) + double(exponent) * LN2;
    y = x == 0.0 ? -double(INF) : y;
    y = x >= 0.0 ? y : double(NOT_A_NUMBER);
    return x == double(INF) ? x : y;
}

INLINE float exp2f(float x) { return float(exp_wide(double(x) * LN2)); }
INLINE float log2f(float x) { return float(log_wide(x) * (1.0 / LN2)); }
INLINE float log10f(float x) { return float(log_wide(x) * 0.43429448190325182765); }

INLINE float powf(float x, float y) {
    double log = log_wide(fabsf(x));
    float magnitude = float(exp_wide(double(y) * log)), half = 0.5f * y;
    bool odd = truncf(y) == y && truncf(half) != half;
    bool negative = bits_of(x) >> 31, no_root = x < 0.0f && truncf(y) != y && x != -INF;
    float result = or_nan(!no_root, negative && odd ? -magnitude : magnitude);
    return y == 0.0f || x == 1.0f || (x == -1.0f && fabsf(y) == INF) ? 1.0f : result;
}

// Error functions.

INLINE double erf_wide(float x) {  // 1 beyond 4, to within half a unit of float32
    constexpr double C[] = {1.1283791580401248, -0.37612609399989033, 0.11283626378478018, -0.026862408281865223,
                            0.005219371748970398, -0.0008513437021728411, 0.00011877585913975508,
                            -1.4282486276217555e-05, 1.4744640396013707e-06, -1.2883042124821542e-07,
                            9.318387907503174e-09, -5.425572603627549e-10, 2.457415957047233e-11,
                            -8.280342131504329e-13, 1.9426112501786715e-14, -2.8204757397600896e-16,
                            1.9028484456950297e-18};
    double y = clamp(x, -4.0f, 4.0f);
    return y * polynomial(y * y, C);
}

INLINE float erff(float x) { return clamp(float(erf_wide(x)), -1.0f, 1.0f); }

INLINE float erfcf(float x) {  // exp(-x^2) / (1 + |x|) times a polynomial of (|x| - 2) / (|x| + 2)
    constexpr double C[] = {0.7661870340489948, -0.25997485291225586, 0.037813430770442115, 0.04253680845328928,
                            -0.02523654197699742, -0.0005204620669332432, 0.00389945504115715, 0.0001398330095994583,
                            -0.0006168430393158521, -9.848795173044502e-05, 3.631050382513808e-05};
    double a = clamp(fabsf(x), 0.0f, 10.5f);
    double tail = exp_wide(-a * a) * polynomial((a - 2.0) / (a + 2.0), C) / (1.0 + a);
    return float(x < 0.0f ? 2.0 - tail : tail);
}

// exp(-x^2 / 2) times a polynomial of t = 1 / (1 + 0.35 |x|), or 1 minus that: within 1e-7, and the tail below 0 keeps
// its digits. Where the derivative needs the exponential too, the compiler computes it once.
INLINE float normal_cdf(float x) {
    float t = 1.0f / (1.0f + 0.35f * fabsf(x));
    float p = (((((((-0.029158223184886964f * t + 0.14403253349429615f) * t - 0.2558422696927677f) * t +
                   0.15932333287998887f) * t - 0.02321478241208951f) * t + 0.10555349347275768f) * t +
                0.11982104735099791f) * t + 0.13986354697180844f) * t + 0.13962130513228163f;
    float tail = expf(-0.5f * x * x) * (t * p);
    return x > 0.0f ? 1.0f - tail : tail;
}

INLINE float erfinvf(float x) {  // M. J. Wichura 1988, Algorithm AS 241, Applied Statistics 37, 477-484
    constexpr double NEAR[] = {3.3871328727963665, 133.14166789178438, 1971.5909503065513, 13731.69376550946,
                               45921.95393154987, 67265.7709270087, 33430.57558358813, 2509.0809287301227};
    constexpr double NEAR_BELOW[] = {1.0, 42.31333070160091, 687.1870074920579, 5394.196021424751, 21213.794301586597,
                                     39307.89580009271, 28729.085735721943, 5226.495278852854};
    constexpr double FAR[] = {1.4234371107496835, 4.630337846156546, 5.769497221460691, 3.6478483247632045,
                              1.2704582524523684, 0.2417807251774506, 0.022723844989269184, 0.0007745450142783414};
    constexpr double FAR_BELOW[] = {1.0, 2.053191626637759, 1.6763848301838038, 0.6897673349851, 0.14810397642748008,
                                    0.015198666563616457, 0.0005475938084995345, 1.0507500716444169e-09};
    double size = fabsf(x), half = 0.5 * size, t = 0.180625 - half * half;
    double r = sqrt(-log_wide(0.5 * (1.0 - size))) - 1.6;
    bool near = size <= 0.85;
    double above = near ? polynomial(t, NEAR) : polynomial(r, FAR);
    double below = near ? polynomial(t, NEAR_BELOW) : polynomial(r, FAR_BELOW);
    double y = (near ? half : 1.0) * 0.70710678118654752440 * above / below;
    return copysignf(size == 1.0 ? INF : float(y), x);
}

// Angles. |x| = (4 k + quadrant + r) pi / 2, |r| <= 1/2; `radians` is r in radians.

struct Angle { double radians; uint32_t quadrant; };

INLINE uint32_t select(bool first, uint32_t a, uint32_t b) { return first ? a : b; }

INLINE Angle reduced(float x) {  // Payne & Hanek 1983, SIGNUM Newsletter 18: only those digits of 2 / pi that matter
    constexpr uint32_t DIGITS[11] = {0, 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
    uint32_t bits = ordered(fabsf(x)), exponent = bits >> 23;  // |x| = mantissa * 2^(exponent - 150)
    bool small = exponent < 120;                               // |x| < 2^-7
    uint32_t first = (small ? 120 : exponent > 254 ? 254 : exponent) - 120, word = first >> 5, shift = first & 31;
    uint64_t mantissa = (bits & 0x7fffff) | 0x800000;
    uint32_t by_4[7], by_2[5], by_1[4];  // DIGITS[word...]: moved down by 4, by 2 and by 1, as gathers are slow
    for (int i = 0; i < 7; i++) by_4[i] = select(word & 4, DIGITS[i + 4], DIGITS[i]);
    for (int i = 0; i < 5; i++) by_2[i] = select(word & 2, by_4[i + 2], by_4[i]);
    for (int i = 0; i < 4; i++) by_1[i] = select(word & 1, by_2[i + 1], by_2[i]);
    uint64_t a = by_1[0], b = by_1[1], c = by_1[2], d = by_1[3];
    uint64_t high = ((a << 32 | b) << shift) >> 32, middle = ((b << 32 | c) << shift) >> 32;
    uint64_t low = ((c << 32 | d) << shift) >> 32;
    uint64_t turns = (mantissa * high << 32) + mantissa * middle + (mantissa * low >> 32);  // in 2^-62 of a quadrant
    uint64_t quadrant = small ? 0 : (turns + (uint64_t(1) << 61)) >> 62, rest = turns - (quadrant << 62);
    double r = double(int32_t(rest >> 32)) * 4294967296.0 + double(int32_t(uint32_t(rest) >> 1)) * 2.0;
    return {small ? double(fabsf(x)) : r * 3.4061215800865545893e-19, uint32_t(quadrant)};  // pi / 2 * 2^-62
}

INLINE double sin_near_0(double r) {
    constexpr double C[] = {0.9999999999952156, -0.1666666662896674, 0.00833332854891817, -0.00019839136245591163,
                            2.716767511828095e-06};
    return r * polynomial(r * r, C);
}

INLINE double cos_near_0(double r) {
    constexpr double C[] = {0.9999999999999317, -0.49999999999240746, 0.04166666652937971, -0.0013888879714136148,
                            2.4798798326600195e-05, -2.7164660410680015e-07};
    return polynomial(r * r, C);
}

INLINE float sine(Angle angle) {
    double y = angle.quadrant & 1 ? cos_near_0(angle.radians) : sin_near_0(angle.radians);
    return float(angle.quadrant & 2 ? -y : y);
}

INLINE float sinf(float x) {
    float y = sine(reduced(x));
    return or_nan(fabsf(x) < INF, bits_of(x) >> 31 ? -y : y);
}

INLINE float cosf(float x) {
    Angle angle = reduced(x);
    return or_nan(fabsf(x) < INF, sine({angle.radians, angle.quadrant + 1}));
}

INLINE float tanf(float x) {
    Angle angle = reduced(x);
    double s = sin_near_0(angle.radians), c = cos_near_0(angle.radians);
    float y = float(angle.quadrant & 1 ? -c / s : s / c);
    return or_nan(fabsf(x) < INF, bits_of(x) >> 31 ? -y : y);
}

INLINE double atan_wide(double t) {  // of t >= 0
    constexpr double C[] = {0.9999999999792966, -0.33333332134916177, 0.19999886375501863, -0.1428165108572386,
                            0.11041186820283616, -0.08459795313429215, 0.04714328508717244};
    bool far = t > 2.414213562373095, middle = t > 0.41421356237309503;  // tan(3 pi / 8), tan(pi / 8)
    double above = far ? -1.0 : middle ? t - 1.0 : t, below = far ? t : middle ? t + 1.0 : 1.0, u = above / below;
    return u * polynomial(u * u, C) + (far ? PI_2 : middle ? 0.5 * PI_2 : 0.0);
}

INLINE float atanf(float x) { return copysignf(float(atan_wide(fabsf(x))), x); }
INLINE float asinf(float x) {
    double a = fabsf(x);
    return copysignf(float(atan_wide(a / sqrt((1.0 - a) * (1.0 + a)))), x);
}
INLINE float acosf(float x) { return float(2.0 * atan_wide(sqrt((1.0 - double(x)) / (1.0 + double(x))))); }

INLINE float atan2f(float y, float x) {
    double a = fabsf(y), b = fabsf(x);
    double ratio = a == b ? (a == 0.0 ? 0.0 : 1.0) : a < b ? a / b : b / a, angle = atan_wide(ratio);
    angle = a > b ? PI_2 - angle : angle;
    angle = bits_of(x) >> 31 ? 2.0 * PI_2 - angle : angle;
    return or_nan(x == x && y == y, copysignf(float(angle), y));
}

// Hyperbolic functions and their inverses.

INLINE float sinhf(float x) {
    constexpr double C[] = {1.0, 1.0 / 6, 1.0 / 120, 1.0 / 5040, 1.0 / 362880};
    double a = fabsf(x), e = exp_wide(a);
    return copysignf(float(a < 0.3 ? a * polynomial(a * a, C) : 0.5 * (e - 1.0 / e)), x);
}

INLINE float coshf(float x) {
    double e = exp_wide(fabsf(x));
    return float(0.5 * (e + 1.0 / e));
}

INLINE float asinhf(float x) {
    double a = fabsf(x), y = a < 0.02 ? a * (1.0 - a * a * (1.0 / 6 - a * a * 0.075)) : log_wide(a + sqrt(a * a + 1.0));
    return copysignf(float(y), x);
}

INLINE float acoshf(float x) {
    double a = x;
    return or_nan(x >= 1.0f, float(log_wide(a + sqrt(a * a - 1.0))));
}

INLINE float atanhf(float x) {
    double a = x, t = a * a;
    return float(t < 1e-6 ? a + a * t * (1.0 / 3) : 0.5 * log_wide((1.0 + a) / (1.0 - a)));
}

INLINE float hypotf(float x, float y) {
    float size = float(sqrt(double(x) * double(x) + double(y) * double(y)));
    return fabsf(x) == INF || fabsf(y) == INF ? INF : size;
}

}  // namespace simd
