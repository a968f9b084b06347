// kernels/shared/formats.h on a CPU.
#pragma once
#include "array.h"

using Bits32 = uint32_t;
using Bits64 = uint64_t;
#define HELPER static inline
#include "../../shared/formats.h"
#undef HELPER
