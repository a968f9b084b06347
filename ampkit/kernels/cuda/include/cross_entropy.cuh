// cross_entropy of a row of scores over class labels, and its gradient, float32 arithmetic, of what loads and stores
// the row: arrays, or the chains that backends/cuda/launch/template_source.py writes.
//
// A block per row reads it once per pass and stores no probabilities: exp(x - lse) restores them. Rows need no
// alignment: packs of eight values in the middle, single values at both ends. A label out of range makes its loss NaN.
#pragma once
#include "include/online_softmax.cuh"

constexpr int PACK = 8;

// How many values of a row lie before the first multiple of 16 bytes. address: of the row, or its offset from one.
template <typename S>
__device__ __forceinline__ int64 before_boundary(unsigned long long address) {
    return (16 - (address & 15)) % 16 / sizeof(S);
}

// A row of an array.
template <typename S>
struct ArrayRow {
    S* row;

    __device__ __forceinline__ int64 head() const { return before_boundary<S>((unsigned long long)row); }
    __device__ __forceinline__ void load(float (&v)[1], int64 col) const { v[0] = to_float(row[col]); }
    __device__ __forceinline__ void load(float (&v)[PACK], int64 col) const {
        if (aligned(row + col, 16)) return load_floats<PACK>(row + col, v);
#pragma unroll
        for (int j = 0; j < PACK; j++) v[j] = to_float(row[col + j]);
    }
    __device__ __forceinline__ void store(float (&v)[1], int64 col) const { row[col] = from_float<S>(v[0]); }
    __device__ __forceinline__ void store(float (&v)[PACK], int64 col) const {
        if (aligned(row + col, 16)) return store_floats<PACK>(row + col, v);
#pragma unroll
        for (int j = 0; j < PACK; j++) row[col + j] = from_float<S>(v[j]);
    }
};

// A row that a chain computes or stores from its element `start` on, N values at a time: 8, or 1 where rows are no
// multiples of 8. S: the dtype in which the scores would lie in memory.
template <int N, typename S, typename Chain>
struct ChainRow {
    const Chain& chain;
    int64 start;

    __device__ __forceinline__ int64 head() const { return before_boundary<S>(start * sizeof(S)); }
    __device__ __forceinline__ void load(float (&v)[1], int64 col) const {
        float near[N];
        chain.load(near, start + col / N * N);
        v[0] = near[0];
#pragma unroll
        for (int j = 1; j < N; j++) v[0] = col % N == j ? near[j] : v[0];
    }
    __device__ __forceinline__ void load(float (&v)[PACK], int64 col) const {
        if constexpr (N == PACK) {
            chain.load(v, start + col);
        } else {
#pragma unroll
            for (int j = 0; j < PACK; j++) {
                float one[1];
                load(one, col + j);
                v[j] = one[0];
            }
        }
    }
    template <int V>
    __device__ __forceinline__ void store(float (&v)[V], int64 col) const {
        if constexpr (N == V) {
            chain.store(v, start + col);
        } else if constexpr (N == 1) {
#pragma unroll
            for (int j = 0; j < V; j++) {
                float one[1] = {v[j]};
                chain.store(one, start + col + j);
            }
        }  // rows of multiples of 8 have no single values
    }
};

template <int N, typename S, typename Chain>
__device__ __forceinline__ ChainRow<N, S, Chain> chain_row(const Chain& chain, int64 cols) {
    return {chain, blockIdx.x * cols};
}

// Calls f(col, v, n) for all values of a row, n = 1 or a pack of them at a time, over the threads of the block. head:
// how many lie before the first pack.
template <typename Row, typename F>
__device__ __forceinline__ void for_each_pack(const Row& x, int64 head, int64 cols, F f) {
    if (head > cols) head = cols;
    int64 tail = head + (cols - head) / PACK * PACK;
    if (threadIdx.x < head) {
        float v[1];
        x.load(v, threadIdx.x);
        f(threadIdx.x, v, 1);
    }
    for (int64 at = head + (int64)threadIdx.x * PACK; at < tail; at += (int64)blockDim.x * PACK) {
        float v[PACK];
        x.load(v, at);
        f(at, v, PACK);
    }
    if (tail + threadIdx.x < cols) {
        float v[1];
        x.load(v, tail + threadIdx.x);
        f(tail + threadIdx.x, v, 1);
    }
}

// A label: ignored (not counted), out of range (invalid), or a class with its weight.
struct Label {
    int64 at;
    bool counted, invalid;

    __device__ __forceinline__ Label(int64 label, int64 cols, int64 ignore)
        : at(label), counted(label != ignore), invalid(label != ignore && (label < 0 || label >= cols)) {}
    __device__ __forceinline__ float weight_of(const float* weight) const {
        return !counted ? 0.0f : weight && !invalid ? weight[at] : 1.0f;
    }
};

// loss, lse [rows], label_weight [rows] or null, invalid_label [rows]: which labels are out of range.
template <typename Row>
__device__ __forceinline__ void row_cross_entropy(const Row& x, const int64* labels, const float* weight, float* loss,
                                                  float* lse, float* label_weight, bool* invalid_label, int64 cols,
                                                  int64 ignore, float smoothing) {
    int64 row = blockIdx.x, head = x.head();
    Label label(labels[row], cols, ignore);
    BlockedReduction<OnlineSoftmax, MaxSum> maxima;
    for_each_pack(x, head, cols, [&](int64, float* v, int n) {
        MaxSum& mine = maxima.low;
        float row_max = mine.max;
#pragma unroll
        for (int j = 0; j < n; j++) row_max = Max::combine(row_max, v[j]);
        mine.sum *= OnlineSoftmax::exp_difference(mine.max, row_max);
#pragma unroll
        for (int j = 0; j < n; j++) mine.sum += OnlineSoftmax::exp_difference(v[j], row_max);
        mine.max = row_max;
        maxima.carry();
    });
    MaxSum mine = block_reduce<OnlineSoftmax>(maxima.total());
    float log = isfinite(mine.max) ? logf(mine.sum) : NAN_F;  // an infinite or NaN maximum spoils the row
    float smoothing_sum = 0.0f;
    if (smoothing > 0.0f && label.counted) {
        BlockedReduction<Sum, float> smoothing_losses;
        for_each_pack(x, head, cols, [&](int64 at, float* v, int n) {
            float partial = 0.0f;
#pragma unroll
            for (int j = 0; j < n; j++) partial += (log - (v[j] - mine.max)) * (weight ? weight[at + j] : 1.0f);
            smoothing_losses.add(partial);
        });
        smoothing_sum = block_sum(smoothing_losses.total());
    }
    if (threadIdx.x) return;
    float score[1] = {0.0f};
    if (label.counted && !label.invalid) x.load(score, label.at);
    float target_loss = label.invalid ? NAN_F : label.counted ? log - (score[0] - mine.max) : 0.0f;
    float sum = (1.0f - smoothing) * target_loss * label.weight_of(weight);
    if (smoothing > 0.0f) sum += smoothing_sum * (smoothing / cols);
    loss[row] = label.counted ? sum : 0.0f;
    lse[row] = log + mine.max;
    if (label_weight) label_weight[row] = label.weight_of(weight);
    invalid_label[row] = label.invalid;
}

// dx = softmax(x) * prob_scale - target_grad at the label - grad * smoothing / cols * weight, where grad is that of the
// row's loss. dy: [rows] if per_row, else one value. weights: the sum of all weights, null for cols. total: the mean's
// divisor or null.
template <typename Row, typename Out>
__device__ __forceinline__ void row_cross_entropy_backward(const Row& x, const Out& dx, const float* dy,
                                                           const int64* labels, const float* weight,
                                                           const float* weights, const float* lse, const float* total,
                                                           int64 cols, int64 ignore, float smoothing, bool per_row) {
    int64 row = blockIdx.x;
    Label label(labels[row], cols, ignore);
    float grad = !label.counted ? 0.0f : label.invalid ? NAN_F : dy[per_row ? row : 0] / (total ? *total : 1.0f);
    float target_grad = (1.0f - smoothing) * label.weight_of(weight) * grad,
        smoothing_grad = grad * (smoothing / cols), row_lse = lse[row];
    float prob_scale = target_grad + smoothing_grad * (weights ? *weights : float(cols));
    for_each_pack(x, dx.head(), cols, [&](int64 at, float* v, int n) {
#pragma unroll
        for (int j = 0; j < n; j++) {
            v[j] = expf(v[j] - row_lse) * prob_scale;
            if (at + j == label.at) v[j] -= target_grad;
            if (smoothing > 0.0f) v[j] -= smoothing_grad * (weight ? weight[at + j] : 1.0f);
        }
        if (n == PACK) dx.store(*reinterpret_cast<float(*)[PACK]>(v), at);
        else dx.store(*reinterpret_cast<float(*)[1]>(v), at);
    });
}
