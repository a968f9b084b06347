// The table of reductions: TERM(name, join, term of an element x), computed in float32, and how terms are joined.
//
// center: what the term subtracts from x, or compares with it; 0 where the reduction has none. WIDE_TERM(name, join,
// least, term) is a term that can be computed in float64, too: a sum of n of them that is not finite, or below n * least,
// may have lost more than roundings, and is computed once more.
//
// A backend includes this file after it has defined HELPER, what stands before a function; REGISTER_TERM(name), what it
// makes of a term; the joins Sum, Product, Max and Min, which a term derives from; and the functions of <math.h>.
#pragma once

#define TERM(NAME, JOIN, EXPRESSION)                                                              \
    struct NAME : JOIN {                                                                          \
        static constexpr bool WIDE = false;                                                       \
        HELPER float term(float x, [[maybe_unused]] float center) { return EXPRESSION; }          \
    };                                                                                            \
    REGISTER_TERM(NAME)
#define WIDE_TERM(NAME, JOIN, SMALLEST, EXPRESSION)                                               \
    struct NAME : JOIN {                                                                          \
        static constexpr bool WIDE = true;                                                        \
        static constexpr float LEAST = SMALLEST;                                                  \
        template <class T>                                                                        \
        HELPER T term(T x, [[maybe_unused]] T center) { return EXPRESSION; }                      \
    };                                                                                            \
    REGISTER_TERM(NAME)

constexpr float LEAST_SQUARE = 1.1754943508222875e-38f;  // the least that float32 holds with all its bits

HELPER bool is_same(float x, float y) { return (x == y) | ((x != x) & (y != y)); }
HELPER float zero_if_infinite(float x) { return fabsf(x) > 3.4028234663852886e38f ? 0.0f : x; }

WIDE_TERM(Add, Sum, 0.0f, x)
WIDE_TERM(AddAbs, Sum, 0.0f, x < 0 ? -x : x)
WIDE_TERM(AddSquares, Sum, LEAST_SQUARE, (x - center) * (x - center))
TERM(AddExps, Sum, expf(x - zero_if_infinite(center)))  // center: the maximum
TERM(CountEqual, Sum, is_same(x, center) ? 1.0f : 0.0f)
TERM(CountNonzero, Sum, x != 0.0f ? 1.0f : 0.0f)
TERM(CountZero, Sum, x == 0.0f ? 1.0f : 0.0f)
TERM(Multiply, Product, x)
TERM(Maximum, Max, x)
TERM(MaxAbs, Max, fabsf(x))
TERM(Minimum, Min, x)
TERM(MinAbs, Min, fabsf(x))
