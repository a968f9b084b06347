// Quantized matrices: codes and scales of blocks, and back; see ops/linalg/quantization.py.
#include "../include/quantized_tiles.h"

namespace {

// Where a tile's codes go: in place, or, of 4 bits, by way of a buffer.
struct Codes {
    Array to;
    bool packed, down;
    uint8_t* buffer;
    int64 step;

    uint8_t* row(const Tile& tile, int64 r) const {
        return packed ? buffer + r * step : address<uint8_t>(to, 0, tile.i + r, tile.j);
    }
    // Two codes of neighbours in a byte, the first in the low bits, 0 beyond the last.
    void pack(const Tile& tile) const {
        if (!packed) return;
        if (down) {
            if (tile.rows % 2) memset(buffer + tile.rows * step, 0, step);
            for (int64 r = 0; r < tile.rows; r += 2) {
                uint8_t* bytes = address<uint8_t>(to, 0, (tile.i + r) / 2, tile.j);
                const uint8_t *first = buffer + r * step, *second = first + step;
                SIMD for (int64 c = 0; c < tile.columns; c++) bytes[c] = uint8_t(first[c] | second[c] << 4);
            }
            return;
        }
        for (int64 r = 0; r < tile.rows; r++) {
            uint8_t *bytes = address<uint8_t>(to, 0, tile.i + r, tile.j / 2), *from = buffer + r * step;
            if (tile.columns % 2) from[tile.columns] = 0;
            int64 pairs = ceil_div(tile.columns, 2), c = 0;
            for (; c + WIDTH <= pairs; c += WIDTH) {
                Halves two = load<Halves>(from + 2 * c);
                save(bytes + c, __builtin_convertvector((two & 15) | (two >> 4), Bytes));
            }
            for (; c < pairs; c++) bytes[c] = uint8_t(from[2 * c] | from[2 * c + 1] << 4);
        }
    }
};

// What the values of a row of a tile are multiplied by, and, for a product that follows at once, their codes.
struct RowFactors {
    float *multipliers, *scales, *blocks;  // one for each column, and memory for the scales of blocks
    bool usual, finite;  // whether all scales are usual, and all that they belong to

    // x[c] = of[the block of column c], up to the next whole vector.
    static void spread(float* x, const float* of, const Way& way, const Tile& tile) {
        if (way.q == 1) return void(memcpy(x, of, tile.columns * sizeof(float)));
        int64 first = tile.j / way.q;
        for_each_block(way, tile, 0, [&](int64 block, int64 begin, int64 end) {
            for (int64 c = begin; c < end; c += WIDTH) save(x + c, all(of[block - first]));
        });
    }
    // multipliers, and scales if they are wanted, of the blocks in row `row`. known: whether a scale is NaN where a value
    // of the block is not finite.
    void set(const Way& way, const Tile& tile, const float* of_blocks, int64 row, bool known) {
        int64 first = tile.j / way.q, count = ceil_div(tile.j + tile.columns, way.q) - first;
        bool wanted = way.values && way.scaled;
        spread(multipliers, of_blocks + row * way.across_blocks + first, way, tile);
        read_scales(blocks, way.scales, way.scaling, row, first, count);
        int32_t are_finite = known;
        for (int64 k = 0; k < count; k++) are_finite &= blocks[k] == blocks[k];
        usual = !wanted || are_usual(blocks, count), finite = are_finite;
        if (wanted) spread(scales, blocks, way, tile);
        else for (int64 c = 0; c < tile.columns; c += WIDTH) save(scales + c, all(1.0f));
    }
};

// What is written of a row; CHECKED: bfloat16 may not hold a value; FINITE: all of x and its multipliers are.
enum Written : int { CODES = 1, VALUES = 2, CHECKED = 4, FINITE = 8 };

// The codes of 16 values x times multipliers, and what they stand for times scales.
template <class Encoder, int WRITTEN>
inline void encode_vector(uint8_t* codes, bfloat16* values, Floats x, Floats multipliers, Floats scales, Halves random, Words* wrong) {
    Floats scaled = x * multipliers;
    Rounded found = Encoder::run(scaled, random);
    if (!(WRITTEN & FINITE)) {
        // NaN where the value or the multiplier is not finite; a product of finite ones that overflows saturates.
        Floats finite = (x - x) + scaled;
        Integers special = bits_as<Integers>(finite != finite);
        found.codes = special ? all_words(Encoder::NOT_FINITE) : found.codes;
        found.values = special ? all(NOT_A_NUMBER) : found.values;
    }
    if (WRITTEN & CODES) save(codes, __builtin_convertvector(found.codes, Bytes));
    if (!(WRITTEN & VALUES)) return;
    Floats back = found.values * scales;
    if (WRITTEN & CHECKED) *wrong |= beyond_bfloat16(back);
    save(values, upper_halves(back));  // which is all of them
}

// -> whether bfloat16 does not hold a value
template <class Encoder, int WRITTEN>
bool encode_row(uint8_t* __restrict codes, bfloat16* __restrict values, const float* x, const RowFactors& by,
                const uint16_t* random, int64 count) {
    const float *multipliers = by.multipliers, *scales = by.scales;
    Words wrong = {};
    Halves bits = {};
    int64 i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        if (random) bits = load<Halves>(random + i);
        encode_vector<Encoder, WRITTEN>(codes + i, values + i, load<Floats>(x + i), load<Floats>(multipliers + i),
                                        WRITTEN & VALUES ? load<Floats>(scales + i) : Floats{}, bits, &wrong);
    }
    if (i < count) {
        uint8_t last_codes[WIDTH];
        bfloat16 last_values[WIDTH];
        if (random) bits = load<Halves>(random + i);
        encode_vector<Encoder, WRITTEN>(last_codes, last_values, load<Floats>(x + i), load<Floats>(multipliers + i),
                                        WRITTEN & VALUES ? load<Floats>(scales + i) : Floats{}, bits, &wrong);
        if (WRITTEN & CODES) memcpy(codes + i, last_codes, count - i);
        if (WRITTEN & VALUES) memcpy(static_cast<void*>(values + i), last_values, (count - i) * sizeof(bfloat16));
    }
    return any(wrong);
}

// As above, with what is known of the row.
template <class Encoder>
bool encode_row(uint8_t* codes, bfloat16* values, const float* x, const RowFactors& by, const uint16_t* random, int64 count) {
    bool usual = by.usual && by.finite;
    if (!values) return by.finite ? encode_row<Encoder, CODES | FINITE>(codes, values, x, by, random, count)
                                  : encode_row<Encoder, CODES>(codes, values, x, by, random, count);
    if (!codes) return usual ? encode_row<Encoder, VALUES | FINITE>(codes, values, x, by, random, count)
                             : encode_row<Encoder, VALUES | CHECKED>(codes, values, x, by, random, count);
    return usual ? encode_row<Encoder, CODES | VALUES | FINITE>(codes, values, x, by, random, count)
                 : encode_row<Encoder, CODES | VALUES | CHECKED>(codes, values, x, by, random, count);
}

// The memory of one task.
struct Buffers {
    Scratch<float, 1> values, copy;
    Scratch<uint8_t, 1> codes;
    Scratch<uint16_t, 1> random;
    Scratch<float, 1> factors;
    explicit Buffers(const Tiles& all)
        : values((all.height + 1) * round_up(all.width, WIDTH)), copy(all.copies ? all.height * round_up(all.width, WIDTH) : 1),
          codes((all.height + 1) * (round_up(all.width, WIDTH) + WIDTH)),
          random((all.height + 1) * round_up(all.width, WIDTH)), factors(3 * (all.width + 2 * WIDTH)) {}
    RowFactors row_factors(const Tiles& all) {
        int64 step = all.width + 2 * WIDTH;
        float* first = factors;
        return {first, first + step, first + 2 * step, true, false};
    }
    explicit operator bool() { return values && copy && codes && random && factors; }
};

// The codes and values of a tile. known: see RowFactors. -> whether bfloat16 does not hold a value
template <class F, bool RANDOM>
bool encode_tile(const Way& way, const Tile& tile, const float* multipliers, bool known, RowFactors by, const Codes& to,
                 const uint16_t* random) {
    bool beyond = false;
    for (int64 r = 0; r < tile.rows; r++) {
        if (r == 0 || (tile.i + r) % way.p == 0) by.set(way, tile, multipliers, (tile.i + r) / way.p, known);
        bfloat16* to_values = way.values ? address<bfloat16>(way.values, 0, tile.i + r, tile.j) : nullptr;
        uint8_t* to_codes = way.codes ? to.row(tile, r) : nullptr;
        beyond |= encode_row<Encode<F, RANDOM>>(to_codes, to_values, tile.row(r), by, RANDOM ? random + r * tile.step : nullptr, tile.columns);
    }
    if (way.codes) to.pack(tile);
    return beyond;
}

// scale: see quantize_matrix. -> a bit for each way with a value beyond bfloat16's normal numbers
int64 quantize_in_tiles(const Tiles& all, const Array& scale) {
    int64 tiles = all.down_tiles * all.across_tiles, grain = max(1, PARALLEL_ELEMENTS / (all.height * all.width));
    if (tiles * all.height * all.width <= PARALLEL_ELEMENTS) grain = tiles;
    bool first_pass = !all.whole && !scale;
    for (int64 k = 0; k < all.count; k++) first_pass |= all.ways[k].scaling == TWO_LEVELS && !scale;
    if (first_pass) {
        parallel_for(tiles, grain, [&](int64 begin, int64 end) {
            Buffers memory(all);
            if (!memory) return;
            for (int64 number = begin; number < end; number++) {
                Tile tile = read_tile(all, number, memory.values);
                for (int64 k = 0; k < all.count; k++)
                    raise_maxima(all.ways[k], tile_of(all, all.ways[k], tile, memory.copy), !all.whole);
            }
        });
        for (int64 k = 0; k < all.count; k++) finish_all(&all.ways[k]);
    }
    parallel_for(tiles, grain, [&](int64 begin, int64 end) {
        Buffers memory(all);
        if (!memory) return;
        for (int64 number = begin; number < end; number++) {
            Tile read = read_tile(all, number, memory.values);
            for (int64 k = 0; k < all.count; k++) {
                Way& way = all.ways[k];
                Tile tile = tile_of(all, way, read, memory.copy);
                if (!first_pass) raise_maxima(way, tile, bool(scale));
                if (!first_pass && !scale) finish_tile(way, tile);
                bool known = !scale || __atomic_load_n(way.maxima, __ATOMIC_RELAXED) < 0x7f800000, beyond = false;
                const float* multipliers = scale ? address<const float>(scale, 0, 0) : reinterpret_cast<const float*>(way.maxima);
                Codes to{way.codes, way.format == FORMAT_E2M1, way.down, memory.codes, round_up(all.width, WIDTH) + WIDTH};
                if (way.stochastic) draw_tile(memory.random, way, tile);
                with_format(way.format, [&](auto chosen) {
                    using F = decltype(chosen);
                    RowFactors by = memory.row_factors(all);
                    beyond = way.stochastic ? encode_tile<F, true>(way, tile, multipliers, known, by, to, memory.random)
                                            : encode_tile<F, false>(way, tile, multipliers, known, by, to, nullptr);
                });
                if (beyond) __atomic_store_n(&way.beyond, 1, __ATOMIC_RELAXED);
            }
        }
    });
    int64 found = 0;
    for (int64 k = 0; k < all.count; k++) found |= int64(all.ways[k].beyond) << k;
    return found;
}

}  // namespace

// codes, scales: of x [rows, columns] as the reference has them; for the rest see Way. scale, if given, is what values are
// multiplied by, and largest [1, 1] receives the largest magnitude. -> whether some value is beyond bfloat16's normal numbers
static int64 quantize_matrix(Array codes, Array scales, Array factor, Array largest, Array values, Array x, Array scale,
                             int64 format, int64 scaling, int64 p, int64 q, int64 flags, float epsilon, uint64_t seed,
                             uint64_t call) {
    Way way(x, codes, scales, factor, values, format, scaling, p, q, flags, epsilon, seed, call);
    Scratch<uint32_t> maxima(way.blocks());
    if (!maxima) return 0;
    memset(way.maxima = maxima, 0, way.blocks() * sizeof(uint32_t));
    int64 found = quantize_in_tiles(Tiles(x, &way, 1), scale);
    if (largest) memcpy(largest.data, way.maxima, sizeof(float));
    return found;
}
KERNEL(quantize_matrix)

// The same of x in two ways, in one reading, or in two where scales of whole rows or two levels take one for the maxima.
// -> 1 where a value of the first is beyond bfloat16's normal numbers, plus 2 where one of the second is
static int64 quantize_matrix_twice(Array x, Array codes, Array scales, Array factor, Array values, int64 format, int64 scaling,
                                   int64 p, int64 q, int64 flags, float epsilon, uint64_t seed, uint64_t call, Array codes_2,
                                   Array scales_2, Array factor_2, Array values_2, int64 format_2, int64 scaling_2, int64 p_2,
                                   int64 q_2, int64 flags_2, float epsilon_2, uint64_t seed_2, uint64_t call_2) {
    Way ways[2] = {{x, codes, scales, factor, values, format, scaling, p, q, flags, epsilon, seed, call},
                   {x, codes_2, scales_2, factor_2, values_2, format_2, scaling_2, p_2, q_2, flags_2, epsilon_2, seed_2, call_2}};
    int64 first = ways[0].blocks(), count = first + ways[1].blocks();
    Scratch<uint32_t> maxima(count);
    if (!maxima) return 0;
    memset(ways[0].maxima = maxima, 0, count * sizeof(uint32_t));
    ways[1].maxima = ways[0].maxima + first;
    return quantize_in_tiles(Tiles(x, ways, 2), Array{});
}
KERNEL(quantize_matrix_twice)
