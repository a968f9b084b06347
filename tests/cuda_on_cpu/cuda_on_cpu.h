// CUDA C++ on a CPU: one fiber per CUDA thread, the blocks of a grid one after another.
//
// It is there to show mistakes. Threads run in the order asked for (forward, reverse, shuffled anew at every barrier), a
// warp as far as it comes before the next: a missing barrier changes results. Shared memory starts as NaN. A barrier or
// warp primitive that not all threads reach, a shuffle from a lane outside the mask and a misaligned 16-byte access end
// the launch with a message. Subnormal float32 numbers are flushed to zero, as CuPy has kernels compiled. It does not
// run inline PTX, wmma or cooperative groups, and blocks that wait for each other hang.
#pragma once
#define CUDA_ON_CPU 1
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "stub/crt/host_defines.h"
#include <cuda_fp16.h>
#include <cuda_bf16.h>

namespace cuda_on_cpu {

enum State { READY, AT_BLOCK, AT_WARP, DONE };

struct Fiber {
    uint3 tid;
    unsigned linear;
    State state;
    bool started = false;
    jmp_buf at;
    char* stack = nullptr;
    ~Fiber() { free(stack); }
};

// Where the lanes of one mask meet. Values lie in two rooms by turns: nobody writes a room that somebody still reads.
struct Meeting {
    unsigned mask = 0, arrived = 0, turn = 0;
    const char* what = "";
    alignas(16) unsigned char room[2][32][16];
};

struct Machine {
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<std::vector<std::unique_ptr<Meeting>>> warps;
    std::vector<unsigned> order, warp_order;
    std::vector<double> dynamic;
    Fiber* current = nullptr;
    unsigned threads = 0;
    uint3 block_index;
    dim3 grid, block;
    jmp_buf home;
    void (*call)(void*, void**) = nullptr;
    void* kernel = nullptr;
    void** arguments = nullptr;
    int waiting_or = 0, waiting_and = 1, waiting_count = 0, all_or = 0, all_and = 1, all_count = 0;
    uint64_t random = 1;
    std::string error;
};

// The libraries of a process launch in turn, on one machine: its threads' stacks are too much memory for each of them.
inline Machine own;
inline Machine* machine = &own;
constexpr size_t STACK = 128 << 10;

__attribute__((noinline)) inline void give_way() {
    if (!_setjmp(machine->current->at)) _longjmp(machine->home, 1);
}

// Ends the launch: the fiber is never run again.
[[noreturn]] inline void fail(const std::string& message) {
    if (machine->error.empty()) {
        uint3 t = machine->current->tid, b = machine->block_index;
        machine->error = message + ", in thread (" + std::to_string(t.x) + ", " + std::to_string(t.y) + ", " +
                        std::to_string(t.z) + ") of block (" + std::to_string(b.x) + ", " + std::to_string(b.y) + ", " +
                        std::to_string(b.z) + ")";
    }
    for (;;) give_way();
}

inline void life() {
    for (;;) {
        machine->call(machine->kernel, machine->arguments);
        machine->current->state = DONE;
        give_way();
    }
}

inline void resume(Fiber& fiber) {
    machine->current = &fiber;
    if (_setjmp(machine->home)) return;
    if (fiber.started) _longjmp(fiber.at, 1);
    fiber.started = true;
    if (!fiber.stack) fiber.stack = static_cast<char*>(malloc(STACK));
    size_t off = fiber.linear % 61 * 320;  // stacks that all end alike would share a few lines of the cache
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack;
    context.uc_stack.ss_size = STACK - off;
    context.uc_link = nullptr;
    makecontext(&context, life, 0);
    setcontext(&context);
}

inline unsigned lane() { return machine->current->linear & 31; }

inline Meeting& meeting(unsigned mask, const char* what) {
    unsigned warp = machine->current->linear >> 5;
    unsigned there = std::min(32u, machine->threads - 32 * warp);
    if (there < 32) mask &= (1u << there) - 1;
    if (!(mask >> lane() & 1)) fail(std::string(what) + " by a lane that its mask leaves out");
    auto& all = machine->warps[warp];
    for (auto& m : all)
        if (m->mask == mask) return *m;
    all.push_back(std::make_unique<Meeting>());
    all.back()->mask = mask;
    return *all.back();
}

inline void meet(Meeting& m, const char* what) {
    if (!m.arrived) m.what = what;
    if (m.what != what && strcmp(m.what, what)) fail(std::string(what) + " meets " + m.what + " of another lane");
    m.arrived |= 1u << lane();
    if (m.arrived != m.mask) {
        machine->current->state = AT_WARP;
        give_way();
        return;
    }
    m.arrived = 0;
    m.turn++;
    unsigned first = machine->current->linear & ~31u;
    for (unsigned i = 0; i < 32; i++)
        if (m.mask >> i & 1) machine->fibers[first + i]->state = READY;
}

// The values that the lanes of a mask bring; `of` reads one.
template <typename T>
struct Gathered {
    Meeting& m;
    unsigned turn;
    const char* what;
    Gathered(unsigned mask, T value, const char* what) : m(meeting(mask, what)), turn(m.turn & 1), what(what) {
        static_assert(sizeof(T) <= 16 && std::is_trivially_copyable<T>::value, "too large for a shuffle");
        memcpy(m.room[turn][lane()], &value, sizeof(T));
        meet(m, what);
    }
    T of(unsigned lane) const {
        if (lane > 31 || !(m.mask >> lane & 1)) fail(std::string(what) + " from a lane that takes no part");
        T value;
        memcpy(&value, m.room[turn][lane], sizeof(T));
        return value;
    }
};

template <typename T, typename F>
T fold(unsigned mask, T value, const char* what, F combine) {
    Gathered<T> all(mask, value, what);
    T result = value;
    for (unsigned i = 0; i < 32; i++)
        if (i != lane() && (all.m.mask >> i & 1)) result = combine(result, all.of(i));
    return result;
}

inline void at_block(int predicate) {
    machine->waiting_or |= !!predicate;
    machine->waiting_and &= !!predicate;
    machine->waiting_count += !!predicate;
    machine->current->state = AT_BLOCK;
    give_way();
}

inline void open_barrier() {
    machine->all_or = machine->waiting_or, machine->all_and = machine->waiting_and, machine->all_count = machine->waiting_count;
    machine->waiting_or = 0, machine->waiting_and = 1, machine->waiting_count = 0;
}

inline void check_aligned(const void* p, size_t bytes) {
    if (reinterpret_cast<uintptr_t>(p) % bytes) fail("an access of " + std::to_string(bytes) + " bytes off its boundary");
}

template <typename T>
void shuffle(T* values, unsigned n) {
    for (unsigned i = n; i > 1; i--) {
        machine->random = machine->random * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(values[i - 1], values[(machine->random >> 33) % i]);
    }
}

// The threads in the order in which they run, warp by warp. 0: forward, 1: reverse, else the seed of a shuffle of the
// warps and of the lanes of each.
inline void arrange(int how) {
    auto& order = machine->order;
    unsigned n = machine->threads, warps = (n + 31) / 32;
    for (unsigned i = 0; i < n; i++) order[i] = how == 1 ? n - 1 - i : i;
    if (how <= 1) return;
    machine->warp_order.resize(warps);
    for (unsigned w = 0; w < warps; w++) machine->warp_order[w] = w;
    shuffle(machine->warp_order.data(), warps);
    unsigned at = 0;
    for (unsigned w : machine->warp_order) {
        unsigned lanes = std::min(32u, n - 32 * w);
        for (unsigned i = 0; i < lanes; i++) order[at + i] = 32 * w + i;
        shuffle(&order[at], lanes);
        at += lanes;
    }
}

inline void stuck(unsigned block, unsigned warp, unsigned done) {
    machine->error = "threads diverge: " + std::to_string(block) + " wait at __syncthreads, " + std::to_string(warp) +
                    " for others of their warp, " + std::to_string(done) + " have returned";
}

// Runs the warp of order[at] as far as it comes without others. Returns where the next one begins.
inline unsigned run_warp(unsigned at) {
    unsigned warp = machine->order[at] >> 5, end = at;
    while (end < machine->threads && machine->order[end] >> 5 == warp) end++;
    for (bool moved = true; moved;) {
        moved = false;
        for (unsigned i = at; i < end && machine->error.empty(); i++) {
            Fiber& fiber = *machine->fibers[machine->order[i]];
            if (fiber.state != READY) continue;
            resume(fiber);
            moved = machine->error.empty();
        }
    }
    return end;
}

// A warp runs as far ahead of the others as barriers let it: what they must not overwrite too early shows.
inline void run_block(int how) {
    for (auto& f : machine->fibers) f->state = READY;
    machine->waiting_or = 0, machine->waiting_and = 1, machine->waiting_count = 0;
    memset(machine->dynamic.data(), 0xff, machine->dynamic.size() * sizeof(double));
    for (;;) {
        arrange(how);
        for (unsigned at = 0; at < machine->threads && machine->error.empty();) at = run_warp(at);
        if (!machine->error.empty()) return;
        unsigned counts[4] = {0, 0, 0, 0};
        for (auto& f : machine->fibers) counts[f->state]++;
        if (counts[DONE] == machine->threads) return;
        if (counts[AT_BLOCK] != machine->threads) return stuck(counts[AT_BLOCK], counts[AT_WARP], counts[DONE]);
        open_barrier();
        for (auto& f : machine->fibers) f->state = READY;
    }
}

inline void prepare(size_t shared) {
    unsigned n = machine->threads = machine->block.x * machine->block.y * machine->block.z;
    while (machine->fibers.size() < n) machine->fibers.push_back(std::make_unique<Fiber>());
    machine->fibers.resize(n);
    machine->order.resize(n);
    for (unsigned i = 0; i < n; i++) {
        Fiber& f = *machine->fibers[i];
        machine->order[i] = f.linear = i;
        f.tid = {i % machine->block.x, i / machine->block.x % machine->block.y, i / (machine->block.x * machine->block.y)};
    }
    machine->warps.clear();
    machine->warps.resize((n + 31) / 32);
    machine->dynamic.assign((shared + 7) / 8 + 2, 0.0);
    machine->error.clear();
}

inline void run_grid(int how) {
    machine->random = how;
    size_t blocks = size_t(machine->grid.x) * machine->grid.y * machine->grid.z;
    size_t step = 1, start = 0;
    if (how > 1)  // a step that shares no factor with the number of blocks visits each once
        for (step = blocks * 5 / 8 + 1, start = how % blocks; std::__gcd(step, blocks) != 1;) step++;
    for (size_t i = 0; i < blocks && machine->error.empty(); i++) {
        size_t b = how == 1 ? blocks - 1 - i : (start + i * step) % blocks;
        machine->block_index = {unsigned(b % machine->grid.x), unsigned(b / machine->grid.x % machine->grid.y),
                               unsigned(b / machine->grid.x / machine->grid.y)};
        run_block(how);
    }
}

// kind: p pointer, i integer, f floating point, s anything else. element: what a pointer points to, the same letters
// with h for __half and b for __nv_bfloat16. constant: c for a pointer to what the kernel only reads, m for others.
// size: bytes of the parameter, or of what it points to.
struct Parameter {
    char kind, element, constant;
    int size;
};

template <typename T>
constexpr char letter() {
    using U = std::remove_cv_t<T>;
    if (std::is_same<U, __half>::value) return 'h';
    if (std::is_same<U, __nv_bfloat16>::value) return 'b';
    return std::is_integral<U>::value ? 'i' : std::is_floating_point<U>::value ? 'f' : 's';
}

template <typename T>
constexpr Parameter described() {
    if constexpr (std::is_pointer<T>::value) {
        using U = std::remove_pointer_t<T>;
        char constant = std::is_const<U>::value ? 'c' : 'm';
        if constexpr (std::is_void<U>::value) return {'p', 's', constant, 1};
        else return {'p', letter<U>(), constant, int(sizeof(U))};
    } else {
        char kind = letter<T>();
        return {kind == 'h' || kind == 'b' ? 's' : kind, 0, 0, int(sizeof(T))};
    }
}

template <typename... A>
struct Signature {
    static inline const Parameter parameters[sizeof...(A) + 1] = {described<std::decay_t<A>>()..., {0, 0, 0, 0}};
    template <size_t... I>
    static void with(void (*kernel)(A...), void** a, std::index_sequence<I...>) {
        kernel(*static_cast<std::decay_t<A>*>(a[I])...);
    }
    static void call(void* kernel, void** a) {
        with(reinterpret_cast<void (*)(A...)>(kernel), a, std::index_sequence_for<A...>{});
    }
};

struct Entry {
    const char* name;
    void* kernel;
    void (*call)(void*, void**);
    const Parameter* parameters;
    int count;
};

template <typename... A>
Entry entry(const char* name, void (*kernel)(A...)) {
    return {name, reinterpret_cast<void*>(kernel), Signature<A...>::call, Signature<A...>::parameters, int(sizeof...(A))};
}

// `sizes`: grid, block. Returns what went wrong, or an empty string.
inline const char* launch(const Entry& entry, const unsigned* sizes, size_t shared, void** arguments, int how) {
    machine->grid = dim3(sizes[0], sizes[1], sizes[2]);
    machine->block = dim3(sizes[3], sizes[4], sizes[5]);
    machine->call = entry.call, machine->kernel = entry.kernel, machine->arguments = arguments;
#if defined(__SSE__)
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);  // subnormal results and operands are zero
#endif
    prepare(shared);
    run_grid(how);
    if (!machine->error.empty())
        for (auto& f : machine->fibers) f->started = false;
#if defined(__SSE__)
    _mm_setcsr(mode);
#endif
    return machine->error.c_str();
}

}  // namespace cuda_on_cpu

#define ENTRY(name, ...) cuda_on_cpu::entry(name, &__VA_ARGS__)
#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(cuda_on_cpu::machine->dynamic.data())
#define CHECK_ALIGNED(p, bytes) cuda_on_cpu::check_aligned(p, bytes)
#define threadIdx (cuda_on_cpu::machine->current->tid)
#define blockIdx (cuda_on_cpu::machine->block_index)
#define blockDim (cuda_on_cpu::machine->block)
#define gridDim (cuda_on_cpu::machine->grid)
#define warpSize 32

#include "cuda_functions.h"
