"""distribute_tensor: a tensor of which each rank keeps its part; PyTorch's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.errors import ArgumentError, ShapeError
from ...core.parameter import Parameter
from ...core.tensor import Tensor
from ..data_parallel import broadcast_tensors
from ..device_mesh import DeviceMesh, Placement, Replicate, Shard
from ..fsdp.sharded_tensor import Sharding, sharded, share_out
from ..process_group import need_tensor

_NAME = "distribute_tensor"


def distribute_tensor(
    tensor: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None, *,
    src_data_rank: int | None = 0,
) -> Tensor:  # fmt: skip
    """This rank's part of `tensor`, which all ranks of the mesh give: a DTensor, or a plain tensor where all have it.

    A DTensor is of the part: its shape and what is computed from it are those of the part; `full_shape` and
    `full_tensor()` are of the whole. A Parameter stays the same object. placements: one per dimension of the mesh,
    Replicate() or Shard(dim), at most one of the latter; None is Replicate() along all. src_data_rank: the rank along
    each dimension whose values all take first; None leaves each its own.
    Raises ArgumentError for other placements, ShapeError for an axis that the tensor lacks.
    """
    given = [Replicate()] * device_mesh.ndim if placements is None else list(placements)
    shards = [dim for dim, each in enumerate(given) if isinstance(each, Shard)]
    if len(given) != device_mesh.ndim or len(shards) > 1 or not all(isinstance(p, Replicate | Shard) for p in given):
        needs = f"{device_mesh.ndim} placements, Replicate() or Shard(dim), at most one of them Shard"
        raise ArgumentError(_NAME, needs, repr(placements))
    if src_data_rank is not None:
        for group in device_mesh.get_all_groups():
            broadcast_tensors(group, [need_tensor(_NAME, tensor)], src_data_rank)
    if not shards:
        return tensor
    placement: Any = given[shards[0]]
    if not -tensor.ndim <= placement.dim < tensor.ndim:
        raise ShapeError(_NAME, f"a tensor with an axis {placement.dim}", f"shape {tuple(tensor.shape)}")
    group = device_mesh.get_group(shards[0])
    sharding = Sharding(group, tuple(tensor.shape), device_mesh, placement.dim % tensor.ndim)
    if isinstance(tensor, Parameter):
        return share_out(tensor, sharding)
    return sharded(Tensor(sharding.part_of(tensor.array).copy(order="C")), sharding)
