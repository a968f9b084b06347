// map: a function of elements over up to four operands, arrays or numbers, broadcast; float32 inside, rounded once.
//
// One entry serves all dtypes and all ways of lying in memory: a `Layout` tells of both, the same to every thread, so
// that asking costs a uniform branch per eight elements, while the time is that of the memory. Another dtype or a
// broadcast compiles nothing anew. map.py makes the layouts.
#pragma once
#include "include/storage.cuh"

enum Kind { FLOAT32, FLOAT16, BFLOAT16, BOOL };  // map.py knows these numbers

constexpr int MANY = 8;      // elements of a thread
constexpr int BLOCK = 256;   // threads; map.py knows it too
constexpr int OPERANDS = 4, OUTS = 3, AXES = 6;

// count: elements. run: how many of them a thread takes side by side, 8 or 4; 1 where they are met one by one. axes:
// of the shape, those that lie as one merged, the last the innermost in memory; size: of each. kind: of operands,
// then outputs. stride: in elements, per operand, and in the last row of all outputs; 0 along an axis that is
// broadcast.
struct Layout {
    unsigned count;
    int run, axes;
    int kind[OPERANDS + OUTS];
    unsigned size[AXES];
    int stride[OPERANDS + 1][AXES];
};

// Where element e lies in each operand and in the outputs.
__device__ __forceinline__ void place(const Layout& g, unsigned e, int (&at)[OPERANDS + 1]) {
#pragma unroll
    for (int i = 0; i <= OPERANDS; i++) at[i] = 0;
    for (int d = g.axes - 1; d > 0; d--) {
        unsigned rest = e / g.size[d], here = e - rest * g.size[d];
#pragma unroll
        for (int i = 0; i <= OPERANDS; i++) at[i] += int(here) * g.stride[i][d];
        e = rest;
    }
#pragma unroll
    for (int i = 0; i <= OPERANDS; i++) at[i] += int(e) * g.stride[i][0];
}

template <typename To>
__device__ __forceinline__ To bits_at(const void* p, int index) {
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

// One stored number, its bits in the low end of a word.
__device__ __forceinline__ unsigned word_at(const void* p, int kind, int index) {
    if (kind == FLOAT32) return bits_at<unsigned>(p, index);
    if (kind == BOOL) return bits_at<unsigned char>(p, index);
    return bits_at<unsigned short>(p, index);
}

__device__ __forceinline__ float number(unsigned word, int kind) {
    if (kind == FLOAT32) return as<float>(word);
    if (kind == FLOAT16) return to_float(as<__half>((unsigned short)word));
    return kind == BFLOAT16 ? as<float>(word << 16) : float(word != 0);
}

__device__ __forceinline__ unsigned word(float x, int kind) {
    if (kind == FLOAT32) return as<unsigned>(x);
    if (kind == FLOAT16) return as<unsigned short>(from_float<__half>(x));
    return kind == BFLOAT16 ? as<unsigned short>(from_float<__nv_bfloat16>(x)) : unsigned(x != 0.0f);
}

// Eight stored numbers, four at `a` and four at `b`; of 16 bits or fewer, the second four follow the first without a
// gap.
struct Stored {
    unsigned words[MANY];

    // near: b is a + 4. still: one number stands for the four.
    static __device__ __forceinline__ Stored load(const void* p, int kind, bool near, bool still, int a, int b) {
        Stored s;
        if (still) {
            s.words[0] = word_at(p, kind, a), s.words[4] = word_at(p, kind, b);
        } else if (kind == FLOAT32) {
            s.put<0>(bits_at<uint4>(static_cast<const float*>(p) + a, 0));
            s.put<4>(bits_at<uint4>(static_cast<const float*>(p) + b, 0));
        } else if (kind == BOOL) {
            s.words[0] = bits_at<unsigned>(static_cast<const char*>(p) + a, 0);
            s.words[1] = bits_at<unsigned>(static_cast<const char*>(p) + b, 0);
        } else if (near) {
            s.put<0>(bits_at<uint4>(static_cast<const short*>(p) + a, 0));
        } else {
            s.put<0>(bits_at<uint2>(static_cast<const short*>(p) + a, 0));
            s.put<2>(bits_at<uint2>(static_cast<const short*>(p) + b, 0));
        }
        return s;
    }

    template <int FROM>
    __device__ __forceinline__ void put(uint4 w) {
        words[FROM] = w.x, words[FROM + 1] = w.y, words[FROM + 2] = w.z, words[FROM + 3] = w.w;
    }
    template <int FROM>
    __device__ __forceinline__ void put(uint2 w) { words[FROM] = w.x, words[FROM + 1] = w.y; }

    __device__ __forceinline__ void spread(int kind, bool still, float (&x)[MANY]) const {
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            if (still) x[k] = number(words[k / 4 * 4], kind);
            else if (kind == FLOAT32) x[k] = as<float>(words[k]);
            else if (kind == BOOL) x[k] = float(words[k / 4] >> k % 4 * 8 & 0xffu);
            else x[k] = number(words[k / 2] >> k % 2 * 16 & 0xffffu, kind);
        }
    }

    static __device__ __forceinline__ void store(void* p, int kind, bool near, int a, int b, const float (&x)[MANY]) {
        unsigned w[MANY];
        if (kind == FLOAT32) {
#pragma unroll
            for (int k = 0; k < MANY; k++) w[k] = as<unsigned>(x[k]);
            write(static_cast<float*>(p) + a, make_uint4(w[0], w[1], w[2], w[3]));
            write(static_cast<float*>(p) + b, make_uint4(w[4], w[5], w[6], w[7]));
        } else if (kind == BOOL) {
#pragma unroll
            for (int k = 0; k < MANY; k += 4)
                w[k] = (x[k] != 0.0f) | (x[k + 1] != 0.0f) << 8 | (x[k + 2] != 0.0f) << 16 | (x[k + 3] != 0.0f) << 24;
            write(static_cast<char*>(p) + a, w[0]);
            write(static_cast<char*>(p) + b, w[4]);
        } else {
#pragma unroll
            for (int k = 0; k < MANY; k += 2) w[k] = word(x[k], kind) | word(x[k + 1], kind) << 16;
            if (near) {
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

__device__ __forceinline__ void store_one(void* p, int kind, int index, float x) {
    unsigned w = word(x, kind);
    if (kind == FLOAT32) static_cast<unsigned*>(p)[index] = w;
    else if (kind == BOOL) static_cast<unsigned char*>(p)[index] = (unsigned char)w;
    else static_cast<unsigned short*>(p)[index] = (unsigned short)w;
}

// Of a null operand the number is given; a null output is not wanted.

struct Arrays {
    const void* in[OPERANDS];
    float given[OPERANDS];
    void* out[OUTS];
};

template <typename F>
__device__ __forceinline__ void map_many(const Layout& g, const Arrays& arrays, unsigned first, unsigned second) {
    bool near = g.run == MANY;
    int a[OPERANDS + 1], b[OPERANDS + 1];
    place(g, first, a);
    place(g, second, b);
    Stored stored[OPERANDS];  // all is asked for before any of it is used
#pragma unroll
    for (int i = 0; i < OPERANDS; i++)
        if (arrays.in[i])
            stored[i] = Stored::load(arrays.in[i], g.kind[i], near, !g.stride[i][g.axes - 1], a[i], b[i]);
    float x[OPERANDS][MANY], y[OUTS][MANY];
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) {
#pragma unroll
        for (int k = 0; k < MANY; k++) x[i][k] = arrays.given[i];
        if (arrays.in[i]) stored[i].spread(g.kind[i], !g.stride[i][g.axes - 1], x[i]);
    }
#pragma unroll
    for (int k = 0; k < MANY; k++) {
        float result[OUTS];
        F::apply(x[0][k], x[1][k], x[2][k], x[3][k], result);
#pragma unroll
        for (int j = 0; j < F::RESULTS; j++) y[j][k] = result[j];
    }
#pragma unroll
    for (int j = 0; j < F::RESULTS; j++)
        if (arrays.out[j]) Stored::store(arrays.out[j], g.kind[OPERANDS + j], near, a[OPERANDS], b[OPERANDS], y[j]);
}

template <typename F>
__device__ __forceinline__ void map_one(const Layout& g, const Arrays& arrays, unsigned e) {
    int at[OPERANDS + 1];
    place(g, e, at);
    float x[OPERANDS], result[OUTS];
#pragma unroll
    for (int i = 0; i < OPERANDS; i++)
        x[i] = arrays.in[i] ? number(word_at(arrays.in[i], g.kind[i], at[i]), g.kind[i]) : arrays.given[i];
    F::apply(x[0], x[1], x[2], x[3], result);
#pragma unroll
    for (int j = 0; j < F::RESULTS; j++)
        if (arrays.out[j]) store_one(arrays.out[j], g.kind[OPERANDS + j], at[OPERANDS], result[j]);
}

// Eight elements of each thread. Threads lie side by side with their runs, so that an access of a warp is one piece
// of memory: 16 bytes of a thread where all is stored in 16 bits or fewer, or in float32; 8 bytes of a 16-bit operand
// beside float32.
template <typename F>
__device__ __forceinline__ void map(const Layout& g, const Arrays& arrays) {
    unsigned run = g.run, first = blockIdx.x * (BLOCK * MANY) + threadIdx.x * run;
    unsigned second = run == MANY ? first + MANY / 2 : first + BLOCK * run;
    if (run > 1 && second + MANY / 2 <= g.count) return map_many<F>(g, arrays, first, second);
#pragma unroll 1
    for (unsigned k = 0; k < MANY; k++) {
        unsigned e = first + k % run + k / run * (BLOCK * run);
        if (e < g.count) map_one<F>(g, arrays, e);
    }
}

template <typename Op>
struct Forward {
    static constexpr int RESULTS = 1;
    static __device__ __forceinline__ void apply(float x, float y, float z, float w, float (&result)[OUTS]) {
        result[0] = Op::forward(x, y, z, w);
    }
};

template <typename Op>
struct Backward {
    static constexpr int RESULTS = Op::SLOPES;
    static __device__ __forceinline__ void apply(float dy, float x, float y, float z, float (&result)[OUTS]) {
        Op::backward(dy, x, y, z, result);
    }
};
