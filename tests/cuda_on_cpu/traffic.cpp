// What kernels read and write of the arrays of a launch. g++ -fsanitize=thread puts a call before each access to memory;
// these are the functions that it calls. Registers, the stack and shared memory are no arrays, and do not count.
#include <cstddef>
#include <cstdint>

#define PLAIN __attribute__((no_sanitize("thread"), noinline))

namespace traffic {

struct Range {
    uintptr_t low, high;
    unsigned char* seen;  // of each byte: 1 if it was read, 2 if it was written; null for arrays that no cache holds
    uint64_t bytes;  // read and written
};

static Range* ranges = nullptr;
static int count = 0;

PLAIN static void access(void* p, size_t bytes, bool write) {
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    for (int i = 0; i < count; i++) {
        Range& range = ranges[i];
        if (at < range.low || at >= range.high) continue;
        range.bytes += bytes;
        for (size_t j = 0; range.seen && j < bytes; j++) range.seen[at - range.low + j] |= write ? 2 : 1;
        return;
    }
}

}  // namespace traffic

extern "C" {
__attribute__((visibility("default"))) PLAIN void traffic_watch(traffic::Range* ranges, int count) {
    traffic::ranges = ranges, traffic::count = count;
}
#define ACCESSES(bytes)                                                              \
    PLAIN void __tsan_read##bytes(void* p) { traffic::access(p, bytes, false); }     \
    PLAIN void __tsan_write##bytes(void* p) { traffic::access(p, bytes, true); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
PLAIN void __tsan_read_range(void* p, size_t n) { traffic::access(p, n, false); }
PLAIN void __tsan_write_range(void* p, size_t n) { traffic::access(p, n, true); }
PLAIN void __tsan_vptr_read(void*) {}
PLAIN void __tsan_vptr_update(void*, void*) {}
PLAIN void __tsan_init() {}
}
