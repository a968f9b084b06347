"""Fused calls of several modules: neighbours in a chain, a residual sum with its norm or ReLU, self-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ampkit import backends, ops
from ampkit.base.array_kinds import on_device
from ampkit.base.dtypes import DType, float32
from ampkit.core import module_path, policy
from ampkit.core.policy import Cast, Policy
from ampkit.core.tensor import Tensor
from ampkit.ops.nn.attention import self_attention_by_ops
from ampkit.ops.nn.residual_norm import add_layer_norm_unchecked

from .. import hooks
from ..module import Module
from .activation import GELU, ReLU
from .dropout import Dropout
from .linear import Identity, Linear
from .norm import BatchNorm1d, BatchNorm2d, LayerNorm
from .pool import MaxPool2d


def _batch_norm_relu(input: Tensor, norm: Any, relu: ReLU) -> Tensor:
    return _normalized(ops.batch_norm_relu, input, norm)


def _normalized(function: Callable[..., Tensor], input: Tensor, norm: Any) -> Tensor:
    if module_path.following:  # the op is the norm's
        with module_path.running(module_path.new_call(norm)):
            return norm.normalized(function, input)
    return norm.normalized(function, input)


def _linear_gelu_linear(input: Tensor, first: Linear, gelu: GELU, second: Linear) -> Tensor:
    weights = first.weight, first.bias, second.weight, second.bias
    return ops.linear_gelu_linear(input, *weights, gelu.approximate)


def self_attention(input: Tensor, num_heads: int, dropout_p: float, is_causal: bool) -> Tensor:
    """Self-attention of `num_heads` heads from a packed projection of query, key and value: [N, T, 3 E] -> [N, T, E].

    One op, unless the active policy overrides categories, which may concern scaled_dot_product_attention.
    """
    attend = self_attention_by_ops if _overrides() - {"self_attention"} else ops.self_attention
    return attend(input, num_heads, dropout_p, is_causal)


def add_norm(
    residual: Tensor, branch: Tensor, dropout: Module, norm: Module, *readers: Module
) -> tuple[Tensor, Tensor]:
    """residual + dropout(branch), and `norm` of that sum.

    readers: the modules that read the norm, whose first op is a matrix product. If all of them are the library's and
    have no hooks, the norm is returned in the dtype to which autocast would cast it for them.
    """
    if not _is_fusible(residual, branch, dropout, norm):
        total = residual + dropout(branch)
        return total, norm(total)
    normed, region = residual.array.dtype, policy.region()
    if region is not None and readers and all(map(_is_unhooked, readers)) and not _have_policies_of_their_own(readers):
        active = region.policies[backends.backend_of(on_device(residual.array)).name]
        normed = normed if active is None else active.low_dtype
    return _fused_sum(residual, branch, dropout, norm, normed)


def norm_of_sum(residual: Tensor, branch: Tensor, dropout: Module, norm: Module) -> Tensor:
    """`norm` of residual + dropout(branch)."""
    if not _is_fusible(residual, branch, dropout, norm):
        return norm(residual + dropout(branch))
    return _fused_sum(residual, branch, dropout, norm, None)


def _fused_sum(residual: Tensor, branch: Tensor, dropout: Any, norm: Any, normed: DType | None) -> Any:
    p = dropout.p if dropout.training else 0.0
    return add_layer_norm_unchecked(
        residual, branch, norm.normalized_shape, norm.weight, norm.bias, norm.eps, p, normed
    )


def conv_norm_add_relu(
    input: Tensor, conv: Module, norm: Module, before: Tensor, downsample: Module | None, relu: Module
) -> Tensor:
    """The end of a residual block: `relu` of the sum of `norm` of `conv` of input and of `downsample` of `before`."""
    if conv._runs_fused and type(norm) is Identity and type(relu) is ReLU:
        return conv.run(input, "relu", before if downsample is None else downsample(before))
    out = conv(input)
    return norm_add_relu(out, norm, before if downsample is None else downsample(before), relu)


def linear_gelu(input: Tensor, linear: Module) -> Tensor:
    """gelu of `linear` of input."""
    return linear.run(input, "gelu") if linear._runs_fused else ops.gelu(linear(input))


def norm_add_relu(input: Tensor, norm: Module, residual: Tensor, relu: Module) -> Tensor:
    """`relu` of the sum of `norm` of `input` and the residual, as one op for a BatchNorm and a ReLU that allow it."""
    alike = residual.array.shape == input.array.shape and residual.array.dtype == input.array.dtype
    if not alike or _fusion_of((norm, relu)) is not _batch_norm_relu or "add" in _overrides():
        return relu(norm(input) + residual)
    return _normalized(lambda x, *state: ops.batch_norm_add_relu(x, residual, *state), input, norm)


def _is_fusible(residual: Tensor, branch: Tensor, dropout: Module, norm: Module) -> bool:
    # Whether the fused op has the result dtype of the three: layer_norm returns float32 inside autocast.
    if type(dropout) is not Dropout or type(norm) is not LayerNorm or module_path.apart:
        return False
    dtype, weight = residual.array.dtype, norm.weight
    if residual.array.shape != branch.array.shape or (weight is not None and weight.array.dtype != dtype):
        return False
    region = policy.region()
    if region is None:
        exact = dtype in (float32, branch.array.dtype)
    else:
        exact = dtype == float32 and all(each.category("layer_norm") is Cast.FP32 for each in region.active)
    return exact and not (_has_hooks(dropout) or _has_hooks(norm) or _overrides() - {"add_layer_norm"})


def _is_unhooked(reader: Module) -> bool:
    return type(reader).__module__.startswith(_LIBRARY) and not _has_hooks(reader)


_LIBRARY = __package__.partition(".")[0] + "."


class _Fusion(NamedTuple):
    # A fused call, and the ops that it stands for.
    run: Callable[..., Tensor]
    links: frozenset[str]


_NORM_RELU = _Fusion(_batch_norm_relu, frozenset({"batch_norm", "relu"}))
_FUSIONS: dict[tuple[type[Module], ...], _Fusion] = {
    (BatchNorm1d, ReLU): _NORM_RELU,
    (BatchNorm2d, ReLU): _NORM_RELU,
    (Linear, GELU, Linear): _Fusion(_linear_gelu_linear, frozenset({"linear", "gelu"})),
}
_LENGTHS = {kinds[0]: len(kinds) for kinds in _FUSIONS}  # by the first class of the chain


def chain(input: Any, *modules: Module) -> Any:
    """Call `modules` one after the other on `input`, with a fused op where there is one for neighbours.

    Modules are fused if they are exactly of the library's classes, have no hooks, and the active policy neither
    overrides the category of one of their ops nor gives one of them a dtype of its own.
    """
    after = 0  # index of the first module that has not run
    for at, module in enumerate(modules):
        if at < after:
            continue
        if getattr(module, "_runs_fused", False):
            input, after = _run_fused(input, module, modules, at + 1)
            continue
        length = _LENGTHS.get(type(module), 0)
        fused = _fusion_of(modules[at : at + length]) if length else None
        if fused:
            after = at + length
            input = fused(input, *modules[at:after])
        else:
            input = module(input)
    return input


def _run_fused(input: Any, layer: Any, modules: tuple[Module, ...], after: int) -> tuple[Any, int]:
    """The output of a layer that computes the activation after it, and the index of the first module left."""
    while after < len(modules) and type(modules[after]) is Identity:
        after += 1
    activation = _activation(modules[after]) if after < len(modules) else ""
    out, after = layer.run(input, activation), after + bool(activation)
    if after < len(modules) and type(modules[after]) is MaxPool2d and not _has_hooks(modules[after]):
        return layer.pool(out, modules[after]), after + 1
    return out, after


def _activation(module: Module) -> str:
    """The activation of a module as `run` takes it, "" for another module."""
    if type(module) is ReLU and not _has_hooks(module):
        return "relu"
    if type(module) is GELU and not _has_hooks(module):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return ""


def _fusion_of(modules: tuple[Module, ...]) -> Callable[..., Tensor] | None:
    fusion = _FUSIONS.get(tuple(map(type, modules)))
    if fusion is None or module_path.apart or any(map(_has_hooks, modules)) or fusion.links & _overrides():
        return None
    return None if _have_dtypes_of_their_own(modules) else fusion.run


def _has_hooks(module: Module) -> bool:
    return ((module._has_own_hooks or hooks.everywhere) and hooks.has_hooks(module)) or "forward" in module.__dict__


def _active_policies() -> list[Policy]:
    region = policy.region()
    return [] if region is None else region.active


def _overrides() -> set[str]:
    # The ops whose categories an active policy overrides.
    return {op for each in _active_policies() for op, _ in each.overrides}


def _have_dtypes_of_their_own(modules: tuple[Module, ...]) -> bool:
    # Whether an active policy gives one of `modules` another dtype than the module that is running, or quantizes them.
    return any(each.recipe is not None for each in _active_policies()) or _have_policies_of_their_own(modules)


def _have_policies_of_their_own(modules: tuple[Module, ...]) -> bool:
    by_module = [each for each in _active_policies() if each.modules]
    if not by_module:
        return False
    call = module_path.current()
    paths = [None if call is None else call.paths.get(id(module)) for module in modules]
    return any(path is None or each.in_module(path) is not each for each in by_module for path in paths)
