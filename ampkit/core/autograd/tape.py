"""The backward pass over the nodes that operations recorded (see core/autograd/node.py).

Only this pass sums gradients over broadcast axes, casts them and adds them; an op's backward does none of it. Gradients
are keyed by (node, output index). Autocast is off during a backward pass: the forward decided the dtypes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import is_float
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError, switch

from .. import fp_errors, policy
from ..tensor import Edge, Tensor
from . import hooks
from .accumulate import reduce_to_input, sum_gradients
from .grad_mode import set_grad_enabled
from .node import Node, alias
from .scale_tag import ScaleTag, mixed_scales
from .traced_array import TracedArray


class BackwardPass:
    """One traversal of the tape, from the newest node to the oldest.

    wanted: the tensors whose gradients `grad` returns; None accumulates into the leaves' `grad` instead. traced: record
    the pass itself, for second derivatives; gradients are then TracedArrays. retain: keep what nodes saved.
    leaves: the only leaves to write to; None for all.
    """

    def __init__(
        self, wanted: Sequence[Tensor] | None, traced: bool, retain: bool, leaves: Sequence[Tensor] | None = None
    ):
        self.leaves = None if leaves is None else {id(leaf) for leaf in leaves}
        self.traced, self.retain = traced, retain
        self.wanted = None if wanted is None else {_key(t.edge): i for i, t in enumerate(wanted)}
        self.found: dict[int, Any] = {}
        self._held: dict[Node, tuple[list[Any], ScaleTag | None]] = {}  # gradients of its outputs, their scale
        self._heap: list[tuple[int, Node]] = []
        self._leaf_sums: dict[Tensor, tuple[Any, ScaleTag | None]] = {}  # sums of gradients of leaves that have hooks
        self._written: dict[Tensor, None] = {}  # leaves whose post-accumulate hooks are due
        self.tag: ScaleTag | None = None  # the scale of the gradients of the current node

    def add(self, source: Any, index: int, gradient: Any, tag: ScaleTag | None) -> None:
        """Add `gradient` to what output `index` of a node, or a leaf, has received so far."""
        if isinstance(source, Node):
            self._add_to_node(source, index, gradient, tag)
        elif self.wanted is None or (id(source), 0) in self.wanted:
            self._add_to_leaf(source, gradient, tag)

    def grad_buffers(self, node: Node) -> list[Any]:
        """Per input of `node`, memory that its backward may write the gradient to, or None.

        That is the optimizer's gradient memory, for the first gradient of a parameter in this step.
        """
        plain = self.wanted is None and self.leaves is None
        found = [getattr(edge[0], "grad_buffer", None) if plain and edge is not None else None for edge in node.edges]
        there = [id(buffer) for buffer in found if buffer is not None]
        return found if len(set(there)) == len(there) else [None] * len(found)  # a parameter may be two inputs

    def _add_to_leaf(self, leaf: Tensor, gradient: Any, tag: ScaleTag | None) -> None:
        if self.leaves is not None and id(leaf) not in self.leaves:
            return
        if hooks.leaf_hooks and id(leaf) in hooks.leaf_hooks:  # a hook receives the sum over all uses of the leaf
            held = self._leaf_sums.get(leaf)
            if held is not None and held[1] is not tag:
                raise mixed_scales("backward")
            self._leaf_sums[leaf] = (gradient if held is None else sum_gradients(held[0], gradient), tag)
        elif self.wanted is None:
            _accumulate(leaf, gradient, tag)
        else:
            place = self.wanted[id(leaf), 0]
            held = self.found.get(place)
            self.found[place] = gradient if held is None else sum_gradients(held, gradient)
        if hooks.post_accumulate_hooks and self.wanted is None and id(leaf) in hooks.post_accumulate_hooks:
            self._written[leaf] = None

    def _add_to_node(self, node: Node, index: int, gradient: Any, tag: ScaleTag | None) -> None:
        met = self._held.get(node)
        if met is None:
            met = self._held[node] = [None] * len(node.outputs), tag
            heapq.heappush(self._heap, (-node.serial, node))
        elif met[1] is not tag:
            raise mixed_scales("backward")
        held = met[0]
        held[index] = gradient if held[index] is None else sum_gradients(held[index], gradient)

    def run(self) -> None:
        """Visit nodes until every gradient has reached a leaf."""
        while self._heap:
            node = heapq.heappop(self._heap)[1]
            dys, self.tag = self._held.pop(node)
            if backends.gpus is not None:
                _use_device_of(*dys)
            if node.hooks is not None:
                hooks.run(node.hooks, dys, self.tag)
            if self.wanted is not None:
                for index, dy in enumerate(dys):
                    if dy is not None and (place := self.wanted.get((id(node), index))) is not None:
                        self.found[place] = dy
            self._visit(node, dys)
        for leaf, (gradient, tag) in self._leaf_sums.items():
            found = [gradient]
            if backends.gpus is not None:
                _use_device_of(gradient)
            hooks.run(hooks.leaf_hooks[id(leaf)], found, tag)
            if self.wanted is None:
                _accumulate(leaf, found[0], tag)
            else:
                self.found[self.wanted[id(leaf), 0]] = found[0]
        for leaf in self._written:
            hooks.run_post_accumulate_hooks(leaf)

    def _visit(self, node: Node, dys: list[Any]) -> None:
        if node.saved is None:
            cure = "call the first backward with retain_graph=True"
            raise StateError(
                "backward", "a graph that was not used before", f"one whose {node.op.name} is already freed", cure
            )
        if node.tag is not None and self.tag is not None:
            raise mixed_scales("backward")
        needs = node.op.needs(node)
        gradients = (node.op.replay if self.traced else node.op.vjp)(node, dys, needs, self)
        if not self.retain:
            node.saved = None
        tag = node.tag or self.tag
        for edge, gradient, need in zip(node.edges, gradients, needs, strict=False):
            if edge is None or gradient is None:
                continue
            source, index, shape, dtype = edge
            if backends.gpus is not None:  # the gradient of a copy between devices is on the other one
                _use_device_of(gradient)
            if type(gradient) is not np.ndarray or not gradient.dtype is need is dtype or gradient.shape != shape:
                gradient = reduce_to_input(node, gradient, shape, need, dtype)  # most need no change
            self.add(source, index, gradient, tag)


def _use_device_of(*gradients: Any) -> None:
    # Make the device of the gradients, traced or not, the current one; `_run_backward` restores the previous one.
    for gradient in gradients:
        if gradient is not None:
            backends.gpus.follow(gradient.tensor.array if hasattr(gradient, "tensor") else gradient)


def _accumulate(leaf: Tensor, gradient: Any, tag: ScaleTag | None) -> None:
    """Add a gradient, traced or not, to what `leaf.grad` holds; a traced one leaves `grad` on the tape."""
    if not isinstance(gradient, TracedArray):
        leaf.accumulate(gradient, tag)
        return
    held = leaf._grad
    total = gradient.tensor if held is None else sum_gradients(TracedArray(held), gradient).tensor
    leaf.accumulate(gradient.tensor.array, tag)
    assert leaf._grad is not None
    if total.edge is not None:
        written = leaf._grad.exposed()  # an optimizer may hold the memory
        leaf._grad, before = Tensor(written), leaf._grad
        leaf._grad.version, leaf._grad.tag, leaf._grad.edge = before.version, before.tag, total.edge


def _key(edge: Edge | None) -> tuple[int, int]:
    return (0, 0) if edge is None else (id(edge[0]), edge[1])


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradients of `tensors` (times `grad_tensors`, each 1 for a single element) to `.grad` of every leaf.

    retain_graph=True keeps what the nodes saved, so that a second backward can follow. create_graph=True records the
    gradients, so that `.grad` can be differentiated in its turn, and retains the graph unless told otherwise. inputs:
    the only leaves to write. grad_variables is an old name of grad_tensors.
    Raises StateError if a tensor is not on the tape or its graph was used, ShapeError for a missing or misfit gradient.
    """
    create_graph = switch("backward", "create_graph", create_graph)
    retain_graph = None if retain_graph is None else switch("backward", "retain_graph", retain_graph)
    leaves = None if inputs is None else several(inputs)
    if leaves is not None and not all(isinstance(x, Tensor) and x.is_leaf and x.requires_grad for x in leaves):
        raise StateError("backward", "inputs that are leaves and require grad", "one that is not", "use ampkit.grad")
    outs = several(tensors)
    seeds = _seeds("backward", "grad_tensors", outs, grad_variables if grad_tensors is None else grad_tensors)
    retain = create_graph if retain_graph is None else retain_graph
    _run_backward(outs, seeds, None, traced=create_graph, retain=retain, leaves=leaves)


def _backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of this tensor (times `gradient`) to `.grad` of every leaf; see `ampkit.autograd.backward`."""
    backward(self, None if gradient is None else (gradient,), retain_graph, create_graph, inputs=inputs)


def _seeds(where: str, what: str, outs: tuple[Any, ...], given: Any) -> tuple[Any, ...]:
    seeds = (None,) * len(outs) if given is None else several(given)
    if len(seeds) != len(outs):
        raise ArgumentError(where, f"{len(outs)} {what}", f"{len(seeds)}")
    return seeds


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of `outputs` (times `grad_outputs`) with respect to `inputs`, in their order; leaves stay untouched.

    create_graph=True records the gradients, so that they can be differentiated again. An input that no output depends
    on raises StateError, or gives None with allow_unused=True, zeros with materialize_grads=True. The gradients carry
    no scale tag. Raises ArgumentError for only_inputs=False and is_grads_batched=True, which are not here.
    """
    only_inputs, is_grads_batched = (
        switch("grad", name, value)
        for name, value in (("only_inputs", only_inputs), ("is_grads_batched", is_grads_batched))
    )
    if not only_inputs or is_grads_batched:
        wrong = "only_inputs=False" if not only_inputs else "is_grads_batched=True"
        raise ArgumentError("grad", "only_inputs=True and is_grads_batched=False", wrong)
    create_graph = switch("grad", "create_graph", create_graph)
    allow_unused, materialize_grads = (
        switch("grad", name, value)
        for name, value in (("allow_unused", allow_unused), ("materialize_grads", materialize_grads))
    )
    outs, ins = several(outputs), several(inputs)
    seeds = _seeds("grad", "grad_outputs", outs, grad_outputs)
    for position, item in enumerate(ins):
        if not isinstance(item, Tensor) or not item.requires_grad:
            raise StateError("grad", "inputs that are Tensors and require grad", f"input {position} that does not")
    retain = create_graph if retain_graph is None else switch("grad", "retain_graph", retain_graph)
    backward_pass = _run_backward(outs, seeds, ins, create_graph, retain)
    found = [backward_pass.found.get((backward_pass.wanted or {})[_key(item.edge)]) for item in ins]
    if materialize_grads:
        return tuple([_zeros(i) if f is None else _given(f, i, create_graph) for i, f in zip(ins, found, strict=True)])
    if not allow_unused and any(f is None for f in found):
        cure = "pass allow_unused=True for None there"
        raise StateError("grad", "outputs that depend on every input", "an input that none depends on", cure)
    return tuple([None if f is None else _given(f, i, create_graph) for i, f in zip(ins, found, strict=True)])


def _given(gradient: Any, item: Tensor, traced: bool) -> Tensor:
    # In memory of its own, and in order or as `item` lies, so that `view` works on it where it does on that:
    # broadcasting and transposing leave views behind.
    array = gradient.tensor.array if traced else gradient
    if (array.flags.c_contiguous or _order(array) == _order(item.array)) and getattr(array.flags, "writeable", True):
        return gradient.tensor if traced else Tensor(gradient)
    edge = gradient.tensor.edge if traced else None
    with backends.device_guard(array):
        copied = array.copy()
    return Tensor(copied) if edge is None else alias(copied, edge)


def _order(array: Any) -> list[int]:
    return sorted(range(array.ndim), key=array.strides.__getitem__)


def _zeros(item: Tensor) -> Tensor:
    assert item.edge is not None
    return Tensor(backends.backend_of(item.array).zeros(*item.edge[2:]))


def several(items: Any) -> tuple[Any, ...]:
    """One Tensor, or a sequence of them, as a tuple. Raises DTypeError for what is neither."""
    if not isinstance(items, (Tensor, Iterable)) or isinstance(items, np.ndarray):
        raise DTypeError("backward", "a Tensor or a sequence of them", f"a {type(items).__name__}")
    return (items,) if isinstance(items, Tensor) else tuple(items)


def _run_backward(
    outs: tuple[Tensor, ...], seeds: tuple[Any, ...], wanted: Any, traced: bool, retain: bool, leaves: Any = None
) -> BackwardPass:
    backward_pass = BackwardPass(wanted, traced, retain, leaves)
    region, token = policy.enter(None), fp_errors.push_ignore()
    device = None if backends.gpus is None else backends.gpus.use(None)
    try:
        with set_grad_enabled(traced):
            for out, seed in zip(outs, seeds, strict=True):
                if device is not None:
                    backends.gpus.follow(getattr(out, "array", None))
                start = _seed(out, seed)
                backward_pass.add(*target(out), TracedArray(start) if traced else start.array, start.tag)
            backward_pass.run()
    except MemoryError as error:
        raise backends.out_of_memory_error([out.array for out in outs], error) from None
    finally:
        fp_errors.pop_ignore(token)
        policy.leave(region)
        if device is not None:
            backends.gpus.leave(device)
    return backward_pass


def target(out: Tensor) -> tuple[Any, int]:
    assert out.edge is not None
    return out.edge[:2]


def _seed(out: Tensor, seed: Tensor | None) -> Tensor:
    if not isinstance(out, Tensor) or out.edge is None:
        cure = "is every input detached, or does the forward run in no_grad?"
        raise StateError("backward", "a tensor on the tape", "one that requires no grad", cure)
    if seed is None:
        if out.array.size != 1:
            cure = "reduce it, or pass the gradient: y.backward(dy)"
            raise ShapeError("backward", "a tensor of one element", f"shape {tuple(out.shape)}", cure)
        return Tensor(np.ones_like(out.array))
    if not isinstance(seed, Tensor) or seed.shape != out.shape:
        got = f"shape {tuple(seed.shape)}" if isinstance(seed, Tensor) else type(seed).__name__
        raise ShapeError("backward", f"a gradient Tensor of shape {tuple(out.shape)}", got)
    if not is_float(seed.dtype):
        raise DTypeError("backward", "a floating-point gradient", seed.dtype.name)
    return seed


Tensor.backward = _backward  # type: ignore[assignment, method-assign]  # declared in the stub of methods
