// Quantized matrices: codes and scales of blocks, and back; see ops/linalg/quantization.py.
//
// One kernel reads a matrix in tiles and writes its codes, those of its transpose, or both: a way. A product by FP8 tensor
// cores wants both operands contiguous along the axis that is summed over, so a linear layer needs either way of most
// matrices. A way sees the matrix as [R, C], C along that axis. Extents of blocks are powers of two, given as exponents;
// 31 is the whole axis. Blocks of at most 128 x 128 lie within tiles and need one reading. Maxima of larger ones, or of
// the matrix for its factor, come from `block_maxima`, as bits of magnitudes, whose order integers have: atomics on them
// are exact in any order.
#include "include/block.cuh"
#include "include/quantized.cuh"

constexpr unsigned TILE = 128, STRIP = 16, THREADS = 256, STRIPS = TILE / STRIP;
constexpr unsigned IN_TILE = TILE * STRIPS;  // blocks of a tile, at most
enum Flags : unsigned { STOCHASTIC = 1, HADAMARD = 2, GIVEN = 4, OF_MATRIX = 8 };  // GIVEN: by `given`

// A tile in shared memory, zero beyond the edges; columns of neighbouring rows lie in different banks.
template <typename T>
struct Tile {
    static constexpr unsigned PITCH = TILE + 4 / sizeof(T);
    T* values;
    unsigned row, column;  // of the matrix, where it begins

    __device__ void read(const T* x, unsigned rows, unsigned columns, int64 pitch) {
        constexpr int N = 16 / sizeof(T);
        bool vectorized = aligned(x, 16) && pitch % N == 0;
        for (unsigned i = threadIdx.x; i < TILE * TILE / N; i += THREADS) {
            unsigned r = i / (TILE / N), c = i % (TILE / N) * N, left = column + c < columns ? columns - column - c : 0;
            if (row + r >= rows) left = 0;
            const T* from = x + (row + r) * pitch + column + c;
            Pack<T, N> pack;
            if (vectorized && left >= N) pack = Pack<T, N>::load(from);
            else for (unsigned k = 0; k < N; k++) pack.value[k] = k < left ? from[k] : from_float<T>(0.0f);
#pragma unroll
            for (int k = 0; k < N; k++) values[r * PITCH + c + k] = pack.value[k];
        }
    }
};

// float32 without flushing subnormal numbers.
HELPER float kept(float x) { return x; }
HELPER float kept(__nv_bfloat16 x) { return float_of(Bits32(__bfloat16_as_ushort(x)) << 16); }
HELPER float kept(__half x) { return __half2float(x); }

// A way of quantizing: the matrix itself, or, turned, its transpose.
template <typename T>
struct Way {
    const Tile<T>& tile;
    unsigned rows, columns, first_row, first_column, p, q, flags;  // columns: with the padding of the transform
    unsigned down, along;  // elements of the tile between neighbours of a column, and of a row

    HELPER Way(const Tile<T>& tile, unsigned of_rows, unsigned of_columns, unsigned p, unsigned q, unsigned flags, bool turned)
        : tile(tile), p(p), q(q), flags(flags) {
        rows = turned ? of_columns : of_rows, columns = turned ? of_rows : of_columns;
        first_row = turned ? tile.column : tile.row, first_column = turned ? tile.row : tile.column;
        down = turned ? 1 : Tile<T>::PITCH, along = turned ? Tile<T>::PITCH : 1;
        if (flags & HADAMARD) columns = (columns + STRIP - 1) / STRIP * STRIP;
    }
    HELPER unsigned across() const { return ((columns - 1) >> q) + 1; }
    HELPER unsigned local_across() const { return q > 7 ? 1 : TILE >> q; }
    HELPER unsigned local_blocks() const { return local_across() * (p > 7 ? 1 : TILE >> p); }
    HELPER unsigned local_block(unsigned r, unsigned c) const { return (r >> p) * local_across() + (c >> q); }
    HELPER int64 block(unsigned r, unsigned c) const {
        return int64((first_row + r) >> p) * across() + ((first_column + c) >> q);
    }
    HELPER bool is_inside(unsigned r, unsigned c) const { return first_row + r < rows && first_column + c < columns; }

    // visit(r, c, 16 values) for the strips of the tile: row r, columns from c of the tile.
    template <typename Visit>
    HELPER void for_each_strip(const Visit& visit) const {
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < TILE * STRIPS; i += THREADS) {
            unsigned r = i / STRIPS, c = i % STRIPS * STRIP;
            if (down == 1) r = i / 2 % TILE, c = (i % 2 + i / (2 * TILE) * 2) * STRIP;  // a warp in different banks
            if (!is_inside(r, c)) continue;
            const T* from = tile.values + r * down + c * along;
            float x[STRIP];
#pragma unroll
            for (unsigned k = 0; k < STRIP; k++) x[k] = kept(from[k * along]);
            if (flags & HADAMARD) hadamard(x);
            visit(r, c, x);
        }
    }

    // visit(its number in the tile, r, c) for the blocks of the tile, or their parts that are in it, from (r, c) of it.
    template <typename Visit>
    HELPER void for_each_block(const Visit& visit) const {
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < local_blocks(); i += THREADS) {
            unsigned r = i / local_across() << (p & 7), c = i % local_across() << (q & 7);
            if (is_inside(r, c)) visit(i, r, c);
        }
    }

    // The largest magnitudes of blocks, or of their parts that are in the tile.
    HELPER void find_maxima(Bits32* maxima) const {
        for (unsigned i = threadIdx.x; i < IN_TILE; i += THREADS) maxima[i] = 0;
        __syncthreads();
        Bits32 all = 0;
        bool one = local_blocks() == 1;
        for_each_strip([&](unsigned r, unsigned c, const float(&x)[STRIP]) {
            Bits32 most = 0;
#pragma unroll
            for (unsigned k = 0; k < STRIP; k++) most = larger_bits(most, bits_of(x[k]) & 0x7fffffff);
            if (one) all = larger_bits(all, most);
            else atomicMax(maxima + local_block(r, c), most);
        });
        if (one) {
            for (int lanes = 16; lanes > 0; lanes /= 2) all = larger_bits(all, __shfl_xor_sync(ALL_LANES, all, lanes));
            if (threadIdx.x % 32 == 0) atomicMax(maxima, all);
        }
        __syncthreads();
    }

    // Multipliers of the tile's blocks in `found`, where their maxima are, unless `maxima` has those of all blocks or
    // they are given; and the scales of those that begin in the tile.
    template <typename F>
    HELPER void find_multipliers(Bits32* found, const Bits32* maxima, void* scales, unsigned scaling, float epsilon,
                                 float encode, const float* given) const {
        for_each_block([&](unsigned number, unsigned r, unsigned c) {
            Bits32 scale;
            float by;
            if (flags & GIVEN) by = *given, scale = bits_of(divide_kept(1.0f, by));
            else by = multiplier_of<F>(maxima ? maxima[block(r, c)] : found[number], scaling, epsilon, encode, scale);
            found[number] = bits_of(by);
            unsigned row = first_row + r, column = first_column + c;
            if (row >> p << p != row || column >> q << q != column) return;
            if (scaling >= E8M0) reinterpret_cast<unsigned char*>(scales)[block(r, c)] = scale;
            else reinterpret_cast<Bits32*>(scales)[block(r, c)] = scale;
        });
        __syncthreads();
    }

    template <typename F>
    HELPER void write_codes(unsigned char* codes, const Bits32* multipliers, uint64 seed, uint64 call) const {
        constexpr unsigned PER_BYTE = Coded<F>::PER_BYTE, BYTES = STRIP / PER_BYTE;
        unsigned width = (columns + PER_BYTE - 1) / PER_BYTE;
        bool whole_strips = columns % STRIP == 0 && aligned(codes, BYTES), stochastic = flags & STOCHASTIC;
        for_each_strip([&](unsigned r, unsigned c, const float(&x)[STRIP]) {
            unsigned row = first_row + r, column = first_column + c, left = columns - column;
            float by = float_of(multipliers[local_block(r, c)]);
            uint64 words[4] = {};
            if (stochastic) draw(words, seed, call, uint64(row) * columns + column);
            Pack<unsigned char, BYTES> found;
#pragma unroll
            for (unsigned k = 0; k < STRIP; k++) {
                Bits32 random = Bits32(words[k / 4] >> (k % 4 * 16)) & 0xffff;
                Bits32 code = Coded<F>::encode(scaled(x[k], by), stochastic, random);
                if (PER_BYTE == 1) found.value[k] = code;
                else if (k % 2 == 0) found.value[k / 2] = code;
                else found.value[k / 2] |= (k < left ? code : 0) << 4;
            }
            unsigned char* to = codes + int64(row) * width + column / PER_BYTE;
            if (whole_strips) return found.store(to);
#pragma unroll
            for (unsigned k = 0; k < BYTES; k++)
                if (k * PER_BYTE < left) to[k] = found.value[k];
        });
    }
};

// Raises `maxima`, which begin as zeros, to those of the blocks of x and, where `turned_maxima` is there, of its transpose;
// with the flag OF_MATRIX to that of the matrix, where a block with an infinity or NaN counts as 1.
template <typename T>
__global__ void __launch_bounds__(256)
block_maxima(const T* x, unsigned rows, unsigned columns, int64 pitch, Bits32* maxima, unsigned p, unsigned q, unsigned flags,
             Bits32* turned_maxima, unsigned turned_p, unsigned turned_q, unsigned turned_flags) {
    DYN_SHARED(Bits32, found);
    unsigned across = (columns - 1) / TILE + 1;
    Tile<T> tile{reinterpret_cast<T*>(found + IN_TILE), blockIdx.x / across * TILE, blockIdx.x % across * TILE};
    tile.read(x, rows, columns, pitch);
#pragma unroll 1
    for (int turned = 0; turned < 2; turned++) {
        Bits32* to = turned ? turned_maxima : maxima;
        if (!to) continue;
        Way<T> way(tile, rows, columns, turned ? turned_p : p, turned ? turned_q : q, turned ? turned_flags : flags, turned);
        way.find_maxima(found);
        way.for_each_block([&](unsigned number, unsigned r, unsigned c) {
            Bits32 most = found[number];
            if (way.flags & OF_MATRIX) atomicMax(to, most < 0x7f800000 ? most : bits_of(1.0f));
            else atomicMax(to + way.block(r, c), most);
        });
        __syncthreads();
    }
}

// Codes, scales and, of two levels, the factor of x [rows, columns], and of its transpose; of one whose codes are null
// nothing is asked. maxima: of blocks, or of the matrix where there are two levels, from `block_maxima`; null where
// blocks lie within tiles. given: the scale of both; `maxima` is then raised to the maximum of the matrix.
template <typename F, typename T>
__global__ void __launch_bounds__(256)
quantize_tiles(const T* x, unsigned rows, unsigned columns, int64 pitch, unsigned char* codes, void* scales, Bits32* maxima,
               float* factor, unsigned p, unsigned q, unsigned flags, uint64 seed, uint64 call, unsigned char* turned_codes,
               void* turned_scales, Bits32* turned_maxima, float* turned_factor, unsigned turned_p, unsigned turned_q,
               unsigned turned_flags, uint64 turned_seed, uint64 turned_call, unsigned scaling, float epsilon,
               const float* given, const uint64* draws) {
    DYN_SHARED(Bits32, found);
    unsigned across = (columns - 1) / TILE + 1;
    Tile<T> tile{reinterpret_cast<T*>(found + IN_TILE), blockIdx.x / across * TILE, blockIdx.x % across * TILE};
    tile.read(x, rows, columns, pitch);
    replay_draw(draws, seed, call);
    replay_draw(draws, turned_seed, turned_call);
    __syncthreads();
#pragma unroll 1
    for (int turned = 0; turned < 2; turned++) {
        unsigned char* to = turned ? turned_codes : codes;
        if (!to) continue;
        Way<T> way(tile, rows, columns, turned ? turned_p : p, turned ? turned_q : q, turned ? turned_flags : flags, turned);
        Bits32* known = turned ? turned_maxima : maxima;
        bool wide = known && scaling != TWO_LEVELS && !(way.flags & GIVEN);
        float encode = 1.0f;
        if (!wide && (known || !(way.flags & GIVEN))) way.find_maxima(found);
        if (known && way.flags & GIVEN && threadIdx.x == 0) atomicMax(known, found[0]);
        if (scaling == TWO_LEVELS) {
            encode = encoding_factor<F>(*known);
            if (blockIdx.x == 0 && threadIdx.x == 0) *(turned ? turned_factor : factor) = divide_kept(1.0f, encode);
        }
        void* scales_of = turned ? turned_scales : scales;
        way.template find_multipliers<F>(found, wide ? known : nullptr, scales_of, scaling, epsilon, encode, given);
        way.template write_codes<F>(to, found, turned ? turned_seed : seed, turned ? turned_call : call);
        __syncthreads();
    }
}

template <typename T>
HELPER T stored(float x);
template <>
HELPER float stored(float x) { return x; }
template <>
HELPER __nv_bfloat16 stored(float x) {  // subnormal numbers, too
    Bits32 bits = bits_of(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __ushort_as_bfloat16((unsigned short)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded));
}

// out [rows, columns] in the order of memory: values of codes, times the scales of blocks p x q, whose rows and columns
// are `down` and `right` apart, and the factor; of either there may be none. With PACKED two codes of neighbours in a
// row share a byte.
template <typename F, typename T>
__global__ void dequantize_matrix(const unsigned char* codes, const void* scales, const float* factor, T* out, int64 rows,
                                  unsigned columns, unsigned p, unsigned q, int64 down, int64 right, unsigned scaling) {
    constexpr unsigned EACH = 8, PER_BYTE = Coded<F>::PER_BYTE;
    unsigned chunks = (columns + EACH - 1) / EACH, width = (columns + PER_BYTE - 1) / PER_BYTE;
    int64 total = rows * chunks, step = (int64)gridDim.x * blockDim.x;
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        int64 row = i / chunks;
        unsigned column = unsigned(i - row * chunks) * EACH, count = columns - column < EACH ? columns - column : EACH;
        const unsigned char* from = codes + row * width + column / PER_BYTE;
        Pack<T, EACH> found;
        float scale = 1.0f;
#pragma unroll
        for (unsigned k = 0; k < EACH; k++) {
            if (k >= count) continue;
            Bits32 code = from[k / PER_BYTE];
            if (PER_BYTE == 2) code = code >> (k % 2 * 4) & 15;
            if (scales && (k == 0 || (column + k) % q == 0))
                scale = scale_value(scales, row / p * down + (column + k) / q * right, scaling);
            float value = Coded<F>::decode(code);
            if (scales) value = multiply_kept(value, scale);
            if (factor) value = multiply_kept(value, *factor);
            found.value[k] = stored<T>(value);
        }
        T* to = out + row * columns + column;
        if (count == EACH && columns % EACH == 0) found.store(to);
        else for (unsigned k = 0; k < count; k++) to[k] = found.value[k];
    }
}

// out [rows, columns] = sums times a factor of each row and column, which blocks of p of them share, and of all; plus bias
// [columns]. Factors and bias are float32 and may be missing. Products are float64: in float32 one of large and small factors
// might overflow.
template <typename S, typename T>
__global__ void scale_sums(const S* sums, T* out, int64 rows, unsigned columns, const float* by_row, unsigned row_p,
                           const float* by_column, unsigned column_p, const float* factor, const float* other,
                           const float* bias) {
    int64 total = rows * columns, step = (int64)gridDim.x * blockDim.x;
    double whole = (factor ? widened(*factor) : 1.0) * (other ? widened(*other) : 1.0);
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        int64 row = i / columns;
        unsigned column = unsigned(i - row * columns);
        double by = whole * (by_row ? widened(by_row[row / row_p]) : 1.0);
        float found = float(double(float(sums[i])) * by * (by_column ? widened(by_column[column / column_p]) : 1.0));
        out[i] = from_float<T>(bias ? found + bias[column] : found);
    }
}

// set CODES = (Float8E4M3FN, Float8E5M2, Float4E2M1FN, Int8)
// entries: block_maxima<T> for T in TYPES
// entries: quantize_tiles<F, T> for F in CODES, T in TYPES
// entries: dequantize_matrix<F, T> for F in CODES, T in (float, __nv_bfloat16)
// entries: scale_sums<S, T> for S in (float, int), T in TYPES
