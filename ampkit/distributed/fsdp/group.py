"""ShardedGroup: the parameters that one fully_shard shares out, gathered and their gradients reduced together.

One message gathers all of them, whatever their dtypes, as bytes: each rank sends its rows of each parameter, one after
the other. One message per dtype reduces their gradients to the rows of each rank, with sums in rank order and in the
accumulator dtype.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np

from ... import backends
from ...backends import Array
from ...base.dtypes import LOW, DType, float32, is_float, uint8
from ...base.errors import StateError
from ...core.autograd import hooks
from ...core.fp_errors import ignore_fp_errors
from ...core.parameter import Parameter
from ...core.tensor import Tensor
from ..process_group import ProcessGroup
from ..reduction import ReduceOp
from .full_parameter import FullParameter
from .policy import MixedPrecisionPolicy
from .prefetch import prefetch
from .sharded_tensor import ShardedParameter, Sharding, bounds_of, ranges_of

ALIGNMENT = 16  # bytes: of each parameter's rows in a message


class Member:
    """A parameter of a group. sharded: this rank's rows, which the optimizer has. full: what the forward reads.

    places: the modules and the names under which they have it. is_read: whether its values were read as they are stored
    where a policy had them gathered in 16 bits. is_used: whether this rank had a gradient of it in the last backward
    of a group with sums in a tree.
    """

    def __init__(self, sharded: ShardedParameter, places: Sequence[tuple[Any, str]]):
        self.sharded, self.places = sharded, list(places)
        # Of a Tensor: casts of an array that others may write to would not be kept.
        self.full = FullParameter(Tensor(stand_in(sharded.array, self.sharding.shape, sharded.array.dtype)))
        self.is_read = self.is_used = False
        self.full._dotted_name = sharded._dotted_name
        self.full._sharding = self.sharding.of  # layers that ranks divide read it

    @property
    def sharding(self) -> Sharding:
        return self.sharded._sharding

    def show(self, parameter: Parameter) -> None:
        """Let the modules have `parameter`, `full` or `sharded`."""
        for module, name in self.places:
            module._parameters[name] = parameter

    def bytes_of(self, rank: int, dtype: DType) -> int:
        """The bytes that a rank's rows take in a message."""
        rows = self.sharding.rows_of(rank)
        size = (rows.stop - rows.start) * self.sharding.row_size * dtype.itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT

    def __deepcopy__(self, memo: dict[int, Any]) -> Member:
        return Member(deepcopy(self.sharded, memo), [(deepcopy(module, memo), name) for module, name in self.places])


def stand_in(like: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """An array of a shape and dtype on the device of `like` that takes no memory, and is NaN where it is read."""
    backend = backends.backend_of(like)
    with backends.device_guard(like):
        value = backend.cast(backend.asarray(np.full((1,), np.nan, np.float32)), dtype)
        return np.broadcast_to(value, shape)


class ShardedGroup:
    """See the file. shard: the ranks that share the parameters out. replicate: those with the same rows, or None.

    is_unsharded: whether the full parameters are there. syncs: whether backward reduces the gradients. followed_by: in
    forward (False) and backward (True), the group that was gathered next and in which `low`, see Prefetch. in_tree:
    whether gradients are summed in a tree over the ranks, once in a backward, and not averaged in rank order.
    """

    def __init__(
        self,
        members: Sequence[Member],
        shard: ProcessGroup,
        replicate: ProcessGroup | None,
        policy: MixedPrecisionPolicy,
    ):
        self.members, self.shard, self.replicate, self.policy = list(members), shard, replicate, policy
        self.is_unsharded, self.syncs, self.in_tree = False, True, False
        self._is_reduced = False  # in this backward, with `in_tree`
        self._versions: list[int] = []  # of the rows that were gathered
        self.followed_by: dict[bool, tuple[Callable[[], Any], DType | None]] = {}
        self._pending: list[tuple[Any, Array, list[tuple[Member, slice]], Any]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedGroup:
        return ShardedGroup(deepcopy(self.members, memo), self.shard, self.replicate, self.policy)

    # full parameters

    def versions(self) -> list[int]:
        """The versions of the rows that this rank has."""
        return [member.sharded._version_counter[0] for member in self.members]

    def unshard(self, low: DType | None = None, in_turn: bool = False) -> None:
        """Gather the full parameters, unless they are there and no row has changed since.

        low: the dtype in which a policy in force reads most float32 ones, which are gathered in it. Values that are
        read as they are stored are gathered then, and from then on at once. in_turn: whether forward or backward has
        come to it, so that the next group is gathered ahead.
        """
        now, wanted = self.versions(), self._wanted(low)
        if now != self._versions:  # a backward through the values of before raises
            for member in self.members:
                member.full.changed()
        if wanted:
            self._hold(wanted, (prefetch.take(self, wanted, now) or self._gather(wanted))())
        self.is_unsharded, self._versions = True, now
        if wanted and in_turn:
            prefetch.follow(self, low)
        for member in self.members:
            if member.full.requires_grad != member.sharded.requires_grad:
                member.full.requires_grad = member.sharded.requires_grad

    def gather_ahead(self, low: DType | None) -> tuple[Any, ...] | None:
        """Begin to gather in the background what `unshard` would: see Prefetch. None: nothing to gather so."""
        wanted = self._wanted(low)
        if not wanted or self.shard.size() == 1 or not self.shard.in_background(self.members[0].sharded.array):
            return None
        return wanted, self.versions(), self._gather(wanted, True)

    def _wanted(self, low: DType | None) -> list[tuple[Member, DType]]:
        # What is not there, in which dtype.
        there = self.is_unsharded and self.versions() == self._versions
        pairs = [(member, self._dtype_in(member, low)) for member in self.members]
        return [(member, dtype) for member, dtype in pairs if not (there and member.full.has(dtype))]

    @ignore_fp_errors()
    def _gather(self, pairs: Sequence[tuple[Member, DType]], in_background: bool = False) -> Callable[[], list[Array]]:
        # -> what waits for the end and returns the full arrays.
        first, ranks = pairs[0][0].sharded.array, range(self.shard.size())
        parts = [bounds_of([member.bytes_of(rank, dtype) for member, dtype in pairs]) for rank in ranks]
        bounds = bounds_of([part[-1] for part in parts])
        with backends.device_guard(first):
            backend = backends.backend_of(first)
            mine, whole = backend.empty((parts[self.shard.rank()][-1],), uint8), backend.empty((bounds[-1],), uint8)
            for (member, dtype), part in zip(pairs, ranges_of(parts[self.shard.rank()]), strict=True):
                rows = (
                    member.sharded.array if dtype == member.sharded.array.dtype else member.sharded.copy_in(dtype, True)
                )
                found = rows.reshape(-1).view(uint8)
                mine[part.start : part.start + found.size] = found
            work = self.shard.gather_ranges(mine, whole, bounds, in_background=in_background)

        def finish() -> list[Array]:
            if work is not None:
                work.wait()
            with backends.device_guard(first):
                made = [backend.empty(member.sharding.shape, dtype) for member, dtype in pairs]
                for i, ((member, dtype), full) in enumerate(zip(pairs, made, strict=True)):
                    for rank in ranks:
                        rows = full[member.sharding.rows_of(rank)]
                        begin = bounds[rank] + parts[rank][i]
                        rows.reshape(-1)[...] = whole[begin : begin + rows.nbytes].view(dtype)
            return made

        return finish

    def _hold(self, pairs: Sequence[tuple[Member, DType]], arrays: Sequence[Array]) -> None:
        for (member, dtype), full in zip(pairs, arrays, strict=True):
            if dtype == self._dtype_in(member, None):
                member.full._cast_copies = None
                member.full._hold(full)
            else:
                like = stand_in(member.sharded.array, full.shape, member.sharded.array.dtype)
                member.full.hold_copy(full, like, partial(self._bring, member))

    def _bring(self, member: Member) -> None:
        # All ranks read the values, as they make the same calls of ops.
        member.is_read, copies = True, member.full._cast_copies
        stored = [(member, self._dtype_in(member, None))]
        self._hold(stored, self._gather(stored)())
        member.full._cast_copies = copies

    def _dtype_in(self, member: Member, low: DType | None) -> DType:
        dtype: DType = member.sharded.array.dtype
        if self.policy.param_dtype is not None:
            return self.policy.param_dtype if is_float(dtype) else dtype
        return low if low in LOW and dtype == float32 and not member.is_read else dtype

    def reshard(self) -> None:
        """Let go of the full parameters."""
        if self.is_unsharded:
            for member in self.members:
                full = member.full
                full._cast_copies = None
                full._hold(stand_in(member.sharded.array, member.sharding.shape, full._array.dtype))
            self.is_unsharded = False

    def show_full(self) -> None:
        """Let the modules have the full parameters."""
        for member in self.members:
            member.show(member.full)

    def show_sharded(self) -> None:
        """Let the modules have the rows of this rank."""
        for member in self.members:
            member.show(member.sharded)

    # gradients

    def reduce(self) -> None:
        """Begin to average the gradients of the full parameters over the ranks; each keeps its rows of the mean."""
        if self.in_tree and not self._completed():
            return
        kinds: dict[tuple[DType, DType], list[Member]] = {}
        for member in self.members:
            if (gradient := member.full._grad) is not None:
                dtype: DType = gradient.array.dtype
                kinds.setdefault((dtype, self._wire_of(dtype)), []).append(member)
        if _under_way.group not in (None, self):  # so that the messages of one group wait, not those of all
            _under_way.group.finish()
        _under_way.group = self
        for (dtype, wire), members in kinds.items():
            self._reduce(members, dtype, wire)

    def begin_tree(self) -> None:
        """Expect a backward whose gradients are summed in a tree."""
        self.in_tree, self._is_reduced = True, False

    def _completed(self) -> bool:
        # Whether there is something to sum: a rank has zeros of what it has not used, as others may have used it.
        used = [member.full._grad is not None for member in self.members]
        if self._is_reduced:
            if any(used):
                name = self.members[used.index(True)].sharded._dotted_name
                got = f"more of {name!r} once they were summed"
                raise StateError("backward", "gradients that are complete with those of the module's inputs", got)
            return False
        self._is_reduced = True
        for member, is_used in zip(self.members, used, strict=True):
            member.is_used = is_used
            if member.sharded.requires_grad and not is_used:
                like = member.sharded.array
                with backends.device_guard(like):
                    zeros = backends.backend_of(like).zeros(member.sharding.shape, member.full._grad_dtype())
                    member.full.accumulate(zeros)
        return True

    def _wire_of(self, dtype: DType) -> DType:
        reduce, param = self.policy.reduce_dtype, self.policy.param_dtype
        wanted = reduce if reduce is not None else param if param in LOW else None
        return dtype if wanted is None or wanted.itemsize > dtype.itemsize else wanted

    @ignore_fp_errors()
    def _reduce(self, members: list[Member], dtype: DType, wire: DType) -> None:
        gradients: list[Any] = [member.full.grad for member in members]
        count = self.shard.size() * (1 if self.replicate is None else self.replicate.size())
        with backends.device_guard(gradients[0].array):
            backend = backends.backend_of(gradients[0].array)
            sizes = [[_size(member, rank) for member in members] for rank in range(self.shard.size())]
            bounds = bounds_of([sum(each) for each in sizes])
            sent = backend.empty((bounds[-1],), wire)
            for rank, begin in enumerate(bounds[:-1]):
                for member, gradient, part in zip(members, gradients, ranges_of(bounds_of(sizes[rank])), strict=True):
                    rows = gradient.array[member.sharding.rows_of(rank)].reshape(-1)
                    out = sent[begin + part.start : begin + part.stop]
                    # Divided before it is rounded, so that float16 holds it.
                    backend.copy(out, rows if wire == dtype else rows / dtype.type(count))
            mine = backend.empty((bounds[self.shard.rank() + 1] - bounds[self.shard.rank()],), dtype)
            tag = gradients[0]._scale_tag
            del gradients
            for member in members:
                member.full.drop_grad()
            op = ReduceOp.AVG if wire == dtype and not self.in_tree else ReduceOp.SUM
            work = self.shard.reduce_ranges(sent, bounds, mine, op, self.shard.in_background(sent), self.in_tree)
            own = list(zip(members, ranges_of(bounds_of(sizes[self.shard.rank()])), strict=True))
            self._pending.append((work, mine, own, (tag, wire == dtype)))

    def forget(self) -> None:
        """Let go of what a backward that failed has left, which no `zero_grad` reaches; accumulated gradients stay."""
        self._pending.clear()
        for member in self.members if self.syncs else ():
            member.full.drop_grad()

    def finish(self) -> None:
        """Wait for what `reduce` has begun, and add it to the gradients of this rank's rows."""
        while self._pending:
            work, mine, own, (tag, averaged) = self._pending.pop(0)
            if work is not None:
                work.wait()
            if self.replicate is not None and self.replicate.size() > 1:
                self.replicate.all_reduce_array(mine, ReduceOp.AVG if averaged else ReduceOp.SUM)
            for member, part in own:
                member.sharded.accumulate(mine[part].reshape(member.sharding.local_shape), tag)
            for member, _ in own:
                if id(member.sharded) in hooks.post_accumulate_hooks:
                    hooks.run_post_accumulate_hooks(member.sharded)


class _UnderWay(threading.local):
    """The group of this thread whose gradients are being reduced."""

    group: Any = None


_under_way = _UnderWay()


def _size(member: Member, rank: int) -> int:
    rows = member.sharding.rows_of(rank)
    return (rows.stop - rows.start) * member.sharding.row_size


def need_same_rows(group: ShardedGroup, versions: list[int]) -> None:
    """Raise StateError where a row has changed since the forward that a backward pass goes through."""
    if group.versions() != versions:
        changed = next(m for m, v in zip(group.members, versions, strict=True) if m.sharded._version_counter[0] != v)
        got = f"{changed.sharded._dotted_name or 'a parameter'!r}, changed in place since"
        raise StateError("backward", "the values that the forward read", got, "change it after backward")
