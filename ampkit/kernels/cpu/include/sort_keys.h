// Integer keys that are ordered like values, with NaN largest and -0 equal to 0; and entries sorted by them.
#pragma once
#include "array.h"
#include "simd_math.h"

namespace {

using simd::ordered;

// Keys of 32 bits for floats of at most 32 bits, else of 64; ~key orders from the largest.
INLINE uint32_t key_of(float x) { return x != x ? UINT32_MAX : uint32_t(ordered(x + 0.0f)) ^ 0x80000000u; }
INLINE uint32_t key_of(int32_t x) { return uint32_t(x) ^ 0x80000000u; }
INLINE uint32_t key_of(uint8_t x) { return x; }
INLINE uint64_t key_of(int64 x) { return uint64_t(x) ^ (uint64_t(1) << 63); }
INLINE uint64_t key_of(double x) {
    int64 bits;
    x += 0.0;
    memcpy(&bits, &x, 8);
    return x != x ? UINT64_MAX : key_of(bits ^ int64(uint64_t(bits >> 63) >> 1));
}
INLINE uint32_t key_of(bfloat16 x) { return key_of(float(x)); }
INLINE uint32_t key_of(float16 x) { return key_of(float(x)); }

template <class Key>
struct Entry {
    Key key;
    Key place;  // in the row
};

// Sorts entries by key, stable: one pass per digit of DIGIT bits from the lowest, none for a digit that all share.
template <class Key>
Entry<Key>* radix_sort(Entry<Key>* from, Entry<Key>* to, int64 n) {
    constexpr int DIGIT = 8, DIGITS = sizeof(Key), VALUES = 1 << DIGIT;
    uint32_t count[DIGITS][VALUES] = {};
    for (int64 i = 0; i < n; i++) {
        for (int d = 0; d < DIGITS; d++) count[d][uint8_t(from[i].key >> (d * DIGIT))]++;
    }
    for (int d = 0; d < DIGITS; d++) {
        uint32_t* place = count[d];
        if (place[uint8_t(from[0].key >> (d * DIGIT))] == n) continue;
        for (uint32_t value = 0, total = 0; value < VALUES; value++) {
            uint32_t own = place[value];
            place[value] = total, total += own;
        }
        for (int64 i = 0; i < n; i++) to[place[uint8_t(from[i].key >> (d * DIGIT))]++] = from[i];
        Entry<Key>* other = from;
        from = to, to = other;
    }
    return from;
}

}  // namespace
