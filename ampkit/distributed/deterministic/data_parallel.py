"""DeterministicDataParallel: gradients with the same bits on any number of ranks and threads, accumulated or not.

The batch of an update is cut into microbatches, as many and as large whoever computes them. The gradient of each is
computed by itself, by one thread, with random numbers of its own. Neighbours are added, then their sums and so on, in
one binary tree, of which every rank computes a branch (docs/decisions/0042-deterministic-data-parallelism.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from ... import backends
from ...amp.grad_scaler import GradScaler
from ...backends import Array
from ...backends.cpu.threads import get_num_threads
from ...backends.determinism import are_deterministic_algorithms_enabled
from ...base.dtypes import accumulator, float64, is_float
from ...base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ...core import random
from ...core.autograd.scale_tag import ZEROED
from ...core.nested import tensors_in, with_tensors
from ...core.policy import delayed
from ...core.tensor import Tensor
from ...nn import Module, SyncBatchNorm
from ..buckets import buckets, pieces
from ..data_parallel import FIRST_BUCKET, MEGABYTE, broadcast_tensors, need_same_on_all_ranks
from ..fsdp import FSDPModule
from ..process_group import ProcessGroup
from ..reduction import in_tree
from ..world import group as groups
from ..world import group_or_world
from .microbatches import Gradients, Microbatch, Microbatches
from .sharded import ShardedGradients

__all__ = ["DeterministicDataParallel"]

_WHERE, _CALL = "DeterministicDataParallel", "forward_backward"


class DeterministicDataParallel:
    """Computes the gradients of an update with bits that do not depend on who computes what.

        parallel = DeterministicDataParallel(model, microbatches=8)
        for x, y in loader:  # this rank's part of the batch
            loss = parallel.forward_backward(lambda model, x, y: ops.cross_entropy(model(x), y), [(x, y)], scaler)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    microbatches: the parts of equal size of an update's batch, on all ranks together; a power of 2 that the number of
    ranks divides. process_group: by default all processes; before init_process_group, this one. threads: how many
    microbatches are computed side by side, each by one thread; by default `get_num_threads()`. bucket_cap_mb: MiB of
    gradients in a message. The parameters and buffers of rank 0 are copied to all ranks at first.
    A module whose parameters the ranks share out by `fully_shard` gives the same bits. Then microbatch i is computed by
    rank i % ranks, one after the other, so that sums begin over the ranks and each keeps its rows of them. So does one
    whose layers other ranks divide in shards, see `parallelize_module`; process_group is then the other dimension of
    the mesh. Its bits are those of as many shards on any number of ranks.
    `clip_grad_norm_` sums the norm of the parameters by rows from now on, which gives the same bits too.
    Raises ArgumentError for numbers that do not fit, StateError for a module with SyncBatchNorm, whose statistics are
    not those of a microbatch, DistError where the ranks have other parameters.
    """

    def __init__(
        self,
        module: Module,
        microbatches: int = 8,
        process_group: ProcessGroup | None = None,
        *,
        threads: int | None = None,
        bucket_cap_mb: float = 25.0,
    ):
        if not isinstance(module, Module):
            raise DTypeError(_WHERE, "a Module", f"a {type(module).__name__}")
        if any(isinstance(each, SyncBatchNorm) for each in module.modules()):
            cure = "use BatchNorm, whose statistics are those of a microbatch"
            raise StateError(_WHERE, "batch normalization of a microbatch", "SyncBatchNorm", cure)
        for name, count in (("microbatches", microbatches), ("threads", 1 if threads is None else threads)):
            if type(count) is not int or count < 1:
                raise ArgumentError(_WHERE, f"{name} from 1", repr(count))
        if not bucket_cap_mb > 0:
            raise ArgumentError(_WHERE, "bucket_cap_mb above 0", repr(bucket_cap_mb))
        alone = process_group is None and groups.WORLD is None
        group = self.process_group = None if alone else group_or_world(_WHERE, process_group)
        self.rank, self.size = (0, 1) if group is None else (group.rank(), group.size())
        if microbatches & (microbatches - 1) or microbatches % self.size:
            needs = f"microbatches as a power of 2 that the number of ranks, {self.size}, divides"
            raise ArgumentError(_WHERE, needs, str(microbatches))
        self.module, self.microbatches = module, microbatches
        self._bucket_bytes = int(bucket_cap_mb * MEGABYTE)
        parameters, sharded = list(module.parameters()), None
        parts = [parameter for parameter in parameters if parameter._sharding is not None]
        if isinstance(module, FSDPModule) and group is not None:
            parameters, sharded = [], ShardedGradients(module, group)
        elif any(parameter._shards is None or parameter._sharding.of is not None for parameter in parts):
            needs = "a module that fully_shard has shared out, as a whole, or parallelize_module with shards"
            raise StateError(_WHERE, needs, "parts of one")
        elif group is not None and any(len({*group.ranks} & {*p._sharding.group.ranks}) > 1 for p in parts):
            got, cure = "one of ranks that divide layers", 'process_group=mesh.get_group("data")'
            raise ArgumentError(_WHERE, "a process_group of ranks with the same parts", got, cure)
        elif group is not None:
            need_same_on_all_ranks(_WHERE, group, module)
        if group is not None:
            broadcast_tensors(group, [*parameters, *module.buffers()])
        self._is_sharded = sharded is not None
        threads = 1 if parts else get_num_threads() if threads is None else threads
        self._microbatches = Microbatches(module, threads, sharded)
        for parameter in module.parameters():
            parameter._norm_by_rows = True

    def forward_backward(
        self, loss_of: Callable[..., Tensor], batches: Sequence[Any], scaler: GradScaler | None = None
    ) -> Tensor:
        """Write the gradients of the mean loss over an update's batches of all ranks. -> that loss [], on all ranks.

        loss_of(module, *batch): the mean loss [] of a microbatch, by the module or a copy of it that has the same
        parameters; random numbers are drawn from the default stream. batches: this rank's, each a tensor, or a tuple,
        list or dict of tensors, with samples along axis 0, cut into the rank's microbatches. These are consecutive ones
        of the update, those of rank 0 first, or with `fully_shard` one of each `ranks`: `mine` has their numbers.
        scaler: scales the loss, and so the gradients.
        Buffers that a forward changes, running statistics among them, have the same values before each microbatch, and
        become the means of what they are after them; integers become those after the first.
        Raises ShapeError for batches that cannot be cut into parts of equal size, StateError for gradients that are
        there already, for nondeterministic algorithms, for delayed scaling and for draws from another generator.
        """
        parts, rows = self._cut(batches)
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self._need_fresh(trained)
        streams = self._streams()
        share = 1 / self.microbatches  # exact, as all that is multiplied by it
        total, found = self._microbatches.run(loss_of, parts, streams, share, scaler, trained)
        loss, counts = self._means(found, share, rows)
        self._write(trained, total, counts, rows, found[0].tag)
        return loss

    @property
    def mine(self) -> range:
        """The numbers of this rank's microbatches in an update."""
        return mine_of(self.microbatches, self.rank, self.size, self._is_sharded)

    def draws(self) -> list[AbstractContextManager[None]]:
        """The contexts in which this rank's microbatches of the next update draw their random numbers."""
        return [random.drawing_from(stream) for stream in self._streams()]

    def _streams(self) -> list[random.Stream]:
        streams = random.split_into(self.microbatches)
        return [streams[number] for number in self.mine]

    # what comes in

    def _cut(self, batches: Sequence[Any]) -> tuple[list[Any], int]:
        """This rank's microbatches, and how many samples are in each."""
        mine = self.microbatches // self.size
        where = f"{self.microbatches} microbatches on {self.size} rank{'s' if self.size > 1 else ''}"
        if not batches or mine % len(batches):
            raise ShapeError(_CALL, f"batches whose number divides {mine}, of {where}", f"{len(batches)}")
        each = mine // len(batches)
        lengths = [{len(tensor) for tensor in tensors_in(batch)} for batch in batches]
        rows = next(iter(lengths[0]), 0) // each
        if any(found != {rows * each} for found in lengths) or not rows:
            got = ", ".join(str(sorted(found))[1:-1] for found in lengths[:4])
            raise ShapeError(_CALL, f"batches of one length, a multiple of {each}, as of {where}", got)
        if each == 1:
            return list(batches), rows
        return [_rows(batch, slice(i * rows, (i + 1) * rows)) for batch in batches for i in range(each)], rows

    def _need_fresh(self, trained: Sequence[Tensor]) -> None:
        if not trained:
            raise StateError(_CALL, "a module with parameters that require grad", "one without")
        for parameter in trained:
            if parameter._grad is not None and parameter._grad._scale_tag is ZEROED:
                parameter.drop_grad()
            if parameter._grad is not None:
                cure = "give all batches of an update in one call, and call optimizer.zero_grad() after the step"
                raise StateError(_CALL, "parameters without gradients", "some that have one", cure)
            if delayed.state_of(parameter) is not None:
                cure = "choose a recipe whose scales follow from the present values, as current"
                needs = "scales that do not depend on the order of microbatches"
                raise StateError(_CALL, needs, "delayed scaling", cure)
        if not are_deterministic_algorithms_enabled():
            cure = "call ampkit.use_deterministic_algorithms(True)"
            raise StateError(_CALL, "deterministic algorithms", "use_deterministic_algorithms(False)", cure)

    # what comes out

    def _means(self, found: list[Microbatch], share: float, rows: int) -> tuple[Tensor, Array]:
        """Set the buffers to their means. -> the loss, and how many microbatches have used each parameter [n]."""
        buffers, loss = dict(self.module.named_buffers()), found[0].loss
        floats = [name for name in found[0].buffers if is_float(buffers[name].array.dtype)]
        with backends.device_guard(loss):
            wide = partial(backends.backend_of(loss).cast, dtype=float64)
            counts = [backends.backend_of(loss).asarray(np.array([rows, *each.used], np.float64)) for each in found]
            means = [[wide(each.buffers[name].reshape(-1)) * share for name in floats] for each in found]
            leaves = [
                np.concatenate([wide(each.loss.reshape(1)), *mean, count])
                for each, mean, count in zip(found, means, counts, strict=True)
            ]
            total = np.stack(leaves) if self._is_sharded else in_tree(leaves, np.add)  # in one message, as it is small
            if self.process_group is not None:
                self.process_group.all_reduce_array(total, tree=True)
            if self._is_sharded:
                total = in_tree(list(total), np.add)
            for name, values in zip(floats, pieces(total[1:], [buffers[name] for name in floats]), strict=True):
                buffers[name].array[...] = values
            for name in found[0].buffers.keys() - floats:
                buffers[name].array[...] = found[0].buffers[name]
            for name in found[0].buffers:
                buffers[name].changed()
            mean = backends.backend_of(loss).cast(total[0], accumulator(loss.dtype))
        return Tensor(mean), total[total.size - len(counts[0]) :]

    def _write(self, trained: Sequence[Tensor], total: Gradients, counts: Array, rows: int, tag: Any) -> None:
        """Write the gradients, and add those of all ranks."""
        backend, whole = backends.backend_of(counts), rows * self.microbatches
        if backend.name == "cpu" or any(gradient is None for gradient in total):
            there = backend.to_numpy(counts)
        else:  # all were used, and a GPU is not waited for
            there = np.full(counts.size, whole)
        if there[0] != whole:
            got = f"{rows} samples in a microbatch of this one, {there[0] / self.microbatches:g} in the mean"
            raise ShapeError(_CALL, "batches of one length on all ranks", got)
        for parameter, gradient in zip(trained, total, strict=True):
            zeros = backends.backend_of(parameter.array).zeros if gradient is None else None
            found = gradient if zeros is None else zeros(parameter.array.shape, parameter._grad_dtype())
            parameter.accumulate(found, tag)
        if self.process_group is not None and self.size > 1 and not self._is_sharded:
            made = buckets(trained, min(FIRST_BUCKET, self._bucket_bytes), self._bucket_bytes)
            for bucket in made:
                bucket.begin()
                bucket.launch(self.process_group, None, tree=True)
            for bucket in made:
                bucket.finish()
        for parameter, count in zip(trained, there[1:], strict=True):
            if not count:
                parameter.drop_grad()


def mine_of(microbatches: int, rank: int, ranks: int, is_sharded: bool) -> range:
    """The numbers of a rank's microbatches: consecutive ones, or `ranks` apart where they share parameters out."""
    each = microbatches // ranks
    return range(rank, microbatches, ranks) if is_sharded else range(rank * each, (rank + 1) * each)


def _rows(batch: Any, rows: slice) -> Any:
    return with_tensors(batch, (tensor[rows] for tensor in tensors_in(batch)))
