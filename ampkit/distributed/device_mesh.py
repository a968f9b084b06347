"""DeviceMesh: ranks as an array of several dimensions, with a process group along each; PyTorch's names.

Placements say which part of a tensor each rank along a dimension has.

mesh = dist.init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
dist.all_reduce(gradient, group=mesh.get_group("replicate"))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, ShapeError, StateError
from ..core.tensor import Tensor
from .process_group import ProcessGroup
from .transport import Call, call_site
from .world import group_or_world, init_process_group, is_initialized, new_groups


def init_device_mesh(
    device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None
) -> DeviceMesh:
    """All ranks in order as an array of `mesh_shape`; every process calls it. Connects the processes where none are.

    device_type: "cpu" or "cuda", where the tensors of the collectives are. mesh_dim_names: one per dimension.
    Raises ShapeError where the product of mesh_shape is not the number of ranks, and what DeviceMesh raises.
    """
    if not is_initialized():
        init_process_group()
    shape, count = tuple(mesh_shape), group_or_world("init_device_mesh").size()
    if math.prod(shape) != count or any(length < 1 for length in shape):
        raise ShapeError("init_device_mesh", f"a mesh_shape of {count} ranks in all", str(shape))
    return DeviceMesh(device_type, np.arange(count).reshape(shape), mesh_dim_names=mesh_dim_names)


class DeviceMesh:
    """Ranks as an array: along each dimension those that differ only there are a group.

    device_type: "cpu" or "cuda". mesh: integers of any shape, numbers among all processes, each at most once.
    mesh_dim_names: one name per dimension, by which `mesh["name"]` is the part of the mesh that has this rank.
    Every process makes the mesh, those that are not in it too. Raises ArgumentError for numbers that are no ranks or
    repeat and for names that do not fit, and DistError where another process makes another mesh.
    """

    def __init__(self, device_type: str, mesh: Any, *, mesh_dim_names: Sequence[str] | None = None):
        if device_type not in ("cpu", "cuda"):
            raise ArgumentError("DeviceMesh", 'device_type "cpu" or "cuda"', repr(device_type))
        ranks = np.atleast_1d(np.asarray(mesh.numpy() if isinstance(mesh, Tensor) else mesh))
        if ranks.dtype.kind not in "iu" or not ranks.size:
            raise ArgumentError("DeviceMesh", "integers, the numbers of ranks", f"{ranks.size} of {ranks.dtype.name}")
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        if names is not None and (isinstance(mesh_dim_names, str) or not len(names) == len(set(names)) == ranks.ndim):
            raise ArgumentError("DeviceMesh", f"{ranks.ndim} mesh_dim_names, all different", repr(mesh_dim_names))
        world = group_or_world("DeviceMesh")
        call = Call(f"DeviceMesh({device_type}, {ranks.tolist()}, {names})", call_site())
        world.run(lambda: world.transport.barrier(call), False)
        groups = [_group_along(ranks, dim, world.rank()) for dim in range(ranks.ndim)]
        self._set(device_type, ranks, names, groups)

    def _set(self, device_type: str, ranks: Any, names: tuple[str, ...] | None, groups: list[Any]) -> None:
        self.device_type, self.mesh_dim_names = device_type, names
        self._ranks, self._groups = ranks, groups
        self.root = self  # the mesh that this one is a part of, or itself

    @property
    def mesh(self) -> Tensor:
        """The ranks, an int64 tensor of the mesh's shape."""
        return Tensor(self._ranks.astype(np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._ranks.shape)

    @property
    def ndim(self) -> int:
        return int(self._ranks.ndim)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """The number of ranks along a dimension, or in all."""
        return int(self._ranks.size) if mesh_dim is None else self.shape[self._dim("size", mesh_dim)]

    def get_rank(self) -> int:
        """This process's number among all."""
        return group_or_world("get_rank").rank()

    def get_coordinate(self) -> tuple[int, ...] | None:
        """This rank's place in the mesh; None where it is not in it."""
        found = np.argwhere(self._ranks == self.get_rank())
        return tuple(found[0].tolist()) if len(found) else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This rank's place along a dimension, which a mesh of one need not name. Raises StateError outside of it."""
        place, dim = self.get_coordinate(), self._dim("get_local_rank", mesh_dim)
        if place is None:
            got = f"rank {self.get_rank()}"
            raise StateError("get_local_rank", "a rank of the mesh", got, "only its ranks call it")
        return place[dim]

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """The group of the ranks that differ from this one only along a dimension; a mesh of one need not name it."""
        return group_or_world("get_group", self._groups[self._dim("get_group", mesh_dim)])

    def get_all_groups(self) -> list[ProcessGroup]:
        """`get_group` of each dimension."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """The part of the mesh along some dimensions, by their names, that has this rank. It makes no new groups."""
        given = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        kept = [self._dim("DeviceMesh", name) for name in given]
        place = self.get_coordinate()
        if place is None or not kept or len(set(kept)) != len(kept):
            needs = "names of dimensions, each once, on a rank of the mesh"
            raise ArgumentError("DeviceMesh", needs, f"{given} on rank {self.get_rank()}")
        others = [dim for dim in range(self.ndim) if dim not in kept]
        part = self._ranks.transpose(others + kept)[tuple(place[dim] for dim in others)]
        made = object.__new__(DeviceMesh)
        made._set(self.device_type, part, given, [self._groups[dim] for dim in kept])
        made.root = self.root
        return made

    def _dim(self, where: str, given: int | str | None) -> int:
        if given is None and self.ndim == 1:
            return 0
        names = self.mesh_dim_names or ()
        if given in names:
            return names.index(str(given))
        if isinstance(given, int) and -self.ndim <= given < self.ndim:
            return given % self.ndim
        needs = f"a dimension from 0 to {self.ndim - 1}" + (f", or one of {', '.join(names)}" if names else "")
        raise ArgumentError(where, needs, repr(given))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.device_type, self.shape, tuple(self._ranks.flat), self.mesh_dim_names

    def __repr__(self) -> str:
        names = "" if self.mesh_dim_names is None else f", mesh_dim_names={self.mesh_dim_names}"
        return f"DeviceMesh({self.device_type!r}, {self._ranks.tolist()}{names})"


def _group_along(ranks: Any, dim: int, rank: int) -> Any:
    """The group along `dim` that has `rank`, or what stands for none."""
    lines = np.moveaxis(ranks, dim, -1).reshape(-1, ranks.shape[dim]).tolist()
    groups = new_groups(lines)
    return next((made for line, made in zip(lines, groups, strict=True) if rank in line), groups[0])


class Placement:
    """The base of Shard, Replicate and Partial."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether each rank has a part along an axis, along the axis `dim` where it is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Whether each rank has the whole tensor."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether each rank has a term of the tensor, of the reduction `reduce_op` where it is given."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True)
class Shard(Placement):
    """Each rank has a part of the tensor along the axis `dim`, the last one for -1."""

    dim: int


@dataclass(frozen=True)
class Replicate(Placement):
    """Each rank has the whole tensor."""


@dataclass(frozen=True)
class Partial(Placement):
    """Each rank has a term of the sum that is the tensor; reduce_op: "sum"."""

    reduce_op: str = "sum"
