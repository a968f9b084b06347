// The elementwise kernels of the functions in kernels/shared/functions.h. elementwise.cuh loads, broadcasts, rounds
// and stores.
#include "include/functions.cuh"

// out = Op(x, y, z, w). An operand is a device pointer, or null and the scalar. Grid: ceil(count / (BLOCK *
// PER_THREAD)).
template <typename Op>
__global__ void __launch_bounds__(BLOCK, 4) elementwise_forward(
    void* __restrict__ out, const __grid_constant__ Layout layout, const void* __restrict__ x,
    const void* __restrict__ y, const void* __restrict__ z, const void* __restrict__ w, float scalar_x, float scalar_y,
    float scalar_z, float scalar_w) {
    apply<Forward<Op>>(layout, {{x, y, z, w}, {scalar_x, scalar_y, scalar_z, scalar_w}, {out, nullptr, nullptr}});
}

// dx, dx_1, dx_2: gradients of the first, second and third input, each null if not wanted. Same grid.
template <typename Op>
__global__ void __launch_bounds__(BLOCK, 4) elementwise_backward(
    const void* __restrict__ dy, const __grid_constant__ Layout layout, const void* __restrict__ x,
    const void* __restrict__ y, const void* __restrict__ z, float scalar_x, float scalar_y, float scalar_z,
    void* __restrict__ dx, void* __restrict__ dx_1, void* __restrict__ dx_2) {
    apply<Backward<Op>>(layout, {{dy, x, y, z}, {0.0f, scalar_x, scalar_y, scalar_z}, {dx, dx_1, dx_2}});
}

// entries: elementwise_forward<Op> for Op in FUNCTIONS + FUNCTIONS_NO_GRAD
// entries: elementwise_backward<Op> for Op in FUNCTIONS
