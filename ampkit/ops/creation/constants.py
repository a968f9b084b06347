"""Tensors of constants: zeros, ones, full, eye, and their `*_like` forms.

Everywhere: dtype (the default dtype, float32, by default), device (the CPU), requires_grad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base import dtypes
from ampkit.base.dtypes import DType, bool_, int64
from ampkit.base.errors import ShapeError
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor

from ..argument_checks import check_addressable, check_count, check_representable, parse_shape
from ..named import named

__all__ = ["empty", "empty_like", "eye", "full", "full_like", "ones", "ones_like", "zero_", "zeros", "zeros_like"]


def tensor_from_values(
    values: Any, dtype: Any, device: Any, requires_grad: bool, default: DType | None = None, constant: bool = False
) -> Tensor:
    default = dtypes.default() if default is None else default
    wanted = default if dtype is None else dtypes.parse(dtype)
    with ignore_fp_errors():
        made = np.asarray(values).astype(wanted, copy=False)
    there = backends.get(device)
    return Tensor(there.constant(made) if constant else there.asarray(made), requires_grad)


def parse_size(where: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    shape = parse_shape(where, size)
    if any(n < 0 for n in shape):
        raise ShapeError(where, "sizes from 0", f"{shape}")
    return check_addressable(where, shape)


# constants


def _filled(shape: tuple[int, ...], value: Any, dtype: DType, device: Any, requires_grad: bool) -> Tensor:
    # The value is converted once, not at every element of an array in its own dtype.
    with ignore_fp_errors():
        one = np.asarray(value).astype(dtype)
    made = backends.cpu.full(shape, one) if one.ndim == 0 else np.full(shape, one)
    return Tensor(backends.get(device).constant(made), requires_grad)


def full(size: Any, fill_value: float, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of `size`, filled with `fill_value`; bool, int64 or float32 by its type.

    Raises ArgumentError for a number that an integer `dtype` cannot represent.
    """
    kind = {bool: bool_, int: int64}.get(type(fill_value), dtypes.default())
    wanted = kind if dtype is None else dtypes.parse(dtype)
    if not dtypes.is_float(wanted):
        check_representable("full", wanted, fill_value)
    return _filled(parse_size("full", (size,)), fill_value, wanted, device, requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    return Tensor(backends.get(device).zeros(parse_size("zeros", size), wanted), requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    return _filled(parse_size("ones", size), 1, wanted, device, requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of uninitialized memory."""
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    return Tensor(backends.get(device).empty(parse_size("empty", size), wanted), requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The identity matrix [n, m], m = n by default."""
    n, m = check_count("eye", "n", n), check_count("eye", "m", n if m is None else m)
    check_addressable("eye", (n, m))
    wanted = dtypes.default() if dtype is None else dtypes.parse(dtype)
    made = backends.cpu.full((n, m), np.zeros((), wanted))
    made.reshape(-1)[: m * min(n, m) : m + 1] = 1
    return Tensor(backends.get(device).constant(made), requires_grad)


def _constant_like(make: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
    @named(f"{make.__name__}_like", f"{what}, with input's shape, dtype and device.")
    def like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        return make(tuple(input.shape), **options_like(input, dtype, device, requires_grad))

    return like


def options_like(input: Tensor, dtype: Any, device: Any, requires_grad: bool) -> dict[str, Any]:
    device = input.device if device is None else device
    return {"dtype": input.dtype if dtype is None else dtype, "device": device, "requires_grad": requires_grad}


zeros_like = _constant_like(zeros, "Zeros")
ones_like = _constant_like(ones, "Ones")
empty_like = _constant_like(empty, "Uninitialized memory")


def full_like(
    input: Tensor, fill_value: float, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`fill_value` throughout, with input's shape, dtype and device."""
    return full(tuple(input.shape), fill_value, **options_like(input, dtype, device, requires_grad))


def zero_(input: Tensor) -> Tensor:
    """`Tensor.zero_`: overwrite every element of input with 0."""
    return input.zero_()
