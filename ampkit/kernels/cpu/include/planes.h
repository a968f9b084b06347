// Channels [samples, channels, positions] read as planes or as rows of channels, for their norms.
//
// A plane is one channel of one sample. Planes form sets with common statistics: in batch norm all planes of a channel,
// in group norm those of adjacent channels of a sample. Where channels, not positions, are adjacent in memory, rows of
// channels are read, several positions as one row.
#pragma once
#include "parallel.h"

constexpr int64 BLOCK = 1024;  // elements of a plane that are read and summed at a time

struct Shape {
    int64 samples, channels, positions, planes, groups, members, lanes = 0;

    // groups: of channels, in group norm; 0 in batch norm. members: planes of a set. lanes: positions of a row; 0 where
    // planes are read.
    Shape(const Array& x, const Array& y, const Array& z, int64 groups_)
        : samples(x.size[0]), channels(x.size[1]), positions(x.size[2]), planes(samples * channels), groups(groups_),
          members(groups ? channels / groups : samples) {
        if (x.stride[1] != 1 || channels == 1 || (x.stride[2] == 1 && positions > 1)) return;
        bool evenly = evenly_spaced(x) && evenly_spaced(y) && evenly_spaced(z);
        lanes = evenly ? max(1, min(256 / channels, positions)) : 1;
        while (positions % lanes) lanes--;
    }
    bool evenly_spaced(const Array& a) const { return !a || a.stride[2] == channels * a.stride[1]; }
    int64 sets() const { return groups ? samples * groups : channels; }
    int64 plane(int64 set, int64 member) const { return groups ? set * members + member : member * channels + set; }
    int64 set_of(int64 plane) const { return groups ? plane / members : plane % channels; }
    int64 width() const { return max(1, lanes) * channels; }
    int64 rows() const { return positions / lanes; }                       // of a sample
    int64 chunk() const { return min(128, max(8, 16384 / width())); }      // rows that are summed in float32
    int64 chunks() const { return ceil_div(rows(), chunk()); }             // of a sample
    int64 run() const { return lanes ? width() : min(BLOCK, positions); }  // the longest run
};

// A run: elements of one plane, or one row. Element `k` is `step` elements after the one before.
struct Run { int64 sample, channel, position, count, axis; };

inline int64 start_of(const Array& a, const Run& run) { return a.offset(run.sample, run.channel, run.position); }

// The run as float32: in place where it is, else in `buffer`.
inline const float* read_run(const Array& a, const Run& run, float* buffer) {
    int64 start = start_of(a, run), stride = a.stride[run.axis];
    if (a.kind == FLOAT32 && stride == 1) return static_cast<const float*>(a.data) + start;
    read_floats(buffer, a.data, a.kind, start, stride, run.count);
    return buffer;
}

// visit(out, x, dy) with the run of each array, null for one that is not there: as they are stored where all are adjacent
// elements of one dtype, else as float32, in the buffers.
template <class Visit>
inline void with_runs(const Run& run, const Array& out, const Array& x, const Array& dy, float* out_buffer, float* x_buffer,
                      float* dy_buffer, const Visit& visit) {
    auto as_x = [&](const Array& a) { return !a || (a.kind == x.kind && a.stride[run.axis] == 1); };
    if (as_x(out) && as_x(x) && as_x(dy)) {
        return with_float_type(x.kind, x.data, [&](auto* data) {
            auto at = [&](const Array& a) { return a ? static_cast<decltype(data)>(a.data) + start_of(a, run) : nullptr; };
            visit(at(out), at(x), at(dy));
        });
    }
    bool in_place = out && out.kind == FLOAT32 && out.stride[run.axis] == 1;
    float* to = in_place ? static_cast<float*>(out.data) + start_of(out, run) : out_buffer;
    visit(to, read_run(x, run, x_buffer), dy ? read_run(dy, run, dy_buffer) : static_cast<const float*>(nullptr));
    if (out && !in_place) write_floats(to, out.data, out.kind, start_of(out, run), out.stride[run.axis], run.count);
}

inline Run row_of(const Shape& shape, int64 sample, int64 row) {
    return {sample, 0, row * shape.lanes, shape.width(), 1};
}

inline Run block_of(const Shape& shape, int64 plane, int64 at) {
    return {plane / shape.channels, plane % shape.channels, at, min(BLOCK, shape.positions - at), 2};
}

// work(run) for all elements.
template <class Work>
void for_each_run(const Shape& shape, const Work& work) {
    int64 per_plane = ceil_div(shape.positions, BLOCK), per_sample = shape.lanes ? shape.rows() : 0;
    int64 count = shape.lanes ? shape.samples * per_sample : shape.planes * per_plane;
    parallel_rows(count, shape.run(), [&](int64 begin, int64 end) {
        Scratch<float> first(shape.run()), second(shape.run()), third(shape.run());
        if (!(first && second && third)) return;
        for (int64 i = begin; i < end; i++)
            work(shape.lanes ? row_of(shape, i / per_sample, i % per_sample)
                             : block_of(shape, i / per_plane, i % per_plane * BLOCK), first, second, third);
    });
}

// Coefficients of the planes, float32, as rows of the width of what is read at once.
struct Coefficients {
    const Shape& shape;
    Scratch<float> values;
    Coefficients(const Shape& shape_, int64 kinds) : shape(shape_), values(kinds * shape.samples * shape.width()) {}
    float* row(int64 kind, int64 sample) { return values + (kind * shape.samples + sample) * shape.width(); }
    const float* of(int64 kind, const Run& run) { return row(kind, run.sample) + run.channel; }
    void set(int64 kind, int64 plane, float value) {
        float* to = row(kind, plane / shape.channels) + plane % shape.channels;
        for (int64 at = 0; at < shape.width(); at += shape.channels) to[at] = value;
    }
};

// Sums of rows: part [3, width] of each chunk of rows, by sum_rows(part, sample, first row, end), are given to
// add(plane, rows, part's three numbers), for each plane in order.
template <class SumRows, class Add>
void sum_columns(const Shape& shape, const SumRows& sum_rows, const Add& add) {
    int64 width = shape.width(), chunks = shape.chunks(), grain = shape.chunk(), rows = shape.rows();
    Scratch<float> scratch(shape.samples * chunks * 3 * width);
    if (!scratch) return;
    float* parts = scratch;
    parallel_for(shape.samples * chunks, 1, [&](int64 begin, int64 end) {
        for (int64 i = begin; i < end; i++) {
            int64 first = i % chunks * grain;
            memset(parts + i * 3 * width, 0, 3 * width * sizeof(float));
            sum_rows(parts + i * 3 * width, i / chunks, first, min(first + grain, rows));
        }
    });
    parallel_rows(shape.planes, chunks * shape.lanes * 8, [&](int64 begin, int64 end) {
        for (int64 p = begin; p < end; p++)
            for (int64 i = 0; i < chunks; i++) {
                const float* part = parts + (p / shape.channels * chunks + i) * 3 * width;
                for (int64 at = p % shape.channels; at < width; at += shape.channels)
                    add(p, min(grain, rows - i * grain), part[at], part[at + width], part[at + 2 * width]);
            }
    });
}
