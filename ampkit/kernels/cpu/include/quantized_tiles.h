// A matrix that is quantized, in tiles that are in the cache while they are: each in one way, or in two at once.
//
// Matrices are seen here in the order of memory: a block is `p` rows high and `q` columns wide, and the axis that a product
// sums over, along which 16 neighbours are transformed, codes are packed and random bits are drawn, is that of the columns,
// or `down` that of the rows.
#pragma once
#include "parallel.h"
#include "philox.h"
#include "quantized.h"

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

// A way to quantize a matrix, and where codes and scales go. values, if given, receives the values of codes in bfloat16, for
// a product that follows at once; codes may be left out then. factor [1, 1] receives the further factor of two levels.
struct Way {
    Array codes, scales, factor, values;
    int64 format, scaling, p, q;
    bool down, transformed, stochastic, scaled;
    Scales how;
    uint64_t seed, call;
    int64 rows, columns;  // of the codes before they are packed: those of x with the padding of the transform
    int64 down_blocks, across_blocks;
    uint32_t* maxima;      // of blocks: the bits of largest magnitudes, then of what values are multiplied by
    int32_t beyond;        // whether some value is beyond bfloat16's normal numbers

    Way(const Array& x, const Array& codes, const Array& scales, const Array& factor, const Array& values, int64 format,
        int64 scaling, int64 p, int64 q, int64 flags, float epsilon, uint64_t seed, uint64_t call)
        : codes(codes), scales(scales), factor(factor), values(values), format(format), scaling(scaling), p(p), q(q),
          down(flags & DOWN), transformed(flags & HADAMARD), stochastic(flags & STOCHASTIC), scaled(flags & SCALED),
          how(scaling, format, epsilon), seed(seed), call(call), maxima(nullptr), beyond(0) {
        rows = transformed && down ? round_up(x.size[1], WIDTH) : x.size[1];
        columns = transformed && !down ? round_up(x.size[2], WIDTH) : x.size[2];
        down_blocks = ceil_div(rows, p), across_blocks = ceil_div(columns, q);
    }
    int64 blocks() const { return down_blocks * across_blocks; }
};

// The ways of a matrix and its tiles, of whole blocks of each way where blocks are small enough.
struct Tiles {
    Array x;
    Way* ways;
    int64 count, rows, columns;
    int64 height, width, down_tiles, across_tiles;
    bool whole, copies;  // no block is in two tiles; a way transforms a copy of a tile

    Tiles(const Array& x, Way* ways, int64 count) : x(x), ways(ways), count(count), rows(0), columns(0), copies(false) {
        // Tiles begin at multiples of 16 along the axis whose neighbours are transformed and packed.
        int64 high = 1, wide = WIDTH;
        bool down = false, whole_rows = false;
        for (int64 k = 0; k < count; k++) {
            const Way& way = ways[k];
            rows = max(rows, way.rows), columns = max(columns, way.columns);
            high = least_common(high, way.down ? least_common(way.p, WIDTH) : way.p), wide = least_common(wide, way.q);
            down |= way.down, whole_rows |= way.q >= way.columns, copies |= count > 1 && way.transformed;
        }
        // Rows of two ways are long, as both begin anew with each; measured with all recipes.
        int64 most = count > 1 ? 512 : high > 64 ? 128 : high > 16 ? 256 : 512;
        bool across = true, along = true;
        if (columns <= (whole_rows ? TILE / 2 : most)) width = columns;
        else if (wide <= TILE / 2) width = max(1, most / wide) * wide;
        else width = most, across = false;
        if (high <= 128) height = max(1, TILE / width / high) * high;
        else if (rows * width <= TILE) height = rows;
        else height = round_up(max(1, TILE / width), down ? WIDTH : 1), along = false;
        whole = across && along, height = min(height, rows);
        down_tiles = ceil_div(rows, height), across_tiles = ceil_div(columns, width);
    }

    // Of extents beyond a tile the larger one, which then is beyond it, too.
    static int64 least_common(int64 a, int64 b) {
        int64 large = max(a, b), small = min(a, b), found = large;
        while (large <= TILE && found % small) found += large;
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
    return tile;
}

// The part of a tile that a way quantizes, transformed if it is; `copy` has memory for a tile where others need this one.
Tile tile_of(const Tiles& all, const Way& way, const Tile& tile, float* copy) {
    Tile found = tile;
    found.rows = min(tile.rows, way.rows - tile.i), found.columns = min(tile.columns, way.columns - tile.j);
    if (!way.transformed) return found;
    if (all.copies) {
        found.values = copy;
        memcpy(copy, tile.values, found.rows * tile.step * sizeof(float));
    }
    transform(found, way.down);
    return found;
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
void for_each_block(const Way& way, const Tile& tile, int64 c, const Visit& visit) {
    int64 block = (tile.j + c) / way.q, end = min(tile.columns, (block + 1) * way.q - tile.j);
    for (; c < tile.columns; c = end, end = min(tile.columns, end + way.q)) visit(block++, c, end);
}

// Raises the maxima of a way's blocks to those of a tile. shared: other threads do so too.
void raise_maxima(const Way& way, const Tile& tile, bool shared) {
    for (int64 r = 0, end; r < tile.rows; r = end) {
        end = min(tile.rows, ((tile.i + r) / way.p + 1) * way.p - tile.i);  // of the row of blocks
        uint32_t* blocks = way.maxima + (tile.i + r) / way.p * way.across_blocks;
        if (way.q > 1) {
            for (int64 k = r; k < end; k++) {
                int64 wide = !shared && (way.q == WIDTH || way.q == 2 * WIDTH) ? tile.columns / (WIDTH * way.q) : 0;
                for (int64 part = 0; part < wide; part++) {
                    uint32_t* to = blocks + tile.j / way.q + part * WIDTH;
                    save(to, larger(load<Words>(to), largest_of_16(tile.row(k) + part * WIDTH * way.q, way.q / WIDTH)));
                }
                for_each_block(way, tile, wide * WIDTH * way.q, [&](int64 block, int64 from, int64 to) {
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

// The scales and multipliers of the blocks in a tile.
void finish_tile(const Way& way, const Tile& tile) {
    int64 first = tile.j / way.q, count = ceil_div(tile.j + tile.columns, way.q) - first;
    for (int64 i = tile.i / way.p; i < ceil_div(tile.i + tile.rows, way.p); i++) {
        int64 at = i * way.across_blocks + first;
        way.how.finish(way.maxima + at, count, way.scales.data, at);
    }
}

// Those of all blocks.
void finish_all(Way* way) {
    if (way->scaling == TWO_LEVELS) {
        uint32_t most = 0;
        for (int64 b = 0; b < way->blocks(); b++) {
            uint32_t bits = way->maxima[b] < 0x7f800000 ? way->maxima[b] : bits_of(1.0f);
            most = most > bits ? most : bits;
        }
        way->how.set_factor(float_of(most));
        *address<float>(way->factor, 0, 0) = way->how.decoding;
    }
    way->how.finish(way->maxima, way->blocks(), way->scales.data, 0);
}

void draw_tile(uint16_t* to, const Way& way, const Tile& tile) {
    if (way.down) {
        int64 begin = tile.j * way.rows + tile.i;
        return draw_columns(to, tile.step, tile.rows, tile.columns, begin, way.rows, way.seed, way.call);
    }
    for (int64 r = 0; r < tile.rows; r++)
        draw_bits(to + r * tile.step, (tile.i + r) * way.columns + tile.j, tile.columns, way.seed, way.call);
}

}  // namespace
