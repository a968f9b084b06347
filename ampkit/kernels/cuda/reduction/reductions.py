"""Reductions by `launch.reduction`, as their kernels call it."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED
from ampkit.base.dtypes import Array, DType, bool_


def fits(input: Array, *args: Any, **params: Any) -> bool:
    """Whether the kernels read an array of floating-point numbers."""
    return input.dtype in STORED and 0 < input.size <= MAX_ELEMENTS


def fits_bool(input: Array) -> bool:
    """Whether the kernels of counts read an array."""
    return input.dtype in {*STORED, bool_} and 0 < input.size <= MAX_ELEMENTS


def reduced_with_axes(
    term: str, x: Array, axes: tuple[int, ...], dtype: DType, divisor: float = 1.0, root: bool = False,
    center: Array | None = None,
) -> Array:  # fmt: skip
    """`launch.reduction.reduced` without `keepdim`."""
    return reduced(term, x, axes, True, dtype, Finish(divisor, root), center)
