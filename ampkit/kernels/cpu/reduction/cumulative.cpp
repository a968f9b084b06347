// Cumulative sums, products, extremes and logarithms of sums along the middle axis of x [a, n, c], and their gradients.
// What runs along the axis is kept in float64.
#include "../include/parallel.h"

#include <math.h>

namespace {

constexpr int64 BLOCK = 256, ROWS = 8;

// work(i, first, count) for blocks of at most `width` of the last axis.
template <class Work>
void for_each_block(const Array& x, int64 width, const Work& work) {
    int64 c = x.size[2], blocks = ceil_div(c, width);
    parallel_rows(x.size[0] * blocks, x.size[1] * min(c, width), [&](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 first = item % blocks * width;
            work(item / blocks, first, min(width, c - first));
        }
    });
}

template <bool PRODUCT>
void scan_columns(const Array& out, const Array& x, bool reverse) {
    for_each_block(x, BLOCK, [&](int64 i, int64 first, int64 count) {
        float buffer[BLOCK];
        double running[BLOCK];
        for (int64 k = 0; k < count; k++) running[k] = PRODUCT;
        for (int64 step = 0; step < x.size[1]; step++) {
            int64 j = reverse ? x.size[1] - 1 - step : step;
            read_floats(buffer, x.data, x.kind, x.offset(i, j, first), x.stride[2], count);
            SIMD for (int64 k = 0; k < count; k++) {
                running[k] = PRODUCT ? running[k] * double(buffer[k]) : running[k] + double(buffer[k]);
                buffer[k] = float(running[k]);
            }
            write_floats(buffer, out.data, out.kind, out.offset(i, j, first), out.stride[2], count);
        }
    });
}

// Along rows, several at a time: within one, each operation waits for the one before.
template <bool PRODUCT>
void scan_rows(const Array& out, const Array& x, bool reverse) {
    int64 rows = x.size[0], n = x.size[1];
    parallel_for(ceil_div(rows, ROWS), max(1, PARALLEL_ELEMENTS / max(1, ROWS * n)), [&](int64 begin, int64 end) {
        float buffer[ROWS][BLOCK] = {};
        for (int64 group = begin; group < end; group++) {
            int64 first = group * ROWS, count = min(ROWS, rows - first);
            double running[ROWS];
            for (int64 r = 0; r < ROWS; r++) running[r] = PRODUCT;
            for (int64 done = 0; done < n; done += BLOCK) {
                int64 length = min(BLOCK, n - done), start = reverse ? n - done - length : done;
                for (int64 r = 0; r < count; r++) {
                    read_floats(buffer[r], x.data, x.kind, x.offset(first + r, start), x.stride[1], length);
                }
                for (int64 k = 0; k < length; k++) {
                    int64 at = reverse ? length - 1 - k : k;
                    for (int64 r = 0; r < ROWS; r++) {
                        running[r] = PRODUCT ? running[r] * double(buffer[r][at]) : running[r] + double(buffer[r][at]);
                        buffer[r][at] = float(running[r]);
                    }
                }
                for (int64 r = 0; r < count; r++) {
                    write_floats(buffer[r], out.data, out.kind, out.offset(first + r, start), out.stride[1], length);
                }
            }
        }
    });
}

inline float read_at(const Array& x, int64 i, int64 j, int64 k) {
    float value;
    read_floats(&value, x.data, x.kind, x.offset(i, j, k), 1, 1);
    return value;
}
inline void write_at(const Array& x, int64 i, int64 j, int64 k, double value) {
    float rounded = float(value);
    write_floats(&rounded, x.data, x.kind, x.offset(i, j, k), 1, 1);
}

// exp(part - whole), 0 where part is -inf.
inline double exp_difference(double part, double whole) { return part == -__builtin_inf() ? 0.0 : exp(part - whole); }

}  // namespace

static void cumulative(Array out, Array x, int64 product, int64 reverse) {
    auto* run = x.size[2] > 1 ? (product ? scan_columns<true> : scan_columns<false>) : (product ? scan_rows<true> : scan_rows<false>);
    run(out, x, reverse != 0);
}
KERNEL(cumulative)

// dx_i = the product of the x before i, times tail_i = dy_i + x_{i+1} tail_{i+1}: exact also with zeros.
static void cumulative_product_backward(Array dx, Array dy, Array x) {
    constexpr int64 WIDTH = 16;
    for_each_block(x, WIDTH, [&](int64 i, int64 first, int64 count) {
        int64 n = x.size[1];
        Scratch<double> tail(n * count);
        if (!tail) return;
        for (int64 k = 0; k < count; k++) {
            double running = 0.0, product = 1.0, next = 0.0;
            for (int64 j = n - 1; j >= 0; j--) {
                tail[j * count + k] = running = read_at(dy, i, j, first + k) + (j + 1 < n ? next * running : 0.0);
                next = read_at(x, i, j, first + k);
            }
            for (int64 j = 0; j < n; j++) {
                write_at(dx, i, j, first + k, product * tail[j * count + k]);
                product *= read_at(x, i, j, first + k);
            }
        }
    });
}
KERNEL(cumulative_product_backward)

// values, places: the cumulative largest or smallest value, and where it is; of ties the last. NaN stays.
static void cumulative_extreme(Array values, Array places, Array x, int64 smallest) {
    for_each_block(x, BLOCK, [&](int64 i, int64 first, int64 count) {
        with_float_type(x.kind, x.data, [&](auto* data) {
            auto* result = static_cast<decltype(data)>(values.data);
            float best[BLOCK];
            int64 at[BLOCK];
            for (int64 j = 0; j < x.size[1]; j++) {
                auto* row = data + x.offset(i, j, first);
                auto* value = result + values.offset(i, j, first);
                int64* place = address<int64>(places, i, j, first);
                for (int64 k = 0; k < count; k++) {
                    float found = row[k * x.stride[2]], b = best[k];
                    bool wins = j == 0 || found != found || (b == b && (smallest ? found <= b : found >= b));
                    if (wins) best[k] = found, at[k] = j;
                    value[k * values.stride[2]] = best[k], place[k * places.stride[2]] = at[k];
                }
            }
        });
    });
}
KERNEL(cumulative_extreme)

// out = log of the cumulative sum of exp(x), by the largest value so far and the sum relative to it.
static void cumulative_logsumexp(Array out, Array x) {
    for_each_block(x, 1, [&](int64 i, int64 k, int64) {
        double largest = -__builtin_inf(), sum = 0.0;
        for (int64 j = 0; j < x.size[1]; j++) {
            double value = read_at(x, i, j, k);
            if (value > largest) {
                sum = sum * exp(largest - value) + 1.0, largest = value;
            } else {
                sum += value == largest ? 1.0 : exp(value - largest);
            }
            write_at(out, i, j, k, largest + log(sum));
        }
    });
}
KERNEL(cumulative_logsumexp)

// dx_i = exp(x_i - out_i) tail_i, with tail_i = dy_i + exp(out_i - out_{i+1}) tail_{i+1}.
static void cumulative_logsumexp_backward(Array dx, Array dy, Array x, Array out) {
    for_each_block(x, 1, [&](int64 i, int64 k, int64) {
        double tail = 0.0, next = 0.0;
        for (int64 n = x.size[1], j = n - 1; j >= 0; j--) {
            double here = read_at(out, i, j, k);
            tail = read_at(dy, i, j, k) + (j + 1 < n ? tail * exp_difference(here, next) : 0.0);
            write_at(dx, i, j, k, tail * exp_difference(read_at(x, i, j, k), here));
            next = here;
        }
    });
}
KERNEL(cumulative_logsumexp_backward)
