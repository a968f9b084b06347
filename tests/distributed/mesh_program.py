"""A mesh of 4 ranks, 2 x 2, and one of 3 of them, compared with what the ranks' numbers say.

mpiexec -n 4 python tests/distributed/mesh_program.py
"""

from __future__ import annotations

import sys

import pytest
from program_device import on_device_of

import ampkit
from ampkit import distributed as dist

dist.init_process_group(on_device_of(sys.argv), timeout=20)
rank = dist.get_rank()


def summed(group) -> float:
    tensor = ampkit.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def whole() -> None:
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    row, column = divmod(rank, 2)
    assert mesh.get_coordinate() == (row, column)
    assert mesh.get_local_rank("replicate") == row
    assert mesh["shard"].get_local_rank() == column
    assert summed(mesh.get_group("replicate")) == [2.0, 4.0][column]
    assert summed(mesh["shard"].get_group()) == [1.0, 5.0][row]
    assert mesh["shard"].mesh.tolist() == [2 * row, 2 * row + 1]
    assert mesh["shard", "replicate"].mesh.tolist() == [[0, 2], [1, 3]]
    assert [dist.get_process_group_ranks(group) for group in mesh.get_all_groups()] == [
        [column, column + 2], [2 * row, 2 * row + 1],
    ]  # fmt: skip


def partial() -> None:
    mesh = dist.DeviceMesh("cpu", [3, 0, 1])
    assert mesh.get_coordinate() == {3: (0,), 0: (1,), 1: (2,)}.get(rank)
    if rank != 2:
        assert summed(mesh.get_group()) == 4.0
        assert dist.get_rank(mesh.get_group()) == mesh.get_local_rank()
    else:
        with pytest.raises(ampkit.StateError, match="a group that this process is in"):
            mesh.get_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["differ"]:
        dist.init_device_mesh("cpu", (4, 1) if rank == 0 else (2, 2))
    whole()
    partial()
    dist.barrier()
    print(f"rank {rank}: the mesh is right")
