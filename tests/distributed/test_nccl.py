"""Collectives of GPUs by NCCL, emulated: each rank of mpiexec has emulated devices, and a `cupy.cuda.nccl` over MPI."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from distributed.test_collectives import mpi, mpiexec

from ampkit.base.errors import StateError
from ampkit.cli import main
from ampkit.distributed.nccl import library

pytestmark = [pytest.mark.no_gpu, mpi]

RECIPE = """
[model]
name = "mlp"
hidden = [16]

[data]
name = "digits"
batch_size = 50

[optimizer]
name = "adamw"
lr = 1e-3

[amp]
dtype = "float16"

[train]
steps = 8
log_every = 1
grad_clip = 5.0
compile = true
threads = 1
"""


def test_every_collective_gives_what_the_inputs_of_all_ranks_say():
    found = mpiexec(3, "collectives_program.py", "emulated", seconds=200)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("all collectives are right") == 3


def test_data_parallel_training_equals_that_of_one_process():
    found = mpiexec(2, "data_parallel_program.py", "emulated", seconds=200)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("data parallelism is right") == 2


def test_streams_are_in_order_and_a_recorded_step_contains_the_collectives():
    found = mpiexec(2, "gpu_program.py", "emulated", seconds=200)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("collectives of GPUs are right") == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("shape_again", r"all_reduce\(SUM, float32 \[3\]\).* same call on every rank, got all_reduce.* on rank 1"),
        ("late_again", r"all_reduce\(SUM, float32 \[3\]\), at faults_program.py:\d+: .* within 2 s, .* from rank 1"),
        ("overflow", "ScaleCollapseError: .*'module.weight'.*the first rank with such gradients is 1; scale: 65536"),
        ("late_recorded", r"a recorded step that begins with all_reduce.*: .* within 2 s, got nothing from rank 1"),
    ],
)
def test_a_fault_of_one_rank_is_named(fault, said):
    found = mpiexec(2, "faults_program.py", fault, "emulated")
    assert found.returncode != 0
    assert re.search(said, found.stderr), found.stderr


def recipe_on_gpus(tmp_path, fault, *words):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    where = ["--run-dir", str(tmp_path / "run")]
    return mpiexec(2, "recipe_program.py", fault, str(tmp_path / "recipe.toml"), "emulated", *words, *where)


def losses(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def test_a_recipe_with_recorded_steps_trains_on_two_gpus_as_on_one_cpu(tmp_path):
    found = recipe_on_gpus(tmp_path, "none")
    assert found.returncode == 0, found.stderr
    assert main(["train", str(tmp_path / "recipe.toml"), "--run-dir", str(tmp_path / "one")]) == 0
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(tmp_path / "one"), 2e-5)


def test_an_error_of_one_rank_reaches_one_that_waits_for_its_gpu(tmp_path):
    found = recipe_on_gpus(tmp_path, "loss", "train.compile=false")
    assert found.returncode == 1
    assert "failed: rank 1: sample 7: needs a file" in found.stderr
    assert re.search(r"all_reduce\(.*got FileError: sample 7.* on rank 1", found.stderr), found.stderr


def test_a_missing_library_is_named_with_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)  # as if it could not be imported
    runtime = SimpleNamespace(runtimeGetVersion=lambda: 13000)
    with pytest.raises(StateError, match=r"needs NCCL, got .*\nhelp: pip install nvidia-nccl-cu13"):
        library(SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
