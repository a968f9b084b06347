"""Tangents of normalizations. The Jacobian of the standardized values is symmetric: it is their backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.core.dispatch.forward_rules import TangentCall
from ampkit.core.tensor import Tensor

from ..nn.batch_norm import batch_norm_
from ..nn.layer_norm import group_norm as group_norm_op
from ..nn.layer_norm import layer_norm as layer_norm_op
from ..nn.layer_norm import rms_norm as rms_norm_op
from ..nn.residual_norm import saved_of_norm

Affine = Callable[[Tensor, "Tensor | None", "Tensor | None"], Tensor]


def _scaled(
    call: TangentCall, standardize: Affine, per_element: Callable[[Tensor], Tensor], statistics: Any = ()
) -> Tensor | None:
    # standardize: (input, weight, bias) -> the norm, which is linear in weight and bias. per_element: a scale as it
    # broadcasts to the input. statistics: the gradients of further outputs, zeros.
    x, weight, bias = (*(call.tangent(i) for i in range(len(call.tangents))), None)[:3]
    found = None
    if weight is not None:
        found = standardize(call.saved("input"), weight, bias)  # type: ignore[arg-type]  # the weight's gradient reads it
    elif bias is not None:
        found = per_element(bias).expand(call.shape)
    if x is None:
        return found
    moved, scale = call.transposed(x, 0, statistics, weight=None), call.saved("weight")
    if moved is None:
        return None
    if scale is not None:
        moved = moved * per_element(scale)
    return moved if found is None else moved + found


def layer_norm(call: TangentCall, normalized_shape: Any, eps: float) -> Tensor | None:
    """The tangent of `layer_norm` along its values, scale and shift."""
    return _scaled(call, lambda x, w, b: layer_norm_op(x, normalized_shape, w, b, eps), lambda scale: scale)


def rms_norm(call: TangentCall, normalized_shape: Any, eps: float | None) -> Tensor | None:
    """The tangent of `rms_norm` along its values and scale."""
    return _scaled(call, lambda x, w, b: rms_norm_op(x, normalized_shape, w, eps), lambda scale: scale)


def add_layer_norm(
    call: TangentCall, normalized_shape: Any, eps: float, dropout_p: float, draw: Any, normed: Any
) -> tuple[Tensor, Tensor] | Tensor | None:
    """The tangents of `add_layer_norm`, of the sum and of its norm, without dropout."""
    residual, branch, weight, bias = (call.tangent(i) for i in range(4))
    if draw is not None or call.batched:
        return None
    total = branch if residual is None else residual if branch is None else residual + branch
    of_norm = TangentCall(call.node, [total, weight, bias], (call.shape, call.dtype))
    of_norm.op, of_norm.items = layer_norm_op, vars(saved_of_norm(call.node.saved))
    of_norm.params = {"normalized_shape": normalized_shape, "eps": eps}
    moved = layer_norm(of_norm, normalized_shape, eps)
    if moved is None or normed is None or total is None:
        return moved if normed is None else None
    return total, moved


def batch_norm(call: TangentCall, eps: float, relu: bool) -> Tensor | None:
    """The tangent of `batch_norm` by the statistics of the batch or by running ones, without ReLU."""
    if relu or any(tangent is not None for tangent in call.tangents[3:]) or call.batched:
        return None
    running = [call.saved(name) for name in ("running_mean", "running_var")]

    def per_channel(scale: Tensor) -> Tensor:
        return scale.reshape(-1, *(1,) * (len(call.shape) - 2))

    def standardize(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        made: Any = batch_norm_(x, w, b, *running, None, eps, False)
        return made if isinstance(made, Tensor) else made[0]

    if running[0] is None:
        nothing = np.zeros_like(call.items["mean"])
        return _scaled(call, standardize, per_channel, (nothing, nothing))
    return _scaled(call, standardize, per_channel)


def group_norm(call: TangentCall, num_groups: int, eps: float) -> Tensor | None:
    """The tangent of `group_norm` along its values, and the scale and the shift of each channel."""

    def per_channel(scale: Tensor) -> Tensor:
        return scale.reshape(-1, *(1,) * (len(call.shape) - 2))

    return _scaled(call, lambda x, w, b: group_norm_op(x, num_groups, w, b, eps), per_channel)
