"""Gradients reduced to the shape and dtype of the input they belong to, and summed."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import LOW, NARROW, DType, accumulator, float32, float64, name_of
from ampkit.base.errors import DTypeError, ShapeError

from ..blocked_sum import blocked_sum
from ..casts import cast, cast_unread, is_traced
from ..dispatch import primitive

_sample = [np.empty(1)]
SOLE = sys.getrefcount(_sample[0])  # of an object that one list alone refers to, which differs between Pythons


def reduce_to_input(node: Any, gradient: Any, shape: tuple[int, ...], *dtypes: DType | None) -> Any:
    """`gradient` summed over the axes that broadcasting from `shape` added, then cast to each of `dtypes` in turn.

    The sum is carried in the accumulator dtype. Raises ShapeError, naming the node's op, for any other shape.
    """
    if type(gradient) is not np.ndarray and isinstance(gradient, (np.generic, float, int)):
        # NumPy's arithmetic turns a 0-d array into a scalar.
        gradient = np.asarray(gradient, None if isinstance(gradient, np.generic) else float64)
    if getattr(gradient, "shape", None) != shape:
        lead = _lead(node, gradient, shape)
        axes = (*range(lead), *(i + lead for i, n in enumerate(shape) if n == 1 and gradient.shape[i + lead] != 1))
        gradient = (sum_over.reference.run if is_traced(gradient) else sum_over.launch)(gradient, axes).reshape(shape)
    for dtype in dtypes:
        if dtype is not None and gradient.dtype != dtype:
            gradient = cast_unread(gradient, dtype)
    return gradient


@primitive("reduction.reductions")
def sum_over(gradient: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`, which stay with length 1."""
    return blocked_sum(cast(gradient, accumulator(gradient.dtype)), axes, True)


sum_over.writes = False


def join_repeated(edges: Any, gradients: list[Any]) -> None:
    """Replace the gradients of inputs that are one 16-bit tensor by their sum, in the accumulator dtype, rounded once.

    It takes the place of the first one. `cat([w] * 3000)`: added one by one in 16 bits, they would stop growing.
    """
    places: dict[Any, list[int]] = {}
    for place, (edge, gradient) in enumerate(zip(edges, gradients, strict=False)):
        if edge is None or is_traced(gradient) or getattr(gradient, "shape", None) != edge[2]:
            continue
        if edge[3] in LOW:
            places.setdefault((id(edge[0]), edge[1]), []).append(place)
    for first, *others in places.values():
        if others:
            gradients[first] = cast(_wide_sum(gradients, first, others), edges[first][3])


def _wide_sum(gradients: list[Any], first: int, others: list[int]) -> Any:
    total = cast(gradients[first], float32)
    total = total.copy() if total is gradients[first] else total
    for place in others:
        other = cast(gradients[place], float32)
        if type(other) is type(total):
            total += other
        else:  # of each sample of a vmap, and one that they share
            total = total + other
        gradients[place] = None
    return total


def _lead(node: Any, gradient: Any, shape: tuple[int, ...]) -> int:
    # The number of leading axes that broadcasting added.
    found = getattr(gradient, "shape", None)
    lead = -1 if found is None else len(found) - len(shape)
    if found is None or lead < 0 or any(n not in (1, m) for n, m in zip(shape, found[lead:], strict=True)):
        got = type(gradient).__name__ if found is None else str(tuple(found))
        raise ShapeError(f"{node.op.name}_backward", f"a gradient of the input's shape {tuple(shape)}", got)
    return lead


def is_dense(array: Any) -> bool:
    """Whether the elements fill a range of memory, each once, in any order of the axes."""
    if array.flags.c_contiguous:
        return True
    expected = array.itemsize
    for stride, length in sorted(zip(array.strides, array.shape, strict=True)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def sum_gradients(held: Any, gradient: Any, read: bool = True) -> Any:
    """The sum of two gradients of one shape, traced if one of them is. read: whether the caller reads its elements."""
    if held.dtype in NARROW:
        cure = "cast it once: x = x.to(ampkit.bfloat16)"
        raise DTypeError("backward", "one gradient", f"several to add in {name_of(held.dtype)}", cure)
    if is_traced(held) or is_traced(gradient):
        return sum_of_two.reference.run(held, gradient)
    return sum_of_two(held, gradient) if read else sum_of_two.launch(held, gradient)


@primitive("autograd.accumulate")
def sum_of_two(held: Any, gradient: Any) -> Any:
    """The sum of two gradients of one shape, in the dtype of the first."""
    # In the accumulator dtype, rounded once. NumPy computes the same, by slow conversions of single elements.
    dtype = held.dtype
    wide = accumulator(dtype)
    total = cast(held, wide) + cast(gradient, wide)
    return cast(np.asarray(total) if isinstance(total, np.generic) else total, dtype)


sum_of_two.writes = False


@primitive("autograd.accumulate")
def add_to(held: Any, gradient: Any) -> None:
    """Add a gradient to memory that holds one of its shape and dtype, in the accumulator dtype, rounded once."""
    if held.dtype in LOW:
        held[...] = sum_of_two(held, gradient)
    else:
        held += gradient


add_to.writes = False  # who calls it has had computed what reads that memory


def sum_waits(held: Any, gradient: Any) -> bool:
    """Put the sum of two gradients in the place of the first one, a Tensor, and let it wait. -> whether it does.

    It may where the first one waits too, and nothing else refers to it: then nobody sees that its memory is another.
    """
    array = held._array
    if is_traced(gradient) or held._edge is not None or not queue.held.holds(array) or array.dtype != gradient.dtype:
        return False
    if sys.getrefcount(held._array) - queue.held.references(array) != SOLE + 1:  # the variable here
        return False
    held._array = sum_of_two.launch(array, gradient)
    return True
