// Images of few channels, 16 bits, for convolutions: with 8 channels cuDNN plans the engines that it has for wide layers.
#include "include/storage.cuh"

constexpr int CHANNELS = 8;

// out [samples, spatial, CHANNELS]: images [samples, channels, spatial] of any strides, channels last, the missing
// channels zero. A thread per pixel.
__global__ void pad_channels(const void* images, void* out, int channels, unsigned spatial, int64 sample_step,
                             int64 channel_step, int64 spatial_step, unsigned pixels) {
    using Value = unsigned short;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    const Value* from = reinterpret_cast<const Value*>(images) + i / spatial * sample_step + i % spatial * spatial_step;
    Pack<Value, CHANNELS> pixel;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) pixel.value[c] = c < channels ? from[c * channel_step] : 0;
    pixel.store(reinterpret_cast<Value*>(out) + (int64)i * CHANNELS);
}

// entries: pad_channels
