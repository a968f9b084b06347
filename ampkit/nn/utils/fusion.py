"""Folding a batch norm in eval mode into the layer before it, for inference."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ampkit import ops
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.parameter import Parameter
from ampkit.core.policy import autocast
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

from ..module import Module

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def fuse_conv_bn_eval(conv: Module, bn: Module, transpose: bool = False) -> Any:
    """A copy of a convolution with the batch norm after it folded in, both in eval mode.

    transpose: for a transposed convolution. Raises StateError unless both are in eval and the norm has statistics.
    """
    _need_eval("fuse_conv_bn_eval", conv, bn)
    return _fused(conv, fuse_conv_bn_weights(conv.weight, conv.bias, *_norm_of(bn), transpose=transpose))


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """(weight, bias) of a convolution with the norm after it folded in; computed in float32."""
    if conv_w.ndim < 2:
        raise ShapeError("fuse_conv_bn_weights", "a weight of at least two axes", f"shape {tuple(conv_w.shape)}")
    with no_grad(), autocast(enabled=False):
        wide = accumulator(conv_w.array.dtype)
        scale = ops.rsqrt(bn_rv.to(wide) + bn_eps) * (1.0 if bn_w is None else bn_w.to(wide))
        shape = [1] * conv_w.ndim
        shape[1 if transpose else 0] = -1
        weight = (conv_w.to(wide) * ops.reshape(scale, shape)).to(conv_w.dtype)
        bias = ((0.0 if conv_b is None else conv_b.to(wide)) - bn_rm.to(wide)) * scale
        bias = (bias if bn_b is None else bias + bn_b.to(wide)).to(conv_w.dtype if conv_b is None else conv_b.dtype)
    requires_grad = True if conv_b is None else conv_b.requires_grad
    return Parameter(weight, conv_w.requires_grad), Parameter(bias, requires_grad)


def fuse_linear_bn_eval(linear: Module, bn: Module) -> Any:
    """A copy of a Linear with the batch norm after it folded in, both in eval mode; see fuse_conv_bn_eval."""
    _need_eval("fuse_linear_bn_eval", linear, bn)
    return _fused(linear, fuse_linear_bn_weights(linear.weight, linear.bias, *_norm_of(bn)))


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """(weight, bias) of a Linear with the norm after it folded in; computed in float32."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def _norm_of(bn: Any) -> tuple[Tensor, Tensor, float, Tensor | None, Tensor | None]:
    return bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias


def _need_eval(where: str, layer: Module, bn: Any) -> None:
    if not all(hasattr(bn, name) for name in ("running_mean", "running_var", "eps")) or not hasattr(layer, "weight"):
        got = f"{type(layer).__name__} and {type(bn).__name__}"
        raise DTypeError(where, "a layer with a weight, and a batch norm", got)
    if layer.training or bn.training:
        raise StateError(where, "both modules in eval mode", "one in train mode", "call .eval() first")
    if bn.running_mean is None:
        raise StateError(where, "a norm with running statistics", "one with track_running_stats=False")


def _fused(layer: Any, weights: tuple[Parameter, Parameter]) -> Any:
    fused = deepcopy(layer)
    fused.weight, fused.bias = weights
    return fused


check_all(globals())
