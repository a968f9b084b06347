// Optimizer updates whose moments are stored in bfloat16 or in 8 bits by blocks, in one pass over flat memory.
//
// A warp has a block of 256 elements, a lane eight neighbours of it, which share the random words of half a Philox block.
// The rules are those of shared/optimizers.h, the codes those of shared/block_codes.h. V values per access; V > 1 requires
// flat arrays aligned to V values.
#include "include/master_weights.cuh"

#define HELPER static __device__ __forceinline__
#define REGISTER_RULE(NAME)
#include "shared/block_codes.h"
#include "shared/optimizers.h"

constexpr int EACH = CODE_BLOCK / 32;  // elements of a lane

// The 16-bit words of the EACH elements from i on, a multiple of EACH.
HELPER void random_words(const RandomBits& bits, int64 i, int (&to)[EACH]) {
    uint64 key = bits.seed, number = bits.call, words[4];
    int64 at = bits.start + i;
    replay_draw(bits.draws, key, number);
    philox(key, number, at / 16, words);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        uint64 four = at % 16 < 8 ? words[j / 4] : words[2 + j / 4];
        to[j] = int(four >> (j % 4 * 16)) & 0xffff;
    }
}

// The EACH elements from i on of which there are `count`, four at a time or, where V is 1 and at the end, one by one.
template <int V, typename T>
__device__ __forceinline__ void load_lane(const T* from, int64 i, int64 count, T (&to)[EACH]) {
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        if (V == 4 && i + j + 4 <= count) {
            Pack<T, 4> pack = Pack<T, 4>::load(from + i + j);
            for (int k = 0; k < 4; k++) to[j + k] = pack.value[k];
        } else {
            for (int k = j; k < j + 4; k++) to[k] = i + k < count ? from[i + k] : T{};
        }
    }
}

template <int V, typename T>
__device__ __forceinline__ void store_lane(T* to, int64 i, int64 count, const T (&from)[EACH]) {
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        if (V == 4 && i + j + 4 <= count) {
            Pack<T, 4> pack;
            for (int k = 0; k < 4; k++) pack.value[k] = from[j + k];
            pack.store(to + i + j);
        } else {
            for (int k = j; k < j + 4; k++)
                if (i + k < count) to[i + k] = from[k];
        }
    }
}

template <int V, typename T>
__device__ __forceinline__ void read_lane(const T* from, int64 i, int64 count, float (&to)[EACH]) {
    T stored[EACH];
    load_lane<V>(from, i, count, stored);
#pragma unroll
    for (int j = 0; j < EACH; j++) to[j] = to_float(stored[j]);
}

template <int V, typename M>
__device__ __forceinline__ void store_weights(const MasterWeights<M>& weights, int64 i, int64 count, float (&p)[EACH]) {
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        if (V == 4 && i + j + 4 <= count) {
            weights.template store<4>(i + j, reinterpret_cast<float(&)[4]>(p[j]));
        } else {
            for (int k = j; k < j + 4; k++)
                if (i + k < count) weights.template store<1>(i + k, reinterpret_cast<float(&)[1]>(p[k]));
        }
    }
}

// A flat moment; data is null for none. scales, code: of one in 8 bits.
template <typename S>
struct Moment {
    S* data;
    float* scales;
    const BlockCode* code;

    template <int V>
    __device__ __forceinline__ void read(int64 i, int64 count, float (&to)[EACH]) const {
        read_lane<V>(data, i, count, to);
    }

    template <int V>
    __device__ __forceinline__ void write(int64 i, int64 count, float (&from)[EACH], const RandomBits& bits) const {
        int words[EACH];
        S rounded[EACH];
        random_words(bits, i, words);
#pragma unroll
        for (int j = 0; j < EACH; j++) rounded[j] = from_float<S>(round_stochastically<S>(from[j], unsigned(words[j])));
        store_lane<V>(data, i, count, rounded);
    }
};

template <>
struct Moment<unsigned char> {
    unsigned char* data;
    float* scales;
    const BlockCode* code;

    template <int V>
    __device__ __forceinline__ void read(int64 i, int64 count, float (&to)[EACH]) const {
        unsigned char codes[EACH];
        load_lane<V>(data, i, count, codes);
        float scale = scales[i / CODE_BLOCK];
#pragma unroll
        for (int j = 0; j < EACH; j++) to[j] = code->values[codes[j]] * scale;
    }

    template <int V>
    __device__ __forceinline__ void write(int64 i, int64 count, float (&from)[EACH], const RandomBits& bits) const {
        int words[EACH];
        random_words(bits, i, words);
        encode<V>(i, count, from, words);
    }

    // All lanes of the warp take part.
    template <int V>
    __device__ __forceinline__ void encode(int64 i, int64 count, float (&from)[EACH], const int (&words)[EACH]) const {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (i + j < count) largest = Max::combine(largest, fabsf(from[j]));
        float scale = block_scale(*code, warp_max(largest));
        if (threadIdx.x % 32 == 0) scales[i / CODE_BLOCK] = scale;
        unsigned char codes[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) codes[j] = (unsigned char)block_code(*code, from[j], scale, words[j]);
        store_lane<V>(data, i, count, codes);
    }
};

// body(i): for the first of a lane's elements in each block of the warp, in all lanes alike.
template <typename Body>
__device__ __forceinline__ void for_each_block(int64 count, const Body& body) {
    int64 warps = (int64)gridDim.x * (blockDim.x / 32), lane = threadIdx.x % 32;
    for (int64 block = ((int64)blockIdx.x * blockDim.x + threadIdx.x) / 32; block * CODE_BLOCK < count; block += warps)
        body(block * CODE_BLOCK + lane * EACH);
}

// One step of Rule. Moments after the first, copies, all_finite, draws: null for none; scales and codes: of moments in 8
// bits. The n-th moment is rounded by the draw n + 1 after `call`. numbers: the per-step scalars.
template <typename Rule, typename M, typename S, int V>
__global__ void update_rounded(M* master, const float* gradient, S* moment_0, S* moment_1, S* moment_2,
                               __half* float16_copy, __nv_bfloat16* bfloat16_copy, uint64 seed, uint64 call,
                               const uint64* draws, int64 start, float* scales_0, float* scales_1, float* scales_2,
                               const BlockCode* code_0, const BlockCode* code_1, const BlockCode* code_2,
                               const float* numbers, const bool* all_finite, float penalty, bool maximize,
                               int64 count) {
    MasterWeights<M> weights{master, float16_copy, bfloat16_copy, {seed, call, draws, start}};
    if (all_finite && !*all_finite) return weights.template rewrite_copies<V>(count);
    const Moment<S> moments[3] = {{moment_0, scales_0, code_0}, {moment_1, scales_1, code_1},
                                  {moment_2, scales_2, code_2}};
    for_each_block(count, [&](int64 i) {
        float p[EACH] = {}, g[EACH] = {}, m[3][EACH] = {};
        bool has[3];
        read_lane<V>(master, i, count, p);
        read_lane<V>(gradient, i, count, g);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            has[k] = k < Rule::MOMENTS && moments[k].data;
            if (has[k]) moments[k].template read<V>(i, count, m[k]);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            float direction = maximize ? -g[j] : g[j];
            direction = penalty != 0.0f ? p[j] * penalty + direction : direction;
            Rule::apply(p[j], direction, m[0][j], m[1][j], m[2][j], numbers, has);
        }
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (has[k]) moments[k].template write<V>(i, count, m[k], {seed, call + k + 1, draws, start});
        store_weights<V>(weights, i, count, p);
    });
}

// A flat moment in 8 bits = values, rounded stochastically, or to nearest.
__global__ void encode_blocks(const float* values, unsigned char* codes, float* scales, const BlockCode* code,
                              uint64 seed, uint64 call, const uint64* draws, int64 start, bool to_nearest,
                              int64 count) {
    const Moment<unsigned char> moment{codes, scales, code};
    for_each_block(count, [&](int64 i) {
        float x[EACH] = {};
        int words[EACH];
        read_lane<1>(values, i, count, x);
        random_words({seed, call, draws, start}, i, words);
        for (int j = 0; to_nearest && j < EACH; j++) words[j] = NEAREST_WORD;
        moment.encode<1>(i, count, x, words);
    });
}

// values = those of a flat moment in 8 bits.
__global__ void decode_blocks(const unsigned char* codes, const float* scales, const BlockCode* code, float* values,
                              int64 count) {
    int64 stride = (int64)gridDim.x * blockDim.x;
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        values[i] = code->values[codes[i]] * scales[i / CODE_BLOCK];
}

// set STORAGE = ((float, 4), (float, 1), (__half, 4), (__nv_bfloat16, 4))
// entries: update_rounded<R, M, S, V> for R in RULES, (M, V) in STORAGE, S in (__nv_bfloat16, unsigned char)
// entries: encode_blocks
// entries: decode_blocks
