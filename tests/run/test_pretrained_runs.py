"""Runs that start from pretrained weights: model.weights of a recipe."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import config, models
from ampkit.base.errors import ConfigError, FileError, StateError
from ampkit.cli import main
from ampkit.config.write import dump
from ampkit.run import build
from ampkit.run.loop import fit
from ampkit.run.measure import measure
from ampkit.run.summary import summarize
from ampkit.run.trained import load_run

from .test_checkpoint import recipe


@pytest.fixture
def weights(tmp_path):
    """A file of weights of the recipe's model that no seed draws."""
    state = build.model(recipe("cnn", "train.seed=5")).state_dict()
    ampkit.save({name: value * 0 + 0.01 for name, value in state.items()}, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def started(weights, *overrides):
    return recipe("cnn", f'model.weights="{weights}"', *overrides)


def first(model):
    return next(iter(model.parameters())).numpy(force=True)


def test_a_run_starts_from_the_weights_and_its_config_keeps_them(weights, tmp_path):
    run = fit(started(weights))
    assert np.unique(first(run.model)).tolist() == [np.float32(0.01)]
    assert run.pretrained.new == ()
    assert run.pretrained.source == str(weights)
    (tmp_path / "config.toml").write_text(dump(run.recipe))
    assert config.load(tmp_path / "config.toml").model.weights == str(weights)


def test_the_moving_average_and_16_bit_parameters_start_from_them_too(weights):
    run = fit(started(weights, "train.ema=0.5", "amp.dtype=bfloat16", "amp.parameters=low"))
    for model in (run.model, run.average.module):
        assert np.unique(first(model).astype(np.float32)).tolist() == [
            np.float32(ampkit.tensor(0.01).bfloat16().item())
        ]


def test_another_number_of_classes_leaves_the_head_new_and_the_run_knows(weights):
    ampkit.save(models.resnet18(7, width=2, in_channels=1).state_dict(), weights)
    run = fit(started(weights, 'model={name="resnet18", width=2, stem="imagenet"}', f'model.weights="{weights}"'))
    assert run.pretrained.new == ("fc.weight", "fc.bias")
    assert run.model.fc.weight.shape == (10, 16)
    assert fit(recipe("cnn")).pretrained is None


def test_a_resumed_run_and_a_loaded_one_do_without_the_file(weights, tmp_path):
    whole = fit(started(weights), tmp_path / "whole" / "checkpoints")
    assert list(whole)
    half = fit(started(weights), tmp_path / "half" / "checkpoints")
    for _ in range(3):
        half.advance()
    half.save()
    weights.unlink()
    resumed = fit(started(weights), tmp_path / "half" / "checkpoints", resume=True)
    assert resumed.done == 3
    assert resumed.pretrained is None
    assert list(resumed)
    assert np.array_equal(first(resumed.model), first(whole.model))
    assert np.array_equal(first(load_run(tmp_path / "half").model), first(whole.model))
    with pytest.raises(ConfigError, match="weights="):
        fit(recipe("cnn"), tmp_path / "half" / "checkpoints", resume=True)


def test_a_summary_and_a_plan_do_without_the_file(tmp_path, monkeypatch, capsys):
    given = started(tmp_path / "none.safetensors")
    assert summarize(given, ["float32"]).parameters > 0
    assert measure(given)["plan"]["rows"]
    (tmp_path / "r.toml").write_text(dump(given))
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "r.toml", "--policy", "bfloat16"]) == 0
    assert capsys.readouterr().err == ""


def test_weights_that_are_missing_or_do_not_fit_end_the_command_with_what_to_do(weights, tmp_path, monkeypatch, capsys):
    with pytest.raises(FileError, match="none.safetensors', which is not there"):
        fit(started(tmp_path / "none.safetensors"))
    ampkit.save({"conv1.weight": ampkit.ones(2), "layer1.0.conv1.weight": ampkit.ones(2)}, weights)
    with pytest.raises(StateError, match="needs weights of a CNN, got those of torchvision's ResNet"):
        fit(started(weights))
    (tmp_path / "r.toml").write_text(dump(started(weights)))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "r.toml", "--run-dir", "run"]) == 2
    assert "needs weights of a CNN" in capsys.readouterr().err


def test_the_command_line_says_what_a_run_starts_from(weights, tmp_path, monkeypatch, capsys):
    (tmp_path / "r.toml").write_text(dump(started(weights)))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "r.toml", "--run-dir", "run"]) == 0
    assert (
        f"starting from {len(ampkit.load(weights))} tensors of the model itself from {weights}"
        in capsys.readouterr().out
    )
