"""One step, a whole run, and what they report."""

from __future__ import annotations

import math
import re
import struct
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import garbage
import numpy as np
import pytest

from ampkit import config, nn, ops, optim, tensor
from ampkit.amp.grad_scaler import GradScaler
from ampkit.backends.cpu import threads
from ampkit.base import observe
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ArgumentError, ConfigError, DeviceError, FileError, NonFiniteError, ScaleCollapseError
from ampkit.base.registry import OPTIMIZERS
from ampkit.core.random import get_rng_state, manual_seed, set_rng_state
from ampkit.data import cifar10, digits
from ampkit.run import build, input_pipeline, retraining
from ampkit.run.loop import EvalRow, Run, StepRow, fit
from ampkit.run.step import evaluate, step

RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = ["train.epochs=", "train.steps=6", "train.log_every=2", "train.eval_every=", "train.threads=1"]
SHORT.append('schedule={name="constant"}')


def mlp(*overrides: str):
    return config.load(RECIPES / "digits_mlp.toml", [*SHORT, "model.hidden=[16]", *overrides])


def gpt(*overrides: str):
    small = ["model.n_layer=1", "model.n_embd=16", "model.n_head=2", "model.block_size=8", "train.eval_batches=2"]
    return config.load(RECIPES / "text_gpt.toml", [*small, *SHORT[1:], *overrides])


def steps_of(rows):
    return [row for row in rows if isinstance(row, StepRow)]


def numbers(rows):
    return [(row.loss, row.grad_norm, row.scale) if isinstance(row, StepRow) else row for row in rows]


# a run


def test_a_run_logs_its_first_step_every_so_many_and_the_last_and_evaluates_at_the_end():
    rows = list(fit(mlp("train.steps=5", "train.log_every=2")))
    assert [row.step for row in steps_of(rows)] == [1, 2, 4, 5]
    assert [row.step for row in rows if isinstance(row, EvalRow)] == [5]
    assert isinstance(rows[-1], EvalRow)


def test_a_run_is_freed_when_it_is_dropped():
    recipes = [mlp("train.steps=2"), mlp("train.steps=2", "amp.dtype=float16", "train.ema=0.9", "debug.ranges_every=1")]
    works = {str(recipe.amp.dtype): partial(lambda recipe: list(fit(recipe)), recipe) for recipe in recipes}
    works["left"] = lambda: next(iter(fit(recipes[0])))
    works["compiled"] = lambda: list(fit(mlp("train.steps=2", "train.compile=true")))
    assert not garbage.left_behind(works)


def test_eval_every_evaluates_on_the_way_as_well():
    rows = list(fit(mlp("train.eval_every=4")))
    assert [row.step for row in rows if isinstance(row, EvalRow)] == [4, 6]


def test_monitor_says_which_evaluation_is_best():
    found = {}
    for name in ("val_loss", "accuracy"):
        run = fit(mlp("train.eval_every=1", f"train.monitor={name}"))
        values = [(row.step, getattr(row, name)) for row in run if isinstance(row, EvalRow)]
        found[name] = run.best, values
    for name, better in (("val_loss", min), ("accuracy", max)):
        best, values = found[name]
        assert best == better(values, key=lambda pair: pair[1])


def test_epochs_count_the_batches_of_the_training_data():
    recipe = config.load(RECIPES / "digits_mlp.toml", ["train.epochs=2", "data.batch_size=100"])
    assert fit(recipe).steps == 2 * 15  # 1,437 images
    assert fit(mlp("train.steps=", "train.epochs=2", "data.batch_size=100", "train.accumulate=4")).steps == 7


def test_the_same_recipe_gives_the_same_numbers_and_another_seed_others():
    first, again, other = (numbers(fit(mlp(f"train.seed={seed}", "amp.dtype=float16"))) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("make", [mlp, gpt])
def test_the_first_batch_is_that_of_the_first_step_and_taking_it_changes_nothing_of_the_run(make):
    recipe = make("train.steps=3", "amp.dtype=float32")
    plain = steps_of(Run(recipe))
    run = Run(recipe)
    first = run.first_batch()
    state = get_rng_state()
    loss = run.loss_of(run.model, *first).item()
    set_rng_state(state)
    rows = steps_of(run)
    assert numbers(rows) == numbers(plain)
    assert rows[0].loss == pytest.approx(loss, rel=1e-6)
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(first, run.first_batch(), strict=True))


def test_the_seed_draws_the_weights_too():
    first, again, other = (fit(mlp(f"train.seed={seed}")).model[1].weight.detach().numpy() for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_digits_are_learned():
    rows = list(fit(mlp("train.steps=60", "model.hidden=[64]", "amp.dtype=float16")))
    assert rows[-1].accuracy > 0.8
    assert steps_of(rows)[-1].loss < steps_of(rows)[0].loss / 2


def test_text_is_learned(tmp_path):
    (tmp_path / "text.txt").write_text("abcdefgh" * 500)
    rows = list(fit(gpt(f'data.path="{tmp_path}"', "train.steps=40", "optimizer.lr=0.03")))
    assert rows[-1].val_loss < 1 < math.log(8) < steps_of(rows)[0].loss


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ('{name="mlp", hidden=[8]}', '{name="synthetic_images", count=20, shape=[1, 8, 8], batch_size=4}'),
        ('{name="cnn", width=4}', '{name="synthetic_images", count=20, shape=[1, 8, 8], batch_size=4}'),
        ('{name="resnet18"}', '{name="synthetic_images", count=8, shape=[3, 8, 8], batch_size=2}'),
        ('{name="lenet5"}', '{name="synthetic_images", count=8, shape=[1, 12, 12], batch_size=4}'),
        (
            '{name="convmixer", dim=8, depth=1}',
            '{name="synthetic_images", count=8, shape=[1, 8, 8], batch_size=4}',
        ),
        (
            '{name="vit", num_layers=1, hidden_dim=8, num_heads=2, mlp_dim=8}',
            '{name="synthetic_images", count=8, shape=[1, 8, 8], batch_size=4}',
        ),
        (
            '{name="gpt", n_layer=1, n_embd=8, n_head=1, block_size=4}',
            '{name="synthetic_tokens", count=20, batch_size=4}',
        ),
    ],
)
def test_synthetic_data_feeds_every_model(model, data):
    recipe = config.load(RECIPES / "digits_mlp.toml", [*SHORT, f"model={model}", f"data={data}", "train.steps=1"])
    (row, evaluation) = fit(recipe)
    assert math.isfinite(row.loss)
    assert math.isfinite(evaluation.val_loss)


def idx(values):
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_mnist(folder):
    """Ten images for each part: a texture for each class."""
    folder.mkdir(exist_ok=True)
    images = np.tile(np.random.RandomState(0).randint(0, 256, (10, 4, 4)).astype(np.uint8), (1, 7, 7))
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(10, dtype=np.uint8)))


def test_a_recipe_gives_modules_their_own_dtypes():
    alone = numbers(fit(mlp("amp.dtype=float16")))
    assert numbers(fit(mlp("amp.dtype=float16", 'amp.modules={"**" = "float32"}'))) != alone
    assert numbers(fit(mlp("amp.dtype=float16", 'amp.modules={"**" = "float16"}'))) == alone


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_module_that_the_model_does_not_have_is_refused_before_the_first_step(dtype):
    with pytest.raises(ConfigError, match="needs the path of a module of the model, got 'heads'"):
        Run(mlp(f"amp.dtype={dtype}", "amp.modules.heads=float32"))


def mnist(folder, *overrides):
    given = [f'data.folder="{folder}"', "data.download=false", "data.batch_size=5", *overrides]
    return config.load(RECIPES / "mnist_lenet.toml", [*SHORT, *given])


def test_the_recipe_of_mnist_learns_from_files_in_a_folder(tmp_path):
    write_mnist(tmp_path)
    rows = list(fit(mnist(tmp_path, "data.batch_size=10", "train.steps=60")))
    assert steps_of(rows)[-1].loss < steps_of(rows)[0].loss / 2


def test_augmented_runs_are_the_same_with_and_without_workers_and_others_without_augmenting(tmp_path):
    write_mnist(tmp_path)
    changed = ["data.crop=2", "data.flip=true", "data.cutout=4"]
    alone, helped, plain = (
        numbers(fit(mnist(tmp_path, *words))) for words in (changed, [*changed, "data.workers=2"], [])
    )
    assert alone == helped != plain


def test_the_recipe_of_cifar10_reads_its_files(tmp_path, monkeypatch):
    records = np.concatenate([np.arange(10)[:, None], np.random.RandomState(0).randint(0, 256, (10, 3072))], 1)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (tmp_path / name).write_bytes(records.astype(np.uint8).tobytes())
    monkeypatch.setattr(cifar10, "load", partial(cifar10.load, records=10))
    given = [f'data.folder="{tmp_path}"', "data.download=false", "data.batch_size=4", 'model={name="cnn", width=4}']
    rows = list(fit(config.load(RECIPES / "cifar10_resnet18.toml", [*SHORT, *given, "train.steps=2"])))
    assert all(math.isfinite(row.loss) for row in steps_of(rows))
    assert rows[-1].val_loss > 0


def folders(tmp_path, *overrides):
    for part in ("train", "test"):
        for level, name in enumerate(("dark", "light")):
            (tmp_path / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(3):
                np.save(tmp_path / part / name / f"{i}.npy", np.full((8, 8), 20 * i + 150 * level, np.uint8))
    data = f'{{name="images", folder="{tmp_path}/train", held_out="{tmp_path}/test", shape=[1, 8, 8], classes=2}}'
    return mlp(f"data={data}", "data.batch_size=3", *overrides)


def test_a_folder_per_class_is_learned(tmp_path):
    rows = list(fit(folders(tmp_path, "train.steps=20", "data.workers=2")))
    assert rows[-1].accuracy == 1


def test_another_number_of_folders_than_of_classes_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="data.classes: needs 2, the folders in .*train, got 3"):
        fit(folders(tmp_path, "data.classes=3"))


def test_a_folder_without_the_files_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(FileError, match="mnist: needs .*train-images-idx3-ubyte.gz, got no such file"):
        fit(mnist(tmp_path))


def test_a_run_whose_every_step_was_skipped_has_failed():
    run = iter(fit(mlp("amp.dtype=float16", "amp.init_scale=1e38", "train.steps=3")))
    with pytest.raises(NonFiniteError, match="training: needs a step whose gradients are finite, got 3 skipped"):
        list(run)


def test_overrides_of_ops_are_checked_where_autocast_is_off_too():
    with pytest.raises(ConfigError, match="Policy: needs the name of an op, got 'mul_'"):
        fit(mlp("amp.overrides={mul_='low'}"))


def test_iterating_again_goes_on_where_the_run_was_left():
    whole, run = numbers(fit(mlp())), fit(mlp())
    rows = iter(run)
    parts = [next(rows), next(rows)]
    parts += list(run)
    assert numbers(parts) == whole


def test_seconds_leave_evaluations_out_and_never_fall(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("ampkit.run.trainer.loop.time.perf_counter", lambda: float(next(clock)))
    assert [row.seconds for row in steps_of(fit(mlp("train.eval_every=1")))] == [1, 2, 4, 6]


# precision


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", bfloat16), ("float16", float16), ("float32", float32)])
def test_the_products_of_a_run_are_in_the_recipes_dtype_also_when_it_evaluates(name, dtype):
    seen = {}
    with observe.watch(lambda op, inputs, out: seen.setdefault(op, set()).add(getattr(out, "dtype", None))):
        list(fit(mlp(f"amp.dtype={name}", "train.steps=1")))
    assert seen["linear"] == {dtype}
    assert ("cast" in seen) == (name != "float32")


@pytest.mark.parametrize(("name", "scale"), [("bfloat16", 1), ("float16", 1024), ("float32", 1)])
def test_only_float16_scales_its_loss(name, scale):
    assert {row.scale for row in steps_of(fit(mlp(f"amp.dtype={name}", "amp.init_scale=1024.0")))} == {scale}


def test_a_policy_of_the_recipe_is_the_one_in_force():
    seen = set()
    with observe.watch(lambda op, inputs, out: seen.add(out.dtype) if op == "linear" else None):
        list(fit(mlp("amp.dtype=float16", 'amp.overrides={linear="float32"}', "train.steps=1")))
    assert seen == {np.dtype("float32")}


def test_skipped_steps_are_counted_and_back_the_scale_off():
    rows = steps_of(fit(mlp("amp.dtype=float16", "amp.init_scale=1e12", "train.log_every=1", "train.steps=30")))
    assert rows[0].skipped == 1
    assert 2 <= rows[-1].skipped < 30
    assert rows[-1].scale == pytest.approx(1e12 / 2 ** rows[-1].skipped)
    assert not math.isfinite(rows[0].grad_norm)


# optimizers


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_recipe_trains_with_each_optimizer(name, dtype):
    rows = list(fit(mlp(f'optimizer={{name="{name}"}}', f"amp.dtype={dtype}", "train.steps=4", "train.eval_batches=1")))
    assert all(math.isfinite(row.loss) for row in steps_of(rows))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_section_builds_the_optimizer_of_its_name_with_that_ones_defaults(name):
    recipe = mlp(f'optimizer={{name="{name}"}}')
    made = build.optimizer(recipe, build.model(recipe))
    assert type(made) is OPTIMIZERS[name].build
    group = {"params": [nn.Parameter(tensor([1.0]))]} | ({"use_muon": False} if name == "muon" else {})
    assert made.defaults == type(made)([group]).defaults


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_parameters_are_16_bits_and_buffers_stay_float32(dtype):
    low = [f"amp.dtype={dtype}", "amp.parameters=low", "optimizer.stochastic_rounding=true", "train.eval_batches=1"]
    run = fit(config.load(RECIPES / "digits_cnn.toml", [*SHORT, *low, "model.width=4"]))
    rows = list(run)
    assert {p.dtype.name for p in run.model.parameters()} == {dtype}
    assert {b.dtype.name for b in run.model.buffers() if b.is_floating_point()} == {"float32"}
    assert "master" not in run.optimizer.state_dict()["state"][0]
    assert all(math.isfinite(row.loss) for row in steps_of(rows))


def test_rounding_stochastically_is_for_low_parameters():
    with pytest.raises(ConfigError, match="optimizer.stochastic_rounding: needs false, or parameters in 16 bits"):
        mlp("optimizer.stochastic_rounding=true")


# averages


def test_an_average_of_the_weights_is_what_evaluations_use():
    run, seen = fit(mlp("train.ema=0.75", "train.log_every=1", "train.eval_batches=2")), []
    for row in run:
        if isinstance(row, StepRow):
            seen.append(run.model[1].weight.detach().numpy().astype(np.float64))
    want = seen[0]
    for each in seen[1:]:
        want = 0.75 * want + 0.25 * each
    np.testing.assert_allclose(run.average.module[1].weight.detach().numpy(), want, rtol=0, atol=1e-6)
    found = evaluate(run.average.module, run._pipeline.held_out(), nullcontext())
    assert found[:2] == (row.val_loss, row.accuracy)
    assert found != evaluate(run.model, run._pipeline.held_out(), nullcontext())


# bad numbers


def test_a_loss_that_is_not_finite_stops_the_run_with_the_step_and_the_cure():
    says = r"step \d, float32: needs a finite loss, got (nan|inf)\nthe loss is not finite: linear in \d, forward"
    with pytest.raises(NonFiniteError, match=says) as caught:
        list(fit(mlp('optimizer={name="sgd", lr=1e30}')))
    assert re.search(r"help: lower the learning rate, from 1e\+30 to 0.1, optimizer.lr=0.1 \(tried", str(caught.value))


def test_a_learning_rate_that_takes_too_long_to_try_is_still_what_is_named(monkeypatch):
    # Weights that training has made grow: a norm would make the step finite, and hide that the training diverges.
    monkeypatch.setattr(retraining, "_MOST_SECONDS", 0.0)
    with pytest.raises(NonFiniteError) as caught:
        list(fit(mlp('optimizer={name="sgd", lr=1e30}')))
    assert "normalize" not in str(caught.value)
    assert "in this recipe: lower optimizer.lr (it was 1e+30)" in str(caught.value)


def test_a_training_that_tries_out_a_cure_asks_for_no_further_ones(monkeypatch):
    retrain, tried = retraining.retrain, list[float]()

    def counted(start, recipe, steps, factor):
        tried.append(recipe.optimizer.lr * factor)
        return retrain(start, recipe, steps, factor)

    monkeypatch.setattr(retraining, "retrain", counted)
    with pytest.raises(NonFiniteError):
        list(fit(mlp('optimizer={name="sgd", lr=1e30}')))
    assert len(tried) < 12, tried


def test_weights_that_float16_cannot_hold_do_not_end_a_run_in_silence():
    # Every step overflows in the forward and is skipped; too few of them for the scale to count as collapsed.
    run, rows = fit(mlp("amp.dtype=float16", "train.steps=12", 'optimizer={name="adamw", lr=1e9}')), []
    with pytest.raises(NonFiniteError, match=r"evaluation after step 12, float16: needs a finite loss, got (nan|inf)"):
        rows.extend(run)
    assert isinstance(rows[-1], EvalRow)


def test_a_scale_that_collapses_stops_the_run():
    with pytest.raises(ScaleCollapseError):
        list(fit(mlp("amp.dtype=float16", f"amp.init_scale={2.0**97}", f"amp.min_scale={2.0**96}")))


def test_nan_in_the_data_is_named_before_anything_runs(monkeypatch):
    load = digits.load

    def spoilt(split):
        images, labels = load(split)
        images[[7, 9]] = np.nan
        return images, labels

    monkeypatch.setattr(digits, "load", spoilt)
    with pytest.raises(ArgumentError, match="training data: needs finite values, .* 2 of 1437 .* number 7"):
        fit(mlp())


# what cannot run here


@pytest.mark.no_gpu
@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("train.device=cuda", DeviceError, "cuda: needs"),
        ('schedule={name="constant", warmup=100}', ConfigError, "schedule.warmup: needs less than the 46 steps"),
        ('amp={dtype="float16", overrides={no_such_op="low"}}', ConfigError, "the name of an op"),
    ],
)
def test_a_recipe_that_cannot_run_here_is_refused_before_it_starts(override, error, message):
    with pytest.raises(error, match=message):
        fit(mlp("train.steps=", "train.epochs=2", override))


def test_missing_text_is_refused_before_it_starts():
    with pytest.raises(ConfigError, match="nowhere"):
        fit(gpt('data.path="/nowhere"'))


# schedules and threads


@pytest.mark.parametrize(
    ("schedule", "first", "last"),
    [
        ('{name="constant"}', 1.0, 1.0),
        ('{name="constant", warmup=3}', 0.25, 1.0),
        ('{name="cosine"}', 1.0, 0.5 * (1 + math.cos(math.pi * 5 / 6))),
        ('{name="cosine", warmup=2}', 1 / 3, 0.5 * (1 + math.cos(math.pi * 3 / 4))),
        ('{name="step", step_size=3}', 1.0, 0.1),
        ('{name="linear", end_factor=0.4}', 1.0, 0.5),
        ('{name="onecycle", div_factor=10.0}', 0.1, 0.1 / 1e4),
    ],
)
def test_the_learning_rate_follows_the_schedule(schedule, first, last):
    rows = steps_of(fit(mlp('optimizer={name="sgd", lr=1.0}', f"schedule={schedule}")))
    assert rows[0].lr == pytest.approx(first)
    assert rows[-1].lr == pytest.approx(last)


@pytest.mark.skipif(threads.blas_kernels() is None, reason="NumPy here is not built on OpenBLAS")
def test_a_run_uses_the_threads_of_its_recipe():
    before = threads.get_num_threads()
    try:
        fit(mlp("train.threads=1"))
        assert threads.get_num_threads() == 1
    finally:
        threads.set_num_threads(before)


@pytest.mark.skipif(not threads.can_set_num_threads(), reason="nothing here can be told how many threads to use")
def test_a_run_says_how_many_threads_it_uses():
    recipe = mlp()
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"threads": None})})
    assert fit(recipe).recipe.train.threads == threads.get_num_threads()


# one step


def toy():
    manual_seed(0)
    model = nn.Linear(3, 2)
    inputs, targets = tensor(np.arange(12.0).reshape(4, 3) / 12, dtype="float32"), tensor([0, 1, 1, 0])
    return model, optim.SGD(model.parameters(), lr=1.0), inputs, targets


def weights_after(batches_of, **settings):
    model, optimizer, inputs, targets = toy()
    before = model.weight.detach().numpy().copy()

    def loss_of(x, t):
        return ops.cross_entropy(model(x), t)

    batches, scaler = batches_of(inputs, targets), GradScaler(enabled=False)
    outcome = step(loss_of, batches, optimizer, scaler, nullcontext(), **settings)
    return outcome, model.weight.detach().numpy() - before


def one(inputs, targets):
    return [(inputs, targets)]


def halves(inputs, targets):
    return [(inputs[:2], targets[:2]), (inputs[2:], targets[2:])]


def test_accumulated_halves_make_the_step_of_the_whole():
    (whole, moved), (parts, moved_in_parts) = weights_after(one), weights_after(halves)
    assert float(parts.loss) == pytest.approx(float(whole.loss))
    np.testing.assert_allclose(moved_in_parts, moved, rtol=1e-5)


def test_clipping_shortens_the_step_and_reports_the_norm_before_it():
    outcome, moved = weights_after(one, grad_clip=1e-3)
    assert np.linalg.norm(moved) <= 1e-3
    free, _ = weights_after(one, measure_norm=True)
    assert float(outcome.grad_norm) == pytest.approx(float(free.grad_norm))
    assert float(free.grad_norm) > 1e-3


def test_measuring_the_norm_changes_nothing():
    np.testing.assert_array_equal(weights_after(one, measure_norm=True)[1], weights_after(one)[1])


def test_an_evaluation_leaves_the_model_as_it_was():
    manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    inputs, targets = tensor(np.eye(3), dtype="float32"), tensor([0, 1, 1])
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    first, second = (evaluate(model, iter([(inputs, targets)]), nullcontext()) for _ in range(2))
    assert first == second
    assert model.training
    assert all(np.array_equal(before[name], value.numpy()) for name, value in model.state_dict().items())


def test_an_evaluation_weighs_batches_by_their_size():
    model, _, inputs, targets = toy()
    whole = evaluate(model, iter([(inputs, targets)]), nullcontext())
    parts = evaluate(model, iter([(inputs[:1], targets[:1]), (inputs[1:], targets[1:])]), nullcontext())
    assert parts == pytest.approx(whole)


def test_held_out_samples_are_evenly_spaced_when_few_are_evaluated():
    assert input_pipeline._evenly_spaced(360, 10, 2).tolist()[:2] == [0, 18]
    assert input_pipeline._evenly_spaced(360, 10, None).tolist() == list(range(360))
