"""An emulated CuPy: arrays that behave as CuPy's do where a machine without a GPU can tell.

`ndarray` is a NumPy array over memory of an emulated device (memory.py). It refuses what CuPy would refuse:
functions, parameters and loops that CuPy does not have (tests/golden/cupy.json), plain NumPy arrays or another device's
among the operands, a silent copy to the host. What would make the host wait for the device counts in `waits`; streams,
events and graphs are those of streams.py. `ampkit.backends.cuda` runs on this module as on CuPy itself; its kernels go
to the emulator.
"""

from __future__ import annotations

import ctypes
import json
import math
import types
import warnings
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from . import emulated_nccl, emulator, launch_limits, memory, streams
from .streams import perform, waits

_CUPY = json.loads((Path(__file__).parents[1] / "golden" / "cupy.json").read_text())
_PLAIN_RESULTS = {"shape", "ndim", "size", "result_type", "can_cast", "iscomplexobj", "isrealobj"}
_CHANGING = {"copyto", "put", "putmask", "place", "fill", "sort", "partition", "fill_diagonal", "put_along_axis"}
_OF_SCALARS = {
    "sum",
    "prod",
    "max",
    "min",
    "amax",
    "amin",
    "any",
    "all",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "nansum",
}
_OF_SCALARS |= {"nanmax", "nanmin", "count_nonzero", "repeat"}  # NumPy takes axis=0 of a scalar, CuPy does not
_VIEWS = {"reshape", "transpose", "swapaxes", "view", "squeeze", "diagonal", "ravel", "moveaxis", "rollaxis"}
_VIEWS |= {"expand_dims", "broadcast_to", "split", "flip"}  # of memory of any device, where nothing is copied
_SORTING = {"argmax", "argmin", "sort", "argsort", "cumsum", "cumprod", "unique", "isin", "median"}
_WIDENING = {"where", "tril", "triu", "round"}  # have no bfloat16, and answer in float32
_ADDED = {"int32", "int64", "uint32", "uint64", "float16", "float32", "float64"}  # what add.at adds
_MET = {"int32", "uint32", "uint64", "float32", "float64"}  # what maximum.at and minimum.at compare
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _current_device():
    return memory.current.device


class Flags(NamedTuple):
    """All that the flags of CuPy's arrays say."""

    c_contiguous: bool
    f_contiguous: bool
    owndata: bool
    fnc: bool
    forc: bool


class ndarray:
    """A device array: everything NumPy's arrays have of what CuPy's have.

    held: a NumPy array. memory: the device memory that holds it; None copies it to the current device.
    """

    __slots__ = ("__weakref__", "_device", "_memory", "_numpy")
    __hash__ = None

    def __init__(self, held: Any, memory: Any = None, memptr: Any = None, strides: Any = None):
        if isinstance(held, tuple):  # CuPy's own arguments: shape, dtype, pointer, strides
            offset = memptr.ptr - memptr.mem.segment.ptr
            held = np.ndarray(held, memory, memptr.mem.segment.bytes, offset, strides)
            memory = memptr.mem
        if memory is None and held.nbytes:
            made = _like(held)
            made._numpy[...] = held
            held, memory = made._numpy, made._memory
        self._numpy, self._memory, self._device = held, memory, _current_device()

    @property
    def device_id(self):
        return self._device if self._memory is None else self._memory.device_id

    # NumPy's protocols

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        name = ufunc.__name__
        if method != "__call__":
            if method not in ("at", "reduce", "accumulate"):
                raise TypeError(f"{name}.{method}: not in CuPy")
            _need_ufunc_method(name, method, inputs)
        if name not in _CUPY["ufuncs"] and name not in _CUPY["functions"]:
            raise TypeError(f"{name}: not in CuPy")
        unknown = set(kwargs) - {"out", "casting", "dtype", "axis", "keepdims"}
        if unknown:
            raise TypeError(f"{name}: CuPy does not take {', '.join(sorted(unknown))}")
        _need_loop(name, inputs)
        outs = kwargs.get("out")
        changes = outs is not None or method == "at"
        found = _done(getattr(ufunc, method), inputs, kwargs, changes)
        if outs is not None:
            return outs[0] if len(outs) == 1 else outs
        return found

    def __array_function__(self, function, kinds, args, kwargs):
        name = function.__name__
        if not _module_of(function) or name not in {**_CUPY["functions"], **_CUPY["ufuncs"]}:
            raise TypeError(f"{function.__module__}.{name}: not in CuPy")
        known = _CUPY["functions"].get(name)
        if known is not None and set(kwargs) - set(known):
            raise TypeError(f"{name}: CuPy does not take {', '.join(sorted(set(kwargs) - set(known)))}")
        if known is not None and len(args) > len(known):
            raise TypeError(f"{name}: CuPy takes {len(known)} arguments, got {len(args)}")
        if name not in ("asarray", "array", "take", "repeat"):
            _need_loop(name, args)
        if name not in _VIEWS | _PLAIN_RESULTS | {"may_share_memory"}:
            _need_no_structure(name, *_arrays(args))
        _need_axis(name, args, kwargs, known)
        if name.endswith("_like") and not kwargs.get("shape", True):
            del kwargs["shape"]  # CuPy takes () for no shape
        if name == "array_equal":
            _ = args[0].shape == args[1].shape  # CuPy takes no lists
        if name == "solve" and args[1].ndim > 1 and args[0].shape[:-1] != args[1].shape[:-1]:
            raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
        if name == "pad" and isinstance(kwargs.get("constant_values"), ndarray):
            kwargs["constant_values"].__array__()
        if name == "bincount" and any(isinstance(given, ndarray) for given in (*args[1:2], kwargs.get("weights"))):
            raise TypeError("bincount: CuPy adds weights in no fixed order")
        if name in ("nonzero", "unique", "flatnonzero", "argwhere", "array_equal"):
            _wait()
        if name in _SORTING and any(map(_is_bfloat16, args)):
            raise TypeError(f"{name}: CuPy has no bfloat16")
        if name in _PLAIN_RESULTS or name == "may_share_memory":
            return function(*_opened(args), **_opened(kwargs))
        out = kwargs.get("out")
        found = _view(function, args, kwargs) if name in _VIEWS else None
        if found is None:
            found = _done(function, args, kwargs, out is not None or name in _CHANGING)
        if name == "diagonal":  # NumPy's alone is read-only
            found._numpy.flags.writeable = True
        if name in _WIDENING and _is_bfloat16(found):
            found = found.astype(np.float32)
        return found if out is None else out

    # attributes

    def __getattr__(self, name):
        if name not in _CUPY["methods"]:
            raise AttributeError(f"CuPy's arrays have no {name!r}")
        found = getattr(self._numpy, name)
        if name == "flags":  # CuPy's do not say whether memory may be written
            return Flags(found.c_contiguous, found.f_contiguous, found.owndata, found.fnc, found.forc)
        if not callable(found) or name == "dtype":
            return _wrapped(found, [self]) if isinstance(found, np.ndarray) else found
        known = _CUPY["methods"][name]

        def method(*args, **kwargs):
            if name not in _VIEWS and not (name in ("copy", "fill") and found.__self__.flags.c_contiguous):
                _need_no_structure(name, self)
            extra = set(kwargs) - set(known or kwargs)
            if extra or (known is not None and len(args) > len(known)):
                raise TypeError(f"{name}: CuPy takes {known}, got {args} {kwargs}")
            _need_device(name, args)
            _need_axis(name, (self, *args), kwargs, ["self", *(known or ())])
            if name in _VIEWS and (seen := _view(found, args, kwargs, self)) is not None:
                return seen
            out = kwargs.get("out")
            made = _done(found, args, kwargs, out is not None or name in _CHANGING, self)
            return made if out is None else out

        return method

    @property
    def data(self):
        address = self._numpy.__array_interface__["data"][0]
        return types.SimpleNamespace(ptr=address, device_id=self.device_id, mem=self._memory)

    @property
    def device(self):
        return streams.Device(self.device_id)

    @property
    def base(self):
        whole = self._memory is None or self._numpy.nbytes + memory.ALIGNMENT > self._memory.size
        return None if whole else ndarray(self._numpy.base, self._memory)

    @property
    def __cuda_array_interface__(self):
        return self._numpy.__array_interface__

    def get(self, stream=None, order="C", out=None, blocking=True):
        """A copy on the host; one that need not wait arrives once the host has waited for the stream."""
        _refuse_recording("a copy to the host")
        stream = stream or streams.current_stream(self.device_id)
        found = np.empty_like(self._numpy, order="C") if out is None else out
        value = self._numpy.copy(order)
        if blocking or out is None:
            _wait(self.device_id)
            found[...] = value
        else:
            found.reshape(-1).view(np.uint8).fill(0xFF)
            streams.touch(stream, [streams.Access(*streams.extent(self._numpy), False)])
            held = np.ndarray(found.shape, found.dtype, _raw_bytes(found)) if _is_pinned(found) else found
            streams.arrives(stream, lambda: np.copyto(held, value))
        return found

    def set(self, array, stream=None):
        """Copy from the host, whose memory must stay as it is until the host has waited for the stream."""
        _refuse_from_host()
        stream = stream or streams.current_stream(self.device_id)
        with stream:
            perform(lambda: np.copyto(self._numpy, array), writes=[self])
        value = array.copy()
        view = np.ndarray(array.shape, array.dtype, _raw_bytes(array))
        streams.arrives(stream, lambda: _need_unchanged(view, value))

    def item(self):
        _wait(self.device_id)
        return self._numpy.item()

    def tolist(self):
        _wait(self.device_id)
        return self._numpy.tolist()

    def __len__(self):
        return len(self._numpy)

    def __iter__(self):
        return (self[i] for i in range(len(self._numpy)))

    def __getitem__(self, index):
        _count_masks(index)
        seen = None if _arrays([index]) else _view(_item, (self, index), {})
        return _done(_item, (self, index), {}, False) if seen is None else seen

    def __setitem__(self, index, value):
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type numpy.ndarray: bring it to the device first")
        _need_no_structure("assignment", self)
        held, given = self._numpy, _arrays([index, value])
        index, value = _opened(index), _opened(value)
        with streams.of_a_test([self]):
            perform(lambda: _written(held, index, value), given, [self])

    def __repr__(self):
        return f"device {self._numpy!r}"

    def copy(self, order="C"):
        """On the current device, from whichever."""
        with streams.of_a_test([self]):
            if self.device_id != memory.current.device:
                return _from_another_device(self)
            return self.__getattr__("copy")(order)

    def __deepcopy__(self, memo):
        return self.copy()

    def __copy__(self):
        return self.copy()

    def __reduce__(self):
        return ndarray, (self._numpy,)

    def __dlpack__(self, stream=None):
        return _lying_on(2, self._numpy.__dlpack__())

    def __dlpack_device__(self):
        return 2, 0


def _written(held, index, value):
    """held[index] = value. Threads write in any order: of several for one place the first stays here, NumPy's last."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(p, np.ndarray) and p.dtype.kind in "iu" for p in parts) or not np.size(value):
        held[index] = value
        return
    places = np.arange(held.size).reshape(held.shape)[index]
    many = np.empty(places.shape, held.dtype)
    many[...] = value
    held[np.unravel_index(places.reshape(-1)[::-1], held.shape)] = many.reshape(-1)[::-1]


def _reading(name):
    def read(self):
        _wait(self.device_id)
        return getattr(self._numpy, name)()

    return read


def _lying_on(device, capsule):
    """A DLPack capsule that names a type of device: 1 the host, 2 a GPU."""
    address = _pointer(capsule, b"dltensor")
    ctypes.c_int32.from_address(address + 8).value = device  # after the address of the data
    return capsule


def from_dlpack(array):
    capsule = _lying_on(1, array.__dlpack__(stream=0))
    host = types.SimpleNamespace(__dlpack__=lambda **options: capsule, __dlpack_device__=lambda: (1, 0))
    held = np.from_dlpack(host)
    address = held.__array_interface__["data"][0]
    return ndarray(held, memory.UnownedMemory(address, held.nbytes, (array, held), 0))


def _binary(ufunc, swapped):
    def operator(self, other):
        if other is None or isinstance(other, (str, list, tuple)):
            return NotImplemented
        pair = (other, self) if swapped else (self, other)
        return self.__array_ufunc__(ufunc, "__call__", *pair)

    return operator


def _in_place(ufunc):
    def operator(self, other):
        return self.__array_ufunc__(ufunc, "__call__", self, other, out=(self,))

    return operator


_OPERATORS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift, "matmul": np.matmul,
}  # fmt: skip
for _name, _ufunc in _OPERATORS.items():
    setattr(ndarray, f"__{_name}__", _binary(_ufunc, False))
    setattr(ndarray, f"__r{_name}__", _binary(_ufunc, True))
    setattr(ndarray, f"__i{_name}__", _in_place(_ufunc))
for _name, _ufunc in (("eq", np.equal), ("ne", np.not_equal), ("lt", np.less), ("le", np.less_equal),
                      ("gt", np.greater), ("ge", np.greater_equal)):  # fmt: skip
    setattr(ndarray, f"__{_name}__", _binary(_ufunc, False))
for _name, _ufunc in (("neg", np.negative), ("pos", np.positive), ("abs", np.absolute), ("invert", np.invert)):
    setattr(ndarray, f"__{_name}__", lambda self, u=_ufunc: self.__array_ufunc__(u, "__call__", self))
for _name in ("bool", "int", "float", "index"):
    setattr(ndarray, f"__{_name}__", _reading(f"__{_name}__"))


def _module_of(function):
    return (function.__module__ or "").partition(".")[0] == "numpy"


def _is_bfloat16(value):
    return getattr(value, "dtype", None) == ml_dtypes.bfloat16


def _need_loop(name, inputs):
    """CuPy's refusals of operands: NumPy arrays, and dtypes that a ufunc has no loop for."""
    if name in ("matmul", "dot", "tensordot", "einsum", "inner", "vdot") and recording():
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    _need_device(name, inputs)
    loops = _CUPY["ufuncs"].get(name)
    if loops is not None and any(map(_is_bfloat16, inputs)) and not any("E" in loop for loop in loops):
        raise TypeError(f"{name}: CuPy has no loop for bfloat16")
    if name == "matmul" and any(map(_is_bfloat16, inputs)) and any(getattr(i, "ndim", 0) > 2 for i in inputs):
        raise TypeError("matmul: CuPy has no product of stacks in bfloat16")


def _need_no_structure(name, *arrays):
    """CuPy keeps and views arrays of structures, and has no kernels for them."""
    if any(array.dtype.fields for array in arrays):
        raise TypeError(f"{name}: CuPy has no kernel for structures")


def _need_device(name, args):
    for value in args:
        if isinstance(value, np.ndarray):
            raise TypeError(f"{name}: Unsupported type {type(value)}")


def _need_ufunc_method(name, method, inputs):
    """CuPy's refusals of what is not a call: add and multiply reduce, and `at` takes the index of one array."""
    if method in ("reduce", "accumulate") and name not in ("add", "multiply"):
        raise NotImplementedError(f"`cupy_{name}.{method}` is not supported yet")
    if method == "at":
        if name not in ("add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or"):
            raise NotImplementedError(f"`cupy_{name}.at` is not supported yet")
        if not all(isinstance(given, (ndarray, np.ndarray, np.generic, int, float)) for given in inputs):
            raise TypeError(f"operand type(s) all returned NotImplemented from __array_ufunc__({name}, 'at', {inputs})")
        known = _ADDED if name == "add" else _MET if name in ("maximum", "minimum") else None
        if known is not None and inputs[0].dtype.name not in known:
            raise TypeError(f"cupy.{name}.at only supports {', '.join(sorted(known))} as data type")


def _need_axis(name, args, kwargs, known):
    """CuPy's scalars have no axis to reduce."""
    if name not in _OF_SCALARS or not isinstance(args[0], ndarray) or args[0].ndim:
        return
    place = known.index("axis") if known and "axis" in known else len(args)
    axis = kwargs.get("axis", args[place] if place < len(args) else None)
    if isinstance(axis, int):
        raise np.exceptions.AxisError(axis, 0)


def _count_masks(index):
    # A boolean mask makes the host wait for the number of elements it takes.
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(p, ndarray) and p.dtype == np.bool_ for p in parts):
        _wait()


def _opened(value):
    if isinstance(value, ndarray):
        return value._numpy
    if isinstance(value, (tuple, list)):
        return type(value)(_opened(v) for v in value)
    if isinstance(value, dict):
        return {k: _opened(v) for k, v in value.items()}
    return value


# running, or recording what would run


def recording():
    """Whether the current stream captures."""
    return streams.capturing() is not None


def _done(function, args, kwargs, changes, owner=None):
    """`function` of the arrays, on the device. While a stream captures, results are memory that the launches fill.

    owner: the array whose method it is. changes: whether it changes `out`, the owner or its first argument.
    """
    given = _arrays([owner, *args, *kwargs.values()])
    with streams.of_a_test(given):
        return _done_here(function, args, kwargs, changes, owner, given)


def _done_here(function, args, kwargs, changes, owner, given):
    changed = _arrays([a for a in (kwargs.get("out"), owner, *args[:1]) if a is not None][:1]) if changes else []
    args, kwargs = _opened(args), _opened(kwargs)
    if changes:
        return _wrapped(perform(lambda: function(*args, **kwargs), given, changed), given)
    if not recording():
        found = _wrapped(perform(lambda: function(*args, **kwargs), given), given)
        streams.written([a for a in _arrays([found]) if not any(a._memory is each._memory for each in given)])
        return found
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _wrapped(function(*args, **kwargs), given)
    for place, made in enumerate(_arrays([found])):
        if not any(made._memory is each._memory for each in given):
            run = lambda held=made._numpy, place=place: np.copyto(held, _flat(function(*args, **kwargs))[place])  # noqa: E731
            perform(run, given, [made])
    return found


def _view(function, args, kwargs, owner=None):
    """What `function` returns, if that is a view, for which a device has nothing to do; else None."""
    given = _arrays([owner, *args])
    found = _wrapped(function(*_opened(args), **_opened(kwargs)), given)
    made = _arrays([found])
    seen = made and all(not m._numpy.nbytes or any(m._memory is g._memory for g in given) for m in made)
    for each in made:
        each._device = given[0].device_id
    return found if seen else None


def _item(array, index):
    found = array[index]
    if isinstance(found, np.generic):  # one element is a view in CuPy
        found = array[(*index, ...) if isinstance(index, tuple) else (index, ...)]
    return found


def _flat(values):
    if isinstance(values, (list, tuple)):
        return [v for item in values for v in _flat(item)]
    return [values] if isinstance(values, (np.ndarray, np.generic)) else []


def _arrays(values):
    """The device arrays among values, those in lists and tuples too."""
    found = []
    for value in values:
        if isinstance(value, ndarray):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _arrays(value)
    return found


def _wait(device=None):
    _refuse_recording("waiting for the device")
    waits[0] += 1
    streams.reach(streams.current_stream(device).clock)


def _refuse_recording(what):
    capture = streams.capturing()
    if capture is not None:
        streams.spoil(capture, "cudaErrorStreamCaptureUnsupported", what)


def _refuse_from_host():
    if recording():
        raise RuntimeError("the current stream is capturing, so H2D transfers are disallowed")  # CuPy's own words


class RawModule(emulator.RawModule):
    """The emulator's, whose launches can be captured."""

    def get_function(self, name):
        function = super().get_function(name)
        streams.contexts.add(memory.current.device)  # CuPy loads it there, and when it is launched on another device
        return RawKernel(function)


class RawKernel:
    """A kernel: its attributes are those of the current device."""

    def __init__(self, function):
        self._function, self._raised = function, {}

    def __call__(self, grid, block, args, shared_mem=0):
        function = self._function
        function.max_dynamic_shared_size_bytes = self.max_dynamic_shared_size_bytes
        run = function.bound(grid, block, args, shared_mem)
        pairs = [(a, p.constant) for a, p in zip(args, function.parameters, strict=True) if isinstance(a, ndarray)]
        reads, writes = ([a for a, constant in pairs if constant == wanted] for wanted in (b"c", b"m"))
        perform(run, reads, writes)

    @property
    def max_dynamic_shared_size_bytes(self):
        return self._raised.get(memory.current.device, launch_limits.BLOCK_SHARED)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self._raised[memory.current.device] = size


def _wrapped(found, given=()):
    """Results on the device: views of what was given, or copies in memory of their own."""
    if isinstance(found, (np.ndarray, np.generic)):
        return _placed(np.asarray(found), given)
    if isinstance(found, (tuple, list)) and any(isinstance(f, (np.ndarray, np.generic)) for f in found):
        made = [_wrapped(f, given) for f in found]
        return made if isinstance(found, list) else tuple(made)
    return found


def _placed(held, given):
    if held.base is not None and held.nbytes:
        start = held.__array_interface__["data"][0]
        for array in given:
            at = array._memory
            if at is not None and at.ptr <= start < at.ptr + at.size:
                return ndarray(held, at)
    return ndarray(held)


def _like(held):
    """New memory for an array, with its strides."""
    start, stop = streams.extent(held)
    at = memory.alloc(stop - start)
    offset = at.ptr - at.mem.segment.ptr + held.__array_interface__["data"][0] - start
    return ndarray(np.ndarray(held.shape, held.dtype, at.mem.segment.bytes, offset, held.strides), at.mem)


def _new(shape, dtype):
    shape, dtype = tuple(shape), np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return ndarray(np.empty(shape, dtype))
    at = memory.alloc(nbytes)
    segment = at.mem.segment
    return ndarray(np.ndarray(shape, dtype, segment.bytes, at.ptr - segment.ptr), at.mem)


def array_at(held):
    """A device array over memory that is there already, which it does not keep."""
    segment = memory.segment_of(held.__array_interface__["data"][0])
    return ndarray(held, memory.UnownedMemory(segment.ptr, segment.size, None, segment.device_id))


def frozen(values):
    """The arrays among `values` as addresses, which keep no memory."""
    if isinstance(values, ndarray):
        return values if values._memory is None else array_at(values._numpy)
    if not isinstance(values, tuple):
        return values
    return type(values)(*map(frozen, values)) if hasattr(values, "_fields") else tuple(map(frozen, values))


def _from_another_device(array):
    made, stream = _new(array.shape, array.dtype), streams.current_stream()
    if not array._numpy.nbytes:
        return made
    if stream.capture is not None:
        streams.spoil(stream.capture, "cudaErrorStreamCaptureIsolation", "memory of another device")
    touched = [streams.Access(*streams.extent(a._numpy), a is made) for a in (array, made)]
    stream.tick()
    streams.touch(stream, touched)
    made._numpy[...] = array._numpy
    return made


# memory of the host that copies run from and to


_pinned: dict[int, list[Any]] = {}  # free, by size


def alloc_pinned_memory(size):
    """Memory that is handed out again as soon as nobody refers to it, whether or not a copy still uses it."""
    spare = _pinned.setdefault(size, [])
    raw = spare.pop() if spare else np.empty(size, np.uint8)
    block = type("PinnedMemory", (ctypes.c_ubyte * size,), {}).from_buffer(raw)

    def free(raw=raw):
        raw.fill(0xEE)
        _pinned[size].append(raw)

    weakref.finalize(block, free).atexit = False
    return block


def _is_pinned(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return type(getattr(array, "obj", array)).__name__ == "PinnedMemory"


def _raw_bytes(array):
    """The bytes of an array of the host's, without keeping its owner."""
    return (ctypes.c_ubyte * array.nbytes).from_address(array.__array_interface__["data"][0])


def _need_unchanged(view, value):
    if view.tobytes() != value.tobytes():
        raise RuntimeError("memory of the host changed, or was freed, while a copy to the device still read it")


# the module's functions


def _brought(values, order):
    """The order in memory of what comes from the host: CuPy keeps no other than C's and Fortran's."""
    fortran = isinstance(values, np.ndarray) and values.flags.fnc
    return ("F" if fortran else "C") if order in "AK" and not isinstance(values, ndarray) else order


def asarray(values, dtype=None, order=None, *, copy=None, blocking=False):
    if not isinstance(values, ndarray):
        _refuse_from_host()
    elif copy or (dtype is not None and dtype != values.dtype):
        return values.astype(dtype or values.dtype, order or "K")
    return (
        ndarray(np.array(_opened(values), dtype, order=_brought(values, order or "K")))
        if copy or not isinstance(values, ndarray) or (dtype is not None and dtype != values.dtype)
        else values
    )


def array(values, dtype=None, copy=True):
    return ndarray(np.array(_opened(values), dtype))


def asnumpy(values, stream=None, order="C", out=None, *, blocking=True):
    return values.get() if isinstance(values, ndarray) else np.asarray(values)


def empty(shape, dtype=np.float64, order="C"):
    """Memory as the device gives it: aligned to 512 bytes, filled with what must not be read."""
    made = _new(shape if isinstance(shape, (tuple, list)) else (shape,), dtype)
    if made._numpy.nbytes:
        held = made._numpy.reshape(-1).view(np.uint8)
        perform(lambda: held.fill(0xFF), writes=[made])  # NaN in every floating-point format
    return made


def zeros(shape, dtype=np.float64, order="C"):
    made = empty(shape, dtype)
    made.fill(0)
    return made


def get_default_memory_pool():
    return memory.pool


def get_default_pinned_memory_pool():
    return types.SimpleNamespace(free_all_blocks=lambda: None)


def _properties(device):
    streams.Device(device)
    about = {"totalGlobalMem": memory.DEVICE_BYTES, "major": 9, "minor": 0, "multiProcessorCount": 132}
    return {"name": b"an emulated GPU", "sharedMemPerBlockOptin": launch_limits.BLOCK_SHARED_OPT_IN["sm_90"], **about}


cuda = types.SimpleNamespace(
    Device=streams.Device,
    Event=streams.Event,
    Stream=streams.Stream,
    get_current_stream=streams.current_stream,
    alloc=memory.alloc,
    get_allocator=memory.get_allocator,
    set_allocator=memory.set_allocator,
    Memory=memory.Memory,
    MemoryPool=memory.MemoryPool,
    MemoryPointer=memory.MemoryPointer,
    UnownedMemory=memory.UnownedMemory,
    MemoryHook=memory.MemoryHook,
    memory=types.SimpleNamespace(OutOfMemoryError=memory.OutOfMemoryError),
    get_elapsed_time=streams.get_elapsed_time,
    nccl=emulated_nccl,
    nvtx=types.SimpleNamespace(RangePush=lambda name, id_color=-1: None, RangePop=lambda: None),
    is_available=lambda: True,
    using_allocator=memory.using_allocator,
    alloc_pinned_memory=alloc_pinned_memory,
    runtime=types.SimpleNamespace(
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        getDevice=_current_device,
        setDevice=lambda index: streams.Device(index).use(),
        getDeviceCount=lambda: streams.COUNT,
        getDeviceProperties=_properties,
        CUDARuntimeError=memory.CUDARuntimeError,
    ),
)


def __getattr__(name):
    # Functions that take no device array, such as arange: NumPy's, on the device.
    if name not in _CUPY["functions"] and name not in _CUPY["ufuncs"]:
        raise AttributeError(f"CuPy has no {name!r}")
    function = getattr(np, name)
    return lambda *args, **kwargs: _wrapped(function(*_opened(args), **_opened(kwargs)), _arrays([args]))
