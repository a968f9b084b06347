"""Which nodes of a graph a backward pass has to visit."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import attrgetter

from ..tensor import Tensor
from . import hooks
from .node import Node


def nodes_below(nodes: Iterable[Node], oldest: int = 0) -> set[Node]:
    """`nodes` and those that their gradients flow to, directly or not; none recorded before the time `oldest`."""
    todo = list(nodes)
    seen = set(todo)
    while todo:
        for edge in todo.pop().edges:
            source = None if edge is None else edge[0]
            if isinstance(source, Node) and source not in seen and source.serial >= oldest:
                seen.add(source)
                todo.append(source)
    return seen


def paths_to(wanted: Collection[Node], leaves: Collection[int], nodes: Iterable[Node]) -> dict[Node, bool] | None:
    """The nodes below `nodes` that a gradient passes on its way to `wanted` nodes, or to leaves with these ids.

    The value says whether the node's backward has to run; for a wanted node above no other it has not. None where a
    node adds others to the graph in backward: what they lead to is not known before.
    """
    oldest = 0 if leaves else min((node.serial for node in wanted), default=0)
    below = nodes_below(nodes, oldest)
    if grows(below):
        return None
    found = dict.fromkeys(wanted, False)
    leading = {*leaves, *map(id, wanted)}
    for node in sorted(below, key=attrgetter("serial")):  # each after all that its gradients flow to
        for edge in node.edges:
            if edge is not None and id(edge[0]) in leading:
                found[node] = True
                leading.add(id(node))
                break
    return found


def complete_after(nodes: Iterable[Node]) -> dict[Node, list[Tensor]]:
    """Per node below `nodes`, the leaves with hooks that it is the last to write to, in the order of its inputs.

    That is the oldest node with an edge to the leaf. Empty where some node adds others to the graph in backward.
    """
    below = nodes_below(nodes)
    if grows(below):
        return {}
    last: dict[Tensor, Node] = {}
    for node in below:
        for leaf in (edge[0] for edge in node.edges if edge is not None):
            hooked = id(leaf) in hooks.post_accumulate_hooks or id(leaf) in hooks.leaf_hooks
            if hooked and (leaf not in last or node.order < last[leaf].order):
                last[leaf] = node
    ended = {node: dict.fromkeys(edge[0] for edge in node.edges if edge is not None) for node in last.values()}
    return {node: [leaf for leaf in leaves if last.get(leaf) is node] for node, leaves in ended.items()}


def grows(nodes: Iterable[Node]) -> bool:
    """Whether one of the nodes adds others to the graph in backward."""
    return any(getattr(node.op, "extends_graph", False) for node in nodes)


def may_precede(node: Node, newest: Node) -> bool:
    """Whether `node`, the next one in order, may run before `newest` with the same sums of gradients.

    It does if it launches nothing but elementwise functions, `newest` gives it no gradient, both give none to the same
    tensor, and neither has hooks, which would see the order.
    """
    if any(one.hooks is not None or one.around is not None or grows([one]) for one in (node, newest)):
        return False
    primitive, of_newest = (getattr(one.op, "backward_primitive", None) for one in (node, newest))
    if primitive is None or of_newest is None or newest.place is not None or node.place is not None:
        return False
    backend = node.plan.backend
    if not any(kernel.launches for kernel in primitive.kernels_of(backend)):
        return False
    if any(kernel.launches for kernel in of_newest.kernels_of(newest.plan.backend)):
        return False
    given = [edge[0] for edge in newest.edges if edge is not None]
    if any(isinstance(one, Node) and one.order >= node.order for one in given):
        return False
    targets = {id(one) for one in given}
    return not any(edge is not None and id(edge[0]) in targets for edge in node.edges)
