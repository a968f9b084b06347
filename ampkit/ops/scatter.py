"""Scattering: values written to places of a tensor along an axis."""

from __future__ import annotations

from typing import Any

from ..core.errors import ArgumentError
from ..core.tensor import Tensor
from .index import scatter_, scatter_add
from .like import full_like

__all__ = ["scatter"]


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, value: Any = None, *, reduce: Any = None
) -> Tensor:
    """input with src (a tensor of index's shape, or a number, also as `value`) written where `gather` would read.

    Where several are written to one place, the last stays; with reduce="add" they are added, as by `scatter_add`.
    Raises as `gather` does, ArgumentError for another reduce and without src.
    """
    src = value if src is None else src
    if src is None or reduce not in (None, "add"):
        raise ArgumentError("scatter", "src or value, and reduce None or 'add'", f"{src}, reduce={reduce!r}")
    if reduce is None:
        return scatter_(input, dim, index, src)  # type: ignore[no-any-return]
    return scatter_add(input, dim, index, src if isinstance(src, Tensor) else full_like(index, src, dtype=input.dtype))  # type: ignore[no-any-return]
