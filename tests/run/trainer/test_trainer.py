"""Trainer: the bits of a plain loop, exact resume with any data, and errors that lose nothing."""

from __future__ import annotations

import inspect
import json
import re
import signal

import numpy as np
import pytest

import ampkit
from ampkit import Callback, EarlyStopping, ModelCheckpoint, Trainer, nn, ops, optim
from ampkit.base.errors import ArgumentError, ConfigError, DTypeError, FileError, NonFiniteError, StateError
from ampkit.base.file_lock import LOCK_NAME, Lock
from ampkit.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from ampkit.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from ampkit.utils.data import DataLoader, IterableDataset, TensorDataset

pytestmark = pytest.mark.cpu  # but for test_on_a_device.py
rng = np.random.default_rng(0)
X, Y = rng.standard_normal((56, 6)).astype(np.float32), rng.integers(0, 3, 56)
DATA = TensorDataset(ampkit.tensor(X), ampkit.tensor(Y))
DTYPES = {"32-true": None, "bf16-mixed": ampkit.bfloat16, "16-mixed": ampkit.float16}


def loss(model, batch):
    x, y = batch
    logits = model(x)
    return {"loss": ops.cross_entropy(logits, y), "accuracy": (logits.argmax(1) == y).float().mean()}


def parts(lr=0.05):
    ampkit.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = optim.AdamW(model.parameters(), lr=lr)
    return model, optimizer, LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


def trainer(directory=None, lr=0.05, function=loss, **options):
    model, optimizer, schedule = parts(lr)
    chosen = {"max_steps": 12, "precision": "16-mixed", "ema": 0.9, "log_every_n_steps": 1} | options
    return Trainer(model, optimizer, function, lr_scheduler=schedule, default_root_dir=directory, **chosen)


def shuffled():
    return DataLoader(DATA, 8, shuffle=True)


def in_order():
    return [(ampkit.tensor(X[i : i + 8]), ampkit.tensor(Y[i : i + 8])) for i in range(0, 56, 8)]


class Permuted:
    """Another order in each epoch, of ampkit's random stream; a place of its own is unknown."""

    def __iter__(self):
        batches = in_order()
        return iter([batches[i] for i in ampkit.randperm(7).tolist()])


class Placed:
    """Batches in order that keep their place themselves, as loaders of other libraries do; of unknown length."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 7:
            self.at += 1
            yield in_order()[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Stream(IterableDataset):
    """Samples of unknown length."""

    def __iter__(self):
        return zip(X, Y, strict=True)


DATA_OF = {
    "DataLoader": shuffled,
    "list": in_order,
    "function": lambda: lambda: (batch for batch in in_order()),
    "an order drawn per epoch": Permuted,
    "a place of its own": Placed,
    "a stream": lambda: DataLoader(Stream(), 8),
}
UNKNOWN_LENGTH = ["function", "an order drawn per epoch", "a place of its own", "a stream"]


def bits(found):
    """The bits of all that was trained, by name."""
    held = [found.model.state_dict(), found.average.state_dict(), found.optimizer.state_dict(), ampkit.get_rng_state()]
    return dict(flat(held))


def flat(value, path=()):
    if isinstance(value, ampkit.Tensor):
        yield path, value.numpy(force=True).tobytes()
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(item, (*path, key))
    else:
        yield path, value


def rows(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


class At(Callback):
    """Does something after an update."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        if batch_idx == self.step:
            self.action(trainer)


def raising(trainer):
    raise ValueError("of the callback")


# what it computes


@pytest.mark.parametrize("precision", DTYPES)
def test_a_trainer_has_the_bits_of_the_plain_loop(precision):
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "precision": precision, "max_steps": 6}
    trained = trainer(**options)
    trained.fit(shuffled())

    model, optimizer, schedule = parts()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    scaler = ampkit.GradScaler(enabled=precision == "16-mixed")
    loader, done = shuffled(), 0
    while done < 12:
        for x, y in loader:
            with ampkit.autocast(dtype=DTYPES[precision], enabled=precision != "32-true"):
                value = ops.cross_entropy(model(x), y) / 2
            scaler.scale(value).backward()
            done += 1
            if done % 2 == 0:
                scaler.unscale_(optimizer)
                optim.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
                average.update_parameters(model)
            if done == 12:
                break
    for one, other in ((trained.model, model), (trained.average.module, average.module)):
        found, wanted = one.state_dict(), other.state_dict()
        assert all((found[name] == wanted[name]).all() for name in wanted)


def test_it_learns_evaluates_each_epoch_and_predicts():
    written = []
    trained = trainer(max_steps=None, max_epochs=3, logger=written.append)
    trained.fit(shuffled(), in_order())
    evaluations = [row for row in written if "val_loss" in row]
    assert [row["step"] for row in evaluations] == [7, 14, 21]
    assert evaluations[-1]["val_loss"] < evaluations[0]["val_loss"]
    found = trained.validate(in_order())
    assert {"step": 21, **found} == evaluations[-1]
    outputs = trained.predict([x for x, _ in in_order()])
    right = np.concatenate([each.argmax(1).numpy(force=True) for each in outputs]) == Y
    assert found["accuracy"] == pytest.approx(right.mean())
    assert (trained.global_step, trained.current_epoch) == (21, 3)


def test_metrics_weigh_batches_by_their_samples():
    trained = trainer(precision="32-true", max_steps=1)
    whole = trained.validate([(ampkit.tensor(X), ampkit.tensor(Y))])
    uneven = [(ampkit.tensor(X[:3]), ampkit.tensor(Y[:3])), (ampkit.tensor(X[3:]), ampkit.tensor(Y[3:]))]
    assert trained.validate(uneven) == pytest.approx(whole)


def test_data_of_unknown_length_end_after_their_epochs():
    trained = trainer(max_steps=None, max_epochs=2, accumulate_grad_batches=4)
    trained.fit(lambda: iter(in_order()), in_order())
    assert (trained.done, trained.steps, trained.evaluated) == (3, 3, 3)


@pytest.mark.parametrize("kind", ["function", "a place of its own"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_data_of_unknown_length_are_evaluated_after_the_steps_of_a_list(kind, accumulate):
    found = []
    for data in (in_order(), DATA_OF[kind]()):
        written = []
        trainer(logger=written.append, accumulate_grad_batches=accumulate, max_steps=17).fit(data, in_order())
        found.append([(row["step"], row["val_loss"]) for row in written if "val_loss" in row])
    assert [step for step, _ in found[0]] == {1: [7, 14, 17], 3: [3, 5, 7, 10, 12, 14, 17]}[accumulate]
    assert found[0] == found[1]


def test_early_stopping_sees_the_passes_over_a_generator():
    stopping = EarlyStopping(patience=1)
    trained = trainer(lr=1e-9, max_steps=40, callbacks=stopping, precision="32-true")
    trained.fit(lambda: iter(in_order()), in_order())
    assert trained.done == stopping.stopped_step and trained.done % 7 == 0 and trained.done < 40


def test_what_the_next_batch_raises_is_raised_after_the_step_before_it_was_saved(tmp_path):
    def failing():
        yield from in_order()[:3]
        raise OSError("a broken record")

    with pytest.raises(OSError, match="a broken record"):
        trainer(tmp_path, callbacks=ModelCheckpoint(every_n_train_steps=1)).fit(failing, in_order())
    again = trainer(tmp_path)
    again.fit(lambda: iter(in_order()), in_order(), ckpt_path="last")
    assert again.resumed.step == 3 and again.done == 12


# resume


@pytest.mark.parametrize(("kind", "stop"), [*((kind, 7) for kind in DATA_OF), ("list", 3), ("list", 9)])
def test_a_resumed_training_has_the_bits_of_one_that_never_stopped(kind, stop, tmp_path):
    make = DATA_OF[kind]
    whole = trainer(tmp_path / "whole", val_check_interval=4)
    whole.fit(make(), DataLoader(DATA, 16))
    wanted = bits(whole)
    first = trainer(tmp_path / "run", val_check_interval=4, callbacks=At(stop, lambda found: found.stop()))
    first.fit(make(), DataLoader(DATA, 16))
    assert first.done == stop
    again = trainer(tmp_path / "run", val_check_interval=4)
    ampkit.manual_seed(99)  # the checkpoint's random state counts
    again.fit(make(), DataLoader(DATA, 16), ckpt_path="last")
    assert bits(again) == wanted
    values = [
        [(row["step"], row.get("loss"), row.get("val_loss")) for row in rows(tmp_path / each)]
        for each in ("whole", "run")
    ]
    assert values[0] == values[1]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", UNKNOWN_LENGTH)
def test_passes_over_data_of_unknown_length_survive_a_resume_at_every_step(kind, accumulate, tmp_path):
    make, options = DATA_OF[kind], {"accumulate_grad_batches": accumulate}
    whole = trainer(tmp_path / "whole", **options)
    whole.fit(make(), in_order())
    for stop in (4, 5, 7, 8, 13):
        actions = [At(stop, lambda found: found.stop()), ModelCheckpoint(every_n_train_steps=1)]
        found = trainer(tmp_path / "run", callbacks=actions, **options)
        found.fit(make(), in_order(), ckpt_path="last")
    assert bits(found) == bits(whole)
    values = [
        [(row["step"], row.get("loss"), row.get("val_loss")) for row in rows(tmp_path / each)]
        for each in ("whole", "run")
    ]
    assert values[0] == values[1] and sum(row[2] is not None for row in values[0]) == {1: 2, 2: 4}[accumulate]


def test_batches_drawn_as_they_are_asked_for_resume_from_a_checkpoint_behind_which_one_was_looked_at(tmp_path):
    def noisy():
        return ((x + ampkit.randn(8, 6), y) for x, y in in_order())

    def made(directory):
        ampkit.manual_seed(3)
        model = nn.Linear(6, 3)
        keeping = ModelCheckpoint(every_n_train_steps=1, keep=9)
        chosen = {"max_steps": 9, "callbacks": keeping, "default_root_dir": directory}
        return Trainer(model, optim.SGD(model.parameters(), lr=0.1), loss, **chosen)

    whole = made(tmp_path)
    whole.fit(noisy, in_order())
    for step in (1, 6, 7, 8):
        found = made(None)
        found.fit(noisy, in_order(), ckpt_path=tmp_path / f"checkpoints/step-{step:08d}.json")
        assert found.resumed.step == step and (found.model.weight == whole.model.weight).all()


def test_ctrl_c_leaves_a_checkpoint_from_which_it_continues(tmp_path):
    whole = trainer()
    whole.fit(shuffled())
    wanted = bits(whole)
    seen = []

    class Seen(Callback):
        def on_exception(self, trainer, exception):
            seen.append((trainer.done, type(exception).__mro__[1]))

    interrupt = At(5, lambda found: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer(tmp_path, callbacks=[interrupt, Seen()]).fit(shuffled())
    assert seen == [(5, KeyboardInterrupt)]
    assert 'after step 5; fit(..., ckpt_path="last") continues' in caught.value.__notes__
    again = trainer(tmp_path)
    again.fit(shuffled(), ckpt_path="last")
    assert bits(again) == wanted


def test_a_callback_that_raises_is_named_and_nothing_is_lost(tmp_path):
    whole = trainer()
    whole.fit(shuffled())
    wanted = bits(whole)
    with pytest.raises(ValueError, match="of the callback") as caught:
        trainer(tmp_path, callbacks=At(5, raising)).fit(shuffled())
    assert caught.value.__notes__ == ["raised by At.on_train_batch_end, after step 5"]
    again = trainer(tmp_path)
    again.fit(shuffled(), ckpt_path="last")
    assert bits(again) == wanted


def test_a_logger_function_that_raises_loses_no_row(tmp_path):
    def failing(row):
        if row["step"] == 4:
            raise OSError("no line")

    with pytest.raises(OSError, match="no line") as caught:
        trainer(tmp_path, logger=failing).fit(shuffled())
    assert caught.value.__notes__ == ["raised by a logger, after step 4"]
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]
    assert list((tmp_path / "checkpoints").glob("step-00000004.json"))


def test_a_generator_cannot_resume_and_says_so(tmp_path):
    trainer(tmp_path, max_steps=3).fit(iter(in_order()))
    with pytest.raises(ArgumentError, match="can be iterated from their beginning to resume, got a list_iterator"):
        trainer(tmp_path).fit(iter(in_order()), ckpt_path="last")


def test_data_in_another_order_are_refused_on_resume(tmp_path):
    trainer(tmp_path, max_steps=3).fit(in_order())
    with pytest.raises(StateError, match="the 3 batches that were seen already, got another batch 3 of epoch"):
        trainer(tmp_path).fit(in_order()[::-1], ckpt_path="last")


def test_data_that_end_early_raise_after_a_checkpoint(tmp_path):
    with pytest.raises(ArgumentError, match="needs batches, enough for 12 updates, got 7 in 2 epochs\nhelp: a gener"):
        trainer(tmp_path).fit(iter(in_order()))
    assert list((tmp_path / "checkpoints").glob("step-00000007.json"))


def test_a_directory_of_another_run_is_refused_and_so_is_one_in_use(tmp_path):
    trainer(tmp_path, max_steps=2).fit(in_order())
    with pytest.raises(FileError, match=r'which holds a run\nhelp: .* ckpt_path="last"'):
        trainer(tmp_path).fit(in_order())
    lock = Lock(tmp_path / LOCK_NAME, "another")
    with pytest.raises(FileError, match="for itself, got process"):
        trainer(tmp_path).fit(in_order(), ckpt_path="last")
    lock.release()
    trainer(tmp_path).fit(in_order(), ckpt_path="last")


def test_fit_again_goes_on_with_the_same_data_and_refuses_others():
    whole, data = trainer(), in_order()
    whole.fit(data)
    wanted, found = bits(whole), trainer(max_steps=5)
    found.fit(data)
    with pytest.raises(StateError, match="the data that it was training on"):
        found.fit(in_order())
    found.max_steps = 12
    found.fit(data)
    assert bits(found) == wanted


# what ends and keeps


def test_early_stopping_ends_the_training_and_a_resume_stays_ended(tmp_path):
    stopping = EarlyStopping("val_loss", patience=2)
    trained = trainer(tmp_path, lr=1e-9, max_steps=40, val_check_interval=2, callbacks=stopping, precision="32-true")
    trained.fit(in_order(), in_order())
    assert trained.finished and trained.done == stopping.stopped_step < 40
    options = {"max_steps": 40, "val_check_interval": 2, "precision": "32-true"}
    again = trainer(tmp_path, lr=1e-9, callbacks=EarlyStopping(patience=2), **options)
    again.fit(in_order(), in_order(), ckpt_path="last")
    assert again.done == trained.done
    longer = trainer(tmp_path, lr=1e-9, callbacks=EarlyStopping(patience=4), **options)
    longer.fit(in_order(), in_order(), ckpt_path="last")
    assert longer.done > trained.done


@pytest.mark.parametrize("progress", [False, True])
def test_a_training_that_ended_early_says_so_and_why(progress, capsys):
    options = {"lr": 1e-9, "max_steps": 40, "val_check_interval": 3, "precision": "32-true", "progress": progress}
    trained = trainer(callbacks=EarlyStopping("accuracy", patience=2), **options)
    trained.fit(in_order(), in_order())
    ended = f"ended early, after step {trained.done} of 40: no larger accuracy in 2 evaluations"
    assert trained.early_end == ended and capsys.readouterr().out.splitlines()[-1] == ended
    whole = trainer(max_steps=3, enable_model_summary=False)
    whole.fit(in_order())
    assert whole.early_end == "" == capsys.readouterr().out
    options["enable_model_summary"] = False
    own = trainer(callbacks=At(5, lambda found: setattr(found, "should_stop", True)), **options)
    own.fit(lambda: iter(in_order()))
    assert own.early_end == "ended early, after step 5 of 40"
    assert (own.early_end in capsys.readouterr().out) == progress


def test_a_training_that_is_started_again_when_it_is_complete_says_so(tmp_path, capsys):
    for options, said in (({"max_steps": 3}, "max_steps=6"), ({"max_steps": None, "max_epochs": 1}, "max_epochs=2")):
        for data in (in_order(), lambda: iter(in_order())):
            directory = tmp_path / f"{said}{callable(data)}"
            trainer(directory, **options).fit(data)
            assert "complete" not in capsys.readouterr().out
            again = trainer(directory, **options)
            again.fit(data, ckpt_path="last")
            line = f"complete: all {again.done} updates are done; {said} would continue"
            assert capsys.readouterr().out.splitlines()[-1] == line


def test_a_change_of_min_delta_is_no_improvement():
    class Found:
        done, should_stop, callback_metrics = 1, False, {"val_loss": 1.0}

    stopping, found = EarlyStopping(patience=1, min_delta=0.5), Found()
    stopping.on_validation_end(found)
    found.callback_metrics = {"val_loss": 0.5}
    stopping.on_validation_end(found)
    assert found.should_stop and stopping.best_score == 1.0


def test_the_best_checkpoints_by_any_metric_are_kept(tmp_path):
    values = iter([0.1, 0.9, 0.5, 0.7, 0.2, 0.3])

    def made(model, batch):
        return loss(model, batch) | {"score": ampkit.tensor(next(values) if not model.training else 0.0)}

    keeping = ModelCheckpoint(monitor="score", mode="max", save_top_k=2, keep=1)
    trained = trainer(tmp_path, function=made, val_check_interval=2, callbacks=keeping)
    trained.fit(in_order(), [(ampkit.tensor(X), ampkit.tensor(Y))])
    found = sorted(int(path.stem[5:]) for path in (tmp_path / "checkpoints").glob("*.json"))
    assert found == [4, 8, 12]
    assert keeping.best_model_score == pytest.approx(0.9)
    state = ampkit.load(keeping.best_model_path)
    assert state["counts"]["done"] == 4
    best = trainer(tmp_path, function=made, max_steps=4, callbacks=ModelCheckpoint(save_top_k=2, keep=1))
    best.fit(in_order(), ckpt_path="best")
    assert (best.model[0].weight == state["model"]["0.weight"]).all()


def test_monitor_chooses_for_every_callback_that_names_no_metric(tmp_path):
    values = iter([0.5, 0.9, 0.7, 0.1, 0.8, 0.2])

    def made(model, batch):
        return loss(model, batch) | {"accuracy": ampkit.tensor(next(values) if not model.training else 0.0)}

    class Own(EarlyStopping):
        pass

    stopping, own = EarlyStopping(patience=3), Own("val_loss", patience=50)
    options = {"val_check_interval": 2, "callbacks": [stopping, own], "monitor": "accuracy"}
    trained = trainer(tmp_path, function=made, **options)
    trained.fit(in_order(), [(ampkit.tensor(X), ampkit.tensor(Y))])
    assert trained.best == (4, pytest.approx(0.9))
    assert trained.done == stopping.stopped_step == 10 and stopping.mode == "max"
    assert (own.monitor, own.mode) == ("val_loss", "min")


def test_a_monitor_without_a_known_direction_is_refused():
    with pytest.raises(ArgumentError, match=r"needs monitor to be val_loss.*got 'f1'\nhelp: .*mode=\"max\""):
        trainer(monitor="f1")
    trainer(monitor="aux_loss")


def test_a_compiled_training_has_the_bits_of_one_that_is_not():
    found = []
    for compiles in (False, True):
        trained = trainer(compile=compiles)
        trained.fit(in_order(), in_order())
        found.append((bits(trained), trained.callback_metrics["val_loss"]))
    assert found[0] == found[1]


def test_progress_shows_each_row_on_the_terminal(capsys):
    trainer(progress=True, max_steps=4, val_check_interval=2, enable_model_summary=False).fit(in_order(), in_order())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("float16  step 1/4  loss ") and "updates/s" in lines[0]
    assert sum("val loss" in line and "accuracy" in line for line in lines) == 2
    trainer(progress=True, enable_model_summary=False, max_steps=None, max_epochs=1).fit(lambda: iter(in_order()))
    assert capsys.readouterr().out.startswith("float16  step 1  loss ")


def test_a_metric_that_evaluations_lack_is_named(tmp_path):
    with pytest.raises(ArgumentError, match="EarlyStopping: needs monitor to be a metric of .*accuracy, got 'f1'"):
        trainer(tmp_path, max_steps=1, callbacks=EarlyStopping("f1")).fit(in_order(), in_order())


# bad numbers and bad arguments


def test_a_loss_that_is_not_finite_names_the_module_and_the_cure_and_changes_no_weight():
    def spoil(found):
        found.model[2].register_forward_hook(lambda module, inputs, output: (output - 1).log())

    trained = trainer(precision="bf16-mixed", callbacks=At(2, spoil))
    before = []
    trained.callbacks += (At(2, lambda found: before.append(bits(found))),)
    with pytest.raises(NonFiniteError, match=r"step 3, bfloat16: needs a finite loss, got nan\n.*: log in 2") as caught:
        trained.fit(in_order())
    assert "\nhelp: clamp the input" in str(caught.value)
    assert trained.done == 2
    assert bits(trained)[0, "0.weight"] == before[0][0, "0.weight"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "fp16"}, "precision to be '32-true', 'bf16-mixed', '16-mixed' or a Policy, got 'fp16'"),
        ({"max_steps": 0}, "max_steps as an integer from 1, got 0"),
        ({"accumulate_grad_batches": 1.5}, "accumulate_grad_batches as an integer from 1"),
        ({"gradient_clip_val": -1.0}, "gradient_clip_val above 0"),
        ({"logger": "tensorbord"}, "or a function of a row, got 'tensorbord'"),
        ({"logger": "csv"}, "default_root_dir, where csv writes"),
        ({"function": 3}, "loss to be a function of model and batch"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(options, says):
    with pytest.raises(ArgumentError, match=says):
        trainer(**options)


def test_parts_that_do_not_fit_are_refused():
    model, optimizer, _ = parts()
    with pytest.raises(DTypeError, match="one whose step takes no metric, got a ReduceLROnPlateau"):
        Trainer(model, optimizer, loss, lr_scheduler=ReduceLROnPlateau(optimizer))
    with pytest.raises(ArgumentError, match="an optimizer of the model's parameters, got one of others"):
        Trainer(nn.Linear(2, 2), optimizer, loss)
    with pytest.raises(ArgumentError, match="max_epochs or max_steps, got neither"):
        Trainer(model, optimizer, loss).fit(in_order())
    with pytest.raises(DTypeError, match=r'or a dict of them with "loss", got a tensor of shape \(8,\)'):
        trainer(function=lambda model, batch: model(batch[0])[:, 0]).fit(in_order())
    with pytest.raises(ArgumentError, match="val_dataloaders: needs a batch in each evaluation, got none"):
        trainer().fit(in_order(), [])
    with pytest.raises(ArgumentError, match="needs 9 batches for an update"):
        trainer(max_steps=None, max_epochs=1, accumulate_grad_batches=9).fit(in_order())
    with pytest.raises(ArgumentError, match="an iterable of batches, or a function that returns one, got a int"):
        trainer().fit(3)


def test_a_policy_with_a_recipe_trains_and_one_that_quantizes_a_norm_is_refused():
    model, optimizer, schedule = parts()
    policy = ampkit.Policy("float8", recipe="delayed", modules={"4": "bfloat16"})
    Trainer(model, optimizer, loss, lr_scheduler=schedule, max_epochs=1, precision=policy).fit(in_order())
    assert [name for name in model.state_dict() if "delayed" in name] == ["0.weight.delayed_scaling"]
    wrong = ampkit.Policy("bfloat16", modules={"1": "mxfp8"})
    with pytest.raises(ConfigError, match="a weight matrix, whose products mxfp8 quantizes, got a BatchNorm1d"):
        Trainer(model, optimizer, loss, precision=wrong)


@pytest.mark.parametrize(
    ("name", "says"),
    [("epochs", "max_epochs=... of the Trainer"), ("learning_rate", "the learning rate is the optimizer's"),
     ("max_epoch", "did you mean 'max_epochs'?"), ("zzz", "it has model, optimizer, loss, max_epochs")],
)  # fmt: skip
def test_an_argument_of_another_library_names_the_one_here(name, says):
    with pytest.raises(
        TypeError, match=re.escape(f"Trainer() got an unexpected keyword argument '{name}'\nhelp: {says}")
    ):
        trainer(**{name: 3})


def test_fit_names_the_argument_of_the_trainer():
    with pytest.raises(TypeError, match=r"Trainer.fit\(\) got .* 'epochs'\nhelp: max_epochs=... of the Trainer"):
        trainer().fit(in_order(), epochs=3)
    assert [*inspect.signature(Trainer.fit).parameters] == ["self", "train_dataloaders", "val_dataloaders", "ckpt_path"]
