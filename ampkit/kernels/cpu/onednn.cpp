// Runs primitives of oneDNN, whose functions Python hands over: one call from Python in the place of one per array and two.
#include "include/numpy.h"

constexpr int64 ARRAYS = 5;

// A primitive as dnnl_primitive_execute takes it, and the memory object of each array.
struct Execution {
    int (*set)(void* memory, void* data);
    int (*execute)(const void* primitive, void* stream, int count, const void* arguments);
    int (*wait)(void* stream);
    const void* primitive;
    void* stream;
    int64 count;
    const void* arguments;
    void* memory[ARRAYS];
};

// Each array may be None. -> the status of the execution, 0 for success.
static int64 execute_primitive(const Execution* given, const NumpyArray* a, const NumpyArray* b, const NumpyArray* c,
                               const NumpyArray* d, const NumpyArray* e) {
    const NumpyArray* arrays[ARRAYS] = {a, b, c, d, e};
    for (int64 i = 0; i < ARRAYS; i++)
        if (arrays[i] != numpy_facts.none) given->set(given->memory[i], arrays[i]->data);
    int status = given->execute(given->primitive, given->stream, int(given->count), given->arguments);
    if (!status) given->wait(given->stream);
    return status;
}
KERNEL(execute_primitive)
