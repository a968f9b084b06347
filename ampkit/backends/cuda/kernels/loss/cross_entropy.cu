// Cross entropy and negative log-likelihood over labels: rows of scores [rows, cols], S stored; float32 between.
//
// A block has a row, reads it once each way and keeps no probabilities: exp(x - lse) gives them back. Rows may begin
// anywhere: 16-byte accesses lie between single ones at their ends. A label that is no class makes its loss NaN.
#include "include/row_max.cuh"

// f(at, v, n) for all values of a row, n at a time, by the threads of the block.
template <typename S, typename F>
__device__ __forceinline__ void for_each_pack(const S* row, int64 cols, F f) {
    constexpr int V = 16 / sizeof(S);
    int64 head = (16 - (reinterpret_cast<unsigned long long>(row) & 15)) % 16 / sizeof(S);
    if (head > cols) head = cols;
    int64 tail = head + (cols - head) / V * V;
    if (threadIdx.x < head) {
        float v[1] = {to_float(row[threadIdx.x])};
        f(threadIdx.x, v, 1);
    }
    for (int64 at = head + (int64)threadIdx.x * V; at < tail; at += (int64)blockDim.x * V) {
        float v[V];
        load_floats<V>(row + at, v);
        f(at, v, V);
    }
    if (tail + threadIdx.x < cols) {
        float v[1] = {to_float(row[tail + threadIdx.x])};
        f(tail + threadIdx.x, v, 1);
    }
}

// n values of a row, as `for_each_pack` hands them.
template <typename S>
__device__ __forceinline__ void put(S* to, const float* v, int n) {
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

// What a label stands for: nothing if it is ignored, no class, or a class with its weight.
struct Label {
    int64 at;
    bool counts, wrong;

    __device__ __forceinline__ Label(int64 label, int64 cols, int64 ignore)
        : at(label), counts(label != ignore), wrong(label != ignore && (label < 0 || label >= cols)) {}
    __device__ __forceinline__ float share(const float* weight) const {
        return !counts ? 0.0f : weight && !wrong ? weight[at] : 1.0f;
    }
};

// loss, lse and share (or null) [rows], bad: which labels are no classes.
template <typename S>
__global__ void cross_entropy_forward(
    const S* x, const int64* labels, const float* weight, float* loss, float* lse, float* share, bool* bad, int64 cols,
    int64 ignore, float smoothing) {
    int64 row = blockIdx.x;
    const S* from = x + row * cols;
    Label label(labels[row], cols, ignore);
    Blocked<Peaks, Peak> peaks;
    for_each_pack(from, cols, [&](int64, float* v, int n) {
        Peak& mine = peaks.low;
        float most = mine.most;
#pragma unroll
        for (int j = 0; j < n; j++) most = Max::combine(most, v[j]);
        mine.sum *= Peaks::shrunk(mine.most, most);
#pragma unroll
        for (int j = 0; j < n; j++) mine.sum += Peaks::shrunk(v[j], most);
        mine.most = most;
        peaks.carry();
    });
    Peak mine = block_reduce<Peaks>(peaks.total());
    float log = isfinite(mine.most) ? logf(mine.sum) : NAN_F, spread = 0.0f;  // an infinite or NaN maximum spoils the row
    if (smoothing > 0.0f && label.counts) {
        Blocked<Sum, float> gaps;
        for_each_pack(from, cols, [&](int64 at, float* v, int n) {
            float some = 0.0f;
#pragma unroll
            for (int j = 0; j < n; j++) some += (log - (v[j] - mine.most)) * (weight ? weight[at + j] : 1.0f);
            gaps.add(some);
        });
        spread = block_sum(gaps.total());
    }
    if (threadIdx.x) return;
    float own = label.wrong ? NAN_F : label.counts ? log - (to_float(from[label.at]) - mine.most) : 0.0f;
    float sum = (1.0f - smoothing) * own * label.share(weight);
    if (smoothing > 0.0f) sum += spread * (smoothing / cols);
    loss[row] = label.counts ? sum : 0.0f;
    lse[row] = log + mine.most;
    if (share) share[row] = label.share(weight);
    bad[row] = label.wrong;
}

// dx = (p * (hit + rest) - hit at the label - slope * smoothing / cols * weight), with the slope of the row's loss.
// dy: [rows] if `each`, or one. weights: the sum of all weights, or null: cols. total: what the mean divided by, or null.
template <typename S>
__global__ void cross_entropy_backward(
    const float* dy, const S* x, const int64* labels, const float* weight, const float* weights, const float* lse,
    const float* total, S* dx, int64 cols, int64 ignore, float smoothing, bool each) {
    int64 row = blockIdx.x;
    Label label(labels[row], cols, ignore);
    float slope = !label.counts ? 0.0f : label.wrong ? NAN_F : dy[each ? row : 0] / (total ? *total : 1.0f);
    float hit = (1.0f - smoothing) * label.share(weight) * slope, lift = slope * (smoothing / cols), under = lse[row];
    float all = hit + lift * (weights ? *weights : float(cols));
    S* to = dx + row * cols;
    for_each_pack(x + row * cols, cols, [&](int64 at, float* v, int n) {
#pragma unroll
        for (int j = 0; j < n; j++) {
            v[j] = expf(v[j] - under) * all;
            if (at + j == label.at) v[j] -= hit;
            if (smoothing > 0.0f) v[j] -= lift * (weight ? weight[at + j] : 1.0f);
        }
        put(to + at, v, n);
    });
}

// nll_loss: loss and share [rows]; a thread has a row.
template <typename S>
__global__ void nll_loss_forward(
    const S* x, const int64* labels, const float* weight, float* loss, float* share, bool* bad, int64 rows, int64 cols,
    int64 ignore) {
    int64 row = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    Label label(labels[row], cols, ignore);
    float scale = label.share(weight);
    loss[row] = label.wrong ? NAN_F : label.counts ? -scale * to_float(x[row * cols + label.at]) : 0.0f;
    share[row] = scale;
    bad[row] = label.wrong;
}

// nll_loss: what is not 0 of dx [rows, cols].
template <typename S>
__global__ void nll_loss_backward(
    const float* dy, const int64* labels, const float* share, const float* total, S* dx, int64 rows, int64 cols,
    int64 ignore, bool each) {
    int64 row = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    Label label(labels[row], cols, ignore);
    if (!label.counts) return;
    float slope = -dy[each ? row : 0] / (total ? *total : 1.0f) * share[row];
    dx[row * cols + (label.wrong ? 0 : label.at)] = from_float<S>(label.wrong ? NAN_F : slope);
}

// out: the sum of loss [rows], divided by total, the sum of share [rows], unless they are null. One block.
__global__ void cross_entropy_sum(const float* loss, const float* share, float* out, float* total, int64 rows) {
    Blocked<Sum, float> losses, shares;
    for (int64 row = threadIdx.x; row < rows; row += blockDim.x) {
        losses.add(loss[row]);
        if (share) shares.add(share[row]);
    }
    float sum = block_sum(losses.total()), parts = block_sum(shares.total());
    if (threadIdx.x) return;
    *out = share ? sum / parts : sum;
    if (total) *total = parts;
}

// entries: cross_entropy_forward<S> for S in TYPES
// entries: cross_entropy_backward<S> for S in TYPES
// entries: nll_loss_forward<S> for S in TYPES
// entries: nll_loss_backward<S> for S in TYPES
// entries: cross_entropy_sum
