// LAMB for one parameter: p -= rate |p| / |u| u, where u is Adam's direction; norms in float64.
#include "../include/parallel.h"
#include "../include/simd_math.h"
#if defined(__clang__)
#pragma clang fp contract(off)
#endif

using namespace simd;

namespace {

// The per-step scalars, in the order of LAMB.scalars.
struct Scalars {
    float new_mean, keep, new_square, correction, root, eps, decay;
};

INLINE float direction(float p, float m, float v, const Scalars& n) {
    float move = m / n.correction / (sqrtf(v) / n.root + n.eps);
    return n.decay != 0.0f ? move + p * n.decay : move;
}

// Takes the gradient into the moments; -> the sums of squares of the weights and of their directions.
void learn(const float* __restrict p, const float* __restrict gradient, float* __restrict m, float* __restrict v,
           const Scalars n, bool maximize, int64 count, double* sums) {
    double weights = 0.0, moves = 0.0;
    SIMD_SUM(weights, moves) for (int64 i = 0; i < count; i++) {
        float g = maximize ? -gradient[i] : gradient[i];
        m[i] = m[i] + (g - m[i]) * n.new_mean;
        v[i] = v[i] * n.keep + g * g * n.new_square;
        float move = direction(p[i], m[i], v[i], n);
        weights += double(p[i]) * double(p[i]), moves += double(move) * double(move);
    }
    sums[0] = weights, sums[1] = moves;
}

void descend(float* __restrict p, const float* __restrict m, const float* __restrict v, const Scalars n, float rate,
             int64 count) {
    SIMD for (int64 i = 0; i < count; i++) p[i] -= direction(p[i], m[i], v[i], n) * rate;
}

}  // namespace

// Flat float32 weights, gradient and moments [n], 16-bit copies or null; numbers: Scalars.
static void lamb_update(Array weights, Array gradient, Array mean, Array square, Array copy, Array other_copy,
                        const float* numbers, double lr, int64 maximize) {
    const Scalars scalars = *reinterpret_cast<const Scalars*>(numbers);
    int64 count = weights.size[2], grain = PARALLEL_ELEMENTS, parts = ceil_div(count, grain);
    Scratch<double> sums(2 * parts);
    if (!sums) return;
    double* partial = sums;
    parallel_for(count, grain, [=](int64 i, int64 end) {
        learn(address<float>(weights, 0, 0, i), address<float>(gradient, 0, 0, i), address<float>(mean, 0, 0, i),
              address<float>(square, 0, 0, i), scalars, maximize, end - i, partial + 2 * (i / grain));
    });
    double length = 0.0, moved = 0.0;
    for (int64 part = 0; part < parts; part++) length += partial[2 * part], moved += partial[2 * part + 1];
    float rate = float(lr * (length > 0 && moved > 0 ? __builtin_sqrt(length / moved) : 1.0));
    parallel_for(count, grain, [=](int64 i, int64 end) {
        float* p = address<float>(weights, 0, 0, i);
        descend(p, address<float>(mean, 0, 0, i), address<float>(square, 0, 0, i), scalars, rate, end - i);
        if (copy) write_floats(p, copy.data, copy.kind, i, 1, end - i);
        if (other_copy) write_floats(p, other_copy.data, other_copy.kind, i, 1, end - i);
    });
}
KERNEL(lamb_update)
