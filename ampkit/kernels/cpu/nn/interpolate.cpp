// Separable linear maps of images: average pooling and interpolation, and their gradients, which are maps of this kind.
//
// Output element (d, h, w) is the sum over the taps of each axis of the product of their weights times an input element.
#include "../include/parallel.h"

namespace {

// One axis: taps [taps, out], the input elements and weights of each output element. Index `in` stands for no element.
struct Axis {
    int64 in, out, taps;
    const int32_t* index;
    const float* weight;

    bool same(int64 one, int64 other) const {  // whether two output elements have the same taps
        for (int64 t = 0; t < taps; t++)
            if (index[t * out + one] != index[t * out + other] || weight[t * out + one] != weight[t * out + other]) return false;
        return true;
    }
};

template <class T>
void add_row(float* __restrict sum, const T* __restrict row, float weight, bool first, int64 count) {
    if (first) {
        SIMD for (int64 i = 0; i < count; i++) sum[i] = row[i] * weight;
    } else {
        SIMD for (int64 i = 0; i < count; i++) sum[i] += row[i] * weight;
    }
}

// sum [in W * inner]: the input rows of one output row, added up along depth and height.
void sum_rows(float* sum, const Array& input, int64 outer, const Axis& depth, int64 d, const Axis& height, int64 h,
              int64 count) {
    bool first = true;
    for (int64 i = 0; i < depth.taps; i++)
        for (int64 j = 0; j < height.taps; j++) {
            int64 di = depth.index[i * depth.out + d], hi = height.index[j * height.out + h];
            if (di == depth.in || hi == height.in) continue;
            float weight = depth.weight[i * depth.out + d] * height.weight[j * height.out + h];
            int64 start = input.offset(0, outer, (di * height.in + hi) * count);
            with_float_type(input.kind, input.data, [=](auto* x) { add_row(sum, x + start, weight, first, count); });
            first = false;
        }
    if (first) memset(sum, 0, count * sizeof(float));
}

// out [W' * inner]: `row`, which ends with a zero pixel, summed along the width, over `divisor`.
void sum_along_row(float* __restrict out, const float* __restrict row, const Axis& width, int64 inner, float divisor) {
    int64 count = width.out, taps = width.taps;
    const int32_t* __restrict index = width.index;
    const float* __restrict weight = width.weight;
    if (inner > 1) {
        for (int64 o = 0; o < count; o++)
            for (int64 t = 0; t < taps; t++)
                add_row(out + o * inner, row + index[t * count + o] * inner, weight[t * count + o], t == 0, inner);
    } else if (taps > count) {
        for (int64 o = 0; o < count; o++) {
            float sum = 0.0f;
            for (int64 t = 0; t < taps; t++) sum += row[index[t * count + o]] * weight[t * count + o];
            out[o] = sum;
        }
    } else {
        for (int64 o = 0; o < count; o++) out[o] = row[index[o]] * weight[o];
        for (int64 t = 1; t < taps; t++)
            for (int64 o = 0; o < count; o++) out[o] += row[index[t * count + o]] * weight[t * count + o];
    }
    if (divisor != 1.0f) {
        SIMD for (int64 i = 0; i < count * inner; i++) out[i] /= divisor;
    }
}

}  // namespace

// out [planes, D' * H' * W' * inner], input [planes, D * H * W * inner]; inner: the channels where they are last, else 1.
// sizes: in, out and taps of depth, height and width; index and weight: the taps of each axis, one after the other.
static void resample(Array out, Array input, int64 inner, const int64* sizes, const int32_t* index, const float* weight,
                     float divisor) {
    Axis axes[3];
    for (int i = 0; i < 3; i++) {
        axes[i] = {sizes[3 * i], sizes[3 * i + 1], sizes[3 * i + 2], index, weight};
        index += axes[i].out * axes[i].taps, weight += axes[i].out * axes[i].taps;
    }
    const Axis depth = axes[0], height = axes[1], width = axes[2];
    int64 read = width.in * inner, written = width.out * inner, lines = depth.out * height.out;
    int64 size = out.kind == FLOAT32 ? 4 : 2;
    parallel_rows(out.size[1] * lines, read * depth.taps * height.taps + written * width.taps, [=](int64 begin, int64 end) {
        Scratch<float> sum(read + inner), result(written);
        if (!(sum && result)) return;
        memset(sum + read, 0, inner * sizeof(float));
        for (int64 line = begin; line < end; line++) {
            int64 plane = line / lines, d = line % lines / height.out, h = line % height.out;
            int64 start = out.offset(0, plane, (d * height.out + h) * written);
            if (line > begin && h > 0 && height.same(h, h - 1)) {
                char* to = static_cast<char*>(out.data) + start * size;
                memcpy(to, to - written * size, written * size);
                continue;
            }
            sum_rows(sum, input, plane, depth, d, height, h, read);
            float* to = out.kind == FLOAT32 ? static_cast<float*>(out.data) + start : result;
            sum_along_row(to, sum, width, inner, divisor);
            if (out.kind != FLOAT32) write_floats(to, out.data, out.kind, start, 1, written);
        }
    });
}
KERNEL(resample)

// out [planes, 1] = the sum of each plane of input [planes, n], over divisor.
static void plane_means(Array out, Array input, float divisor) {
    int64 count = input.size[2];
    parallel_rows(input.size[1], count, [=](int64 begin, int64 end) {
        for (int64 plane = begin; plane < end; plane++) {
            float mean = 0.0f;
            with_float_type(input.kind, input.data, [&](auto* data) {
                auto* x = data + input.offset(0, plane);
                mean = float(blocked_sum(count, [=](int64 i) { return float(x[i]); })) / divisor;
            });
            write_floats(&mean, out.data, out.kind, out.offset(0, plane), 1, 1);
        }
    });
}
KERNEL(plane_means)

// out [planes, n] = values [planes, 1], over divisor.
static void fill_planes(Array out, Array values, float divisor) {
    int64 count = out.size[2];
    parallel_rows(out.size[1], count, [=](int64 begin, int64 end) {
        for (int64 plane = begin; plane < end; plane++) {
            float value;
            read_floats(&value, values.data, values.kind, values.offset(0, plane), 1, 1);
            value /= divisor;
            write_floats(&value, out.data, out.kind, out.offset(0, plane), 1, 1);
            with_float_type(out.kind, out.data, [=](auto* data) {
                auto* x = data + out.offset(0, plane);
                const auto first = x[0];
                SIMD for (int64 i = 1; i < count; i++) x[i] = first;
            });
        }
    });
}
KERNEL(fill_planes)
