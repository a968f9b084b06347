// Arrays of any stored dtype, read and written as float32 a block or a row at a time.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

using int64 = int64_t;

#define EXPORT extern "C" __attribute__((visibility("default")))
#define STRINGIFY(...) #__VA_ARGS__
#define SIMD _Pragma("omp simd")                                                // a loop that must vectorize
#define SIMD_SUM(...) _Pragma(STRINGIFY(omp simd reduction(+ : __VA_ARGS__)))  // and adds up these variables
#define SIMD_MAX(...) _Pragma(STRINGIFY(omp simd reduction(max : __VA_ARGS__)))

// The dtypes that arrays are stored in; the numbers are those of KINDS in native/arrays.py.
enum Kind : int64 { FLOAT32, BFLOAT16, FLOAT16, BOOL, INT64, FLOAT64, INT32, UINT8 };
constexpr int64 ITEMSIZE[] = {4, 2, 2, 1, 8, 8, 4, 1};  // bytes of an element, by Kind

inline bool is_aligned(const void* data, int64 itemsize) { return reinterpret_cast<uintptr_t>(data) % itemsize == 0; }

inline int64 min(int64 a, int64 b) { return a < b ? a : b; }
inline int64 max(int64 a, int64 b) { return a > b ? a : b; }
inline int64 ceil_div(int64 a, int64 b) { return (a + b - 1) / b; }
inline int64 round_up(int64 count, int64 multiple) { return ceil_div(count, multiple) * multiple; }

inline uint32_t bits_of(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
inline float float_of(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }

// 16-bit formats: converted to float32 when read, rounded to nearest, ties to even, when written; NaN stays NaN.

struct bfloat16 {
    uint16_t bits;
    operator float() const { return float_of(uint32_t(bits) << 16); }
    bfloat16& operator=(float x) {
        uint32_t b = bits_of(x), rounded = x == x ? b + 0x7fff + (b >> 16 & 1) : b | 0x400000;
        bits = uint16_t(rounded >> 16);
        return *this;
    }
};

#if defined(__F16C__) || defined(__aarch64__)
struct float16 {
    _Float16 value;
    operator float() const { return float(value); }
    float16& operator=(float x) { value = _Float16(x); return *this; }
};
#else
struct float16 {  // by integer arithmetic, on CPUs without instructions for it
    uint16_t bits;
    operator float() const {
        uint32_t sign = uint32_t(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
        float scaled = float_of(magnitude << 13) * float_of(0x77800000);  // times 2^112, exact for subnormals too
        return float_of(bits_of(magnitude >= 0x7c00 ? float_of(magnitude << 13 | 0x7f800000) : scaled) | sign);
    }
    float16& operator=(float x) {
        uint32_t sign = bits_of(x) & 0x80000000, magnitude = bits_of(x) ^ sign;
        // Adding a power of two of 13 binades above moves the bits to be dropped below the float32 mantissa's end.
        uint32_t adder = ((magnitude > 0x38800000u ? magnitude : 0x38800000u) & 0x7f800000) + (13u << 23);
        float finite = float_of(magnitude < 0x47800000u ? magnitude : 0x47800000u);
        uint32_t rounded = bits_of(finite + float_of(adder)) - adder + ((adder - (126u << 23)) >> 13);
        bits = uint16_t((magnitude > 0x7f800000 ? 0x7e00 : magnitude >= 0x47800000 ? 0x7c00 : rounded) | sign >> 16);
        return *this;
    }
};
#endif

// store(to, x): a result of arithmetic, rounded. Some CPUs round to bfloat16 by one instruction, which makes subnormals 0;
// `convert` keeps them, and so must functions whose results are elements of their operands.
// Clang takes it for slow and would choose short vectors, so loops of `store` name their length.
template <class T>
inline void store(T& to, float x) { to = x; }
#if defined(__AVX512BF16__) && __clang_major__ >= 17  // before, __bf16 had no conversions; 0 in other compilers
inline void store(bfloat16& to, float x) {
    __bf16 rounded = static_cast<__bf16>(x);
    memcpy(&to.bits, &rounded, 2);
}
#define SIMD_STORE _Pragma("clang loop vectorize(assume_safety) vectorize_width(16) interleave_count(1)")
#else
#define SIMD_STORE SIMD
#endif

// A view of up to three axes, passed by value: data is null for an array that is not there. Strides in elements.
// Arrays of fewer axes are aligned to the right: a vector has size {1, 1, n}.
struct Array {
    void* data;
    int64 kind;
    int64 size[3];
    int64 stride[3];

    explicit operator bool() const { return data != nullptr; }
    bool is_float32_row() const { return kind == FLOAT32 && (stride[2] == 1 || size[2] <= 1); }
    int64 offset(int64 i, int64 j, int64 k = 0) const { return i * stride[0] + j * stride[1] + k * stride[2]; }
};

template <class T>
inline T* address(const Array& array, int64 i = 0, int64 j = 0, int64 k = 0) {
    return static_cast<T*>(array.data) + array.offset(i, j, k);
}

// visit(T*) with the pointer of the stored floating-point type.
template <class Visit>
inline void with_float_type(int64 kind, void* data, const Visit& visit) {
    if (kind == FLOAT32) visit(static_cast<float*>(data));
    else if (kind == BFLOAT16) visit(static_cast<bfloat16*>(data));
    else visit(static_cast<float16*>(data));
}

// visit(T*) with the pointer of any stored type.
template <class Visit>
inline void with_type(int64 kind, void* data, const Visit& visit) {
    switch (kind) {
        case FLOAT64: return visit(static_cast<double*>(data));
        case INT64: return visit(static_cast<int64*>(data));
        case INT32: return visit(static_cast<int32_t*>(data));
        case BOOL: case UINT8: return visit(static_cast<uint8_t*>(data));
        default: with_float_type(kind, data, visit);
    }
}

template <class To, class From>
inline void convert_run(To* __restrict to, const From* __restrict from, int64 count) {
    SIMD for (int64 i = 0; i < count; i++) to[i] = from[i];
}

#ifdef __AVX512BF16__
void convert_run(bfloat16* to, const float* from, int64 count);  // the same bits by the CPU's instruction: bfloat16.cpp
#endif

// Within a type, bit by bit. Rows in pieces, the last of which may overlap the one before: a call of memcpy, which the
// loop would become, takes longer to start for short rows, and 1.7 times as long for rows of some KB (AMD Zen 4).
template <class T>
inline void convert_run(T* __restrict to, const T* __restrict from, int64 count) {
    constexpr int64 PIECE = 64 / sizeof(T);
    if (count < PIECE || count >= 1024 * PIECE) return void(memcpy(to, from, count * sizeof(T)));
    for (int64 i = 0; i < count; i += PIECE) {
        int64 at = min(i, count - PIECE);
        __builtin_memcpy(to + at, from + at, 64);
        __asm__ volatile("" ::: "memory");
    }
}

// to[i] = from[i] for elements of any types, `count` of them, that do not overlap.
template <class To, class From>
inline void convert(To* __restrict to, int64 to_stride, const From* __restrict from, int64 from_stride, int64 count) {
    if (to_stride == 1 && from_stride == 1) {
        convert_run(to, from, count);
    } else if (to_stride == 1 && from_stride == 0) {
        const From value = from[0];
        SIMD for (int64 i = 0; i < count; i++) to[i] = value;
    } else if (to_stride == 1 && from_stride == -1) {
        SIMD for (int64 i = 0; i < count; i++) to[i] = from[-i];
    } else {
        for (int64 i = 0; i < count; i++) to[i * to_stride] = from[i * from_stride];
    }
}

// Copies `count` elements, `stride` elements apart from element `start` of `data`, as float32 into `buffer`.
inline void read_floats(float* buffer, const void* data, int64 kind, int64 start, int64 stride, int64 count) {
    with_type(kind, const_cast<void*>(data), [=](auto* from) { convert(buffer, 1, from + start, stride, count); });
}

// Writes `count` float32 values, rounded once, `stride` elements apart from element `start` of `data`.
inline void write_floats(const float* buffer, void* data, int64 kind, int64 start, int64 stride, int64 count) {
    if (kind == BOOL) {
        uint8_t* to = static_cast<uint8_t*>(data) + start;
        for (int64 i = 0; i < count; i++) to[i * stride] = buffer[i] != 0.0f;
    } else {
        with_type(kind, data, [=](auto* to) { convert(to + start, stride, buffer, 1, count); });
    }
}

// The row [i, j, :] as float32: in place where it is stored so, else copied to `buffer` of its length.
inline const float* read_row(const Array& array, int64 i, int64 j, float* buffer) {
    if (array.is_float32_row()) return address<const float>(array, i, j);
    read_floats(buffer, array.data, array.kind, array.offset(i, j), array.stride[2], array.size[2]);
    return buffer;
}

// Where to compute the row [i, j, :] in float32: in place where it is stored so, else `buffer`. Then call write_row.
inline float* row_to_write(const Array& array, int64 i, int64 j, float* buffer) {
    return array.is_float32_row() ? address<float>(array, i, j) : buffer;
}

// Stores a row that was computed where row_to_write said.
inline void write_row(const Array& array, int64 i, int64 j, const float* row) {
    if (!array.is_float32_row()) write_floats(row, array.data, array.kind, array.offset(i, j), array.stride[2], array.size[2]);
}

// How many allocations have failed; Python raises an error where a call increased it (native/arrays.py).
extern "C" __attribute__((visibility("default"))) int64 failed_allocations;

// Memory for `count` values of T that lives as long as this object: on the stack where it is small; null where memory is
// short, and whoever asked returns without a result.
template <class T, int64 SMALL = 1024>
class Scratch {
  public:
    explicit Scratch(int64 count) : data_(count <= SMALL ? small_ : static_cast<T*>(malloc(count * sizeof(T)))) {
        if (!data_) __atomic_fetch_add(&failed_allocations, 1, __ATOMIC_RELAXED);
    }
    ~Scratch() { if (data_ != small_) free(data_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    operator T*() { return data_; }

  private:
    alignas(64) T small_[SMALL];
    T* data_;
};

#include "numpy.h"
