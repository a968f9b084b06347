// dropout: T stored and answered; the mask is that of NumPy's Philox4x64-10 (Salmon et al. 2011, SC'11), 16 bits an
// element, one block of the generator for 16 elements: the same bits as on a CPU.
#include "block.cuh"

using uint64 = unsigned long long;

// Philox4x64-10 of the counter (block + 1, 0, 0, call), which NumPy begins with 1, under the key (seed, 0).
__device__ __forceinline__ void philox(uint64 seed, uint64 call, uint64 block, uint64 (&words)[4]) {
    constexpr uint64 TIMES_0 = 0xD2E7470EE14C6C93ull, TIMES_1 = 0xCA5A826395121157ull;  // the paper's table 2
    constexpr uint64 STEP_0 = 0x9E3779B97F4A7C15ull, STEP_1 = 0xBB67AE8584CAA73Bull;    // golden ratio, sqrt(3) - 1
    uint64 a = block + 1, b = 0, c = 0, d = call, key_0 = seed, key_1 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64 high_0 = __umul64hi(TIMES_0, a), low_0 = TIMES_0 * a;
        uint64 high_1 = __umul64hi(TIMES_1, c), low_1 = TIMES_1 * c;
        a = high_1 ^ b ^ key_0, b = low_1, c = high_0 ^ d ^ key_1, d = low_0;
        key_0 += STEP_0, key_1 += STEP_1;
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}

// Which of the 16 elements of a block are kept: bit i is 1 where word i of 16 bits is at least `least`.
__device__ __forceinline__ unsigned kept(uint64 seed, uint64 call, uint64 block, unsigned least) {
    uint64 words[4];
    philox(seed, call, block, words);
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) bits |= unsigned((words[i / 4] >> (i % 4 * 16) & 0xffff) >= least) << i;
    return bits;
}

// draw: (seed, call) in the device's memory, from where `call` counts on, or null: those given.
__device__ __forceinline__ unsigned kept_in(const uint64* draw, uint64 seed, uint64 call, uint64 block, unsigned least) {
    return draw ? kept(draw[0], draw[1] + call, block, least) : kept(seed, call, block, least);
}

// A product, so that NaN stays NaN.
__device__ __forceinline__ float masked(float x, bool keep, float scale) { return x * (keep ? 1.0f : 0.0f) * scale; }

// out = x * keep * scale, and keep itself; a thread has 16 elements. `wide`: arrays lie on boundaries of 16 bytes.
template <typename T>
__global__ void dropout_forward(
    const T* x, T* out, bool* keep, int64 count, unsigned least, float scale, uint64 seed, uint64 call, const uint64* draw,
    bool wide) {
    int64 block = (int64)blockIdx.x * blockDim.x + threadIdx.x, at = block * 16;
    if (at >= count) return;
    unsigned bits = kept_in(draw, seed, call, block, least);
    if (wide && at + 16 <= count) {
        float v[16];
        Pack<unsigned char, 16> mask;
        load_floats<16>(x + at, v);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            mask.value[i] = bits >> i & 1;
            v[i] = masked(v[i], bits >> i & 1, scale);
        }
        store_floats<16>(out + at, v);
        mask.store(reinterpret_cast<unsigned char*>(keep) + at);
        return;
    }
    for (int i = 0; i < 16 && at + i < count; i++) {
        keep[at + i] = bits >> i & 1;
        out[at + i] = from_float<T>(masked(to_float(x[at + i]), bits >> i & 1, scale));
    }
}

// The mask alone.
__global__ void dropout_mask(bool* keep, int64 count, unsigned least, uint64 seed, uint64 call, const uint64* draw) {
    int64 block = (int64)blockIdx.x * blockDim.x + threadIdx.x, at = block * 16;
    if (at >= count) return;
    unsigned bits = kept_in(draw, seed, call, block, least);
    for (int i = 0; i < 16 && at + i < count; i++) keep[at + i] = bits >> i & 1;
}

// dx = dy * keep * scale, where `each` elements in a row share one of the mask; a thread has 8. `wide`: as above, and
// each = 1.
template <typename T>
__global__ void dropout_backward(
    const T* dy, const bool* keep, T* dx, int64 count, int64 each, float scale, bool wide) {
    int64 at = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= count) return;
    if (wide && at + 8 <= count) {
        float v[8];
        Pack<unsigned char, 8> mask = Pack<unsigned char, 8>::load(reinterpret_cast<const unsigned char*>(keep) + at);
        load_floats<8>(dy + at, v);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = masked(v[i], mask.value[i], scale);
        return store_floats<8>(dx + at, v);
    }
    for (int i = 0; i < 8 && at + i < count; i++)
        dx[at + i] = from_float<T>(masked(to_float(dy[at + i]), keep[(at + i) / each], scale));
}

// entries: dropout_forward<T> for T in TYPES
// entries: dropout_mask
// entries: dropout_backward<T> for T in TYPES
