// The functions of kernels/shared/functions.h as device functions of float32.
#pragma once
#include "include/elementwise.cuh"

#define HELPER static __device__ __forceinline__
#define REGISTER(NAME)
#define REGISTER_SHORT(NAME, TENSORS)
#define REGISTER_LOOPING(NAME)
#define NOT_A_NUMBER as<float>(0x7fc00000u)
HELPER float normal_cdf(float x) { return 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }
#include "shared/functions.h"
