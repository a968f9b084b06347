// The terms of reductions for generated kernels, apart from the functions of functions.h, some of which have their names.
#pragma once
#include "include/block.cuh"

#define REGISTER_TERM(NAME)
namespace terms {
#include "shared/reductions.h"
}
