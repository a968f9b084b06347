"""onednn: oneDNN on NumPy arrays: layouts of memory, primitives, and calls of them.

A call sets one address per argument and executes; making one takes a thousand times as long, so `prepared` keeps calls
by signature, per thread. What oneDNN can only do by its own reference code, up to a thousand times slower, is refused:
`prepared` gives None then, and the kernel that asked leaves the work to the op's own reference.
oneDNN 3.2, developer guide: https://uxlfoundation.github.io/oneDNN/v3.2/
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType

from ..caching_allocator import address
from ..caching_allocator import empty as empty
from .library import INVALID, UNIMPLEMENTED, Handle, Library, OneDNNError, library, make

HostArray = np.ndarray[Any, Any]
WORTH = 1 << 13  # elements; for fewer, NumPy is as fast as the call of a primitive
LONGEST = 1 << 16  # elements of a row whose sum oneDNN makes: a lane adds up its share one by one, in float32

# the enumerations of dnnl_types.h, where this project uses them
SRC, SRC_1, DST, WEIGHTS, BIAS, MEAN, VARIANCE, SCALE, SHIFT = 1, 2, 17, 33, 41, 49, 50, 51, 52
WORKSPACE, SCRATCHPAD, DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_BIAS = 64, 80, 129, 145, 161, 169
DIFF_SCALE, DIFF_SHIFT, POST_OP = 255, 256, 32768
TRAINING, INFERENCE, BACKWARD, BACKWARD_DATA = 64, 96, 128, 160
_QUERY = {
    SRC: 129,
    DIFF_SRC: 130,
    WEIGHTS: 131,
    DIFF_WEIGHTS: 132,
    DST: 133,
    DIFF_DST: 134,
    WORKSPACE: 135,
    SCRATCHPAD: 136,
}
_IMPLEMENTATION, _INPUTS = 8, 3
_KINDS: dict[Any, int] = {dtypes.float16: 1, dtypes.bfloat16: 2, dtypes.float32: 3, dtypes.int32: 4, dtypes.uint8: 6}
ALGORITHM = {
    "relu": 0x20, "tanh": 0x21, "elu": 0x22, "square": 0x23, "abs": 0x24, "sqrt": 0x25, "linear": 0x26,
    "softplus": 0x27, "hardsigmoid": 0x28, "logistic": 0x29, "exp": 0x2A, "gelu_tanh": 0x2B, "swish": 0x2C,
    "pow": 0x30, "gelu_erf": 0x31, "mish": 0x33, "hardswish": 0x34,
    "tanh_by_output": 0x101, "logistic_by_output": 0x104,
    "max_pool": 0x1FF, "avg_pool": 0x2FF, "avg_pool_inside": 0x3FF,
    "add": 0x1FFF0, "mul": 0x1FFF1, "max": 0x1FFF2, "min": 0x1FFF3, "div": 0x1FFF4, "sub": 0x1FFF5, "ne": 0x1FFFB,
    "softmax": 0x30000, "log_softmax": 0x30001, "direct": 1,
}  # fmt: skip
_ANY = 1  # the layout that leaves the choice to oneDNN


class _Argument(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_int), ("memory", Handle))


# memory


class Layout:
    """A memory descriptor: shape, dtype, and where elements lie. `strides` in bytes; None leaves the choice open."""

    __slots__ = ("dtype", "handle", "settled", "shape")

    def __init__(self, shape: Sequence[int], dtype: DType, strides: Sequence[int] | None, handle: Any = None):
        lib, count = _need().slow, len(shape)
        self.shape, self.dtype, self.settled = tuple(shape), dtype, strides is not None or handle is not None
        row = ctypes.c_int64 * count
        if handle is not None:
            self.handle = make(lib, "memory_desc_clone", handle)
        elif strides is None:
            self.handle = make(lib, "memory_desc_create_with_tag", count, row(*shape), _KINDS[dtype], _ANY)
        else:
            steps = row(*(s // dtype.itemsize for s in strides))
            self.handle = make(lib, "memory_desc_create_with_strides", count, row(*shape), _KINDS[dtype], steps)

    @classmethod
    def of(cls, array: HostArray) -> Layout:
        """The layout of an array."""
        return cls(array.shape, array.dtype, array.strides)

    @classmethod
    def dense(cls, shape: Sequence[int], dtype: DType) -> Layout:
        """The layout of an array of this shape whose elements lie side by side, the last axis innermost."""
        return cls(shape, dtype, [dtype.itemsize * prod(shape[i + 1 :]) for i in range(len(shape))])

    @property
    def number(self) -> int:
        """The same for equal layouts."""
        lib = _need().slow
        with _meeting:
            for number, known in enumerate(_met):
                if lib.dnnl_memory_desc_equal(self.handle, known.handle):
                    return number
            _met.append(self)
            return len(_met) - 1

    @property
    def nbytes(self) -> int:
        return int(_need().slow.dnnl_memory_desc_get_size(self.handle))


_met: list[Layout] = []
_meeting = threading.Lock()
if hasattr(os, "register_at_fork"):  # a lock that another thread holds at a fork stays locked in the child
    os.register_at_fork(before=_meeting.acquire, after_in_parent=_meeting.release, after_in_child=_meeting.release)


def engine() -> Handle:
    """The engine that primitives run on: this CPU."""
    found: Handle = _need().engine
    return found


def _need() -> Library:
    found = library()
    assert found is not None, "a kernel asked for oneDNN without looking whether it is there"
    return found


# primitives


def described(create: str, *arguments: Any) -> Handle:
    """What a primitive would be: `create` as in `Call`. A backward takes that of its forward for a hint."""
    lib = _need()
    first = () if create == "reorder" else (lib.engine,)  # a reorder names the engines of both ends itself
    return make(lib.slow, f"{create}_primitive_desc_create", *first, *arguments)


class Call:
    """A primitive ready to run on arrays, one per argument, in the order of `uses`.

    create: the name of the function that describes it, and its arguments after the engine. uses: per argument, its
    number and its layout; None takes the one that oneDNN chose. refuse: how the names of code begin that is too slow.
    Raises OneDNNError, with the status UNIMPLEMENTED also where oneDNN has only its reference code.
    """

    __slots__ = (
        "_count", "_execute", "_handles", "_row", "_scratch", "_set", "_stream", "_wait", "described", "layouts",
        "primitive", "scratch_bytes",
    )  # fmt: skip

    def __init__(
        self,
        create: str,
        arguments: Sequence[Any],
        uses: Sequence[tuple[int, Layout | None]],
        refuse: tuple[str, ...] = ("ref", "simple"),
    ):
        lib = _need()
        slow = lib.slow
        self.described = described(create, *arguments)
        if self._implementation(slow).startswith(refuse):
            raise OneDNNError(create, UNIMPLEMENTED)
        self.primitive = make(slow, "primitive_create", self.described)
        self.layouts = [layout or self._chosen(argument) for argument, layout in uses]
        self._handles = [make(slow, "memory_create", each.handle, lib.engine, Handle(0)) for each in self.layouts]
        pairs = [_Argument(a, memory) for (a, _), memory in zip(uses, self._handles, strict=True)]
        scratch = slow.dnnl_primitive_desc_query_md(self.described, _QUERY[SCRATCHPAD], 0)
        self.scratch_bytes = int(slow.dnnl_memory_desc_get_size(scratch)) if scratch else 0
        self._scratch = make(slow, "memory_create", Handle(scratch), lib.engine, Handle(0)) if scratch else None
        pairs += [_Argument(SCRATCHPAD, self._scratch)] if scratch else []
        self._count, self._row = len(pairs), (_Argument * len(pairs))(*pairs)
        self._set, self._wait = lib.quick.dnnl_memory_set_data_handle, lib.quick.dnnl_stream_wait
        self._execute, self._stream = slow.dnnl_primitive_execute, lib.stream

    def _implementation(self, slow: Any) -> str:
        name = ctypes.c_char_p()
        slow.dnnl_primitive_desc_query(self.described, _IMPLEMENTATION, 0, ctypes.byref(name))
        return (name.value or b"").decode()

    def _chosen(self, argument: int) -> Layout:
        slow = _need().slow
        found = slow.dnnl_primitive_desc_query_md(
            self.described, _QUERY.get(argument, 255), 0 if argument in _QUERY else argument
        )
        return Layout((), dtypes.uint8, None, Handle(found))

    @property
    def implementation(self) -> str:
        """The name of oneDNN's code that runs it."""
        return self._implementation(_need().slow)

    @property
    def inputs(self) -> int:
        """How many inputs it takes."""
        count = ctypes.c_int()
        _need().slow.dnnl_primitive_desc_query(self.described, _INPUTS, 0, ctypes.byref(count))
        return count.value

    def __call__(self, *arrays: HostArray) -> None:
        for memory, array in zip(self._handles, arrays, strict=True):
            self._set(memory, address(array))
        if self._scratch is not None:
            self._set(self._scratch, address(_own.room(self.scratch_bytes)))
        if status := self._execute(self.primitive, self._stream, self._count, self._row):
            raise OneDNNError("primitive_execute", status)
        self._wait(self._stream)


def packing(ours: Layout, theirs: Layout) -> Call:
    """The move of a weight into a layout that oneDNN chose, or out of it.

    For some of these layouts it has but "simple" code, which is slow for a conversion and fast enough for a weight.
    """
    described = [ours.handle, engine(), theirs.handle, engine(), attributes()]
    return Call("reorder", described, [(SRC, ours), (DST, theirs)], refuse=("ref",))


class _Own(threading.local):
    # What a thread has of its own: memory objects hold addresses while a call runs.
    def __init__(self) -> None:
        self.calls: dict[Any, Any] = {}
        self.scratch = np.empty(0, np.uint8)

    def room(self, nbytes: int) -> HostArray:
        if self.scratch.nbytes < nbytes:
            self.scratch = empty((nbytes,), dtypes.uint8)
        return self.scratch


_own = _Own()
_MOST = 4096  # signatures kept per thread; a program that meets more begins anew


def prepared(key: Any, build: Callable[[], Any]) -> Any:
    """What `build` made for the signature `key`, made once per thread; None where oneDNN has no fast code for it."""
    try:
        return _own.calls[key]
    except KeyError:
        pass
    if len(_own.calls) >= _MOST:
        _own.calls.clear()
    try:
        made = build()
    except OneDNNError as error:
        if error.status not in (UNIMPLEMENTED, INVALID):  # as more axes than it takes are
            raise
        made = None
    _own.calls[key] = made
    return made


def forget() -> None:
    """Have all that was prepared in this thread prepared anew: it goes on using the threads that it was made for."""
    _own.calls.clear()


def signed(array: HostArray | None) -> Any:
    """What of an array a call depends on."""
    return None if array is None else (array.shape, array.strides, array.dtype)


def attributes(*after: tuple[Any, ...]) -> Any:
    """The attributes of a primitive: scratch memory from outside, and what follows on its result, in order.

    after: ("relu", alpha, beta) and the like; ("add", layout) with an argument POST_OP * (position + 1) | SRC_1;
    ("sum", scale) adds what the destination held, times scale.
    """
    lib = _need().slow
    made, post = make(lib, "primitive_attr_create"), make(lib, "post_ops_create")
    lib.dnnl_primitive_attr_set_scratchpad_mode(made, 1)
    for kind, *rest in after:
        if kind == "sum":
            lib.dnnl_post_ops_append_sum(post, ctypes.c_float(rest[0]), 0, 0)
        elif isinstance(rest[0], Layout):
            lib.dnnl_post_ops_append_binary(post, ALGORITHM[kind], rest[0].handle)
        else:
            lib.dnnl_post_ops_append_eltwise(post, ALGORITHM[kind], *map(ctypes.c_float, rest))
    lib.dnnl_primitive_attr_set_post_ops(made, post)
    return made
