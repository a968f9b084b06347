"""One pass over the recorded nodes from inputs to outputs: tangents, the products of the Jacobian and a vector.

The nodes are those of the backward pass, so that every op has forward-mode derivatives: the backward of a node is
linear in the gradients of its outputs, and its derivative with respect to them is the node's Jacobian. Three kinds of
ops, known by what their definitions say, take shorter ways: views, pointwise ops, and products of two tensors. Each way
runs other ops, in the dtypes of the recorded call, so that tangents can be differentiated in their turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from ampkit import backends
from ampkit.base.array_kinds import on_device
from ampkit.base.dtypes import DIFFERENTIABLE, DType
from ampkit.base.errors import StateError

from .. import dispatch
from ..dispatch.batching.array import BatchedArray
from ..dispatch.batching.sums import kept_apart
from ..dispatch.forward_rules import TangentCall, cast_to, itself
from ..tensor import Edge, Tensor
from .accumulate import reduce_to_input
from .backward_pass import BackwardPass, edge_key
from .double_backward import link_saved
from .grad_mode import enable_grad
from .node import Node
from .reachable import grows, nodes_below
from .saved_hooks import with_unpacked
from .tape import enter_pass, grad, leave_pass
from .traced_array import TracedArray

Tangents = list[Tensor | None]


def push_forward(
    outs: Sequence[Tensor], edges: Sequence[Edge], tangents: Sequence[Tensor | None], traced: bool
) -> list[Tensor | None]:
    """The tangents of `outs`, given those of the tensors with these edges; None where nothing depends on them.

    tangents: each has its tensor's shape and dtype; None for zeros, which cost nothing. traced: record the pass itself,
    so that tangents can be differentiated. Nothing is freed. Raises StateError where the graph was freed, or a
    checkpointed function is on the way.
    """
    known: dict[tuple[int, int], Tensor] = {}
    for edge, tangent in zip(edges, tangents, strict=True):
        if tangent is None:
            continue
        key = edge_key(edge)
        known[key] = known[key] + tangent if key in known else tangent
    ends = [out._tape_edge for out in outs]
    given = [edge[0] if isinstance(edge[0], Node) else None for edge in edges]
    oldest = 0 if None in given else min((node.serial for node in given if node is not None), default=0)
    below = nodes_below((end[0] for end in ends if end is not None and isinstance(end[0], Node)), oldest)
    if grows(below):
        cure = "call the function without checkpoint"
        raise StateError("forward-mode derivatives", "a recorded graph", "a checkpointed function in it", cure)
    token = enter_pass(traced)
    try:
        with kept_apart.holding(True):
            _visit_all(below, ends, known, traced)
    finally:
        leave_pass(token)
    return [None if end is None else known.get(edge_key(end)) for end in ends]


def _visit_all(
    below: set[Node], ends: Sequence[Edge | None], known: dict[tuple[int, int], Tensor], traced: bool
) -> None:
    # Add the tangents of the nodes' outputs to `known`, from which those that nothing reads any more are dropped.
    order = sorted(below, key=attrgetter("serial"))  # each after all that it depends on
    wanted, kept = _wanted_outputs(order, ends), {edge_key(end) for end in ends}
    keys_of = [[edge_key(edge) for edge in node.edges] for node in order]
    last = {key: node for node, keys in zip(order, keys_of, strict=True) for key in keys}
    for node, keys in zip(order, keys_of, strict=True):
        tangents = [known.get(key) for key in keys]
        if any(tangent is not None for tangent in tangents):
            if backends.gpus is not None:
                backends.gpus.follow(next(t.array for t in tangents if t is not None))
            for index, made in _push(node, tangents, wanted[node], traced).items():
                known.setdefault((id(node), index), made)
        for key in keys:
            if last.get(key) is node and key not in kept:
                known.pop(key, None)


def _wanted_outputs(order: Sequence[Node], ends: Sequence[Edge | None]) -> dict[Node, dict[int, Edge]]:
    # Per node, its outputs that a later node or the caller reads, with an edge that says their shape and dtype.
    found: dict[Node, dict[int, Edge]] = {node: {} for node in order}
    for edge in [*ends, *(edge for node in order for edge in node.edges)]:
        if edge is not None and edge[0] in found:
            found[edge[0]][edge[1]] = edge
    return found


def _push(node: Node, tangents: Tangents, wanted: dict[int, Edge], traced: bool) -> dict[int, Tensor]:
    # The tangents of the outputs of one node, by index.
    if node.saved is None:
        got, cure = f"one whose {node.op.name} is already freed", "keep it: retain_graph=True"
        raise StateError("forward-mode derivatives", "a graph that was not used before", got, cure)
    packed, saved = node.packed, node.saved
    if packed is not None:
        node.saved = with_unpacked(node)
    try:
        for rule in (_of_function, _of_view, _by_rule, _of_product, _of_pointwise, _of_one_number):
            found = rule(node, tangents, wanted, traced)
            if found is not None:
                return found
        return _by_transposing(node, tangents, wanted, traced)
    finally:
        if packed is not None:
            node.saved = saved


def _of_function(node: Node, tangents: Tangents, wanted: dict[int, Edge], traced: bool) -> Any:
    # A Function with a `jvp` of its own, or what only passes on or turns the axes of its tensor.
    own = getattr(node.op, "jvp", None)
    found = None if own is None else own(node, tangents, traced)
    if found is None:
        return None
    return {i: _in(found[i], edge[3]) for i, edge in wanted.items() if found[i] is not None}


def _of_view(node: Node, tangents: Tangents, wanted: dict[int, Edge], traced: bool) -> Any:
    # Linear in its only tensor.
    if not getattr(node.op, "view", False) or len(tangents) != 1:
        return None
    same: Any = tangents[0]
    if node.params == (same.shape,) and list(wanted) == [0] and wanted[0][2] == same.shape:  # as of `view_as`
        return {0: same}
    made = node.op.signature.call(node.op, tangents, node.params)
    return dict(enumerate(made)) if type(made) is tuple else {0: made}


def _by_rule(node: Node, tangents: Tangents, wanted: dict[int, Edge], traced: bool) -> Any:
    # The rule that the op has (see core/dispatch/forward_rules.py). All but one read constants.
    rule = getattr(node.op, "tangent", None)
    if rule is None or (rule is not itself and (traced or node.kernel.level is not None)):
        return None
    first = wanted[0][2:] if 0 in wanted else node.outputs[0]
    if first is None:
        return None
    node.op.check_versions(node)
    call = TangentCall(node, tangents, first)
    made = rule(call, **call.params)
    if made is None:
        return None
    outs = dict(enumerate(made if type(made) is tuple else (made,)))
    return {i: _in(outs[i], edge[3]) for i, edge in wanted.items()} if outs.keys() >= wanted.keys() else None


def _of_one_number(node: Node, tangents: Tangents, wanted: dict[int, Edge], traced: bool) -> Any:
    # A loss: its gradient, times the tangent, summed up.
    pushed = [t for t in tangents if t is not None]
    if traced or list(wanted) != [0] or len(node.outputs) != 1 or math.prod(wanted[0][2]) != 1:
        return None
    if not hasattr(node.op, "forward"):
        return None
    compute = node.plan.compute or node.plan.out
    needs = tuple([None if t is None else compute for t in tangents])
    dy = backends.backend_of(on_device(pushed[0].array)).zeros(*wanted[0][2:])
    dy[...] = 1
    found = node.op.vjp(node, [dy], needs, BackwardPass([], traced=False, retain=True))
    total: Any = None
    for gradient, tangent in zip(found, tangents, strict=False):
        if gradient is not None and tangent is not None:
            each = (Tensor(gradient) * _in(tangent, compute)).sum()
            total = each if total is None else total + each
    return {} if total is None else {0: _in(total.reshape(wanted[0][2]), wanted[0][3])}


def _of_product(node: Node, tangents: Tangents, wanted: dict[int, Edge], traced: bool) -> Any:
    # An op whose gradient of `a` reads `b` alone, and that of `b` reads `a` alone, is linear in each of the two. What
    # else it takes, such as a bias, is added to the product.
    factors = getattr(node.op, "bilinear", None)
    if factors is None or node.kernel.replays:
        return None
    node.op.check_versions(node)
    signature, stored, (a, b, added, others) = node.op.signature, node.plan.stored, factors
    values = link_saved(node.op, node) if traced else vars(node.saved)
    indices = [(i, getattr(node.saved, signature.names[i], None)) for i in others]
    pairs = [(i, k) for i, k in ((a, b), (b, a)) if tangents[i] is not None]
    if not pairs or any(index is None for _, index in indices):
        return None
    total: Any = None
    for changed, fixed in pairs:
        value: Any = values.get(signature.names[fixed])
        edge = node.edges[fixed]
        if not hasattr(value, "dtype"):
            return None
        if traced:
            factor = value.tensor
        else:  # a kernel may have kept it in another shape
            factor = Tensor(value if edge is None or value.shape == edge[2] else value.reshape(edge[2]))
        inputs: Any = [None] * len(tangents)
        inputs[fixed] = _in(factor, stored[fixed])
        for i in (changed, *(added if changed == pairs[-1][0] else ())):
            tangent = tangents[i]
            inputs[i] = None if tangent is None else _in(tangent, stored[i])
        for i, index in indices:
            inputs[i] = Tensor(index)
        made = signature.call(node.op, inputs, node.params)
        total = made if total is None else total + made
    return {0: _in(total, wanted[0][3])}


def _of_pointwise(node: Node, tangents: Tangents, wanted: dict[int, Edge], traced: bool) -> Any:
    # The Jacobian with respect to each input is diagonal, and so its own transpose: the backward of the tangent.
    if not getattr(node.op, "pointwise", False) or list(wanted) != [0]:
        return None
    if node.op.tangent is not None:  # of an op that mixes elements, as pairs that turn
        return None
    shape, dtype = wanted[0][2:]
    if not all(_broadcasts(edge[2], shape) for edge in node.edges if edge is not None):  # some, as glu, are not
        return None
    total: Any = None
    for place, tangent in enumerate(tangents):
        if tangent is None:
            continue
        dy = _in(tangent if tangent.shape == shape else tangent.expand(shape), dtype)
        chosen = [i == place for i in range(len(tangents))]
        needs = tuple([need if yes else None for need, yes in zip(node.op.needs(node), chosen, strict=True)])
        broadcasts = any(edge is not None and edge[2] != shape for edge in node.edges)
        made = None
        if not traced:  # only where there is nothing to sum over, by a kernel
            made = _by_reference(node, dy.array, needs) if broadcasts else _by_kernel(node, dy.array, needs)
        if made is None:
            found = _gradients(node, {0: dy}, chosen, reduces=False)[place]
        else:
            found = None if made[place] is None else TracedArray(Tensor(made[place]))
        if found is None or found.shape != shape:
            return None
        total = found.tensor if total is None else total + found.tensor
    return {0: _in(total, dtype)}


def _by_kernel(node: Node, dy: Any, needs: tuple[DType | None, ...]) -> Any:
    return node.op.vjp(node, [dy], needs, BackwardPass([], traced=False, retain=True))


def _by_reference(node: Node, dy: Any, needs: tuple[DType | None, ...]) -> Any:
    # The gradients by the reference of the backward, which leaves sums over axes that broadcast to the tape, so that
    # samples may stand in front of them; None where the call itself saw samples.
    op, level = node.op, getattr(dy, "level", None)
    if node.kernel.level is not None or (level is not None and type(dy.data) is BatchedArray):
        return None
    op.check_versions(node)
    params = dict(zip(op.signature.param_names, node.params, strict=True))
    reference, nothing = op.backward_primitive.reference, (((0,),) * len(needs), (None,) * len(needs))
    data = dy if level is None else dy.data
    found, _ = dispatch.backward(op, reference, data, node.saved, needs, params, node.plan.compute, *nothing)
    found = op.per_input(found, node)
    if level is None:
        return found
    if any(g is not None and g.shape != data.shape for g in found):
        return None
    return [None if g is None else BatchedArray(g, level) for g in found]


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    lead = len(to) - len(shape)
    return lead >= 0 and all(n in (1, m) for n, m in zip(shape, to[lead:], strict=True))


def _by_transposing(node: Node, tangents: Tangents, wanted: dict[int, Edge], traced: bool) -> dict[int, Tensor]:
    # gradients = J^T s, as a function of s at 0: its derivative in the direction of the tangents is J t.
    seeds = {
        index: Tensor(backends.backend_of(next(t.array for t in tangents if t is not None)).zeros(*edge[2:]), True)
        for index, edge in wanted.items()
        if edge[3] in DIFFERENTIABLE
    }
    with enable_grad():
        found = _gradients(node, seeds, [tangent is not None for tangent in tangents], reduces=True)
    pairs = [(g.tensor, t) for g, t in zip(found, tangents, strict=True) if g is not None and t is not None]
    pairs = [(gradient, tangent) for gradient, tangent in pairs if gradient.requires_grad]
    if not pairs or not seeds:
        return {}
    made = grad(
        [gradient for gradient, _ in pairs],
        list(seeds.values()),
        [tangent for _, tangent in pairs],
        retain_graph=True,
        create_graph=traced,
        allow_unused=True,
    )
    return {index: one for index, one in zip(seeds, made, strict=True) if one is not None}


def _gradients(node: Node, dys: dict[int, Tensor], chosen: Sequence[bool], reduces: bool) -> list[Any]:
    # The gradients of the chosen inputs as traced arrays; reduces: in the shapes and dtypes of the inputs.
    needs = [need if yes else None for need, yes in zip(node.op.needs(node), chosen, strict=True)]
    given = [TracedArray(dys[i]) if i in dys else None for i in range(len(node.outputs))]
    found = list(node.op.replay(node, given, tuple(needs), BackwardPass([], traced=True, retain=True)))
    found = [one if yes else None for one, yes in zip(found, chosen, strict=False)]
    if reduces:
        for i, (edge, gradient) in enumerate(zip(node.edges, found, strict=False)):
            if edge is not None and gradient is not None:
                found[i] = reduce_to_input(node, gradient, edge[2], needs[i], edge[3])
    return [*found, *[None] * (len(chosen) - len(found))]


def _in(tensor: Tensor, dtype: DType | None) -> Tensor:
    return tensor if dtype is None else cast_to(tensor, dtype)
