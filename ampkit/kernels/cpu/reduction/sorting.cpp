// Sorting rows of x [a, b, n] by integer keys that are ordered like the values (include/sort_keys.h).
#include "../include/parallel.h"
#include "../include/sort_keys.h"

using namespace simd;

namespace {

// The first k of a row in order, by a full sort. values may have no data.
template <class T>
void sort_row(const Array& values, const Array& places, const Array& x, const T* row, int64 i, int64 j, int64 descending) {
    using Key = decltype(key_of(*row));
    int64 n = x.size[2], step = x.stride[2];
    Scratch<Entry<Key>> memory(2 * n);
    if (!memory) return;
    Entry<Key>* entries = memory;
    Key flip = descending ? Key(~Key(0)) : Key(0);
    for (int64 k = 0; k < n; k++) entries[k] = {Key(key_of(row[k * step]) ^ flip), Key(k)};
    entries = radix_sort(entries, entries + n, n);
    T* value = address<T>(values, i, j);
    int64* place = address<int64>(places, i, j);
    for (int64 k = 0; k < places.size[2]; k++) {
        place[k * places.stride[2]] = int64(entries[k].place);
        value[k * values.stride[2]] = row[int64(entries[k].place) * step];
    }
}

// A heap of the best entries found, the worst of them first. An entry is a key above the complement of its place: of
// equal keys the first place is best.
void sift_down(uint64_t* heap, int64 size, uint64_t entry) {
    int64 at = 0;
    for (int64 child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= entry) break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

// The first k of a row in order: blocks without a key above the worst in the heap are passed over.
template <class T>
void select_row(const Array& values, const Array& places, const Array& x, const T* row, int64 i, int64 j, int64 descending) {
    constexpr int64 BLOCK = 256;
    int64 n = x.size[2], k = places.size[2], step = x.stride[2], size = 0;
    Scratch<uint64_t> memory(k);
    if (!memory) return;
    uint64_t* heap = memory;
    uint32_t keys[BLOCK], flip = descending ? 0 : UINT32_MAX;
    for (int64 start = 0; start < n; start += BLOCK) {
        int64 count = min(BLOCK, n - start);
        const T* __restrict block = row + start * step;
        uint32_t most = 0;
        _Pragma("omp simd reduction(max : most)") for (int64 at = 0; at < count; at++) {
            uint32_t key = key_of(block[at * step]) ^ flip;
            keys[at] = key, most = key > most ? key : most;
        }
        if (size == k && most <= heap[0] >> 32) continue;
        for (int64 at = 0; at < count; at++) {
            uint64_t entry = uint64_t(keys[at]) << 32 | uint32_t(~uint32_t(start + at));
            if (size == k) {
                if (entry > heap[0]) sift_down(heap, k, entry);
                continue;
            }
            int64 child = size++;  // up from the end
            for (; child > 0 && heap[(child - 1) / 2] > entry; child = (child - 1) / 2) heap[child] = heap[(child - 1) / 2];
            heap[child] = entry;
        }
    }
    T* value = address<T>(values, i, j);
    int64* place = address<int64>(places, i, j);
    while (size > 0) {
        int64 at = uint32_t(~uint32_t(heap[0]));
        uint64_t last = heap[--size];
        place[size * places.stride[2]] = at, value[size * values.stride[2]] = row[at * step];
        sift_down(heap, size, last);
    }
}

}  // namespace

// values, places [a, b, k]: the first k of each row of x [a, b, n] in ascending or descending order, stable, and where
// in the row they are. n < 2^31.
static void sort_rows(Array values, Array places, Array x, int64 descending) {
    int64 inner = x.size[1], n = x.size[2], k = places.size[2];
    bool few = k * 16 <= n && x.kind != FLOAT64 && x.kind != INT64;
    parallel_for(x.size[0] * inner, max(1, 4096 / max(n, 1)), [&](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 i = item / inner, j = item % inner;
            with_type(x.kind, x.data, [&](auto* data) {
                auto* row = data + x.offset(i, j);
                if constexpr (sizeof(key_of(*row)) == 4) {
                    if (few) return select_row(values, places, x, row, i, j, descending);
                }
                sort_row(values, places, x, row, i, j, descending);
            });
        }
    });
}
KERNEL(sort_rows)

// The place of the extreme of a row: the block with the largest key, then the first element with that key.
template <class T>
static int64 arg_extreme(const T* __restrict row, int64 n, int64 step, uint32_t flip) {
    constexpr int64 BLOCK = 512;
    uint32_t keys[BLOCK], best = 0;
    int64 found = -1;
    for (int64 start = 0; start < n; start += BLOCK) {
        int64 count = min(BLOCK, n - start);
        uint32_t most = 0;
        _Pragma("omp simd reduction(max : most)") for (int64 k = 0; k < count; k++) {
            float value = row[(start + k) * step];
            uint32_t key = value != value ? UINT32_MAX : key_of(value) ^ flip;
            keys[k] = key, most = key > most ? key : most;
        }
        if (found >= 0 && most <= best) continue;
        int64 at = 0;
        while (keys[at] != most) at++;
        best = most, found = start + at;
    }
    return found;
}

// places [a, b, 1]: where in each row of x [a, b, n] the largest value is, or the smallest; of equals the first. NaN
// comes before all else.
static void arg_extreme_of_rows(Array places, Array x, int64 smallest) {
    int64 inner = x.size[1], n = x.size[2];
    parallel_rows(x.size[0] * inner, n, [&](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 i = item / inner, j = item % inner;
            with_float_type(x.kind, x.data, [&](auto* data) {
                auto* row = data + x.offset(i, j);
                *address<int64>(places, i, j) = arg_extreme(row, n, x.stride[2], smallest ? UINT32_MAX : 0);
            });
        }
    });
}
KERNEL(arg_extreme_of_rows)

// As arg_extreme_of_rows, along the middle axis: places [a, 1, c] of x [a, n, c].
static void arg_extreme_of_columns(Array places, Array x, int64 smallest) {
    constexpr int64 BLOCK = 512;
    int64 n = x.size[1], c = x.size[2], blocks = ceil_div(c, BLOCK);
    parallel_rows(x.size[0] * blocks, n * min(c, BLOCK), [&](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 i = item / blocks, first = item % blocks * BLOCK, count = min(BLOCK, c - first);
            uint32_t keys[BLOCK], at[BLOCK], flip = smallest ? UINT32_MAX : 0;
            with_float_type(x.kind, x.data, [&](auto* data) {
                int64 step = x.stride[2];
                for (int64 j = 0; j < n; j++) {
                    auto* __restrict row = data + x.offset(i, j, first);
                    SIMD for (int64 k = 0; k < count; k++) {
                        float value = row[k * step];
                        uint32_t key = value != value ? UINT32_MAX : key_of(value) ^ flip;
                        bool wins = (j == 0) | (key > keys[k]);
                        keys[k] = wins ? key : keys[k], at[k] = wins ? uint32_t(j) : at[k];
                    }
                }
            });
            for (int64 k = 0; k < count; k++) *address<int64>(places, i, 0, first + k) = at[k];
        }
    });
}
KERNEL(arg_extreme_of_columns)
