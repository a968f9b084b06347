"""Trainer on several ranks: the gradients are averaged, rank 0 writes, and all end together."""

from __future__ import annotations

import json
import re

import pytest
from distributed.test_collectives import mpi, mpiexec

pytestmark = pytest.mark.no_gpu


def train(ranks, folder, kind="even"):
    found = mpiexec(ranks, "trainer_program.py", str(folder), kind, seconds=60)
    assert found.returncode == 0, found.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return sorted(re.findall(r"weights [-\d. ]+", found.stdout)), rows


@mpi
def test_two_ranks_with_halves_of_the_batches_train_as_one_process(tmp_path):
    (alone,), rows = train(1, tmp_path / "one")
    both, rows_of_two = train(2, tmp_path / "two")
    assert both[0] == both[1]
    numbers = [[float(value) for value in line.split()[1:]] for line in (alone, both[0])]
    assert numbers[1] == pytest.approx(numbers[0], abs=2e-6)
    for one, two in zip(rows, rows_of_two, strict=True):
        name = "loss" if "loss" in one else "val_loss"
        assert two[name] == pytest.approx(one[name], rel=1e-5)


@mpi
def test_ranks_whose_data_end_earlier_end_the_training_of_all(tmp_path):
    lines, rows = train(2, tmp_path, "uneven")
    assert [line.split()[1] for line in lines] == ["4", "4"]
    assert rows[-1]["step"] == 4 and "val_loss" in rows[-1]
