"""The tensors among a recorded step's arguments.

A recording reads its arguments in memory of its own, which each launch fills: copies in the layouts of the arguments,
one for a tensor that is given twice. Where the step changes an argument in place, a launch writes it back. What no copy
can stand for makes a step run eagerly: an argument's gradient, its hooks, the graph that it is on, memory that it
shares with something else that the step changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...backends import Array, format_casts
from ..autograd import hooks
from ..tensor import Tensor
from .guards import Guards
from .host_reads import MAX_ITEMS

SHARES = "it changes memory that an argument shares"


def key_of(tensor: Tensor, sizes: bool = True) -> tuple[Any, ...]:
    """What a recording depends on of an argument. Without sizes: how many axes it has."""
    hooked = tensor.requires_grad and bool(hooks.registered(tensor))
    of_any_size = tensor.dtype, tensor.device, tensor.requires_grad, hooked
    if not sizes:
        return tensor.ndim, *of_any_size
    array = tensor._array
    layout = None if array.flags.c_contiguous else array.strides
    values = array.tobytes() if _is_small_constant(array) else None
    return tensor.shape, layout, values, *of_any_size


def _is_small_constant(array: Array) -> bool:
    # Of the CPU, whose values a step for a GPU reads on the host, if at all.
    return isinstance(array, np.ndarray) and array.size <= MAX_ITEMS


def sharing(given: list[Tensor]) -> tuple[tuple[int, int, int], ...]:
    """For each argument that shares memory with an earlier one: its place, the first such, and where itself was first.

    () where none does.
    """
    memory: dict[int, int] = {}
    same: dict[int, int] = {}
    found = []
    for i, tensor in enumerate(given):
        first, itself = memory.setdefault(id(tensor._version_counter), i), same.setdefault(id(tensor), i)
        if first != i:
            found.append((i, first, itself))
    return tuple(found)


def copies_of(given: list[Tensor]) -> list[Tensor]:
    """Copies of the arguments, in the order of their axes in memory; the same for one that is given twice."""
    made: dict[int, Tensor] = {}
    for tensor in given:
        if id(tensor) not in made:
            made[id(tensor)] = Tensor(_copied(tensor.array), tensor.requires_grad)
    return [made[id(tensor)] for tensor in given]


def _copied(array: Array) -> Array:
    if array.flags.c_contiguous:
        return format_casts.copied(array)
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    made = format_casts.copied(array.transpose(order))
    return made.transpose([order.index(axis) for axis in range(array.ndim)])


def changed(inputs: list[Tensor], versions: list[int]) -> list[int]:
    """The places of those that are changed since they had these versions."""
    return [i for i, (tensor, old) in enumerate(zip(inputs, versions, strict=True)) if tensor._version != old]


class Before:
    """The arguments before an eager call."""

    def __init__(self, given: list[Tensor]):
        self._given, self._versions = given, [tensor._version for tensor in given]
        self._nodes = [tensor._tape_node for tensor in given]
        self._live = [is_live(node) for node in self._nodes]

    def why_eager(self, guards: Guards) -> str:
        """What the call did to them that no launch could do; "" for nothing."""
        for tensor, node, live in zip(self._given, self._nodes, self._live, strict=True):
            if guards.touches_gradient(tensor):
                return "it reads or writes the gradient of an argument"
            if live and not is_live(node):
                return "its backward pass goes on beyond an argument"
            if tensor._tape_node is not node and is_live(tensor._tape_node):
                return "an argument is on the tape after it"
            if tensor.requires_grad and hooks.registered(tensor):
                return "an argument has hooks"
            if (
                guards.reads_host_memory
                and isinstance(tensor._array, np.ndarray)
                and not _is_small_constant(tensor._array)
            ):
                return "it reads values of the CPU, where an argument is"
        shared = {place for i, first, itself in sharing(self._given) if itself != first for place in (i, first)}
        return SHARES if shared.intersection(changed(self._given, self._versions)) else ""


def shares(given: Iterable[Tensor], counters: dict[int, Any]) -> bool:
    """Whether an argument shares memory that has one of these version counters."""
    return bool(counters) and any(id(tensor._version_counter) in counters for tensor in given)


def is_live(node: Any) -> bool:
    """Whether no backward pass has used up the graph that ends in a node."""
    return node is not None and node.saved is not None and not node.used
