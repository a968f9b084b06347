"""Convolution of sequences whose first axis is time."""

from __future__ import annotations

from ampkit.base.errors import ShapeError
from ampkit.core.tensor import Tensor

from ..shape.view import permute
from .conv import conv1d

__all__ = ["conv_tbc"]


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """`conv1d` of sequences in the order time, batch, channels.

    input [T, N, C], weight [K, C, O], bias [O] -> [T', N, O], T' = T + 2 pad - K + 1. Precision as `conv1d`. Raises
    ShapeError for shapes that do not fit.
    """
    for name, given, wanted in (("input", input, "[T, N, C]"), ("weight", weight, "[K, C, O]")):
        if given.ndim != 3:
            raise ShapeError("conv_tbc", f"{name} {wanted}", f"{list(given.shape)}")
    maps = conv1d(permute(input, (1, 2, 0)), permute(weight, (2, 1, 0)), bias, padding=pad)
    return permute(maps, (2, 0, 1))
