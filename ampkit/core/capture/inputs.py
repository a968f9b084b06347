"""The tensors among a recorded step's arguments.

A recording reads its arguments in memory of its own, which each launch fills. Where the step changes an argument in
place, a launch writes it back. What no copy can stand for makes a step run eagerly: an argument's gradient, its hooks,
the graph that it is on, memory that it shares with something else that the step changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from ... import backends
from ...backends import Array
from ..autograd import hooks
from ..tensor import Tensor
from .guards import Guards
from .host_reads import MAX_ITEMS

MOST_TIMES, FEW = 8, 1 << 20  # memory that a copy may take with the strides of an argument: so often its own, or bytes
SHARES = "it changes memory that an argument shares"


def key_of(tensor: Tensor, sizes: bool = True) -> tuple[Any, ...]:
    """What a recording depends on of an argument. Without sizes: how many axes it has."""
    hooked = tensor.requires_grad and bool(hooks.registered(tensor))
    of_any_size = tensor.dtype, tensor.device, tensor.requires_grad, hooked
    if not sizes:
        return tensor.ndim, *of_any_size
    array = tensor._array
    layout = None if array.flags.c_contiguous else tuple(_steps(array).items())
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


class StaticInputs:
    """Copies of the arguments with their strides, which decide what is a view; one for a tensor that is given twice."""

    def __init__(self, given: list[Tensor]):
        made: dict[int, tuple[Tensor, Array]] = {}
        for tensor in given:
            if id(tensor) not in made:
                array = tensor.array
                buffer = _buffer_like(array)
                held = buffer if buffer.shape == array.shape else np.broadcast_to(buffer, array.shape)
                made[id(tensor)] = Tensor(held, tensor.requires_grad), buffer
        self.tensors = [made[id(tensor)][0] for tensor in given]
        self._buffers = [made[id(tensor)][1] for tensor in given]
        self._versions = [tensor._version for tensor in self.tensors]
        self.fill(given)

    def fill(self, given: list[Tensor]) -> None:
        """Write the values of the arguments to the copies."""
        for buffer, tensor in zip(self._buffers, given, strict=True):
            array = tensor.array
            backends.backend_of(buffer).copy(buffer, array if buffer.shape == array.shape else array[_once(array)])

    def changed(self) -> list[int]:
        """The places of those that were changed in place."""
        return _changed(self.tensors, self._versions)


def _once(array: Array) -> tuple[slice, ...]:
    # What of an array is in memory: the first element of axes along which it repeats.
    return tuple(
        [slice(None) if step or n <= 1 else slice(1) for n, step in zip(array.shape, array.strides, strict=True)]
    )


def _steps(array: Array) -> dict[int, int]:
    # The axes along which elements lie apart in memory, the longest steps first, with these in elements.
    apart = [i for i, (n, step) in enumerate(zip(array.shape, array.strides, strict=True)) if n > 1 and step]
    return {i: array.strides[i] // array.itemsize for i in sorted(apart, key=lambda i: -array.strides[i])}


def _has_buffer(array: Array) -> bool:
    # Whether memory with the strides of an array is made of whole rows, and not much more than the elements need.
    if array.flags.c_contiguous:
        return True
    steps = _steps(array)
    if not steps:
        return True
    lengths, whole = [array.shape[i] for i in steps], [*steps.values(), 1]
    rows = [(whole[k] % whole[k + 1], whole[k] // whole[k + 1]) for k in range(len(steps))]
    fits = all(rest == 0 and n >= least for (rest, n), least in zip(rows, [*lengths[1:], 1], strict=True))
    return fits and lengths[0] * whole[0] <= max(MOST_TIMES * prod(lengths), FEW // array.itemsize)


def _buffer_like(array: Array) -> Array:
    # Memory with the strides of an array, with one element along axes along which it repeats.
    backend = backends.backend_of(array)
    if array.flags.c_contiguous:
        return backend.empty(array.shape, array.dtype)
    steps = _steps(array)
    lengths, whole = [array.shape[i] for i in steps], [*steps.values(), 1]
    rows = [whole[k] // whole[k + 1] for k in range(len(steps))]
    made = backend.empty((*lengths[:1], *rows), array.dtype)
    made = made[(slice(None), *[slice(n) for n in lengths[1:]], 0)] if steps else made
    order = list(steps)
    made = made.transpose([order.index(i) for i in sorted(steps)])
    return made[tuple([slice(None) if i in steps else None for i in range(array.ndim)])]


def _changed(inputs: list[Tensor], versions: list[int]) -> list[int]:
    # The places of those that are changed since they had these versions.
    return [i for i, (tensor, old) in enumerate(zip(inputs, versions, strict=True)) if tensor._version != old]


class Before:
    """The arguments before an eager call."""

    def __init__(self, given: list[Tensor]):
        self._given, self._versions = given, [tensor._version for tensor in given]
        self._nodes = [tensor._tape_node for tensor in given]
        self._live = [is_live(node) for node in self._nodes]

    def why_eager(self, guards: Guards) -> str:
        """What the call did to them that no launch could do; "" for nothing."""
        if not all(_has_buffer(tensor._array) for tensor in self._given):
            return "an argument is a view of much more memory, or of the same memory in several places"
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
        return SHARES if shared.intersection(_changed(self._given, self._versions)) else ""


def shares(given: Iterable[Tensor], counters: dict[int, Any]) -> bool:
    """Whether an argument shares memory that has one of these version counters."""
    return bool(counters) and any(id(tensor._version_counter) in counters for tensor in given)


def is_live(node: Any) -> bool:
    """Whether no backward pass has used up the graph that ends in a node."""
    return node is not None and node.saved is not None and not node.used
