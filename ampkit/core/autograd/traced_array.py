"""TracedArray: an array whose operations are recorded, so that plain array code can be differentiated.

A `TracedArray` looks like an array to a reference or a backward (NumPy's functions and operators, `.sum(axis)`,
`.reshape`), and runs the corresponding ops, so that second derivatives follow. An op names its NumPy function in `@op`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ampkit import backends
from ampkit.backends import Backend
from ampkit.base.dtypes import DType

from ..tensor import Tensor

# NumPy function -> the op, or the function of Tensors with NumPy's arguments, that implements it for traced arrays.
stands_for: dict[Any, Callable[..., Any]] = {}


class TracedArray:
    """A Tensor with the interface of a NumPy array."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    if TYPE_CHECKING:  # the methods of arrays, bound below

        def __getattr__(self, name: str) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.array.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.array.dtype

    @property
    def ndim(self) -> int:
        return self.tensor.array.ndim

    @property
    def size(self) -> int:
        return self.tensor.array.size

    @property
    def T(self) -> Any:
        return self.transpose()

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__" or ufunc not in stands_for:
            return NotImplemented
        return run(stands_for[ufunc], *args, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in stands_for:
            return NotImplemented
        return run(stands_for[function], *args, **kwargs)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return run(stands_for["getitem"], self, index)


def plain(array: Any) -> Any:
    """The values of an array, traced or not, detached: derivatives treat them as constants."""
    return array.tensor.array if isinstance(array, TracedArray) else array


def apply(op: Any, *args: Any, **params: Any) -> Any:
    """The reference of `op` on plain arrays; where one of `args` is traced, the op itself."""
    if any(isinstance(a, TracedArray) for a in args):
        return run(op, *args, **params)
    out = op.forward.reference.run(*args, **params)
    return out[0] if isinstance(out, tuple) and len(out) == 2 else out


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of Tensors on arrays, some of them traced. -> its results, traced."""
    backend = _backend_of([*args, *kwargs.values()])
    out = function(*(_to_tensor(a, backend) for a in args), **{k: _to_tensor(v, backend) for k, v in kwargs.items()})
    return tuple(_to_traced(o) for o in out) if isinstance(out, tuple) else _to_traced(out)


def _backend_of(values: Any) -> Backend:
    # Of the first traced array.
    for value in values:
        if isinstance(value, TracedArray):
            return backends.backend_of(value.tensor.array)
        if isinstance(value, (list, tuple)) and any(isinstance(v, TracedArray) for v in value):
            return _backend_of(value)
    return backends.cpu


def _to_tensor(value: Any, backend: Backend) -> Any:
    if isinstance(value, TracedArray):
        return value.tensor
    if isinstance(value, (list, tuple)) and any(isinstance(v, TracedArray) for v in value):
        return [_to_tensor(v, backend) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return Tensor(backend.asarray(value))
    return Tensor(value) if backends.is_array(value) else value


def _to_traced(value: Any) -> Any:
    return TracedArray(value) if isinstance(value, Tensor) else value


def _method(key: str) -> Callable[..., Any]:
    def call(self: TracedArray, *args: Any, **kwargs: Any) -> Any:
        return run(stands_for[key], self, *args, **kwargs)

    return call


def _swapped(key: str) -> Callable[..., Any]:
    def call(self: TracedArray, other: Any) -> Any:
        return run(stands_for[key], other, self)

    return call


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    setattr(TracedArray, f"__{_name}__", _method(_name))
    setattr(TracedArray, f"__r{_name}__", _swapped(_name))
for _name in ("neg", "eq", "ne", "lt", "le", "gt", "ge", "abs"):
    setattr(TracedArray, f"__{_name}__", _method(_name))
for _name in ("sum", "mean", "max", "min", "reshape", "transpose", "swapaxes", "astype", "squeeze", "copy"):
    setattr(TracedArray, _name, _method(_name))
