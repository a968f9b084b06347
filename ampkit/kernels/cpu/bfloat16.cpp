// Runs of float32 rounded to bfloat16 by the CPU's instruction for two vectors, which makes subnormals 0: runs of 32 elements
// with one are rounded by integer arithmetic.
#include "include/array.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

void convert_run(bfloat16* __restrict to, const float* __restrict from, int64 count) {
    constexpr int SUBNORMAL = 0x20;
    int64 i = 0;
    for (; i + 32 <= count; i += 32) {
        __m512 first = _mm512_loadu_ps(from + i), second = _mm512_loadu_ps(from + i + 16);
        if (_mm512_fpclass_ps_mask(first, SUBNORMAL) | _mm512_fpclass_ps_mask(second, SUBNORMAL)) {
            convert_run<bfloat16, float>(to + i, from + i, 32);
        } else {
            _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
        }
    }
    convert_run<bfloat16, float>(to + i, from + i, count - i);
}
#endif
