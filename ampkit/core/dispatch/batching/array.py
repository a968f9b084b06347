"""BatchedArray: an array with one more axis than it shows, that of the samples of a `vmap`.

It is to `vmap` what a TracedArray is to second derivatives: a Tensor holds it in place of its array, so that shapes,
dtypes, cast plans and checks are those of one sample. What ops do with it stands in `call.py`; here is the plain array
code that casts, views, changes in place and sums of gradients need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from weakref import finalize, ref

import numpy as np

from ampkit import backends
from ampkit.base.array_kinds import OwnBackend, on_device
from ampkit.base.dtypes import DType
from ampkit.base.errors import StateError

from ...casts import is_traced

_serial = count(1).__next__
live_levels: list[int] = []  # an entry for each level that exists: without any, nothing looks for batched arrays


# NumPy function -> what it is on batched arrays; see numpy_functions.py.
numpy_functions: dict[Any, Callable[..., Any]] = {}
# Methods of arrays that a sample's has not: code that calls them runs per sample.
_METHODS = ("min", "max", "argmin", "argmax", "all", "any", "mean", "item", "tolist", "ravel", "flatten", "cumsum")


class Level:
    """One call of a mapped function.

    size: of the mapped axis. serial: an inner call has a higher one. open: whether the function still runs. randomness:
    what random ops do.
    """

    def __init__(self, size: int, randomness: str = "error"):
        self.size, self.randomness, self.serial, self.open = size, randomness, _serial(), True
        self._backends: dict[int, BatchedBackend] = {}
        live_levels.append(self.serial)
        finalize(self, live_levels.pop).atexit = False

    def backend_of(self, data: Any) -> BatchedBackend:
        """The backend of the arrays of this level that hold arrays like `data`."""
        real = backends.backend_of(data)
        if id(real) not in self._backends:
            self._backends[id(real)] = BatchedBackend(self, real)
        return self._backends[id(real)]


class BatchedBackend:
    """The device of batched arrays: that of what they hold, under a name for which no kernels are registered."""

    name = "batched"

    def __init__(self, level: Level, real: Any):
        self._level, self.real, self.device = ref(level), real, real.device

    @property
    def level(self) -> Level:
        found = self._level()
        assert found is not None  # the arrays of a backend hold its level
        return found

    def __getattr__(self, name: str) -> Any:  # waiting, timing, errors
        return getattr(self.real, name)

    def device_of(self, array: Any) -> str:
        return str(self.real.device_of(array.data))

    def asarray(self, values: Any, dtype: DType | None = None) -> Any:
        return values if isinstance(values, BatchedArray) else self.real.asarray(values, dtype)

    def constant(self, values: Any) -> Any:
        return self.real.constant(values)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return BatchedArray(self.real.empty((self.level.size, *shape), dtype), self.level)

    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return BatchedArray(self.real.zeros((self.level.size, *shape), dtype), self.level)

    def cast(self, array: Any, dtype: DType) -> Any:
        return BatchedArray(self.real.cast(array.data, dtype), self.level)

    def copy(self, target: Any, source: Any) -> None:
        if not isinstance(target, BatchedArray):
            raise changes_unbatched()
        self.real.copy(target.data, expand(source, target.level).data)

    def raise_if(self, values: Any, bad: Any, fail: Callable[[Any, Any], None]) -> None:
        values = expand(values, self.level)
        self.real.raise_if(values.data, expand(bad, self.level).data, lambda value, place: fail(value, place[1:]))

    def to_numpy(self, array: Any) -> Any:
        raise _read()

    def item(self, array: Any) -> Any:
        raise _read()

    def call_when_ready(self, arrays: Any, then: Any) -> None:
        raise _read()


class UnmappedError(StateError):
    """Raised by what samples that run at once cannot do, and one after the other could."""


def _read() -> StateError:
    cure = "return the tensor, or choose by ops.where; a function that needs values maps in a Python loop"
    return UnmappedError("vmap", "a function that reads no values", "item(), bool() or numpy() of a sample", cure)


class OneByOneError(UnmappedError):
    """Raised by `what` is no op and has no rule, where the samples run at once: then they run one by one."""

    def __init__(self, what: str):
        super().__init__("vmap", "a function that has not ended", f"{what} of a sample, used after it")


def one_by_one(what: str, *values: Any) -> None:
    """Raise OneByOneError for `what`, which reads values, if they are of each sample."""
    if innermost(values) is not None:
        raise OneByOneError(what)


def changes_unbatched() -> StateError:
    """The error of values of the samples that are written where there is one memory for all."""
    cure = "change a tensor made of a mapped one, as by zeros_like, or do without the change in place"
    return UnmappedError("vmap", "changes in place of mapped tensors", "one of a tensor that all samples share", cure)


class BatchedArray(OwnBackend, np.lib.mixins.NDArrayOperatorsMixin):
    """`data` [size, ...], shown without its first axis.

    data: an array of a device, or of an outer level. level: whose samples they are.
    """

    __slots__ = ("data", "level")

    def __init__(self, data: Any, level: Level):
        self.data, self.level = data, level

    @property
    def backend(self) -> Any:
        return self.level.backend_of(self.data)

    # what ops ask of an array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape[1:])

    @property
    def ndim(self) -> int:
        return int(self.data.ndim) - 1

    @property
    def size(self) -> int:
        return math.prod(self.data.shape[1:])

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def itemsize(self) -> int:
        return int(self.data.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.data.strides[1:])

    @property
    def flags(self) -> Any:
        return self.data.flags

    @property
    def T(self) -> BatchedArray:
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        raise _read()

    def __float__(self) -> float:
        raise _read()

    def __int__(self) -> int:
        raise _read()

    def __index__(self) -> int:
        raise _read()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise changes_unbatched()

    def __repr__(self) -> str:
        return f"<batched {self.dtype} {list(self.shape)} x {self.level.size}>"

    # plain array code

    def _like(self, data: Any) -> BatchedArray:
        return BatchedArray(data, self.level)

    def reshape(self, *shape: Any) -> BatchedArray:
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if -1 in given:
            known = -math.prod(given)
            given = tuple([self.size // known if n == -1 else n for n in given])
        return self._like(self.data.reshape((self.level.size, *given)))

    def transpose(self, *axes: Any) -> BatchedArray:
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = given or tuple(reversed(range(self.ndim)))
        return self._like(self.data.transpose((0, *[a % self.ndim + 1 for a in order])))

    def swapaxes(self, a: int, b: int) -> BatchedArray:
        return self._like(self.data.swapaxes(a % self.ndim + 1, b % self.ndim + 1))

    def squeeze(self, axis: Any = None) -> BatchedArray:
        axes = range(self.ndim) if axis is None else [a % self.ndim for a in ((axis,) if type(axis) is int else axis)]
        return self.reshape(tuple([n for i, n in enumerate(self.shape) if i not in axes or n != 1]))

    def astype(self, dtype: Any, copy: bool = True) -> BatchedArray:
        return self if self.dtype == dtype and not copy else self._like(self.data.astype(dtype))

    def view(self, dtype: Any) -> BatchedArray:
        return self._like(self.data.view(dtype))

    def copy(self, order: str = "C") -> BatchedArray:
        return self._like(self.data.copy())

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> BatchedArray:
        axes = tuple(range(self.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        shifted = tuple([a % self.ndim + 1 for a in axes])
        return self._like(self.data.sum(shifted, dtype, keepdims=keepdims) if shifted else self.data.astype(dtype))

    def __getitem__(self, index: Any) -> BatchedArray:
        return self._like(self.data[self._basic(index)])

    def __setitem__(self, index: Any, values: Any) -> None:
        index = self._basic(index)
        if isinstance(values, BatchedArray):
            self.data[index] = aligned([values], self.level, self.data[index].ndim - 1)[0]
        else:
            self.data[index] = values

    def _basic(self, index: Any) -> tuple[Any, ...]:
        parts = index if type(index) is tuple else (index,)
        if not all(part is None or part is ... or type(part) in (int, slice) for part in parts):
            raise TypeError("index of a batched array")  # an op that meets it loops over the samples
        return (slice(None), *parts)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        level = innermost(args)
        if method != "__call__" or level is None or set(kwargs) - {"out", "dtype"} or any(map(is_traced, args)):
            return NotImplemented
        (out,) = kwargs.pop("out", (None,))
        if out is not None:
            if not isinstance(out, BatchedArray) or out.level is not level:
                raise changes_unbatched()
            rank = out.ndim
            made = ufunc(*aligned(args, level, rank), **kwargs, out=out.data)
        else:
            made = ufunc(*aligned(args, level), **kwargs)
        if out is not None:
            return out
        found = [BatchedArray(each, level) for each in (made if type(made) is tuple else (made,))]
        return tuple(found) if type(made) is tuple else found[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(hasattr(kind, "tensor") for kind in types):  # a TracedArray, whose ops know batched ones
            return NotImplemented
        own = numpy_functions.get(function)
        if own is not None:
            return own(*args, **kwargs)
        if function in (np.zeros, np.ones, np.empty, np.full):
            shape, *others = args
            full = (self.level.size, *((shape,) if isinstance(shape, int) else shape))
            return self._like(function(full, *others, **kwargs, like=self.data))
        if function in (np.arange, np.identity, np.eye):  # which all samples share
            return function(*args, **kwargs, like=self.data)
        raise OneByOneError(f"NumPy's {function.__name__}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _METHODS:
            raise AttributeError(name)
        raise OneByOneError(f"the method {name}")


def innermost(values: Any) -> Level | None:
    """The level of the innermost function of which some of `values`, or of the tuples among them, are samples."""
    found: Level | None = None
    for value in values:
        kind = type(value)
        level = value.level if kind is BatchedArray else innermost(value) if kind in (tuple, list) else None
        if level is not None and (found is None or level.serial > found.serial):
            found = level
    return found


def is_at(array: Any, level: Level) -> bool:
    """Whether an array is of the samples of `level`, at the innermost level or an outer one."""
    while type(array) is BatchedArray:
        if array.level is level:
            return True
        array = array.data
    return False


def is_inner(array: Any, level: Level) -> bool:
    """Whether an array is batched at a level within `level`, whose samples then stand outermost: it holds theirs."""
    return type(array) is BatchedArray and array.level.serial > level.serial


def need_room(target: Any, values: Any) -> None:
    """Raise StateError for values of the samples that are to be written to an array that they share."""
    level = innermost((values,))
    if level is not None and not is_at(target, level):
        raise changes_unbatched()


def own_of_each(array: Any, like: Any) -> Any:
    """`array` in memory of its own for each sample that `like` is of."""
    if type(like) is not BatchedArray:
        return array
    inner = own_of_each(array, like.data[0])
    return BatchedArray(np.broadcast_to(inner, (like.level.size, *inner.shape)).copy(), like.level)


def expand(array: Any, level: Level) -> BatchedArray:
    """`array` as one of `level`: itself, or shown to each sample, in memory that is not written."""
    if isinstance(array, BatchedArray) and array.level is level:
        return array
    if is_inner(array, level):
        return BatchedArray(expand(array.data, level), array.level)
    array = np.asarray(array) if isinstance(array, (bool, int, float, np.generic)) else array
    return BatchedArray(np.broadcast_to(array, (level.size, *array.shape)), level)


def aligned(values: Any, level: Level, rank: int | None = None) -> list[Any]:
    """The arrays that `values` hold at `level`, with axes of length 1 behind the first one, so that they broadcast.

    rank: the number of axes of a sample of the result; without one, that of the values that has the most.
    """
    if rank is None:
        rank = max([int(getattr(value, "ndim", 0)) for value in values])
    found, there = [], None
    for value in values:
        if type(value) is BatchedArray and value.level is level:
            value = value.data if value.data.ndim == rank + 1 else _aligned(value, rank)
            there = value
        found.append(value)
    if type(there) is not np.ndarray and any(isinstance(v, np.ndarray) for v in found):  # a constant beside a GPU's
        device = device_of(there)
        if device is not backends.cpu:
            return [device.asarray(v) if isinstance(v, np.ndarray) else v for v in found]
    return found


def device_of(array: Any) -> Any:
    """The backend of the arrays that a batched one holds, below all levels."""
    return backends.backend_of(on_device(array))


def _aligned(array: BatchedArray, rank: int) -> Any:
    missing = rank - array.ndim
    if not missing:
        return array.data
    if missing < 0:  # leading axes of length 1, which assignment drops
        return array.data.reshape((array.level.size, *array.shape[-missing:]))
    return array.data.reshape((array.level.size, *(1,) * missing, *array.shape))


def at(value: Any, level: Level, sample: int) -> Any:
    """`value` of one sample; tuples and lists item by item."""
    if type(value) is BatchedArray and value.level is level:
        return value.data[sample, ...]
    return type(value)([at(v, level, sample) for v in value]) if type(value) in (tuple, list) else value
