"""Fused dropout, residual sum and layer norm: `layer_norm(x + dropout(y))`. PyTorch has no such ops."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from ampkit.base import dtypes
from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core import dispatch, random
from ampkit.core.autograd.traced_array import plain
from ampkit.core.capture.anew import Anew
from ampkit.core.casts import widen
from ampkit.core.dispatch import Primitive
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from .dropout import apply_mask, mask, need_probability
from .layer_norm import layer_norm

__all__ = ["add_layer_norm", "layer_norm_of_sum"]


def add_layer_norm(
    residual: Tensor,
    branch: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    dropout_p: float = 0.0,
    dtype: Any = None,
) -> tuple[Tensor, Tensor]:
    """residual + dropout(branch, dropout_p), and the `layer_norm` of that sum, as in a pre-norm block.

    residual [..., *S], branch of its shape, weight [*S], bias [*S] -> (sum, norm), both [..., *S]. The sum has the
    wider dtype of the two, the norm `dtype`, by default the sum's; both are computed in float32 (float64 for float64
    inputs), the norm from the rounded sum. Dropout draws from the default stream.
    Raises ShapeError for shapes that do not fit, DTypeError for a dtype that is not floating-point, ArgumentError for
    dropout_p outside of [0, 1].
    Vaswani et al. 2017, arXiv:1706.03762, section 5.4; Xiong et al. 2020, arXiv:2002.04745, figure 1.
    """
    need_probability("add_layer_norm", dropout_p, "dropout_p")
    wanted = dtypes.promote(residual.array.dtype, branch.array.dtype) if dtype is None else dtypes.parse(dtype)
    if not dtypes.is_float(wanted):
        raise DTypeError("add_layer_norm", "a floating-point dtype", dtypes.name_of(wanted))
    return add_layer_norm_unchecked(residual, branch, normalized_shape, weight, bias, eps, float(dropout_p), wanted)


def layer_norm_of_sum(
    residual: Tensor,
    branch: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    dropout_p: float = 0.0,
) -> Tensor:
    """The second output of `add_layer_norm` alone, in the wider dtype of the two, as in a post-norm block."""
    need_probability("layer_norm_of_sum", dropout_p, "dropout_p")
    return add_layer_norm_unchecked(residual, branch, normalized_shape, weight, bias, eps, float(dropout_p), None)


def add_layer_norm_unchecked(
    residual: Tensor, branch: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: float, p: float, normed: Any
) -> Any:
    """`add_layer_norm` and `layer_norm_of_sum` without argument checks.

    -> (sum, norm in the dtype `normed`), or the norm alone if `normed` is None.
    """
    draw = random.default.take() if p else None
    return add_layer_norm_(residual, branch, weight, bias, normalized_shape, eps, p, draw, normed)


@op(cast=Cast.WIDEST, integers="refuse")
def add_layer_norm_(
    residual: Array, branch: Array, weight: Array | None, bias: Array | None,
    normalized_shape, eps, dropout_p, draw, normed,
):  # fmt: skip
    """`add_layer_norm` with the draw (seed, call) and the dtype of the norm; None: the norm alone."""
    keep = None
    if draw is not None:
        keep = mask(plain(branch), dropout_p, *draw, branch.shape)
        branch = apply_mask(branch, keep, dropout_p)
    total = residual + branch
    norm, norm_saved = layer_norm.forward.reference.run(total, normalized_shape, weight, bias, eps)
    return results(total, norm, normed, keep, norm_saved)


@add_layer_norm_.check
def add_layer_norm_check(residual, branch, weight, bias, normalized_shape, eps, dropout_p, draw, normed):
    if np.shape(residual) != np.shape(branch):
        got = f"{list(np.shape(residual))} and {list(np.shape(branch))}"
        raise ShapeError("add_layer_norm", "residual and branch of one shape", got)
    assert layer_norm.checks is not None
    layer_norm.checks(residual, normalized_shape, weight, bias, eps)


@add_layer_norm_.backward
def add_layer_norm_backward(dy, saved, needs, normalized_shape, eps, dropout_p, draw, normed):
    dsum, dnorm = (None, dy) if normed is None else dy
    wanted = needs[0] or needs[1]
    backward = cast(Primitive, layer_norm.backward_primitive).reference.run
    dx, dw, db = backward(dnorm, saved_of_norm(saved), (wanted, *needs[2:]), normalized_shape, eps)
    if dx is not None and dsum is not None:
        dx = dx + dsum
    dbranch = dx if dx is None or saved.keep is None or needs[1] is None else apply_mask(dx, saved.keep, dropout_p)
    return dx, dbranch, dw, db


@add_layer_norm_.stand_in("residual")
def total_for_residual(saved):
    return saved.total  # the branch is zeros then


@add_layer_norm_.stand_in("branch")
def nothing_for_branch(saved):
    return np.zeros_like(plain(saved.total))


def _norm_of_total(node: Any, items: dict[str, Any], inputs: list[Any]) -> Array:
    # By the kernel of layer_norm, which is that of the op but for the sum.
    shape, eps, *_, normed = node.params
    total = items["total"]
    return dispatch.run_op(layer_norm, (total, *inputs[2:]), shape, eps, dtype=normed or total.dtype)


add_layer_norm_.anew = Anew(("weight", "bias"), _norm_of_total)


def results(total: Any, norm: Any, normed: Any, keep: Any, saved: Saved) -> Any:
    """What the op returns, given the dropout mask and what layer_norm of the sum saves."""
    items = dict(vars(saved))
    saved = Saved(total=items.pop("input"), keep=keep, **items)
    return (norm, saved) if normed is None else (total, widen(norm, normed), Saved(out=total, **vars(saved)))


def saved_of_norm(saved: Any) -> Any:
    """The saved items of layer_norm, given those of the op."""
    items = dict(vars(saved))
    for name in ("out", "keep"):
        items.pop(name, None)
    return Saved(input=items.pop("total"), **items)
