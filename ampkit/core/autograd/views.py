"""Views: which tensors share memory, so that a change in place of one reaches the gradients of all of them.

An op with `view=True` links its output to its input. When a recorded result then overwrites a view, the tensor that the
view was taken from gets a new edge: its gradient flows as before, except that of the overwritten elements, which flows
to the new values. Every other view of that memory is recorded again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import DType, bool_
from ampkit.base.errors import StateError

from ..capture.recorder import recorders
from ..tensor import Edge, Tensor
from . import hooks
from .accumulate import is_dense
from .grad_mode import enable_grad, grad_scope
from .node import Node, alias
from .traced_array import run, stands_for

# Called with a tensor that is about to change in place, while it still has its values.
before_change: list[Callable[[Tensor], None]] = []


class Views:
    """How a tensor shares memory with others.

    parent, op, params, index: of a view, the tensor that it was taken from, and how: `op(parent, *params)`, of several
    outputs the one at `index`. op is None for one through which no gradient passes: taken in no_grad, or by a Function.
    children: weak references to the views that were taken of it.
    """

    __slots__ = ("children", "index", "op", "params", "parent")

    def __init__(self, parent: Tensor | None = None, op: Any = None, params: Any = (), index: int | None = None):
        self.parent, self.op, self.params, self.index = parent, op, params, index
        self.children: list[weakref.ref[Tensor]] = []


def link(parent: Tensor, child: Tensor, op: Any, params: Any, index: int | None = None) -> None:
    """Note that `child` is output `index` of the view op `op(parent, *params)`, unless it had to be copied."""
    array = parent._array  # whose elements may be computed later
    if not array.flags.c_contiguous and not np.may_share_memory(child._array, array):  # a reshape that has to copy
        return
    child._version_counter = parent._version_counter
    edge = parent._edge
    differentiable = edge is None or grad_scope().value
    child._view_links = Views(parent, op if differentiable else None, params, index)
    if edge is None or edge[0] is not None:  # a leaf that requires grad changes in no_grad only, off the tape
        _children(parent).append(weakref.ref(child))


def share(source: Tensor, made: Tensor) -> None:
    """Note that `made`, with a place of its own on the tape, shows the memory of `source`."""
    made._version_counter = source._version_counter
    views = source._view_links
    if views is not None and views.parent is not None:
        made._view_links = Views(views.parent)
        _children(views.parent).append(weakref.ref(made))
    elif source._tape_node is not None:
        source.exposed()


def placed_at(tensor: Tensor, edge: Edge) -> Tensor:
    """The memory of `tensor`, which may be a leaf, as a tensor whose gradient flows along `edge`.

    It may change in place, which shows in both; the tape of `tensor` knows nothing of it.
    """
    made = alias(tensor.array, edge)
    made._version_counter = tensor._version_counter
    made.exposed()
    return made


def _children(parent: Tensor) -> list[weakref.ref[Tensor]]:
    if parent._view_links is None:
        parent._view_links = Views()
    children = parent._view_links.children
    if len(children) >= 8 and not len(children) & (len(children) - 1):  # at each power of two: constant time per view
        children[:] = [child for child in children if child() is not None]
    return children


def is_alone(tensor: Tensor) -> bool:
    """Whether no other tensor shares the memory of `tensor`, the result of an op, and nobody was handed its array."""
    views = tensor._view_links
    alone = views is None or (views.parent is None and not any(child() is not None for child in views.children))
    return alone and len(tensor._version_counter) == 1


def store_row_major(tensor: Tensor, ordered: Any) -> bool:
    """Store in row-major order a result whose kernel chose another order of the axes. -> whether it is done.

    ordered: a new array of its elements in that order, in any shape, which it takes over. Nothing is changed where
    another tensor shares the memory. What the tape saved stays as it was.
    """
    if not _has_chosen_order(tensor) or not is_alone(tensor) or not ordered.flags.c_contiguous:
        return False
    before = tensor.array
    tensor.array, tensor._cast_copies = ordered.reshape(before.shape), None
    for recorder in recorders:
        recorder.moved(tensor, before)
    return True


def fits_row_major(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether `tensor` could be viewed in `shape` if its kernel had chosen row-major order."""
    stand_in = _row_major_stand_in(tensor)
    return stand_in is not None and np.may_share_memory(stand_in.reshape(shape), stand_in)


def _row_major_stand_in(tensor: Tensor) -> Any:
    # Memory of one byte per element, never written.
    views = tensor._view_links
    if views is None or views.parent is None:
        return np.empty(tensor.array.shape, np.int8) if _has_chosen_order(tensor) else None
    parent = _row_major_stand_in(views.parent)
    return None if parent is None or views.op is None else _apply_view_to_array(parent, views)


def _has_chosen_order(tensor: Tensor) -> bool:
    return type(tensor._version_counter) is list and is_dense(tensor.array)  # versions of results are plain lists


def move(tensor: Tensor, edge: Edge | None) -> None:
    """Give `tensor`, whose values have changed, a new edge, and record again the tensors that share its memory.

    edge: where the gradient of the new values goes; None for constants.
    """
    views = tensor._view_links
    if views is None or views.parent is None:
        _set_edge(tensor, edge or (Node(_OVERWRITE, (tensor._tape_edge, None), (), None), 0, *_shape_and_dtype(tensor)))
    elif edge is not None:
        _set_edge(tensor, edge)
    changed, at = {id(tensor)} if edge is not None else set(), tensor
    while (links := at._view_links) is not None and (parent := links.parent) is not None:
        taken = Views(None, links.op, links.params, links.index)  # without the parent, whose node this is
        _set_edge(parent, (Node(_OVERWRITE, (parent._tape_edge, edge), (), taken), 0, *_shape_and_dtype(parent)))
        at, edge = parent, parent._tape_edge
        changed.add(id(at))
    with enable_grad():
        for view in _views_below(at, changed):
            links = view._view_links
            if links is not None and links.op is not None and (view._tape_edge is None or not view.is_leaf):
                assert links.parent is not None
                _set_edge(view, _apply_view(links.parent, links)._tape_edge)


def _shape_and_dtype(tensor: Tensor) -> tuple[tuple[int, ...], DType]:
    return tensor.array.shape, tensor.array.dtype


def _set_edge(tensor: Tensor, edge: Edge | None) -> None:
    before, tensor._tape_edge = tensor._tape_node, edge
    if before is not None:
        hooks.move_retained(tensor, before)


def _views_below(tensor: Tensor, known: set[int]) -> Iterator[Tensor]:
    # The views of a tensor and the views of those, except the known ones, whose edges are right already.
    for reference in tensor._view_links.children if tensor._view_links is not None else ():
        view = reference()
        if view is not None:
            if id(view) not in known:
                yield view
            yield from _views_below(view, known)


def become_view(tensor: Tensor, made: Tensor) -> None:
    """Make `tensor` what the view `made` of it is: with its axes, and in its place on the tape."""
    if made is tensor:
        return
    views = made._view_links
    assert views is not None
    stand_in = hand_over(tensor)
    tensor.array, tensor._cast_copies, tensor._tape_edge = made.array, None, made._tape_edge
    tensor._view_links = Views(stand_in, views.op, views.params, views.index)
    _children(stand_in).append(weakref.ref(tensor))


def hand_over(tensor: Tensor) -> Tensor:
    """A new tensor that replaces `tensor` as the parent of its views and on the tape. -> the new tensor."""
    stand_in, links = Tensor(tensor.array), tensor._view_links
    stand_in._tape_edge, stand_in._version_counter, stand_in._view_links = (
        tensor._tape_edge,
        tensor._version_counter,
        links,
    )
    for reference in links.children if links is not None else ():
        view = reference()
        if view is not None and view._view_links is not None:
            view._view_links.parent = stand_in
    if links is not None and links.parent is not None:
        children = _children(links.parent)
        children[:] = [weakref.ref(stand_in) if child() is tensor else child for child in children]
    tensor._view_links = None
    return stand_in


class _Overwrite:
    """The op of a node that overwrote the elements which a view shows, or all of them, with other values.

    Its edges: where the gradient of the tensor went before, and where that of the new values goes.
    """

    name = "overwrite"

    def needs(self, node: Node) -> tuple[None, None]:
        return None, None

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> tuple[Any, Any]:
        (dy,), views = dys, node.params
        if views is None:
            return backends.backend_of(dy).zeros(dy.shape, dy.dtype), None
        before = None if node.edges[0] is None else np.array(dy, order="C", like=dy)
        if before is not None:
            _apply_view_to_array(before, views)[...] = 0
        return before, None if node.edges[1] is None else _apply_view_to_array(dy, views)

    def replay(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> tuple[Any, Any]:
        (dy,), views = dys, node.params
        kept = backends.backend_of(dy.tensor.array).zeros(dy.shape, bool_)
        if views is not None:
            kept[...] = True
            _apply_view_to_array(kept, views)[...] = False
        values = None if node.edges[1] is None else run(_apply_view, dy, views)
        return run(stands_for[np.where], kept, dy, 0.0), values


def _apply_view(tensor: Tensor, views: Views) -> Tensor:
    made = views.op.signature.call(views.op, (tensor,), views.params)
    return made if views.index is None else made[views.index]


def _apply_view_to_array(array: Any, views: Views) -> Any:
    # The view of a plain array.
    out = views.op.signature.call(views.op.forward.reference.run, (array,), views.params)[0]
    return out if views.index is None else out[views.index]


_OVERWRITE = _Overwrite()


def is_writable(array: Any) -> bool:
    """Whether each element has memory of its own, which may be written; CuPy's broadcast views do not say so."""
    repeats = array.size and any(n > 1 and not stride for n, stride in zip(array.shape, array.strides, strict=True))
    return not repeats and getattr(array.flags, "writeable", True)


def need_changeable(tensor: Tensor) -> None:
    """Raise StateError for a tensor that must not change in place.

    That is memory that is read-only or shows an element several times. Where operations are recorded it is also a leaf
    that requires grad, a view of one, and a view that was taken in no_grad of a tensor on the tape.
    """
    if not is_writable(tensor.array):
        raise StateError("in-place change", "memory that can be written", "read-only memory", "change a .clone()")
    if before_change:
        for notify in before_change:
            notify(tensor)
    if not grad_scope().value:
        return
    at: Tensor | None = tensor
    while at is not None:
        if at._tape_edge is not None and at.is_leaf:
            got = "a leaf that requires grad" if at is tensor else "a view of a leaf that requires grad"
            cure = "write it out of place, or use `with ampkit.no_grad():` on a leaf"
            raise StateError("in-place change", "a tensor that is no leaf, or requires no grad", got, cure)
        views, at = at._view_links, None if at._view_links is None else at._view_links.parent
        if at is not None and at._tape_edge is not None and views is not None and views.op is None:
            raise _no_gradient_passes()


def need_views_on_tape(tensor: Tensor) -> None:
    """Raise StateError for a view through which no gradient passes: recorded values must not be written to it."""
    at = tensor._view_links
    while at is not None and at.parent is not None:
        if at.op is None:
            raise _no_gradient_passes()
        at = at.parent._view_links


def _no_gradient_passes() -> StateError:
    got = "a view that was taken in no_grad, or by a Function"
    cure = "take the view where operations are recorded, or change a .clone()"
    return StateError("in-place change", "a view through which gradients pass", got, cure)
