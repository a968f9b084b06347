// Applies a function to the elements of up to four operands, arrays or scalars, broadcast: float32 inside, one
// rounding.
//
// One entry serves all dtypes and strides. A `Layout` describes both at run time; branches on it are uniform over the
// grid, once per eight elements of a memory-bound kernel, and a new dtype or broadcast needs no compilation.
// launch/elementwise.py builds the layouts.
#pragma once
#include "include/storage.cuh"

enum Kind { FLOAT32, FLOAT16, BFLOAT16, BOOL };  // KINDS in launch/elementwise.py

constexpr int PER_THREAD = 8;  // elements
constexpr int BLOCK = 256;     // threads, as in launch/elementwise.py
constexpr int OPERANDS = 4, OUTPUTS = 3, AXES = 6;

// count: elements. vector: consecutive elements per access, 8 or 4, or 1 for the scalar path. axes: number of axes
// after contiguous ones are merged, the innermost last; size: of each. kind: dtype of each operand, then of each
// output. stride: in elements, one row per operand and a last row for all outputs; 0 along a broadcast axis.
struct Layout {
    unsigned count;
    int vector, axes;
    int kind[OPERANDS + OUTPUTS];
    unsigned size[AXES];
    int stride[OPERANDS + 1][AXES];
};

// Offsets of element e in each operand, and in the outputs (the last entry).
__device__ __forceinline__ void offsets(const Layout& layout, unsigned e, int (&at)[OPERANDS + 1]) {
#pragma unroll
    for (int i = 0; i <= OPERANDS; i++) at[i] = 0;
    for (int d = layout.axes - 1; d > 0; d--) {
        unsigned rest = e / layout.size[d], index = e - rest * layout.size[d];
#pragma unroll
        for (int i = 0; i <= OPERANDS; i++) at[i] += int(index) * layout.stride[i][d];
        e = rest;
    }
#pragma unroll
    for (int i = 0; i <= OPERANDS; i++) at[i] += int(e) * layout.stride[i][0];
}

template <typename To>
__device__ __forceinline__ To load_as(const void* p, int index) {
    const To* there = reinterpret_cast<const To*>(p) + index;
    CHECK_ALIGNED(there, sizeof(To));
    return *there;
}

template <typename To, typename From>
__device__ __forceinline__ To as(From from) {
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// The bits of one stored value, zero-extended.
__device__ __forceinline__ unsigned load_bits(const void* p, int kind, int index) {
    if (kind == FLOAT32) return load_as<unsigned>(p, index);
    if (kind == BOOL) return load_as<unsigned char>(p, index);
    return load_as<unsigned short>(p, index);
}

__device__ __forceinline__ float decode(unsigned word, int kind) {
    if (kind == FLOAT32) return as<float>(word);
    if (kind == FLOAT16) return to_float(as<__half>((unsigned short)word));
    return kind == BFLOAT16 ? as<float>(word << 16) : float(word != 0);
}

__device__ __forceinline__ unsigned encode(float x, int kind) {
    if (kind == FLOAT32) return as<unsigned>(x);
    if (kind == FLOAT16) return as<unsigned short>(from_float<__half>(x));
    return kind == BFLOAT16 ? as<unsigned short>(from_float<__nv_bfloat16>(x)) : unsigned(x != 0.0f);
}

// Eight stored values as loaded: four at offset `a`, four at offset `b`; values of 16 bits are two to a word, bool
// four.
struct Packed {
    unsigned words[PER_THREAD];

    // adjacent: b is a + 4, so that one access loads both halves. broadcast: each half is one value repeated.
    static __device__ __forceinline__ Packed load(const void* p, int kind, bool adjacent, bool broadcast, int a,
        int b) {
        Packed s;
        if (broadcast) {
            s.words[0] = load_bits(p, kind, a), s.words[4] = load_bits(p, kind, b);
        } else if (kind == FLOAT32) {
            s.set<0>(load_as<uint4>(static_cast<const float*>(p) + a, 0));
            s.set<4>(load_as<uint4>(static_cast<const float*>(p) + b, 0));
        } else if (kind == BOOL) {
            s.words[0] = load_as<unsigned>(static_cast<const char*>(p) + a, 0);
            s.words[1] = load_as<unsigned>(static_cast<const char*>(p) + b, 0);
        } else if (adjacent) {
            s.set<0>(load_as<uint4>(static_cast<const short*>(p) + a, 0));
        } else {
            s.set<0>(load_as<uint2>(static_cast<const short*>(p) + a, 0));
            s.set<2>(load_as<uint2>(static_cast<const short*>(p) + b, 0));
        }
        return s;
    }

    template <int FROM>
    __device__ __forceinline__ void set(uint4 w) {
        words[FROM] = w.x, words[FROM + 1] = w.y, words[FROM + 2] = w.z, words[FROM + 3] = w.w;
    }
    template <int FROM>
    __device__ __forceinline__ void set(uint2 w) { words[FROM] = w.x, words[FROM + 1] = w.y; }

    __device__ __forceinline__ void unpack(int kind, bool broadcast, float (&x)[PER_THREAD]) const {
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) {
            if (broadcast) x[k] = decode(words[k / 4 * 4], kind);
            else if (kind == FLOAT32) x[k] = as<float>(words[k]);
            else if (kind == BOOL) x[k] = float(words[k / 4] >> k % 4 * 8 & 0xffu);
            else x[k] = decode(words[k / 2] >> k % 2 * 16 & 0xffffu, kind);
        }
    }

    static __device__ __forceinline__ void store(void* p, int kind, bool adjacent, int a, int b,
        const float (&x)[PER_THREAD]) {
        unsigned w[PER_THREAD];
        if (kind == FLOAT32) {
#pragma unroll
            for (int k = 0; k < PER_THREAD; k++) w[k] = as<unsigned>(x[k]);
            write(static_cast<float*>(p) + a, make_uint4(w[0], w[1], w[2], w[3]));
            write(static_cast<float*>(p) + b, make_uint4(w[4], w[5], w[6], w[7]));
        } else if (kind == BOOL) {
#pragma unroll
            for (int k = 0; k < PER_THREAD; k += 4)
                w[k] = (x[k] != 0.0f) | (x[k + 1] != 0.0f) << 8 | (x[k + 2] != 0.0f) << 16 | (x[k + 3] != 0.0f) << 24;
            write(static_cast<char*>(p) + a, w[0]);
            write(static_cast<char*>(p) + b, w[4]);
        } else {
#pragma unroll
            for (int k = 0; k < PER_THREAD; k += 2) w[k] = encode(x[k], kind) | encode(x[k + 1], kind) << 16;
            if (adjacent) {
                write(static_cast<short*>(p) + a, make_uint4(w[0], w[2], w[4], w[6]));
            } else {
                write(static_cast<short*>(p) + a, make_uint2(w[0], w[2]));
                write(static_cast<short*>(p) + b, make_uint2(w[4], w[6]));
            }
        }
    }

    template <typename W>
    static __device__ __forceinline__ void write(void* p, W w) {
        CHECK_ALIGNED(p, sizeof(W));
        *static_cast<W*>(p) = w;
    }
};

__device__ __forceinline__ void store_scalar(void* p, int kind, int index, float x) {
    unsigned w = encode(x, kind);
    if (kind == FLOAT32) static_cast<unsigned*>(p)[index] = w;
    else if (kind == BOOL) static_cast<unsigned char*>(p)[index] = (unsigned char)w;
    else static_cast<unsigned short*>(p)[index] = (unsigned short)w;
}

// An operand with a null pointer is the scalar; an output with a null pointer is not stored.
struct Arrays {
    const void* in[OPERANDS];
    float scalar[OPERANDS];
    void* out[OUTPUTS];
};

template <typename F>
__device__ __forceinline__ void apply_vector(const Layout& layout, const Arrays& arrays, unsigned first,
    unsigned second) {
    bool adjacent = layout.vector == PER_THREAD;
    int a[OPERANDS + 1], b[OPERANDS + 1];
    offsets(layout, first, a);
    offsets(layout, second, b);
    Packed stored[OPERANDS];  // issue all loads before the first use
#pragma unroll
    for (int i = 0; i < OPERANDS; i++)
        if (arrays.in[i])
            stored[i] = Packed::load(arrays.in[i], layout.kind[i], adjacent, !layout.stride[i][layout.axes - 1], a[i],
                b[i]);
    float x[OPERANDS][PER_THREAD], y[OUTPUTS][PER_THREAD];
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) {
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) x[i][k] = arrays.scalar[i];
        if (arrays.in[i]) stored[i].unpack(layout.kind[i], !layout.stride[i][layout.axes - 1], x[i]);
    }
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        float result[OUTPUTS];
        F::apply(x[0][k], x[1][k], x[2][k], x[3][k], result);
#pragma unroll
        for (int j = 0; j < F::RESULTS; j++) y[j][k] = result[j];
    }
#pragma unroll
    for (int j = 0; j < F::RESULTS; j++)
        if (arrays.out[j]) Packed::store(arrays.out[j], layout.kind[OPERANDS + j], adjacent, a[OPERANDS], b[OPERANDS],
            y[j]);
}

template <typename F>
__device__ __forceinline__ void apply_scalar(const Layout& layout, const Arrays& arrays, unsigned e) {
    int at[OPERANDS + 1];
    offsets(layout, e, at);
    float x[OPERANDS], result[OUTPUTS];
#pragma unroll
    for (int i = 0; i < OPERANDS; i++)
        x[i] = arrays.in[i] ? decode(load_bits(arrays.in[i], layout.kind[i], at[i]), layout.kind[i]) : arrays.scalar[i];
    F::apply(x[0], x[1], x[2], x[3], result);
#pragma unroll
    for (int j = 0; j < F::RESULTS; j++)
        if (arrays.out[j]) store_scalar(arrays.out[j], layout.kind[OPERANDS + j], at[OPERANDS], result[j]);
}

// Each thread computes eight elements, as one run of 8 or two runs of 4; neighbouring threads have neighbouring runs,
// so that accesses of a warp coalesce: 16 bytes per thread, or 8 for a 16-bit operand next to a float32 one.
template <typename F>
__device__ __forceinline__ void apply(const Layout& layout, const Arrays& arrays) {
    unsigned vector = layout.vector, first = blockIdx.x * (BLOCK * PER_THREAD) + threadIdx.x * vector;
    unsigned second = vector == PER_THREAD ? first + PER_THREAD / 2 : first + BLOCK * vector;
    if (vector > 1 && second + PER_THREAD / 2 <= layout.count) return apply_vector<F>(layout, arrays, first, second);
#pragma unroll 1
    for (unsigned k = 0; k < PER_THREAD; k++) {
        unsigned e = first + k % vector + k / vector * (BLOCK * vector);
        if (e < layout.count) apply_scalar<F>(layout, arrays, e);
    }
}

template <typename Op>
struct Forward {
    static constexpr int RESULTS = 1;
    static __device__ __forceinline__ void apply(float x, float y, float z, float w, float (&result)[OUTPUTS]) {
        result[0] = Op::forward(x, y, z, w);
    }
};

template <typename Op>
struct Backward {
    static constexpr int RESULTS = Op::GRADIENTS;
    static __device__ __forceinline__ void apply(float dy, float x, float y, float z, float (&result)[OUTPUTS]) {
        Op::backward(dy, x, y, z, result);
    }
};
