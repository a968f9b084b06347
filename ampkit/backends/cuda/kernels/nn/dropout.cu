// dropout: T stored and answered; the mask is that of NumPy's Philox4x64-10 (Salmon et al. 2011, SC'11), 16 bits an
// element, one block of the generator for 16 elements: the same bits as on a CPU.
#include "include/block.cuh"
#include "include/philox.cuh"

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
