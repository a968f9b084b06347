"""Bilinear forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from .matmul import as_matrix

__all__ = ["bilinear"]


@op(cast=Cast.WIDEST)
def bilinear(input1: Array, input2: Array, weight: Array, bias: Array | None = None):
    """input1^T W_o input2 + bias_o for each output o.

    input1 [..., I], input2 [..., J], weight [O, I, J], bias [O] -> [..., O]. Summed in float32 (float64 for float64,
    int64 for integers) with the bias, and rounded once. Raises ShapeError for shapes that do not fit.
    """
    outs, height, width = weight.shape
    left = as_matrix(input1) @ weight.transpose(1, 0, 2).reshape(height, outs * width)
    out = blocked_sum(left.reshape(len(left), outs, width) * as_matrix(input2)[:, None], 2)
    if bias is not None:
        out = out + bias
    return out.reshape(*input1.shape[:-1], outs), Saved(input1=input1, input2=input2, weight=weight)


@bilinear.check
def bilinear_check(input1, input2, weight, bias):
    a, b, kernel = np.shape(input1), np.shape(input2), np.shape(weight)
    if len(kernel) != 3:
        raise ShapeError("bilinear", "weight [O, I, J]", f"weight {list(kernel)}")
    if a[-1:] != kernel[1:2] or b[-1:] != kernel[2:] or a[:-1] != b[:-1]:
        needs = f"input1 [..., {kernel[1]}] and input2 [..., {kernel[2]}] for weight {list(kernel)}"
        raise ShapeError("bilinear", needs, f"input1 {list(a)} and input2 {list(b)}")
    if bias is not None and np.shape(bias) != kernel[:1]:
        raise ShapeError("bilinear", f"bias [{kernel[0]}]", f"bias {list(np.shape(bias))}")


@bilinear.backward(input1="input2 weight", input2="input1 weight", weight="input1 input2")
def bilinear_backward(dy, saved, needs):
    rows, da, db, dw = as_matrix(dy), None, None, None
    if needs[0] is not None:
        outs, height, width = saved.weight.shape
        transposed = saved.weight.transpose(0, 2, 1).reshape(outs * width, height)
        da = (_pairs(rows, saved.input2) @ transposed).reshape(*dy.shape[:-1], height)
    if needs[1] is not None:
        outs, height, width = saved.weight.shape
        db = (_pairs(rows, saved.input1) @ saved.weight.reshape(outs * height, width)).reshape(*dy.shape[:-1], width)
    if needs[2] is not None:
        sizes = dy.shape[-1], saved.input1.shape[-1], saved.input2.shape[-1]
        dw = (_pairs(rows, saved.input1).swapaxes(0, 1) @ as_matrix(saved.input2)).reshape(*sizes)
    return da, db, dw, blocked_sum(rows, 0) if needs[3] is not None else None


def _pairs(dy: Any, input: Any) -> Any:
    # The outer product of each row: [B, O], [..., n] -> [B, O n].
    rows = as_matrix(input)
    return (dy[:, :, None] * rows[:, None]).reshape(len(rows), dy.shape[1] * rows.shape[1])
