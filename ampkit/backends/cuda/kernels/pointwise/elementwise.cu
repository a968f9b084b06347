// Elementwise: the table of functions. MAP(name, what it is of x, y, z, w; then the gradients, up to three).
//
// The operands are the op's tensors, then its numbers. Gradients, one per input, are told in `dy` and x, y, z: what
// the op saved, in the order in which its kernel names it, then its numbers. All is float32, and the expressions are
// those of the references, so that infinities and NaN come out alike; elementwise.cuh does the rest.
#include "include/elementwise.cuh"

#define COUNT(...) COUNT_(__VA_ARGS__, 3, 2, 1, 0)
#define COUNT_(a, b, c, n, ...) n
#define FORWARD(EXPRESSION) \
    static __device__ __forceinline__ float forward(float x, float y, float z, float w) { return EXPRESSION; }
#define BACKWARD(...)                                                                                        \
    static constexpr int SLOPES = COUNT(__VA_ARGS__);                                                        \
    static __device__ __forceinline__ void backward(float dy, float x, float y, float z, float (&result)[3]) { \
        const float slopes[] = {__VA_ARGS__};                                                                \
        for (int i = 0; i < SLOPES; i++) result[i] = slopes[i];                                              \
    }
#define MAP(NAME, EXPRESSION, ...) struct NAME { FORWARD(EXPRESSION) BACKWARD(__VA_ARGS__) };
#define NO_SLOPE(NAME, EXPRESSION) struct NAME { FORWARD(EXPRESSION) };

#define DEVICE static __device__ __forceinline__ float
constexpr float PI = 3.14159265358979324f;
constexpr float LN_2 = 0.69314718055994531f, LN_10 = 2.3025850929940457f;
constexpr float RATE = 0.79788456080286536f;   // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;             // Hendrycks & Gimpel 2016, eq. 2
constexpr float MOST = 3.4028234663852886e38f;  // the largest finite number
constexpr float SELU_ALPHA = 1.6732632423543772f, SELU_SCALE = 1.0507009873554805f;  // Klambauer et al. 2017, eq. 14

// NumPy's maximum and minimum: NaN wins.
DEVICE larger(float a, float b) { return a >= b || a != a ? a : b; }
DEVICE smaller(float a, float b) { return a <= b || a != a ? a : b; }
DEVICE sign(float x) { return float(x > 0.0f) - float(x < 0.0f); }
DEVICE sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
DEVICE softplus(float x) { return larger(x, 0.0f) + log1pf(expf(-fabsf(x))); }
DEVICE power(float x, float k) { return k == 2.0f ? x * x : k == 1.0f ? x : powf(x, k); }
DEVICE normal_share(float x) { return 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }
DEVICE bend(float x) { return x * (RATE + RATE * CUBIC * (x * x)); }
DEVICE gelu_tanh_slope(float x) {
    float t = tanhf(bend(x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * (RATE * (1.0f + 3.0f * CUBIC * x * x));
}
DEVICE mish_slope(float x) {
    float gate = tanhf(softplus(x));
    return gate + x * (1.0f - gate * gate) / (1.0f + expf(-x));
}
DEVICE off_zero(float square) { return square == 0.0f ? 1.0f : square; }  // at the origin an angle has slope 0
DEVICE sinc(float x) { return x == 0.0f ? 1.0f : sinf(x) / x; }
DEVICE sinc_slope(float x) {
    float t = x * x;
    float series = x * (-1.0f / 3 + t * (1.0f / 30 + t * (-1.0f / 840 + t * (1.0f / 45360))));
    return fabsf(x) < 0.3f ? series : (cosf(x) - sinc(x)) / x;
}
DEVICE lead(float x, float y) { return x == y && fabsf(x) > MOST ? 0.0f : x - y; }  // of equal infinities none leads
// NumPy's remainder and quotient rounded down: exact, with the sign that the divisor gives.
DEVICE remainder_of(float x, float y) {
    float rest = fmodf(x, y);
    if (rest == 0.0f) return copysignf(0.0f, y);
    return (y < 0.0f) != (rest < 0.0f) ? rest + y : rest;
}
DEVICE quotient_down(float x, float y) {
    float rest = fmodf(x, y), quotient = (x - rest) / y;
    if (y == 0.0f) return x / y;
    if (rest != 0.0f && (y < 0.0f) != (rest < 0.0f)) quotient -= 1.0f;
    if (quotient == 0.0f) return copysignf(0.0f, x / y);
    float down = floorf(quotient);
    return quotient - down > 0.5f ? down + 1.0f : down;
}
DEVICE tied(float dy, bool equal) { return equal ? dy * 0.5f : dy; }       // of two that are equal each takes half
static __device__ __forceinline__ bool wins(float x, float y) { return x >= y || y != y; }  // a number over NaN
static __device__ __forceinline__ bool loses(float x, float y) { return x <= y || y != y; }

// functions of one element; of those that save their output, x is the output in the gradient
NO_SLOPE(Copy, x)
MAP(Neg, -x, -dy)
MAP(Abs, fabsf(x), dy * sign(x))
MAP(Square, x * x, dy * (2.0f * x))
MAP(Sqrt, sqrtf(x), dy / (2.0f * x))
MAP(Rsqrt, 1.0f / sqrtf(x), dy * (-0.5f * x * x * x))
MAP(Reciprocal, 1.0f / x, -dy * x * x)
MAP(Exp, expf(x), dy * x)
MAP(Exp2, exp2f(x), dy * x * LN_2)
MAP(Expm1, expm1f(x), dy * (x + 1.0f))
MAP(Log, logf(x), dy / x)
MAP(Log2, log2f(x), dy / (x * LN_2))
MAP(Log10, log10f(x), dy / (x * LN_10))
MAP(Log1p, log1pf(x), dy / (1.0f + x))
MAP(Erf, erff(x), dy * (1.1283791670955126f * expf(-x * x)))
MAP(Erfc, erfcf(x), dy * (-1.1283791670955126f * expf(-x * x)))
MAP(ErfInv, erfinvf(x), dy * (0.88622692545275801f * expf(x * x)))
MAP(Tanh, tanhf(x), dy * (1.0f - x * x))

MAP(Sin, sinf(x), dy * cosf(x))
MAP(Cos, cosf(x), -dy * sinf(x))
MAP(Tan, tanf(x), dy * (1.0f + x * x))
MAP(Asin, asinf(x), dy / sqrtf((1.0f - x) * (1.0f + x)))
MAP(Acos, acosf(x), -dy / sqrtf((1.0f - x) * (1.0f + x)))
MAP(Atan, atanf(x), dy / (1.0f + x * x))
MAP(Sinh, sinhf(x), dy * coshf(x))
MAP(Cosh, coshf(x), dy * sinhf(x))
MAP(Asinh, asinhf(x), dy / sqrtf(x * x + 1.0f))
MAP(Acosh, acoshf(x), dy / sqrtf((x - 1.0f) * (x + 1.0f)))
MAP(Atanh, atanhf(x), dy / ((1.0f - x) * (1.0f + x)))
MAP(Sinc, sinc(PI * x), dy * (PI * sinc_slope(PI * x)))

NO_SLOPE(Sign, sign(x))
NO_SLOPE(Floor, floorf(x))
NO_SLOPE(Ceil, ceilf(x))
NO_SLOPE(Trunc, truncf(x))
NO_SLOPE(Round, rintf(x))
NO_SLOPE(Frac, x - truncf(x))
NO_SLOPE(LogGamma, lgammaf(x))
MAP(Logit, logf(smaller(larger(x, y), z) / (1.0f - smaller(larger(x, y), z))),
    y < -MOST ? dy / (x < 0.0f || x > 1.0f ? as<float>(0x7fc00000u) : x * (1.0f - x))  // without bounds NaN outside
              : x < y || x > z ? 0.0f : dy / (x * (1.0f - x)))

// activations
MAP(Relu, x <= 0.0f ? 0.0f : x, x != 0.0f ? dy : 0.0f)
MAP(LeakyRelu, x * (x > 0.0f ? 1.0f : y), dy * (x > 0.0f ? 1.0f : y))
MAP(Elu, x > 0.0f ? x : y * expm1f(x), dy * (x > 0.0f ? 1.0f : y * expf(x)))
MAP(Sigmoid, sigmoid(x), dy * x * (1.0f - x))
MAP(LogSigmoid, smaller(x, 0.0f) - log1pf(expf(-fabsf(x))), dy / (1.0f + expf(x)))
MAP(Silu, x / (1.0f + expf(-x)), dy * (sigmoid(x) * (1.0f + x * (1.0f - sigmoid(x)))))
MAP(Softplus, y * x > z ? x : softplus(y * x) / y, dy * (y * x > z ? 1.0f : sigmoid(y * x)))
MAP(Mish, x * tanhf(softplus(x)), dy * mish_slope(x))
MAP(Gelu, x * normal_share(x), dy * (normal_share(x) + x * (expf(-0.5f * x * x) * (0.5f * RATE))))
MAP(GeluTanh, x * (0.5f * (1.0f + tanhf(bend(x)))), dy * gelu_tanh_slope(x))
MAP(HardSigmoid, smaller(larger(x + 3.0f, 0.0f), 6.0f) / 6.0f, dy * float(fabsf(x) < 3.0f) / 6.0f)
MAP(HardSwish, x * smaller(larger(x + 3.0f, 0.0f), 6.0f) / 6.0f,
    dy * (fabsf(x) < 3.0f ? x / 3.0f + 0.5f : float(x > 0.0f)))
MAP(Selu, SELU_SCALE * (x > 0.0f ? x : SELU_ALPHA * expm1f(x)),
    dy * SELU_SCALE * (x > 0.0f ? 1.0f : SELU_ALPHA * expf(x)))
MAP(Celu, x > 0.0f ? x : y * expm1f(x / y), dy * (x > 0.0f ? 1.0f : expf(x / y)))
MAP(Softsign, x / (1.0f + fabsf(x)), dy / ((1.0f + fabsf(x)) * (1.0f + fabsf(x))))
MAP(TanhShrink, x - tanhf(x), dy * (tanhf(x) * tanhf(x)))
MAP(HardShrink, fabsf(x) <= y ? 0.0f : x, fabsf(x) <= y ? 0.0f : dy)
MAP(SoftShrink, fabsf(x) <= y ? 0.0f : x - y * sign(x), fabsf(x) <= y ? 0.0f : dy)
MAP(Threshold, x <= y ? z : x, x <= y ? 0.0f : dy)
MAP(PRelu, x > 0.0f ? x : y * x, x <= 0.0f ? dy * y : dy, x <= 0.0f ? dy * x : 0.0f)
NO_SLOPE(Glu, x / (1.0f + expf(-y)))
NO_SLOPE(GluSlope, w != 0.0f ? x * y * sigmoid(z) * (1.0f - sigmoid(z)) : x * sigmoid(z))  // of dy, value, gate, half

// of the sum of exponentials x, from which the largest, y, was taken; in the gradient x is an element, z the sum
DEVICE shift(float most) { return fabsf(most) > MOST ? 0.0f : most; }
MAP(LogSumExp, logf(x) + shift(y), dy * (expf(x - shift(y)) / (z == 0.0f ? 1.0f : z)))

// arithmetic: z is alpha, w is value
MAP(Add, x + z * y, dy, x * dy)  // saves nothing: x is alpha
MAP(Sub, x - z * y, dy, -x * dy)
MAP(Mul, x * y, dy * y, dy * x)
MAP(Div, x / y, dy / y, -(dy / y) * (x / y))
MAP(RDiv, y / x, dy * -y / (x * x))
MAP(Pow, power(x, y), y == 0.0f ? 0.0f : dy * power(x, y - 1.0f) * y, x == 0.0f && y >= 0.0f ? 0.0f : dy * z * logf(x))
MAP(Atan2, atan2f(x, y), dy / off_zero(x * x + y * y) * y, -(dy / off_zero(x * x + y * y)) * x)
MAP(Hypot, hypotf(x, y), dy / off_zero(z) * x, dy / off_zero(z) * y)
MAP(XLogY, x == 0.0f && y == y ? 0.0f : x * logf(y), dy * (x == 0.0f && y <= 0.0f ? 0.0f : logf(y)), dy * x / y)
MAP(Lerp, x + z * (y - x), dy * (1.0f - z), dy * z, dy * (y - x))
MAP(AddCMul, x + w * (y * z), dy, z * dy * y, z * dy * x)  // saves tensor1, tensor2
MAP(AddCDiv, x + w * (y / z), dy, z * dy / y, -(z * dy / y) * (x / y))
MAP(LogAddExp, larger(x, y) + log1pf(expf(-fabsf(lead(x, y)))), dy * sigmoid(lead(x, y)), dy * sigmoid(-lead(x, y)))
MAP(LogAddExp2, larger(x, y) + log1pf(exp2f(-fabsf(lead(x, y)))) / LN_2, dy * sigmoid(lead(x, y) * LN_2),
    dy * sigmoid(-lead(x, y) * LN_2))
MAP(FMod, fmodf(x, y), dy, -dy * truncf(x / y))
MAP(Remainder, remainder_of(x, y), dy, -dy * quotient_down(x, y))
NO_SLOPE(FloorDivide, quotient_down(x, y))
MAP(CopySign, copysignf(x, y), dy * (sign(x) * sign(y)))  // saves its output

// choices
MAP(Maximum, larger(x, y), x < y ? 0.0f : tied(dy, x == y), x > y ? 0.0f : tied(dy, x == y))
MAP(Minimum, smaller(x, y), y < x ? 0.0f : tied(dy, x == y), y > x ? 0.0f : tied(dy, x == y))
MAP(Clamp, smaller(larger(x, y), z), x >= y && x <= z ? dy : 0.0f, x < y && (y < z || z > MOST) ? dy : 0.0f,
    x > z || y > z ? dy : 0.0f)  // infinities stand for bounds that are missing
MAP(HardTanh, smaller(larger(x, y), z), x <= y || x >= z ? 0.0f : dy)
MAP(Where, x != 0.0f ? y : z, dy, x != 0.0f ? dy : 0.0f, x != 0.0f ? 0.0f : dy)
MAP(MaskedFill, y != 0.0f ? z : x, x != 0.0f ? 0.0f : dy)  // saves the mask
MAP(FMax, wins(x, y) ? x : y, wins(x, y) ? dy : 0.0f, wins(x, y) ? 0.0f : dy)
MAP(FMin, loses(x, y) ? x : y, loses(x, y) ? dy : 0.0f, loses(x, y) ? 0.0f : dy)
MAP(Heaviside, x == 0.0f ? y : float(x > 0.0f), 0.0f, x == 0.0f ? dy : 0.0f)
DEVICE bounded(float x, float most, float least) { return x > MOST ? most : x < -MOST ? least : x; }
MAP(NanToNum, bounded(x != x ? y : x, z, w), fabsf(x) <= MOST ? dy : 0.0f)

// comparisons
NO_SLOPE(Equal, float(x == y))
NO_SLOPE(NotEqual, float(x != y))
NO_SLOPE(Less, float(x < y))
NO_SLOPE(LessEqual, float(x <= y))
NO_SLOPE(Greater, float(x > y))
NO_SLOPE(GreaterEqual, float(x >= y))

// questions and logic
NO_SLOPE(IsNan, float(x != x))
NO_SLOPE(IsInf, float(fabsf(x) > MOST))
NO_SLOPE(IsFinite, float(fabsf(x) <= MOST))
NO_SLOPE(And, float(x != 0.0f && y != 0.0f))
NO_SLOPE(Or, float(x != 0.0f || y != 0.0f))
NO_SLOPE(Xor, float((x != 0.0f) != (y != 0.0f)))

// losses of an element: x is the prediction, y the target; their gradients are of both
DEVICE signed_one(float x) { return x != x ? x : sign(x); }  // NumPy's sign: NaN stays
DEVICE log_or_0(float x) { return x == 0.0f ? 0.0f : logf(x); }
DEVICE log_from_100(float x) { return larger(logf(x), -100.0f); }
DEVICE lift(float target, float scale) { return scale == 1.0f ? 1.0f : 1.0f + (scale - 1.0f) * target; }
MAP(MSELoss, (x - y) * (x - y), dy * (2.0f * (x - y)), -dy * (2.0f * (x - y)))
MAP(L1Loss, fabsf(x - y), dy * sign(x - y), -dy * sign(x - y))
DEVICE smooth_bend(float gap, float beta) { return fabsf(gap) < beta ? gap / beta : signed_one(gap); }
MAP(SmoothL1Loss, fabsf(x - y) < z ? (x - y) * (x - y) * (0.5f / z) : fabsf(x - y) - 0.5f * z,
    dy * smooth_bend(x - y, z), -dy * smooth_bend(x - y, z))
DEVICE huber_bend(float gap, float delta) { return fabsf(gap) < delta ? gap : delta * signed_one(gap); }
MAP(HuberLoss, fabsf(x - y) < z ? 0.5f * (x - y) * (x - y) : z * (fabsf(x - y) - 0.5f * z),
    dy * huber_bend(x - y, z), -dy * huber_bend(x - y, z))
MAP(KLDiv, y * (log_or_0(y) - x), -dy * y, dy * (log_or_0(y) + 1.0f - x))
MAP(KLDivOfLogs, expf(y) * (y - x), -dy * expf(y), dy * (expf(y) * (y - x + 1.0f)))
MAP(BCELoss, z * ((y - 1.0f) * log_from_100(1.0f - x) - y * log_from_100(x)),
    dy * (x - y) / larger(x * (1.0f - x), 1e-12f), dy * (log_from_100(1.0f - x) - log_from_100(x)))
MAP(BCEOfLogits, z * ((1.0f - y) * x + lift(y, w) * softplus(-x)), dy * ((1.0f - y) - lift(y, z) / (1.0f + expf(x))),
    dy * ((z == 1.0f ? 0.0f : (z - 1.0f) * softplus(-x)) - x))
NO_SLOPE(OutsideUnit, float(x < 0.0f || x > 1.0f))

template <typename Op>
__global__ void __launch_bounds__(BLOCK, 4) map_forward(
    void* __restrict__ out, const __grid_constant__ Layout layout, const void* __restrict__ x,
    const void* __restrict__ y, const void* __restrict__ z, const void* __restrict__ w, float given_x, float given_y,
    float given_z, float given_w) {
    map<Forward<Op>>(layout, {{x, y, z, w}, {given_x, given_y, given_z, given_w}, {out, nullptr, nullptr}});
}

template <typename Op>
__global__ void __launch_bounds__(BLOCK, 4) map_backward(
    const void* __restrict__ dy, const __grid_constant__ Layout layout, const void* __restrict__ x,
    const void* __restrict__ y, const void* __restrict__ z, float given_x, float given_y, float given_z,
    void* __restrict__ dx, void* __restrict__ dx_1, void* __restrict__ dx_2) {
    map<Backward<Op>>(layout, {{dy, x, y, z}, {0.0f, given_x, given_y, given_z}, {dx, dx_1, dx_2}});
}

// set UNARY = (Neg, Abs, Square, Sqrt, Rsqrt, Reciprocal, Exp, Exp2, Expm1, Log, Log2, Log10, Log1p, Erf, Tanh, Sin,
//     Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Asinh, Acosh, Atanh, Sinc, Erfc, ErfInv, Logit)
// set ACTIVATIONS = (Relu, LeakyRelu, Elu, Sigmoid, LogSigmoid, Silu, Softplus, Mish, Gelu, GeluTanh, HardSigmoid,
//     HardSwish, Selu, Celu, Softsign, TanhShrink, HardShrink, SoftShrink, Threshold, PRelu)
// set BINARY = (Add, Sub, Mul, Div, RDiv, Pow, Atan2, Hypot, XLogY, Lerp, AddCMul, AddCDiv, LogSumExp, LogAddExp,
//     LogAddExp2, FMod, Remainder, CopySign)
// set CHOICES = (Maximum, Minimum, Clamp, HardTanh, Where, MaskedFill, FMax, FMin, Heaviside, NanToNum)
// set FLAT = (Copy, Sign, Floor, Ceil, Trunc, Round, Frac, LogGamma, Equal, NotEqual, Less, LessEqual, Greater,
//     GreaterEqual, IsNan, IsInf, IsFinite, And, Or, Xor, FloorDivide, Glu, GluSlope,
//     OutsideUnit)
// set LOSSES = (MSELoss, L1Loss, SmoothL1Loss, HuberLoss, KLDiv, KLDivOfLogs, BCELoss, BCEOfLogits)
// entries: map_forward<Op> for Op in UNARY + ACTIVATIONS + BINARY + CHOICES + LOSSES + FLAT
// entries: map_backward<Op> for Op in UNARY + ACTIVATIONS + BINARY + CHOICES + LOSSES
