// Norms of channels [samples, channels, positions]: batch norm and group norm, forward and backward. The sums of a plane
// are added up in float32 within blocks and in float64 beyond.
#include "../include/planes.h"

namespace {

// The flags of a loop, as types: whether ReLU follows, and whether each element has coefficients of its own.
struct Yes { static constexpr bool value = true; };
struct No { static constexpr bool value = false; };

// visit(flag) by the value of `flag`.
template <class Visit>
void with_flag(bool flag, const Visit& visit) {
    if (flag) visit(Yes());
    else visit(No());
}

// The mean of `count` values, and the sum of their squared deviations from it.
struct Moments {
    double mean, squares, count;
    void merge(double center, double rest, double square, int64 n) {  // Chan, Golub, LeVeque 1983, eq. 2.1
        double all = count + double(n), apart = center + rest / double(n) - mean, share = double(n) / all;
        squares += square - rest * rest / double(n) + apart * apart * share * count;
        mean += apart * share, count = all;
    }
};

void moments_of_plane(const Array& x, const Shape& shape, int64 plane, Moments* found) {
    float buffer[BLOCK];
    for (int64 at = 0; at < shape.positions; at += BLOCK) {
        Run run = block_of(shape, plane, at);
        with_runs(run, Array(), x, Array(), nullptr, buffer, nullptr, [&](auto*, const auto* v, auto*) {
            float sum = 0.0f, rest = 0.0f, square = 0.0f;
            SIMD_SUM(sum) for (int64 k = 0; k < run.count; k++) sum += v[k];
            float center = sum / float(run.count);
            SIMD_SUM(rest, square) for (int64 k = 0; k < run.count; k++) {
                float d = v[k] - center;
                rest += d, square += d * d;
            }
            found->merge(center, rest, square, run.count);
        });
    }
}

// Per column the mean of the rows, the sum of what is left, and of its squares.
void moments_of_rows(const Array& x, const Shape& shape, float* center, int64 sample, int64 begin, int64 end) {
    int64 width = shape.width();
    Scratch<float> buffer(width);
    if (!buffer) return;
    float *rest = center + width, *square = rest + width;
    auto for_rows = [&](const auto& add) {
        for (int64 row = begin; row < end; row++)
            with_runs(row_of(shape, sample, row), Array(), x, Array(), nullptr, buffer, nullptr, add);
    };
    for_rows([=](auto*, const auto* v, auto*) { SIMD for (int64 k = 0; k < width; k++) center[k] += v[k]; });
    for (int64 k = 0; k < width; k++) center[k] /= float(end - begin);
    for_rows([=](auto*, const auto* v, auto*) {
        SIMD for (int64 k = 0; k < width; k++) {
            float d = v[k] - center[k];
            rest[k] += d, square[k] += d * d;
        }
    });
}

constexpr double SMALL_EPS = 1e-30;  // below which squares that underflow count

// Those of a plane in float64, where float32 sums over- or underflow.
Moments wide_moments(const Array& x, const Shape& shape, int64 plane) {
    float buffer[BLOCK];
    double sum = 0.0, squares = 0.0;
    auto for_all = [&](const auto& add) {
        for (int64 at = 0; at < shape.positions; at += BLOCK) {
            Run run = block_of(shape, plane, at);
            const float* value = read_run(x, run, buffer);
            for (int64 k = 0; k < run.count; k++) add(double(value[k]));
        }
    };
    for_all([&](double value) { sum += value; });
    double mean = sum / double(shape.positions);
    for_all([&](double value) { squares += (value - mean) * (value - mean); });
    return {mean, squares, double(shape.positions)};
}

void moments_of_planes(const Array& x, const Shape& shape, double eps, Moments* found) {
    memset(static_cast<void*>(found), 0, shape.planes * sizeof(Moments));
    if (shape.lanes) {
        sum_columns(shape, [&](float* part, int64 sample, int64 begin, int64 end) {
            moments_of_rows(x, shape, part, sample, begin, end);
        }, [=](int64 p, int64 rows, float center, float rest, float square) {
            found[p].merge(center, rest, square, rows);
        });
    } else {
        parallel_rows(shape.planes, shape.positions, [&](int64 begin, int64 end) {
            for (int64 p = begin; p < end; p++) moments_of_plane(x, shape, p, found + p);
        });
    }
    for (int64 p = 0; p < shape.planes; p++) {
        double sum = found[p].mean + found[p].squares;
        bool underflows = eps < SMALL_EPS && found[p].squares < 0x1p-126 * found[p].count;
        if (sum - sum != 0.0 || underflows) found[p] = wide_moments(x, shape, p);
    }
}

// The numbers of each channel as float32, or `missing` in each place.
void read_channels(float* buffer, const Array& array, int64 channels, float missing) {
    if (array) return read_floats(buffer, array.data, array.kind, 0, array.stride[2], channels);
    for (int64 c = 0; c < channels; c++) buffer[c] = missing;
}

float* number(const Array& array, int64 at) { return address<float>(array, 0, 0, at); }

// y = (x - mean) * scale + offset, + residual if `sum`, then ReLU if `relu`. each: whether each element has coefficients
// of its own.
template <bool each, bool sum, class T>
void normalize(T* y, const T* x, const T* residual, const float* mean, const float* scale, const float* offset, bool relu,
               int64 n) {
    const float m = *mean, a = *scale, b = *offset, least = relu ? 0.0f : __builtin_nanf("");  // no number is below NaN
    SIMD_STORE for (int64 k = 0; k < n; k++) {
        float v = (x[k] - (each ? mean[k] : m)) * (each ? scale[k] : a) + (each ? offset[k] : b);
        if (sum) v += residual[k];
        store(y[k], v <= least ? least : v);
    }
}

// The gradient of x, with `relu` of the dy that ReLU lets pass. given: the statistics do not depend on x. AVX2 cannot load
// 16-bit values by a condition: such a load would be a branch for each element.
template <bool each, bool relu, class T>
void input_gradient(T* dx, const T* dy, const T* x, const float* mean, const float* scale, const float* offset,
                    const float* factor, const float* constant, bool given, int64 n) {
#if defined(__clang__)
#pragma clang fp contract(on)  // by expressions, not as code is generated: the same bits with and without ReLU
#endif
    const float m = *mean, a = *scale, b = *offset, f = *factor, o = *constant;
    SIMD_STORE for (int64 k = 0; k < n; k++) {
        float by = each ? scale[k] : a, d = x[k] - (each ? mean[k] : m), all = dy[k];
        float g = relu && d * by + (each ? offset[k] : b) <= 0.0f ? 0.0f : all;
        store(dx[k], g * by + (given ? 0.0f : d * (each ? factor[k] : f) + (each ? constant[k] : o)));
    }
}

// Of a plane or a set, with x - mean as d: the sums of dy, with `relu` of that which ReLU lets pass, dy * d and d.
struct Sums { double grad, dot, rest; };

template <bool relu>
void sums_of_plane(const Array& dy, const Array& x, const Shape& shape, Coefficients& c, int64 plane, Sums* found) {
    float x_buffer[BLOCK], dy_buffer[BLOCK];
    for (int64 at = 0; at < shape.positions; at += BLOCK) {
        Run run = block_of(shape, plane, at);
        const float mean = *c.of(0, run), scale = *c.of(1, run), offset = *c.of(2, run);
        with_runs(run, Array(), x, dy, nullptr, x_buffer, dy_buffer, [&](auto*, const auto* v, const auto* grad) {
            float sum = 0.0f, dot = 0.0f, rest = 0.0f;
            SIMD_SUM(sum, dot, rest) for (int64 k = 0; k < run.count; k++) {
                float d = v[k] - mean, all = grad[k], g = relu && d * scale + offset <= 0.0f ? 0.0f : all;
                sum += g, dot += g * d, rest += d;
            }
            found->grad += sum, found->dot += dot, found->rest += rest;
        });
    }
}

template <bool relu>
void sums_of_rows(const Array& dy, const Array& x, const Shape& shape, Coefficients& c, float* sum, int64 sample,
                  int64 begin, int64 end) {
    int64 width = shape.width();
    Scratch<float> x_buffer(width), dy_buffer(width);
    if (!(x_buffer && dy_buffer)) return;
    const float *mean = c.row(0, sample), *scale = c.row(1, sample), *offset = c.row(2, sample);
    float *dot = sum + width, *rest = dot + width;
    for (int64 row = begin; row < end; row++) {
        Run run = row_of(shape, sample, row);
        with_runs(run, Array(), x, dy, nullptr, x_buffer, dy_buffer, [=](auto*, const auto* v, const auto* grad) {
            SIMD for (int64 k = 0; k < width; k++) {
                float d = v[k] - mean[k], all = grad[k], g = relu && d * scale[k] + offset[k] <= 0.0f ? 0.0f : all;
                sum[k] += g, dot[k] += g * d, rest[k] += d;
            }
        });
    }
}

template <bool relu>
void sums_of_planes(const Array& dy, const Array& x, const Shape& shape, Coefficients& c, Sums* found) {
    memset(static_cast<void*>(found), 0, shape.planes * sizeof(Sums));
    if (shape.lanes) {
        sum_columns(shape, [&](float* part, int64 sample, int64 begin, int64 end) {
            sums_of_rows<relu>(dy, x, shape, c, part, sample, begin, end);
        }, [=](int64 p, int64, float grad, float dot, float rest) {
            found[p].grad += grad, found[p].dot += dot, found[p].rest += rest;
        });
    } else {
        parallel_rows(shape.planes, shape.positions, [&](int64 begin, int64 end) {
            for (int64 p = begin; p < end; p++) sums_of_plane<relu>(dy, x, shape, c, p, found + p);
        });
    }
}

// Sets mean and scale of each plane from the statistics of its set, and offset from the channel's; `rounding` is what
// float32 added to the mean of each set, or null.
void set_coefficients(Coefficients& c, const Array& mean, const Array& rstd, const float* weight, const float* offset,
                      const double* rounding) {
    for (int64 p = 0; p < c.shape.planes; p++) {
        int64 set = c.shape.set_of(p), channel = p % c.shape.channels;
        float scale = *number(rstd, set) * weight[channel], added = rounding ? float(rounding[set]) : 0.0f;
        c.set(0, p, *number(mean, set)), c.set(1, p, scale);
        c.set(2, p, added == 0.0f ? offset[channel] : offset[channel] + added * scale);
    }
}

// mean and variance (biased) of each set, float32, from those of its planes; beyond: a variance that float32 does not hold.
void statistics_of_sets(const Shape& shape, const Moments* moments, const Array& mean, const Array& variance,
                        double* rounding, double* beyond) {
    for (int64 set = 0; set < shape.sets(); set++) {
        Moments all{};
        for (int64 j = 0; j < shape.members; j++) {
            const Moments& each = moments[shape.plane(set, j)];
            all.merge(each.mean, 0.0, each.squares, shape.positions);
        }
        *number(mean, set) = float(all.mean), *number(variance, set) = float(all.squares / all.count);
        bool held = *number(variance, set) >= 0x1p-126f && *number(variance, set) < __builtin_inff();
        if (!held) beyond[set] = all.squares / all.count;
        rounding[set] = *number(mean, set) - all.mean;
    }
}

}  // namespace

// mean and variance of each set are written, or read if they are `given`; rstd is written. weight and bias [channels]
// may be absent, and so may the residual, which is added before the ReLU.
static void channel_norm_forward(Array out, Array mean, Array variance, Array rstd, Array x, Array residual, Array weight,
                                 Array bias, double eps, int64 groups, int64 given, int64 relu) {
    Shape shape(x, out, residual, groups);
    Scratch<double> rounding(shape.sets()), beyond(shape.sets());
    if (!(rounding && beyond)) return;
    double* larger = beyond;
    for (int64 set = 0; set < shape.sets(); set++) larger[set] = 0.0;
    if (!given) {
        Scratch<Moments> moments(shape.planes);
        if (!moments) return;
        moments_of_planes(x, shape, eps, moments);
        statistics_of_sets(shape, moments, mean, variance, rounding, beyond);
    }
    for (int64 set = 0; set < shape.sets(); set++) {
        double spread = larger[set] > 0.0 ? larger[set] : double(*number(variance, set));
        *number(rstd, set) = float(1.0 / __builtin_sqrt(spread + eps));
    }
    Coefficients c(shape, 3);
    Scratch<float> scales(shape.channels), shifts(shape.channels);
    if (!(c.values && scales && shifts)) return;
    read_channels(scales, weight, shape.channels, 1.0f), read_channels(shifts, bias, shape.channels, 0.0f);
    set_coefficients(c, mean, rstd, scales, shifts, given ? nullptr : static_cast<double*>(rounding));
    with_flag(shape.lanes, [&](auto each) {
        with_flag(bool(residual), [&](auto sum) {
            for_each_run(shape, [&](const Run& run, float* x_buffer, float* y_buffer, float* buffer) {
                const float *center = c.of(0, run), *scale = c.of(1, run), *offset = c.of(2, run);
                with_runs(run, out, x, residual, y_buffer, x_buffer, buffer, [&](auto* y, const auto* v, const auto* r) {
                    normalize<each.value, sum.value>(y, v, r, center, scale, offset, relu, run.count);
                });
            });
        });
    });
}
KERNEL(channel_norm_forward)

// Gradients of the input, weight and bias, absent where they are not wanted; dmean and dvariance, of the statistics, may be
// absent. given: the statistics do not depend on x.
static void channel_norm_backward(Array dx, Array dweight, Array dbias, Array dy, Array dmean, Array dvariance, Array x,
                                  Array weight, Array bias, Array mean, Array rstd, int64 groups, int64 given,
                                  int64 relu) {
    Shape shape(x, dy, dx, groups);
    Coefficients c(shape, 5);
    Scratch<float> scales(shape.channels), shifts(shape.channels);
    if (!(c.values && scales && shifts)) return;
    read_channels(scales, weight, shape.channels, 1.0f), read_channels(shifts, bias, shape.channels, 0.0f);
    set_coefficients(c, mean, rstd, scales, shifts, nullptr);
    Scratch<Sums> sums(shape.planes);
    if (!sums) return;
    with_flag(relu, [&](auto gated) { sums_of_planes<gated.value>(dy, x, shape, c, sums); });
    Scratch<double> dscales(shape.channels), dshifts(shape.channels);
    if (!(dscales && dshifts)) return;
    for (int64 channel = 0; channel < shape.channels; channel++) dscales[channel] = dshifts[channel] = 0.0;
    double count = double(shape.members * shape.positions);
    for (int64 set = 0; set < shape.sets(); set++) {
        Sums all{};  // with the weights
        for (int64 j = 0; j < shape.members; j++) {
            const Sums& each = sums[shape.plane(set, j)];
            float scale = scales[shape.plane(set, j) % shape.channels];
            all.grad += each.grad * scale, all.dot += each.dot * scale, all.rest += each.rest;
        }
        double r = *number(rstd, set), rest = given ? 0.0 : all.rest / count;  // the rounding of the mean
        double dsquares = dvariance ? 2.0 * *number(dvariance, set) : 0.0, dsum = dmean ? *number(dmean, set) : 0.0;
        double factor = given ? 0.0 : (dsquares - r * r * r * (all.dot - rest * all.grad)) / count;
        double constant = given ? 0.0 : (dsum - r * all.grad) / count - rest * factor;
        for (int64 j = 0; j < shape.members; j++) {
            int64 p = shape.plane(set, j), channel = p % shape.channels;
            c.set(3, p, float(factor)), c.set(4, p, float(constant));
            dscales[channel] += r * (sums[p].dot - rest * sums[p].grad), dshifts[channel] += sums[p].grad;
        }
    }
    for (int64 channel = 0; channel < shape.channels; channel++) {
        float by = float(dscales[channel]), plus = float(dshifts[channel]);
        if (dweight) write_floats(&by, dweight.data, dweight.kind, channel, 1, 1);
        if (dbias) write_floats(&plus, dbias.data, dbias.kind, channel, 1, 1);
    }
    if (!dx) return;
    with_flag(shape.lanes, [&](auto each) {
        with_flag(relu, [&](auto gated) {
            for_each_run(shape, [&](const Run& run, float* x_buffer, float* dy_buffer, float* dx_buffer) {
                const float *center = c.of(0, run), *scale = c.of(1, run), *offset = c.of(2, run);
                const float *factor = c.of(3, run), *constant = c.of(4, run);
                with_runs(run, dx, x, dy, dx_buffer, x_buffer, dy_buffer, [&](auto* to, const auto* v, const auto* grad) {
                    input_gradient<each.value, gated.value>(to, grad, v, center, scale, offset, factor, constant, given,
                                                            run.count);
                });
            });
        });
    });
}
KERNEL(channel_norm_backward)

// running = running * (1 - momentum) + batch * momentum for means [channels], and for variances with the batch's times
// `unbiased`; nothing where a number of the batch is not finite. Rounded after each operation, as NumPy does.
static void update_running_statistics(Array running_mean, Array running_variance, Array mean, Array variance, float unbiased,
                                      float momentum, float rest) {
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
    int64 channels = mean.size[2];
    float sum = 0.0f;
    for (int64 c = 0; c < channels; c++) sum += *number(mean, c) * 0.0f + *number(variance, c) * 0.0f;
    if (sum != 0.0f) return;  // NaN
    for (int64 c = 0; c < channels; c++) {
        float *m = number(running_mean, c), *v = number(running_variance, c), batch = *number(variance, c) * unbiased;
        *m *= rest, *v *= rest;
        *m += momentum * *number(mean, c), *v += momentum * batch;
    }
}
KERNEL(update_running_statistics)
