// Optimizers whose update of an element reads no other element: one step over flat memory, in one pass.
//
// Weights [n], float32, and moments [n], as they are stored, change in place; the 16-bit copies [n] of the new weights are
// written with them.
// The rules are those of shared/optimizers.h, so that the bits are the references'.
#include "../include/moments.h"
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

#define REGISTER_RULE(NAME) EXPORT const Update optimizer_##NAME = update_block<NAME>;
#include "../../shared/optimizers.h"

}  // namespace simd

// update: one of those; moments: three; numbers: eight floats; the n-th moment is rounded by the draw n + 1 after `bits`. A
// moment that is not float32 is read into scratch memory and rounded back; one that is not there is dropped.
static void update_in_blocks(const Update* update, Array weights, Array gradient, const Moment* moments, Array copy,
                             Array other_copy, const float* numbers, float l2, int64 maximize, RandomBits bits) {
    const Moment held[3] = {moments[0], moments[1], moments[2]};
    Step step{{}, l2, maximize != 0, {bool(held[0]), bool(held[1]), bool(held[2])}};
    memcpy(step.n, numbers, sizeof step.n);
    bool is_wide = true;
    for (const Moment& moment : held) is_wide = is_wide && (!moment || moment.is_float32());
    const int64 block = is_wide ? BLOCK : CODE_BLOCK;
    parallel_for(weights.size[2], PARALLEL_ELEMENTS, [=](int64 begin, int64 end) {
        float scratch[3][BLOCK] = {}, *m[3];
        for (int64 i = begin; i < end; i += block) {
            int64 count = min(block, end - i);
            float* p = address<float>(weights, 0, 0, i);
            for (int k = 0; k < 3; k++) {
                bool in_place = held[k] && held[k].is_float32();
                m[k] = in_place ? address<float>(held[k].data, 0, 0, i) : scratch[k];
                if (held[k] && !in_place) held[k].read(scratch[k], i, count);
            }
            (*update)(p, address<float>(gradient, 0, 0, i), m[0], m[1], m[2], step, count);
            for (int k = 0; k < 3; k++)
                if (held[k] && !held[k].is_float32())
                    held[k].write(m[k], i, count, {bits.seed, bits.call + k + 1, bits.start});
            if (copy) write_floats(p, copy.data, copy.kind, i, 1, count);
            if (other_copy) write_floats(p, other_copy.data, other_copy.kind, i, 1, count);
        }
    });
}

static void optimizer_update(const Update* update, Array weights, Array gradient, Array a, Array b, Array c, Array copy,
                             Array other_copy, const float* numbers, float l2, int64 maximize) {
    const Moment moments[3] = {{a, nullptr, nullptr}, {b, nullptr, nullptr}, {c, nullptr, nullptr}};
    update_in_blocks(update, weights, gradient, moments, copy, other_copy, numbers, l2, maximize, {});
}
KERNEL(optimizer_update)

// The same of moments in fewer bits. scales, codes: of those in 8 bits, three addresses each. seed, call, start: of the
// random bits.
static void optimizer_update_rounded(const Update* update, Array weights, Array gradient, Array a, Array b, Array c,
                                     Array copy, Array other_copy, const float* numbers, float l2, int64 maximize,
                                     float* const* scales, const BlockCode* const* codes, uint64_t seed, uint64_t call,
                                     int64 start) {
    const Moment moments[3] = {{a, scales[0], codes[0]}, {b, scales[1], codes[1]}, {c, scales[2], codes[2]}};
    update_in_blocks(update, weights, gradient, moments, copy, other_copy, numbers, l2, maximize, {seed, call, start});
}
KERNEL(optimizer_update_rounded)

// to = the values of a flat moment in 8 bits.
static void decode(Array codes, Array scales, const BlockCode* code, Array to) {
    const Moment moment{codes, address<float>(scales), code};
    parallel_for(codes.size[2], PARALLEL_ELEMENTS, [=](int64 begin, int64 end) {
        for (int64 i = begin; i < end; i += CODE_BLOCK)
            moment.read(address<float>(to) + i, i, min(CODE_BLOCK, end - i));
    });
}
KERNEL(decode)

// A flat moment in 8 bits = values, rounded stochastically, or to nearest.
static void encode(Array values, Array codes, Array scales, const BlockCode* code, int64 to_nearest, uint64_t seed,
                   uint64_t call, int64 start) {
    const Moment moment{codes, address<float>(scales), code};
    const RandomBits bits{seed, call, start};
    parallel_for(codes.size[2], PARALLEL_ELEMENTS, [=](int64 begin, int64 end) {
        uint16_t word[CODE_BLOCK];
        for (uint16_t& each : word) each = NEAREST_WORD;
        for (int64 i = begin; i < end; i += CODE_BLOCK) {
            int64 count = min(CODE_BLOCK, end - i);
            if (!to_nearest) bits.words(i, count, word);
            moment.write_codes(address<float>(values) + i, i, count, word);
        }
    });
}
KERNEL(encode)

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
