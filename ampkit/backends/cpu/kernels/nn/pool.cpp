// Max pooling of images, with the position in its window of each maximum, and its gradient.
//
// Images [planes, D * H * W * inner], maps [planes, D' * H' * W' * inner]; inner: the channels where they are last, else 1.
#include "../include/parallel.h"
#include "../include/simd_math.h"

namespace {

// One axis: input and output length, kernel, stride, dilation, padding in front.
struct Axis {
    int64 in, out, kernel, stride, dilation, before;

    int64 at(int64 o, int64 k) const { return o * stride - before + k * dilation; }
    bool inside(int64 i) const { return uint64_t(i) < uint64_t(in); }
    // The outputs whose windows may hold input element i.
    int64 first_of(int64 i) const { return max(0, ceil_div(max(0, i + before - (kernel - 1) * dilation), stride)); }
    int64 end_of(int64 i) const { return min(out, (i + before) / stride + 1); }
    // The position of input element i in window o, or -1.
    int64 tap(int64 i, int64 o) const {
        int64 distance = i + before - o * stride;
        return distance % dilation || distance / dilation >= kernel ? -1 : distance / dilation;
    }
};

struct Windows {
    Axis depth, height, width;
    int64 inner;
};

Windows windows_of(const int64* geometry, int64 inner) {
    Windows w{{}, {}, {}, inner};
    memcpy(&w, geometry, 3 * sizeof(Axis));
    Axis* axes[] = {&w.depth, &w.height, &w.width};
    for (Axis* axis : axes)
        if (axis->out <= 1) axis->stride = 1;  // a single window has none, and it may be larger than any memory
    return w;
}

// best[i] = max(best[i], x[i]), where = tap where that is new; the first of equal values, the last of NaNs.
template <class T>
void take(float* __restrict best, float* __restrict where, const T* __restrict x, float tap, int64 count) {
    SIMD for (int64 i = 0; i < count; i++) {
        float value = x[i];
        bool better = value > best[i] || value != value;
        best[i] = better ? value : best[i], where[i] = better ? tap : where[i];
    }
}

// Splits a row [count] by strides: element i goes to phases [i % stride, i / stride], rows of `length`.
template <class T>
void split(float* __restrict phases, const T* __restrict row, int64 stride, int64 length, int64 count) {
    if (stride == 2) {
        float* __restrict odd = phases + length;
        SIMD for (int64 i = 0; i < count / 2; i++) phases[i] = row[2 * i], odd[i] = row[2 * i + 1];
        if (count % 2) phases[count / 2] = row[count - 1];
    } else {
        for (int64 phase = 0; phase < stride; phase++)
            for (int64 i = phase, k = 0; i < count; i += stride, k++) phases[phase * length + k] = row[i];
    }
}

// The maxima [W' * inner] of one row of windows. phases: scratch memory for a row of the input.
template <class T>
void maxima_of_row(float* best, float* where, float* phases, const T* plane, const Windows& w, int64 d, int64 h) {
    const Axis &depth = w.depth, &height = w.height, &width = w.width;
    int64 stride = width.stride, length = width.in / stride + 1;
    for (int64 i = 0; i < width.out * w.inner; i++) best[i] = -simd::INF, where[i] = 0.0f;
    for (int64 kd = 0; kd < depth.kernel; kd++)
        for (int64 kh = 0; kh < height.kernel; kh++) {
            int64 di = depth.at(d, kd), hi = height.at(h, kh);
            if (!depth.inside(di) || !height.inside(hi)) continue;
            const T* row = plane + (di * height.in + hi) * width.in * w.inner;
            if (w.inner == 1 && stride > 1) split(phases, row, stride, length, width.in);
            for (int64 kw = 0; kw < width.kernel; kw++) {
                float tap = float((kd * height.kernel + kh) * width.kernel + kw);
                int64 shift = width.at(0, kw), first = ceil_div(max(0, -shift), stride);
                int64 end = min(width.out, shift < width.in ? (width.in - 1 - shift) / stride + 1 : 0);
                int64 start = first * stride + shift;  // in the row
                if (w.inner > 1)
                    for (int64 o = first; o < end; o++, start += stride)
                        take(best + o * w.inner, where + o * w.inner, row + start * w.inner, tap, w.inner);
                else if (stride > 1)
                    take(best + first, where + first, phases + start % stride * length + start / stride, tap, end - first);
                else
                    take(best + first, where + first, row + start, tap, end - first);
            }
        }
}

// dx [D * H * W] of one plane, zero before, from dy and taps [D' * H' * W'] that lie `offsets` behind a window's first.
template <class T>
void scatter_plane(float* dx, const T* dy, const uint8_t* taps, const int64* offsets, const Windows& w) {
    const Axis &depth = w.depth, &height = w.height, &width = w.width;
    for (int64 d = 0; d < depth.out; d++)
        for (int64 h = 0; h < height.out; h++) {
            int64 di = depth.at(d, 0), hi = height.at(h, 0), row = (di * height.in + hi) * width.in - width.before;
            int64 padded = di < 0 || hi < 0 ? width.out : min(width.out, ceil_div(width.before, width.stride));
            for (int64 o = 0; o < width.out; o++, dy++, taps++)  // a window of -inf alone may point to the padding
                if (*taps || o >= padded) dx[row + o * width.stride + offsets[*taps]] += float(*dy);
        }
}

template <class T>
void add_where(float* __restrict dx, const T* __restrict dy, const uint8_t* __restrict taps, int32_t tap, int64 count) {
    SIMD for (int64 c = 0; c < count; c++) {
        float all = dy[c];  // read without a condition, as AVX2 cannot load 16-bit values by one
        dx[c] += taps[c] == tap ? all : 0.0f;
    }
}

// dx [W * inner] of one row of pixels whose channels are last.
template <class T>
void gather_row(float* dx, const T* dy, const uint8_t* taps, const Windows& w, int64 di, int64 hi) {
    const Axis &depth = w.depth, &height = w.height, &width = w.width;
    memset(dx, 0, width.in * w.inner * sizeof(float));
    for (int64 d = depth.first_of(di); d < depth.end_of(di); d++)
        for (int64 h = height.first_of(hi); h < height.end_of(hi); h++) {
            int64 kd = depth.tap(di, d), kh = height.tap(hi, h), at = (d * height.out + h) * width.out * w.inner;
            if (kd < 0 || kh < 0) continue;
            int32_t first = int32_t((kd * height.kernel + kh) * width.kernel);
            for (int64 o = 0; o < width.out; o++, at += w.inner)
                for (int64 kw = 0; kw < width.kernel; kw++)
                    if (int64 wi = width.at(o, kw); width.inside(wi))
                        add_where(dx + wi * w.inner, dy + at, taps + at, first + int32_t(kw), w.inner);
        }
}

}  // namespace

// geometry: in, out, kernel, stride, dilation and padding in front, of depth, height and width. taps: bytes.
static void max_pool_forward(Array out, Array taps, Array input, int64 inner, const int64* geometry) {
    const Windows w = windows_of(geometry, inner);
    int64 lines = w.depth.out * w.height.out, count = w.width.out * inner;
    int64 kernel = w.depth.kernel * w.height.kernel * w.width.kernel;
    parallel_rows(out.size[1] * lines, count * kernel, [=](int64 begin, int64 end) {
        Scratch<float> best(count), where(count), phases(inner == 1 ? w.width.in + w.width.stride : 0);
        if (!(best && where && phases)) return;
        for (int64 line = begin; line < end; line++) {
            int64 plane = line / lines, start = plane * out.stride[1] + line % lines * count;
            with_float_type(input.kind, input.data, [&](auto* x) {
                maxima_of_row(best, where, phases, x + plane * input.stride[1], w, line % lines / w.height.out, line % w.height.out);
            });
            write_floats(best, out.data, out.kind, start, 1, count);
            write_floats(where, taps.data, taps.kind, plane * taps.stride[1] + line % lines * count, 1, count);
        }
    });
}
KERNEL(max_pool_forward)

static void max_pool_backward(Array dx, Array dy, Array taps, int64 inner, const int64* geometry) {
    const Windows w = windows_of(geometry, inner);
    int64 pixels = w.depth.in * w.height.in * w.width.in;
    if (inner == 1) {
        int64 offsets[256];
        int64* offset = offsets;
        for (int64 kd = 0; kd < w.depth.kernel; kd++)
            for (int64 kh = 0; kh < w.height.kernel; kh++)
                for (int64 kw = 0; kw < w.width.kernel; kw++)
                    *offset++ = (kd * w.depth.dilation * w.height.in + kh * w.height.dilation) * w.width.in +
                                kw * w.width.dilation;
        const int64* all = offsets;
        parallel_rows(dx.size[1], pixels, [=](int64 begin, int64 end) {
            Scratch<float> buffer(pixels);
            if (!buffer) return;
            for (int64 plane = begin; plane < end; plane++) {
                float* sum = row_to_write(dx, 0, plane, buffer);
                memset(sum, 0, pixels * sizeof(float));
                with_float_type(dy.kind, dy.data, [&](auto* grad) {
                    scatter_plane(sum, grad + plane * dy.stride[1], address<uint8_t>(taps, 0, plane), all, w);
                });
                write_row(dx, 0, plane, sum);
            }
        });
        return;
    }
    int64 rows = w.depth.in * w.height.in, count = w.width.in * inner;
    parallel_rows(dx.size[1] * rows, count, [=](int64 begin, int64 end) {
        Scratch<float> buffer(dx.kind == FLOAT32 ? 0 : count);
        if (!buffer) return;
        for (int64 item = begin; item < end; item++) {
            int64 plane = item / rows, row = item % rows, start = plane * dx.stride[1] + row * count;
            float* sum = dx.kind == FLOAT32 ? address<float>(dx) + start : buffer;
            with_float_type(dy.kind, dy.data, [&](auto* grad) {
                gather_row(sum, grad + plane * dy.stride[1], address<uint8_t>(taps, 0, plane), w, row / w.height.in,
                           row % w.height.in);
            });
            if (dx.kind != FLOAT32) write_floats(sum, dx.data, dx.kind, start, 1, count);
        }
    });
}
KERNEL(max_pool_backward)
