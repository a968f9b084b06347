"""Windows for spectra: bells over `window_length` places. Computed in float64, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor

from ..argument_checks import check_addressable
from .constants import tensor_from_values

__all__ = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]


def _window(
    where: str, length: Any, periodic: bool, shape: Any, dtype: Any, device: Any, requires_grad: bool
) -> Tensor:
    # shape: of places from 0 to 1. A periodic window is the first part of one that is longer by 1, and symmetric.
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise ArgumentError(where, "window_length from 0", repr(length))
    check_addressable(where, (length,))
    steps = length if periodic else length - 1
    values = shape(np.arange(length) / steps) if length > 1 else np.ones(length)
    return tensor_from_values(values, dtype, device, requires_grad)


def _waves(*weights: float) -> Any:
    return lambda place: np.add.reduce([w * np.cos(2 * np.pi * k * place) for k, w in enumerate(weights)])


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """sin^2 from 0 over 1 to 0: [window_length]. periodic: without the last place, to be repeated."""
    return _window("hann_window", window_length, periodic, _waves(0.5, -0.5), dtype, device, requires_grad)


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
    """alpha - beta cos: [window_length]; see `hann_window`."""
    return _window("hamming_window", window_length, periodic, _waves(alpha, -beta), dtype, device, requires_grad)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """0.42 - 0.5 cos + 0.08 cos of twice: [window_length]; see `hann_window`."""
    return _window("blackman_window", window_length, periodic, _waves(0.42, -0.5, 0.08), dtype, device, requires_grad)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A triangle from 0 over 1 to 0: [window_length]; see `hann_window`."""
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
    """The Bessel function I0(beta sqrt(1 - x^2)) / I0(beta), x from -1 to 1: [window_length]; see `hann_window`."""

    def bell(place: Any) -> Any:
        with ignore_fp_errors():
            return np.i0(beta * np.sqrt(np.maximum(1 - (2 * place - 1) ** 2, 0))) / np.i0(beta)

    return _window("kaiser_window", window_length, periodic, bell, dtype, device, requires_grad)
