"""Trainer and setup on the device under test: batches are brought there, and a resume has the same bits."""

from __future__ import annotations

from itertools import count

import garbage
import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((32, 6)).astype(np.float32), rng.integers(0, 3, 32)
DATA = TensorDataset(ampkit.tensor(X, device="cpu"), ampkit.tensor(Y, device="cpu"))


def loss_of(model, batch):
    return ops.cross_entropy(model(batch["x"]), batch["y"])


def batches():
    return [{"x": x, "y": y} for x, y in DataLoader(DATA, 8)]


def parts(device):
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).to(device)
    return model, optim.AdamW(model.parameters(), lr=0.01)


def trainer(device, directory=None, max_steps=5):
    options = {"precision": "16-mixed", "gradient_clip_val": 1.0, "default_root_dir": directory}
    return ampkit.Trainer(*parts(device), loss_of, max_steps=max_steps, **options)


def bits(model):
    return [value.numpy(force=True).tobytes() for value in model.state_dict().values()]


def test_trainer_resumes_and_setup_trains_with_the_same_bits(tmp_path):
    device = ampkit.get_default_device()
    whole = trainer(device)
    whole.fit(batches(), batches())
    assert {str(p.device) for p in whole.model.parameters()} == {str(ampkit.zeros(1, device=device).device)}
    trainer(device, tmp_path, 3).fit(batches())
    again = trainer(device, tmp_path)
    again.fit(batches(), ckpt_path="last")
    assert bits(again.model) == bits(whole.model)

    model, optimizer = parts(device)
    run = ampkit.setup(model, optimizer, batches, precision="16-mixed", gradient_clip_val=1.0)
    for batch in run.batches(max_steps=5):
        with run.autocast():
            loss = loss_of(model, batch)
        run.backward(loss)
        run.step()
    assert bits(model) == bits(whole.model)
    assert again.predict([batch["x"] for batch in batches()])[0].shape == (8, 3)


def test_a_training_whose_data_raise_goes_on_with_the_same_bits(tmp_path):
    device = ampkit.get_default_device()
    bad, found = [False], batches()

    def read():
        for number, batch in enumerate(found):
            if bad[0] and number == 3:
                raise OSError("a broken record")
            yield batch

    whole = trainer(device)
    whole.fit(read, found)
    bad[0] = True
    with pytest.raises(OSError, match="a broken record"):
        trainer(device, tmp_path).fit(read, found)
    bad[0] = False
    again = trainer(device, tmp_path)
    again.fit(read, found, ckpt_path="last")
    assert again.resumed.step == 3 and bits(again.model) == bits(whole.model)


@pytest.mark.cpu
def test_a_trainer_and_a_setup_are_freed_when_they_are_dropped(tmp_path):
    folders = (tmp_path / str(number) for number in count())
    works = {
        "trainer": lambda: trainer("cpu", next(folders)).fit(batches(), batches()),
        "setup": lambda: next(iter(ampkit.setup(*parts("cpu"), batches()))),
    }
    assert not garbage.left_behind(works)
