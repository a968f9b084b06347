// The threads that kernels run on: the team of oneDNN's OpenMP where Python handed it over, else a pool of our own.
#include "include/parallel.h"
#include "include/signals.h"

int64 failed_allocations = 0;
NumpyFacts numpy_facts;

namespace {

// libgomp's entry for a parallel region: function, its argument, number of threads (0: as set), flags.
using OpenMP = void (*)(void (*)(void*), void*, unsigned, unsigned);
OpenMP openmp = nullptr;
int (*openmp_thread)() = nullptr, (*openmp_threads)() = nullptr, (*openmp_limit)() = nullptr;
int wanted = 1;  // threads of the pool, the caller included

// A pool of wanted - 1 threads. The caller of a task works too; a second caller meanwhile works alone.
struct Pool {
    pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER, mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t started = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
    Task task = nullptr;
    void* data = nullptr;
    int64 generation = 0;
    int threads = 0, numbered = 0, running = 0;
};
Pool pool;
thread_local int64 pool_thread = 0;  // 0 for callers
thread_local bool has_blocked_signals = false;

void* work(void* first) {
    pthread_mutex_lock(&pool.mutex);
    pool_thread = ++pool.numbered;
    int64 seen = reinterpret_cast<intptr_t>(first);
    for (;;) {
        while (pool.generation == seen) pthread_cond_wait(&pool.started, &pool.mutex);
        seen = pool.generation;
        pthread_mutex_unlock(&pool.mutex);
        pool.task(pool.data);
        pthread_mutex_lock(&pool.mutex);
        if (--pool.running == 0) pthread_cond_signal(&pool.finished);
    }
}

void start_threads() {
    static bool registered = false;
    if (!registered) {
        // A forked child has none of its parent's threads: it starts with an empty pool.
        pthread_atfork(nullptr, nullptr, [] { pool = Pool(); });
        registered = true;
    }
    while (pool.threads < wanted - 1) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, work, reinterpret_cast<void*>(intptr_t(pool.generation)))) return;
        pthread_detach(thread);
        pool.threads++;
    }
}

}  // namespace

void run_on_team(Task task, void* data) {
    if (openmp) return openmp(task, data, 0, 0);
    if (wanted <= 1 || pthread_mutex_trylock(&pool.busy)) return task(data);
    start_threads();
    pthread_mutex_lock(&pool.mutex);
    pool.task = task, pool.data = data, pool.running = pool.threads, pool.generation++;
    pthread_cond_broadcast(&pool.started);
    pthread_mutex_unlock(&pool.mutex);
    task(data);
    pthread_mutex_lock(&pool.mutex);
    while (pool.running) pthread_cond_wait(&pool.finished, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
    pthread_mutex_unlock(&pool.busy);
}

Place place_in_team() {
    if (!openmp) return {pool_thread, pool.threads + 1};
    Place place = {openmp_thread(), openmp_threads()};
    // A thread that OpenMP has started: signals stay with those that Python knows, see onednn.cpp.
    if (place.thread && !has_blocked_signals) block_signals(), has_blocked_signals = true;
    return place;
}

int64 team_size() { return openmp ? openmp_limit() : wanted; }

// libgomp's GOMP_parallel, omp_get_thread_num, omp_get_num_threads and omp_get_max_threads.
EXPORT void use_openmp(void* parallel, void* thread, void* threads, void* limit) {
    openmp = reinterpret_cast<OpenMP>(parallel), openmp_limit = reinterpret_cast<int (*)()>(limit);
    openmp_thread = reinterpret_cast<int (*)()>(thread), openmp_threads = reinterpret_cast<int (*)()>(threads);
}

// The number of threads of the pool, the caller included; idle threads of a larger pool stay.
EXPORT void set_pool_threads(int64 threads) { wanted = int(threads); }

// none: the object None. numbers, kinds: of `count` dtypes, NumPy's number and the Kind.
EXPORT void set_numpy_facts(const void* none, int64 tuple_items, const int64* numbers, const int64* kinds, int64 count) {
    numpy_facts.none = none, numpy_facts.tuple_items = tuple_items;
    memset(numpy_facts.kind, -1, sizeof numpy_facts.kind);
    for (int64 i = 0; i < count; i++) numpy_facts.kind[numbers[i]] = static_cast<signed char>(kinds[i]);
}

// out [8]: the fields of an Array, by which Python sees that it is read as NumPy means it.
static void read_array(Array array, int64* out) { memcpy(out, &array, sizeof array); }
KERNEL(read_array)

// Item i of a tuple, or the last, as the number of its object.
EXPORT int64 read_tuple(const PythonTuple* tuple, int64 i) {
    return reinterpret_cast<int64>(tuple->item(min(i, tuple->count - 1)));
}
