"""Masks: the part of an array that is kept, the rest zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.core.autograd.traced_array import TracedArray

__all__: list[str] = []

_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def kept(values: Any, mask: Any) -> Any:
    """`values` where `mask`, 0 elsewhere: [...] any float, [...] bool -> [...].

    Selects on the bits: infinities and NaNs outside the mask vanish too, where a product with the mask would keep them,
    and nothing branches, which is several times as fast as np.where on a mask without a pattern.
    """
    if isinstance(values, TracedArray):
        return np.where(mask, values, 0)
    return (values.view(_BITS[values.itemsize]) * mask).view(values.dtype)


def sign(x: Any) -> Any:
    """-1, 0 or 1 as the sign of a number, 0 for NaN, in the dtype of `x`."""
    return np.subtract(x > 0, x < 0, dtype=x.dtype)


def reach(mask_of: Any, rows: int, columns: int, diagonal: int) -> Any:
    """[rows, columns] bool: whether column - row is at most `diagonal`, on the device of `mask_of`."""
    return np.arange(columns, like=mask_of) - np.arange(rows, like=mask_of)[:, None] <= diagonal
