"""Modules one after the other, of which an activation may be one op with what is before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ops
from ..core import policy
from ..core.tensor import Tensor
from .activation import ReLU
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d

Pair = Callable[[Any, Any, Tensor], Tensor]


def _batch_norm_relu(norm: Any, relu: ReLU, input: Tensor) -> Tensor:
    return norm.normalized(ops.batch_norm_relu, input)  # type: ignore[no-any-return]


_PAIRS: dict[tuple[type[Module], type[Module]], Pair] = {
    (BatchNorm1d, ReLU): _batch_norm_relu,
    (BatchNorm2d, ReLU): _batch_norm_relu,
}


def chain(input: Any, *modules: Module) -> Any:
    """What `modules` make of `input`, one after the other; two with a fused op are one, where nobody can tell.

    That is where both are of the library's own classes, no hook looks at either, and the policy in force has no changes
    of its own, which may be about one of the two.
    """
    at, last = 0, len(modules) - 1
    while at <= last:
        pair = _PAIRS.get((type(modules[at]), type(modules[at + 1]))) if at < last else None
        if pair is None or _watched(modules[at]) or _watched(modules[at + 1]) or _changed():
            input = modules[at](input)
            at += 1
        else:
            input = pair(modules[at], modules[at + 1], input)
            at += 2
    return input


def _watched(module: Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _changed() -> bool:
    region = policy.region()
    return region is not None and any(each is not None and each.overrides for each in region.rules)
