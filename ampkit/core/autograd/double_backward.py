"""Second derivatives: the backward of a node, run over traced arrays and so recorded in its turn.

Where everything a node saved is an input or an output, its backward is itself differentiable. Where it saved
statistics, which a second pass would take for constants (and give a wrong Hessian), the reference forward runs again on
the tape, built from ops whose backwards are of the first kind.
"""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base.dtypes import FLOATS, DType

from ..casts import widen
from ..tensor import Tensor
from .node import Node, alias
from .saved import Saved, with_zeros
from .tape import grad
from .traced_array import TracedArray, plain


def replay(op: Any, node: Node, dys: list[Any], needs: tuple[DType | None, ...]) -> tuple[Any, ...]:
    """The gradients of `node`'s inputs as traced arrays, given traced gradients of its outputs."""
    items, compute = node.saved.__dict__, node.plan.compute
    linked = link_saved(op, node)
    if runs_forward_again(op, node):
        return _replay_forward(op, node, dys, linked)
    saved = Saved(**{name: linked.get(name, value) for name, value in items.items()})
    params = dict(zip(op.signature.param_names, node.params, strict=True))
    gradients = op.backward_primitive.reference.run(_traced(with_zeros(node, dys), compute), saved, needs, **params)
    return op.per_input(gradients, node)


def runs_forward_again(op: Any, node: Node) -> bool:
    """Whether what the node saved is more than inputs and outputs: statistics, or a kernel's own items."""
    known = {*op.signature.names, op.signature.variadic, "out"}
    items = node.saved.__dict__.items()
    return node.kernel.replays or any(
        name not in known and getattr(value, "dtype", None) in FLOATS for name, value in items
    )


def link_saved(op: Any, node: Node) -> dict[str, Any]:
    # What was saved of the inputs and the output, traced, with the gradient flowing to where they came from. They keep
    # the version counters, so that a change in place after this is found as one after the forward is.
    items, compute = node.saved.__dict__, node.plan.compute
    linked: dict[str, Any] = {}
    for i, edge in enumerate(node.edges):
        name, version = op.signature.name_of(i), node.versions[i] if i < len(node.versions) else None
        if type(held := items.get(name)) is tuple:  # one of a list of tensors
            linked[name] = (*linked.get(name, ()), _link(held[i], compute, edge, version))
        elif hasattr(held, "dtype"):  # a kernel may keep an input in another shape
            same = held if edge is None or held.shape == edge[2] else held.reshape(edge[2])
            linked[name] = _link(same, compute, edge, version)
    if (out := items.get("out")) is not None:
        linked["out"] = _link(out, compute, (node, 0, out.shape, out.dtype), node.result)
    return linked


def linked_input(op: Any, linked: dict[str, Any], i: int) -> Any:
    """Input `i` as `link_saved` gave it; None if it was not saved."""
    held = linked.get(op.signature.name_of(i))
    return held[i] if type(held) is tuple else held


def _link(array: Any, compute: DType | None, edge: Any, version: Any) -> TracedArray:
    wide = widen(array, compute)
    tensor = Tensor(wide) if edge is None else alias(wide, edge)
    if wide is array and version is not None:
        tensor._version_counter = version
    return TracedArray(tensor)


def _replay_forward(op: Any, node: Node, dys: list[Any], linked: dict[str, Any]) -> tuple[Any, ...]:
    inputs: list[Any] = []
    zeros = backends.backend_of(next(plain(dy) for dy in dys if dy is not None)).zeros
    for i, edge in enumerate(node.edges):
        held = linked_input(op, linked, i)
        was_given = edge is not None or (i < len(node.versions) and not isinstance(node.versions[i], tuple))
        if held is None and was_given:
            other, compute = op.stand_ins.get(op.signature.name_of(i)), node.plan.compute
            value = None if other is None else other(node.saved)
            if edge is not None:  # without a stand-in, its value serves no gradient: any value will do
                array = zeros(edge[2], compute or edge[3]) if value is None else widen(value, compute)
                held = TracedArray(alias(array, edge))
            elif value is not None:
                held = TracedArray(Tensor(widen(value, compute)))
        inputs.append(held)
    out = op.call(op.forward.reference.run, inputs, node.params)
    out = out[0] if type(out) is tuple and len(out) == 2 and type(out[1]) is Saved else out
    outs = [o for o in out if type(o) is not Saved] if type(out) is tuple else [out]
    pairs = [(o.tensor, dy) for o, dy in zip(outs, dys, strict=True) if dy is not None and o.tensor.requires_grad]
    seeds = [_traced(dy, o.dtype).tensor for o, dy in pairs]
    asked = [held.tensor for held, edge in zip(inputs, node.edges, strict=True) if edge is not None]
    gradients = grad([o for o, _ in pairs], asked, seeds, create_graph=True, allow_unused=True)
    traced = (None if gradient is None else TracedArray(gradient) for gradient in gradients)
    return tuple([None if edge is None else next(traced) for edge in node.edges])


def _traced(dy: Any, compute: DType | None) -> Any:
    if type(dy) is tuple:
        return tuple([_traced(d, compute) for d in dy])
    return widen(dy if dy is None or isinstance(dy, TracedArray) else TracedArray(Tensor(dy)), compute)
