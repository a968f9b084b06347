// Adafactor for one parameter [outer, height, width] whose second moments are means of rows and columns.
//
// rows [outer, height, 1], columns [outer, 1, width]; without columns, rows [1, 1, n] holds them whole. All float32.
#include "../include/parallel.h"
#include "../include/simd_math.h"

using namespace simd;

namespace {

constexpr int64 COLUMNS = 256;  // columns that a thread sums at a time

void mean_squares_of_rows(const Array& gradient, const Array& rows, float weight) {
    int64 height = gradient.size[1], width = gradient.size[2];
    parallel_rows(gradient.size[0] * height, width, [=](int64 begin, int64 end) {
        for (int64 row = begin; row < end; row++) {
            const float* g = address<float>(gradient, row / height, row % height);
            float* held = address<float>(rows, row / height, row % height);
            *held += (float(blocked_sum(width, [=](int64 k) { return g[k] * g[k]; }) / double(width)) - *held) * weight;
        }
    });
}

void mean_squares_of_columns(const Array& gradient, const Array& columns, float weight) {
    int64 height = gradient.size[1], width = gradient.size[2], blocks = ceil_div(width, COLUMNS);
    parallel_rows(gradient.size[0] * blocks, height * min(width, COLUMNS), [=](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 outer = item / blocks, first = item % blocks * COLUMNS, count = min(COLUMNS, width - first);
            double sums[COLUMNS] = {};
            for (int64 row = 0; row < height; row++) {
                const float* __restrict g = address<float>(gradient, outer, row, first);
                SIMD for (int64 k = 0; k < count; k++) sums[k] += double(g[k]) * double(g[k]);
            }
            float* __restrict held = address<float>(columns, outer, 0, first);
            SIMD for (int64 k = 0; k < count; k++) held[k] += (float(sums[k] / double(height)) - held[k]) * weight;
        }
    });
}

// What to multiply the gradients of a row by, into `factors`: 1 / sqrt of the estimates of their mean squares.
void factors_of_row(const Array& rows, const Array& columns, const float* means, int64 i, int64 j, int64 width,
                    float least, float floor, float* __restrict factors) {
    if (!columns) {
        const float* __restrict held = address<float>(rows);
        SIMD for (int64 k = 0; k < width; k++) factors[k] = 1.0f / sqrtf(held[k] < floor ? floor : held[k]);
        return;
    }
    float share = *address<float>(rows, i, j) / (means[i] < least ? least : means[i]);
    const float* __restrict column = address<float>(columns, i);
    SIMD for (int64 k = 0; k < width; k++) {
        float estimate = share * column[k];
        factors[k] = 1.0f / sqrtf(estimate < floor ? floor : estimate);
    }
}

// work(i, j, factors) for every row of `array`.
template <class Work>
void for_each_row(const Array& array, const Array& rows, const Array& columns, const float* means, float least,
                  float floor, const Work& work) {
    int64 height = array.size[1], width = array.size[2];
    parallel_rows(array.size[0] * height, width, [&](int64 begin, int64 end) {
        Scratch<float> factors(width);
        if (!factors) return;
        for (int64 row = begin; row < end; row++) {
            factors_of_row(rows, columns, means, row / height, row % height, width, least, floor, factors);
            work(row / height, row % height, static_cast<const float*>(factors));
        }
    });
}

double sum_of_squares(const float* x, const float* factors, int64 count) {
    double total = 0.0;
    SIMD_SUM(total) for (int64 k = 0; k < count; k++) {
        float value = factors ? x[k] * factors[k] : x[k];
        total += double(value) * double(value);
    }
    return total;
}

void step_row(float* __restrict p, const float* __restrict g, const float* __restrict factors, float decay, float rate,
              int64 count) {
    SIMD for (int64 k = 0; k < count; k++) p[k] = p[k] * decay - factors[k] * g[k] * rate;
}

}  // namespace

// weight: of the new squares; scale: min(lr, 1 / sqrt(step)); limit: of the root mean square of the update.
static void adafactor_update(Array weights, Array gradient, Array rows, Array columns, Array copy, Array other_copy,
                             float weight, float least, float floor, double least_scale, double scale, double limit,
                             float decay, int64 maximize) {
    int64 outer = weights.size[0], height = weights.size[1], width = weights.size[2], lines = outer * height;
    Scratch<float> means_(outer);
    Scratch<double> sums_(2 * lines);
    if (!(means_ && sums_)) return;
    float* means = means_;
    double* sums = sums_;
    if (columns) {
        mean_squares_of_rows(gradient, rows, weight);
        mean_squares_of_columns(gradient, columns, weight);
        for (int64 i = 0; i < outer; i++)
            means[i] = float(blocked_sum(height, [&](int64 j) { return *address<float>(rows, i, j); }) / double(height));
    } else {
        float* held = address<float>(rows);
        const float* g = address<float>(gradient);
        SIMD for (int64 k = 0; k < width; k++) held[k] += (g[k] * g[k] - held[k]) * weight;
    }
    for_each_row(weights, rows, columns, means, least, floor, [&](int64 i, int64 j, const float* factors) {
        sums[2 * (i * height + j)] = sum_of_squares(address<float>(weights, i, j), nullptr, width);
        sums[2 * (i * height + j) + 1] = sum_of_squares(address<float>(gradient, i, j), factors, width);
    });
    double total[2] = {};
    for (int64 row = 0; row < lines; row++) total[0] += sums[2 * row], total[1] += sums[2 * row + 1];
    double count = double(lines) * double(width), size = __builtin_sqrt(total[0] / count);
    double moved = __builtin_sqrt(total[1] / count) / limit;
    scale *= size < least_scale ? least_scale : size;  // NaN stays NaN
    float rate = float(scale / (moved < 1.0 ? 1.0 : moved)), step = maximize ? -rate : rate;
    for_each_row(weights, rows, columns, means, least, floor, [&](int64 i, int64 j, const float* factors) {
        float* p = address<float>(weights, i, j);
        int64 start = weights.offset(i, j);
        step_row(p, address<float>(gradient, i, j), factors, decay, step, width);
        if (copy) write_floats(p, copy.data, copy.kind, start, 1, width);
        if (other_copy) write_floats(p, other_copy.data, other_copy.kind, start, 1, width);
    });
}
KERNEL(adafactor_update)
