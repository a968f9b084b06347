// softmax and log_softmax of the rows of [rows, cols]: S input, T output dtype, float32 arithmetic, one rounding.
// softmax.cuh has the arithmetic and the mapping of threads.
#include "include/softmax.cuh"

template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) softmax_forward(const S* x, T* out, int64 rows, int64 cols,
                                                                  int64 cached) {
    rows_softmax<false, V, K>(ArrayInput<S>{x}, ArrayOutput<T>{out}, rows, cols, cached);
}

template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) log_softmax_forward(const S* x, T* out, int64 rows, int64 cols,
                                                                      int64 cached) {
    rows_softmax<true, V, K>(ArrayInput<S>{x}, ArrayOutput<T>{out}, rows, cols, cached);
}

template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) softmax_backward(const T* dy, const T* out, S* dx, int64 rows,
                                                                   int64 cols, int64 cached) {
    rows_softmax_backward<false, V, K>(ArrayInput<T>{dy}, ArrayInput<T>{out}, ArrayOutput<S>{dx}, rows, cols, cached);
}

template <typename S, typename T, int V, int K>
__global__ void __launch_bounds__(K ? 128 : 1024) log_softmax_backward(const T* dy, const T* out, S* dx, int64 rows,
                                                                       int64 cols, int64 cached) {
    rows_softmax_backward<true, V, K>(ArrayInput<T>{dy}, ArrayInput<T>{out}, ArrayOutput<S>{dx}, rows, cols, cached);
}

// set SHAPES = ((8, 1), (8, 4), (8, 0), (1, 4), (1, 0))
// entries: softmax_forward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: log_softmax_forward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: softmax_backward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
// entries: log_softmax_backward<S, T, V, K> for (S, T) in PAIRS, (V, K) in SHAPES
