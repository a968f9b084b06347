// Connectionist temporal classification (Graves et al. 2006): a block per sequence steps through its frames, threads
// over states.
//
// States alternate blanks and labels: state 2 i + 1 is label i. NEVER stands for log 0; see ops/loss/ctc.py.
#include "include/block.cuh"

constexpr float NEVER = -1e30f;

__device__ __forceinline__ float log_sum(float a, float b, float c) {
    float row_max = Max::combine(Max::combine(a, b), c);
    return logf(expf(a - row_max) + expf(b - row_max) + expf(c - row_max)) + row_max;
}

// classes[s]: the class of each state. Returns whether a label of the target is invalid, marked by -1.
__device__ __forceinline__ bool read_states(const int64* labels, int* classes, int max_labels, int count, int blank) {
    float invalid = 0.0f;
    for (int s = threadIdx.x; s < 2 * max_labels + 1; s += blockDim.x) {
        int64 label = s & 1 ? labels[s / 2] : int64(blank);
        if (s / 2 < count && label < 0) invalid = 1.0f;
        classes[s] = label < 0 ? 0 : int(label);
    }
    __syncthreads();
    return block_max(invalid) > 0.0f;
}

__device__ __forceinline__ bool can_skip(const int* classes, int s) {
    return s & 1 && s >= 3 && classes[s] != classes[s - 2];
}

// alpha [frames, batch, states] in log space, loss [batch]: -log p, inf if no alignment exists, NaN for an invalid
// label.
template <typename T>
__global__ void ctc_loss_forward(const T* log_probs, const int64* targets, const int64* input_lengths,
                                 const int64* target_lengths, float* alpha, float* loss, int64 max_labels,
                                 int64 num_classes, int64 blank) {
    int64 batch = gridDim.x, row = blockIdx.x, frames = input_lengths[row], count = target_lengths[row];
    int states = 2 * int(max_labels) + 1;
    DYN_SHARED(float, alpha_before);
    float* alpha_after = alpha_before + states;
    int* classes = reinterpret_cast<int*>(alpha_after + states);
    bool invalid = read_states(targets + row * max_labels, classes, int(max_labels),
                               int(count < max_labels ? count : max_labels), int(blank));
    for (int s = threadIdx.x; s < states; s += blockDim.x) alpha_before[s] = s ? NEVER : 0.0f;
    __syncthreads();
    for (int64 t = 0; t < frames; t++) {
        const T* frame = log_probs + (t * batch + row) * num_classes;
        for (int s = threadIdx.x; s < states; s += blockDim.x) {
            float step = s ? alpha_before[s - 1] : NEVER, skip = can_skip(classes, s) ? alpha_before[s - 2] : NEVER;
            float next_alpha = log_sum(alpha_before[s], step, skip) + Max::combine(to_float(frame[classes[s]]), NEVER);
            alpha[(t * batch + row) * states + s] = alpha_after[s] = next_alpha;
        }
        __syncthreads();
        float* neighbour = alpha_before;
        alpha_before = alpha_after, alpha_after = neighbour;
    }
    if (threadIdx.x == 0) {
        float last = count <= max_labels ? alpha_before[2 * count] : NEVER;
        float label = count && count <= max_labels ? alpha_before[2 * count - 1] : NEVER;
        float log = log_sum(last, label, NEVER);
        loss[row] = invalid ? NAN_F : log <= NEVER / 2 ? INFINITY_F : -log;
    }
}

// dx of log_probs; zero where no state has the class. Posteriors of equal labels are added in order of their states.
template <typename T>
__global__ void ctc_loss_backward(const float* row_grads, const T* log_probs, const int64* targets,
                                  const int64* input_lengths, const int64* target_lengths, const float* alpha,
                                  const float* loss, T* dx, int64 max_labels, int64 num_classes, int64 blank,
                                  bool zero_infinity) {
    int64 batch = gridDim.x, row = blockIdx.x, frames = input_lengths[row];
    int count = int(target_lengths[row] < max_labels ? target_lengths[row] : max_labels),
        states = 2 * int(max_labels) + 1;
    float row_grad = row_grads[row], row_loss = loss[row];
    bool alignable = row_loss != INFINITY_F;
    DYN_SHARED(float, beta);
    float *emitted = beta + states, *posterior = emitted + states;
    int *classes = reinterpret_cast<int*>(posterior + states), *next = classes + states;  // next state of the same label; + states if it is the first
    read_states(targets + row * max_labels, classes, int(max_labels), count, int(blank));
    for (int s = threadIdx.x; s < states; s += blockDim.x) {
        bool end = s == 2 * count || (count && s == 2 * count - 1);
        beta[s] = end && target_lengths[row] <= max_labels ? 0.0f : NEVER;
        int neighbour = s - 2;
        while (neighbour > 0 && classes[neighbour] != classes[s]) neighbour -= 2;
        bool first = neighbour <= 0;
        for (neighbour = s + 2; neighbour < 2 * count && classes[neighbour] != classes[s];) neighbour += 2;
        next[s] = (neighbour < 2 * count ? neighbour : 0) + (first ? 0 : states);
    }
    __syncthreads();
    for (int64 t = frames - 1; t >= 0; t--) {
        int64 at = t * batch + row;
        for (int s = threadIdx.x; s < states; s += blockDim.x) {
            float probability = expf(alpha[at * states + s] + beta[s] + row_loss);
            posterior[s] = alignable ? probability : zero_infinity ? 0.0f : NAN_F;
            emitted[s] = beta[s] + Max::combine(to_float(log_probs[at * num_classes + classes[s]]), NEVER);
        }
        __syncthreads();
        float blank_sum = 0.0f;
        for (int s = threadIdx.x; s < states; s += blockDim.x) {
            float step = s + 1 < states ? emitted[s + 1] : NEVER;
            float skip = s + 2 < states && can_skip(classes, s + 2) ? emitted[s + 2] : NEVER;
            beta[s] = log_sum(emitted[s], step, skip);
            if (!(s & 1)) blank_sum += posterior[s];
            if (s & 1 && s < 2 * count && next[s] < states) {
                float sum = posterior[s];
                for (int neighbour = next[s]; neighbour; neighbour = next[neighbour] - states)
                    sum += posterior[neighbour];
                dx[at * num_classes + classes[s]] = from_float<T>(-sum * row_grad);
            }
        }
        blank_sum = block_sum(blank_sum);
        if (threadIdx.x == 0) dx[at * num_classes + blank] = from_float<T>(-blank_sum * row_grad);
        __syncthreads();
    }
}

// entries: ctc_loss_forward<T> for T in TYPES
// entries: ctc_loss_backward<T> for T in TYPES
