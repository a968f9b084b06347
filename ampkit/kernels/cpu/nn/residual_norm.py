"""CPU kernel of a residual sum followed by layer norm, in one pass (layer_norm.cpp)."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.native.arrays import MIN_FUSED, HostArray, empty, supported
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.core.random import keep_mask
from ampkit.kernels.shared.norms import register_residual_norm
from ampkit.ops.nn.dropout import dropout_scale

from .layer_norm import norm_gradients, normalized, weight_of


def _normalized(
    residual: HostArray, branch: HostArray, weight: HostArray | None, bias: HostArray | None, shape: Any, eps: float,
    p: float, draw: Any, normed: DType, dtype: DType,
) -> Any:  # fmt: skip
    keep = None if draw is None else keep_mask(draw[0], draw[1], p, branch.shape)
    total = empty(residual.shape, dtype)
    more = total, branch, keep, dropout_scale(p)
    return total, *normalized(residual, shape, weight, bias, eps, normed, True, *more), keep


def _gradients(dnorm: HostArray, dsum: HostArray | None, saved: Saved, needs: Any, shape: Any, p: float) -> Any:
    more = dsum, needs[1], saved.keep, dropout_scale(p)
    dx, dw, db, dbranch = norm_gradients(dnorm, saved.total, saved, (needs[0], *needs[2:]), shape, *more)
    return dx, dbranch, dw, db


def _readable(grads: Any, saved: Saved, needs: Any) -> bool:
    return grads[0].size >= MIN_FUSED and supported(*grads, saved.total, weight_of(saved))


register_residual_norm(
    "cpu", _normalized, _gradients, lambda x, y, w, b, *more: supported(x, y, w, b), _readable, min_elements=MIN_FUSED
)
