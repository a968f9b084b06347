"""setup: a loop of one's own has a Trainer's bits, an exact resume, and rows."""

from __future__ import annotations

import json
from inspect import signature

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, FileError, NonFiniteError, StateError
from ampkit.optim.lr_scheduler import LambdaLR
from ampkit.run.trainer.own_loop import TrainingSetup
from ampkit.utils.data import DataLoader, IterableDataset, TensorDataset

pytestmark = pytest.mark.cpu  # but for test_on_a_device.py
rng = np.random.default_rng(0)
DATA = TensorDataset(
    ampkit.tensor(rng.standard_normal((40, 6)).astype(np.float32)), ampkit.tensor(rng.integers(0, 3, 40))
)


class Stream(IterableDataset):
    """Batches without a length."""

    def __iter__(self):
        return iter([DATA[i] for i in range(40)])


LOADERS = {"shuffled": lambda: DataLoader(DATA, 8, shuffle=True), "without a length": lambda: DataLoader(Stream(), 8)}


def parts():
    ampkit.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


def made(loader, precision="16-mixed", **options):
    model, optimizer, schedule = parts()
    chosen = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "ema": 0.9} | options
    return ampkit.setup(model, optimizer, loader, lr_scheduler=schedule, precision=precision, **chosen)


def test_setup_lists_the_arguments_of_what_it_makes_and_trainers_defaults():
    found = signature(ampkit.setup).parameters
    assert list(found) == list(signature(TrainingSetup).parameters)
    trainers = signature(ampkit.Trainer).parameters
    assert all(each.default == trainers[name].default for name, each in found.items() if name in trainers)


def loss_of(model, batch):
    return ops.cross_entropy(model(batch[0]), batch[1])


def trained(run, steps, save=None, log=False):
    for batch in run:
        with run.autocast():
            loss = loss_of(run.model, batch)
        run.backward(loss)
        if run.step():
            if log:
                run.log_dict({"loss": loss})
            if run.done == 5 and save is not None:
                run.save(save)
            if run.done == steps:
                break
    return run


def weights(run):
    held = {**run.model.state_dict(), **{f"average.{k}": v for k, v in run.average.module.state_dict().items()}}
    return {name: value.numpy(force=True).tobytes() for name, value in held.items()}, ampkit.get_rng_state()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_an_own_loop_has_the_bits_of_a_trainer(precision):
    found = weights(trained(made(LOADERS["shuffled"](), precision), 9))
    model, optimizer, schedule = parts()
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "ema": 0.9, "max_steps": 9}
    trainer = ampkit.Trainer(model, optimizer, loss_of, lr_scheduler=schedule, precision=precision, **options)
    trainer.fit(LOADERS["shuffled"]())
    assert found == weights(trainer)


@pytest.mark.parametrize("kind", LOADERS)
def test_a_resumed_loop_has_the_bits_of_one_that_never_stopped(kind, tmp_path):
    path = tmp_path / "new" / "run.safetensors"
    wanted = weights(trained(made(LOADERS[kind]()), 11, path))
    again = made(LOADERS[kind]())
    ampkit.manual_seed(99)
    again.load(path)
    assert again.done == 5
    assert weights(trained(again, 11)) == wanted


def test_rows_go_to_the_file_and_the_loggers_and_a_resume_writes_none_twice(tmp_path):
    seen = []
    options = {"default_root_dir": tmp_path, "logger": ["csv", seen.append]}
    with made(LOADERS["shuffled"](), **options) as run:
        trained(run, 7, tmp_path / "run.pt", log=True)
    assert [row["step"] for row in seen] == [1, 2, 3, 4, 5, 6, 7]
    with made(LOADERS["shuffled"](), **options) as run:
        run.load(tmp_path / "run.pt")
        trained(run, 8, log=True)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert rows[6] == seen[6]
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "1", "2", "3", "4", "5", "6", "7", "8"]


def test_a_row_that_is_none_raises_at_the_call():
    with pytest.raises(ArgumentError, match="needs numbers by name, got 'loss': 'low'"):
        made(None).log_dict({"loss": "low"})


def test_a_checkpoint_between_the_batches_of_an_update_is_refused():
    run = made(LOADERS["shuffled"]())
    run.backward(loss_of(run.model, next(iter(run))))
    assert run.step() is False
    with pytest.raises(StateError, match="got 1 of 2 batches"):
        run.state_dict()


def test_backward_without_step_is_refused():
    run = made(LOADERS["shuffled"](), accumulate_grad_batches=1)
    batch = next(iter(run))
    run.backward(loss_of(run.model, batch))
    with pytest.raises(StateError, match=r"needs step\(\) after each backward, got 2 of them"):
        run.backward(loss_of(run.model, batch))


def test_a_step_that_is_not_finite_raises_and_changes_no_weight():
    run = made(LOADERS["shuffled"](), "bf16-mixed", accumulate_grad_batches=1)
    before = weights(run)[0]
    run.backward(loss_of(run.model, next(iter(run))) * float("nan"))
    with pytest.raises(NonFiniteError, match=r"step 1, bfloat16: needs a finite loss, got nan\nhelp: ampkit.debug.exp"):
        run.step()
    assert run.done == 0
    assert {name: bits for name, bits in weights(run)[0].items() if "average" not in name} == {
        name: bits for name, bits in before.items() if "average" not in name
    }


def test_a_skipped_step_is_counted():
    scaler = ampkit.GradScaler(init_scale=2.0**127)
    run = trained(made(LOADERS["shuffled"](), scaler=scaler), 3)
    assert run.skipped >= 1


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ArgumentError, match="setup: needs train_dataloaders to iterate over, got none"):
        next(iter(made(None)))
    with pytest.raises(ArgumentError, match="accumulate_grad_batches from 1, got 0"):
        made(None, accumulate_grad_batches=0)
    with pytest.raises(FileError, match=r"none\.pt"):
        made(None).load(tmp_path / "none.pt")
    with pytest.raises(ArgumentError, match="needs batches in each epoch, got none"):
        trained(made(iter([DATA[:8]] * 3)), 9)
