"""`torch._utils`: several tensors as one flat tensor, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .... import ops
from ....core.tensor import Tensor

__all__ = ["_flatten_dense_tensors", "_unflatten_dense_tensors"]


def _flatten_dense_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """All elements in a tensor of one axis, which holds a copy of them."""
    return ops.cat([tensor.reshape(-1) for tensor in tensors])


def _unflatten_dense_tensors(flat: Tensor, tensors: Iterable[Tensor]) -> Sequence[Any]:
    """Views of a flat tensor with the shapes of `tensors`, one behind the other."""
    found, place = [], 0
    for tensor in tensors:
        found.append(flat[place : place + tensor.numel()].reshape(tensor.shape))
        place += tensor.numel()
    return tuple(found)
