"""Registers cat, stack, the gradients of split and unbind, and padding as kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape.join_split import cat_, split_, stack_, unbind_
from ampkit.ops.shape.padding import pad_, pad_from_input

from .registration import on


def register_join_split(backend: str, joined: Any, fit: Any, rejoined: Any = None, launches: bool = False) -> None:
    """Register what joins arrays. joined(arrays, dim) -> their concatenation; fit(arrays): whether it takes them.

    rejoined: the same for gradients of pieces, which may lie in the result already. launches: see Kernel.
    """
    again = rejoined or joined

    def cat(tensors: Sequence[Array], dim: int, *, dtype: DType) -> Any:
        return joined(tensors, dim), Saved(lengths=tuple([t.shape[dim] for t in tensors]))

    def stack(tensors: Sequence[Array], dim: int, *, dtype: DType) -> Any:
        at = dim % (tensors[0].ndim + 1)
        lead = (slice(None),) * at
        return joined([t[(*lead, None)] for t in tensors], at), Saved()

    def split_backward(dy: Any, saved: Saved, needs: Any, ends: Any, dim: int) -> Array:
        return again(dy, dim)

    def unbind_backward(dy: Any, saved: Saved, needs: Any, dim: int) -> Array:
        lead = (slice(None),) * dim
        return again([piece[(*lead, None)] for piece in dy], dim)

    def pieces_fit(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
        return type(dy) is tuple and fit(dy)

    on(cat_, backend, cat, lambda tensors, dim: fit(tensors), launches=launches)
    on(stack_, backend, stack, lambda tensors, dim: fit(tensors), launches=launches)
    on(split_.backward_primitive, backend, split_backward, pieces_fit, launches=launches)
    on(unbind_.backward_primitive, backend, unbind_backward, pieces_fit, launches=launches)


def register_padding(backend: str, padded: Any, fits: Any, added: Any, readable: Any, min_elements: int = 0) -> None:
    """Register padding. padded(input, widths, mode, value=0) -> input padded.

    added(dy, widths, mode, dtype) -> the gradient of the input, where `readable`, the backward's predicate, holds.
    """

    def pad(input: Array, widths: Any, value: Any, *, dtype: DType) -> Any:
        return padded(input, widths, "constant", value), Saved()

    def from_input(input: Array, widths: Any, mode: str, *, dtype: DType) -> Any:
        return padded(input, widths, mode), Saved()

    def backward(dy: Array, saved: Saved, needs: Any, widths: Any, mode: str) -> Array:
        return added(dy, widths, mode, needs[0])

    on(pad_, backend, pad, fits, min_elements=min_elements)
    on(pad_from_input, backend, from_input, fits, min_elements=min_elements)
    on(pad_from_input.backward_primitive, backend, backward, readable, min_elements=min_elements)
