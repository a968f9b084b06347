"""CPU kernel of a residual sum followed by layer norm: the kernels of both, without the arrays in between.

These would be copies of the norm and of its gradient in another dtype, and a sum of gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn import binary, eltwise
from ampkit.backends.cpu.onednn.eltwise import in_pieces, laid_flat
from ampkit.backends.cpu.onednn.layer_norm import grads, normalized, rows_fit
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, HostArray
from ampkit.backends.cpu.onednn.reorder import same_layout
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.core.random import keep_mask
from ampkit.ops.nn.dropout import dropout_scale
from ampkit.ops.nn.residual_norm import add_layer_norm_, saved_of_sum


def _fits(residual: HostArray, branch: HostArray, weight: Any, bias: Any, normalized_shape: Any, *more: Any) -> bool:
    known = residual.dtype in (float32, branch.dtype) and rows_fit(residual, normalized_shape)
    return known and _alike(residual, branch)


def _alike(a: HostArray, b: HostArray) -> bool:
    return same_layout(a, b) and eltwise.fits(a) and eltwise.fits(b)


@add_layer_norm_.on("cpu", when=_fits, min_elements=MIN_ELEMENTS)
def add_layer_norm_cpu(
    residual: HostArray, branch: HostArray, weight: HostArray | None, bias: HostArray | None, normalized_shape: Any,
    eps: float, dropout_p: float, draw: Any, normed: DType | None, *, dtype: DType,
) -> Any:  # fmt: skip
    keep = None if draw is None else keep_mask(draw[0], draw[1], dropout_p, branch.shape)
    total = binary.both(
        "add", residual, branch if keep is None else binary.by_mask(branch, keep, dropout_scale(dropout_p))
    )
    if total is None:
        return NotImplemented
    found = normalized(total, weight, bias, eps, normed or dtype)
    if found is None:
        return NotImplemented
    norm, mean, rstd, variance = found
    saved = saved_of_sum(Saved(input=total, weight=weight, mean=mean, rstd=rstd, variance=variance), keep)
    return (norm, saved) if normed is None else (total, norm, Saved(out=total, **vars(saved)))


@add_layer_norm_cpu.backward
def add_layer_norm_cpu_backward(
    dy: Any, saved: Saved, needs: Any, normalized_shape: Any, eps: float, dropout_p: float, draw: Any, normed: Any
) -> Any:
    dsum, dnorm = (None, dy) if normed is None else dy
    if not (needs[0] or needs[1]) or not rows_fit(dnorm, normalized_shape):
        return NotImplemented
    wanted = float32, *needs[2:]
    found = grads(dnorm, saved.as_residual, saved.weight, saved.mean, saved.variance, wanted, eps)
    if found is None or (dsum is not None and not _alike(found[0], dsum)):
        return NotImplemented
    dx, dw, db = found
    if dsum is not None:
        flat = laid_flat(dx)
        if not in_pieces(partial(binary.two, "add"), [flat, laid_flat(dsum)], flat):
            return NotImplemented
    dbranch = in_format(dx, needs[1]) if needs[1] else None
    if dbranch is not None and saved.keep is not None:
        dbranch = binary.by_mask(dbranch, saved.keep, dropout_scale(dropout_p))
    return in_format(dx, needs[0]) if needs[0] else None, dbranch, dw, db
