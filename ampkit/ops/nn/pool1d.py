"""Pooling of sequences: that of images of one row."""

from __future__ import annotations

from typing import Any

from ampkit.core.tensor import Tensor

from ..shape.view import squeeze, unsqueeze
from .pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d

__all__ = ["adaptive_avg_pool1d", "avg_pool1d", "max_pool1d"]


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest value of each window: input [N, C, L] or [C, L] -> [N, C, windows]; see `max_pool2d`."""
    sizes = (_row(1, kernel_size), _row(1, kernel_size if stride is None else stride), _row(0, padding))
    found = max_pool2d(unsqueeze(input, -2), *sizes, _row(1, dilation), ceil_mode, return_indices)
    return tuple(squeeze(f, -2) for f in found) if return_indices else squeeze(found, -2)


def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window: input [N, C, L] or [C, L] -> [N, C, windows]; see `avg_pool2d`."""
    sizes = (_row(1, kernel_size), _row(1, kernel_size if stride is None else stride), _row(0, padding))
    return squeeze(avg_pool2d(unsqueeze(input, -2), *sizes, ceil_mode, count_include_pad), -2)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The mean over windows that divide a sequence into output_size parts: [N, C, L] or [C, L] -> [N, C, parts]."""
    return squeeze(adaptive_avg_pool2d(unsqueeze(input, -2), _row(1, output_size)), -2)


def _row(one: int, value: Any) -> tuple[int, Any]:
    return one, value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value
