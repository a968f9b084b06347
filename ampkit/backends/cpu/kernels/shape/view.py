"""CPU kernel of a reshape that has to copy, as of a transposed array: by all threads, into cached memory."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.copies import contiguous
from ampkit.backends.cpu.native.arrays import HostArray, merge_axes
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape.view import reshape_

_LARGE = 1 << 16  # elements; NumPy copies fewer as fast


def _reshaped(array: HostArray, shape: tuple[int, ...]) -> HostArray:
    view = merge_axes(array, shape)
    return contiguous(array).reshape(shape) if view is None else view


@reshape_.on("cpu", when=lambda input, shape: not input.flags.c_contiguous, min_elements=_LARGE)
def reshape_cpu(input: HostArray, shape: tuple[int, ...], *, dtype: DType) -> Any:
    return _reshaped(input, shape), Saved(shape=input.shape)


@reshape_.on_backward("cpu", when=lambda dy, *more, **params: not dy.flags.c_contiguous, min_elements=_LARGE)
def reshape_backward_cpu(dy: HostArray, saved: Saved, needs: Any, shape: tuple[int, ...]) -> HostArray:
    return _reshaped(dy, saved.shape)
