"""Gradients that a backward pass adds up and writes to leaves, traced or not, as observers see it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ampkit.backends.launch_queue import queue
from ampkit.base import observe
from ampkit.base.errors import ShapeError

from ..casts import is_traced
from ..storage import overlapping
from ..tensor import Tensor
from .accumulate import SOLE, is_dense, sum_gradients
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


def is_sole_reference(gradients: list[Any], place: int) -> bool:
    """Whether nothing but the list and one variable of the caller refers to the array at `place`, or to its memory.

    Then it can be kept without a copy. False for an array that is not writeable, for one whose elements are not dense,
    or a small part of memory that it would keep alive, and on devices whose arrays are not NumPy's.
    """
    array = gradients[place]
    if type(array) is not np.ndarray or not array.flags.writeable or not is_dense(array):
        return False
    count = sys.getrefcount(gradients[place])
    if queue.waiting:
        count -= queue.held.references(array)  # which it drops before anything else reads or writes the memory
    if count != SOLE + 2:  # the caller's variable and the one here
        return False
    owner = _sole_owner(array)
    return owner is not None and 0 <= owner.nbytes - array.nbytes <= _SPARE_BYTES


def owned_parts(edges: Any, gradients: list[Any]) -> set[int]:
    """The places of gradients that leaves can keep without a copy, as parts of one array that nothing else refers to.

    So are those of `cat` of rows. The parts do not overlap: what changes one of them changes no other. Each keeps the
    whole array alive, so there are none where less than half of that memory is theirs.
    """
    memory = getattr(gradients[0], "base", None) if len(gradients) > 1 else None
    if memory is None or getattr(gradients[1], "base", None) is not memory or queue.waiting:
        return set()
    places = [place for place in range(len(gradients)) if gradients[place] is not None]
    if any(getattr(gradients[place], "base", None) is not memory for place in places):
        return set()
    counts = {sys.getrefcount(gradients[place]) for place in places}
    if counts != {SOLE} or not isinstance(memory, np.ndarray) or not memory.flags.writeable:
        return set()
    owner = _sole_owner(memory) if sys.getrefcount(memory) == SOLE + len(places) else None
    overlaps = dict(zip(places, overlapping([gradients[place] for place in places]), strict=True))
    first = {id(edges[place][0]): place for place in reversed(places) if edges[place] is not None}  # of each leaf
    found = {place for place in first.values() if not overlaps[place] and _keeps(edges[place][0], gradients[place])}
    kept = sum([gradients[place].nbytes for place in found])
    return found if owner is not None and 2 * kept >= owner.nbytes else set()


def _keeps(leaf: Any, gradient: Any) -> bool:
    own = isinstance(leaf, Tensor) and leaf._grad is None and leaf._can_keep(gradient)
    return own and gradient.flags.writeable and is_dense(gradient)


def _sole_owner(memory: Any) -> Any:
    # The array that owns the memory, if nothing refers to it but, at last, the base of `memory`; else None.
    while isinstance(memory.base, np.ndarray):
        if sys.getrefcount(memory.base) != SOLE:
            return None
        memory = memory.base
    return memory if memory.base is None else None


_SPARE_BYTES = 1 << 13  # what an allocator adds for alignment and by rounding to pages
