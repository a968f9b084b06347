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
    bool all_inside() const { return before == 0 && at(out - 1, kernel - 1) < in; }
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

    int64 count() const { return depth.out * height.out * width.out; }
    int64 pixels() const { return depth.in * height.in * width.in; }
    int64 kernel() const { return depth.kernel * height.kernel * width.kernel; }
    // offsets: of each pixel of a window behind its first one.
    void find_offsets(int64* offsets) const {
        for (int64 kd = 0; kd < depth.kernel; kd++)
            for (int64 kh = 0; kh < height.kernel; kh++)
                for (int64 kw = 0; kw < width.kernel; kw++)
                    *offsets++ = (kd * depth.dilation * height.in + kh * height.dilation) * width.in + kw * width.dilation;
    }
};

Windows windows_of(const int64* geometry, int64 inner) {
    Windows w{{}, {}, {}, inner};
    memcpy(&w, geometry, 3 * sizeof(Axis));
    Axis* axes[] = {&w.depth, &w.height, &w.width};
    for (Axis* axis : axes)
        if (axis->out <= 1) axis->stride = 1;  // a single window has none, and it may be larger than any memory
    return w;
}

// Windows side by side, or channels of one, that are computed at a time, in registers.
constexpr int64 LANES = 16;
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

// The largest values so far and where in their windows they are: the first of equal values, the last of NaNs.
struct Largest {
    Vector value = Vector{} - simd::INF, tap = Vector{};

    // x: LANES values side by side.
    template <class T>
    void take(const T* x, int64 at) {
        float read[LANES];
        SIMD for (int64 k = 0; k < LANES; k++) read[k] = x[k];
        take_read(read, at);
    }
    // x: `count` values, `step` elements apart.
    template <class T>
    void take(const T* x, int64 at, int64 step, int64 count) {
        float read[LANES];
        for (int64 k = 0; k < LANES; k++) read[k] = k < count ? float(x[k * step]) : -simd::INF;
        take_read(read, at);
    }
    void take_read(const float* read, int64 at) {
        Vector now;
        memcpy(&now, read, sizeof now);
        auto better = (now > value) | (now != now);
        value = better ? now : value, tap = better ? Vector{} + float(at) : tap;
    }
    void store(float* values, float* taps, int64 at) const {
        memcpy(values + at, &value, sizeof value), memcpy(taps + at, &tap, sizeof tap);
    }
};

// Rows of an image as float32, one for each row of a window, surrounded by -inf as far as windows reach. For a stride of 2
// each is split into its even and its odd pixels, so that windows side by side read elements side by side.
struct PaddedRows {
    int64 split, step, left, length;  // split: of each row into [split, length]; step: between windows
    Scratch<float> values;

    PaddedRows(const Axis& w, int64 rows)
        : split(w.stride == 2 ? 2 : 1), step(split == 2 ? 1 : w.stride), left(ceil_div(w.before, split)),
          length(left + ceil_div(pixels_read(w), split) + 1), values(rows * split * length) {
        for (int64 i = 0; values && i < rows * split * length; i++) values[i] = -simd::INF;
    }

    // How many pixels from the image's first on are read: LANES at a time where windows read them side by side.
    static int64 pixels_read(const Axis& w) {
        int64 windows = w.stride > 2 ? w.out : round_up(w.out, LANES);
        return max(w.in, w.at(windows - 1, w.kernel - 1) + 1);
    }

    // pixel: counted from the image's first, down to the padding's.
    float* at(int64 row, int64 pixel) {
        int64 padded = pixel + split * left;
        float* first = values + row * split * length;
        return split == 1 ? first + padded : first + (padded & 1) * length + (padded >> 1);
    }

    template <class T>
    void read(int64 row, const T* from, int64 count) {
        float *__restrict even = at(row, 0), *__restrict odd = even + length;
        if (split == 1) SIMD for (int64 k = 0; k < count; k++) even[k] = from[k];
        else SIMD for (int64 k = 0; k < count / 2; k++) even[k] = from[2 * k], odd[k] = from[2 * k + 1];
        if (split == 2 && count % 2) even[count / 2] = from[count - 1];
    }
};

// The maxima [W', inner] of one row of windows and where they are; may write LANES more. `rows` serves inner == 1.
template <class T>
void maxima_of_row(float* best, float* where, PaddedRows& rows, const T* plane, const Windows& w, int64 d, int64 h) {
    const Axis &depth = w.depth, &height = w.height, &width = w.width;
    struct { const T* data; int64 tap; } row[256];
    int64 count = 0, inner = w.inner;
    for (int64 kd = 0; kd < depth.kernel; kd++)
        for (int64 kh = 0; kh < height.kernel; kh++) {
            int64 di = depth.at(d, kd), hi = height.at(h, kh);
            if (!depth.inside(di) || !height.inside(hi)) continue;
            row[count] = {plane + (di * height.in + hi) * width.in * inner, (kd * height.kernel + kh) * width.kernel};
            if (inner == 1) rows.read(count, row[count].data, width.in);
            count++;
        }
    for (int64 o = 0; o < width.out; o += inner == 1 ? LANES : 1)
        for (int64 c = 0; c < inner; c += LANES) {
            Largest found;
            for (int64 i = 0; i < count; i++)
                for (int64 kw = 0; kw < width.kernel; kw++) {
                    int64 pixel = width.at(inner == 1 ? 0 : o, kw), tap = row[i].tap + kw;
                    if (inner > 1) {
                        const T* x = row[i].data + pixel * inner + c;
                        if (!width.inside(pixel)) continue;
                        if (inner - c >= LANES) found.take(x, tap);
                        else found.take(x, tap, 1, inner - c);
                    } else {
                        const float* x = rows.at(i, pixel) + o * rows.step;
                        if (rows.step == 1) found.take(x, tap);
                        else found.take(x, tap, rows.step, width.out - o);
                    }
                }
            found.store(best, where, o * inner + c);
        }
}

// Windows that lie within narrow images: LANES of them at a time, of several rows, whose pixels are read one by one.
struct NarrowWindows {
    Windows w;
    int64 offsets[256];
    Scratch<int32_t> first;  // the first pixel of each window; of the last one also for those that fill up the lanes

    static bool fits(const Windows& w) {
        bool inside = w.depth.all_inside() && w.height.all_inside() && w.width.all_inside();
        return inside && w.inner == 1 && w.width.out < LANES && w.pixels() < 1 << 30;
    }

    explicit NarrowWindows(const Windows& windows) : w(windows), first(round_up(w.count(), LANES)) {
        w.find_offsets(offsets);
        int32_t *all = first, at = 0;
        for (int64 o = 0; all && o < round_up(w.count(), LANES); o++) {
            int64 row = o / w.width.out, h = row % w.height.out, d = row / w.height.out;
            if (o < w.count())
                at = int32_t((w.depth.at(d, 0) * w.height.in + w.height.at(h, 0)) * w.width.in + w.width.at(o % w.width.out, 0));
            all[o] = at;
        }
    }

    // The maxima of one image and where they are; writes whole LANES.
    void find_maxima(float* best, float* where, const float* image) {
        for (int64 o = 0; o < w.count(); o += LANES) {
            const int32_t* at = first + o;
            Largest found;
            for (int64 tap = 0; tap < w.kernel(); tap++) {
                const float* x = image + offsets[tap];
                float read[LANES];
                SIMD for (int64 k = 0; k < LANES; k++) read[k] = x[at[k]];
                found.take_read(read, tap);
            }
            found.store(best, where, o);
        }
    }
};

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
    if (NarrowWindows::fits(w)) {
        parallel_rows(out.size[1], w.count() * w.kernel(), [=](int64 begin, int64 end) {
            NarrowWindows windows(w);
            Scratch<float> best(w.count() + LANES), where(w.count() + LANES), buffer(input.is_float32_row() ? 0 : w.pixels());
            if (!(windows.first && best && where && buffer)) return;
            for (int64 plane = begin; plane < end; plane++) {
                windows.find_maxima(best, where, read_row(input, 0, plane, buffer));
                write_floats(best, out.data, out.kind, out.offset(0, plane), 1, w.count());
                write_floats(where, taps.data, taps.kind, taps.offset(0, plane), 1, w.count());
            }
        });
        return;
    }
    int64 lines = w.depth.out * w.height.out, count = w.width.out * inner;
    parallel_rows(out.size[1] * lines, count * w.kernel(), [=](int64 begin, int64 end) {
        Scratch<float> best(count + LANES), where(count + LANES);
        PaddedRows rows(w.width, inner == 1 ? w.depth.kernel * w.height.kernel : 0);
        if (!(best && where && rows.values)) return;
        for (int64 line = begin; line < end; line++) {
            int64 plane = line / lines, start = plane * out.stride[1] + line % lines * count;
            with_float_type(input.kind, input.data, [&](auto* x) {
                maxima_of_row(best, where, rows, x + plane * input.stride[1], w, line % lines / w.height.out, line % w.height.out);
            });
            write_floats(best, out.data, out.kind, start, 1, count);
            write_floats(where, taps.data, taps.kind, plane * taps.stride[1] + line % lines * count, 1, count);
        }
    });
}
KERNEL(max_pool_forward)

static void max_pool_backward(Array dx, Array dy, Array taps, int64 inner, const int64* geometry) {
    const Windows w = windows_of(geometry, inner);
    int64 pixels = w.pixels();
    if (inner == 1) {
        int64 offsets[256];
        w.find_offsets(offsets);
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
