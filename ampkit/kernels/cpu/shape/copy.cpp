// Copies between arrays of one shape, any strides and floating-point dtypes, or within any one dtype.
#include "../include/parallel.h"

constexpr int64 AXES = 8;

// `struct Layout` of copies.py: the axes to copy along, from the innermost in the target's memory. Strides in elements.
// itemsize: 1, 2, 4 or 8 bytes of elements that are copied as they are; 0: from one floating-point dtype to another.
struct Layout {
    int64 axes, size[AXES], to_stride[AXES], from_stride[AXES], itemsize, to_kind, from_kind;
};

// Walks over the positions along the axes from `first` on, in steps of `step` elements along each.
class Walk {
  public:
    Walk(const Layout& layout, int64 first, const int64 (&step)[AXES], int64 item) : layout_(layout), step_(step), first_(first) {
        for (int64 axis = first; axis < layout.axes; axis++) {
            int64 steps = ceil_div(layout.size[axis], step[axis]);
            move(axis, item % steps * step[axis]);
            item /= steps;
        }
    }
    void next() {
        for (int64 axis = first_; axis < layout_.axes; axis++) {
            if (position[axis] + step_[axis] < layout_.size[axis]) return move(axis, step_[axis]);
            move(axis, -position[axis]);
        }
    }
    int64 position[AXES] = {}, to = 0, from = 0;

  private:
    void move(int64 axis, int64 by) {
        position[axis] += by, to += by * layout_.to_stride[axis], from += by * layout_.from_stride[axis];
    }
    const Layout& layout_;
    const int64 (&step_)[AXES];
    int64 first_;
};

// `rows` rows of `columns` elements: element i of row j is i * stride[0] + j * stride[1] elements behind the first.
template <class To, class From>
static void convert_rows(To* to, const int64* to_stride, const From* from, const int64* from_stride, int64 rows, int64 columns) {
    const int64 to_row = to_stride[1], from_row = from_stride[1], to_step = to_stride[0], from_step = from_stride[0];
    if (to_step == 1 && from_step == 1) {
        for (; rows--; to += to_row, from += from_row) convert_run(to, from, columns);
    } else {
        for (; rows--; to += to_row, from += from_row) convert(to, to_step, from, from_step, columns);
    }
}

// Rows along axis 0, long ones in pieces, several of axis 1 at a time.
template <class To, class From>
static void copy_rows(To* to, const From* from, const Layout& layout) {
    int64 piece = min(layout.size[0], PARALLEL_ELEMENTS), several = min(layout.size[1], PARALLEL_ELEMENTS / piece);
    int64 step[AXES] = {piece, several, 1, 1, 1, 1, 1, 1}, items = 1;
    for (int64 axis = 0; axis < layout.axes; axis++) items *= ceil_div(layout.size[axis], step[axis]);
    parallel_rows(items, piece * several, [=, &layout](int64 begin, int64 end) {
        Walk at(layout, 0, step, begin);
        for (int64 item = begin; item < end; item++, at.next()) {
            int64 columns = min(piece, layout.size[0] - at.position[0]), rows = min(several, layout.size[1] - at.position[1]);
            convert_rows(to + at.to, layout.to_stride, from + at.from, layout.from_stride, rows, columns);
        }
    });
}

// Tiles of axis 0, adjacent in the target, and of axis `other`, adjacent in the source. A tile passes through a buffer,
// so that each cache line of both is used once: lines a power of two apart displace each other.
template <class To, class From>
static void copy_tiles(To* to, const From* from, const Layout& layout, int64 other) {
    constexpr int64 TILE = 64;
    int64 step[AXES] = {1, 1, 1, 1, 1, 1, 1, 1}, items = 1;
    step[0] = step[other] = TILE;
    for (int64 axis = 0; axis < layout.axes; axis++) items *= ceil_div(layout.size[axis], step[axis]);
    parallel_rows(items, TILE * TILE, [=, &layout](int64 begin, int64 end) {
        From buffer[TILE][TILE];
        Walk at(layout, 0, step, begin);
        for (int64 item = begin; item < end; item++, at.next()) {
            int64 rows = min(TILE, layout.size[0] - at.position[0]), columns = min(TILE, layout.size[other] - at.position[other]);
            const From* source = from + at.from;
            To* target = to + at.to;
            for (int64 i = 0; i < rows; i++)
                convert(buffer[i], 1, source + i * layout.from_stride[0], layout.from_stride[other], columns);
            for (int64 j = 0; j < columns; j++) {
                To* __restrict row = target + j * layout.to_stride[other];
                if (rows == TILE && layout.to_stride[0] == 1) {
                    for (int64 i = 0; i < TILE; i++) row[i] = buffer[i][j];
                } else {
                    convert(row, layout.to_stride[0], &buffer[0][j], TILE, rows);
                }
            }
        }
    });
}

template <class To, class From>
static void copy(To* to, const From* from, const Layout& layout) {
    int64 nearest = 0;  // the axis of the smallest stride in the source
    for (int64 axis = 1; axis < layout.axes; axis++)
        if (layout.from_stride[axis] && llabs(layout.from_stride[axis]) < llabs(layout.from_stride[nearest])) nearest = axis;
    bool tiles = nearest && layout.size[0] >= 4 && layout.size[nearest] >= 4;
    if (tiles) copy_tiles(to, from, layout, nearest);
    else copy_rows(to, from, layout);
}

template <class Element>
static void copy_bits(void* to, const void* from, const Layout& layout) {
    copy(static_cast<Element*>(to), static_cast<const Element*>(from), layout);
}

// Rounds to nearest, ties to even; NaN stays NaN. -> whether it could: not for misaligned arrays.
static int64 copy_array(const NumpyArray* target, const NumpyArray* source, const Layout* layout) {
    void *to = target->data, *from = source->data;
    int64 itemsize = layout->itemsize;
    if (!is_aligned(to, itemsize ? itemsize : ITEMSIZE[layout->to_kind])) return 0;
    if (!is_aligned(from, itemsize ? itemsize : ITEMSIZE[layout->from_kind])) return 0;
    if (itemsize == 1) copy_bits<uint8_t>(to, from, *layout);
    else if (itemsize == 2) copy_bits<uint16_t>(to, from, *layout);
    else if (itemsize == 4) copy_bits<uint32_t>(to, from, *layout);
    else if (itemsize == 8) copy_bits<uint64_t>(to, from, *layout);
    else with_float_type(layout->to_kind, to, [=](auto* out) {
        with_float_type(layout->from_kind, from, [=](auto* in) { copy(out, in, *layout); });
    });
    return 1;
}
KERNEL(copy_array)

// out [rows, sum of bytes]: the rows of `count` pieces [rows, bytes] side by side.
EXPORT void join(char* out, const char* const* pieces, const int64* bytes, int64 count, int64 rows) {
    int64 whole = 0;
    for (int64 i = 0; i < count; i++) whole += bytes[i];
    parallel_rows(rows, whole / sizeof(float), [=](int64 begin, int64 end) {
        for (char* to = out + begin * whole; begin < end; begin++)
            for (int64 i = 0; i < count; to += bytes[i++]) convert_run(to, pieces[i] + begin * bytes[i], bytes[i]);
    });
}

// out, input: matrices [rows, columns] of elements of `size` bytes. Row i of each keeps its elements before column
// i + first, or with `upper` those from there on; the others become zero.
EXPORT void triangle(char* out, const char* input, int64 size, int64 matrices, int64 rows, int64 columns, int64 first, int64 upper) {
    int64 row_bytes = columns * size;
    parallel_rows(matrices * rows, row_bytes / sizeof(float), [=](int64 begin, int64 end) {
        for (int64 row = begin; row < end; row++) {
            int64 cut = min(max(row % rows + first, 0), columns) * size, from = upper ? cut : 0, to = upper ? row_bytes : cut;
            char* target = out + row * row_bytes;
            memset(target, 0, from);
            convert_run(target + from, input + row * row_bytes + from, to - from);
            memset(target + to, 0, row_bytes - to);
        }
    });
}
