"""Several modules as one op: neighbours in a chain, a residual sum and its norm, attention to one projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit import backends, ops
from ampkit.base.dtypes import DType, float32
from ampkit.core import policy
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.ops.nn.attention import self_attention_by_ops
from ampkit.ops.nn.residual_norm import add_layer_norm_unchecked

from .. import hooks
from ..module import Module
from .activation import GELU, ReLU
from .dropout import Dropout
from .linear import Linear
from .norm import BatchNorm1d, BatchNorm2d, LayerNorm


def _batch_norm_relu(input: Tensor, norm: Any, relu: ReLU) -> Tensor:
    return norm.normalized(ops.batch_norm_relu, input)


def _linear_gelu_linear(input: Tensor, first: Linear, gelu: GELU, second: Linear) -> Tensor:
    given = first.weight, first.bias, second.weight, second.bias
    return ops.linear_gelu_linear(input, *given, gelu.approximate)


def self_attention(input: Tensor, num_heads: int, dropout_p: float, is_causal: bool) -> Tensor:
    """Attention of `num_heads` heads to the thirds of input, as one projection gives them: [N, T, 3 E] -> [N, T, E].

    One op, unless the policy in force has changes of its own, which may be about scaled_dot_product_attention.
    """
    attend = self_attention_by_ops if _changed() else ops.self_attention
    return attend(input, num_heads, dropout_p, is_causal)


def add_norm(
    residual: Tensor, branch: Tensor, dropout: Module, norm: Module, *readers: Module
) -> tuple[Tensor, Tensor]:
    """residual + dropout(branch), and `norm` of that.

    readers: the modules that the norm is for, whose first op is a product. Where all of them are the library's own and
    no hook looks on, the norm comes in the dtype that autocast has them read.
    """
    if not _is_normed_sum(residual, branch, dropout, norm):
        total = residual + dropout(branch)
        return total, norm(total)
    normed, region = residual.dtype, policy.region()
    if region is not None and readers and all(map(_is_unseen, readers)):
        rule = region.policies[backends.backend_of(residual.array).name]
        normed = normed if rule is None else rule.dtype
    return _normed_sum(residual, branch, dropout, norm, normed)


def norm_of_sum(residual: Tensor, branch: Tensor, dropout: Module, norm: Module) -> Tensor:
    """`norm` of residual + dropout(branch)."""
    if not _is_normed_sum(residual, branch, dropout, norm):
        return norm(residual + dropout(branch))
    return _normed_sum(residual, branch, dropout, norm, None)


def _normed_sum(residual: Tensor, branch: Tensor, dropout: Any, norm: Any, normed: DType | None) -> Any:
    p = dropout.p if dropout.training else 0.0
    return add_layer_norm_unchecked(
        residual, branch, norm.normalized_shape, norm.weight, norm.bias, norm.eps, p, normed
    )


def _is_normed_sum(residual: Tensor, branch: Tensor, dropout: Module, norm: Module) -> bool:
    # Whether one op gives what the three give, in their dtypes: layer_norm's answer is float32 inside of autocast.
    if type(dropout) is not Dropout or type(norm) is not LayerNorm:
        return False
    dtype, weight = residual.array.dtype, norm.weight
    if residual.array.shape != branch.array.shape or (weight is not None and weight.array.dtype != dtype):
        return False
    region = policy.region()
    if region is None:
        exact = dtype in (float32, branch.array.dtype)
    else:
        rules = (rule for rule in region.rules if rule is not None)
        exact = dtype == float32 and all(rule.category("layer_norm") is Cast.FP32 for rule in rules)
    return exact and not (_watched(dropout) or _watched(norm) or _changed())


def _is_unseen(reader: Module) -> bool:
    return type(reader).__module__.startswith(_OURS) and not _watched(reader)


_OURS = __package__.partition(".")[0] + "."


_TOGETHER: dict[tuple[type[Module], ...], Callable[..., Tensor]] = {
    (BatchNorm1d, ReLU): _batch_norm_relu,
    (BatchNorm2d, ReLU): _batch_norm_relu,
    (Linear, GELU, Linear): _linear_gelu_linear,
}
_LENGTHS = {kinds[0]: len(kinds) for kinds in _TOGETHER}  # by the first class, which stands in one length of chain


def chain(input: Any, *modules: Module) -> Any:
    """What `modules` make of `input`, one after the other; those that a fused op stands for are one.

    That is where all are of the library's own classes, no hook looks at any, and the policy in force has no changes of
    its own, which may be about one of them.
    """
    after = 0  # the first module that has not run
    for at, module in enumerate(modules):
        if at < after:
            continue
        length = _LENGTHS.get(type(module))
        together = length and _together(modules[at : at + length])
        if together:
            after = at + length
            input = together(input, *modules[at:after])
        else:
            input = module(input)
    return input


def _together(some: tuple[Module, ...]) -> Callable[..., Tensor] | None:
    found = _TOGETHER.get(tuple(map(type, some)))
    return None if found is None or any(map(_watched, some)) or _changed() else found


def _watched(module: Module) -> bool:
    return (module._hooked and hooks.has_hooks(module)) or "forward" in module.__dict__


def _changed() -> bool:
    # Whether a policy in force has categories of its own.
    region = policy.region()
    if region is not None:
        for rule in region.rules:
            if rule is not None and rule.overrides:
                return True
    return False
