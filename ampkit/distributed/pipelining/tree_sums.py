"""TreeSums: gradients of a stage with the bits of DeterministicDataParallel, on any number of stages and replicas.

Each micro-batch is computed by one thread, and their gradients are added in one binary tree, of which the ranks with
the same stage have a branch each (docs/decisions/0042-deterministic-data-parallelism.md).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from ...backends import Array
from ...backends.cpu.threads import compute_alone
from ...backends.threads import on_this_device
from ...base.errors import ArgumentError, StateError
from ...core import random
from ...core.autograd.scale_tag import ZEROED
from ...core.autograd.tape import grad
from ...core.tensor import Tensor
from ...nn.module import Module
from ..buckets import buckets
from ..data_parallel import FIRST_BUCKET, MEGABYTE, DistributedDataParallel, broadcast_tensors, need_same_on_all_ranks
from ..deterministic.microbatches import TreeSum
from ..process_group import ProcessGroup
from .stages import OnStage

_T = TypeVar("_T")
_BUCKET = 25 * MEGABYTE


class TreeSums:
    """The gradients of the parameters of `module` over `count` micro-batches on each rank of `replicas`.

    used: values of parameters of other stages that this one uses. exchange(number, gradients): called with those of a
    micro-batch, by the id of their tensor, before others are added; it adds what other stages have of them.
    """

    def __init__(self, where: str, module: Module, count: int, replicas: ProcessGroup | None):
        self._where, self.module, self.count, self.replicas = where, module, count, replicas
        self.rank, size = (0, 1) if replicas is None else (replicas.rank(), replicas.size())
        self.total = count * size
        if self.total & (self.total - 1):
            raise ArgumentError(where, "a power of 2 of micro-batches on all replicas", str(self.total))
        parts = any(isinstance(part, DistributedDataParallel) for part in module.modules())
        shardings = (parameter._sharding for parameter in module.parameters())
        if parts or any(not isinstance(each, OnStage) for each in shardings if each is not None):
            got = "a DistributedDataParallel" if parts else "parameters that ranks share out"
            raise StateError(where, "a module whose rank has all of it, with deterministic=True", got, "replicas=group")
        if replicas is not None:
            need_same_on_all_ranks(where, replicas, module)
            broadcast_tensors(replicas, [*module.parameters(), *module.buffers()])
        self.used: Sequence[Tensor] = ()
        self.exchange: Callable[[int, dict[int, Array | None]], None] = lambda number, gradients: None
        self._thread = ThreadPoolExecutor(1, "ampkit-stage", on_this_device(compute_alone))
        weakref.finalize(self, self._thread.shutdown, wait=False)

    def alone(self, action: Callable[..., _T], *args: Any) -> _T:
        """What `action` returns, whose products one thread computes."""
        return self._thread.submit(copy_context().run, action, *args).result()

    def streams(self) -> list[random.Stream]:
        """The random numbers of this rank's micro-batches."""
        return random.split_into(self.total)[self.rank * self.count : (self.rank + 1) * self.count]

    def begin(self) -> None:
        """Begin a step. Raises StateError for gradients that are there already."""
        given = {id(tensor) for tensor in self.used}
        here = (p for p in self.module.parameters() if p._sharding is None or p.array.size)
        self._trained = [parameter for parameter in here if parameter.requires_grad and id(parameter) not in given]
        for parameter in self._trained:
            if parameter._grad is not None and parameter._grad._scale_tag is ZEROED:
                parameter.drop_grad()
            if parameter._grad is not None:
                got, cure = "some that have one", "call optimizer.zero_grad() after the step"
                raise StateError(self._where, "parameters without gradients", got, cure)
        self._buffers = {name: (b, b._version_counter[0]) for name, b in self.module.named_buffers()}
        self._tree = TreeSum(self.count)

    def computed(
        self, outputs: Sequence[Tensor], seeds: Any, leaves: Sequence[Tensor]
    ) -> tuple[Any, list[Tensor | None]]:
        """The gradients of a micro-batch: what `add` takes, and those of `leaves`."""
        wanted = [*self._trained, *(tensor for tensor in self.used if tensor.requires_grad), *leaves]
        found: Any = grad(outputs, wanted, seeds, allow_unused=True) if outputs else [None] * len(wanted)
        arrays = {id(t): None if given is None else given.array for t, given in zip(wanted, found, strict=True)}
        return arrays, list(found[len(wanted) - len(leaves) :])

    def add(self, place: int, gradients: dict[int, Array | None]) -> None:
        """Add the gradients of a micro-batch."""
        self.exchange(place, gradients)
        self._tree.add(place, [gradients[id(parameter)] for parameter in self._trained])

    def finish(self, tag: Any) -> None:
        """Write the gradients, with those of all replicas. Raises StateError where a forward has changed a buffer."""
        now = dict(self.module.named_buffers())
        for name, (buffer, version) in self._buffers.items():
            if now[name] is not buffer or buffer._version_counter[0] != version:
                cure = "use a norm without running statistics"
                raise StateError(self._where, "forwards that leave buffers as they are", f"{name!r} changed", cure)
        for parameter, gradient in zip(self._trained, self._tree.total, strict=True):
            if gradient is not None:
                parameter.accumulate(gradient, tag)
            elif self.replicas is not None and self.replicas.size() > 1:
                got = f"none of {parameter._dotted_name or 'one'}"
                raise StateError(self._where, "a gradient of every parameter", got)
        if self.replicas is not None and self.replicas.size() > 1:
            made = buckets(self._trained, min(FIRST_BUCKET, _BUCKET), _BUCKET)
            for bucket in made:
                bucket.begin()
                bucket.launch(self.replicas, None, tree=True)
            for bucket in made:
                bucket.finish()
