// The rules of elementwise optimizers: RULE(name, moments, code) updates a weight and its moments, computed in float32.
//
// p: the weight; g: the gradient; a, b, c: the moments; has: which of them exist; n: the scalars of the step. Moments and
// scalars are in the order of ampkit/optim/<name>.py, whose arithmetic this is, operation by operation.
//
// A backend includes this file after it has defined HELPER, what stands before a function; REGISTER_RULE(name), what it
// makes of a rule; and the functions of <math.h>. `kernels/shared/headers.py` reads the names of the rules.
#pragma once

#define RULE(NAME, COUNT, ...)                                                                                   \
    struct NAME {                                                                                                \
        static constexpr int MOMENTS = COUNT;                                                                    \
        HELPER void apply(float& p, float g, [[maybe_unused]] float& a, [[maybe_unused]] float& b,               \
                          [[maybe_unused]] float& c, const float* n, [[maybe_unused]] const bool* has) {         \
            __VA_ARGS__                                                                                          \
        }                                                                                                        \
    };                                                                                                           \
    REGISTER_RULE(NAME)
#define MEAN(m, weight) m = m + (g - m) * (weight);
#define MEAN_SQUARE(v, old_weight, weight) v = v * (old_weight) + g * g * (weight);

HELPER float larger(float a, float b) { return a > b || a != a ? a : b; }  // NaN if one of them is
HELPER float smaller(float a, float b) { return a < b || a != a ? a : b; }
HELPER float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

RULE(Adam, 3, MEAN(a, n[3]) MEAN_SQUARE(b, n[4], n[5]) c = has[2] ? larger(c, b) : b;
     p = p * n[2] - a / (sqrtf(c) / n[1] + n[6]) * n[0];)
RULE(AdamWScheduleFree, 2, a = n[7] == 1.0f ? p : a; MEAN_SQUARE(b, 1.0f - n[4], n[4])
     float d = g / (sqrtf(b) / n[3] + n[5]) + p * n[6]; p = p + (a - p) * n[1]; p = p + d * n[2]; a = a - d * n[0];)
RULE(SGD, 1, a = a * n[1] + g * n[2]; float step = !has[0] ? g : n[3] != 0.0f ? g + a * n[1] : a; p -= step * n[0];)
RULE(Adadelta, 2, MEAN_SQUARE(a, n[1], n[2]) float step = sqrtf(b + n[3]) / sqrtf(a + n[3]) * g;
     b = b * n[1] + step * step * n[2]; p -= step * n[0];)
RULE(Adagrad, 1, a = a + n[1] + g * g; p -= g / (sqrtf(a) + n[2]) * n[0];)
RULE(Adamax, 2, MEAN(a, n[1]) b = larger(b * n[2], fabsf(g) + n[3]); p -= a / b * n[0];)
RULE(ASGD, 1, p = p * n[0] - g * n[1]; a = n[2] == 1.0f ? p : a + (p - a) * n[2];)
RULE(Lion, 1, p = p * n[1] - sign(a + (g - a) * n[2]) * n[0]; MEAN(a, n[3]))
RULE(NAdam, 2, MEAN(a, n[4]) MEAN_SQUARE(b, n[5], n[6])
     p = p * n[3] - (g * n[0] + a * n[1]) / (sqrtf(b) / n[2] + n[7]);)
RULE(RAdam, 2, MEAN(a, n[2]) MEAN_SQUARE(b, n[3], n[4]) p = p * n[1] - a / (sqrtf(b) * n[5] + n[6]) * n[0];)
RULE(RMSprop, 3, MEAN_SQUARE(a, n[2], n[3]) MEAN(c, n[3]) float var = has[2] ? larger(a - c * c, 0.0f) : a;
     float step = g / (sqrtf(var) + n[4]); b = b * n[1] + step; p -= (has[1] ? b : step) * n[0];)
RULE(Rprop, 2, float size = b * n[1] + n[0], side = a * g;
     b = smaller(larger(size * (side > 0.0f ? n[3] : side < 0.0f ? n[2] : 1.0f), n[4]), n[5]);
     a = side < 0.0f ? 0.0f : g; p -= sign(a) * b;)
