"""Data, evaluations and callbacks that raise: the last whole step is saved, and a resume has the bits of no error."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import Callback, Trainer, nn, ops, optim
from ampkit.core import random
from ampkit.distributed import DistError
from ampkit.optim.lr_scheduler import LambdaLR
from ampkit.run.ranks import Ranks
from ampkit.utils.data import DataLoader, Dataset, IterableDataset

pytestmark = pytest.mark.no_gpu
rng = np.random.default_rng(0)
X, Y = rng.standard_normal((56, 6)).astype(np.float32), rng.integers(0, 3, 56)


class Data(Dataset):
    """Samples, of which one cannot be read while `bad` is set; on each rank others."""

    def __init__(self, rank=0):
        self.bad, self.x = False, X + np.float32(rank)

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        if self.bad and index == 37:
            raise ValueError("sample 37 is broken")
        return self.x[index], Y[index]

    def batches(self):
        for i in range(0, len(X), 8):
            rows = [self[j] for j in range(i, i + 8)]
            yield ampkit.tensor(np.stack([x for x, _ in rows])), ampkit.tensor([int(y) for _, y in rows])

    def noisy(self):
        """Batches that draw from ampkit's random stream before they are read."""
        noise = (ampkit.randn(8, 6) for _ in range(7))
        read = self.batches()
        return ((each + x, y) for each, (x, y) in zip(noise, read, strict=False))


class Anew:
    """An iterable of known length without a place, in another order in each epoch."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return 7

    def __iter__(self):
        order = ampkit.randperm(56).tolist()
        for i in range(0, 56, 8):
            rows = [self.data[j] for j in order[i : i + 8]]
            yield ampkit.tensor(np.stack([x for x, _ in rows])), ampkit.tensor([int(y) for _, y in rows])


class Placed:
    """Batches of unknown length that keep their place, and hand out the dict that they keep it in."""

    def __init__(self, data):
        self.data, self.place = data, {"at": 0}

    def __iter__(self):
        for number, batch in enumerate(self.data.batches()):
            if number == self.place["at"]:
                self.place["at"] += 1
                yield batch
        self.place["at"] = 0

    def state_dict(self):
        return self.place

    def load_state_dict(self, state):
        self.place.update(state)


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return (self.data[i] for i in range(56))


MADE = {
    "DataLoader": lambda data: DataLoader(data, 8, shuffle=True),
    "workers": lambda data: DataLoader(data, 8, shuffle=True, num_workers=2),
    "a stream": lambda data: DataLoader(Stream(data), 8),
    "an iterable": Anew,
    "a function": lambda data: data.batches,
    "a function that draws": lambda data: data.noisy,
    "a place of its own": Placed,
}


def loss(model, batch):
    x, y = batch
    return ops.cross_entropy(model(x), y)


def trainer(directory, *callbacks, without=(), schedule_free=False, **options):
    ampkit.manual_seed(3)
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3)]
    model = nn.Sequential(*(each for each in layers if not isinstance(each, without)))
    optimizer = (optim.AdamWScheduleFree if schedule_free else optim.AdamW)(model.parameters(), lr=0.05)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    chosen = {"max_steps": 6, "ema": 0.9, "log_every_n_steps": 1, "enable_model_summary": False} | options
    return Trainer(
        model, optimizer, chosen.pop("loss", loss), lr_scheduler=schedule, default_root_dir=directory,
        callbacks=callbacks, **chosen,
    )  # fmt: skip


class At(Callback):
    """Does something after an update."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        if batch_idx == self.step:
            self.action()


def bits(found):
    """The bits of all that was trained."""
    tensors = [*found.model.state_dict().values(), *found.average.state_dict().values()]
    tensors += [value for each in found.optimizer.state_dict()["state"].values() for value in each.values()]
    values = [each.numpy(force=True).tobytes() if isinstance(each, ampkit.Tensor) else each for each in tensors]
    return values, found.schedule.state_dict(), ampkit.get_rng_state(), found.done


def rows(directory):
    found = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in row.items() if name not in ("seconds", "memory")} for row in found]


def trained(directory, kind, rank=0, breaks=None, resumes=False, **options):
    """A training on new data of a kind, a sample of which breaks after an update; with what it raised."""
    data = Data(rank)
    at = [] if breaks is None else [At(breaks, lambda: setattr(data, "bad", True))]
    found, caught = trainer(directory, *at, **options), None
    try:
        found.fit(MADE[kind](data), DataLoader(Data(rank), 16), ckpt_path="last" if resumes else None)
    except Exception as error:
        caught = error
    return bits(found), caught


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("kind", MADE)
def test_a_training_whose_data_raise_is_saved_and_goes_on_bit_for_bit(kind, accumulate, tmp_path):
    options = {"accumulate_grad_batches": accumulate, "max_steps": {1: 13, 3: 6}[accumulate]}
    if accumulate == 3:  # no checkpoint is due before the error
        options["val_check_interval"] = 5
    if kind == "a function that draws":  # between the batches nothing else may draw
        options["without"] = nn.Dropout
    whole, error = trained(tmp_path / "whole", kind, **options)
    assert error is None
    stopped, error = trained(tmp_path / "run", kind, breaks=2, **options)
    assert str(error) == "sample 37 is broken"
    assert error.__notes__ == [f"raised by the training data, after step {stopped[-1]}"]
    assert (tmp_path / f"run/checkpoints/step-{stopped[-1]:08d}.json").exists()
    again, error = trained(tmp_path / "run", kind, resumes=True, **options)
    assert error is None and again == whole
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def test_a_training_that_its_data_ended_goes_on_in_the_same_process(tmp_path):
    whole, data = trainer(tmp_path / "whole"), Data()
    whole.fit(DataLoader(data, 8, shuffle=True))
    found = trainer(tmp_path / "run", At(2, lambda: setattr(data, "bad", True)))
    loader = DataLoader(data, 8, shuffle=True)
    with pytest.raises(ValueError, match="sample 37 is broken"):
        found.fit(loader)
    data.bad = False
    found.fit(loader)
    assert bits(found) == bits(whole)


# several ranks


@pytest.fixture
def on_two(monkeypatch):
    """Runs program(rank) on two ranks, each a thread with its own random stream."""
    here = threading.local()
    monkeypatch.setattr(Ranks, "present", lambda: Ranks(here.group))

    def run(program):
        def on_rank(group):
            here.group = group
            with random.drawing_from(random.Stream()):
                return program(group.rank())

        return on_ranks(2, on_rank, timeout=10.0)

    return run


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize(("kind", "accumulate"), [("workers", 1), ("a function", 3), ("an iterable", 3)])
def test_all_ranks_save_the_last_whole_step_where_the_data_of_one_raise(kind, accumulate, bad, on_two, tmp_path):
    options = {"accumulate_grad_batches": accumulate, "max_steps": {1: 13, 3: 5}[accumulate]}
    options["val_check_interval"] = 5
    options["without"] = nn.BatchNorm1d  # whose statistics are those of rank 0
    whole = on_two(lambda rank: trained(tmp_path / "whole", kind, rank, **options))
    assert [error for _, error in whole] == [None, None] and whole[0][0][0] == whole[1][0][0]
    breaks = lambda rank: 2 if rank == bad else None  # noqa: E731
    stopped = on_two(lambda rank: trained(tmp_path / "run", kind, rank, breaks(rank), **options))
    own, other = stopped[bad][1], stopped[1 - bad][1]
    assert type(own) is ValueError and str(own) == "sample 37 is broken"
    assert type(other) is DistError and str(other) == "rank 1: " * bad + "ValueError: sample 37 is broken"
    done = stopped[0][0][-1]
    assert own.__notes__ == other.__notes__ == [f"raised by the training data, after step {done}"]
    assert stopped[1][0][-1] == done > 1
    again = on_two(lambda rank: trained(tmp_path / "run", kind, rank, resumes=True, **options))
    assert again == whole
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


class Failing(Callback):
    """Raises once, in one hook on one rank, after an update."""

    def __init__(self, hook, step, bad=0, rank=0):
        self.wrong = rank == bad
        setattr(self, hook, lambda trainer, *arguments: self.fail(trainer, step))

    def fail(self, trainer, step):
        if self.wrong and trainer.done == step:
            raise ValueError("of the callback")


def evaluated(directory, rank=0, callbacks=(), bad=None, resumes=False):
    """A training with an evaluation after every third update, the second of which may meet a broken sample."""
    data, held_out = Data(rank), Data(rank)
    at = [] if bad is None else [At(5, lambda: setattr(held_out, "bad", rank == bad))]
    options = {"val_check_interval": 3, "without": nn.BatchNorm1d, "schedule_free": True}
    found, caught = trainer(directory, *at, *callbacks, **options), None
    try:
        found.fit(DataLoader(data, 8, shuffle=True), held_out.noisy, ckpt_path="last" if resumes else None)
    except Exception as error:
        caught = error
    return bits(found), caught


def test_a_broken_evaluation_is_preceded_by_a_checkpoint_of_the_weights_that_are_trained(tmp_path):
    whole, error = evaluated(tmp_path / "whole")
    assert error is None
    _, error = evaluated(tmp_path / "run", bad=0)
    assert str(error) == "sample 37 is broken" and error.__notes__ == ["raised by the evaluation, after step 6"]
    again, error = evaluated(tmp_path / "run", resumes=True)
    assert error is None and again == whole
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


@pytest.mark.parametrize("bad", [0, 1])
def test_all_ranks_save_before_they_end_with_the_error_of_an_evaluation(bad, on_two, tmp_path):
    whole = on_two(lambda rank: evaluated(tmp_path / "whole", rank))
    stopped = on_two(lambda rank: evaluated(tmp_path / "run", rank, bad=bad))
    assert str(stopped[bad][1]) == "sample 37 is broken"
    assert str(stopped[1 - bad][1]).endswith("ValueError: sample 37 is broken")
    assert stopped[1 - bad][1].__notes__ == ["raised by the evaluation, after step 6"]
    assert on_two(lambda rank: evaluated(tmp_path / "run", rank, resumes=True)) == whole
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


@pytest.mark.parametrize(
    ("hook", "step", "bad"), [("on_train_batch_end", 4, 0), ("on_train_batch_end", 4, 1), ("on_validation_end", 3, 1)]
)
def test_all_ranks_save_before_they_end_with_the_error_of_a_callback(hook, step, bad, on_two, tmp_path):
    whole = on_two(lambda rank: evaluated(tmp_path / "whole", rank))
    stopped = on_two(lambda rank: evaluated(tmp_path / "run", rank, [Failing(hook, step, bad, rank)]))
    for _, error in stopped:
        assert str(error).endswith("of the callback")
        assert error.__notes__ == [f"raised by Failing.{hook}, after step {step}"]
    assert on_two(lambda rank: evaluated(tmp_path / "run", rank, resumes=True)) == whole
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
