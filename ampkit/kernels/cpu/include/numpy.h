// How Python calls a kernel: with NumPy's array objects in the place of its Arrays, which costs it nothing to prepare.
#pragma once
#include "array.h"

// NumPy's array object and dtype, as far as they are read (PyArrayObject_fields and PyArray_Descr of ndarraytypes.h).
struct NumpyDtype {
    int64 header[2];
    const void* type;
    char kind, code, byte_order, flags;
    int32_t number;
};
struct NumpyArray {
    int64 header[2];
    void* data;
    int32_t axes;
    const int64 *size, *stride;  // strides in bytes
    const void* base;
    const NumpyDtype* dtype;
};

// What Python told when it loaded the library: None, which stands for an array that is not there; where the items of a tuple
// begin, in bytes; and the Kind of each number of a dtype, -1 of those that kernels do not know.
struct NumpyFacts {
    const void* none;
    int64 tuple_items;
    signed char kind[512];
};
extern NumpyFacts numpy_facts;

// Python's tuple object, of arrays, None and numbers (PyVarObject).
struct PythonTuple {
    int64 header[2], count;
    const NumpyArray* item(int64 i) const {
        return reinterpret_cast<const NumpyArray* const*>(reinterpret_cast<const char*>(this) + numpy_facts.tuple_items)[i];
    }
};

inline Array array_of(const NumpyArray* given) {
    Array array{nullptr, FLOAT32, {1, 1, 1}, {0, 0, 0}};
    if (given == numpy_facts.none) return array;
    int32_t number = given->dtype->number, missing = 3 - given->axes;
    int64 kind = number >= 0 && number < 512 ? numpy_facts.kind[number] : -1;
    if (kind < 0 || missing < 0) __builtin_trap();  // the predicate of a kernel lets no such array through
    array.data = given->data, array.kind = kind;
    for (int32_t i = missing; i < 3; i++) {
        array.size[i] = given->size[i - missing];
        array.stride[i] = given->stride[i - missing] / ITEMSIZE[kind];
    }
    return array;
}

template <class T>
struct Passed {
    using type = T;
    static T unpack(T value) { return value; }
};
template <>
struct Passed<Array> {
    using type = const NumpyArray*;
    static Array unpack(type given) { return array_of(given); }
};

template <auto kernel>
struct KernelEntry;
template <class... Types, class Result, Result (*kernel)(Types...)>
struct KernelEntry<kernel> {
    static Result call(typename Passed<Types>::type... given) { return kernel(Passed<Types>::unpack(given)...); }
};

// Exports the address by which Python calls a function with Arrays: the variable NAME_entry.
#define KERNEL(NAME) \
    extern "C" { \
    __attribute__((visibility("default"))) void* NAME##_entry = reinterpret_cast<void*>(&KernelEntry<&NAME>::call); \
    }
