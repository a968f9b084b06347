"""Gradients that a backward pass adds up and writes to leaves, traced or not, as observers see it."""

from __future__ import annotations

from typing import Any

from ampkit.base import observe
from ampkit.base.errors import ShapeError

from ..casts import is_traced
from ..tensor import Tensor
from .accumulate import sum_gradients
from .node import Node
from .scale_tag import ScaleTag
from .traced_array import TracedArray


def sum_of(held: Any, gradient: Any, tag: ScaleTag | None, of: Any) -> Any:
    """The sum of two gradients of a leaf, or of an output of a node."""
    total = sum_gradients(held, gradient, read=False)
    if observe.observers and not is_traced(total):
        what = {"node": of} if isinstance(of, Node) else {"operands": (of,)}
        observe.notify_end("sum_of_two", (held, gradient), total, observe.BACKWARD, tag=tag, **what)
    return total


def accumulate(leaf: Tensor, gradient: Any, tag: ScaleTag | None, owned: bool = False) -> None:
    """Add a gradient, traced or not, to what `leaf.grad` holds; a traced one leaves `grad` on the tape."""
    if observe.observers:
        array = gradient.tensor.array if isinstance(gradient, TracedArray) else gradient
        observe.notify_end("accumulate", (array,), leaf, observe.ACCUMULATE, tag=tag)
    held = leaf._grad
    if held is not None and held._array.shape != gradient.shape:
        needs = f"a gradient of shape {held._array.shape}, as `grad` has"
        raise ShapeError("backward", needs, f"{gradient.shape}", "set grad = None where .data takes another shape")
    if not isinstance(gradient, TracedArray):
        leaf.accumulate(gradient, tag, owned)
        return
    total = gradient.tensor if held is None else sum_gradients(TracedArray(held), gradient).tensor
    if held is not None and held._scale_tag is tag:  # others may hold the former gradient, which keeps its values
        leaf.drop_grad()
        leaf.accumulate(total.array, tag)
    else:
        leaf.accumulate(gradient.tensor.array, tag)
    assert leaf._grad is not None
    if total._tape_edge is not None:
        before, made = leaf._grad, Tensor(leaf._grad.exposed())  # an optimizer may hold the memory
        made._version_counter, made._scale_tag = before._version_counter, before._scale_tag
        made._tape_edge, leaf._grad = total._tape_edge, made
