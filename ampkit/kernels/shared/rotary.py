"""Registers a backend's loop for rotary position embeddings, whose backward turns gradients back by the same angles."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise.rotary import rotary_embedding

from .registration import on


def register_rotary(
    backend: str, turned: Callable[..., Array], fits: Callable[..., bool], min_elements: int = 0
) -> None:
    """turned(input, cos, sin, sign, interleaved, dtype): input turned by the angles times `sign`.

    fits(input, cos, sin): its predicate, beside which each angle has to serve all leading axes.
    """

    def takes(input: Array, cos: Array, sin: Array, interleaved: bool = False) -> bool:
        return input.ndim > 1 and 0 < cos.size == prod(cos.shape[-2:]) and fits(input, cos, sin)

    def forward(input: Array, cos: Array, sin: Array, interleaved: bool, dtype: DType) -> Any:
        return turned(input, cos, sin, 1.0, interleaved, dtype), Saved(input=input, cos=cos, sin=sin)

    def backward(dy: Array, saved: Saved, needs: Any, interleaved: bool) -> Any:
        return turned(dy, saved.cos, saved.sin, -1.0, interleaved, needs[0]), None, None

    def fits_backward(dy: Array, saved: Saved, needs: Any, interleaved: bool) -> bool:
        return bool(needs[0]) and not needs[1] and not needs[2] and takes(dy, saved.cos, saved.sin)

    on(rotary_embedding, backend, forward, takes, min_elements=min_elements)
    on(rotary_embedding.backward_primitive, backend, backward, fits_backward, min_elements=min_elements)
