"""DeviceMesh: its groups on 4 ranks of MPI, its checks on one process."""

from __future__ import annotations

import os

import pytest
from distributed.test_collectives import mpi, mpiexec

import ampkit
from ampkit import distributed as dist
from ampkit.base.errors import ArgumentError, ShapeError

pytestmark = pytest.mark.no_gpu


@mpi
def test_ranks_that_make_different_meshes_are_told_so():
    found = mpiexec(4, "mesh_program.py", "differ", seconds=40)
    assert found.returncode != 0
    assert "needs the same call on every rank" in found.stderr
    assert "[[0], [1], [2], [3]]" in found.stderr


@pytest.fixture
def mesh(monkeypatch):
    """A mesh of one process, whatever launcher runs the tests."""
    for name in [name for name in os.environ if name.startswith(("PMI_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    yield dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
    dist.destroy_process_group()


def test_a_mesh_of_one_process_connects_it_and_has_groups_of_one(mesh):
    assert dist.is_initialized()
    assert (mesh.shape, mesh.ndim, mesh.size(), mesh.size(1), mesh.get_coordinate()) == ((1, 1), 2, 1, 1, (0, 0))
    assert mesh.mesh.tolist() == [[0]]
    assert mesh.mesh.dtype == ampkit.int64
    assert mesh["b"].get_group() is mesh.get_group("b") is mesh.get_group(-1)
    assert mesh == dist.DeviceMesh("cpu", ampkit.tensor([[0]]), mesh_dim_names=("a", "b"))
    assert mesh != dist.DeviceMesh("cpu", [[0]])
    assert repr(mesh["a"]) == "DeviceMesh('cpu', [0], mesh_dim_names=('a',))"


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (
            lambda mesh: dist.init_device_mesh("cpu", (2, 1)),
            ShapeError,
            r"a mesh_shape of 1 ranks in all, got \(2, 1\)",
        ),
        (lambda mesh: dist.init_device_mesh("cpu", (-1, -1)), ShapeError, "a mesh_shape of 1 ranks in all"),
        (lambda mesh: dist.init_device_mesh("tpu", (1,)), ArgumentError, 'device_type "cpu" or "cuda", got \'tpu\''),
        (lambda mesh: dist.DeviceMesh("cpu", [[0, 1]]), ArgumentError, "ranks from 0 to 0, each once"),
        (lambda mesh: dist.DeviceMesh("cpu", [[], []]), ArgumentError, "integers, the numbers of ranks, got 0 of"),
        (lambda mesh: dist.DeviceMesh("cpu", [0.0]), ArgumentError, "integers, the numbers of ranks"),
        (lambda mesh: dist.DeviceMesh("cpu", [0], mesh_dim_names=("a", "b")), ArgumentError, "1 mesh_dim_names"),
        (lambda mesh: mesh["c"], ArgumentError, "a dimension from 0 to 1, or one of a, b, got 'c'"),
        (lambda mesh: mesh["a", "a"], ArgumentError, "names of dimensions, each once"),
        (lambda mesh: mesh.get_group(), ArgumentError, "a dimension from 0 to 1, or one of a, b, got None"),
        (lambda mesh: mesh.size(2), ArgumentError, "a dimension from 0 to 1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh, wrong, error, said):
    with pytest.raises(error, match=said):
        wrong(mesh)
