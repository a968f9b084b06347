"""oneDNN on NumPy arrays: memory descriptors, primitives, and a cache of primitives ready to run.

A call sets one address per argument and executes, both by one compiled function where there is one. Creating a
primitive takes a thousand times as long, so `cached` keeps them by signature, per thread. What oneDNN implements only
by its own reference code, up to a thousand times slower, is refused: `cached` returns None then, and the kernel falls
back to the op's reference.
oneDNN 3.2, developer guide: https://uxlfoundation.github.io/oneDNN/v3.2/
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType

from ..caching_allocator import address
from ..caching_allocator import empty as empty
from ..native.arrays import Function, available
from .library import INVALID, UNIMPLEMENTED, Handle, Library, OneDNNError, create, library
from .signals import without_signals

HostArray = np.ndarray[Any, Any]
MIN_ELEMENTS = 1 << 13  # elements; below, NumPy is as fast as a primitive

# from the enumerations of dnnl_types.h
SRC, DST, WEIGHTS, BIAS, SCRATCHPAD, DIFF_SRC, DIFF_DST, DIFF_WEIGHTS = 1, 17, 33, 41, 80, 129, 145, 161
SCALES = 4096  # added to the number of an argument: its scales
TRAINING, INFERENCE, DIRECT_CONVOLUTION = 64, 96, 1
_QUERY = {
    SRC: 129,
    DIFF_SRC: 130,
    WEIGHTS: 131,
    DIFF_WEIGHTS: 132,
    DST: 133,
    DIFF_DST: 134,
    SCRATCHPAD: 136,
}
_IMPLEMENTATION = 8
_KINDS: dict[Any, int] = {dtypes.float16: 1, dtypes.bfloat16: 2, dtypes.float32: 3, dtypes.int32: 4, dtypes.int8: 5}
_KINDS[dtypes.uint8] = 6
_ANY = 1  # the format tag by which oneDNN chooses the layout


_ARRAYS = 5  # of a primitive at most, with the scratchpad; as in kernels/onednn.cpp
_NONE = (None,) * (_ARRAYS - 1)
_execute_primitive = Function("execute_primitive", "paaaaa", ctypes.c_int64)


@cache
def array_type(item: Any, count: int) -> Any:
    """The type of a C array of `count` items; kept, since ctypes makes a type a reference cycle."""
    return item * count


class _Argument(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_int), ("memory", Handle))


class _Execution(ctypes.Structure):  # as in kernels/onednn.cpp
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("set", "execute", "wait", "primitive", "stream")),
        *(("count", ctypes.c_int64), ("arguments", ctypes.c_void_p), ("memory", ctypes.c_void_p * _ARRAYS)),
        ("moves_stack", ctypes.c_int64),
    )


# memory


class Layout:
    """A memory descriptor: shape, dtype and strides in bytes; without strides, oneDNN chooses the layout."""

    __slots__ = ("dtype", "handle", "has_layout", "shape")

    def __init__(self, shape: Sequence[int], dtype: DType, strides: Sequence[int] | None, handle: Any = None):
        lib, count = _need().cdll, len(shape)
        self.shape, self.dtype, self.has_layout = tuple(shape), dtype, strides is not None or handle is not None
        row = array_type(ctypes.c_int64, count)
        if handle is not None:
            self.handle = create(lib, "memory_desc_clone", handle)
        elif strides is None:
            self.handle = create(lib, "memory_desc_create_with_tag", count, row(*shape), _KINDS[dtype], _ANY)
        else:
            steps = row(*(s // dtype.itemsize for s in strides))
            self.handle = create(lib, "memory_desc_create_with_strides", count, row(*shape), _KINDS[dtype], steps)

    @classmethod
    def of(cls, array: HostArray) -> Layout:
        """The layout of an array. Strides of axes of length 1, which lead nowhere, follow from those of the others.

        oneDNN takes two layouts for equal that differ in such strides alone, and the primitive that it keeps of the
        first for one of the second, whose leading dimension it then refuses.
        """
        return cls.dense(array.shape, array.dtype) if array.flags.c_contiguous else cls(*_described(array))

    @classmethod
    def dense(cls, shape: Sequence[int], dtype: DType) -> Layout:
        """The layout of a C-contiguous array of this shape."""
        return cls(shape, dtype, [dtype.itemsize * prod(shape[i + 1 :]) for i in range(len(shape))])

    @property
    def interned_id(self) -> int:
        """A number that equal layouts share, to key caches by."""
        lib = _need().cdll
        with _intern_lock:
            for number, known in enumerate(_interned):
                if lib.dnnl_memory_desc_equal(self.handle, known.handle):
                    return number
            _interned.append(self)
            return len(_interned) - 1

    @property
    def nbytes(self) -> int:
        return int(_need().cdll.dnnl_memory_desc_get_size(self.handle))


def _described(array: HostArray) -> tuple[tuple[int, ...], DType, list[int]]:
    # Axes of length 1 get the strides of rows or columns without gaps.
    long = [(n, step) for n, step in zip(array.shape, array.strides, strict=True) if n != 1]
    matrix = [step for n, step in zip(array.shape[-2:], array.strides[-2:], strict=True) if n != 1]
    behind = max((n * step for n, step in long), default=array.itemsize)
    lone = behind if array.itemsize in matrix else array.itemsize
    steps = [lone if n == 1 else step for n, step in zip(array.shape, array.strides, strict=True)]
    return array.shape, array.dtype, steps


_interned: list[Layout] = []
_intern_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a lock held by another thread at a fork would stay locked in the child
    os.register_at_fork(
        before=_intern_lock.acquire, after_in_parent=_intern_lock.release, after_in_child=_intern_lock.release
    )


def engine() -> Handle:
    """The engine that primitives run on: this CPU."""
    return _need().engine


def _need() -> Library:
    found = library()
    assert found is not None, "a kernel used oneDNN without checking that it is available"
    return found


# primitives


def primitive_desc(kind: str, *arguments: Any) -> Handle:
    """Create a primitive descriptor; kind as in `Call`. A backward takes the descriptor of its forward as hint."""
    lib = _need()
    first = () if kind == "reorder" else (lib.engine,)  # the arguments of a reorder contain both engines
    return create(lib.cdll, f"{kind}_primitive_desc_create", *first, *arguments)


class Call:
    """A primitive ready to run on arrays, one per argument, in the order of `uses`.

    kind: the name in dnnl_<kind>_primitive_desc_create; arguments: those of that function, after the engine.
    uses: per argument, its number (SRC, DST, ...) and its layout; None takes the layout that oneDNN chose.
    refuse: prefixes of implementation names that are too slow to use. avoid: the prefix of some that are used only
    where there is no other. constants: further arguments and their arrays, the same ones in every call, such as scales.
    Raises OneDNNError, with the status UNIMPLEMENTED also where oneDNN has only a refused implementation.
    """

    __slots__ = (
        "_constants", "_count", "_execute", "_execution", "_handles", "_row", "_scratch", "_set", "_stream", "_wait",
        "layouts", "primitive", "primitive_desc", "scratch_bytes",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        arguments: Sequence[Any],
        uses: Sequence[tuple[int, Layout | None]],
        refuse: tuple[str, ...] = ("ref", "simple"),
        avoid: str = "",
        constants: Sequence[tuple[int, HostArray]] = (),
    ):
        lib = _need()
        slow = lib.cdll
        self.primitive_desc = primitive_desc(kind, *arguments)
        if avoid and self._implementation(slow).startswith(avoid):
            self._take_next(kind, arguments, (avoid, *refuse))
        if self._implementation(slow).startswith(refuse):
            raise OneDNNError(kind, UNIMPLEMENTED)
        self.primitive = create(slow, "primitive_create", self.primitive_desc)
        self.layouts = [layout or self._chosen(argument) for argument, layout in uses]
        self._handles = [create(slow, "memory_create", each.handle, lib.engine, Handle(0)) for each in self.layouts]
        pairs = [_Argument(a, memory) for (a, _), memory in zip(uses, self._handles, strict=True)]
        scratch = slow.dnnl_primitive_desc_query_md(self.primitive_desc, _QUERY[SCRATCHPAD], 0)
        self.scratch_bytes = int(slow.dnnl_memory_desc_get_size(scratch)) if scratch else 0
        self._scratch = create(slow, "memory_create", Handle(scratch), lib.engine, Handle(0)) if scratch else None
        pairs += [_Argument(SCRATCHPAD, self._scratch)] if scratch else []
        self._constants = [(array, _constant(array)) for _, array in constants]
        pairs += [_Argument(a, memory) for (a, _), (_, memory) in zip(constants, self._constants, strict=True)]
        self._count, self._row = len(pairs), array_type(_Argument, len(pairs))(*pairs)
        self._set, self._wait = lib.pydll.dnnl_memory_set_data_handle, lib.pydll.dnnl_stream_wait
        self._execute, self._stream = slow.dnnl_primitive_execute, lib.stream
        self._execution = self._as_execution() if available() else None

    def _as_execution(self) -> _Execution:
        functions = [ctypes.cast(each, ctypes.c_void_p) for each in (self._set, self._execute, self._wait)]
        handles = [*self._handles, *[None] * (_ARRAYS - 1 - len(self._handles)), self._scratch]
        memory = (ctypes.c_void_p * _ARRAYS)(*[None if each is None else each.value for each in handles])
        row = ctypes.addressof(self._row)
        moves_stack = "gemm:" in self.implementation  # as some of its kernels do
        return _Execution(*functions, self.primitive, self._stream, self._count, row, memory, moves_stack)

    def _implementation(self, slow: Any) -> str:
        name = ctypes.c_char_p()
        slow.dnnl_primitive_desc_query(self.primitive_desc, _IMPLEMENTATION, 0, ctypes.byref(name))
        return (name.value or b"").decode()

    def _take_next(self, kind: str, arguments: Sequence[Any], refuse: tuple[str, ...]) -> None:
        # oneDNN's next implementation that is not refused, or its first where there is none.
        slow = _need().cdll
        while self._implementation(slow).startswith(refuse):
            if slow.dnnl_primitive_desc_next_impl(self.primitive_desc):
                self.primitive_desc = primitive_desc(kind, *arguments)
                return

    def _chosen(self, argument: int) -> Layout:
        slow = _need().cdll
        found = slow.dnnl_primitive_desc_query_md(
            self.primitive_desc, _QUERY.get(argument, 255), 0 if argument in _QUERY else argument
        )
        return Layout((), dtypes.uint8, None, Handle(found))

    @property
    def implementation(self) -> str:
        """The name of oneDNN's implementation."""
        return self._implementation(_need().cdll)

    def __call__(self, *arrays: HostArray) -> None:
        if self._execution is not None:
            scratch = _thread.scratchpad(self.scratch_bytes) if self.scratch_bytes else None
            given = (*arrays, *_NONE[len(arrays) :], scratch)
            if status := _execute_primitive(ctypes.addressof(self._execution), *given):
                raise OneDNNError("primitive_execute", status)
            return
        for memory, array in zip(self._handles, arrays, strict=True):
            self._set(memory, address(array))
        if self._scratch is not None:
            self._set(self._scratch, address(_thread.scratchpad(self.scratch_bytes)))
        if status := without_signals(self._execute, self.primitive, self._stream, self._count, self._row):
            raise OneDNNError("primitive_execute", status)
        self._wait(self._stream)


def _constant(array: HostArray) -> Handle:
    # The memory object of an array that stays where it is.
    lib = _need()
    return create(lib.cdll, "memory_create", Layout.of(array).handle, lib.engine, Handle(address(array)))


def packing_reorder(source: Layout, target: Layout) -> Call:
    """The reorder of a weight into a layout that oneDNN chose, or out of it.

    Some of these layouts have only "simple" implementations: slow for a conversion, fast enough for a weight.
    """
    arguments = [source.handle, engine(), target.handle, engine(), attributes()]
    return Call("reorder", arguments, [(SRC, source), (DST, target)], refuse=("ref",))


class _ThreadState(threading.local):
    # Calls and scratchpad of one thread: memory objects hold addresses while a call runs.
    def __init__(self) -> None:
        self.calls: dict[Any, Any] = {}
        self.scratch = np.empty(0, np.uint8)

    def scratchpad(self, nbytes: int) -> HostArray:
        if self.scratch.nbytes < nbytes:
            self.scratch = empty((nbytes,), dtypes.uint8)
        return self.scratch


_thread = _ThreadState()
_MAX_CACHED = 4096  # calls per thread; beyond that the cache is cleared


def cached(key: Any, build: Callable[[], Any]) -> Any:
    """Return `build()`, cached per thread under `key`; None where oneDNN has no fast implementation."""
    try:
        return _thread.calls[key]
    except KeyError:
        pass
    if len(_thread.calls) >= _MAX_CACHED:
        _thread.calls.clear()
    try:
        made = build()
    except OneDNNError as error:
        if error.status not in (UNIMPLEMENTED, INVALID):  # INVALID: for example too many axes
            raise
        made = None
    _thread.calls[key] = made
    return made


def clear_cache() -> None:
    """Drop this thread's cached calls: each keeps the number of threads that it was created for."""
    _thread.calls.clear()


def signature(array: HostArray | None) -> Any:
    """The part of an array that a primitive depends on: shape, strides, dtype."""
    return None if array is None else (array.shape, array.strides, array.dtype)


def attributes(accumulate: bool = False, scaled: bool = False) -> Any:
    """Primitive attributes: a scratchpad provided by the caller; accumulate: add the destination's contents.

    scaled: the argument SCALES | SRC, one float32, multiplies the result before a bias is added.
    """
    lib = _need().cdll
    made, post = create(lib, "primitive_attr_create"), create(lib, "post_ops_create")
    lib.dnnl_primitive_attr_set_scratchpad_mode(made, 1)
    if accumulate:
        lib.dnnl_post_ops_append_sum(post, ctypes.c_float(1.0), 0, 0)
    if scaled:
        lib.dnnl_primitive_attr_set_scales_mask(made, SRC, 0)
    lib.dnnl_primitive_attr_set_post_ops(made, post)
    return made
