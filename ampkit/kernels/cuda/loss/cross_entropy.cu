// cross_entropy and nll_loss over class labels: scores [rows, cols] of dtype S, float32 arithmetic.
//
// A block per row reads it once per pass and stores no probabilities: exp(x - lse) restores them. Rows need no
// alignment: 16-byte accesses in the middle, single values at both ends. A label out of range makes its loss NaN.
#include "include/online_softmax.cuh"

// Calls f(index, v, n) for all values of a row, n at a time, over the threads of the block. Where n > 1, the index is
// that of a 16-byte boundary of `anchor`: of the row, or of the row that f stores.
template <typename S, typename F>
__device__ __forceinline__ void for_each_pack(const S* row, const S* anchor, int64 cols, F f) {
    constexpr int V = 16 / sizeof(S);
    int64 head = (16 - (reinterpret_cast<unsigned long long>(anchor) & 15)) % 16 / sizeof(S);
    if (head > cols) head = cols;
    int64 tail = head + (cols - head) / V * V;
    bool wide = aligned(row + head, 16);
    if (threadIdx.x < head) {
        float v[1] = {to_float(row[threadIdx.x])};
        f(threadIdx.x, v, 1);
    }
    for (int64 at = head + (int64)threadIdx.x * V; at < tail; at += (int64)blockDim.x * V) {
        float v[V];
        if (wide) {
            load_floats<V>(row + at, v);
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) v[j] = to_float(row[at + j]);
        }
        f(at, v, V);
    }
    if (tail + threadIdx.x < cols) {
        float v[1] = {to_float(row[tail + threadIdx.x])};
        f(tail + threadIdx.x, v, 1);
    }
}

// Stores n values as `for_each_pack` passes them.
template <typename S>
__device__ __forceinline__ void store_pack(S* to, const float* v, int n) {
    constexpr int V = 16 / sizeof(S);
    if (n == V && aligned(to, 16)) {
        Pack<S> pack;
#pragma unroll
        for (int j = 0; j < V; j++) pack.value[j] = from_float<S>(v[j]);
        return pack.store(to);
    }
#pragma unroll
    for (int j = 0; j < n; j++) to[j] = from_float<S>(v[j]);
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

// loss, lse [rows], label_weight [rows] or null, invalid_label [rows]: which labels are out of range. A block per row.
// step: from row to row of x, in values.
template <typename S>
__global__ void cross_entropy_forward(const S* x, const int64* labels, const float* weight, float* loss, float* lse,
                                      float* label_weight, bool* invalid_label, int64 cols, int64 step,
                                      int64 ignore, float smoothing) {
    int64 row = blockIdx.x;
    const S* row_x = x + row * step;
    Label label(labels[row], cols, ignore);
    BlockedReduction<OnlineSoftmax, MaxSum> maxima;
    for_each_pack(row_x, row_x, cols, [&](int64, float* v, int n) {
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
    float log = isfinite(mine.max) ? logf(mine.sum) : NAN_F, smoothing_sum = 0.0f;  // an infinite or NaN maximum spoils the row
    if (smoothing > 0.0f && label.counted) {
        BlockedReduction<Sum, float> smoothing_losses;
        for_each_pack(row_x, row_x, cols, [&](int64 at, float* v, int n) {
            float partial = 0.0f;
#pragma unroll
            for (int j = 0; j < n; j++) partial += (log - (v[j] - mine.max)) * (weight ? weight[at + j] : 1.0f);
            smoothing_losses.add(partial);
        });
        smoothing_sum = block_sum(smoothing_losses.total());
    }
    if (threadIdx.x) return;
    float target_loss = label.invalid ? NAN_F : label.counted ? log - (to_float(row_x[label.at]) - mine.max) : 0.0f;
    float sum = (1.0f - smoothing) * target_loss * label.weight_of(weight);
    if (smoothing > 0.0f) sum += smoothing_sum * (smoothing / cols);
    loss[row] = label.counted ? sum : 0.0f;
    lse[row] = log + mine.max;
    if (label_weight) label_weight[row] = label.weight_of(weight);
    invalid_label[row] = label.invalid;
}

// dx = softmax(x) * prob_scale - target_grad at the label - grad * smoothing / cols * weight, where grad is that of the
// row's loss. dy: [rows] if per_row, else one value. weights: the sum of all weights, null for cols. total: the mean's
// divisor or null. x_step, step: from row to row of x and of dx, in values.
template <typename S>
__global__ void cross_entropy_backward(const float* dy, const S* x, const int64* labels, const float* weight,
                                       const float* weights, const float* lse, const float* total, S* dx, int64 cols,
                                       int64 x_step, int64 step, int64 ignore, float smoothing, bool per_row) {
    int64 row = blockIdx.x;
    Label label(labels[row], cols, ignore);
    float grad = !label.counted ? 0.0f : label.invalid ? NAN_F : dy[per_row ? row : 0] / (total ? *total : 1.0f);
    float target_grad = (1.0f - smoothing) * label.weight_of(weight) * grad,
        smoothing_grad = grad * (smoothing / cols), row_lse = lse[row];
    float prob_scale = target_grad + smoothing_grad * (weights ? *weights : float(cols));
    S* to = dx + row * step;
    for_each_pack(x + row * x_step, to, cols, [&](int64 at, float* v, int n) {
#pragma unroll
        for (int j = 0; j < n; j++) {
            v[j] = expf(v[j] - row_lse) * prob_scale;
            if (at + j == label.at) v[j] -= target_grad;
            if (smoothing > 0.0f) v[j] -= smoothing_grad * (weight ? weight[at + j] : 1.0f);
        }
        store_pack(to + at, v, n);
    });
}

// loss = -weight * x[label], label_weight, invalid_label [rows]; a thread per row.
template <typename S>
__global__ void nll_loss_forward(const S* x, const int64* labels, const float* weight, float* loss, float* label_weight,
                                 bool* invalid_label, int64 rows, int64 cols, int64 ignore) {
    int64 row = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    Label label(labels[row], cols, ignore);
    float scale = label.weight_of(weight);
    loss[row] = label.invalid ? NAN_F : label.counted ? -scale * to_float(x[row * cols + label.at]) : 0.0f;
    label_weight[row] = scale;
    invalid_label[row] = label.invalid;
}

// dx at the label = -grad * label_weight; the rest of dx is zero before. A thread per row.
template <typename S>
__global__ void nll_loss_backward(const float* dy, const int64* labels, const float* label_weight, const float* total,
                                  S* dx, int64 rows, int64 cols, int64 ignore, bool per_row) {
    int64 row = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    Label label(labels[row], cols, ignore);
    if (!label.counted) return;
    float grad = -dy[per_row ? row : 0] / (total ? *total : 1.0f) * label_weight[row];
    dx[row * cols + (label.invalid ? 0 : label.at)] = from_float<S>(label.invalid ? NAN_F : grad);
}

// out = sum(loss), divided by *total = sum(share) for a mean; share and total null for a sum. One block.
__global__ void cross_entropy_sum(const float* loss, const float* label_weight, float* out, float* total, int64 rows) {
    BlockedReduction<Sum, float> losses, shares;
    for (int64 row = threadIdx.x; row < rows; row += blockDim.x) {
        losses.add(loss[row]);
        if (label_weight) shares.add(label_weight[row]);
    }
    float sum = block_sum(losses.total()), parts = block_sum(shares.total());
    if (threadIdx.x) return;
    *out = label_weight ? sum / parts : sum;
    if (total) *total = parts;
}

// entries: cross_entropy_forward<S> for S in TYPES
// entries: cross_entropy_backward<S> for S in TYPES
// entries: nll_loss_forward<S> for S in TYPES
// entries: nll_loss_backward<S> for S in TYPES
// entries: cross_entropy_sum
