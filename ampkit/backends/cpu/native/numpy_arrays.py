"""What the compiled library has to know of NumPy to read its array objects (kernels/include/numpy.h)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType

from ..caching_allocator import HostArray, address

# The numbers of `enum Kind` in kernels/include/array.h.
KINDS: dict[DType, int] = {
    dtypes.float32: 0, dtypes.bfloat16: 1, dtypes.float16: 2, dtypes.bool_: 3, dtypes.int64: 4, dtypes.float64: 5,
    dtypes.int32: 6, dtypes.uint8: 7,
}  # fmt: skip
_LONGS = "lqi"  # NumPy's codes of C's integers, of which two have the same size


def describe(library: Any) -> None:
    """Tell the library what None is, how tuples are laid out, and the numbers of the dtypes that kernels know."""
    known = [*KINDS, *(each for code in _LONGS if (each := np.dtype(code)) in KINDS)]
    numbers, kinds = [each.num for each in known], [KINDS[each] for each in known]
    array = ctypes.c_int64 * len(known)
    library.set_numpy_facts.argtypes = [ctypes.py_object, ctypes.c_int64, array, array, ctypes.c_int64]
    library.set_numpy_facts.restype = None
    library.set_numpy_facts(None, tuple.__basicsize__, array(*numbers), array(*kinds), len(known))


def entry(library: Any, name: str) -> Any:
    """The kernel `name` as a function of array objects."""
    return library._FuncPtr(ctypes.c_void_p.in_dll(library, f"{name}_entry").value)


def is_read_right(library: Any) -> bool:
    """Whether the library reads arrays of every dtype as NumPy means them, and tuples."""
    library.read_tuple.argtypes, library.read_tuple.restype = [ctypes.py_object, ctypes.c_int64], ctypes.c_int64
    items = object(), object(), object()
    if [library.read_tuple(items, i) for i in (0, 1, 9)] != [id(item) for item in items]:
        return False
    read, fields = entry(library, "read_array"), (ctypes.c_int64 * 8)()
    read.argtypes, read.restype = [ctypes.py_object, ctypes.c_void_p], None
    for dtype in KINDS:
        for array in (np.zeros((4, 6, 8), dtype)[:, ::2].transpose(2, 0, 1), np.zeros(5, dtype)[::-1], None):
            read(array, fields)
            if [*fields] != expected_fields(array):
                return False
    return True


def expected_fields(array: HostArray | None) -> list[int]:
    """The fields of `struct Array` for an array of at most three axes, aligned to the right; None has no data."""
    if array is None:
        return [0, 0, 1, 1, 1, 0, 0, 0]
    missing = 3 - array.ndim
    steps = [stride // array.itemsize for stride in array.strides]
    return [address(array), KINDS[array.dtype], *[1] * missing, *array.shape, *[0] * missing, *steps]
