"""Where a mapped function begins and ends: tensors of a whole batch become batched ones, and back, on the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit import backends
from ampkit.base.dtypes import DIFFERENTIABLE

from ...autograd.grad_mode import grad_scope
from ...autograd.node import Node, WideNode
from ...autograd.saved import Saved
from ...autograd.traced_array import TracedArray
from ...tensor import Tensor
from .array import BatchedArray, Level, expand, innermost, is_at, is_inner, live_levels
from .sums import is_summing, sum_if_ended


class _Boundary:
    """The op of a node that moves the axis of the samples: params are (axis, level)."""

    def __init__(self, name: str, run: Callable[..., Any], inverse: Callable[..., Any]):
        self.name, self.run, self.inverse = name, run, inverse
        self.saved_for: dict[str, Any] = {}

    def __call__(self, tensor: Tensor, dim: int, level: Level) -> Tensor:
        with backends.device_guard(tensor.array):
            made = Tensor(self.run(tensor.array, dim, level))
        made._version_counter = tensor._version_counter
        edge = tensor._tape_edge
        if edge is not None and grad_scope().value and made.array.dtype in DIFFERENTIABLE:
            kind = WideNode if edge[0]._unrounded else Node
            node = kind(self, (edge,), Saved(), (dim, level))
            made._tape_edge = (node, 0, made.array.shape, made.array.dtype)
            tensor.exposed()
        return made

    def needs(self, node: Node) -> tuple[Any, ...]:
        return (None,)

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> tuple[Any, ...]:
        return (self.inverse(dys[0], *node.params),)

    def replay(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> tuple[Any, ...]:
        return (TracedArray(_inverses[self](dys[0].tensor, *node.params)),)

    def jvp(self, node: Node, tangents: list[Any], traced: bool) -> tuple[Tensor, ...]:
        return (self(tangents[0], *node.params),)


def _moved(array: Any, source: int, target: int) -> Any:
    # NumPy's moveaxis, in fewer steps.
    order = list(range(array.ndim))
    order.insert(target % array.ndim, order.pop(source))
    return array if source == target else array.transpose(order)


def _in(array: Any, dim: int, level: Level) -> Any:
    if is_inner(array, level):
        return BatchedArray(_in(array.data, dim % array.ndim + 1, level), array.level)
    return BatchedArray(_moved(array, dim, 0), level)


def _out(array: Any, dim: int, level: Level) -> Any:
    if is_inner(array, level):
        return BatchedArray(_out(array.data, dim % (array.ndim + 1) + 1, level), array.level)
    return _moved(expand(array, level).data, 0, dim)


enter = _Boundary("vmap", _in, _out)
leave = _Boundary("vmap_end", _out, _in)
_inverses = {enter: leave, leave: enter}


class _Lift:
    """The op of a node that shows a tensor to each sample: its gradient is that of each, or their sum."""

    name = "lift"
    saved_for: dict[str, Any] = {}  # noqa: RUF012

    def needs(self, node: Node) -> tuple[Any, ...]:
        return (None,)

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> tuple[Any, ...]:
        return (sum_if_ended(dys[0], node.params[0]),)

    def replay(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> tuple[Any, ...]:
        return (sum_traced_if_ended(dys[0], node.params[0]),)

    def jvp(self, node: Node, tangents: list[Any], traced: bool) -> list[Any]:
        return tangents  # broadcasting shows it to each sample


_LIFT = _Lift()


def lift(tensor: Tensor, level: Level) -> Tensor:
    """A tensor that all samples share as one that is batched."""
    made, edge = Tensor(expand(tensor.array, level)), tensor._tape_edge
    if edge is not None and grad_scope().value and made.array.dtype in DIFFERENTIABLE:
        node = Node(_LIFT, (edge,), Saved(), (level,))
        made._tape_edge = (node, 0, made.array.shape, made.array.dtype)
    return made


def lifted(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a function with a backward of its own: beside batched ones, those whose gradient is wanted too."""
    level = innermost([a.array for a in args if isinstance(a, Tensor)]) if live_levels else None
    if level is None:
        return args
    return tuple([beside(a, level) if isinstance(a, Tensor) and a._tape_edge is not None else a for a in args])


def beside(tensor: Tensor, level: Level) -> Tensor:
    """A tensor, batched at `level`."""
    return tensor if is_at(tensor.array, level) else lift(tensor, level)


def sum_traced_if_ended(gradient: Any, level: Level) -> Any:
    """`sum_if_ended` of a traced array, recorded in its turn."""
    array = gradient.tensor.array
    if not is_summing(level) or not is_at(array, level):
        return gradient
    return TracedArray(leave(gradient.tensor, 0, level).sum(0, dtype=array.dtype))


def sum_shared(node: Node, gradients: Any) -> tuple[Any, ...]:
    """The traced gradients of a batched call, of what its samples share summed where their function has ended."""
    level, held = node.kernel.level, zip(gradients, node.saved.batched.inputs, strict=False)
    return tuple([sum_traced_if_ended(g, level) if g is not None and i.shared else g for g, i in held])
