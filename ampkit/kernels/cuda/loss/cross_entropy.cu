// cross_entropy and nll_loss over class labels: scores [rows, cols] of dtype S, float32 arithmetic.
#include "include/cross_entropy.cuh"

// A block per row; see include/cross_entropy.cuh. step: from row to row of x, in values.
template <typename S>
__global__ void cross_entropy_forward(const S* x, const int64* labels, const float* weight, float* loss, float* lse,
                                      float* label_weight, bool* invalid_label, int64 cols, int64 ignore,
                                      float smoothing, int64 step) {
    ArrayRow<const S> row{x + blockIdx.x * step};
    row_cross_entropy(row, labels, weight, loss, lse, label_weight, invalid_label, cols, ignore, smoothing);
}

// The same of its gradient. x_step, step: from row to row of x and of dx, in values.
template <typename S>
__global__ void cross_entropy_backward(const S* x, const float* dy, const int64* labels, const float* weight,
                                       const float* weights, const float* lse, const float* total, S* dx, int64 cols,
                                       int64 ignore, float smoothing, bool per_row, int64 x_step, int64 step) {
    ArrayRow<const S> row{x + blockIdx.x * x_step};
    ArrayRow<S> to{dx + blockIdx.x * step};
    row_cross_entropy_backward(row, to, dy, labels, weight, weights, lse, total, cols, ignore, smoothing, per_row);
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
