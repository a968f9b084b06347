// Runs primitives of oneDNN, whose functions Python hands over: one call from Python in the place of one per array and two.
//
// oneDNN's products of float32 with more than 252 terms, where it has no newer ones for the CPU, point the stack pointer to
// memory from malloc (jit_avx_gemm_f32 and jit_avx512_common_gemm_f32, in oneDNN 3.2). A signal's frame would be written
// below it, over other memory. So signals wait for such primitives to end, also in the threads of OpenMP.
#include "include/parallel.h"
#include "include/signals.h"

constexpr int64 ARRAYS = 5;

// A primitive as dnnl_primitive_execute takes it, and the memory object of each array. moves_stack: whether signals wait.
struct Execution {
    int (*set)(void* memory, void* data);
    int (*execute)(const void* primitive, void* stream, int count, const void* arguments);
    int (*wait)(void* stream);
    const void* primitive;
    void* stream;
    int64 count;
    const void* arguments;
    void* memory[ARRAYS];
    int64 moves_stack;
};

static int execute(const Execution* given) {
    int status = given->execute(given->primitive, given->stream, int(given->count), given->arguments);
    if (!status) given->wait(given->stream);
    return status;
}

// From the first primitive that moves the stack on, signals wait for all primitives of a thread: each may start threads of
// OpenMP, which have the signals blocked that are blocked then.
static int execute_without_signals(const Execution* given) {
    static thread_local bool blocks = false;
    if (given->moves_stack && !blocks) {
        blocks = true;
        run_on_team([](void*) { place_in_team(); }, nullptr);  // blocks them in the threads that there are
    }
    if (!blocks) return execute(given);
    sigset_t before = block_signals();
    int status = execute(given);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
}

// Each array may be None. -> the status of the execution, 0 for success.
static int64 execute_primitive(const Execution* given, const NumpyArray* a, const NumpyArray* b, const NumpyArray* c,
                               const NumpyArray* d, const NumpyArray* e) {
    const NumpyArray* arrays[ARRAYS] = {a, b, c, d, e};
    for (int64 i = 0; i < ARRAYS; i++)
        if (arrays[i] != numpy_facts.none) given->set(given->memory[i], arrays[i]->data);
    return execute_without_signals(given);
}
KERNEL(execute_primitive)
