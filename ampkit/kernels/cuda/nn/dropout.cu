// dropout: the mask is that of NumPy's Philox4x64-10 (Salmon et al. 2011, SC'11): 16 bits per element, one generator
// block per 16 elements, the same bits as on the CPU.
#include "include/block.cuh"
#include "include/philox.cuh"

// out = x * keep * scale, and keep itself; 16 elements per thread. vectorized: arrays are 16-byte aligned.
template <typename T>
__global__ void dropout_forward(const T* x, T* out, bool* keep, int64 count, unsigned threshold, float scale,
                                uint64 seed, uint64 call, const uint64* draw, bool vectorized) {
    int64 block = (int64)blockIdx.x * blockDim.x + threadIdx.x, at = block * 16;
    if (at >= count) return;
    unsigned bits = keep_bits_at_launch(draw, seed, call, block, threshold);
    if (vectorized && at + 16 <= count) {
        float v[16];
        Pack<unsigned char, 16> mask;
        load_floats<16>(x + at, v);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            mask.value[i] = bits >> i & 1;
            v[i] = apply_mask(v[i], bits >> i & 1, scale);
        }
        store_floats<16>(out + at, v);
        mask.store(reinterpret_cast<unsigned char*>(keep) + at);
        return;
    }
    for (int i = 0; i < 16 && at + i < count; i++) {
        keep[at + i] = bits >> i & 1;
        out[at + i] = from_float<T>(apply_mask(to_float(x[at + i]), bits >> i & 1, scale));
    }
}

// keep alone; 16 elements per thread.
__global__ void dropout_mask(bool* keep, int64 count, unsigned threshold, uint64 seed, uint64 call,
    const uint64* draw) {
    int64 block = (int64)blockIdx.x * blockDim.x + threadIdx.x, at = block * 16;
    if (at >= count) return;
    unsigned bits = keep_bits_at_launch(draw, seed, call, block, threshold);
    for (int i = 0; i < 16 && at + i < count; i++) keep[at + i] = bits >> i & 1;
}

// dx = dy * keep * scale; 8 elements per thread; `repeat` consecutive elements share one of keep. vectorized: arrays
// are 16-byte aligned and repeat = 1.
template <typename T>
__global__ void dropout_backward(const T* dy, const bool* keep, T* dx, int64 count, int64 repeat, float scale,
                                 bool vectorized) {
    int64 at = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= count) return;
    if (vectorized && at + 8 <= count) {
        float v[8];
        Pack<unsigned char, 8> mask = Pack<unsigned char, 8>::load(reinterpret_cast<const unsigned char*>(keep) + at);
        load_floats<8>(dy + at, v);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = apply_mask(v[i], mask.value[i], scale);
        return store_floats<8>(dx + at, v);
    }
    for (int i = 0; i < 8 && at + i < count; i++)
        dx[at + i] = from_float<T>(apply_mask(to_float(dy[at + i]), keep[(at + i) / repeat], scale));
}

// entries: dropout_forward<T> for T in TYPES
// entries: dropout_mask
// entries: dropout_backward<T> for T in TYPES
