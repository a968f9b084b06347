"""CPU kernel of a residual sum followed by layer norm, in one pass (layer_norm.cpp)."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.native.arrays import MIN_FUSED, HostArray, empty, supported
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.core.random import keep_mask
from ampkit.ops.nn.dropout import dropout_scale
from ampkit.ops.nn.residual_norm import add_layer_norm_, results

from .layer_norm import norm_gradients, normalized, weight_of


@add_layer_norm_.on("cpu", when=lambda x, y, w, b, *more: supported(x, y, w, b), min_elements=MIN_FUSED)
def add_layer_norm_cpu(
    residual: HostArray, branch: HostArray, weight: HostArray | None, bias: HostArray | None, normalized_shape: Any,
    eps: float, dropout_p: float, draw: Any, normed: DType | None, *, dtype: DType,
) -> Any:  # fmt: skip
    keep = None if draw is None else keep_mask(draw[0], draw[1], dropout_p, branch.shape)
    total = empty(residual.shape, dtype)
    more = total, branch, keep, dropout_scale(dropout_p)
    norm, mean, rstd = normalized(residual, normalized_shape, weight, bias, eps, normed or dtype, True, *more)
    return results(total, norm, normed, keep, Saved(input=total, weight=weight, mean=mean, rstd=rstd))


def _back_fits(dy: Any, saved: Saved, needs: Any, **more: Any) -> bool:
    grads = dy if type(dy) is tuple else (dy,)
    fit = grads[0].size >= MIN_FUSED and saved.rstd.dtype == float32
    return bool(fit) and supported(*grads, saved.total, weight_of(saved))


@add_layer_norm_.on_backward("cpu", when=_back_fits)
def add_layer_norm_backward_cpu(
    dy: Any, saved: Saved, needs: Any, normalized_shape: Any, eps: float, dropout_p: float, draw: Any, normed: Any
) -> Any:
    dsum, dnorm = (None, dy) if normed is None else dy
    more = dsum, needs[1], saved.keep, dropout_scale(dropout_p)
    dx, dw, db, dbranch = norm_gradients(dnorm, saved.total, saved, (needs[0], *needs[2:]), normalized_shape, *more)
    return dx, dbranch, dw, db
