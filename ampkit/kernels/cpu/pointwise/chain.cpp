// A chain of elementwise functions, tile by tile: all of its steps on one tile, then on the next one. What no one but later
// steps reads lies in buffers of a tile, which stay in the first-level cache, and never reaches memory.
//
// A large output that memory keeps is computed in a buffer as well, and goes to memory past the caches: those that wait for
// it read the buffer, and a line that is stored whole is not read from memory first.
//
// A step reads and writes a tile by the same loops as elementwise.cpp does, and rounds to the dtype of its output there.
// Tiles do not depend on the number of threads, neither do results.
#include "../include/tiles.h"

namespace {

constexpr int64 ON_STACK = 1 << 16;  // bytes of buffers
constexpr int64 PARTS = 16;          // at least, of a chain's elements, that threads take, if they are large enough
constexpr int64 CACHE_LINE = 64;
constexpr int64 MEMORY = 0;  // numbers of arrays count from here; a buffer is -1 - its number

// `struct Step` of chain.py. loops: null for a copy, to any dtype. flat: whether all arrays have the memory order of the
// outputs, without gaps, or one element. in, out: which array or buffer. stored: which array the buffer of an output is
// copied to, past the caches; -1 for none. number: of operands that are none.
struct Step {
    const Loops* loops;
    const Layout* layout;
    int64 flat, in[OPERANDS], out[OUTPUTS], stored[OUTPUTS];
    double number[OPERANDS];
};

// `struct Tiles` of chain.py: the axes of the outputs, the last two of which are cut into tiles: of at most BLOCK elements,
// or of any number where all steps are flat. buffers: how many; buffer_bytes: of each, whole cache lines.
struct Tiles {
    int64 axes, tile_rows, tile_columns, buffers, buffer_bytes, size[AXES], stride[AXES];
};

// Where a tile lies along each axis.
struct Position {
    const Tiles& tiles;
    int64 at[AXES], rows, columns;

    Position(const Tiles& of, int64 t) : tiles(of), at{} {
        int64 last = tiles.axes - 1, across = ceil_div(tiles.size[last], tiles.tile_columns);
        int64 down = ceil_div(tiles.size[last - 1], tiles.tile_rows), rest = t / across;
        at[last] = t % across * tiles.tile_columns;
        at[last - 1] = rest % down * tiles.tile_rows;
        rest /= down;
        for (int64 axis = last - 2; axis >= 0; axis--) {
            at[axis] = rest % tiles.size[axis];
            rest /= tiles.size[axis];
        }
        cut();
    }

    // To the next tile, without divisions; from the last one to the first.
    void advance() {
        for (int64 axis = tiles.axes - 1, last = axis; axis >= 0; axis--) {
            at[axis] += axis == last ? tiles.tile_columns : axis == last - 1 ? tiles.tile_rows : 1;
            if (at[axis] < tiles.size[axis]) break;
            at[axis] = 0;
        }
        cut();
    }

    int64 start(const int64* stride) const {
        int64 found = 0;
        for (int64 i = 0; i < tiles.axes; i++) found += at[i] * stride[i];
        return found;
    }

  private:
    void cut() {
        int64 last = tiles.axes - 1;
        rows = min(tiles.tile_rows, tiles.size[last - 1] - at[last - 1]);
        columns = min(tiles.tile_columns, tiles.size[last] - at[last]);
    }
};

// Copies a tile to memory past the caches, where the compiler knows how.
void copy_past_caches(char* to, const char* from, int64 bytes) {
#if defined(__clang__)
    typedef int64 Line __attribute__((vector_size(CACHE_LINE), aligned(CACHE_LINE)));
    typedef int64 Anywhere __attribute__((vector_size(CACHE_LINE), aligned(1)));
    int64 head = min(-reinterpret_cast<intptr_t>(to) & (CACHE_LINE - 1), bytes);
    memcpy(to, from, head);
    for (; head + CACHE_LINE <= bytes; head += CACHE_LINE) {
        Line line = *reinterpret_cast<const Anywhere*>(from + head);
        __builtin_nontemporal_store(line, reinterpret_cast<Line*>(to + head));
    }
    to += head, from += head, bytes -= head;
#endif
    memcpy(to, from, bytes);
}

// Before others read what was copied so.
void wait_for_copies() {
#if defined(__clang__) && defined(__SSE2__)
    __builtin_ia32_sfence();
#endif
}

// Which lines the steps of a chain read from memory, row by row of a tile, each array once; none where arrays stay in caches.
class Reads {
  public:
    Reads(const Step* steps, int64 count, const Tiles& tiles, const PythonTuple* arrays) : axes_(tiles.axes) {
        for (int64 i = 0; i < count; i++) {
            const Layout& layout = *steps[i].layout;
            for (int64 j = 0; j < OPERANDS; j++) {
                if (layout.kind[j] < 0 || steps[i].in[j] < MEMORY || layout.stride[j][layout.axes - 1] != 1) continue;
                add({static_cast<const char*>(arrays->item(steps[i].in[j])->data), ITEMSIZE[layout.kind[j]],
                     steps[i].flat ? tiles.stride : layout.stride[j]});
            }
            for (int64 j = 0; j < OUTPUTS; j++) is_large_ |= steps[i].stored[j] >= MEMORY;
            if (steps[i].loops) loops_ += steps[i].loops->stored[FLOAT32][1] != nullptr;
        }
    }

    void put(const Position& place, Ahead& ahead) const {
        ahead.next = ahead.count = 0;
        if (!FOUR_VECTORS || !is_large_ || !loops_) return;
        for (int64 i = 0; i < count_; i++) {
            const Read& read = read_[i];
            const char* from = read.data + place.start(read.stride) * read.itemsize;
            int64 bytes = place.columns * read.itemsize, down = read.stride[axes_ - 2] * read.itemsize, rows = place.rows;
            if (down == bytes || rows == 1) bytes *= rows, rows = 1;
            if (down == 0 && rows > 1) continue;  // what every row reads is in a cache
            for (int64 row = 0; row < rows; row++) {
                int64 lines = min(ceil_div(bytes, CACHE_LINE), Ahead::MOST - ahead.count);
                for (int64 k = 0; k < lines; k++) ahead.line[ahead.count + k] = from + row * down + k * CACHE_LINE;
                ahead.count += lines;
            }
        }
        // Somewhat more than the share of each, as not all loops fetch.
        ahead.at_a_time = 1 + ahead.count / max(1, loops_ * place.rows * place.columns / AT_A_TIME);
    }

  private:
    struct Read { const char* data; int64 itemsize; const int64* stride; };
    static constexpr int64 MOST = 16;

    void add(const Read& read) {
        for (int64 i = 0; i < count_; i++)
            if (read_[i].data == read.data) return;
        if (count_ < MOST) read_[count_++] = read;
    }

    int64 axes_, count_ = 0, loops_ = 0;
    bool is_large_ = false;
    Read read_[MOST];
};

// A step with its arrays: what does not depend on the tile is found once for many.
class Prepared {
  public:
    static void* operator new(size_t, void* at) { return at; }

    Prepared(const Step& step, const Tiles& tiles, const PythonTuple* arrays, char* buffers, Ahead* ahead)
        : step_(step), given_{step.loops, *step.layout} {
        auto memory = [&](int64 number, int64 kind) {
            if (number < MEMORY) return Memory{buffers + (-1 - number) * tiles.buffer_bytes, 0};
            return Memory{static_cast<char*>(arrays->item(number)->data), ITEMSIZE[kind]};
        };
        for (int64 i = 0; i < OPERANDS; i++) {
            given_.number[i] = float(step.number[i]);
            if (int64 kind = step.layout->kind[i]; kind >= 0) in_[i] = memory(step.in[i], kind), given_.in[i] = in_[i].data;
        }
        for (int64 j = 0; j < OUTPUTS; j++)
            if (int64 kind = step.layout->kind[OPERANDS + j]; kind >= 0) {
                out_[j] = memory(step.out[j], kind);
                given_.out[j] = out_[j].data;
                if (step.stored[j] >= MEMORY) stored_[j] = static_cast<char*>(arrays->item(step.stored[j])->data);
            }
        given_.note_dtype_of_outputs();
        given_.ahead = ahead;
        if (step.flat && step.loops) prepare_stored();
    }

    // start: of the tile in outputs.
    void compute(const Position& place, int64 start) {
        int64 count = place.rows * place.columns;
        compute(place, start, count);
        for (int64 j = 0; j < OUTPUTS; j++)
            if (stored_[j]) {
                int64 itemsize = ITEMSIZE[given_.layout.kind[OPERANDS + j]];
                copy_past_caches(stored_[j] + start * itemsize, out_[j].data, count * itemsize);
            }
    }

  private:
    struct Memory { char* data; int64 step; };  // bytes from one element of the outputs to the next; 0 for a buffer

    void compute(const Position& place, int64 start, int64 count) {
        if (!step_.loops) return copy(start, count);
        if (!step_.flat) return compute_strided(place, start);
        if (rows_) return compute_rows(start, count);
        Tile tile[OPERANDS + 1];
        for (int64 i = 0; i < OPERANDS; i++) {
            int64 stride = is_row(i);
            tile[i] = {in_[i].step ? start * stride : 0, 1, count, 0, stride};
        }
        put_outputs(start);
        tile[OPERANDS] = {0, 1, count, 0, 1};
        Reader reader(given_);
        if (given_.layout.row_step) return compute_in_place(given_, tile, reader);
        if (compute_stored(given_, tile)) return;
        for (int64 rest = count; rest > 0; rest -= BLOCK) {
            for (int64 i = 0; i <= OPERANDS; i++) tile[i].columns = min(rest, BLOCK);
            compute_floats(given_, reader.read(tile), tile[OPERANDS]);
            for (int64 i = 0; i <= OPERANDS; i++) tile[i].start += BLOCK * tile[i].column_stride;
        }
    }

    // Whether an operand of a flat step is a row; else it is one element, or a number.
    bool is_row(int64 i) const {
        return given_.layout.kind[i] >= 0 && (step_.in[i] < MEMORY || given_.layout.stride[i][given_.layout.axes - 1]);
    }

    // `compute_stored` of rows and numbers, but for what depends on the tile.
    void prepare_stored() {
        const int64 *kind = given_.layout.kind, stored = given_.stored;
        if (stored < FLOAT32 || stored > FLOAT16) return;
        int64 rows = 0;
        for (int64 i = 0; i < OPERANDS; i++) {
            number_[i] = given_.number[i];
            if (kind[i] < 0) continue;
            if (!is_row(i)) read_floats(number_ + i, given_.in[i], kind[i], 0, 0, 1);
            else if (kind[i] == stored && i < TENSORS) rows |= 1 << i;
            else return;
        }
        for (int64 j = 0; j < OUTPUTS; j++)
            if (given_.out[j] && !given_.loops[j].stored[stored][rows]) return;
        rows_ = rows;
    }

    void compute_rows(int64 start, int64 count) const {
        const void* tensors[OPERANDS] = {};
        for (int64 i = 0; i < TENSORS; i++)
            if (rows_ >> i & 1) tensors[i] = in_[i].data + start * in_[i].step;
        for (int64 j = 0; j < OUTPUTS; j++)
            if (given_.out[j])
                given_.loops[j].stored[given_.stored][rows_](
                    tensors, number_, out_[j].data + start * out_[j].step, count, given_.ahead);
    }

    void copy(int64 start, int64 count) const {
        with_float_type(given_.layout.kind[0], in_[0].data + start * in_[0].step, [&](auto* from) {
            with_float_type(given_.layout.kind[OPERANDS], out_[0].data + start * out_[0].step, [&](auto* to) {
                convert(to, 1, from, 1, count);
            });
        });
    }

    void compute_strided(const Position& place, int64 start) {
        Tile tile[OPERANDS + 1];
        int64 last = given_.layout.axes - 1;
        for (int64 i = 0; i < OPERANDS; i++) {
            const int64* stride = given_.layout.stride[i];
            if (given_.layout.kind[i] < 0) tile[i] = {0, place.rows, place.columns, 0, 0};
            else if (step_.in[i] < MEMORY) tile[i] = {0, place.rows, place.columns, place.columns, 1};
            else tile[i] = {place.start(stride), place.rows, place.columns, stride[last - 1], stride[last]};
        }
        put_outputs(start);
        tile[OPERANDS] = {0, place.rows, place.columns, place.columns, 1};  // a tile of outputs has no gaps
        Reader reader(given_);
        compute_tile(given_, tile, reader);
    }

    void put_outputs(int64 start) {
        for (int64 j = 0; j < OUTPUTS; j++)
            if (given_.out[j]) given_.out[j] = out_[j].data + start * out_[j].step;
    }

    const Step& step_;
    Arguments given_;
    Memory in_[OPERANDS] = {}, out_[OUTPUTS] = {};
    char* stored_[OUTPUTS] = {};
    int64 rows_ = 0;  // which operands are rows, bit i for operand i, where loops of stored dtypes compute the step
    float number_[OPERANDS] = {};
};

}  // namespace

// Computes the steps in their order. arrays: what they read from memory and store there, aligned to their elements.
EXPORT void elementwise_chain(const Step* steps, int64 count, const Tiles* tiles, const PythonTuple* arrays) {
    int64 last = tiles->axes - 1, elements = tiles->tile_rows * tiles->tile_columns;
    int64 all = ceil_div(tiles->size[last - 1], tiles->tile_rows) * ceil_div(tiles->size[last], tiles->tile_columns);
    for (int64 axis = 0; axis < last - 1; axis++) all *= tiles->size[axis];
    int64 grain = min(max(all * elements / PARTS, PARALLEL_ELEMENTS), PARTS * PARALLEL_ELEMENTS);
    parallel_for(all, max(1, grain / elements), [&](int64 begin, int64 end) {
        Scratch<char, ON_STACK> held(tiles->buffers * tiles->buffer_bytes);
        Scratch<char, ON_STACK> memory(count * int64(sizeof(Prepared)));
        if (!held || !memory) return;
        Prepared* prepared = reinterpret_cast<Prepared*>(static_cast<char*>(memory));
        Reads reads(steps, count, *tiles, arrays);
        Ahead ahead;
        for (int64 i = 0; i < count; i++) new (prepared + i) Prepared(steps[i], *tiles, arrays, held, &ahead);
        Position place(*tiles, begin), next = place;
        for (int64 t = begin; t < end; t++, place.advance()) {
            next.advance();
            if (t + 1 < end) reads.put(next, ahead);
            int64 start = place.start(tiles->stride);
            for (int64 i = 0; i < count; i++) prepared[i].compute(place, start);
        }
        wait_for_copies();
    });
}
