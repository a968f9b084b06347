// CUDA's built-in functions for `cuda_on_cpu.h`: barriers, warp primitives, atomics, arithmetic.
#pragma once

inline void __syncthreads() { cuda_on_cpu::at_block(0); }
inline int __syncthreads_or(int p) { return cuda_on_cpu::at_block(p), cuda_on_cpu::machine->all_or; }
inline int __syncthreads_and(int p) { return cuda_on_cpu::at_block(p), cuda_on_cpu::machine->all_and; }
inline int __syncthreads_count(int p) { return cuda_on_cpu::at_block(p), cuda_on_cpu::machine->all_count; }
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() { cuda_on_cpu::fail("__trap"); }

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    cuda_on_cpu::meet(cuda_on_cpu::meeting(mask, "__syncwarp"), "__syncwarp");
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    cuda_on_cpu::Gathered<T> all(mask, value, "__shfl_sync");
    unsigned l = cuda_on_cpu::lane();
    return all.of(l / width * width + unsigned(from) % width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
    cuda_on_cpu::Gathered<T> all(mask, value, "__shfl_xor_sync");
    unsigned l = cuda_on_cpu::lane(), from = l ^ with;
    return from / width > l / width ? value : all.of(from);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    cuda_on_cpu::Gathered<T> all(mask, value, "__shfl_down_sync");
    unsigned l = cuda_on_cpu::lane();
    return l % width + by < unsigned(width) ? all.of(l + by) : value;
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    cuda_on_cpu::Gathered<T> all(mask, value, "__shfl_up_sync");
    unsigned l = cuda_on_cpu::lane();
    return l % width >= by ? all.of(l - by) : value;
}
inline unsigned __ballot_sync(unsigned mask, int p) {
    return cuda_on_cpu::fold(mask, unsigned(!!p) << cuda_on_cpu::lane(), "__ballot_sync", [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int p) {
    return cuda_on_cpu::fold(mask, int(!!p), "__any_sync", [](int a, int b) { return a | b; });
}
inline int __all_sync(unsigned mask, int p) {
    return cuda_on_cpu::fold(mask, int(!!p), "__all_sync", [](int a, int b) { return a & b; });
}
#define CUDA_ON_CPU_REDUCE(name, T, expression) \
    inline T name(unsigned mask, T value) { return cuda_on_cpu::fold(mask, value, #name, [](T a, T b) -> T { return expression; }); }
CUDA_ON_CPU_REDUCE(__reduce_add_sync, unsigned, a + b)
CUDA_ON_CPU_REDUCE(__reduce_add_sync, int, a + b)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, int, a > b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, int, a < b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_or_sync, unsigned, a | b)
CUDA_ON_CPU_REDUCE(__reduce_and_sync, unsigned, a & b)
CUDA_ON_CPU_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef CUDA_ON_CPU_REDUCE

// Atomics on integers alone: the order of floating-point ones is not fixed on a GPU, and what is summed so is not the
// same twice. The second parameter is not deduced, so that a literal converts.
#define CUDA_ON_CPU_ATOMIC(name, expression) \
    template <typename T> T name(T* p, std::common_type_t<T> v) { \
        static_assert(std::is_integral<T>::value && sizeof(T) >= 4, "atomics are for int, unsigned and 64-bit integers"); \
        T old = *p; \
        *p = T(expression); \
        return old; \
    }
CUDA_ON_CPU_ATOMIC(atomicAdd, old + v)
CUDA_ON_CPU_ATOMIC(atomicSub, old - v)
CUDA_ON_CPU_ATOMIC(atomicExch, v)
CUDA_ON_CPU_ATOMIC(atomicMax, old > v ? old : v)
CUDA_ON_CPU_ATOMIC(atomicMin, old < v ? old : v)
CUDA_ON_CPU_ATOMIC(atomicOr, old | v)
CUDA_ON_CPU_ATOMIC(atomicAnd, old & v)
CUDA_ON_CPU_ATOMIC(atomicXor, old ^ v)
CUDA_ON_CPU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
#undef CUDA_ON_CPU_ATOMIC
template <typename T>
T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> v) {
    T old = *p;
    if (old == expected) *p = v;
    return old;
}

// CUDA's max and min of floating-point numbers drop a NaN.
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point<T>::value) return fmax(T(a), T(b));
    else return T(a) < T(b) ? T(b) : T(a);
}
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point<T>::value) return fmin(T(a), T(b));
    else return T(b) < T(a) ? T(b) : T(a);
}

template <typename To, typename From>
To cuda_on_cpu_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "");
    To result;
    memcpy(&result, &value, sizeof(To));
    return result;
}
inline float __int_as_float(int v) { return cuda_on_cpu_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return cuda_on_cpu_bits<float>(v); }
inline int __float_as_int(float v) { return cuda_on_cpu_bits<int>(v); }
inline unsigned __float_as_uint(float v) { return cuda_on_cpu_bits<unsigned>(v); }
inline double __longlong_as_double(long long v) { return cuda_on_cpu_bits<double>(v); }
inline long long __double_as_longlong(double v) { return cuda_on_cpu_bits<long long>(v); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline float erfinvf(float x) {  // by Newton's method on libm's complement, from S. Winitzki's approximation
    double size = fabs(x), rest = 1.0 - size, log_rest = log(rest * (1.0 + size)), a = 0.147;
    if (!(size < 1.0)) return size == 1.0 ? x * INFINITY : NAN;
    double t = 2.0 / (3.14159265358979324 * a) + 0.5 * log_rest, y = sqrt(sqrt(t * t - log_rest / a) - t);
    for (int i = 0; i < 4; i++) y += (erfc(y) - rest) * 0.88622692545275801 * exp(y * y);
    return float(copysign(y, x));
}
inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
// Rounded by itself: these are never contracted with what is done with them.
inline float cuda_on_cpu_rounded(float x) {
#if defined(__FMA__)
    __asm__("" : "+x"(x));
#endif
    return x;
}
inline float __fadd_rn(float a, float b) { return cuda_on_cpu_rounded(cuda_on_cpu_rounded(a) + cuda_on_cpu_rounded(b)); }
inline float __fsub_rn(float a, float b) { return cuda_on_cpu_rounded(cuda_on_cpu_rounded(a) - cuda_on_cpu_rounded(b)); }
inline float __fmul_rn(float a, float b) { return cuda_on_cpu_rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

// What include/quantized.cuh has instructions for: float32 that keeps subnormal numbers. Through float64, whose rounding
// of one sum, product or quotient of float32 does not show, and by integers below the normal numbers.
inline double cuda_on_cpu_widened(float x) {
    unsigned bits = __float_as_uint(x), size = bits & 0x7fffffff;
    return size < 0x800000 ? copysign(double(int(size)) * 0x1p-149, bits >> 31 ? -1.0 : 1.0) : double(x);
}
inline float cuda_on_cpu_narrowed(double x) {
    if (!(fabs(x) < 0x1p-126)) return float(x);
    return __uint_as_float(unsigned(rint(fabs(x) * 0x1p149)) | unsigned(signbit(x)) << 31);
}
inline float add_kept(float a, float b) { return cuda_on_cpu_narrowed(cuda_on_cpu_widened(a) + cuda_on_cpu_widened(b)); }
inline float multiply_kept(float a, float b) { return cuda_on_cpu_narrowed(cuda_on_cpu_widened(a) * cuda_on_cpu_widened(b)); }
inline float divide_kept(float a, float b) { return cuda_on_cpu_narrowed(cuda_on_cpu_widened(a) / cuda_on_cpu_widened(b)); }

inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline int __float2int_rn(float x) { return int(rintf(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }

template <typename T>
T __ldg(const T* p) { return *p; }
template <typename T>
T __ldcs(const T* p) { return *p; }
template <typename T>
T __ldcg(const T* p) { return *p; }
template <typename T>
void __stcs(T* p, T v) { *p = v; }
template <typename T>
void __stcg(T* p, T v) { *p = v; }
