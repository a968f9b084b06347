// Optimizers whose update of an element reads no other element: one step over flat memory, in one pass.
//
// Weights and moments [n], float32, change in place; the 16-bit copies [n] of the new weights are written with them.
// The rules are those of shared/optimizers.h, so that the bits are the references'.
#include "../include/parallel.h"
#include "../include/simd_math.h"
#if defined(__clang__)
#pragma clang fp contract(off)
#endif

using namespace simd;

namespace {

constexpr int64 BLOCK = 512;  // elements whose weights are still in the first-level cache when they are rounded

// n: the per-step scalars of the rule, in the order of its `scalars` in Python; has: which moments exist.
struct Step {
    float n[8];
    float l2;
    bool maximize, has[3];
};

template <class Rule>
void update_block(float* __restrict p, const float* __restrict gradient, float* __restrict a, float* __restrict b,
                  float* __restrict c, const Step step, int64 count) {
    SIMD for (int64 i = 0; i < count; i++) {
        float g = step.maximize ? -gradient[i] : gradient[i];
        g = step.l2 != 0.0f ? g + p[i] * step.l2 : g;
        Rule::apply(p[i], g, a[i], b[i], c[i], step.n, step.has);
    }
}

using Update = void (*)(float*, const float*, float*, float*, float*, Step, int64);

}  // namespace

// `optimizer_<rule>` of the library: the update of a block by each rule.
namespace simd {

#define HELPER INLINE
#define REGISTER_RULE(NAME) EXPORT const Update optimizer_##NAME = update_block<NAME>;
#include "../../shared/optimizers.h"

}  // namespace simd

// update: one of those; numbers: eight floats. A moment that is not there is computed in scratch memory and dropped.
static void optimizer_update(const Update* update, Array weights, Array gradient, Array a, Array b, Array c, Array copy,
                             Array other_copy, const float* numbers, float l2, int64 maximize) {
    Step step{{}, l2, maximize != 0, {bool(a), bool(b), bool(c)}};
    memcpy(step.n, numbers, sizeof step.n);
    parallel_for(weights.size[2], PARALLEL_ELEMENTS, [=](int64 begin, int64 end) {
        float unused[3][BLOCK] = {};
        for (int64 i = begin; i < end; i += BLOCK) {
            int64 count = min(BLOCK, end - i);
            float* p = address<float>(weights, 0, 0, i);
            (*update)(p, address<float>(gradient, 0, 0, i), a ? address<float>(a, 0, 0, i) : unused[0],
                          b ? address<float>(b, 0, 0, i) : unused[1], c ? address<float>(c, 0, 0, i) : unused[2], step,
                          count);
            if (copy) write_floats(p, copy.data, copy.kind, i, 1, count);
            if (other_copy) write_floats(p, other_copy.data, other_copy.kind, i, 1, count);
        }
    });
}
KERNEL(optimizer_update)

// average += (current - average) * weight, of flat float32; a fresh average counts as 0, whatever it holds.
static void lerp(Array average, Array current, float weight, int64 fresh) {
    parallel_for(average.size[2], PARALLEL_ELEMENTS, [=](int64 begin, int64 end) {
        float* __restrict held = address<float>(average);
        const float* __restrict values = address<float>(current);
        if (fresh) {
            SIMD for (int64 i = begin; i < end; i++) held[i] = values[i] * weight;
        } else {
            SIMD for (int64 i = begin; i < end; i++) held[i] += (values[i] - held[i]) * weight;
        }
    });
}
KERNEL(lerp)

// The sum of squares of flat values, exact products in float64; or the largest magnitude, NaN if there is one.
static double power_sum(Array values, int64 maximum) {
    int64 count = values.size[2], parts = ceil_div(count, PARALLEL_ELEMENTS);
    Scratch<double> sums(parts);
    if (!sums) return 0.0;
    double* partial = sums;
    parallel_for(parts, 1, [=](int64 begin, int64 end) {
        for (int64 part = begin; part < end; part++) {
            double total = 0.0;
            float largest = 0.0f;
            for (int64 i = part * PARALLEL_ELEMENTS; i < min(count, (part + 1) * PARALLEL_ELEMENTS); i += BLOCK) {
                float buffer[BLOCK];
                int64 n = min(BLOCK, count - i);
                read_floats(buffer, values.data, values.kind, i, 1, n);
                if (maximum) {
                    SIMD for (int64 k = 0; k < n; k++) buffer[k] = fabsf(buffer[k]);
                    largest = larger(largest, max_of(buffer, n));
                } else {
                    SIMD_SUM(total) for (int64 k = 0; k < n; k++) total += double(buffer[k]) * double(buffer[k]);
                }
            }
            partial[part] = maximum ? double(largest) : total;
        }
    });
    double total = 0.0;
    for (int64 part = 0; part < parts; part++) {
        bool keep = maximum && !(partial[part] > total || partial[part] != partial[part]);
        total = !maximum ? total + partial[part] : keep ? total : partial[part];
    }
    return total;
}
KERNEL(power_sum)

// values *= factor, flat.
static void scale_gradients(Array values, float factor) {
    parallel_for(values.size[2], PARALLEL_ELEMENTS, [=](int64 begin, int64 end) {
        with_float_type(values.kind, values.data, [=](auto* x) {
            SIMD_STORE for (int64 i = begin; i < end; i++) store(x[i], x[i] * factor);
        });
    });
}
KERNEL(scale_gradients)
