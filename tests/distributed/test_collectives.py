"""Collectives on ranks of MPI, started by mpiexec, and on threads of one process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from distributed import thread_ranks

import ampkit
from ampkit import distributed as dist
from ampkit.base.errors import ArgumentError, ConfigError, DTypeError, ShapeError, StateError
from ampkit.distributed.environment import Launched, launched
from ampkit.distributed.reduction import ReduceOp

pytestmark = pytest.mark.no_gpu
HERE = Path(__file__).parent
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
mpi = pytest.mark.skipif(
    not (dist.is_mpi_available() and MPIEXEC),
    reason="needs mpi4py and mpiexec: pip install 'ampkit[mpi]'",
)


@pytest.fixture(params=["memory", "sockets"])
def on_ranks(request):
    return partial(thread_ranks.on_ranks, by=request.param)


PROGRAMS = ["collectives_program", "data_parallel_program", "training_program", "ported_program"]


def mpiexec(ranks, program, *arguments, seconds=300):
    what = program if program[0] == "-m" else [str(HERE / program)]
    command = [MPIEXEC, "-n", str(ranks), sys.executable, *what, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}"}
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)


@mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_collectives_and_data_parallel_training_give_what_one_process_computes(ranks):
    found = mpiexec(ranks, "programs.py", *PROGRAMS)
    assert found.returncode == 0, found.stderr
    for said in ("all collectives are right", "data parallelism is right", "all ways to train are right"):
        assert found.stdout.count(said) == ranks
    assert re.search(r"accuracy (0\.9|1\.0)\d+ on all ranks: True", found.stdout), found.stdout


@mpi
def test_collectives_of_a_mesh_are_those_of_its_parts():
    found = mpiexec(4, "programs.py", "collectives_program", "mesh_program")
    assert found.returncode == 0, found.stderr
    for said in ("all collectives are right", "the mesh is right"):
        assert found.stdout.count(said) == 4


@mpi
def test_a_script_for_pytorch_runs_on_ranks_by_the_alias(tmp_path):
    found = mpiexec(2, ["-m", "ampkit.as_torch"], str(HERE / "pytorch_script.py"), str(tmp_path / "model.pt"))
    assert found.returncode == 0, found.stderr
    assert re.search(r"accuracy (0\.9|1\.0)\d+ on all ranks: True", found.stdout), found.stdout


@mpi
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "late",
            ["all_reduce(SUM, float32 [3]), at faults_program.py:", "needs every rank within 2 s, got nothing from"],
        ),
        ("shape", ["needs the same call on every rank", "float32 [3]", "float32 [4]"]),
        ("call", ["needs the same call on every rank", "all_reduce(SUM, float32 [3])", "barrier()"]),
        ("error", ["rank 1 of 2 ended:", "ValueError: something of the script's own"]),
        (
            "overflow",
            ["rank 0 of 2 ended:", "'module.weight' [3, 3] at [0, 0], and the first rank with such gradients is 1;"],
        ),
        ("end", ["needs the same call on every rank, got the end of its program on rank 1"]),
        ("message", ["recv(int32 [3], from 1)", "got values of float32 on rank 1"]),
        (
            "end_before",
            ["rank 0 of 2 ended:", "init_process_group(), at faults_program.py:", "the end of its program on rank 1"],
        ),
        ("late_before", ["rank 0 of 2 ended:", "needs every rank within 2 s, got nothing from rank 1"]),
    ],
)
def test_a_fault_of_one_rank_ends_all_and_is_named(fault, said):
    found = mpiexec(2, "faults_program.py", fault)
    assert found.returncode != 0
    assert all(part in found.stderr for part in said), found.stderr


def summed(rounded, hop_by_hop=False):
    total = rounded[0].astype(np.float32)
    for row in rounded[1:]:
        total = total + row.astype(np.float32)
        total = total.astype(ml_dtypes.bfloat16).astype(np.float32) if hop_by_hop else total
    return total


@pytest.mark.parametrize("ranks", [2, 3, 64])
def test_a_sum_in_bfloat16_on_the_wire_stays_within_its_bound(ranks):
    values = np.random.default_rng(ranks).standard_normal((ranks, 3001)).astype(np.float32)

    def program(group):
        array = values[group.rank()].copy()
        group.all_reduce_array(array, ReduceOp.SUM, np.dtype(ml_dtypes.bfloat16))
        return array

    found, exact = thread_ranks.on_ranks(ranks, program), values.astype(np.float64).sum(0)
    assert all(np.array_equal(array, found[0]) for array in found)
    assert np.all(np.abs(found[0] - exact) <= 2**-8 * np.abs(values).sum(0))
    rms = np.sqrt(np.mean((found[0] - exact) ** 2) / np.mean(exact**2))
    hops = summed(values.astype(ml_dtypes.bfloat16), hop_by_hop=True)
    assert rms < 0.002
    assert ranks < 64 or np.sqrt(np.mean((hops - exact) ** 2) / np.mean(exact**2)) > 0.009


@pytest.mark.parametrize("wire", [None, np.dtype(np.float16)])
@pytest.mark.parametrize("size", [5, 5001, 400_000])
@pytest.mark.parametrize(("bad", "first"), [({}, 9), ({2: 0.0}, 2), ({3: 0.9, 1: 0.99}, 1), ({0: 0.5}, 0)])
def test_an_average_notes_the_first_rank_with_values_that_are_not_finite(bad, first, size, wire):
    def program(group):
        array, noted = np.ones(size, np.float32), np.array([9], np.int32)
        if group.rank() in bad:
            array[int(bad[group.rank()] * (size - 1))] = np.inf if group.rank() % 2 else np.nan
        group.all_reduce_array(array, ReduceOp.AVG, wire, False, noted)
        return noted

    assert min(thread_ranks.on_ranks(4, program)) == first


def test_a_float16_sum_on_the_wire_does_not_overflow_where_its_terms_fit(on_ranks):
    found = on_ranks(4, lambda group: _reduced(group, np.full(3, 3e4, np.float32), np.dtype(np.float16)))
    assert np.allclose(found, 12e4, rtol=1e-3)


def _reduced(group, array, wire=None, op=ReduceOp.SUM):
    group.all_reduce_array(array, op, wire)
    return array


@pytest.mark.parametrize("size", [1, 5, 4096, 5001])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_float32_is_summed_in_rank_order_to_the_bit_on_all_ranks(ranks, size, on_ranks):
    values = (np.random.default_rng(0).standard_normal((ranks, size)) * 1e3).astype(np.float32)
    found = on_ranks(ranks, lambda group: _reduced(group, values[group.rank()].copy()))
    assert all(np.array_equal(array, summed(values)) for array in found)


def test_collectives_in_the_background_run_in_the_order_of_their_calls(on_ranks):
    def program(group):
        arrays = [np.full(2000, float(i + group.rank()), np.float32) for i in range(20)]
        works = [group.all_reduce_array(array, in_background=i % 3 > 0) for i, array in enumerate(arrays)]
        assert all(work is None or work.wait() for work in works)
        return [array[0] for array in arrays]

    assert on_ranks(3, program) == [[3.0 * i + 3.0 for i in range(20)]] * 3


def test_an_error_in_the_background_is_raised_where_it_is_waited_for(on_ranks):
    def program(group):
        array = np.zeros(3 + group.rank(), np.float32)
        work = group.all_reduce_array(array, in_background=True)
        with pytest.raises(dist.DistError, match="the same call on every rank"):
            work.wait()
        return isinstance(work.exception(), dist.DistError)

    assert on_ranks(2, program) == [True, True]


def test_a_rank_that_does_not_come_is_named(on_ranks):
    def program(group):
        if group.rank() != 1:
            group.all_reduce_array(np.zeros(3, np.float32))

    with pytest.raises(dist.DistError, match=r"needs every rank within 0.2 s, got nothing from rank 1\n"):
        on_ranks(3, program, timeout=0.2)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launched("", 0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Launched("torchrun", 3, 8, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launched("MPICH", 1, 2, 0)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
         Launched("Open MPI", 1, 4, 1)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2"},
         Launched("SLURM", 5, 6, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, Launched("", 0, 1, 0)),  # a batch script
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"},
         Launched("MPICH", 1, 2, 1)),  # mpiexec in it
        ({"RANK": "0"}, Launched("", 0, 1, 0)),
    ],
)  # fmt: skip
def test_the_variables_of_each_launcher_are_read(variables, expected):
    assert launched(variables) == expected


@pytest.mark.parametrize(
    "wrong", [{"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "0"}]
)
def test_variables_that_are_no_ranks_are_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=r"^(RANK|WORLD_SIZE): needs a number from"):
        launched(wrong)


@pytest.fixture
def alone(monkeypatch):
    """One process as a group, whatever launcher runs the tests."""
    for name in [name for name in os.environ if name.startswith(("PMI_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    dist.init_process_group()
    yield
    dist.destroy_process_group()


def test_one_process_is_a_group_without_an_engine(alone):
    tensor = ampkit.tensor([1.0, 2.0])
    dist.all_reduce(tensor)
    dist.broadcast(tensor)
    dist.barrier()
    assert (dist.get_rank(), dist.get_world_size(), tensor.tolist()) == (0, 1, [1.0, 2.0])
    assert dist.all_reduce(tensor, async_op=True).wait()
    gathered = [ampkit.zeros(2)]
    dist.all_gather(gathered, tensor)
    assert gathered[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda: dist.all_reduce([1.0]), DTypeError, "all_reduce: needs a Tensor, got a list"),
        (lambda: dist.all_reduce(ampkit.tensor([1]), dist.ReduceOp.AVG), DTypeError, "floats for AVG"),
        (lambda: dist.all_reduce(ampkit.zeros(1), dist.ReduceOp.BOR), DTypeError, "integers or bool for BOR"),
        (lambda: dist.all_reduce(ampkit.zeros(1), wire_dtype="int8"), DTypeError, "float16 or bfloat16 as wire_dtype"),
        (lambda: dist.broadcast(ampkit.zeros(1), src=3), ArgumentError, r"a rank of the group \(0 to 0\), got 3"),
        (lambda: dist.all_gather([], ampkit.zeros(1)), ShapeError, "1 tensors float32"),
        (lambda: dist.all_gather_into_tensor(ampkit.zeros(3), ampkit.zeros(2)), ShapeError, "of 2 elements in float32"),
        (lambda: dist.send(ampkit.zeros(1), 0), StateError, "needs another rank, got rank 0"),
        (lambda: dist.init_process_group(), StateError, "to be called once"),
        (lambda: dist.new_group([1]), ArgumentError, "ranks from 0 to 0, each once"),
        (lambda: dist.get_rank(5), StateError, "a group that this process is in"),
    ],
)
def test_a_wrong_call_is_refused_before_it_waits_for_anyone(alone, wrong, error, said):
    with pytest.raises(error, match=said):
        wrong()


def test_a_collective_before_the_group_says_what_to_call_first():
    with pytest.raises(StateError, match="needs init_process_group\\(\\) before"):
        dist.all_reduce(ampkit.zeros(1))


@mpi
@pytest.mark.parametrize(
    ("variables", "cure"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "mpiexec -n 2"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "srun --mpi"),
    ],
)
def test_ranks_that_mpi_does_not_know_are_told_how_to_start(variables, cure):
    code = "import ampkit.distributed as dist; dist.init_process_group('mpi')"
    environment = {**os.environ, **variables}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=90)
    assert re.search(f"needs 2 ranks, as .* says, got 1 by MPI\nhelp: .*{cure}", found.stderr), found.stderr


def test_an_unknown_backend_is_refused():
    with pytest.raises(ArgumentError, match="backend mpi, sockets, gloo or nccl, got 'ucc'"):
        dist.init_process_group("ucc")
