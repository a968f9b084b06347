"""distribute_tensor: a tensor that the ranks of a mesh have together; PyTorch's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.errors import ArgumentError
from ...core.parameter import Parameter
from ...core.tensor import Tensor
from ..data_parallel import broadcast_tensors
from ..device_mesh import DeviceMesh, Partial, Placement, Replicate, Shard
from ..fsdp.sharded_tensor import Sharding, share_out
from ..process_group import need_tensor
from .dtensor import DTensor, moved, spec_of

_NAME = "distribute_tensor"


def distribute_tensor(
    tensor: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None, *,
    src_data_rank: int | None = 0,
) -> Any:  # fmt: skip
    """The DTensor of a `tensor` that all ranks of the mesh give: a leaf, of which each keeps its part or a copy.

    placements: one per dimension of the mesh, Replicate() or Shard(dim); None is Replicate() along all. src_data_rank:
    the rank along each dimension whose values all take first; None leaves each its own.
    A Parameter stays the same object, an ordinary Parameter of this rank's part, for optimizers: its shape and what is
    computed from it are those of the part, `full_shape` and `full_tensor()` of the whole one. It may be cut once.
    Raises ArgumentError for other placements, ShapeError for an axis that the tensor lacks.
    """
    spec = spec_of(_NAME, device_mesh, placements, need_tensor(_NAME, tensor).shape)
    shards = [dim for dim, each in enumerate(spec.placements) if isinstance(each, Shard)]
    if any(isinstance(each, Partial) for each in spec.placements) or (isinstance(tensor, Parameter) and shards[1:]):
        needs = "placements Replicate() or Shard(dim)" + (", one Shard for a Parameter" if shards[1:] else "")
        raise ArgumentError(_NAME, needs, repr(placements))
    if src_data_rank is not None:
        for group in device_mesh.get_all_groups():
            broadcast_tensors(group, [tensor], src_data_rank)
    if isinstance(tensor, Parameter):
        if shards:
            placement: Any = spec.placements[shards[0]]
            group = device_mesh.get_group(shards[0])
            share_out(tensor, Sharding(group, tuple(tensor.shape), device_mesh, placement.dim))
        return tensor
    whole = spec._replace(placements=(Replicate(),) * device_mesh.ndim)
    local = moved(tensor.detach(), whole, spec.placements)
    local = Tensor(local.array.copy(order="C") if local.array is tensor.array else local.array)
    return DTensor(local.requires_grad_(tensor.requires_grad), spec)
