"""One pass over the nodes that operations recorded (see core/autograd/node.py), from the outputs to the leaves.

Only this pass sums gradients over broadcast axes, casts them and adds them; an op's backward does none of it. Gradients
are keyed by (node, output index).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base import observe
from ampkit.base.dtypes import DType
from ampkit.base.errors import StateError

from ..casts import is_traced
from ..module_path import following, running
from ..parameter import Parameter
from ..tensor import Edge, Tensor
from . import hooks
from .accumulate import join_repeated, reduce_to_input
from .leaf_gradient import accumulate, is_sole_reference, owned_parts, sum_of
from .node import GradientEdge, Node
from .node_hooks import run_after, run_before
from .reachable import complete_after, grows, may_precede, nodes_below, paths_to
from .saved import keeps_arrays
from .saved_hooks import close_since, innermost_block, packing, with_unpacked, without_packed
from .scale_tag import ScaleTag, mixed_scales
from .traced_array import plain

_FEW = 8  # inputs, of which the same tensor may be several: their gradients are added as any


class BackwardPass:
    """One traversal of the tape, from the newest node to the oldest.

    wanted: the edges whose gradients `grad` returns; None accumulates into the leaves' `grad` instead. traced: record
    the pass itself, for second derivatives; gradients are then TracedArrays. retain: keep what nodes saved.
    inputs: the only tensors whose `grad` is written, leaves or not; None for all leaves.
    """

    def __init__(
        self,
        wanted: Sequence[Edge] | None,
        traced: bool,
        retain: bool,
        inputs: Sequence[Tensor | GradientEdge] | None = None,
    ):
        given = [one for one in inputs or () if isinstance(one, Tensor)]
        self.leaves = None if inputs is None else {id(one) for one in given if one.is_leaf}
        self.traced, self.retain = traced, retain
        self.wanted = None if wanted is None else {edge_key(edge): i for i, edge in enumerate(wanted)}
        self._captured: Any = self.wanted  # the outputs of nodes whose gradients `_capture` takes
        self._targets: Sequence[Edge] | None = wanted
        if inputs is not None:
            self._captured = {edge_key(one._tape_edge): one for one in given if not one.is_leaf}
            self._targets = [one._tape_edge for one in inputs if one._tape_edge is not None]
        self.paths: dict[Node, bool] | None = None  # with `wanted` or `inputs`: see `paths_to`
        self.roots: list[Node] = []
        self.found: dict[int, Any] = {}
        self._held: dict[Node, tuple[list[Any], ScaleTag | None]] = {}  # gradients of its outputs, their scale
        self._heap: list[tuple[float, Node]] = []
        self._leaf_sums: dict[Tensor, tuple[Any, ScaleTag | None]] = {}  # sums of gradients of leaves that have hooks
        self._written: dict[Tensor, None] = {}  # leaves whose post-accumulate hooks are due
        self.tag: ScaleTag | None = None  # the scale of the gradients of the current node

    def add(self, source: Any, index: int, gradient: Any, tag: ScaleTag | None, owned: bool = False) -> None:
        """Add `gradient` to what output `index` of a node, or a leaf, has received so far.

        owned: nothing else refers to the memory of `gradient`, so that a leaf may keep it.
        """
        if isinstance(source, Node):
            if self.paths is None or source in self.paths:
                self._add_to_node(source, index, gradient, tag)
        elif self.wanted is None or (id(source), 0) in self.wanted:
            self._add_to_leaf(source, gradient, tag, owned)

    def grad_buffers(self, node: Node) -> list[Any]:
        """Per input of `node`, memory that its backward may write the gradient to, or None.

        That is the optimizer's gradient memory, for the first gradient of a parameter in this step.
        """
        plain = self.wanted is None and self.leaves is None
        sources = [edge[0] if plain and edge is not None else None for edge in node.edges]
        found = [source.grad_buffer if isinstance(source, Parameter) else None for source in sources]
        there = [id(buffer) for buffer in found if buffer is not None]
        return found if len(set(there)) == len(there) else [None] * len(found)  # a parameter may be two inputs

    def _add_to_leaf(self, leaf: Tensor, gradient: Any, tag: ScaleTag | None, owned: bool) -> None:
        if self.leaves is not None and id(leaf) not in self.leaves:
            return
        if hooks.leaf_hooks and id(leaf) in hooks.leaf_hooks:  # a hook receives the sum over all uses of the leaf
            held = self._leaf_sums.get(leaf)
            if held is not None and held[1] is not tag:
                raise mixed_scales("backward")
            self._leaf_sums[leaf] = (gradient if held is None else sum_of(held[0], gradient, tag, leaf), tag)
        elif self.wanted is None:
            accumulate(leaf, gradient, tag, owned)
        else:
            place = self.wanted[id(leaf), 0]
            held = self.found.get(place)
            self.found[place] = gradient if held is None else sum_of(held, gradient, tag, leaf)
        if hooks.post_accumulate_hooks and self.wanted is None and id(leaf) in hooks.post_accumulate_hooks:
            self._written[leaf] = None

    def _add_to_node(self, node: Node, index: int, gradient: Any, tag: ScaleTag | None) -> None:
        met = self._held.get(node)
        if met is None:
            met = self._held[node] = [None] * len(node.outputs), tag
            heapq.heappush(self._heap, (-(node.serial if node.place is None else node.place), node))
        elif met[1] is not tag:
            raise mixed_scales("backward")
        held = met[0]
        held[index] = gradient if held[index] is None else sum_of(held[index], gradient, tag, node)

    def run(self) -> None:
        """Visit nodes until every gradient has reached a leaf."""
        passes = hooks.passes
        self.roots = [node for _, node in self._heap]
        if self._targets is not None:
            self._find_paths(self._targets)
        complete = {}
        if hooks.leaf_hooks or (hooks.post_accumulate_hooks and self.wanted is None):
            complete = complete_after(self.roots)
        passes.running.append(self)
        block = innermost_block()
        try:
            self._run(complete)
            if queue.waiting:
                queue.flush()
            while len(passes.running) == 1 and passes.at_end:
                passes.at_end.pop(0)()
        finally:
            if packing:
                close_since(block)
            passes.running.pop()
            if not passes.running:
                passes.at_end.clear()

    def _find_paths(self, targets: Sequence[Edge]) -> None:
        nodes = {edge[0] for edge in targets if isinstance(edge[0], Node)}
        leaves = {id(edge[0]) for edge in targets if not isinstance(edge[0], Node)}
        self.paths = paths_to(nodes, leaves, self.roots)

    def reaches(self, edge: Edge) -> bool:
        """Whether a gradient for this edge arrives in this pass, if every backward gives one."""
        source = edge[0]
        if isinstance(source, Node):
            return source in (self.below if self.paths is None else self.paths)
        if self._targets is not None and all(source is not target[0] for target in self._targets):
            return False
        return any(other is not None and other[0] is source for node in self.below for other in node.edges)

    @cached_property
    def below(self) -> set[Node]:
        """The nodes that the pass visits, unless its inputs are given."""
        return nodes_below(self.roots)

    @property
    def grows(self) -> bool:
        """Whether a node adds others to the graph in this pass."""
        return self.paths is None and grows(self.below)

    def _run(self, complete: dict[Node, list[Tensor]]) -> None:
        paths, captured = self.paths, self._captured
        while self._heap:
            node = self._next()
            dys, self.tag = self._held.pop(node)
            if paths is not None and node not in paths:  # an output from which no way leads to the inputs
                continue
            if backends.gpus is not None:
                _use_device_of(*dys)
            if node.hooks is not None:
                hooks.run(node.hooks, dys, self.tag, node)
            if captured is not None:
                self._capture(node, dys)
            if paths is None or paths[node]:
                self._visit(node, dys)
            elif node.around is not None and self.wanted is None:  # as in PyTorch
                run_before(node.around, dys)
            for leaf in complete.pop(node, ()):
                if leaf in self._leaf_sums:
                    self._end_sum(leaf)
                if leaf in self._written:
                    del self._written[leaf]
                    hooks.run_post_accumulate_hooks(leaf)
        for leaf in list(self._leaf_sums):
            self._end_sum(leaf)
        for leaf in self._written:
            hooks.run_post_accumulate_hooks(leaf)

    def _end_sum(self, leaf: Tensor) -> None:
        # The sum over all uses of a leaf that has hooks is there.
        gradient, tag = self._leaf_sums.pop(leaf)
        found = [gradient]
        if backends.gpus is not None:
            _use_device_of(gradient)
        hooks.run(hooks.hooks_of(leaf).gradient, found, tag, leaf)
        if self.wanted is None:
            self._accumulate_sum(leaf, found, tag)
        else:
            self.found[self.wanted[id(leaf), 0]] = found[0]

    def _next(self) -> Node:
        """The newest node; in a recording on a GPU the one after it, if that only launches elementwise functions.

        Its launches then share a kernel with those whose results the newest one reads.
        """
        first = heapq.heappop(self._heap)
        if queue.waiting and queue.held.looks_ahead and self._heap and may_precede(self._heap[0][1], first[1]):
            return heapq.heapreplace(self._heap, first)[1]
        return first[1]

    def gradients_of(self, node: Node, dys: list[Any]) -> list[Any]:
        """The gradients of the inputs of one node that is retained, in their shapes and dtypes."""
        if node.saved is None:
            raise _freed(node)
        if node.packed is not None:
            node.saved = with_unpacked(node)
        needs = node.op.needs(node)
        found = list(node.op.vjp(node, dys, needs, self))
        self._reduce_all(node, found, needs)
        if node.packed is not None:
            node.saved = without_packed(node)
        return found

    def _capture(self, node: Node, dys: list[Any]) -> None:
        # What `grad` returns, or `backward` writes to inputs that are no leaves.
        for index, dy in enumerate(dys):
            to = None if dy is None else self._captured.get((id(node), index))
            if isinstance(to, Tensor):
                accumulate(to, dy, self.tag)
            elif to is not None:
                self.found[to] = dy

    def _accumulate_sum(self, leaf: Tensor, found: list[Any], tag: ScaleTag | None) -> None:
        around = hooks.hooks_of(leaf).around
        if around is None:
            accumulate(leaf, found[0], tag)
            return
        run_before(around, found)
        first = leaf._grad is None
        accumulate(leaf, found[0], tag)
        if leaf in self._written:
            del self._written[leaf]
            hooks.run_post_accumulate_hooks(leaf)
        run_after(around, [], [leaf.grad.array if first and leaf.grad is not None else found[0]])

    def _visit(self, node: Node, dys: list[Any]) -> None:
        saved, packed, around = node.saved, node.packed, node.around
        if saved is None:
            raise _freed(node)
        if node.tag is not None and self.tag is not None:
            raise mixed_scales("backward")
        if packed is not None:
            node.saved = with_unpacked(node)
        needs, backward = node.op.needs(node), node.op.replay if self.traced else node.op.vjp
        if queue.waiting and (self.traced or getattr(node.op, "backward_primitive", None) is None):
            queue.flush()  # what reads the gradients without dispatch
        given: tuple[Any, ...] = ()
        if around is not None:
            run_before(around, dys)
            given = tuple(dys)
        if following:
            with running(node.module_call):
                gradients = list(backward(node, dys, needs, self))
        else:
            gradients = list(backward(node, dys, needs, self))
        if self.traced and observe.observers:
            self._notify_replay(node, dys, gradients)
        if packed is not None:
            node.saved, node.packed = (without_packed(node), packed) if self.retain else (None, None)
        elif not self.retain:
            if keeps_arrays(saved, node.params):
                node.saved = None
            else:
                node.used = True
        dys.clear()
        if around is not None:  # hooks see gradients like the inputs
            self._reduce_all(node, gradients, needs)
            run_after(around, gradients, given)
        if queue.waiting and (around is not None or len(gradients) > _FEW):
            queue.flush()
        if len(gradients) > _FEW:
            join_repeated(node.edges, gradients)
        tag, parts = node.tag or self.tag, owned_parts(node.edges, gradients)
        for place in range(len(gradients)):  # indices, as an iterator would hold another reference to the gradient
            gradient, edge = gradients[place], node.edges[place]
            if edge is None or gradient is None:
                continue
            source, index, shape, dtype = edge
            need = needs[place]
            if backends.gpus is not None:  # the gradient of a copy between devices is on the other one
                _use_device_of(gradient)
            if type(gradient) is not np.ndarray or not gradient.dtype is need is dtype or gradient.shape != shape:
                reduced = self._reduce_observed if observe.observers else reduce_to_input
                gradient = gradients[place] = reduced(node, gradient, shape, need, dtype)  # most need no change
                parts.discard(place)
            owned = isinstance(source, Tensor) and (place in parts or is_sole_reference(gradients, place))
            gradients[place] = None
            self.add(source, index, gradient, tag, owned)

    def _reduce_all(self, node: Node, gradients: list[Any], needs: Any) -> None:
        for place, (edge, gradient, need) in enumerate(zip(node.edges, gradients, needs, strict=False)):
            if edge is not None and gradient is not None:
                gradients[place] = reduce_to_input(node, gradient, edge[2], need, edge[3])

    def _notify_replay(self, node: Node, dys: list[Any], gradients: list[Any]) -> None:
        given, made = ([plain(gradient) for gradient in items] for items in (dys, gradients))
        read = tuple([dy for dy in given if dy is not None])
        what = {"op": node.op, "operands": tuple(given), "params": node.params, "plan": node.plan, "node": node}
        what["tag"] = node.tag or self.tag
        observe.notify_end(f"{node.op.name}_backward", read, tuple(made), observe.REPLAY, **what)

    def _reduce_observed(self, node: Node, gradient: Any, shape: tuple[int, ...], *dtypes: DType | None) -> Any:
        # `reduce_to_input`, one cast at a time.
        for dtype in dtypes:
            if observe.profilers and dtype is not None and getattr(gradient, "dtype", dtype) != dtype:
                observe.notify_start("cast", "", gradient)
            reduced = reduce_to_input(node, gradient, shape, dtype)
            if reduced is not gradient and not is_traced(reduced) and hasattr(gradient, "dtype"):
                name = "cast" if gradient.shape == shape else "sum_over"
                observe.notify_end(name, (gradient,), reduced, observe.BACKWARD, node=node, tag=node.tag or self.tag)
            gradient = reduced
        return gradient


def _freed(node: Node) -> StateError:
    cure = "Specify retain_graph=True in the first backward"
    got = f"one whose {node.op.name} is already freed"
    return StateError("backward", "a graph that was not used before", got, cure)


def _use_device_of(*gradients: Any) -> None:
    # Make the device of the gradients, traced or not, the current one; tape.py restores the previous one.
    for gradient in gradients:
        if gradient is not None:
            backends.gpus.follow(gradient.tensor.array if hasattr(gradient, "tensor") else gradient)


def edge_key(edge: Edge | None) -> tuple[int, int]:
    """What identifies the gradient of a tensor with this edge: (id of its node or leaf, output index)."""
    return (0, 0) if edge is None else (id(edge[0]), edge[1])
