// Quantized matrices: values from their codes and scales, and the scales of products; see ops/linalg/quantization.py.
//
// Matrices are seen here in the order of memory, as in quantization.cpp.
#include "../include/parallel.h"
#include "../include/quantized.h"

namespace {

// to[i] = the value of code i, and, of float, times the factor.
inline void decode_vector(bfloat16* to, Floats values, float, bool checked, Words* wrong) {
    if (checked) *wrong |= beyond_bfloat16(values);
    save(to, upper_halves(values));  // which is all of them
}
inline void decode_vector(float* to, Floats values, float factor, bool, Words*) { save(to, values * factor); }

// values[i] = the value of codes[i] times by: one scale, or one for each, all usual or not.
// -> whether bfloat16 does not hold one
template <class F, class T, bool EACH>
bool decode_run(T* __restrict to, const uint8_t* __restrict codes, const float* __restrict by, float factor, bool usual, int64 count) {
    Words wrong = {};
    Floats scale = all(by[0]);
    int64 i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        if (EACH) scale = load<Floats>(by + i);
        Floats values = Decode<F>::run(__builtin_convertvector(load<Bytes>(codes + i), Words)) * scale;
        decode_vector(to + i, values, factor, !usual, &wrong);
    }
    if (i < count) {
        Bytes bytes = {};
        T last[WIDTH];
        memcpy(&bytes, codes + i, count - i);
        if (EACH) memcpy(&scale, by + i, (count - i) * sizeof(float));
        decode_vector(last, Decode<F>::run(__builtin_convertvector(bytes, Words)) * scale, factor, !usual, &wrong);
        memcpy(static_cast<void*>(to + i), last, (count - i) * sizeof(T));
    }
    return any(wrong);
}

template <class F, class T>
bool decode_row(T* to, const uint8_t* codes, const float* by, float factor, bool usual, int64 q, int64 columns) {
    if (q == 1) return decode_run<F, T, true>(to, codes, by, factor, usual, columns);
    bool beyond = false;
    for (int64 c = 0; c < columns; c += q)
        beyond |= decode_run<F, T, false>(to + c, codes + c, by + c / q, factor, usual, min(q, columns - c));
    return beyond;
}

// A row of packed codes, one in each byte.
void unpack(uint8_t* to, const uint8_t* from, bool down, int64 row, int64 columns) {
    int64 shift = row % 2 * 4, pairs = ceil_div(columns, 2);
    if (down) {
        SIMD for (int64 c = 0; c < columns; c++) to[c] = uint8_t(from[c] >> shift & 15);
    } else {
        SIMD for (int64 c = 0; c < pairs; c++) to[2 * c] = from[c] & 15, to[2 * c + 1] = uint8_t(from[c] >> 4);
    }
}

// Whether three such factors of a sum, in any order, stay within float32's normal numbers; NaN does.
bool is_usual(double factor) { return !(factor < 0x1p-30 || factor > 0x1p30); }

}  // namespace

// out [rows, columns], contiguous bfloat16 or float32: the values of codes, times the scales of blocks if there are any, in
// float32 also times `factor`. -> whether some value is beyond bfloat16's normal numbers
static int64 dequantize_matrix(Array out, Array codes, Array scales, int64 format, int64 scaling, int64 p, int64 q, int64 down,
                               float factor) {
    int64 rows = out.size[1], columns = out.size[2], found = 0;
    bool packed = format == FORMAT_E2M1;
    if (!scales) p = rows, q = columns;
    int64 across = ceil_div(columns, q);
    parallel_rows(rows, columns, [&](int64 begin, int64 end) {
        Scratch<float> by(across);
        Scratch<uint8_t> unpacked(packed ? columns + 1 : 1);
        if (!(by && unpacked)) return;
        float* factors = by;
        factors[0] = 1.0f;
        bool beyond = false, usual = true;
        int64 read = -1;
        for (int64 r = begin; r < end; r++) {
            if (scales && r / p != read) {
                read_scales(factors, scales, scaling, read = r / p, 0, across);
                usual = are_usual(factors, across);
            }
            const uint8_t* from = address<uint8_t>(codes, 0, packed && down ? r / 2 : r);
            if (packed) unpack(unpacked, from, down, r, columns), from = unpacked;
            with_format(format, [&](auto chosen) {
                using F = decltype(chosen);
                if (out.kind == BFLOAT16) beyond |= decode_row<F>(address<bfloat16>(out, 0, r), from, factors, factor, usual, q, columns);
                else beyond |= decode_row<F>(address<float>(out, 0, r), from, factors, factor, usual, q, columns);
            });
        }
        if (beyond) __atomic_store_n(&found, 1, __ATOMIC_RELAXED);
    });
    return found;
}
KERNEL(dequantize_matrix)

// out [rows, columns] = sums times a factor of each row and column, and bias [columns], of which any may be absent. Float
// sums are multiplied in float64 where factors are so large or small that a product of some might overflow.
static void scale_sums(Array out, Array sums, Array by_row, Array by_column, Array bias, double factor) {
    int64 rows = out.size[1], columns = out.size[2];
    Scratch<float> across(columns), added(columns);
    if (!(across && added)) return;
    float *b = across, *c = added;
    for (int64 k = 0; k < columns; k++) b[k] = 1.0f, c[k] = 0.0f;
    if (by_column) read_floats(b, by_column.data, FLOAT32, 0, by_column.stride[2], columns);
    if (bias) read_floats(c, bias.data, bias.kind, 0, bias.stride[2], columns);
    bool add = bool(bias), usual = sums.kind == INT32 || is_usual(factor);
    for (int64 k = 0; k < (by_column ? columns : 0); k++) usual &= is_usual(b[k]);
    for (int64 r = 0; r < (by_row ? rows : 0); r++) usual &= is_usual(*address<float>(by_row, 0, 0, r));
    parallel_rows(rows, columns, [&](int64 begin, int64 end) {
        Scratch<float> buffer(columns);
        if (!buffer) return;
        float* x = buffer;
        for (int64 r = begin; r < end; r++) {
            double wide = (by_row ? double(*address<float>(by_row, 0, 0, r)) : 1.0) * factor;
            float row = float(wide);
            read_floats(x, sums.data, sums.kind, sums.offset(0, r, 0), sums.stride[2], columns);
            if (!usual) {
                SIMD for (int64 k = 0; k < columns; k++) x[k] = float(double(x[k]) * wide * double(b[k]));
            } else if (by_column) {
                SIMD for (int64 k = 0; k < columns; k++) x[k] = x[k] * row * b[k];
            } else {
                SIMD for (int64 k = 0; k < columns; k++) x[k] *= row;
            }
            if (add) SIMD for (int64 k = 0; k < columns; k++) x[k] += c[k];
            write_floats(x, out.data, out.kind, out.offset(0, r, 0), out.stride[2], columns);
        }
    });
}
KERNEL(scale_sums)
