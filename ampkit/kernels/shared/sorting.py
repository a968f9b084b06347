"""Registers argmax, argmin, max and min along an axis as kernels."""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction import sorting

from .registration import on


def register_extremes(backend: str, places: Any, gathered: Any, fits: Any, min_elements: int = 0) -> None:
    """Register both extremes and their places.

    places(input, dim, smallest) -> where the extreme is along `dim`, or in the flattened input for None, int64; reduced
    axes stay with length 1. gathered(input, places, dim) -> the values there.
    """

    def register(arg: Any, extreme: Any, smallest: bool) -> None:
        def place(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
            at = places(input, dim, smallest)
            return at if keepdim else at.reshape(()) if dim is None else at.squeeze(dim), Saved()

        def value(input: Array, dim: int, keepdim: bool, *, dtype: DType) -> Any:
            at = places(input, dim, smallest)
            values = gathered(input, at, dim)
            found = (values, at) if keepdim else (values.squeeze(dim), at.squeeze(dim))
            return found, Saved(at=at, shape=input.shape)

        on(arg, backend, place, fits, min_elements=min_elements)
        on(extreme, backend, value, fits, min_elements=min_elements)

    register(sorting.argmax, sorting.max_, smallest=False)
    register(sorting.argmin, sorting.min_, smallest=True)
