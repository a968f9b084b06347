"""`scaler.scale(loss)`: multiply the loss by the loss scale, recorded by a node that carries the scale tag."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backends
from ..base import dtypes, observe
from ..base.dtypes import Array, DType
from ..core.autograd.backward_pass import BackwardPass
from ..core.autograd.grad_mode import is_grad_enabled
from ..core.autograd.node import Node, attach
from ..core.autograd.scale_tag import ScaleTag
from ..core.autograd.traced_array import TracedArray
from ..core.fp_errors import ignore_fp_errors
from ..core.tensor import Tensor


class _ScaleLoss:
    """The op of `scaler.scale`. Its backward returns the gradient in float32, since 65536 overflows float16."""

    name = "scale_loss"

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: BackwardPass) -> tuple[Any, ...]:
        return (dys[0] * node.saved,)

    def replay(self, node: Node, dys: list[Any], needs: Any, backward_pass: BackwardPass) -> tuple[Any, ...]:
        return (dys[0] * TracedArray(Tensor(node.saved)),)

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        return (None,)


_SCALE_LOSS = _ScaleLoss()


def scaled(loss: Tensor, tag: ScaleTag) -> Tensor:
    """`loss` times the scale of `tag`, in float32 (float64 for float64); recorded if the loss requires grad."""
    backend, wide = backends.backend_of(loss.array), dtypes.accumulator(loss.array.dtype)
    with ignore_fp_errors(), backends.device_guard(loss.array):
        factor = backends.to_device_of(tag.factor, loss.array).astype(wide)
        out = backend.asarray(np.multiply(backend.cast(loss.array, wide), factor))
    if observe.observers:
        observe.notify_end("scale_loss", (loss.array, factor), out, observe.FORWARD, operands=(loss,), tag=tag)
    return _recorded(loss, out, factor, tag) if loss._tape_edge is not None and is_grad_enabled() else Tensor(out)


def _recorded(loss: Tensor, out: Array, factor: Array, tag: ScaleTag) -> Tensor:
    assert loss._tape_edge is not None
    node = Node(_SCALE_LOSS, ((*loss._tape_edge[:3], out.dtype),), backends.backend_of(out).asarray(factor))
    node.tag = tag
    return attach(out, node)
