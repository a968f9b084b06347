"""Recipes whose layers ranks divide, over sockets: one process's numbers, and checkpoints for any number of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit import config
from ampkit.base.errors import ConfigError
from ampkit.cli import main
from ampkit.run.loop import fit
from ampkit.run.ranks import Ranks

pytestmark = pytest.mark.no_gpu
ROOT = Path(__file__).parents[2]
WORDS = [
    *("model.n_layer=1", "model.n_embd=16", "model.n_head=4", "model.block_size=8", "data.batch_size=4"),
    *("schedule.warmup=1", "train.eval_every=2", "train.eval_batches=2", "train.threads=1", "train.ema=0.9"),
    *("train.accumulate=2", "train.checkpoint_every=2"),
]


def launched(ranks, *words):
    command = [sys.executable, "-m", "ampkit", "launch", "--sockets", "-n", str(ranks), "train", *words]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert "Traceback" not in found.stderr, found.stderr
    return found


def rows_of(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in ("seconds", "memory")} for row in rows]


@pytest.mark.parametrize("stage", [1, 3])
def test_a_recipe_has_the_numbers_of_one_process_and_resumes_on_other_ranks(tmp_path, stage):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"def f{i}(x): return x * {i}\n" for i in range(200)))
    words = ["text_gpt", *WORDS, f"data.path={text}"]
    one, four = tmp_path / "one", tmp_path / "four"
    assert main(["train", *words, "train.steps=4", "--run-dir", str(one)]) == 0
    parts = ["parallel.data=2", "parallel.tensor=2", f"parallel.stage={stage}"]
    assert launched(4, *words, "train.steps=4", *parts, "--run-dir", str(four)).returncode == 0
    for mine, theirs in zip(rows_of(four), rows_of(one), strict=True):
        assert mine.keys() == theirs.keys()
        np.testing.assert_allclose([*mine.values()], [*theirs.values()], rtol=1e-5)
    weights, expected = (dict(ampkit.load_run(run).model.named_parameters()) for run in (four, one))
    for name, parameter in expected.items():
        np.testing.assert_allclose(weights[name].numpy(force=True), parameter.numpy(force=True), rtol=1e-3, atol=1e-5)
    assert main(["train", *words, "train.steps=6", "--resume", "--run-dir", str(four)]) == 0
    assert launched(2, *words, "train.steps=6", "parallel.tensor=2", "--resume", "--run-dir", str(one)).returncode == 0
    np.testing.assert_allclose([*rows_of(one)[-1].values()], [*rows_of(four)[-1].values()], rtol=1e-5)


def test_ranks_and_models_that_do_not_fit_are_refused_on_every_rank():
    ranks = Ranks()
    ranks._mesh = object()
    with pytest.raises(ConfigError, match="parallel.tensor: needs 1, or a model that has a tensor_parallel_plan"):
        ranks.divide_layers(ampkit.nn.Linear(2, 2))
    assert ranks.in_agreement  # rank 0 alone prints it
    with pytest.raises(ConfigError, match="parallel.tensor: needs a divisor of the number of ranks, 1, got 3"):
        fit(config.load("digits_mlp", ["parallel.tensor=3"]))


def test_sections_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="train.compile: needs false with parallel.tensor"):
        config.load("text_gpt", ["parallel.tensor=2", "train.compile=true"])
