// The words of CUDA C++ that NVIDIA's headers use, for a host compiler: most mean nothing to it.
#pragma once
#define __HOST_DEFINES_H__  // a whole toolkit has a file of this name beside its headers, which it finds first
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __managed__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __CUDA_ALIGN__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __specialization_static static
#define CUDARTAPI
