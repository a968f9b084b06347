"""New Parameters and buffers, and argument checks, for the constructors of layers."""

from __future__ import annotations

from typing import Any

from .. import backends
from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError
from ..core.arguments import MOST, is_whole
from ..core.parameter import Parameter
from ..core.tensor import Tensor


def new_parameter(shape: tuple[int, ...], device: Any = None, dtype: Any = None) -> Parameter:
    """A Parameter of zeros, to be initialized; float32 on the default device unless dtype or device says otherwise."""
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    if not dtypes.is_float(wanted):
        raise DTypeError("Parameter", "a floating-point dtype", dtypes.name_of(wanted))
    # Not `empty`, whose memory would return to the cache once an optimizer moves the values to its own.
    return Parameter(Tensor(backends.get(device).zeros(shape, wanted)))


def is_size(value: Any) -> bool:
    """Whether `value` is a positive integer."""
    return is_whole(value) and not isinstance(value, bool) and 1 <= value <= MOST


def check_sizes(where: str, **values: Any) -> None:
    """Raise ArgumentError unless every value is a positive integer."""
    for name, value in values.items():
        if not is_size(value):
            raise ArgumentError(where, f"{name} as a positive integer", repr(value))


def check_num_layers(where: str, num_layers: Any) -> None:
    """Raise ArgumentError unless num_layers is a positive integer below 2^16."""
    check_sizes(where, num_layers=num_layers)
    if num_layers >= _LAYERS:
        raise ArgumentError(where, f"num_layers below {_LAYERS}", f"{num_layers}")


_LAYERS = 1 << 16


def per_axis(where: str, name: str, value: Any, count: int = 2) -> tuple[int, ...]:
    """`value` as a tuple of `count` positive integers, one integer being repeated. Raises ArgumentError otherwise."""
    found = tuple(value) if isinstance(value, (tuple, list)) else (value,) * count
    if len(found) != count or not all(map(is_size, found)):
        raise ArgumentError(where, f"{name} as a positive integer or {count} of them", repr(value))
    return found


def check_probability(where: str, p: Any) -> float:
    """`p` as a float. Raises ArgumentError outside [0, 1]."""
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ArgumentError(where, "a probability p from 0 to 1", repr(p))
    return float(p)
