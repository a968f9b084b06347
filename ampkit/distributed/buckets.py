"""Buckets: gradients of neighbouring parameters, averaged over ranks by one collective while backward goes on.

Parameters become ready in about the reverse of the order in which the model names them, and so the buckets are cut from
its end. Where an optimizer holds the parameters, a bucket is a range of its flat gradients and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import backends
from ..base.dtypes import Array, DType
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from ..optim.flat.arena import spans
from .process_group import ProcessGroup
from .reduction import ReduceOp


class Bucket:
    """Parameters of one device and dtype. pending: those whose gradients are not complete in this backward pass."""

    def __init__(self, parameters: Sequence[Tensor]):
        self.parameters = list(parameters)
        self.pending: set[int] = set()
        self._works: list[tuple[Any, Array, list[Tensor]]] = []

    def begin(self) -> None:
        """Expect the gradients of all parameters."""
        self.pending = {id(parameter) for parameter in self.parameters}
        self._works = []

    def launch(
        self, group: ProcessGroup, wire: DType | None, first_nonfinite: Array | None = None, tree: bool = False
    ) -> None:
        """Begin to average the gradients over the ranks; parameters without one count as zeros.

        first_nonfinite: see ProcessGroup.all_reduce_array. tree: sum them, in a tree, instead.
        """
        reduce = partial(self._reduce, group, wire, first_nonfinite, tree)
        held = self._segments()
        if held is not None:
            for span in spans(held):
                reduce(span.gradient, [])
            return
        gradients = [_gradient_or_zeros(parameter) for parameter in self.parameters]
        if len(gradients) == 1:
            reduce(gradients[0].array, [])
            return
        with backends.device_guard(gradients[0].array):
            flat = np.concatenate([gradient.array.reshape(-1) for gradient in gradients])
        reduce(flat, gradients)

    def _segments(self) -> list[Any] | None:
        # The parameters' segments in order, or None where an optimizer does not hold each.
        segments = [parameter._arena_segment for parameter in self.parameters if isinstance(parameter, Parameter)]
        if len(segments) < len(self.parameters) or not all(s is not None and s.owns_parameter() for s in segments):
            return None
        for segment in segments:
            if segment.parameter._grad is None:
                segment.gradient[...] = 0
            elif segment.parameter._grad.array is not segment.gradient:
                return None  # a gradient that was set by hand
        arenas = list(dict.fromkeys(segment.arena for segment in segments))  # in an order that all ranks have
        return sorted(segments, key=lambda segment: (arenas.index(segment.arena), segment.index))

    def _reduce(
        self, group: ProcessGroup, wire: DType | None, first: Array | None, tree: bool, flat: Array,
        gradients: list[Tensor],
    ) -> None:  # fmt: skip
        op = ReduceOp.SUM if tree else ReduceOp.AVG
        work = group.all_reduce_array(flat, op, wire, group.in_background(flat), first, tree)
        self._works.append((work, flat, gradients))

    def finish(self) -> None:
        """Wait until the averages are in the gradients."""
        for work, flat, gradients in self._works:
            if work is not None:
                work.wait()
            for gradient, values in zip(gradients, pieces(flat, gradients), strict=True):
                gradient.array[...] = values
        self._works = []


def _gradient_or_zeros(parameter: Tensor) -> Tensor:
    if parameter._grad is None:
        backend = backends.backend_of(parameter.array)
        parameter.accumulate(backend.zeros(parameter.array.shape, parameter._grad_dtype()))
    assert parameter._grad is not None
    return parameter._grad


def pieces(flat: Array, tensors: Sequence[Tensor]) -> Iterator[Array]:
    """The parts of `flat`, one after the other, in the shapes of `tensors`."""
    begin = 0
    for tensor in tensors:
        yield flat[begin : begin + tensor.array.size].reshape(tensor.array.shape)
        begin += tensor.array.size


def buckets(parameters: Sequence[Tensor], first_bytes: int, most_bytes: int) -> list[Bucket]:
    """`parameters` from the last to the first in buckets of at most `most_bytes` of gradients; larger ones stand alone.

    first_bytes: of the first bucket, which is sent soonest.
    """
    found: list[list[Tensor]] = []
    size, limit = 0, first_bytes
    for parameter in reversed(parameters):
        nbytes = parameter.array.size * parameter._grad_dtype().itemsize
        kind = parameter._grad_dtype(), parameter.device
        if not found or size + nbytes > limit or kind != (found[-1][-1]._grad_dtype(), found[-1][-1].device):
            limit = most_bytes if found else first_bytes
            found.append([])
            size = 0
        found[-1].append(parameter)
        size += nbytes
    return [Bucket(each) for each in found]
