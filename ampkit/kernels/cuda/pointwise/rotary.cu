// Rotary position embedding: pairs of channels turned by the angles of their position, in float32, rounded once.
#include "include/storage.cuh"

constexpr unsigned HEADS = 16;  // that a thread turns by the same angles

// cos and sin of V pairs.
template <int V>
struct Angles {
    float cos[V], sin[V];

    // (a cos - b sin, b cos + a sin) of V pairs, their second channels behind the first ones or between them.
    template <typename T>
    __device__ __forceinline__ void turn(const T* x, T* out, unsigned behind, bool interleaved) const {
        float pairs[2 * V], a[V], b[V];
        if (interleaved) {
            load_floats<2 * V>(x, pairs);
        } else {
            load_floats<V>(x, a);
            load_floats<V>(x + behind, b);
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            float first = interleaved ? pairs[2 * i] : a[i], second = interleaved ? pairs[2 * i + 1] : b[i];
            a[i] = pairs[2 * i] = first * cos[i] - second * sin[i];
            b[i] = pairs[2 * i + 1] = second * cos[i] + first * sin[i];
        }
        if (interleaved) return store_floats<2 * V>(out, pairs);
        store_floats<V>(out, a);
        store_floats<V>(out + behind, b);
    }
};

// x [outer, heads, positions, width], its axes `*_step` elements apart and the last 1; cos and sin [positions, pairs],
// rows angle_step apart -> out, dense. A thread has V pairs of up to HEADS heads, or 2 V of the channels behind the
// pairs; blockIdx.y counts groups of heads. V = 4 if all these accesses are aligned. sign: 1, or -1 to turn back.
template <typename T, typename A, int V>
__global__ void rotary(const T* x, const A* cos, const A* sin, T* out, int64 total, unsigned heads, unsigned positions,
                       unsigned width, unsigned pairs, int64 outer_step, int64 head_step, int64 position_step,
                       int64 angle_step, float sign, bool interleaved) {
    unsigned each = (width + 2 * V - 1) / (2 * V), begin = blockIdx.y * HEADS, end = min(heads, begin + HEADS);
    for (int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += (int64)gridDim.x * blockDim.x) {
        int64 row = at / each, outer = row / positions, position = row - outer * positions;
        unsigned i = V * unsigned(at - row * each), first = interleaved ? 2 * i : i;
        const T* from = x + outer * outer_step + position * position_step;
        T* to = out + (outer * heads * positions + position) * width;
        Angles<V> angles;
        if (i < pairs) {
            load_floats<V>(cos + position * angle_step + i, angles.cos);
            load_floats<V>(sin + position * angle_step + i, angles.sin);
            for (float& s : angles.sin) s *= sign;
        }
        for (unsigned head = begin; head < end; head++) {
            const T* values = from + head * head_step;
            T* turned = to + (int64)head * positions * width;
            if (i < pairs) {
                angles.turn(values + first, turned + first, pairs, interleaved);
            } else {
                for (unsigned k = 2 * i; k < width && k < 2 * (i + V); k++) turned[k] = values[k];
            }
        }
    }
}

// entries: rotary<T, A, V> for (T, A) in ((float, float), (__half, __half), (__nv_bfloat16, __nv_bfloat16),
//     (__half, float), (__nv_bfloat16, float)), V in (4, 1)
