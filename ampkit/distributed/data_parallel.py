"""DistributedDataParallel: each rank computes on its part of a batch, and gradients are averaged over the ranks.

All ranks get the averages with the same bits. So all that is decided from gradients is the same on all ranks without
another message: whether a GradScaler finds inf or NaN, which parameter it names, the norm that clipping measures, and
whether a schedule or an average of weights moves. Only the rank that a GradScaler names is agreed on, by one number a
backward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError, StateError, switch
from ..core.autograd import hooks
from ..core.autograd.grad_mode import is_grad_enabled
from ..core.autograd.scale_tag import NO_RANK, ScaleTag
from ..core.tensor import Tensor
from ..nn.module import Module
from . import delayed_scaling
from .buckets import Bucket, buckets, pieces
from .collectives import gathered_objects
from .process_group import ProcessGroup, describe
from .reduction import ReduceOp
from .transport import Call, DistError, call_site
from .world import group_or_world

__all__ = ["DistributedDataParallel"]

MEGABYTE = 1 << 20
FIRST_BUCKET = MEGABYTE  # bytes: small, so that communication begins soon


class DistributedDataParallel(Module):
    """`module` whose gradients are averaged over the ranks of `process_group` in backward; PyTorch's interface.

    The parameters and buffers of rank 0 are copied to all ranks at first, and in training the buffers before each
    forward (broadcast_buffers). bucket_cap_mb: MiB of gradients in one collective. find_unused_parameters=True lets a
    rank leave parameters unused in a forward: they count as zeros, and stay without gradient where no rank used them;
    otherwise such a parameter raises StateError in backward. Parameters may be frozen later, or require grad again, on
    all ranks before the same forward. wire_dtype: float16 or bfloat16, in which gradients travel
    to where they are added up in float32; None: as they are (docs/numerics.md). gradients of a GradScaler's loss are
    averaged scaled. On a CPU collectives run while backward goes on; on a GPU each waits for it.
    device_ids, output_device, dim, init_sync=True, check_reduction, gradient_as_bucket_view, static_graph and PyTorch's
    further options have no effect: an optimizer's gradients are flat memory already.
    Raises DistError where the ranks have other parameters, StateError before init_process_group, ArgumentError for a
    module without parameters that require grad and a bucket_cap_mb of 0 or less.
    The largest magnitudes of delayed scaling are those of all ranks at the end of each backward that averages.
    Li et al. 2020, arXiv:2006.15704.
    """

    _wraps_model = True

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        *,
        wire_dtype: Any = None,
    ):
        super().__init__()
        where = "DistributedDataParallel"
        if not isinstance(module, Module):
            raise DTypeError(where, "a Module", f"a {type(module).__name__}")
        if mixed_precision is not None:
            raise ArgumentError(where, "mixed_precision=None", repr(mixed_precision), "use autocast, and wire_dtype")
        self.module = module
        self.process_group = group_or_world(where, process_group)
        self.broadcast_buffers = switch(where, "broadcast_buffers", broadcast_buffers)
        self.find_unused_parameters = switch(where, "find_unused_parameters", find_unused_parameters)
        self.require_backward_grad_sync = True
        self._wire = None if wire_dtype is None else dtypes.parse(wire_dtype)
        if self._wire is not None and self._wire not in dtypes.LOW:
            raise DTypeError(where, "wire_dtype float16 or bfloat16", self._wire.name)
        cap = 25.0 if bucket_cap_mb is None else bucket_cap_mb
        if not cap > 0:
            raise ArgumentError(where, "bucket_cap_mb above 0", repr(bucket_cap_mb))
        self._bucket_bytes = int(cap * MEGABYTE)
        self._buckets: list[Bucket] = []
        self._hooks: list[hooks.Handle] = []
        weakref.finalize(self, _remove, self._hooks)  # the module may be wrapped again
        self._launched: int | None = None  # buckets that are under way in this backward pass; None: it has not begun
        self._tag: ScaleTag | None = None  # the loss scale of this backward pass
        self._first_nonfinite: Array | None = None  # see ScaleTag.nonfinite_rank
        self._follow()

    def _follow(self) -> None:
        # Begin to average the gradients of the parameters that require them now.
        trained = self._trained = [p for p in self.module.parameters() if p.requires_grad]
        if not trained:
            raise ArgumentError("DistributedDataParallel", "a module with parameters that require grad", "one without")
        self._names = {id(p): name for name, p in self.module.named_parameters() if p.requires_grad}
        need_same_on_all_ranks("DistributedDataParallel", self.process_group, self.module)
        broadcast_tensors(self.process_group, [*self.module.parameters(), *self.module.buffers()])
        delayed_scaling.copy_from_first(self.process_group, [*self.module.parameters()])
        self._buckets = buckets(trained, min(FIRST_BUCKET, self._bucket_bytes), self._bucket_bytes)
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        _remove(self._hooks)
        complete: Any = weakref.WeakMethod(self._complete)
        self._hooks += [p.register_post_accumulate_grad_hook(lambda p: complete()(p)) for p in trained]

    # forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward; in training its buffers become those of rank 0 before."""
        if self.require_backward_grad_sync and is_grad_enabled():
            self._begin()
            if self.broadcast_buffers:
                broadcast_tensors(self.process_group, [b for b in self.module.buffers() if self.module.training])
        return self.module(*args, **kwargs)

    def _begin(self) -> None:
        if self._launched is not None:  # an error ended the last backward pass
            for bucket in self._buckets:
                bucket.finish()
            self._launched = None
        trained = [p for p in self.module.parameters() if p.requires_grad]
        if len(trained) != len(self._trained) or any(a is not b for a, b in zip(trained, self._trained, strict=True)):
            self._follow()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context whose backward passes leave gradients on their ranks; the next one outside averages their sums."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    # backward

    def _complete(self, parameter: Tensor) -> None:
        # Called when the gradient of `parameter` is complete in this backward pass.
        if not self.require_backward_grad_sync:
            return
        if self._launched is None:
            self._launched = 0
            self._first_nonfinite = self._no_rank(parameter)
            for bucket in self._buckets:
                bucket.begin()
            hooks.passes.at_end.append(self._finish)
        self._tag = None if parameter._grad is None else parameter._grad._scale_tag
        self._bucket_of[id(parameter)].pending.discard(id(parameter))
        # In one order on all ranks, whichever bucket is complete first.
        while self._launched < len(self._buckets) and not self._buckets[self._launched].pending:
            self._launch_next()

    def _no_rank(self, parameter: Tensor) -> Array | None:
        # With a GradScaler, which names the rank where its scale collapses; alone there is none to name.
        if self.process_group.size() == 1 or parameter._grad is None or parameter._grad._scale_tag is None:
            return None
        with backends.device_guard(parameter.array):
            zero = backends.backend_of(parameter.array).zeros((1,), dtypes.int32)
            return np.add(zero, dtypes.int32.type(NO_RANK))

    def _launch_next(self) -> None:
        assert self._launched is not None
        self._buckets[self._launched].launch(self.process_group, self._wire, self._first_nonfinite)
        self._launched += 1

    def _finish(self) -> None:
        # At the end of the backward pass: what was not launched, and all that is under way.
        assert self._launched is not None
        unused = [p for bucket in self._buckets for p in bucket.parameters if id(p) in bucket.pending]
        if unused and not self.find_unused_parameters:
            missing = [repr(name) for key, name in self._names.items() if key in {id(p) for p in unused}]
            names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            cure = "DistributedDataParallel(..., find_unused_parameters=True), or use them in the forward"
            raise StateError("backward", "a gradient of every parameter", f"none of {names}", cure)
        without = {id(p) for p in unused if p._grad is None}
        while self._launched < len(self._buckets):
            self._launch_next()
        used = self._used_anywhere(without) if self.find_unused_parameters else {}
        for bucket in self._buckets:
            bucket.finish()
        if self._first_nonfinite is not None:
            self.process_group.all_reduce_array(self._first_nonfinite, ReduceOp.MIN)
            if self._tag is not None and self._tag.owner is not None:
                self._tag.nonfinite_rank = self._first_nonfinite
        for parameter in unused:
            if id(parameter) in without:
                self._settle(parameter, used[id(parameter)])
        used_by_all = not self.find_unused_parameters
        delayed_scaling.reduce_largest(self.process_group, [*self.module.parameters()], used_by_all)
        self._launched = None

    def _used_anywhere(self, without: set[int]) -> dict[int, bool]:
        # Per parameter, whether a rank has a gradient of it.
        parameters = [p for bucket in self._buckets for p in bucket.parameters]
        counts = np.array([id(p) not in without for p in parameters], np.int32)
        self.process_group.all_reduce_array(counts)
        return {id(p): bool(count) for p, count in zip(parameters, counts, strict=True)}

    def _settle(self, parameter: Tensor, used: bool) -> None:
        # A parameter that this rank has not used has the gradient of those that have, or none.
        held = getattr(parameter, "_arena_segment", None)
        if not used:
            parameter.drop_grad()
        elif parameter._grad is None and held is not None:  # the optimizer's memory has it
            parameter.accumulate(held.gradient, self._tag)
        elif parameter._grad is not None:
            parameter._grad._scale_tag = self._tag


def need_same_on_all_ranks(where: str, group: ProcessGroup, module: Module) -> None:
    """Raise DistError, on all ranks, where the module's parameters and buffers differ in name, dtype or shape."""
    named = [*module.named_parameters(), *module.named_buffers()]
    mine = [(name, describe(tensor.array), tensor.requires_grad) for name, tensor in named]
    first, *others = gathered_objects(group, mine, Call(f"{where}()", call_site()))
    for rank, theirs in enumerate(others, 1):
        if theirs != first:
            ours, wrong = next(
                (pair for pair in zip(first, theirs, strict=False) if pair[0] != pair[1]),
                (f"{len(first)} of them", f"{len(theirs)}"),
            )
            needs = "the same parameters and buffers on all ranks"
            raise DistError(where, needs, f"{ours} on rank 0, {wrong} on rank {rank}")


def _remove(handles: list[hooks.Handle]) -> None:
    while handles:
        handles.pop().remove()


def broadcast_tensors(group: ProcessGroup, tensors: Sequence[Tensor], source: int = 0) -> None:
    """Overwrite `tensors` by those of the group's rank `source`, in one message per dtype and device."""
    by_kind: dict[tuple[str, str], list[Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((str(tensor.device), tensor.dtype.name), []).append(tensor)
    for alike in by_kind.values() if group.size() > 1 else ():
        with backends.device_guard(alike[0].array):
            flat = np.concatenate([tensor.array.reshape(-1) for tensor in alike])
            group.broadcast_array(flat, source)
            for tensor, values in zip(alike, pieces(flat, alike), strict=True):
                tensor.array[...] = values
                tensor.changed()
