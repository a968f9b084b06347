"""Trainer, setup and runs switch AdamWScheduleFree to its average where a model is evaluated, saved or handed over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit import Callback, Trainer, config, nn, ops, optim
from ampkit.run.loop import fit

pytestmark = pytest.mark.cpu
rng = np.random.default_rng(0)
X, Y = ampkit.tensor(rng.standard_normal((48, 6)).astype(np.float32)), ampkit.tensor(rng.integers(0, 3, 48))
BATCHES = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 48, 8)]


def loss(model, batch):
    return ops.cross_entropy(model(batch[0]), batch[1])


def trainer(directory=None, **options):
    ampkit.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = optim.AdamWScheduleFree(model.parameters(), lr=0.05, warmup_steps=3)
    chosen = {"max_steps": 12, "precision": "16-mixed", "log_every_n_steps": 1} | options
    return Trainer(model, optimizer, loss, default_root_dir=directory, **chosen)


def bits(model):
    return [value.numpy(force=True).tobytes() for value in model.state_dict().values()]


def test_after_fit_the_model_is_the_average_and_what_validate_and_the_last_evaluation_saw():
    found = trainer()
    found.fit(BATCHES, BATCHES)
    seen = found.callback_metrics["val_loss"]
    assert found.validate(BATCHES)["val_loss"] == seen
    average = bits(found.model)
    assert found.validate(BATCHES)["val_loss"] == seen and bits(found.model) == average
    found.optimizer.train()
    assert bits(found.model) != average
    assert found.validate(BATCHES)["val_loss"] == seen  # it switches, and back again
    assert bits(found.model) != average


def test_evaluations_and_checkpoints_leave_no_trace_in_what_is_trained(tmp_path):
    whole, often = trainer(), trainer(tmp_path, val_check_interval=1)
    whole.fit(BATCHES)
    often.fit(BATCHES, BATCHES)
    assert bits(whole.model) == bits(often.model)


def test_a_callback_of_an_evaluation_sees_the_average():
    seen = []

    class Seen(Callback):
        def on_validation_end(self, trainer):
            seen.append(bits(trainer.model))

        def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
            assert trainer.optimizer.param_groups[0]["train_mode"]

    found = trainer(callbacks=Seen(), val_check_interval=6)
    found.fit(BATCHES, BATCHES)
    assert seen[-1] == bits(found.model) != seen[0]


def test_a_checkpoint_holds_the_average_and_goes_on_bit_for_bit(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.fit(BATCHES)
    trainer(tmp_path / "run", max_steps=7).fit(BATCHES)
    again = trainer(tmp_path / "run")
    again.fit(BATCHES, ckpt_path="last")
    assert bits(again.model) == bits(whole.model)
    (last,) = (tmp_path / "run" / "checkpoints").glob("step-00000012-*.safetensors")
    saved = ampkit.load(last)
    assert [value.numpy().tobytes() for value in saved["model"].values()] == bits(again.model)


def test_setup_saves_the_average_and_loads_what_goes_on(tmp_path):
    def steps(run, count):
        for batch in run.batches(count):
            run.backward(loss(run.model, batch))
            run.step()

    def begun():
        made = trainer()
        return ampkit.setup(made.model, made.optimizer, BATCHES)

    whole, first, second = begun(), begun(), begun()
    steps(whole, 6)
    steps(first, 4)
    y = bits(first.model)
    first.save(tmp_path / "last.safetensors")
    assert bits(first.model) == y
    saved = ampkit.load(tmp_path / "last.safetensors")["model"]
    assert [value.numpy().tobytes() for value in saved.values()] != y
    second.load(tmp_path / "last.safetensors")
    assert bits(second.model) == y
    steps(second, 6)
    assert bits(second.model) == bits(whole.model)


def test_what_load_run_gives_is_what_the_run_evaluated(tmp_path):
    keys = ["model.hidden=[16]", "train.epochs=1", "train.threads=1", "optimizer={name='adamwschedulefree', lr=0.01}"]
    recipe = config.load(Path(__file__).parents[3] / "recipes" / "digits_mlp.toml", keys)
    run = fit(recipe, tmp_path)
    last = list(run)[-1]
    assert ampkit.load_run(tmp_path).evaluate() == (last.val_loss, last.accuracy, *[None] * 4)
    assert bits(ampkit.load_run(tmp_path).model) == bits(run.model)
