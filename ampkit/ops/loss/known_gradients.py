"""A number whose gradients are computed together with it: its backward multiplies them by the number's own gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampkit.base import observe
from ampkit.base.dtypes import Array, DType
from ampkit.base.errors import StateError
from ampkit.core import dispatch, policy
from ampkit.core.autograd.backward_pass import BackwardPass
from ampkit.core.autograd.grad_mode import enable_grad
from ampkit.core.autograd.node import Node, WideNode, alias
from ampkit.core.autograd.tape import grad
from ampkit.core.autograd.traced_array import TracedArray
from ampkit.core.casts import widen
from ampkit.core.tensor import Edge, Tensor

Gradients = list[Array | None]


class _Known:
    """What a node saves. gradients: of each input; factor: of which number, that many times the result.

    function(*inputs) gives the result again, in the autocast region of the first time.
    """

    def __init__(self, gradients: Gradients, factor: Any, needs: Any, function: Any, inputs: Any):
        self.gradients: Gradients | None = gradients
        self.factor, self.needs, self.function, self.inputs = factor, needs, function, inputs
        self.region = policy.region()


class _KnownGradients:
    """The op of these nodes."""

    name = "known_gradients"

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        return tuple(node.saved.needs)

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: BackwardPass) -> tuple[Any, ...]:
        known, factor = node.saved, dys[0] / node.saved.factor
        gradients, buffers = known.gradients, backward_pass.grad_buffers(node)
        if not backward_pass.retain:
            known.gradients = None  # so that a leaf may keep the memory
        return tuple([_product(gradients, i, factor, buffers[i], backward_pass.retain) for i in range(len(buffers))])

    def replay(self, node: Node, dys: list[Any], needs: Any, backward_pass: BackwardPass) -> tuple[Any, ...]:
        """The gradients as traced arrays, by running the function again, and its backward on the tape."""
        known = node.saved
        if any(version[0] > node.serial for version in node.versions):
            cure = "change it after backward"
            raise StateError("backward", "the values that the forward read", "one that changed in place since", cure)
        inputs = [_relinked(tensor, edge) for tensor, edge in zip(known.inputs, node.edges, strict=True)]
        token = policy.enter(known.region)
        try:
            with enable_grad():
                out = known.function(*inputs)
        finally:
            policy.leave(token)
        asked = [each for each, edge in zip(inputs, node.edges, strict=True) if each is not None and edge is not None]
        seed = dys[0].tensor if isinstance(dys[0], TracedArray) else Tensor(dys[0])
        found = iter(grad([out], asked, [seed], create_graph=True, allow_unused=True))
        made = [None if edge is None else next(found) for edge in node.edges]
        return tuple([None if one is None else TracedArray(one) for one in made])


_OP = _KnownGradients()


def _product(gradients: Gradients, i: int, factor: Array, buffer: Array | None, retain: bool) -> Array | None:
    gradient, gradients[i] = gradients[i], gradients[i] if retain else None
    if gradient is None:
        return None
    fits = buffer is not None and (buffer.shape, buffer.dtype) == (gradient.shape, gradient.dtype)
    to = buffer if fits else None if retain else gradient
    return np.multiply(gradient, factor.astype(gradient.dtype), out=to)


def _relinked(tensor: Tensor | None, edge: Edge | None) -> Tensor | None:
    # So that hooks of a leaf run once, for the sum of its gradients.
    if tensor is None or edge is None:
        return tensor
    made = alias(tensor.array, edge)
    if edge[0]._unrounded and made._tape_node is not None:
        made._tape_node.__class__ = WideNode
    return made


def with_gradients(
    out: Array, gradients: Gradients, factor: Any, needs: Sequence[DType | None],
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None],
) -> Tensor:  # fmt: skip
    """A Tensor of `out` [], recorded as function(*inputs), whose backward multiplies `gradients` by its own gradient.

    gradients: per input, that of factor * out, in its accumulator dtype, or None where none is wanted; nothing else
    refers to them. needs: per input, the dtype that its gradient is rounded to. Second derivatives run `function`.
    """
    edges = [None if tensor is None else tensor._tape_edge for tensor in inputs]
    versions = [tensor._version_counter for tensor in inputs if tensor is not None]
    node = Node(_OP, edges, _Known(gradients, factor, needs, function, inputs), versions=versions)
    made = Tensor(out)
    made._tape_edge = (node, 0, out.shape, out.dtype)
    return made


def gradients_of(node: Node, dy: Array, needs: Sequence[DType | None], buffers: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients of the inputs of a node of an op, in the dtypes `needs`, where its forward has just run.

    dy: the gradient of its output. buffers: as BackwardPass.grad_buffers; what a kernel does not write to is unchanged.
    """
    op: Any = node.op
    params, plan, saved = dict(zip(op.signature.param_names, node.params, strict=True)), node.plan, node.saved
    primitive = op.backward_primitive
    kernel = primitive.choose(plan.backend, dispatch.call, (dy, saved, needs), params)
    if observe.profilers:
        observe.notify_start(primitive.name, kernel.name, dy)
    made, kernel = dispatch.backward(op, kernel, dy, saved, needs, params, plan.compute, node.versions, buffers)
    found: tuple[Any, ...] = op.per_input(made, node)
    if observe.observers:
        read = (dy, *[array for array in vars(saved).values() if hasattr(array, "dtype")])
        what = {"op": op, "operands": (dy,), "params": node.params, "plan": plan, "kernel": kernel, "node": node}
        observe.notify_end(primitive.name, read, found, observe.BACKWARD, **what)
    return tuple([widen(each, need) for each, need in zip(found, needs, strict=True)])
