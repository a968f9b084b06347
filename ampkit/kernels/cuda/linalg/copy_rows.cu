// Copies rows of 16-bit values between arrays whose rows lie at different steps: see launch/row_alignment.py.
#include "include/storage.cuh"

// to[row, :cols] = from[row, :cols], with steps in values from row to row. A block per row; stores are 16 bytes wide,
// and loads where source and target rows have the same alignment.
__global__ void copy_rows(const void* from, void* to, int64 cols, int64 from_step, int64 to_step) {
    using Value = unsigned short;
    constexpr int V = 16 / sizeof(Value);
    const Value* source = reinterpret_cast<const Value*>(from) + blockIdx.x * from_step;
    Value* target = reinterpret_cast<Value*>(to) + blockIdx.x * to_step;
    int64 head = (16 - (reinterpret_cast<unsigned long long>(target) & 15)) % 16 / sizeof(Value);
    if (head > cols) head = cols;
    int64 tail = head + (cols - head) / V * V;
    if (threadIdx.x < head) target[threadIdx.x] = source[threadIdx.x];
    if (tail + threadIdx.x < cols) target[tail + threadIdx.x] = source[tail + threadIdx.x];
    bool wide = aligned(source + head, 16);
    for (int64 at = head + (int64)threadIdx.x * V; at < tail; at += (int64)blockDim.x * V) {
        Pack<Value> pack;
        if (wide) {
            pack = Pack<Value>::load(source + at);
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) pack.value[j] = source[at + j];
        }
        pack.store(target + at);
    }
}

// entries: copy_rows
