"""`backward` and `grad`: gradients of tensors on the tape, by a BackwardPass with autocast off.

The dtypes were decided in the forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base import observe
from ampkit.base.dtypes import is_float
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError, switch

from .. import fp_errors, policy
from ..casts import cast
from ..dispatch.batching import boundary, draws
from ..dispatch.batching.array import Level, UnmappedError
from ..tensor import Edge, Tensor
from .accumulate import is_dense
from .accumulate_grad import AccumulateGrad
from .backward_pass import BackwardPass, edge_key
from .grad_mode import RECORDING, _recording, no_grad
from .node import GradientEdge, Node, alias
from .reachable import paths_to
from .saved import keeps_arrays
from .traced_array import TracedArray, plain, run, stands_for
from .views import is_writable


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Tensor | GradientEdge | Sequence[Tensor | GradientEdge] | None = None,
) -> None:
    """Add the gradients of `tensors` (times `grad_tensors`, each 1 for a single element) to `.grad` of every leaf.

    retain_graph=True keeps what the nodes saved, so that a second backward can follow. create_graph=True records the
    gradients, so that `.grad` can be differentiated in its turn, and retains the graph unless told otherwise. inputs:
    the only tensors whose `.grad` is written, leaves or not; of a GradientEdge the hooks run. grad_variables is an old
    name of grad_tensors.
    Raises StateError if a tensor is not on the tape or its graph was used, ShapeError for a missing or misfit gradient.
    """
    create_graph = switch("backward", "create_graph", create_graph)
    retain_graph = None if retain_graph is None else switch("backward", "retain_graph", retain_graph)
    targets = None if inputs is None else [_target(item) for item in several(inputs)]
    if targets == []:
        raise StateError("backward", "inputs that are Tensors and require grad", "none")
    outs = several(tensors)
    seeds = _seeds("backward", "grad_tensors", outs, grad_variables if grad_tensors is None else grad_tensors)
    retain = create_graph if retain_graph is None else retain_graph
    _run_backward(outs, seeds, None, traced=create_graph, retain=retain, inputs=targets)


def _target(item: Any) -> Tensor | GradientEdge:
    if isinstance(item, GradientEdge):
        leaf = item.node.variable if isinstance(item.node, AccumulateGrad) else None
        return item if leaf is None else leaf
    if not isinstance(item, Tensor) or not item.requires_grad:
        raise StateError("backward", "inputs that are Tensors and require grad", "one that is not")
    return item


def _backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | GradientEdge | Sequence[Tensor | GradientEdge] | None = None,
) -> None:
    """Add the gradient of this tensor (times `gradient`) to `.grad` of every leaf; see `ampkit.autograd.backward`."""
    if retain_graph is None and create_graph is False and inputs is None:  # most calls, with nothing to check
        _run_backward((self,), (gradient,), None, traced=False, retain=False)
        return
    backward(self, None if gradient is None else (gradient,), retain_graph, create_graph, inputs=inputs)


def _seeds(where: str, what: str, outs: tuple[Any, ...], given: Any) -> tuple[Any, ...]:
    seeds = (None,) * len(outs) if given is None else several(given)
    if len(seeds) != len(outs):
        raise ArgumentError(where, f"{len(outs)} {what}", f"{len(seeds)}")
    return seeds


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | GradientEdge | Sequence[Tensor | GradientEdge],
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
    no scale tag. is_grads_batched=True: `grad_outputs` have a leading axis, and so has what is returned; the passes run
    at once, by `vmap`. Raises ArgumentError for only_inputs=False, which is not here.
    """
    if not switch("grad", "only_inputs", only_inputs):
        raise ArgumentError("grad", "only_inputs=True", "only_inputs=False")
    if switch("grad", "is_grads_batched", is_grads_batched):
        options: Any = (create_graph, only_inputs, allow_unused, False, materialize_grads)
        return _batched(several(outputs), inputs, grad_outputs, retain_graph, options)
    create_graph = switch("grad", "create_graph", create_graph)
    materialize_grads = switch("grad", "materialize_grads", materialize_grads)
    may_be_unused = materialize_grads if allow_unused is None else switch("grad", "allow_unused", allow_unused)
    if materialize_grads and not may_be_unused:
        raise ArgumentError("grad", "allow_unused=True, or left out, with materialize_grads=True", "allow_unused=False")
    outs, ins = several(outputs), several(inputs)
    seeds = _seeds("grad", "grad_outputs", outs, grad_outputs)
    wanted = [_wanted_edge(item, position) for position, item in enumerate(ins)]
    if not wanted:
        raise ArgumentError("grad", "at least one input", "none")
    retain = create_graph if retain_graph is None else switch("grad", "retain_graph", retain_graph)
    backward_pass = _run_backward(outs, seeds, wanted, create_graph, retain)
    found = [backward_pass.found.get((backward_pass.wanted or {})[edge_key(edge)]) for edge in wanted]
    if observe.observers:
        for gradient, item in zip(found, ins, strict=True):
            if gradient is not None and isinstance(item, Tensor):
                observe.notify_end("grad", (plain(gradient),), item, observe.RETURN, node=item._tape_node)
    if materialize_grads:
        pairs = zip(ins, found, strict=True)
        return tuple([_zeros(i, create_graph) if f is None else _given(f, i, create_graph) for i, f in pairs])
    if not may_be_unused and any(f is None for f in found):
        cure = "pass allow_unused=True for None there"
        raise StateError("grad", "outputs that depend on every input", "an input that none depends on", cure)
    return tuple([None if f is None else _given(f, i, create_graph) for i, f in zip(ins, found, strict=True)])


def _batched(
    outs: tuple[Any, ...], inputs: Any, grad_outputs: Any, retain: bool | None, options: Any
) -> tuple[Tensor | None, ...]:
    # The passes of all rows of `grad_outputs` at once; where a backward reads values, one after the other.
    if foreign := [out for out in outs if not isinstance(out, Tensor)]:
        got = f"an object of type {type(foreign[0]).__name__}"
        raise DTypeError("grad", "a Tensor or a sequence of them as outputs", got)
    if not outs:
        raise ArgumentError("grad", "at least one output with is_grads_batched=True", "none")
    seeds = _seeds("grad", "grad_outputs", outs, grad_outputs)
    if foreign := [seed for seed in seeds if seed is not None and not isinstance(seed, Tensor)]:
        raise DTypeError("grad", "Tensors as grad_outputs", f"an object of type {type(foreign[0]).__name__}")
    rows = {len(seed) for seed in seeds if seed is not None and seed.ndim}
    for out, seed in zip(outs, seeds, strict=True):
        if seed is None or len(rows) != 1 or 0 in rows or seed.shape[1:] != out.shape:
            got = "None" if seed is None else f"shape {tuple(seed.shape)}"
            raise ShapeError("grad", f"grad_outputs of shape [batch, *{tuple(out.shape)}], of one batch", got)
    count = rows.pop()
    try:
        made = _at_once(outs, inputs, seeds, count, options)
    except UnmappedError:
        return _one_by_one(outs, inputs, seeds, count, retain, options)
    if not (options[0] if retain is None else retain):
        _free(outs, several(inputs))
    return made


def _at_once(
    outs: tuple[Any, ...], inputs: Any, seeds: Any, count: int, options: tuple[Any, ...]
) -> tuple[Tensor | None, ...]:
    level = Level(count)
    try:
        with draws.level(level):
            given = [boundary.enter(seed, 0, level) for seed in seeds]
            found = grad(outs, inputs, given, True, *options)
            return tuple([None if one is None else boundary.leave(one, 0, level) for one in found])
    finally:
        level.open = False


def _free(outs: Sequence[Tensor], inputs: Sequence[Any]) -> None:
    # What the nodes saved that a pass from `outs` to `inputs` visits.
    ends = [_wanted_edge(item, position)[0] for position, item in enumerate(inputs)]
    nodes = {end for end in ends if isinstance(end, Node)}
    starts = [target(out)[0] for out in outs]
    found = paths_to(nodes, {id(end) for end in ends}, [start for start in starts if isinstance(start, Node)])
    for node in () if found is None else [node for node, visited in found.items() if visited]:
        if keeps_arrays(node.saved, node.params):
            node.saved = node.packed = None
        else:
            node.used = True


def _one_by_one(
    outs: tuple[Any, ...], inputs: Any, seeds: Any, count: int, retain: bool | None, options: tuple[Any, ...]
) -> tuple[Tensor | None, ...]:
    found = []
    for row in range(count):
        given = [None if seed is None else seed[row] for seed in seeds]
        found.append(grad(outs, inputs, given, retain if row == count - 1 else True, *options))
    return tuple([_stacked(column, options[0]) for column in zip(*found, strict=True)])


def _stacked(column: tuple[Tensor | None, ...], traced: bool) -> Tensor | None:
    given = [one for one in column if one is not None]
    if len(given) < len(column):
        return None
    if traced:
        return run(stands_for[np.stack], [TracedArray(one) for one in given]).tensor
    with backends.device_guard(given[0].array):
        return Tensor(np.stack([one.array for one in given]))


def _wanted_edge(item: Any, position: int) -> Edge:
    if isinstance(item, GradientEdge):
        return item._tape_edge
    if not isinstance(item, Tensor) or item._tape_edge is None:
        raise StateError("grad", "inputs that are Tensors and require grad", f"input {position} that does not")
    return item._tape_edge


def _given(gradient: Any, item: Tensor | GradientEdge, traced: bool) -> Tensor:
    # In memory of its own, C-contiguous or in the order of axes of `item`, so that `view` works on it where it works on
    # `item`: broadcasting and transposing leave views behind.
    array = gradient.tensor.array if traced else gradient
    in_order = array.flags.c_contiguous
    if not in_order and isinstance(item, Tensor):
        in_order = _order(array) == _order(item.array) and is_dense(array)
    if in_order and is_writable(array):
        return gradient.tensor if traced else Tensor(gradient)
    edge = gradient.tensor._tape_edge if traced else None
    with backends.device_guard(array):
        copied = array.copy()
    return Tensor(copied) if edge is None else alias(copied, edge)


def _order(array: Any) -> list[int]:
    return sorted(range(array.ndim), key=array.strides.__getitem__)


def _zeros(item: Tensor | GradientEdge, requires_grad: bool) -> Tensor:
    if isinstance(item, GradientEdge):
        cure = "leave materialize_grads out, or pass the tensor"
        raise StateError("grad", "tensors with materialize_grads=True", "a GradientEdge, of unknown shape", cure)
    assert item._tape_edge is not None
    return Tensor(backends.backend_of(item.array).zeros(*item._tape_edge[2:]), requires_grad)


def several(items: Any) -> tuple[Any, ...]:
    """One Tensor, or a sequence of them, as a tuple. Raises DTypeError for what is neither."""
    if isinstance(items, (Tensor, GradientEdge)):
        return (items,)
    if type(items) is not tuple and (not isinstance(items, Iterable) or isinstance(items, np.ndarray)):
        raise DTypeError("backward", "a Tensor or a sequence of them", f"a {type(items).__name__}")
    return tuple(items)


def _run_backward(
    outs: tuple[Tensor, ...], seeds: tuple[Any, ...], wanted: Any, traced: bool, retain: bool, inputs: Any = None
) -> BackwardPass:
    backward_pass = BackwardPass(wanted, traced, retain, inputs)
    token = enter_pass(traced)
    try:
        for out, seed in zip(outs, seeds, strict=True):
            if backends.gpus is not None:
                backends.gpus.follow(getattr(out, "array", None))
            start = _seed(out, seed)
            if observe.observers:
                observe.notify_end("backward", (out.array,), start.array, observe.START, tag=start._scale_tag)
            backward_pass.add(*target(out), TracedArray(start) if traced else start.array, start._scale_tag)
        backward_pass.run()
    except MemoryError as error:
        raise backends.out_of_memory_error([out.array for out in outs], error) from None
    finally:
        leave_pass(token)
    return backward_pass


def enter_pass(traced: bool) -> tuple[Any, ...]:
    """Begin a pass over the tape, backward or forward: autocast and floating-point warnings off, recording if `traced`.

    A pass makes the device of each gradient the current one, and `leave_pass`, which takes what this returns, the
    caller's again. Two functions, since every backward calls them and a context manager takes longer.
    """
    device = None if backends.gpus is None else backends.gpus.use(None)
    return policy.enter(None), fp_errors.push_ignore(), _recording.replace(RECORDING[traced]), device


def leave_pass(token: tuple[Any, ...]) -> None:
    """Restore what `enter_pass` changed."""
    region, errors, recording, device = token
    _recording.restore(recording)
    fp_errors.pop_ignore(errors)
    policy.leave(region)
    if device is not None:
        backends.gpus.leave(device)


def target(out: Tensor) -> tuple[Any, int]:
    assert out._tape_edge is not None
    return out._tape_edge[:2]


def _seed(out: Tensor, seed: Tensor | None) -> Tensor:
    if not isinstance(out, Tensor) or out._tape_edge is None:
        cure = "is every input detached, or does the forward run in no_grad?"
        raise StateError("backward", "a tensor on the tape", "one that requires no grad", cure)
    if seed is None:
        if out.array.size != 1:
            cure = "reduce it, or pass the gradient: y.backward(dy)"
            raise ShapeError("backward", "a tensor of one element", f"shape {tuple(out.shape)}", cure)
        return Tensor(np.ones_like(out.array))
    if not isinstance(seed, Tensor) or seed.array.shape != out.array.shape:
        got = f"shape {tuple(seed.shape)}" if isinstance(seed, Tensor) else type(seed).__name__
        raise ShapeError("backward", f"a gradient Tensor of shape {tuple(out.shape)}", got)
    return seed if is_float(seed.array.dtype) else Tensor(cast(seed.array, out.array.dtype))  # integers, as in PyTorch


def _call_node(self: Node, *grad_outputs: Any) -> Any:
    """The gradients of the node's inputs, given those of its outputs: one Tensor, or a tuple; None for no gradient.

    It records nothing and frees nothing. Raises TypeError for too few or too many, StateError if its graph was used.
    """
    if len(grad_outputs) != len(self.outputs):
        raise TypeError(f"{self.name()} expected {len(self.outputs)} arguments, got {len(grad_outputs)} instead")
    made: Any = BackwardPass([edge for edge in self.edges if edge is not None], traced=False, retain=True)
    with no_grad():
        found = made.gradients_of(self, [None if dy is None else dy.array for dy in grad_outputs])
    given = [None if one is None else Tensor(one) for one in found]
    return given[0] if len(given) == 1 else tuple(given)


Node.__call__ = _call_node  # type: ignore[method-assign]  # declared there
Tensor.backward = _backward  # type: ignore[assignment, method-assign]  # declared in the stub of methods
