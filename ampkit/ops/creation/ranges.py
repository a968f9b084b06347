"""Evenly spaced values, arange, linspace and logspace, and the window functions of signal processing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType, bool_, int64
from ampkit.base.errors import ArgumentError
from ampkit.core.dispatch.batching.array import one_by_one
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor

from ..argument_checks import check_addressable, check_count, check_representable
from .constants import tensor_from_values

__all__ = [
    "arange", "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window", "linspace",
    "logspace",
]  # fmt: skip


def arange(
    start: float | Tensor | None = None,
    end: float | Tensor | None = None,
    step: float | Tensor = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... up to but excluding end; `arange(end)` starts at 0.

    int64, or float32 if an argument is a float. For an integer dtype start and step are truncated first, for int64 end
    too. Raises ArgumentError for a step of 0 or of the wrong sign, and without an end.
    """
    if end is None:
        start, end = None, start
    first, last, delta = map(_number, (0 if start is None else start, end, step))
    for name, value in (("start", first), ("end", last), ("step", delta)):
        if value is not None and not -math.inf < value < math.inf:
            raise ArgumentError("arange", f"{name} as a finite number", f"{value}")
    fractions = float in (type(first), type(last), type(delta))
    kind = dtypes.default() if fractions else int64
    kind = kind if dtype is None else dtypes.parse(dtype)
    if last is None or delta == 0 or (last - first) * delta < 0:
        raise ArgumentError("arange", "a step that leads from start to end", f"start={first}, end={last}, step={delta}")
    check_addressable("arange", (int(min((last - first) / delta, 2.0**62)),))  # a small step gives infinity
    values = (
        _integer_steps(first, last, delta, kind) if fractions and _is_whole(kind) else np.arange(first, last, delta)
    )
    return tensor_from_values(values, kind, device, requires_grad, constant=True)


def _integer_steps(first: float, last: float, step: float, dtype: DType) -> Any:
    # As in PyTorch: for int64 all three are truncated before counting the steps, for other integer dtypes after.
    begin, stride = _whole("arange", dtype, first), math.trunc(step)
    if not stride:
        raise ArgumentError("arange", f"a step of 1 or more, for {dtype.name}", f"{step}")
    steps = np.arange(begin, math.trunc(last), stride).size if dtype == int64 else np.arange(first, last, step).size
    return begin + stride * np.arange(steps)


def _is_whole(dtype: DType) -> bool:
    return not dtypes.is_float(dtype) and dtype != bool_


def _whole(where: str, dtype: DType, value: float) -> int:
    """Truncate `value`; raise ArgumentError if `dtype` cannot represent it."""
    if not math.isfinite(value):
        raise ArgumentError(where, f"a number that {dtype.name} holds", f"{value}")
    check_representable(where, dtype, whole := math.trunc(value))
    return whole


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, (Tensor, np.generic)) else value


def linspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` evenly spaced values from start to end, both included: numbers or 0-d tensors.

    Computed in float64. For an integer dtype start, end and the values between are truncated.
    Raises ArgumentError for an end that the dtype cannot represent.
    """
    return tensor_from_values(
        _evenly("linspace", start, end, steps, dtype), dtype, device, requires_grad, constant=True
    )


def logspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` powers of base with evenly spaced exponents from start to end, both included; see `linspace`."""
    exponents = _evenly("logspace", start, end, steps, dtype)
    kind = dtypes.default() if dtype is None else dtypes.parse(dtype)
    with ignore_fp_errors():
        powers = np.power(float(base), exponents)
    if _is_whole(kind) and steps:
        _whole("logspace", kind, float(powers.max()))
    return tensor_from_values(powers, dtype, device, requires_grad, constant=True)


def _evenly(where: str, start: Any, end: Any, steps: int, dtype: Any) -> Any:
    one_by_one(where, *[getattr(value, "array", value) for value in (start, end)])
    ends, kind = [_number(value) for value in (start, end)], dtypes.parse(dtypes.default() if dtype is None else dtype)
    steps = check_count(where, "steps", steps)
    with ignore_fp_errors():
        first, last = [_whole(where, kind, value) for value in ends] if _is_whole(kind) else ends
        if math.isinf(last - first):  # though neither is
            return 2 * np.linspace(first / 2, last / 2, steps)
        return np.linspace(first, last, steps)


def _window(
    where: str, length: Any, periodic: bool, shape: Any, dtype: Any, device: Any, requires_grad: bool
) -> Tensor:
    # shape: a function of sample points in [0, 1]. A periodic window is a symmetric one of length + 1 without its end.
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise ArgumentError(where, "window_length from 0", repr(length))
    check_addressable(where, (length,))
    steps = length if periodic else length - 1
    values = shape(np.arange(length) / steps) if length > 1 else np.ones(length)
    return tensor_from_values(values, dtype, device, requires_grad)


def _cosine_sum(*weights: float) -> Any:
    return lambda x: np.add.reduce([w * np.cos(2 * np.pi * k * x) for k, w in enumerate(weights)])


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The Hann window, sin^2: [window_length]. periodic: without the last sample, for use with an FFT."""
    return _window("hann_window", window_length, periodic, _cosine_sum(0.5, -0.5), dtype, device, requires_grad)


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The Hamming window, alpha - beta cos: [window_length]; see `hann_window`."""
    return _window("hamming_window", window_length, periodic, _cosine_sum(alpha, -beta), dtype, device, requires_grad)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The Blackman window, 0.42 - 0.5 cos x + 0.08 cos 2x: [window_length]; see `hann_window`."""
    return _window(
        "blackman_window", window_length, periodic, _cosine_sum(0.42, -0.5, 0.08), dtype, device, requires_grad
    )


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The Bartlett window, a triangle from 0 to 1 to 0: [window_length]; see `hann_window`."""
    return _window(
        "bartlett_window", window_length, periodic, lambda x: 1 - np.abs(2 * x - 1), dtype, device, requires_grad
    )


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The Kaiser window, I0(beta sqrt(1 - x^2)) / I0(beta) for x in [-1, 1]: [window_length]; see `hann_window`."""

    def kaiser(x: Any) -> Any:
        with ignore_fp_errors():
            return np.i0(beta * np.sqrt(np.maximum(1 - (2 * x - 1) ** 2, 0))) / np.i0(beta)

    return _window("kaiser_window", window_length, periodic, kaiser, dtype, device, requires_grad)
