// Quantized matrices: codes and scales of blocks, and back; see ops/linalg/quantization.py.
//
// Matrices are seen here in the order of memory: a block is `p` rows high and `q` columns wide, and the axis that a product
// sums over, along which 16 neighbours are transformed, codes are packed and random bits are drawn, is that of the columns,
// or `down` that of the rows.
#include "../include/parallel.h"
#include "../include/philox.h"
#include "../include/quantized.h"

namespace {

enum Flags : int64 { DOWN = 1, HADAMARD = 2, STOCHASTIC = 4, SCALED = 8 };  // SCALED: `values` are
constexpr float NOT_A_NUMBER = __builtin_nanf(""), MOST = __FLT_MAX__;
constexpr int64 TILE = 8192;  // values: 32 KB in float32

// How the scales of 16 blocks follow from the bits of their largest magnitudes: _scales of the reference, with its roundings.
struct Scales {
    int64 scaling, format;
    float top, epsilon, encode, decoding;

    Scales(int64 scaling, int64 format, float epsilon) : scaling(scaling), format(format), epsilon(epsilon) {
        with_format(format, [&](auto chosen) { top = largest_value<decltype(chosen)>(); });
        encode = decoding = 1.0f;
    }

    // Of two levels: from the largest magnitude of the matrix.
    void set_factor(float largest) {
        float wanted = largest_value<E4M3>() * top / largest;
        encode = wanted < MOST ? wanted : MOST;
        encode = encode == 0.0f ? 1.0f : encode;
        decoding = 1.0f / encode;
    }

    // The multipliers of `count` blocks in the place of the bits; their scales from place `at` of `scales` on.
    void finish(uint32_t* bits, int64 count, void* scales, int64 at) const {
        for (int64 i = 0; i < count; i += WIDTH) {
            int64 n = min(WIDTH, count - i);
            Words given = {}, scale;
            memcpy(&given, bits + i, n * sizeof(uint32_t));
            Floats multiplier = multipliers(given, &scale);
            memcpy(bits + i, &multiplier, n * sizeof(float));
            if (scaling == E8M0 || scaling == TWO_LEVELS) {
                Bytes codes = __builtin_convertvector(scale, Bytes);
                memcpy(static_cast<uint8_t*>(scales) + at + i, &codes, n);
            } else {
                memcpy(static_cast<float*>(scales) + at + i, &scale, n * sizeof(float));
            }
        }
    }

  private:
    Floats multipliers(Words bits, Words* scale) const {
        Integers finite = bits_as<Integers>(bits < 0x7f800000);
        Floats largest = finite ? bits_as<Floats>(bits) : all(1.0f), multiplier;
        if (scaling == E8M0) {
            Words value = bits_as<Words>(largest * (1.0f / top)), exponent = value >> 23, mantissa = value & 0x7fffff;
            Words up = bits_as<Words>(mantissa > 0) & bits_as<Words>(exponent != 254);
            exponent -= up & ~(bits_as<Words>(exponent == 0) & bits_as<Words>(mantissa <= 0x400000));
            *scale = finite ? exponent : all_words(255);
            multiplier = float_of(decode<Float8E8M0FNU>(254 - exponent));
            return finite ? multiplier : all(NOT_A_NUMBER);
        }
        if (scaling == TWO_LEVELS) {
            Floats wanted = largest * (encode * (1.0f / top)), most = all(largest_value<E4M3>()), limit = all(MOST);
            Words code = Encode<E4M3, false>::run(wanted < most ? wanted : most, Halves{}).codes;
            *scale = finite ? code : all_words(0x7f);
            multiplier = 1.0f / (Decode<E4M3>::run(code) * decoding);
            multiplier = multiplier < limit ? multiplier : limit;
            return finite ? multiplier : all(NOT_A_NUMBER);
        }
        if (epsilon != 0.0f) largest = largest > epsilon ? largest : all(epsilon);
        Floats factor;
        if (format == FORMAT_INT8) {
            factor = largest / top, multiplier = 1.0f / factor;
        } else {
            Floats limit = all(MOST);
            multiplier = top / largest;
            multiplier = multiplier < limit ? multiplier : limit;
            if (scaling == POWER_OF_2) multiplier = bits_as<Floats>(bits_as<Words>(multiplier) & 0x7f800000);
            multiplier = largest == 0.0f ? all(1.0f) : multiplier;
            factor = 1.0f / multiplier;
        }
        *scale = bits_as<Words>(finite ? factor : all(NOT_A_NUMBER));
        return multiplier;
    }
};

// A matrix in tiles of whole blocks, where blocks are small enough.
struct Tiles {
    Array x;
    int64 rows, columns;  // of the codes before they are packed: x with the padding of the transform
    int64 p, q, down_blocks, across_blocks;
    int64 height, width, down_tiles, across_tiles;
    bool down, transformed, whole;  // whole: no block is in two tiles

    Tiles(const Array& x, int64 p, int64 q, int64 flags) : x(x), p(p), q(q) {
        down = flags & DOWN, transformed = flags & HADAMARD;
        rows = transformed && down ? round_up(x.size[1], WIDTH) : x.size[1];
        columns = transformed && !down ? round_up(x.size[2], WIDTH) : x.size[2];
        down_blocks = ceil_div(rows, p), across_blocks = ceil_div(columns, q);
        // Tiles begin at multiples of 16 along the axis whose neighbours are transformed and packed.
        int64 high = down ? least_common(p, WIDTH) : p, wide = least_common(q, WIDTH);
        int64 most = high > 64 ? 128 : high > 16 ? 256 : 512;
        bool across = true, along = true;
        if (columns <= (q >= columns ? TILE / 2 : most)) width = columns;
        else if (wide <= TILE / 2) width = max(1, most / wide) * wide;
        else width = most, across = false;
        if (high <= 128) height = max(1, TILE / width / high) * high;
        else if (rows * width <= TILE) height = rows;
        else height = round_up(max(1, TILE / width), down ? WIDTH : 1), along = false;
        whole = across && along, height = min(height, rows);
        down_tiles = ceil_div(rows, height), across_tiles = ceil_div(columns, width);
    }

    static int64 least_common(int64 a, int64 b) {
        int64 found = a;
        while (found % b) found += a;
        return found;
    }
};

// One tile, in float32.
struct Tile {
    int64 i, j, rows, columns, step;
    float* values;
    float* row(int64 r) const { return values + r * step; }
};

void transform(const Tile& tile, bool down) {
    if (!down) {
        for (int64 r = 0; r < tile.rows; r++)
            for (int64 c = 0; c < tile.columns; c += WIDTH) save(tile.row(r) + c, hadamard(load<Floats>(tile.row(r) + c)));
        return;
    }
    for (int64 r = 0; r < tile.rows; r += WIDTH) {
        for (int64 c = 0; c < tile.columns; c += WIDTH) {  // the buffer has whole vectors
            Floats x[WIDTH];
            for (int64 k = 0; k < WIDTH; k++) x[k] = load<Floats>(tile.row(r + k) + c) * HADAMARD_SIGNS[k];
            for (int64 distance = 1; distance < WIDTH; distance *= 2)
                for (int64 k = 0; k < WIDTH; k++)
                    if (!(k & distance)) {
                        Floats first = x[k], second = x[k + distance];
                        x[k] = first + second, x[k + distance] = first - second;
                    }
            for (int64 k = 0; k < WIDTH; k++) save(tile.row(r + k) + c, x[k] * 0.25f);
        }
    }
}

Tile read_tile(const Tiles& all, int64 number, float* buffer) {
    int64 i = number / all.across_tiles * all.height, j = number % all.across_tiles * all.width;
    int64 step = round_up(all.width, WIDTH);
    Tile tile{i, j, min(all.height, all.rows - i), min(all.width, all.columns - j), step, buffer};
    for (int64 r = 0; r < tile.rows; r++) {
        int64 there = i + r < all.x.size[1] ? min(tile.columns, all.x.size[2] - j) : 0;
        if (there > 0) read_floats(tile.row(r), all.x.data, all.x.kind, all.x.offset(0, i + r, j), all.x.stride[2], there);
        for (int64 c = max(there, 0); c < step; c++) tile.row(r)[c] = 0.0f;
    }
    if (all.transformed) transform(tile, all.down);
    return tile;
}

// Largest magnitudes are compared as bits: NaN is above infinity.
uint32_t largest_of(const float* x, int64 count) {
    Words most = {};
    int64 i = 0;
    for (; i + WIDTH <= count; i += WIDTH) most = larger(most, load<Words>(x + i) & 0x7fffffff);
    most = larger(most, partner<8>(most)), most = larger(most, partner<4>(most));
    most = larger(most, partner<2>(most)), most = larger(most, partner<1>(most));
    uint32_t found = most[0];
    for (; i < count; i++) {
        uint32_t bits = bits_of(x[i]) & 0x7fffffff;
        found = found > bits ? found : bits;
    }
    return found;
}

// The largest magnitudes of 16 runs of `vectors` * 16 neighbours each.
Words largest_of_16(const float* x, int64 vectors) {
    Words most[WIDTH];
    for (int64 k = 0; k < WIDTH; k++) {
        most[k] = load<Words>(x + k * vectors * WIDTH) & 0x7fffffff;
        for (int64 v = 1; v < vectors; v++) most[k] = larger(most[k], load<Words>(x + (k * vectors + v) * WIDTH) & 0x7fffffff);
    }
    for (int64 k = 0; k < 8; k++) most[k] = merge_largest<8>(most[k], most[k + 8]);
    for (int64 k = 0; k < 4; k++) most[k] = merge_largest<4>(most[k], most[k + 4]);
    for (int64 k = 0; k < 2; k++) most[k] = merge_largest<2>(most[k], most[k + 2]);
    return merge_largest<1>(most[0], most[1]);
}

void raise_to(uint32_t* to, uint32_t bits, bool shared) {
    if (!shared) {
        *to = *to > bits ? *to : bits;
        return;
    }
    uint32_t before = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (before < bits && !__atomic_compare_exchange_n(to, &before, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

// visit(block, begin, end) for the blocks in a row of a tile from column `c` on, from column `begin` to `end` of the tile.
template <class Visit>
void for_each_block(const Tiles& all, const Tile& tile, int64 c, const Visit& visit) {
    int64 block = (tile.j + c) / all.q, end = min(tile.columns, (block + 1) * all.q - tile.j);
    for (; c < tile.columns; c = end, end = min(tile.columns, end + all.q)) visit(block++, c, end);
}

// Raises the maxima of blocks to those of a tile. shared: other threads do so too.
void raise_maxima(const Tiles& all, const Tile& tile, uint32_t* maxima, bool shared) {
    for (int64 r = 0, end; r < tile.rows; r = end) {
        end = min(tile.rows, ((tile.i + r) / all.p + 1) * all.p - tile.i);  // of the row of blocks
        uint32_t* blocks = maxima + (tile.i + r) / all.p * all.across_blocks;
        if (all.q > 1) {
            for (int64 k = r; k < end; k++) {
                int64 wide = !shared && (all.q == WIDTH || all.q == 2 * WIDTH) ? tile.columns / (WIDTH * all.q) : 0;
                for (int64 part = 0; part < wide; part++) {
                    uint32_t* to = blocks + tile.j / all.q + part * WIDTH;
                    save(to, larger(load<Words>(to), largest_of_16(tile.row(k) + part * WIDTH * all.q, all.q / WIDTH)));
                }
                for_each_block(all, tile, wide * WIDTH * all.q, [&](int64 block, int64 from, int64 to) {
                    raise_to(blocks + block, largest_of(tile.row(k) + from, to - from), shared);
                });
            }
            continue;
        }
        for (int64 c = 0; c < tile.columns; c += WIDTH) {
            Words most = {};
            for (int64 k = r; k < end; k++) most = larger(most, load<Words>(tile.row(k) + c) & 0x7fffffff);
            uint32_t* to = blocks + tile.j + c;
            if (!shared && c + WIDTH <= tile.columns) save(to, larger(load<Words>(to), most));
            else for (int64 k = 0; k < min(WIDTH, tile.columns - c); k++) raise_to(to + k, most[k], shared);
        }
    }
}

void draw_tile(uint16_t* to, const Tiles& all, const Tile& tile, uint64_t seed, uint64_t call) {
    if (all.down) {
        int64 begin = tile.j * all.rows + tile.i;
        return draw_columns(to, tile.step, tile.rows, tile.columns, begin, all.rows, seed, call);
    }
    for (int64 r = 0; r < tile.rows; r++) draw_bits(to + r * tile.step, (tile.i + r) * all.columns + tile.j, tile.columns, seed, call);
}

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
    static void spread(float* x, const float* of, const Tiles& all, const Tile& tile) {
        if (all.q == 1) return void(memcpy(x, of, tile.columns * sizeof(float)));
        int64 first = tile.j / all.q;
        for_each_block(all, tile, 0, [&](int64 block, int64 begin, int64 end) {
            for (int64 c = begin; c < end; c += WIDTH) save(x + c, ::all(of[block - first]));
        });
    }
    // multipliers, and scales if they are wanted, of the blocks in row `row`. known: whether a scale is NaN where a value
    // of the block is not finite.
    void set(const Tiles& all, const Tile& tile, const float* multipliers_of_blocks, const Array& from, int64 scaling, int64 row,
             bool known, bool wanted) {
        int64 first = tile.j / all.q, count = ceil_div(tile.j + tile.columns, all.q) - first;
        spread(multipliers, multipliers_of_blocks, all, tile);
        read_scales(blocks, from, scaling, row, first, count);
        int32_t are_finite = known;
        for (int64 k = 0; k < count; k++) are_finite &= blocks[k] == blocks[k];
        usual = !wanted || are_usual(blocks, count), finite = are_finite;
        if (wanted) spread(scales, blocks, all, tile);
        else for (int64 c = 0; c < tile.columns; c += WIDTH) save(scales + c, ::all(1.0f));
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
    Scratch<float, 1> values;
    Scratch<uint8_t, 1> codes;
    Scratch<uint16_t, 1> random;
    Scratch<float, 1> factors;
    explicit Buffers(const Tiles& all)
        : values((all.height + 1) * round_up(all.width, WIDTH)), codes((all.height + 1) * (round_up(all.width, WIDTH) + WIDTH)),
          random((all.height + 1) * round_up(all.width, WIDTH)), factors(3 * (all.width + 2 * WIDTH)) {}
    RowFactors row_factors(const Tiles& all) {
        int64 step = all.width + 2 * WIDTH;
        float* first = factors;
        return {first, first + step, first + 2 * step, true, false};
    }
    explicit operator bool() { return values && codes && random && factors; }
};

}  // namespace

// codes, scales: of x [rows, columns] as the reference has them. scale, if given, is what values are multiplied by, and
// largest [1, 1] receives the largest magnitude. factor [1, 1] receives the further factor of two levels. codes may be left
// out. values, if given,
// receives the values of codes in bfloat16. -> whether some value is beyond its normal numbers
static int64 quantize_matrix(Array codes, Array scales, Array factor, Array largest, Array values, Array x, Array scale,
                             int64 format, int64 scaling, int64 p, int64 q, int64 flags, float epsilon, uint64_t seed,
                             uint64_t call) {
    Tiles all(x, p, q, flags);
    Scales how(scaling, format, epsilon);
    int64 blocks = all.down_blocks * all.across_blocks, tiles = all.down_tiles * all.across_tiles;
    Scratch<uint32_t> maxima(blocks);  // afterwards, the bits of multipliers
    if (!maxima) return 0;
    uint32_t* found = maxima;
    memset(found, 0, blocks * sizeof(uint32_t));
    const float* multipliers = reinterpret_cast<const float*>(found);
    if (scale) multipliers = address<const float>(scale, 0, 0);
    bool first_pass = !scale && (!all.whole || scaling == TWO_LEVELS), per_tile = !scale && !first_pass;
    int64 grain = max(1, PARALLEL_ELEMENTS / (all.height * all.width));
    if (tiles * all.height * all.width <= PARALLEL_ELEMENTS) grain = tiles;
    if (first_pass) {
        parallel_for(tiles, grain, [&](int64 begin, int64 end) {
            Buffers memory(all);
            if (!memory) return;
            for (int64 number = begin; number < end; number++)
                raise_maxima(all, read_tile(all, number, memory.values), found, !all.whole);
        });
        if (scaling == TWO_LEVELS) {
            uint32_t most = 0;
            for (int64 b = 0; b < blocks; b++) {
                uint32_t bits = found[b] < 0x7f800000 ? found[b] : bits_of(1.0f);
                most = most > bits ? most : bits;
            }
            how.set_factor(float_of(most));
            *address<float>(factor, 0, 0) = how.decoding;
        }
        how.finish(found, blocks, scales.data, 0);
    }
    auto finish_tile = [&](const Tile& tile) {
        int64 first = tile.j / q, count = ceil_div(tile.j + tile.columns, q) - first;
        for (int64 i = tile.i / p; i < ceil_div(tile.i + tile.rows, p); i++) {
            int64 at = i * all.across_blocks + first;
            how.finish(found + at, count, scales.data, at);
        }
    };
    int64 is_beyond = 0;
    with_format(format, [&](auto chosen) {
        using F = decltype(chosen);
        parallel_for(tiles, grain, [&](int64 begin, int64 end) {
            Buffers memory(all);
            if (!memory) return;
            Codes to{codes, format == FORMAT_E2M1, all.down, memory.codes, round_up(all.width, WIDTH) + WIDTH};
            RowFactors by = memory.row_factors(all);
            bool beyond = false;
            for (int64 number = begin; number < end; number++) {
                Tile tile = read_tile(all, number, memory.values);
                if (scale || per_tile) raise_maxima(all, tile, found, bool(scale));
                if (per_tile) finish_tile(tile);
                bool known = !scale || __atomic_load_n(found, __ATOMIC_RELAXED) < 0x7f800000;
                uint16_t* random = flags & STOCHASTIC ? static_cast<uint16_t*>(memory.random) : nullptr;
                if (random) draw_tile(random, all, tile, seed, call);
                for (int64 r = 0; r < tile.rows; r++) {
                    int64 row = (tile.i + r) / p;
                    if (r == 0 || (tile.i + r) % p == 0)
                        by.set(all, tile, multipliers + row * all.across_blocks + tile.j / q, scales, scaling, row, known,
                               values && flags & SCALED);
                    bfloat16* to_values = values ? address<bfloat16>(values, 0, tile.i + r, tile.j) : nullptr;
                    uint8_t* to_codes = codes ? to.row(tile, r) : nullptr;
                    const float* x = tile.row(r);
                    if (random) beyond |= encode_row<Encode<F, true>>(to_codes, to_values, x, by, random + r * tile.step, tile.columns);
                    else beyond |= encode_row<Encode<F, false>>(to_codes, to_values, x, by, nullptr, tile.columns);
                }
                if (codes) to.pack(tile);
            }
            if (beyond) __atomic_store_n(&is_beyond, 1, __ATOMIC_RELAXED);
        });
    });
    if (largest) memcpy(largest.data, found, sizeof(float));
    return is_beyond;
}
KERNEL(quantize_matrix)
