// Places of the k-th smallest and of the most frequent value of rows of x [a, b, n].
#include "../include/parallel.h"
#include "../include/sort_keys.h"

namespace {

template <class Key>
INLINE int64 count_below(const Key* __restrict keys, int64 n, Key bound) {
    Key count = 0;
    SIMD_SUM(count) for (int64 i = 0; i < n; i++) count += keys[i] < bound;
    return int64(count);
}

// The k-th smallest of n keys, k from 0 on; k becomes how many equal ones are before it. The key is found bit by bit, from
// the highest in which keys differ: each pass counts, which vectorizes and has no branch to mispredict. Of many keys, those
// that are still in question are copied to the front now and then, so keys are lost.
template <class Key>
Key kth_smallest(Key* keys, int64 n, int64* k) {
    constexpr int64 FEW = 2048, BITS = 6;
    const Key first = keys[0];
    Key differ = 0;
    _Pragma("omp simd reduction(| : differ)") for (int64 i = 0; i < n; i++) differ |= keys[i] ^ first;
    int bit = differ ? 63 - __builtin_clzll(differ) : -1, copied = bit;
    Key found = bit < 0 ? first : Key(first >> bit >> 1 << bit << 1);
    for (; bit >= 0; bit--) {
        Key trial = found | Key(1) << bit;
        if (count_below(keys, n, trial) <= *k) found = trial;
        if (n <= FEW || copied - bit < BITS) continue;
        copied = bit;
        Key width = Key(1) << bit;
        int64 kept = 0, below = 0;
        for (int64 i = 0; i < n; i++) {
            Key key = keys[i];
            keys[kept] = key, kept += Key(key - found) < width, below += key < found;
        }
        n = kept, *k -= below;
    }
    *k -= count_below(keys, n, found);
    return found;
}

template <class T>
int64 place_in_order(const T* row, int64 n, int64 step, int64 k, bool median, bool skip_nan) {
    using Key = decltype(key_of(*row));
    Scratch<Key, 2048> memory(n);
    if (!memory) return 0;
    Key* __restrict keys = memory;
    if (step == 1) {
        SIMD for (int64 i = 0; i < n; i++) keys[i] = key_of(row[i]);
    } else {
        for (int64 i = 0; i < n; i++) keys[i] = key_of(row[i * step]);
    }
    if (median) {
        int64 numbers = 0;
        for (int64 i = 0; i < n; i++) numbers += row[i * step] == row[i * step];
        k = numbers < n && !skip_nan ? numbers : max(numbers - 1, 0) / 2;
    }
    Key found = kth_smallest(keys, n, &k);
    for (int64 i = 0; i < n; i++) {
        if (key_of(row[i * step]) == found && k-- == 0) return i;
    }
    return 0;
}

// The last place of the longest run of equal values in order, of runs of a length the first. NaN is a run of its own.
template <class T>
int64 place_of_mode(const T* row, int64 n, int64 step) {
    using Key = decltype(key_of(*row));
    Scratch<Entry<Key>> memory(2 * n);
    if (!memory) return 0;
    Entry<Key>* entries = memory;
    for (int64 i = 0; i < n; i++) entries[i] = {key_of(row[i * step]), Key(i)};
    entries = radix_sort(entries, entries + n, n);
    T last = row[int64(entries[n - 1].place) * step];
    int64 numbers = n, longest = 0, found = 0;
    if (last != last) {  // NaN is at the end, where all that it could do is be the first run
        while (numbers > 0 && entries[numbers - 1].key == entries[n - 1].key) numbers--;
        if (numbers == 0) return int64(entries[0].place);
    }
    for (int64 i = 0, end; i < numbers; i = end) {
        for (end = i + 1; end < numbers && entries[end].key == entries[i].key;) end++;
        if (end - i > longest) longest = end - i, found = end - 1;
    }
    return int64(entries[found].place);
}

// places [a, b, 1] = place(row) of each row of x.
template <class Place>
void for_rows(const Array& places, const Array& x, const Place& place) {
    int64 inner = x.size[1], n = x.size[2];
    parallel_for(x.size[0] * inner, max(1, 4096 / n), [&](int64 begin, int64 end) {
        for (int64 item = begin; item < end; item++) {
            int64 i = item / inner, j = item % inner;
            with_type(x.kind, x.data, [&](auto* data) {
                *address<int64>(places, i, j) = place(data + x.offset(i, j), n, x.stride[2]);
            });
        }
    });
}

}  // namespace

// places: of the element k of each row in stable ascending order, k from 0 on; -1: of the median, the lower one of two,
// which is the first NaN where there is one, or with skip_nan that of the other elements. 0 < n < 2^31.
static void places_in_order(Array places, Array x, int64 k, int64 skip_nan) {
    for_rows(places, x, [=](auto* row, int64 n, int64 step) { return place_in_order(row, n, step, k, k < 0, skip_nan); });
}
KERNEL(places_in_order)

// places: the last one of the most frequent value of each row, of ties the smallest. 0 < n < 2^31.
static void places_of_modes(Array places, Array x) {
    for_rows(places, x, [](auto* row, int64 n, int64 step) { return place_of_mode(row, n, step); });
}
KERNEL(places_of_modes)
