"""Tensors of which each rank of a group has a part: rows, or parts along another axis.

An axis is cut as PyTorch's `chunk` cuts it: equal parts, the last ones shorter or empty. A part may be cut again, among
the ranks of another group: the rows of a layer's columns, say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ... import backends
from ...backends import Array
from ...base.dtypes import uint8
from ...base.errors import StateError
from ...core.dispatch import overrides
from ...core.parameter import Parameter
from ...core.tensor import Tensor
from ..device_mesh import Placement, Replicate, Shard
from ..process_group import ProcessGroup
from ..reduction import ReduceOp


class Sharding:
    """Which rows of a tensor of a `shape` each rank of `group` has: rank r those from bounds[r] to bounds[r + 1].

    mesh: the DeviceMesh that the group is along a dimension of, or None. rows: this rank's. dim: the axis of the rows.
    blocks: equal parts of that axis of each of which a rank has its rows, as of the weight of a layer that projects to
    queries, keys and values. of: how the tensor is a part of another, of which the ranks of another group have parts.
    pieces: equal numbers of which each rank has, so that the bounds are those of as many ranks.
    """

    def __init__(
        self, group: ProcessGroup, shape: tuple[int, ...], mesh: Any = None, dim: int = 0, blocks: int = 1,
        of: Sharding | None = None, pieces: int = 1,
    ):  # fmt: skip
        self.group, self.shape, self.mesh, self.dim, self.blocks, self.of = group, tuple(shape), mesh, dim, blocks, of
        length = self.shape[dim] // blocks
        most = -(-length // (group.size() * pieces)) * pieces
        self.bounds = [min(length, most * rank) for rank in range(group.size() + 1)]
        self.rows = self.rows_of(group.rank())

    def rows_of(self, rank: int) -> slice:
        """The rows of a rank."""
        return slice(self.bounds[rank], self.bounds[rank + 1])

    @property
    def row_size(self) -> int:
        """The number of elements of a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def levels(self) -> list[Sharding]:
        """This one, and those of which its tensor is a part: the last is of the whole tensor."""
        return [self] if self.of is None else [self, *self.of.levels]

    @property
    def groups(self) -> frozenset[ProcessGroup]:
        """The groups of ranks that have parts."""
        return frozenset(level.group for level in self.levels)

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the tensor that is a part of none."""
        return self.levels[-1].shape

    def boxes(self) -> list[tuple[Box, Box]]:
        """Where this rank's part lies: (in the part, in the whole tensor of `full_shape`), box by box."""
        found = []
        for block in range(self.blocks):
            here, there = [[slice(0, n) for n in shape] for shape in (self.local_shape, self.shape)]
            count, begin = self.rows.stop - self.rows.start, block * (self.shape[self.dim] // self.blocks)
            here[self.dim] = slice(block * count, (block + 1) * count)
            there[self.dim] = slice(begin + self.rows.start, begin + self.rows.stop)
            found.append((tuple(here), tuple(there)))
        if self.of is None:
            return found
        pairs = [(pair, outer) for pair in found for outer in self.of.boxes()]
        shared = [(pair, outer, overlap(pair[1], outer[0])) for pair, outer in pairs]
        return [(moved(box, *pair[::-1]), moved(box, *outer)) for pair, outer, box in shared if box is not None]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's part."""
        return self._shape_of(self.group.rank())

    def _shape_of(self, rank: int) -> tuple[int, ...]:
        rows = self.bounds[rank + 1] - self.bounds[rank]
        return (*self.shape[: self.dim], rows * self.blocks, *self.shape[self.dim + 1 :])

    def part_of(self, values: Any) -> Any:
        """This rank's part of whole `values`, a tensor or an array."""
        return self._in_blocks(values)[self._index(self.group.rank())].reshape(self.local_shape)

    def _in_blocks(self, values: Any) -> Any:
        return values.reshape(*self.shape[: self.dim], self.blocks, -1, *self.shape[self.dim + 1 :])

    def _index(self, rank: int) -> tuple[slice, ...]:
        return (*(slice(None),) * (self.dim + 1), self.rows_of(rank))

    def whole(self, part: Array) -> Array:
        """The tensor of `full_shape` of which every rank has given its part; all ranks that have parts call it."""
        gathered = self._gathered(part)
        return gathered if self.of is None else self.of.whole(gathered)

    def _gathered(self, part: Array) -> Array:
        if self.dim or self.blocks > 1:
            return self._joined(part)
        backend, size = backends.backend_of(part), self.row_size
        mine = np.ascontiguousarray(part) if backend.name == "cpu" else part.copy()
        made = backend.empty((self.bounds[-1] * size * part.dtype.itemsize,), uint8)
        bounds = [bound * size * part.dtype.itemsize for bound in self.bounds]
        self.group.gather_ranges(mine.reshape(-1).view(uint8), made, bounds)
        return made.view(part.dtype).reshape(self.shape)

    def _joined(self, part: Array) -> Array:
        backend, ranks = backends.backend_of(part), range(self.group.size())
        bounds = bounds_of([int(np.prod(self._shape_of(rank), dtype=np.int64)) for rank in ranks])
        gathered, made = backend.empty((bounds[-1],), part.dtype), backend.empty(self.shape, part.dtype)
        self.group.gather_ranges(part.copy(order="C").reshape(-1), gathered, bounds)
        for rank, given in zip(ranks, ranges_of(bounds), strict=True):
            place = self._in_blocks(made)[self._index(rank)]
            place[...] = gathered[given].reshape(place.shape)
        return made

    def total(self, value: Array) -> Array:
        """The sum of a 0-d `value` over the ranks that have parts."""
        return reduced(value, [level.group for level in self.levels], ReduceOp.SUM)

    def merged(self, values: Array) -> Array:
        """What each rank has of `values` [n], the same number on all, where the others have 0; `values` may change."""
        for level in self.levels:
            if level.group.size() > 1:
                level.group.all_reduce_array(values)  # a sum with zeros is exact
        return values

    def largest(self, value: Array) -> Array:
        """The largest of a 0-d `value` over the ranks that have parts; a bool is true where it is on one of them."""
        return reduced(value, [level.group for level in self.levels], ReduceOp.MAX)

    def __deepcopy__(self, memo: dict[int, Any]) -> Sharding:
        return self

    def __reduce__(self) -> Any:
        cure = "distributed.checkpoint.save writes them, full_tensor() is a whole one"
        raise StateError("pickle", "a tensor that this process has all of", "one whose rows ranks share out", cure)


def reduced(value: Array, groups: Sequence[ProcessGroup], op: ReduceOp) -> Array:
    """A 0-d `value`, reduced over the ranks of one group after the other."""
    with backends.device_guard(value):
        found = value.astype(np.int32 if value.dtype.kind == "b" else value.dtype).reshape(1)
        for group in groups:
            if group.size() > 1:
                group.all_reduce_array(found, op)
        return found.astype(value.dtype).reshape(())


Box = tuple[slice, ...]  # of an array, with a begin and an end along each axis


def overlap(first: Box, second: Box) -> Box | None:
    """What two boxes of an array have in common; None for no element. Arrays without axes are one element."""
    found = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(first, second, strict=True))
    return found if all(part.start < part.stop for part in found) else None


def moved(box: Box, source: Box, target: Box) -> Box:
    """A box within `source`, as seen where `source` is called `target`."""
    steps = [there.start - here.start for here, there in zip(source, target, strict=True)]
    return tuple(slice(part.start + step, part.stop + step) for part, step in zip(box, steps, strict=True))


class ShardedTensor(Tensor):
    """This rank's rows of a tensor; `shape`, operations and `numel` are of those rows."""

    __slots__ = ()
    __torch_function__ = overrides.disabled

    @property
    def device_mesh(self) -> Any:
        """The DeviceMesh of the ranks that share it out; None where they were given as a group.

        Where a part is cut again, that of which the meshes of both are parts.
        """
        found = [level.mesh for level in self._sharding.levels]
        if len(found) == 1 or None in found:
            return None if None in found else found[0]
        return found[0].root if all(mesh.root is found[0].root for mesh in found) else None

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Its placement along each dimension of the mesh, as in PyTorch; of several groups along each group."""
        dims = {id(level.group): level.dim for level in self._sharding.levels}
        mesh = self.device_mesh
        groups = list(dims) if mesh is None else [id(group) for group in mesh.get_all_groups()]
        return tuple(Shard(dims[group]) if group in dims else Replicate() for group in groups)

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self._sharding.full_shape

    def to_local(self) -> Tensor:
        """This rank's rows as a plain tensor, which shares the memory."""
        return self.detach()

    def full_tensor(self) -> Tensor:
        """The whole tensor, off the tape; all ranks that have parts call it."""
        with backends.device_guard(self.array):
            return Tensor(self._sharding.whole(self.array))


class ShardedParameter(ShardedTensor, Parameter):
    """A Parameter of which each rank has some rows, in optimizers and averages one like any other."""

    __slots__ = ()
    __torch_function__ = overrides.disabled

    def accumulate(self, gradient: Array, tag: Any = None, owned: bool = False) -> None:
        super().accumulate(gradient, tag, owned)
        if self._grad is not None and type(self._grad) is Tensor:
            sharded(self._grad, self._sharding)

    def _of_state(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._as_sharded(value) for name, value in entry.items()}

    def _from_state(self, entry: Any) -> Any:
        return (
            entry
            if not isinstance(entry, Mapping)
            else {name: cut(value, self._sharding) for name, value in entry.items()}
        )

    def _as_sharded(self, value: Any) -> Any:
        alike = type(value) is Tensor and value.array.shape == self._sharding.local_shape
        return sharded(value, self._sharding) if alike else value


def sharded(part: Tensor, sharding: Sharding) -> ShardedTensor:
    """`part`, this rank's rows, as a ShardedTensor, the same object."""
    made: Any = part  # whose class is set
    made.__class__ = ShardedTensor
    made._sharding = sharding
    return made


def share_out(parameter: Parameter, sharding: Sharding) -> ShardedParameter:
    """`parameter`, whose values all ranks have, with this rank's rows only, the same object."""
    made: Any = parameter  # whose class is set
    with backends.device_guard(parameter.array):
        rows = sharding.part_of(parameter.array).copy(order="C")
    parameter.drop_grad()
    made.__class__ = ShardedParameter
    made._sharding = sharding
    parameter.rebind(rows)
    parameter._cast_copies = None
    return made


def cut(values: Any, sharding: Sharding) -> Any:
    """This rank's rows of whole `values`, a tensor or an array; anything else as it is."""
    is_whole = tuple(getattr(values, "shape", ())) == sharding.full_shape and not isinstance(values, ShardedTensor)
    for level in reversed(sharding.levels) if is_whole else ():
        values = level.part_of(values)
    return values


def bounds_of(sizes: list[int]) -> list[int]:
    """Where consecutive parts of these sizes begin, and the end of the last."""
    return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]


def ranges_of(bounds: list[int]) -> list[slice]:
    """The parts between `bounds`."""
    return [slice(begin, end) for begin, end in pairwise(bounds)]
