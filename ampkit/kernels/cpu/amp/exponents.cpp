// Counting of values by binary exponent and by the limits of narrow formats, and of updates that 16 bits would lose.
#include "../include/parallel.h"

constexpr int64 EXPONENTS = 256, LIMITS = 14, PIECE = 1024, PIECES_OF_TASK = 64, COPIES = 8;

// Magnitudes of a row as bits of float32. float64 is rounded to odd, which keeps each value's side of a limit.
static void read_magnitudes(int32_t* bits, const Array& values, int64 start, int64 count) {
    int64 stride = values.stride[2];
    if (values.kind != FLOAT64) {
        float buffer[PIECE];
        const float* from = buffer;
        if (values.is_float32_row()) from = static_cast<const float*>(values.data) + start;
        else read_floats(buffer, values.data, values.kind, start, stride, count);
        SIMD for (int64 i = 0; i < count; i++) bits[i] = int32_t(bits_of(from[i]) & 0x7fffffff);
        return;
    }
    const double* from = static_cast<const double*>(values.data) + start;
    for (int64 i = 0; i < count; i++) {
        double wide = __builtin_fabs(from[i * stride]), near = float(wide);
        uint32_t rounded = bits_of(float(near)) - (near > wide);
        bits[i] = int32_t(rounded | (near != wide && wide == wide));
    }
}

// Several copies of the counts by exponent, so that equal exponents in a row do not wait for each other's stores.
struct Counts {
    uint32_t exponents[COPIES][EXPONENTS] = {};
    int64 at_least[LIMITS] = {};
    int64 largest = 0;
};

static int32_t count_at_least(const int32_t* bits, int64 count, int32_t limit) {
    int32_t found = 0;
    SIMD_SUM(found) for (int64 i = 0; i < count; i++) found += bits[i] >= limit ? 1 : 0;
    return found;
}

// The largest of the magnitudes below `bound`.
static int32_t largest_below(const int32_t* bits, int64 count, uint32_t bound) {
    int32_t largest = 0;
    SIMD_MAX(largest) for (int64 i = 0; i < count; i++) {
        int32_t magnitude = uint32_t(bits[i]) < bound ? bits[i] : 0;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// The smallest of the magnitudes that are not zero; the largest integer if there is none.
static int32_t smallest_of(const int32_t* bits, int64 count) {
    constexpr int32_t END = 0x7fffffff;
    int32_t distance = 0;
    SIMD_MAX(distance) for (int64 i = 0; i < count; i++) {
        int32_t below = bits[i] ? END - bits[i] : 0;
        distance = below > distance ? below : distance;
    }
    return END - distance;
}

// The first limit is 1, that of what is not zero: it is also the count of every other limit below all such values.
static void count_limits(const int32_t* bits, int64 count, const int32_t* limits, Counts& counts) {
    int32_t largest = largest_below(bits, count, 0x80000000), smallest = smallest_of(bits, count);
    int64 nonzero = count_at_least(bits, count, limits[0]);
    for (int64 k = 0; k < LIMITS; k++)
        if (limits[k] <= largest)
            counts.at_least[k] += limits[k] <= smallest ? nonzero : count_at_least(bits, count, limits[k]);
    if (largest >= 0x7f800000) largest = largest_below(bits, count, 0x7f800000);
    counts.largest = max(counts.largest, largest);
}

static void count_piece(const int32_t* bits, int64 count, const int32_t* limits, Counts& counts) {
    int64 i = 0;
    for (; i + COPIES <= count; i += COPIES)
        for (int64 copy = 0; copy < COPIES; copy++) counts.exponents[copy][bits[i + copy] >> 23]++;
    for (; i < count; i++) counts.exponents[0][bits[i] >> 23]++;
    count_limits(bits, count, limits, counts);
}

// Integers, so that the order in which threads add does not change the sums.
static void add(int64* to, int64 count) { if (count) __atomic_fetch_add(to, count, __ATOMIC_RELAXED); }

static void add_counts(int64* out, const Counts& counts) {
    for (int64 e = 0; e < EXPONENTS; e++) {
        int64 sum = 0;
        for (int64 copy = 0; copy < COPIES; copy++) sum += counts.exponents[copy][e];
        add(out + e, sum);
    }
    for (int64 k = 0; k < LIMITS; k++) add(out + EXPONENTS + k, counts.at_least[k]);
    int64 *to = out + EXPONENTS + LIMITS, held = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (held < counts.largest &&
           !__atomic_compare_exchange_n(to, &held, counts.largest, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

// Of the values [first, end) of a vector of any floating-point dtype.
static void count_values(const Array& values, int64 first, int64 end, const int32_t* limits, int64* out) {
    parallel_for(ceil_div(end - first, PIECE), PIECES_OF_TASK, [=](int64 piece, int64 last) {
        alignas(64) int32_t bits[PIECE];
        Counts counts;
        for (; piece < last; piece++) {
            int64 start = first + piece * PIECE, count = min(PIECE, end - start);
            read_magnitudes(bits, values, start, count);
            count_piece(bits, count, limits, counts);
        }
        add_counts(out, counts);
    });
}

// values [n] of any floating-point dtype; limits [14]; out [271]: see amp/exponents.py.
static void count_exponents(Array values, const int32_t* limits, int64* out) {
    count_values(values, 0, values.size[2], limits, out);
}
KERNEL(count_exponents)

// The same of segments of it; segments [count, 2], where each begins and ends; out [count, 271].
static void count_exponents_of_segments(Array values, const int32_t* limits, const int64* segments, int64* out,
                                        int64 count) {
    for (int64 i = 0; i < count; i++)
        count_values(values, segments[2 * i], segments[2 * i + 1], limits, out + i * (EXPONENTS + LIMITS + 1));
}
KERNEL(count_exponents_of_segments)

// How many of the float32 weights, rounded to T, do not change by an update that is not zero.
template <class T>
static int32_t lost_updates(const float* before, const float* after, int64 count) {
    int32_t lost = 0;
    SIMD_SUM(lost) for (int64 i = 0; i < count; i++) {
        float update = after[i] - before[i];
        T weight, moved;
        weight = before[i];
        moved = float(weight) + update;
        lost += (float(moved) == float(weight)) & (update != 0.0f);
    }
    return lost;
}

static void count_lost(const float* before, const float* after, int64 first, int64 last, int64* out) {
    parallel_for(last - first, PARALLEL_ELEMENTS, [=](int64 begin, int64 end) {
        const float *old = before + first + begin, *now = after + first + begin;
        int64 count = end - begin;
        int32_t changed = 0;
        SIMD_SUM(changed) for (int64 i = 0; i < count; i++) changed += now[i] - old[i] != 0.0f;
        add(out, changed);
        add(out + 1, lost_updates<float16>(old, now, count));
        add(out + 2, lost_updates<bfloat16>(old, now, count));
    });
}

// before, after [n] float32; out [3] int64 += how many changed, and how many updates float16 and bfloat16 would lose.
EXPORT void count_lost_updates(const float* before, const float* after, int64* out, int64 size) {
    count_lost(before, after, 0, size, out);
}

// The same of segments of them; segments [count, 2], where each begins and ends; out [count, 3].
EXPORT void lost_updates_of_segments(const float* before, const float* after, const int64* segments, int64* out,
                                     int64 count) {
    for (int64 i = 0; i < count; i++) count_lost(before, after, segments[2 * i], segments[2 * i + 1], out + 3 * i);
}
