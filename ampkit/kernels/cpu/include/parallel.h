// Parallel loops over chunks whose boundaries do not depend on the number of threads, so neither do results.
//
// Each thread of the team begins with its own consecutive share of the chunks, the same in every loop over as many, and
// then takes what others have not begun. So an array's parts stay in the caches of the cores that wrote them: where two
// cores have caches of their own, a loop over whatever chunk is next ran at 0.4 of the speed.
#pragma once
#include "array.h"

using Task = void (*)(void*);

// Runs task(data) on every thread of the team at once and returns when all have returned.
void run_on_team(Task task, void* data);

// The calling thread's number in the team that runs a task, and how many there are.
struct Place { int64 thread, threads; };
Place place_in_team();

// How many threads a team has, as far as is known outside of a task. No result may depend on it.
int64 team_size();

constexpr int64 MAX_SHARES = 64;
constexpr int64 PARALLEL_ELEMENTS = 16384;  // work on fewer elements is not worth waking threads
// The same for sums and extremes, which are faster: 2 threads start in some 8 us, in which one adds 200,000 elements.
constexpr int64 PARALLEL_TERMS = 131072;

// body(begin, end) for consecutive ranges of at most `grain` items that cover [0, count), on all threads.
template <class Body>
void parallel_for(int64 count, int64 grain, const Body& body) {
    if (count <= grain) {
        if (count > 0) body(int64(0), count);
        return;
    }
    struct Job {
        const Body& body;
        int64 count, grain;
        struct { alignas(64) int64 begun; } share[MAX_SHARES];  // how many chunks of each share were begun
    } job{body, count, grain, {}};
    run_on_team([](void* data) {
        Job& job = *static_cast<Job*>(data);
        Place place = place_in_team();
        int64 chunks = ceil_div(job.count, job.grain), shares = min(place.threads, MAX_SHARES);
        for (int64 i = 0; i < shares; i++) {
            int64 share = (place.thread + i) % shares;
            int64 first = chunks * share / shares, end = chunks * (share + 1) / shares;
            for (int64 chunk; (chunk = first + __atomic_fetch_add(&job.share[share].begun, 1, __ATOMIC_RELAXED)) < end;)
                job.body(chunk * job.grain, min((chunk + 1) * job.grain, job.count));
        }
    }, &job);
}

// body(begin, end) for ranges of `rows` rows of `columns` elements each: all, on the calling thread, for `alone` elements.
template <class Body>
void parallel_rows(int64 rows, int64 columns, const Body& body, int64 alone = PARALLEL_ELEMENTS) {
    int64 grain = rows <= alone / max(columns, 1) ? rows : max(1, PARALLEL_ELEMENTS / max(columns, 1));
    parallel_for(rows, grain, body);
}

// The sum of value(i) for i in [0, count): float32 within blocks of 512, float64 beyond, so that long sums stay accurate. A
// block that overflows is added once more in float64.
template <class Value>
inline double blocked_sum(int64 count, const Value& value) {
    double total = 0.0;
    for (int64 begin = 0; begin < count; begin += 512) {
        int64 end = min(begin + 512, count);
        float partial = 0.0f;
        SIMD_SUM(partial) for (int64 i = begin; i < end; i++) partial += value(i);
        if (partial - partial == 0.0f) {
            total += partial;
        } else {
            for (int64 i = begin; i < end; i++) total += value(i);
        }
    }
    return total;
}

// The same of value(i, zero), computed in the type of `zero`: float32, and once more in float64 where that overflows or is
// below `least`.
template <class Value>
inline double wide_sum(int64 count, double least, const Value& value) {
    double total = blocked_sum(count, [&](int64 i) { return value(i, 0.0f); });
    if (total - total == 0.0 && !(total < least)) return total;
    total = 0.0;
    SIMD_SUM(total) for (int64 i = 0; i < count; i++) total += value(i, 0.0);
    return total;
}
