"""CPU kernel of a reshape that has to copy, as of a transposed array: by all threads, into cached memory."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.copies import reshaped
from ampkit.backends.cpu.native.arrays import HostArray
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape.view import reshape_

_LARGE = 1 << 16  # elements; NumPy copies fewer as fast


@reshape_.on("cpu", when=lambda input, shape: not input.flags.c_contiguous, min_elements=_LARGE)
def reshape_cpu(input: HostArray, shape: tuple[int, ...], *, dtype: DType) -> Any:
    return reshaped(input, shape), Saved(shape=input.shape)


@reshape_.on_backward("cpu", when=lambda dy, *more, **params: not dy.flags.c_contiguous, min_elements=_LARGE)
def reshape_backward_cpu(dy: HostArray, saved: Saved, needs: Any, shape: tuple[int, ...]) -> HostArray:
    return reshaped(dy, saved.shape)
