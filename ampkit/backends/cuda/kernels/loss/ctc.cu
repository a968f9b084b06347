// Connectionist temporal classification: a block per sequence goes through its frames, a thread for each state at a time.
//
// States are blanks and labels in turn: 2 i + 1 is label i. What is NEVER is impossible; see ops/loss/ctc.py.
#include "include/block.cuh"

constexpr float NEVER = -1e30f;

__device__ __forceinline__ float log_sum(float a, float b, float c) {
    float top = Max::combine(Max::combine(a, b), c);
    return logf(expf(a - top) + expf(b - top) + expf(c - top)) + top;
}

// The class of every state; whether a label of the target is none, and marked by -1.
__device__ __forceinline__ bool read_states(const int64* labels, int* classes, int most, int count, int blank) {
    float spoilt = 0.0f;
    for (int s = threadIdx.x; s < 2 * most + 1; s += blockDim.x) {
        int64 label = s & 1 ? labels[s / 2] : int64(blank);
        if (s / 2 < count && label < 0) spoilt = 1.0f;
        classes[s] = label < 0 ? 0 : int(label);
    }
    __syncthreads();
    return block_max(spoilt) > 0.0f;
}

__device__ __forceinline__ bool leaps_to(const int* classes, int s) { return s & 1 && s >= 3 && classes[s] != classes[s - 2]; }

template <typename T>
__global__ void ctc_loss_forward(const T* log_probs, const int64* targets, const int64* input_lengths,
                                 const int64* target_lengths, float* alpha, float* loss, int64 most, int64 width, int64 blank) {
    int64 batch = gridDim.x, row = blockIdx.x, frames = input_lengths[row], count = target_lengths[row];
    int states = 2 * int(most) + 1;
    DYN_SHARED(float, before);
    float* after = before + states;
    int* classes = reinterpret_cast<int*>(after + states);
    bool spoilt = read_states(targets + row * most, classes, int(most), int(count < most ? count : most), int(blank));
    for (int s = threadIdx.x; s < states; s += blockDim.x) before[s] = s ? NEVER : 0.0f;
    __syncthreads();
    for (int64 t = 0; t < frames; t++) {
        const T* frame = log_probs + (t * batch + row) * width;
        for (int s = threadIdx.x; s < states; s += blockDim.x) {
            float step = s ? before[s - 1] : NEVER, leap = leaps_to(classes, s) ? before[s - 2] : NEVER;
            float moved = log_sum(before[s], step, leap) + Max::combine(to_float(frame[classes[s]]), NEVER);
            alpha[(t * batch + row) * states + s] = after[s] = moved;
        }
        __syncthreads();
        float* other = before;
        before = after, after = other;
    }
    if (threadIdx.x == 0) {
        float last = count <= most ? before[2 * count] : NEVER;
        float label = count && count <= most ? before[2 * count - 1] : NEVER;
        float log = log_sum(last, label, NEVER);
        loss[row] = spoilt ? NAN_F : log <= NEVER / 2 ? INFINITY_F : -log;
    }
}

// dx is zero where no state of the target is. The shares of equal labels are added from the first to the last.
template <typename T>
__global__ void ctc_loss_backward(const float* slopes, const T* log_probs, const int64* targets, const int64* input_lengths,
                                  const int64* target_lengths, const float* alpha, const float* loss, T* dx, int64 most,
                                  int64 width, int64 blank, bool zero_infinity) {
    int64 batch = gridDim.x, row = blockIdx.x, frames = input_lengths[row];
    int count = int(target_lengths[row] < most ? target_lengths[row] : most), states = 2 * int(most) + 1;
    float slope = slopes[row], lost = loss[row];
    bool alignable = lost != INFINITY_F;
    DYN_SHARED(float, beta);
    float *emitted = beta + states, *share = emitted + states;
    int *classes = reinterpret_cast<int*>(share + states), *next = classes + states;  // of a state: the next of its label
    read_states(targets + row * most, classes, int(most), count, int(blank));
    for (int s = threadIdx.x; s < states; s += blockDim.x) {
        bool end = s == 2 * count || (count && s == 2 * count - 1);
        beta[s] = end && target_lengths[row] <= most ? 0.0f : NEVER;
        int other = s - 2;
        while (other > 0 && classes[other] != classes[s]) other -= 2;
        bool first = other <= 0;
        for (other = s + 2; other < 2 * count && classes[other] != classes[s];) other += 2;
        next[s] = (other < 2 * count ? other : 0) + (first ? 0 : states);
    }
    __syncthreads();
    for (int64 t = frames - 1; t >= 0; t--) {
        int64 at = t * batch + row;
        for (int s = threadIdx.x; s < states; s += blockDim.x) {
            float shared = expf(alpha[at * states + s] + beta[s] + lost);
            share[s] = alignable ? shared : zero_infinity ? 0.0f : NAN_F;
            emitted[s] = beta[s] + Max::combine(to_float(log_probs[at * width + classes[s]]), NEVER);
        }
        __syncthreads();
        float blanks = 0.0f;
        for (int s = threadIdx.x; s < states; s += blockDim.x) {
            float step = s + 1 < states ? emitted[s + 1] : NEVER;
            float leap = s + 2 < states && leaps_to(classes, s + 2) ? emitted[s + 2] : NEVER;
            beta[s] = log_sum(emitted[s], step, leap);
            if (!(s & 1)) blanks += share[s];
            if (s & 1 && s < 2 * count && next[s] < states) {
                float sum = share[s];
                for (int other = next[s]; other; other = next[other] - states) sum += share[other];
                dx[at * width + classes[s]] = from_float<T>(-sum * slope);
            }
        }
        blanks = block_sum(blanks);
        if (threadIdx.x == 0) dx[at * width + blank] = from_float<T>(-blanks * slope);
        __syncthreads();
    }
}

// entries: ctc_loss_forward<T> for T in TYPES
// entries: ctc_loss_backward<T> for T in TYPES
