"""An emulated CuPy: arrays that behave as CuPy's do where a machine without a GPU can tell.

`ndarray` wraps a NumPy array and lets nothing through that CuPy would refuse: functions, parameters and loops that CuPy
does not have (tests/golden/cupy.json), plain NumPy arrays among the operands, a silent copy to the host. What would
make the host wait for the device counts in `waits`. `ampkit.backends.cuda` runs on this module as on CuPy itself; its
kernels go to the emulator.
"""

from __future__ import annotations

import ctypes
import json
import math
import time
import types
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from . import emulator, memory

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
_SORTING = {"argmax", "argmin", "sort", "argsort", "cumsum", "cumprod", "unique", "isin", "median"}
_WIDENING = {"where", "tril", "triu", "round"}  # have no bfloat16, and answer in float32
_ADDED = {"int32", "int64", "uint32", "uint64", "float16", "float32", "float64"}  # what add.at adds
_MET = {"int32", "uint32", "uint64", "float32", "float64"}  # what maximum.at and minimum.at compare
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
waits = [0]  # how often the host has read the device


class ndarray:
    """A device array: everything NumPy's arrays have of what CuPy's have."""

    __slots__ = ("__weakref__", "_held", "_keep")
    __hash__ = None

    def __init__(self, held: Any, keep: Any = None):
        self._held = held
        self._keep = keep
        if held.base is None:
            memory.take(held)

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
        _need_axis(name, args, kwargs, known)
        if name == "pad" and isinstance(kwargs.get("constant_values"), ndarray):
            kwargs["constant_values"].__array__()
        if name == "bincount" and any(isinstance(given, ndarray) for given in (*args[1:2], kwargs.get("weights"))):
            raise TypeError("bincount: CuPy adds weights in no fixed order")
        if name in ("nonzero", "unique", "flatnonzero", "argwhere", "array_equal"):
            _wait()
        if name in _SORTING and any(map(_is_bfloat16, args)):
            raise TypeError(f"{name}: CuPy has no bfloat16")
        if name in _PLAIN_RESULTS:
            return function(*_opened(args), **_opened(kwargs))
        out = kwargs.get("out")
        found = _done(function, args, kwargs, out is not None or name in _CHANGING)
        if name == "diagonal":  # NumPy's alone is read-only
            found._held.flags.writeable = True
        if name in _WIDENING and _is_bfloat16(found):
            found = found.astype(np.float32)
        return found if out is None else out

    # attributes

    def __getattr__(self, name):
        if name not in _CUPY["methods"]:
            raise AttributeError(f"CuPy's arrays have no {name!r}")
        found = getattr(self._held, name)
        if not callable(found) or name in ("dtype", "flags"):
            return _wrapped(found) if isinstance(found, np.ndarray) else found
        known = _CUPY["methods"][name]

        def method(*args, **kwargs):
            extra = set(kwargs) - set(known or kwargs)
            if extra or (known is not None and len(args) > len(known)):
                raise TypeError(f"{name}: CuPy takes {known}, got {args} {kwargs}")
            _need_device(name, args)
            _need_axis(name, (self, *args), kwargs, ["self", *(known or ())])
            out = kwargs.get("out")
            made = _done(found, args, kwargs, out is not None or name in _CHANGING)
            return made if out is None else out

        return method

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self._held.ctypes.data, device_id=0, mem=self._held)

    @property
    def device(self):
        return types.SimpleNamespace(id=0)

    @property
    def base(self):
        return None if self._held.base is None else ndarray(self._held.base)

    @property
    def __cuda_array_interface__(self):
        return self._held.__array_interface__

    def get(self, stream=None, order="C", out=None, blocking=True):
        _refuse_recording("a copy to the host")
        if not blocking or out is not None:
            out[...] = self._held
            return out
        _wait()
        return self._held.copy(order)

    def set(self, array, stream=None):
        _refuse_from_host()
        self._held[...] = array

    def item(self):
        _wait()
        return self._held.item()

    def tolist(self):
        _wait()
        return self._held.tolist()

    def __len__(self):
        return len(self._held)

    def __iter__(self):
        return (self[i] for i in range(len(self._held)))

    def __getitem__(self, index):
        _count_masks(index)
        return _done(_item, (self, index), {}, False)

    def __setitem__(self, index, value):
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type numpy.ndarray: bring it to the device first")
        perform(lambda: _written(self._held, _opened(index), _opened(value)))

    def __repr__(self):
        return f"device {self._held!r}"

    def __deepcopy__(self, memo):
        return ndarray(self._held.copy())

    def __copy__(self):
        return ndarray(self._held.copy())

    def __reduce__(self):
        return ndarray, (self._held,)

    def __dlpack__(self, stream=None):
        return _lying_on(2, self._held.__dlpack__())

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
        _wait()
        return getattr(self._held, name)()

    return read


def _lying_on(device, capsule):
    """A DLPack capsule that names a type of device: 1 the host, 2 a GPU."""
    address = _pointer(capsule, b"dltensor")
    ctypes.c_int32.from_address(address + 8).value = device  # after the address of the data
    return capsule


def from_dlpack(array):
    capsule = _lying_on(1, array.__dlpack__(stream=0))
    host = types.SimpleNamespace(__dlpack__=lambda **options: capsule, __dlpack_device__=lambda: (1, 0))
    return ndarray(np.from_dlpack(host))


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
        return value._held
    if isinstance(value, (tuple, list)):
        return type(value)(_opened(v) for v in value)
    if isinstance(value, dict):
        return {k: _opened(v) for k, v in value.items()}
    return value


# running, or recording what would run


def recording():
    """Whether the current stream records."""
    return _streams[-1].recorded is not None


def perform(action):
    """Do what changes memory of the device: now, or at each launch of what is being recorded."""
    recorded = _streams[-1].recorded
    if recorded is None:
        return action()
    recorded.append(action)
    return None


def _done(function, args, kwargs, changes):
    """`function` of the arrays, wrapped. While a stream records, results are memory that the launches fill."""
    args, kwargs = _opened(args), _opened(kwargs)
    if changes:
        return _wrapped(perform(lambda: function(*args, **kwargs)))
    if _streams[-1].recorded is None:
        return _wrapped(function(*args, **kwargs))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _wrapped(function(*args, **kwargs))
    inputs = _flat([*args, *kwargs.values(), getattr(function, "__self__", None)])
    for place, made in enumerate(_flat(found)):
        if not any(np.may_share_memory(made, given) for given in inputs):
            perform(lambda made=made, place=place: np.copyto(made, _again(function, args, kwargs, place)))
    return found


def _item(array, index):
    found = array[index]
    if isinstance(found, np.generic):  # one element is a view in CuPy
        found = array[(*index, ...) if isinstance(index, tuple) else (index, ...)]
    return found


def _again(function, args, kwargs, place):
    return _flat(_wrapped(function(*args, **kwargs)))[place]


def _flat(values):
    if isinstance(values, (list, tuple)):
        return [v for item in values for v in _flat(item)]
    values = _opened(values)
    return [values] if isinstance(values, np.ndarray) else []


def _wait():
    _refuse_recording("waiting for the device")
    waits[0] += 1


def _refuse_recording(what):
    if _streams[-1].recorded is not None:
        raise RuntimeError(f"cudaErrorStreamCaptureUnsupported: {what}")


def _refuse_from_host():
    if _streams[-1].recorded is not None:
        raise RuntimeError("the current stream is capturing, so H2D transfers are disallowed")  # CuPy's own words


class RawModule(emulator.RawModule):
    """The emulator's, whose launches can be recorded."""

    def get_function(self, name):
        function = super().get_function(name)
        return lambda grid, block, args, shared_mem=0: perform(
            lambda: function(grid, block, args, shared_mem=shared_mem)
        )


def _wrapped(found, out=None):
    if out is not None:
        return out[0] if isinstance(out, tuple) and len(out) == 1 else out
    if isinstance(found, (np.ndarray, np.generic)):
        return ndarray(np.asarray(found))
    if isinstance(found, (tuple, list)) and any(isinstance(f, (np.ndarray, np.generic)) for f in found):
        return [_wrapped(f) for f in found] if isinstance(found, list) else tuple([_wrapped(f) for f in found])
    return found


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
    """Memory as the device gives it: aligned to 256 bytes, filled with what must not be read."""
    dtype = np.dtype(dtype)
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    raw = np.full(count * dtype.itemsize + 256, 0xFF, np.uint8)  # NaN in every floating-point format
    memory.take(raw)
    if _streams[-1].recorded is not None:
        perform(lambda: raw)  # which the launches go on using
    start = -raw.ctypes.data % 256
    return ndarray(raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape))


def zeros(shape, dtype=np.float64, order="C"):
    made = empty(shape, dtype)
    made.fill(0)
    return made


class _Device:
    compute_capability = "90"
    mem_info = property(lambda self: (memory.ALL - memory.reserved(), memory.ALL))  # bytes free, and all

    def __init__(self, id=0):
        if id:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self.id = id

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def synchronize(self):
        _wait()


class _Event:
    def __init__(self):
        self.asked = 0

    @property
    def done(self):
        """Not the first time: the host is ahead of the device."""
        self.asked += 1
        return self.asked > 1

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        _wait()


class _Graph:
    def __init__(self, actions):
        self.actions = actions

    def launch(self, stream=None):
        with np.errstate(all="ignore"):
            for action in self.actions:
                action()


class _Stream:
    def __init__(self, non_blocking=False, null=False):
        self.ptr, self.recorded = 0, None

    def __enter__(self):
        _streams.append(self)
        return self

    def __exit__(self, *error):
        _streams.pop()

    def record(self, event=None):
        return event or _Event()

    def wait_event(self, event): ...

    def synchronize(self):
        if self.recorded is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: waiting for a stream that records")
        waits[0] += 1

    def begin_capture(self):
        self.recorded = []

    def end_capture(self):
        recorded, self.recorded = self.recorded, None
        return _Graph(recorded)


_streams = [_Stream(null=True)]


def get_default_memory_pool():
    return memory.pool


def get_default_pinned_memory_pool():
    return types.SimpleNamespace(free_all_blocks=lambda: None)


cuda = types.SimpleNamespace(
    Device=_Device,
    Event=_Event,
    Stream=_Stream,
    get_current_stream=lambda: _streams[-1],
    MemoryPool=memory.MemoryPool,
    MemoryHook=memory.MemoryHook,
    memory=types.SimpleNamespace(OutOfMemoryError=memory.OutOfMemoryError),
    get_elapsed_time=lambda first, second: (second.at - first.at) * 1000,
    nvtx=types.SimpleNamespace(RangePush=lambda name, id_color=-1: None, RangePop=lambda: None),
    is_available=lambda: True,
    using_allocator=memory.using_allocator,
    alloc_pinned_memory=lambda size: memoryview(bytearray(size)),
    runtime=types.SimpleNamespace(
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda device: {
            "name": b"an emulated GPU",
            "totalGlobalMem": 80 << 30,
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 132,
        },
    ),
)


def __getattr__(name):
    # Functions that take no device array, such as arange: NumPy's, on the device.
    if name not in _CUPY["functions"] and name not in _CUPY["ufuncs"]:
        raise AttributeError(f"CuPy has no {name!r}")
    function = getattr(np, name)
    return lambda *args, **kwargs: _wrapped(function(*_opened(args), **_opened(kwargs)))
