// One time step of recurrent cells: a thread per sequence and unit. Gates and states are float, inputs of matrix
// products T. `gates` already holds the product with the state (GRU: `hidden_gates` does). Null pointers are not read
// or written.
#include "include/storage.cuh"

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <typename T>
__device__ __forceinline__ void store(T* to, unsigned at, float value) {
    if (to) to[at] = from_float<T>(value);
}

#define FOR_EACH(i, total) \
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (total); i += gridDim.x * blockDim.x)

// Offset of the first gate of unit `at` in a row of `gates` gates of `width` units.
__device__ __forceinline__ int64 gate_offset(unsigned at, unsigned width, int gates) {
    unsigned row = at / width;
    return (int64)row * gates * width + (at - row * width);
}

// tanh or ReLU

// h = tanh(gates), or relu(gates).
template <typename T>
__global__ void rnn_forward(float* gates, T* hidden, T* out, unsigned total, bool relu) {
    FOR_EACH(i, total) {
        float x = gates[i];
        float h = relu ? (x < 0.0f ? 0.0f : x) : tanhf(x);
        gates[i] = h;
        store(hidden, i, h);
        store(out, i, h);
    }
}

// dgates = (dh + dy) * h', from h in `gates`.
template <typename T>
__global__ void rnn_backward(const float* gates, const T* dy, const float* dh, T* dgates, unsigned total, bool relu) {
    FOR_EACH(i, total) {
        float h = gates[i], d = dh[i] + to_float(dy[i]);
        dgates[i] = from_float<T>(relu ? (h > 0.0f ? d : d * 0.0f) : d * (1.0f - h * h));
    }
}

// LSTM: gates i, f, g, o of a row one after the other

// i, f, o = sigmoid, g = tanh of the gates; c = f c + i g; h = o tanh(c).
template <typename T>
__global__ void lstm_forward(float* gates, float* cell, float* cell_before, T* hidden, T* out, unsigned total,
                             unsigned width) {
    FOR_EACH(at, total) {
        float* row = gates + gate_offset(at, width, 4);
        float i = sigmoid(row[0]), f = sigmoid(row[width]), g = tanhf(row[2 * width]), o = sigmoid(row[3 * width]);
        float previous_cell = cell[at], c = f * previous_cell + i * g, h = o * tanhf(c);
        row[0] = i, row[width] = f, row[2 * width] = g, row[3 * width] = o;
        cell_before[at] = previous_cell;
        cell[at] = c;
        store(hidden, at, h);
        store(out, at, h);
    }
}

// dgates of i, f, g, o; dc becomes the gradient of the previous cell.
template <typename T>
__global__ void lstm_backward(const float* gates, const float* cell_before, const T* dy, const float* dh, float* dc,
                              T* dgates, unsigned total, unsigned width) {
    FOR_EACH(at, total) {
        int64 first = gate_offset(at, width, 4);
        const float* row = gates + first;
        T* to = dgates + first;
        float i = row[0], f = row[width], g = row[2 * width], o = row[3 * width], previous_cell = cell_before[at];
        float tanh_cell = tanhf(f * previous_cell + i * g), d = dh[at] + (dy ? to_float(dy[at]) : 0.0f);
        float dcell = dc[at] + d * o * (1.0f - tanh_cell * tanh_cell);
        to[0] = from_float<T>(dcell * g * i * (1.0f - i));
        to[width] = from_float<T>(dcell * previous_cell * f * (1.0f - f));
        to[2 * width] = from_float<T>(dcell * i * (1.0f - g * g));
        to[3 * width] = from_float<T>(d * tanh_cell * o * (1.0f - o));
        dc[at] = dcell * f;
    }
}

// GRU: gates r, z, n of a row one after the other

// r, z = sigmoid; n = tanh(x_n + r h_n); h = n + z (h - n). hidden_n keeps h_n for the backward.
template <typename T>
__global__ void gru_forward(float* gates, const float* hidden_gates, float* state, float* hidden_n, T* hidden, T* out,
                            unsigned total, unsigned width) {
    FOR_EACH(at, total) {
        int64 first = gate_offset(at, width, 3);
        float* row = gates + first;
        const float* from = hidden_gates + first;
        float r = sigmoid(row[0] + from[0]), z = sigmoid(row[width] + from[width]), hn = from[2 * width];
        float n = tanhf(row[2 * width] + r * hn), h = n + z * (state[at] - n);
        row[0] = r, row[width] = z, row[2 * width] = n;
        hidden_n[at] = hn;
        state[at] = h;
        store(hidden, at, h);
        store(out, at, h);
    }
}

// dx_gates, dh_gates: gradients of the products with input and state; dh becomes the direct gradient of the previous
// state.
template <typename T>
__global__ void gru_backward(const float* gates, const float* hidden_n, const T* previous, const T* dy, float* dh,
                             T* dx_gates, T* dh_gates, unsigned total, unsigned width) {
    FOR_EACH(at, total) {
        int64 first = gate_offset(at, width, 3);
        const float* row = gates + first;
        float r = row[0], z = row[width], n = row[2 * width], d = dh[at] + to_float(dy[at]);
        float dn = d * (1.0f - z) * (1.0f - n * n);
        T dr = from_float<T>(dn * hidden_n[at] * r * (1.0f - r));
        T dz = from_float<T>(d * (to_float(previous[at]) - n) * z * (1.0f - z));
        dx_gates[first] = dh_gates[first] = dr;
        dx_gates[first + width] = dh_gates[first + width] = dz;
        dx_gates[first + 2 * width] = from_float<T>(dn);
        dh_gates[first + 2 * width] = from_float<T>(dn * r);
        dh[at] = d * z;
    }
}

// entries: rnn_forward<T> for T in TYPES
// entries: rnn_backward<T> for T in TYPES
// entries: lstm_forward<T> for T in TYPES
// entries: lstm_backward<T> for T in TYPES
// entries: gru_forward<T> for T in TYPES
// entries: gru_backward<T> for T in TYPES
