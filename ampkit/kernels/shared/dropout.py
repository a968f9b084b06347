"""Registers dropout: a backend draws and applies masks, or applies one that holds for several values."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.dropout import dropout_, mask

from .registration import on


def register_dropout(
    backend: str, dropped: Any, masked: Any, fits: Any, readable: Any, min_elements: int = 0, dtypes: Any = None
) -> None:
    """dropped(input, p, seed, call, dtype) -> (the values, the mask of each); masked(values, mask, p, dtype)."""

    def forward(input: Array, p: float, seed: int, call: int, shape: Any, *, dtype: DType) -> Any:
        if shape is None or prod(shape) == input.size:
            out, keep = dropped(input, p, seed, call, dtype)
        else:
            keep = mask(input, p, seed, call, shape)
            out = masked(input, keep, p, dtype)
        return out, Saved(keep=keep)

    def backward(dy: Array, saved: Saved, needs: Any, p: float, **params: Any) -> Array:
        return masked(dy, saved.keep, p, needs[0])

    on(dropout_, backend, forward, fits, min_elements=min_elements, dtypes=dtypes)
    on(dropout_.backward_primitive, backend, backward, readable, min_elements=min_elements)
