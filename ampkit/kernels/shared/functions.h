// The table of elementwise functions: FUNCTION(name, value, gradient of each input...), computed in float32.
//
// The value is an expression of x, y, z, w: the op's tensors, then its scalar parameters. A gradient is an expression
// of dy and x, y, z: what the op saved, in the order of its registration, then its parameters. The expressions are
// those of the references, so that infinities and NaN agree.
//
// A backend includes this file after it has defined HELPER, what stands before a function; REGISTER(name),
// REGISTER_SHORT(name, tensors) and REGISTER_LOOPING(name), what it makes of a function; NOT_A_NUMBER; the functions of
// <math.h>; and normal_cdf(x), the standard normal distribution function.
//
// FUNCTION_SHORT(name, tensors, ...): one of so few instructions that the time of reading and writing shows, with how many
// of the operands of its value are tensors.
#pragma once

#define COUNT(...) COUNT_(__VA_ARGS__, 3, 2, 1, 0)
#define COUNT_(a, b, c, n, ...) n
#define FORWARD(EXPRESSION) \
    HELPER float forward([[maybe_unused]] float x, [[maybe_unused]] float y, [[maybe_unused]] float z, \
        [[maybe_unused]] float w) { return EXPRESSION; }
#define BACKWARD(...)                                                                                        \
    static constexpr int GRADIENTS = COUNT(__VA_ARGS__);                                                        \
    HELPER void backward([[maybe_unused]] float dy, [[maybe_unused]] float x, [[maybe_unused]] float y, \
        [[maybe_unused]] float z, float (&result)[3]) { \
        const float gradients[] = {__VA_ARGS__};                                                                \
        for (int i = 0; i < GRADIENTS; i++) result[i] = gradients[i];                                              \
    }
#define STRUCT(NAME, EXPRESSION, ...) struct NAME { FORWARD(EXPRESSION) BACKWARD(__VA_ARGS__) };
#define STRUCT_NO_GRAD(NAME, EXPRESSION) struct NAME { FORWARD(EXPRESSION) static constexpr int GRADIENTS = 0; };
#define FUNCTION(NAME, ...) STRUCT(NAME, __VA_ARGS__) REGISTER(NAME)
#define FUNCTION_NO_GRAD(NAME, EXPRESSION) STRUCT_NO_GRAD(NAME, EXPRESSION) REGISTER(NAME)
#define FUNCTION_SHORT(NAME, TENSORS, ...) STRUCT(NAME, __VA_ARGS__) REGISTER_SHORT(NAME, TENSORS)
#define FUNCTION_LOOPING(NAME, ...) STRUCT(NAME, __VA_ARGS__) REGISTER_LOOPING(NAME)
#define FUNCTION_NO_GRAD_LOOPING(NAME, EXPRESSION) STRUCT_NO_GRAD(NAME, EXPRESSION) REGISTER_LOOPING(NAME)

constexpr float PI = 3.14159265358979324f;
constexpr float LN_2 = 0.69314718055994531f, LN_10 = 2.3025850929940457f;
constexpr float SQRT_2_OVER_PI = 0.79788456080286536f;   // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;             // Hendrycks & Gimpel 2016, eq. 2
constexpr float FLOAT_MAX = 3.4028234663852886e38f;  // the largest finite float32
constexpr float SELU_ALPHA = 1.6732632423543772f, SELU_SCALE = 1.0507009873554805f;  // Klambauer et al. 2017, eq. 14

// NumPy's maximum and minimum: NaN propagates.
HELPER float maximum(float a, float b) { return a >= b || a != a ? a : b; }
HELPER float minimum(float a, float b) { return a <= b || a != a ? a : b; }
// The same, for a bound that is mostly a number: the first choice is one instruction of CPUs, which gives x for NaN.
HELPER float at_least(float x, float low) { return low == low ? (low > x ? low : x) : x + low; }
HELPER float at_most(float x, float high) { return high == high ? (high < x ? high : x) : x + high; }
HELPER float clamped(float x, float low, float high) { return at_most(at_least(x, low), high); }
HELPER float sign(float x) { return float(x > 0.0f) - float(x < 0.0f); }
HELPER float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
HELPER float softplus(float x) { return at_least(x, 0.0f) + log1pf(expf(-fabsf(x))); }
HELPER float power(float x, float k) { return k == 2.0f ? x * x : k == 1.0f ? x : powf(x, k); }
HELPER float tanh_argument(float x) { return x * (SQRT_2_OVER_PI + SQRT_2_OVER_PI * CUBIC * (x * x)); }
HELPER float gelu_tanh_derivative(float x) {
    float t = tanhf(tanh_argument(x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * (SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * x * x));
}
HELPER float mish_derivative(float x) {
    float gate = tanhf(softplus(x));
    return gate + x * (1.0f - gate * gate) / (1.0f + expf(-x));
}
HELPER float nonzero(float square) { return square == 0.0f ? 1.0f : square; }  // atan2 and hypot have gradient 0 at the origin
// x / (x^2 + y^2), of quotients whose squares are in range.
HELPER float over_square(float x, float y) {
    float size = maximum(fabsf(x), fabsf(y)), scale = size <= FLOAT_MAX ? nonzero(size) : 1.0f, u = x / scale, v = y / scale;
    return u / nonzero(u * u + v * v) / scale;
}
HELPER float sinc(float x) { return x == 0.0f ? 1.0f : sinf(x) / x; }
HELPER float sinc_derivative(float x) {
    float t = x * x;
    float series = x * (-1.0f / 3 + t * (1.0f / 30 + t * (-1.0f / 840 + t * (1.0f / 45360))));
    return fabsf(x) < 0.3f ? series : (cosf(x) - sinc(x)) / x;
}
HELPER float difference(float x, float y) { return x == y && fabsf(x) > FLOAT_MAX ? 0.0f : x - y; }  // 0 for two equal infinities
HELPER float half_if_equal(float dy, bool equal) { return equal ? dy * 0.5f : dy; }       // equal operands share the gradient
HELPER bool fmax_takes_x(float x, float y) { return x >= y || y != y; }  // a number is preferred to NaN
HELPER bool fmin_takes_x(float x, float y) { return x <= y || y != y; }

// Unary. Where the op saves its output, x is the output in the gradient.
FUNCTION_NO_GRAD(Copy, x)
FUNCTION_SHORT(Neg, 1, -x, -dy)
FUNCTION_SHORT(Abs, 1, fabsf(x), dy * sign(x))
FUNCTION_SHORT(Square, 1, x * x, dy * (2.0f * x))
FUNCTION_SHORT(Sqrt, 1, sqrtf(x), dy / (2.0f * x))
FUNCTION_SHORT(Rsqrt, 1, 1.0f / sqrtf(x), dy * (-0.5f * x * x * x))
FUNCTION_SHORT(Reciprocal, 1, 1.0f / x, -dy * x * x)
FUNCTION_SHORT(Exp, 1, expf(x), dy * x)
FUNCTION(Exp2, exp2f(x), dy * x * LN_2)
FUNCTION(Expm1, expm1f(x), dy * (x + 1.0f))
FUNCTION_SHORT(Log, 1, logf(x), dy / x)
FUNCTION(Log2, log2f(x), dy / (x * LN_2))
FUNCTION(Log10, log10f(x), dy / (x * LN_10))
FUNCTION(Log1p, log1pf(x), dy / (1.0f + x))
FUNCTION(Erf, erff(x), dy * (1.1283791670955126f * expf(-x * x)))
FUNCTION(Erfc, erfcf(x), dy * (-1.1283791670955126f * expf(-x * x)))
FUNCTION(ErfInv, erfinvf(x), dy * (0.88622692545275801f * expf(x * x)))
FUNCTION_SHORT(Tanh, 1, tanhf(x), dy * (1.0f - x * x))

FUNCTION(Sin, sinf(x), dy * cosf(x))
FUNCTION(Cos, cosf(x), -dy * sinf(x))
FUNCTION(Tan, tanf(x), dy * (1.0f + x * x))
FUNCTION(Asin, asinf(x), dy / sqrtf((1.0f - x) * (1.0f + x)))
FUNCTION(Acos, acosf(x), -dy / sqrtf((1.0f - x) * (1.0f + x)))
FUNCTION(Atan, atanf(x), dy / (1.0f + x * x))
FUNCTION(Sinh, sinhf(x), dy * coshf(x))
FUNCTION(Cosh, coshf(x), dy * sinhf(x))
FUNCTION(Asinh, asinhf(x), dy / sqrtf(x * x + 1.0f))
FUNCTION(Acosh, acoshf(x), dy / sqrtf((x - 1.0f) * (x + 1.0f)))
FUNCTION(Atanh, atanhf(x), dy / ((1.0f - x) * (1.0f + x)))
FUNCTION(Sinc, sinc(PI * x), dy * (PI * sinc_derivative(PI * x)))

FUNCTION_NO_GRAD(Sign, sign(x))
FUNCTION_NO_GRAD(Floor, floorf(x))
FUNCTION_NO_GRAD(Ceil, ceilf(x))
FUNCTION_NO_GRAD(Trunc, truncf(x))
FUNCTION_NO_GRAD(Round, rintf(x))
FUNCTION_NO_GRAD(Frac, x - truncf(x))
FUNCTION(Logit, logf(clamped(x, y, z) / (1.0f - clamped(x, y, z))),
    y < -FLOAT_MAX ? dy / (x < 0.0f || x > 1.0f ? NOT_A_NUMBER : x * (1.0f - x))  // without eps: NaN outside (0, 1)
              : x < y || x > z ? 0.0f : dy / (x * (1.0f - x)))

// Activations.
FUNCTION_SHORT(Relu, 1, x <= 0.0f ? 0.0f : x, x != 0.0f ? dy : 0.0f)
FUNCTION_SHORT(LeakyRelu, 1, x * (x > 0.0f ? 1.0f : y), dy * (x > 0.0f ? 1.0f : y))
FUNCTION(Elu, x > 0.0f ? x : y * expm1f(x), dy * (x > 0.0f ? 1.0f : y * expf(x)))
FUNCTION_SHORT(Sigmoid, 1, sigmoid(x), dy * x * (1.0f - x))
FUNCTION(LogSigmoid, at_most(x, 0.0f) - log1pf(expf(-fabsf(x))), dy / (1.0f + expf(x)))
FUNCTION_SHORT(Silu, 1, x / (1.0f + expf(-x)), dy * (sigmoid(x) * (1.0f + x * (1.0f - sigmoid(x)))))
FUNCTION_SHORT(Softplus, 1, y * x > z ? x : softplus(y * x) / y, dy * (y * x > z ? 1.0f : sigmoid(y * x)))
FUNCTION(Mish, x * tanhf(softplus(x)), dy * mish_derivative(x))
FUNCTION_SHORT(Gelu, 1, x * normal_cdf(x), dy * (normal_cdf(x) + x * (expf(-0.5f * x * x) * (0.5f * SQRT_2_OVER_PI))))
FUNCTION(GeluTanh, x * (0.5f * (1.0f + tanhf(tanh_argument(x)))), dy * gelu_tanh_derivative(x))
FUNCTION_SHORT(HardSigmoid, 1, clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f, dy * float(fabsf(x) < 3.0f) / 6.0f)
FUNCTION_SHORT(HardSwish, 1, x * clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f,
    dy * (fabsf(x) < 3.0f ? x / 3.0f + 0.5f : float(x > 0.0f)))
FUNCTION(Selu, SELU_SCALE * (x > 0.0f ? x : SELU_ALPHA * expm1f(x)),
    dy * SELU_SCALE * (x > 0.0f ? 1.0f : SELU_ALPHA * expf(x)))
FUNCTION(Celu, x > 0.0f ? x : y * expm1f(x / y), dy * (x > 0.0f ? 1.0f : expf(x / y)))
FUNCTION(Softsign, x / (1.0f + fabsf(x)), dy / ((1.0f + fabsf(x)) * (1.0f + fabsf(x))))
FUNCTION(TanhShrink, x - tanhf(x), dy * (tanhf(x) * tanhf(x)))
FUNCTION(HardShrink, fabsf(x) <= y ? 0.0f : x, fabsf(x) <= y ? 0.0f : dy)
FUNCTION(SoftShrink, fabsf(x) <= y ? 0.0f : x - y * sign(x), fabsf(x) <= y ? 0.0f : dy)
FUNCTION_SHORT(Threshold, 1, x <= y ? z : x, x <= y ? 0.0f : dy)
FUNCTION(PRelu, x > 0.0f ? x : y * x, x <= 0.0f ? dy * y : dy, x <= 0.0f ? dy * x : 0.0f)
FUNCTION_NO_GRAD(Glu, x / (1.0f + expf(-y)))
FUNCTION_NO_GRAD(GluGrad, w != 0.0f ? x * y * sigmoid(z) * (1.0f - sigmoid(z)) : x * sigmoid(z))  // operands: dy, value, gate, 0 or 1 for the half

// x: sum of exp(element - maximum), y: maximum. In the gradient x is an element and z the sum.
HELPER float zero_if_infinite(float most) { return fabsf(most) > FLOAT_MAX ? 0.0f : most; }
FUNCTION_NO_GRAD(LogSumExp, logf(x) + zero_if_infinite(y))
// Gradients of reductions: x is that of the result, y the element, z the largest or the mean of them, w the result.
FUNCTION_NO_GRAD(WhereEqual, (y == z) | ((y != y) & (z != z)) ? x : 0.0f)
FUNCTION_NO_GRAD(TimesExp, x * expf(y - zero_if_infinite(z)))
FUNCTION_NO_GRAD(TimesDifference, x * (y - z))
FUNCTION_NO_GRAD(TimesRelativeDifference, w == 0.0f ? 0.0f : (y - z) / w * x)

// Arithmetic. z is alpha, w is value.
FUNCTION_SHORT(Add, 2, x + z * y, dy, x * dy)  // saves nothing: x is alpha in the gradient
FUNCTION_SHORT(Sub, 2, x - z * y, dy, -x * dy)
FUNCTION_SHORT(Mul, 2, x * y, dy * y, dy * x)
FUNCTION_SHORT(Div, 2, x / y, dy / y, -(dy / y) * (x / y))
FUNCTION(RDiv, y / x, dy * -y / (x * x))
FUNCTION(Pow, power(x, y), y == 0.0f ? 0.0f : dy * power(x, y - 1.0f) * y, x == 0.0f && y >= 0.0f ? 0.0f
    : dy * z * logf(x))
FUNCTION(Atan2, atan2f(x, y), dy * over_square(y, x), -dy * over_square(x, y))
FUNCTION_SHORT(SiluMul, 2, x / (1.0f + expf(-x)) * y, \
    dy * y * (sigmoid(x) * (1.0f + x * (1.0f - sigmoid(x)))), dy * (x * sigmoid(x)))
FUNCTION(Hypot, hypotf(x, y), dy * (x / nonzero(z)), dy * (y / nonzero(z)))
FUNCTION(XLogY, x == 0.0f && y == y ? 0.0f : x * logf(y), dy * (x == 0.0f && y <= 0.0f ? 0.0f : logf(y)), dy * x / y)
FUNCTION(Lerp, x + z * (y - x), dy * (1.0f - z), dy * z, dy * (y - x))
FUNCTION(AddCMul, x + w * (y * z), dy, z * dy * y, z * dy * x)  // saves tensor1, tensor2
FUNCTION(AddCDiv, x + w * (y / z), dy, z * dy / y, -(z * dy / y) * (x / y))
FUNCTION(LogAddExp, maximum(x, y) + log1pf(expf(-fabsf(difference(x, y)))), dy * sigmoid(difference(x, y)),
    dy * sigmoid(-difference(x, y)))
FUNCTION(LogAddExp2, maximum(x, y) + log1pf(exp2f(-fabsf(difference(x, y)))) / LN_2, dy * sigmoid(difference(x,
    y) * LN_2),
    dy * sigmoid(-difference(x, y) * LN_2))
FUNCTION(CopySign, copysignf(x, y), dy * (sign(x) * copysignf(1.0f, y)))  // saves its output, in which subnormals may be 0

// Selection.
FUNCTION_SHORT(Maximum, 2, maximum(x, y), x < y ? 0.0f : half_if_equal(dy, x == y), x > y ? 0.0f : half_if_equal(dy, x == y))
FUNCTION_SHORT(Minimum, 2, minimum(x, y), y < x ? 0.0f : half_if_equal(dy, x == y), y > x ? 0.0f : half_if_equal(dy, x == y))
FUNCTION_SHORT(Clamp, 1, clamped(x, y, z), x >= y && x <= z ? dy : 0.0f, x < y && (y < z || z > FLOAT_MAX) ? dy : 0.0f,
    x > z || y > z ? dy : 0.0f)  // a missing bound is an infinity
FUNCTION_SHORT(HardTanh, 1, clamped(x, y, z), x <= y || x >= z ? 0.0f : dy)
FUNCTION(Where, x != 0.0f ? y : z, dy, x != 0.0f ? dy : 0.0f, x != 0.0f ? 0.0f : dy)
FUNCTION(MaskedFill, y != 0.0f ? z : x, x != 0.0f ? 0.0f : dy)  // saves the mask
FUNCTION(FMax, fmax_takes_x(x, y) ? x : y, fmax_takes_x(x, y) ? dy : 0.0f, fmax_takes_x(x, y) ? 0.0f : dy)
FUNCTION(FMin, fmin_takes_x(x, y) ? x : y, fmin_takes_x(x, y) ? dy : 0.0f, fmin_takes_x(x, y) ? 0.0f : dy)
FUNCTION(Heaviside, x == 0.0f ? y : float(x > 0.0f), 0.0f, x == 0.0f ? dy : 0.0f)
HELPER float replace_infinities(float x, float most, float least) { return x > FLOAT_MAX ? most : x < -FLOAT_MAX ? least
    : x; }
FUNCTION_SHORT(NanToNum, 1, replace_infinities(x != x ? y : x, z, w), fabsf(x) <= FLOAT_MAX ? dy : 0.0f)

// Comparisons.
FUNCTION_NO_GRAD(Equal, float(x == y))
FUNCTION_NO_GRAD(NotEqual, float(x != y))
FUNCTION_NO_GRAD(Less, float(x < y))
FUNCTION_NO_GRAD(LessEqual, float(x <= y))
FUNCTION_NO_GRAD(Greater, float(x > y))
FUNCTION_NO_GRAD(GreaterEqual, float(x >= y))

// Tests and logic.
FUNCTION_NO_GRAD(IsNan, float(x != x))
FUNCTION_NO_GRAD(IsInf, float(fabsf(x) > FLOAT_MAX))
FUNCTION_NO_GRAD(IsFinite, float(fabsf(x) <= FLOAT_MAX))
FUNCTION_NO_GRAD(And, float(x != 0.0f && y != 0.0f))
FUNCTION_NO_GRAD(Or, float(x != 0.0f || y != 0.0f))
FUNCTION_NO_GRAD(Xor, float((x != 0.0f) != (y != 0.0f)))

// Losses per element. x: prediction, y: target; gradients of both.
HELPER float sign_or_nan(float x) { return x != x ? x : sign(x); }  // NumPy's sign: NaN propagates
HELPER float log_or_0(float x) { return x == 0.0f ? 0.0f : logf(x); }
HELPER float clamped_log(float x) { return maximum(logf(x), -100.0f); }
HELPER float positive_weight(float target, float scale) { return scale == 1.0f ? 1.0f : 1.0f + (scale - 1.0f) * target; }
FUNCTION_SHORT(MSELoss, 2, (x - y) * (x - y), dy * (2.0f * (x - y)), -dy * (2.0f * (x - y)))
FUNCTION_SHORT(L1Loss, 2, fabsf(x - y), dy * sign(x - y), -dy * sign(x - y))
HELPER float smooth_l1_derivative(float gap, float beta) { return fabsf(gap) < beta ? gap / beta : sign_or_nan(gap); }
FUNCTION(SmoothL1Loss, fabsf(x - y) < z ? (x - y) * (x - y) * (0.5f / z) : fabsf(x - y) - 0.5f * z,
    dy * smooth_l1_derivative(x - y, z), -dy * smooth_l1_derivative(x - y, z))
HELPER float huber_derivative(float gap, float delta) { return fabsf(gap) < delta ? gap : delta * sign_or_nan(gap); }
FUNCTION(HuberLoss, fabsf(x - y) < z ? 0.5f * (x - y) * (x - y) : z * (fabsf(x - y) - 0.5f * z),
    dy * huber_derivative(x - y, z), -dy * huber_derivative(x - y, z))
FUNCTION(KLDiv, y * (log_or_0(y) - x), -dy * y, dy * (log_or_0(y) + 1.0f - x))
FUNCTION(KLDivOfLogs, expf(y) * (y - x), -dy * expf(y), dy * (expf(y) * (y - x + 1.0f)))
FUNCTION(BCELoss, z * ((y - 1.0f) * clamped_log(1.0f - x) - y * clamped_log(x)),
    dy * (x - y) / maximum(x * (1.0f - x), 1e-12f), dy * (clamped_log(1.0f - x) - clamped_log(x)))
FUNCTION(BCEOfLogits, z * ((1.0f - y) * x + positive_weight(y, w) * softplus(-x)),
    dy * ((1.0f - y) - positive_weight(y, z) / (1.0f + expf(x))),
    dy * ((z == 1.0f ? 0.0f : (z - 1.0f) * softplus(-x)) - x))
FUNCTION_NO_GRAD(OutsideUnit, float(x < 0.0f || x > 1.0f))

// Functions of fmodf, which is exact, and of lgammaf: these loop, so that a loop over them does not vectorize.
// NumPy's remainder (sign of the divisor) and floor_divide, exact.
HELPER float floor_mod(float x, float y) {
    float rest = fmodf(x, y);
    if (rest == 0.0f) return copysignf(0.0f, y);
    return (y < 0.0f) != (rest < 0.0f) ? rest + y : rest;
}
HELPER float floor_divide(float x, float y) {
    float rest = fmodf(x, y), quotient = (x - rest) / y;
    if (y == 0.0f) return x / y;
    if (rest != 0.0f && (y < 0.0f) != (rest < 0.0f)) quotient -= 1.0f;
    if (quotient == 0.0f) return copysignf(0.0f, x / y);
    float down = floorf(quotient);
    return quotient - down > 0.5f ? down + 1.0f : down;
}
FUNCTION_LOOPING(FMod, fmodf(x, y), dy, -dy * truncf(x / y))
FUNCTION_LOOPING(Remainder, floor_mod(x, y), dy, -dy * floor_divide(x, y))
FUNCTION_NO_GRAD_LOOPING(FloorDivide, floor_divide(x, y))
FUNCTION_NO_GRAD_LOOPING(LogGamma, lgammaf(x))
