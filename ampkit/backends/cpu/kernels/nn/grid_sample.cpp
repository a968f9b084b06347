// Samples of images: sums of the pixels that each sample reads, times their weights (ops/nn/grid_sample.py), and gradients.
//
// images [N * C, pixels] and samples [N * C, S] in float32. index, weight [taps, N * S]: the pixels of each sample, counted
// over all images, -1 for one outside, which counts as 0.
#include "../include/parallel.h"
#include "../include/simd_math.h"

namespace {

constexpr int64 BLOCK = 512;  // samples that are added up at a time

// The samples of one image by one tap.
struct Tap {
    const int32_t* index;
    const float* weight;
    int32_t first;  // pixel of the image

    Tap(const Array& indices, const Array& weights, int64 tap, int64 image, int64 samples, int64 pixels)
        : index(address<int32_t>(indices, 0, tap, image * samples)), weight(nullptr), first(int32_t(image * pixels)) {
        if (weights) weight = address<float>(weights, 0, tap, image * samples);
    }
};

}  // namespace

static void grid_sample_forward(Array out, Array images, Array index, Array weight, int64 channels) {
    int64 samples = out.size[2], pixels = images.size[2], taps = index.size[1];
    parallel_rows(out.size[1], samples * taps, [=](int64 begin, int64 end) {
        Scratch<float> buffer(out.is_float32_row() ? 0 : samples);
        if (!buffer) return;
        for (int64 plane = begin; plane < end; plane++) {
            float* sum = row_to_write(out, 0, plane, buffer);
            const float* x = address<float>(images, 0, plane);
            for (int64 from = 0; from < samples; from += BLOCK)
                for (int64 t = 0; t < taps; t++) {
                    Tap tap(index, weight, t, plane / channels, samples, pixels);
                    SIMD for (int64 s = from; s < min(from + BLOCK, samples); s++) {
                        int32_t at = tap.index[s];
                        float value = tap.weight[s] * (at < 0 ? 0.0f : x[at < 0 ? 0 : at - tap.first]);
                        sum[s] = t ? sum[s] + value : value;
                    }
                }
            write_row(out, 0, plane, sum);
        }
    });
}
KERNEL(grid_sample_forward)

// dimages [N * C, pixels] of any dtype, added up in float32, sample by sample of each tap.
static void grid_sample_input_gradient(Array dimages, Array dout, Array index, Array weight, int64 channels) {
    int64 samples = dout.size[2], pixels = dimages.size[2], taps = index.size[1];
    parallel_rows(dout.size[1], samples * taps, [=](int64 begin, int64 end) {
        Scratch<float> buffer(dimages.is_float32_row() ? 0 : pixels);
        if (!buffer) return;
        for (int64 plane = begin; plane < end; plane++) {
            float* sum = row_to_write(dimages, 0, plane, buffer);
            const float* dy = address<float>(dout, 0, plane);
            memset(sum, 0, pixels * sizeof(float));
            for (int64 t = 0; t < taps; t++) {
                Tap tap(index, weight, t, plane / channels, samples, pixels);
                for (int64 s = 0; s < samples; s++)
                    if (tap.index[s] >= 0) sum[tap.index[s] - tap.first] += tap.weight[s] * dy[s];
            }
            write_row(dimages, 0, plane, sum);
        }
    });
}
KERNEL(grid_sample_input_gradient)

// dweight [taps, N * S]: of each pixel's weight, the sum over the channels of the pixel times the gradient of the sample.
static void grid_sample_weight_gradient(Array dweight, Array dout, Array images, Array index, int64 channels) {
    int64 samples = dout.size[2], pixels = images.size[2], taps = index.size[1], blocks = ceil_div(samples, BLOCK);
    parallel_rows(dout.size[1] / channels * blocks, BLOCK * channels * taps, [=](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 image = item / blocks, from = item % blocks * BLOCK, to = min(from + BLOCK, samples);
            for (int64 t = 0; t < taps; t++) {
                Tap tap(index, Array(), t, image, samples, pixels);
                float* sum = address<float>(dweight, 0, t, image * samples);
                for (int64 c = 0; c < channels; c++) {
                    const float *x = address<float>(images, 0, image * channels + c);
                    const float *dy = address<float>(dout, 0, image * channels + c);
                    SIMD for (int64 s = from; s < to; s++) {
                        int32_t at = tap.index[s];
                        float value = dy[s] * (at < 0 ? 0.0f : x[at < 0 ? 0 : at - tap.first]);
                        sum[s] = c ? sum[s] + value : value;
                    }
                }
            }
        }
    });
}
KERNEL(grid_sample_weight_gradient)
