"""How `ampkit train` ends: early where nothing improves, with what is kept and how much space it takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ampkit import cli
from ampkit.cli import train

MLP = str(Path(__file__).parents[2] / "recipes" / "digits_mlp.toml")
SHORT = ["train.epochs=", "train.steps=30", "train.eval_every=2", 'schedule={name="constant"}', "model.hidden=[16]"]
SHORT += ["train.threads=1", "train.eval_batches=1"]
FROZEN = ["optimizer.lr=1e-30", "optimizer.weight_decay=0.0", "train.patience=3"]


def run(capsys, *words):
    status = cli.main(["train", MLP, *SHORT, *words])
    return status, *capsys.readouterr()


def steps_of(folder):
    return sorted(int(path.stem[5:]) for path in (folder / "checkpoints").glob("step-*.json"))


def test_training_ends_early_where_no_evaluation_improves_and_stays_ended(capsys, tmp_path):
    there = ["--run-dir", str(tmp_path / "run")]
    status, out, err = run(capsys, *FROZEN, *there)
    assert (status, err) == (0, "")
    assert "ended early, after step 8 of 30: no smaller validation loss in 3 evaluations" in out
    assert re.search(r"steps +│ 8 in ", out) and re.search(r"training loss +│ [\d.]+, up to step 1 ", out)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val_loss" in row] == [2, 4, 6, 8]
    status, out, _ = run(capsys, *FROZEN, *there, "--resume")
    assert status == 0 and "ended early, after step 8 of 30" in out and "train.patience=6 would continue" in out
    status, out, _ = run(capsys, *FROZEN[:2], "train.patience=5", *there, "--resume")
    assert "ended early, after step 12 of 30" in out


def test_the_best_checkpoints_are_kept_beside_the_newest(capsys, tmp_path):
    run(capsys, "train.keep=1", "train.keep_best=3", "optimizer.lr=0.5", "--run-dir", str(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["val_loss"] for row in rows if "val_loss" in row}
    best = sorted(losses, key=lambda step: losses[step])[:3]
    assert steps_of(tmp_path) == sorted({*best, 30})


def test_patience_without_evaluations_is_refused(capsys):
    status, _, err = run(capsys, "train.eval_every=", "train.patience=3")
    assert status == 2 and "train.patience: needs train.eval_every, as it counts evaluations" in err


@pytest.mark.parametrize("much", [1, 2**40])
def test_a_folder_of_runs_that_takes_much_space_is_mentioned_once(capsys, tmp_path, monkeypatch, much):
    monkeypatch.setattr(train, "_MUCH", much)
    _, out, _ = run(capsys, "train.steps=2", "--run-dir", str(tmp_path / "runs" / "one"))
    assert out.count("holds 1 run of ") == (much == 1)
