// One step of recurrent cells: a thread per sequence and unit. Gates and states are float; what products read, T.
// The product of the state was added to `gates` before, for a GRU left in `inner`. Nulls are not written, or not read.
#include "include/storage.cuh"

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <typename T>
__device__ __forceinline__ void put(T* to, unsigned at, float value) {
    if (to) to[at] = from_float<T>(value);
}

#define EACH(i, total) \
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x)

// Where the first gate of unit `at` lies, if each has so many.
__device__ __forceinline__ int64 first_of(unsigned at, unsigned width, int gates) {
    unsigned row = at / width;
    return (int64)row * gates * width + (at - row * width);
}

// tanh or ReLU

template <typename T>
__global__ void rnn_forward(float* gates, T* hidden, T* out, unsigned total, bool relu) {
    EACH(i, total) {
        float x = gates[i];
        float h = relu ? (x < 0.0f ? 0.0f : x) : tanhf(x);
        gates[i] = h;
        put(hidden, i, h);
        put(out, i, h);
    }
}

template <typename T>
__global__ void rnn_backward(const float* gates, const T* dy, const float* dh, T* slopes, unsigned total, bool relu) {
    EACH(i, total) {
        float h = gates[i], d = dh[i] + to_float(dy[i]);
        slopes[i] = from_float<T>(relu ? (h > 0.0f ? d : d * 0.0f) : d * (1.0f - h * h));
    }
}

// LSTM: gates i, f, g, o of a row one after the other

template <typename T>
__global__ void lstm_forward(float* gates, float* cell, float* before, T* hidden, T* out, unsigned total, unsigned width) {
    EACH(at, total) {
        float* row = gates + first_of(at, width, 4);
        float i = sigmoid(row[0]), f = sigmoid(row[width]), g = tanhf(row[2 * width]), o = sigmoid(row[3 * width]);
        float old = cell[at], c = f * old + i * g, h = o * tanhf(c);
        row[0] = i, row[width] = f, row[2 * width] = g, row[3 * width] = o;
        before[at] = old;
        cell[at] = c;
        put(hidden, at, h);
        put(out, at, h);
    }
}

template <typename T>
__global__ void lstm_backward(const float* gates, const float* before, const T* dy, const float* dh, float* dc,
                              T* slopes, unsigned total, unsigned width) {
    EACH(at, total) {
        int64 first = first_of(at, width, 4);
        const float* row = gates + first;
        T* to = slopes + first;
        float i = row[0], f = row[width], g = row[2 * width], o = row[3 * width], old = before[at];
        float high = tanhf(f * old + i * g), d = dh[at] + (dy ? to_float(dy[at]) : 0.0f);
        float slope = dc[at] + d * o * (1.0f - high * high);
        to[0] = from_float<T>(slope * g * i * (1.0f - i));
        to[width] = from_float<T>(slope * old * f * (1.0f - f));
        to[2 * width] = from_float<T>(slope * i * (1.0f - g * g));
        to[3 * width] = from_float<T>(d * high * o * (1.0f - o));
        dc[at] = slope * f;
    }
}

// GRU: gates r, z, n of a row one after the other

template <typename T>
__global__ void gru_forward(float* gates, const float* inner, float* state, float* kept, T* hidden, T* out,
                            unsigned total, unsigned width) {
    EACH(at, total) {
        int64 first = first_of(at, width, 3);
        float* row = gates + first;
        const float* from = inner + first;
        float r = sigmoid(row[0] + from[0]), z = sigmoid(row[width] + from[width]), last = from[2 * width];
        float n = tanhf(row[2 * width] + r * last), h = n + z * (state[at] - n);
        row[0] = r, row[width] = z, row[2 * width] = n;
        kept[at] = last;
        state[at] = h;
        put(hidden, at, h);
        put(out, at, h);
    }
}

template <typename T>
__global__ void gru_backward(const float* gates, const float* kept, const T* previous, const T* dy, float* dh, T* to_x,
                             T* to_h, unsigned total, unsigned width) {
    EACH(at, total) {
        int64 first = first_of(at, width, 3);
        const float* row = gates + first;
        float r = row[0], z = row[width], n = row[2 * width], d = dh[at] + to_float(dy[at]);
        float dn = d * (1.0f - z) * (1.0f - n * n);
        T dr = from_float<T>(dn * kept[at] * r * (1.0f - r));
        T dz = from_float<T>(d * (to_float(previous[at]) - n) * z * (1.0f - z));
        to_x[first] = to_h[first] = dr;
        to_x[first + width] = to_h[first + width] = dz;
        to_x[first + 2 * width] = from_float<T>(dn);
        to_h[first + 2 * width] = from_float<T>(dn * r);
        dh[at] = d * z;
    }
}

// entries: rnn_forward<T> for T in TYPES
// entries: rnn_backward<T> for T in TYPES
// entries: lstm_forward<T> for T in TYPES
// entries: lstm_backward<T> for T in TYPES
// entries: gru_forward<T> for T in TYPES
// entries: gru_backward<T> for T in TYPES
