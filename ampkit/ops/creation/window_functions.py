"""Window functions of signal processing: [window_length]. Computed in float64, rounded once."""

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
