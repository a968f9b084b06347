"""train.compile_mode="max-autotune": a run keeps the choice of its kernels, and goes on with it bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampkit import cli, config
from ampkit.backends.cpu.onednn.library import library
from ampkit.base.errors import ConfigError, NonFiniteError
from ampkit.core.dispatch import tuning
from ampkit.run.loop import fit

RECIPE = Path(__file__).parents[2] / "recipes" / "digits_mlp.toml"
SHORT = ["train.epochs=", "train.steps=6", "train.eval_every=", "train.log_every=1", "train.threads=1"]
SHORT += ["model.hidden=[64]", "data.batch_size=64", 'schedule={name="constant"}']
TUNED = ["train.compile=true", "train.compile_mode=max-autotune"]

pytestmark = pytest.mark.no_gpu
chooses = pytest.mark.skipif(library() is None, reason="without oneDNN products have one kernel")


def recipe(*overrides: str) -> Any:
    return config.load(RECIPE, [*SHORT, *overrides])


def bits(run: Any) -> list[bytes]:
    return [parameter.numpy(force=True).tobytes() for parameter in run.model.parameters()]


def choose(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    """Let the choice by time be the reference, the last candidate, or the usual kernel."""
    monkeypatch.setattr(tuning, "fastest", lambda kernels, usual, run: kernels[-1] if last else usual)


@chooses
def test_a_run_that_resumes_keeps_its_kernels_though_timing_would_choose_others(tmp_path, monkeypatch):
    choose(monkeypatch, last=True)
    whole = fit(recipe(*TUNED), tmp_path / "whole")
    list(whole)
    list(fit(recipe(*TUNED, "train.steps=3"), tmp_path / "parts"))
    kernels = json.loads((tmp_path / "parts" / "kernels.json").read_text())["kernels"]
    assert "linear" in kernels.values()

    choose(monkeypatch, last=False)
    run = fit(recipe(*TUNED), tmp_path / "parts", resume=True)
    assert run.done == 3
    list(run)
    assert bits(run) == bits(whole)
    (tmp_path / "parts" / "kernels.json").unlink()
    other = fit(recipe(*TUNED), tmp_path / "other")
    list(other)
    assert bits(other) != bits(whole)  # the kernels differ in bits


@chooses
def test_ampkit_train_keeps_the_choice_in_the_run_directory_and_resumes_with_it(tmp_path, monkeypatch, capsys):
    def train(name: str, *overrides: str) -> list[float]:
        assert cli.main(["train", str(RECIPE), *SHORT, *TUNED, *overrides, "--run-dir", str(tmp_path / name)]) == 0
        assert not capsys.readouterr().err
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [row["loss"] for row in rows if "loss" in row]

    choose(monkeypatch, last=True)
    whole = train("whole")
    train("parts", "train.steps=3")
    kept = (tmp_path / "parts" / "checkpoints" / "kernels.json").read_bytes()
    assert 'compile_mode = "max-autotune"' in (tmp_path / "parts" / "config.toml").read_text()
    choose(monkeypatch, last=False)
    assert train("parts", "--resume") == whole
    assert (tmp_path / "parts" / "checkpoints" / "kernels.json").read_bytes() == kept


def test_a_run_that_fails_before_its_first_row_leaves_no_choice(tmp_path, monkeypatch):
    def diverged(*_: Any) -> None:
        raise NonFiniteError("step 1", "a finite loss", "nan")

    command = ["train", str(RECIPE), *SHORT, *TUNED, "--run-dir", str(tmp_path / "run")]
    with monkeypatch.context() as patched:
        patched.setattr("ampkit.run.trainer.loop.TrainingLoop._row", diverged)
        assert cli.main(command) == 1
    assert not (tmp_path / "run").exists()
    assert cli.main(command) == 0


def test_the_mode_needs_compiled_steps_and_stays_that_of_the_run(tmp_path):
    with pytest.raises(ConfigError, match="compile_mode: needs default without train.compile=true"):
        recipe("train.compile_mode=max-autotune")
    with pytest.raises(ConfigError, match="train.compile_mode: needs one of default, max-autotune"):
        recipe("train.compile=true", "train.compile_mode=fast")
    list(fit(recipe(*TUNED, "train.steps=1"), tmp_path))
    with pytest.raises(ConfigError, match="train.compile_mode=max-autotune, with which the run was trained"):
        fit(recipe("train.compile=true"), tmp_path, resume=True)


def test_without_the_mode_nothing_is_chosen(tmp_path):
    list(fit(recipe("train.compile=true", "train.steps=1"), tmp_path))
    assert not (tmp_path / "kernels.json").exists()
