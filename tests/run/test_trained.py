"""The model of a finished run: its weights, its scores and what it says are those of the run."""

from __future__ import annotations

import inspect
import math
import re
import shutil
from itertools import islice

import numpy as np
import pytest

import ampkit
from ampkit import cli, config, get_rng_state, nn, optim
from ampkit.base.errors import AmpkitError, ArgumentError, ConfigError, FileError
from ampkit.run.loop import EvalRow, fit
from ampkit.run.trained import load_run

from .test_checkpoint import RECIPES, recipe


def trained(path, kind, *overrides, resume=False):
    """The run of a recipe, trained, and its evaluations; its checkpoints are in path/checkpoints."""
    run = fit(recipe(kind, *overrides), path / "checkpoints", resume)
    return run, [row for row in run if isinstance(row, EvalRow)]


def same(first, second):
    first, second = ({name: value.numpy(force=True) for name, value in each.items()} for each in (first, second))
    return first.keys() == second.keys() and all(np.array_equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "bfloat16") for kind in ("mlp", "cnn", "text", "tokens")), ("text", "float32")]
)
def test_a_loaded_run_has_the_weights_and_the_scores_of_the_run(kind, dtype, tmp_path):
    run, evaluations = trained(tmp_path, kind, f"amp.dtype={dtype}")
    before = get_rng_state()
    found = load_run(tmp_path)
    scores = found.evaluate()
    assert get_rng_state() == before
    assert (found.step, found.averaged, found.model.training) == (7, False, False)
    assert same(found.model.state_dict(), run.model.state_dict())
    assert scores == tuple(getattr(evaluations[-1], name) for name in scores._fields)
    assert [*inspect.signature(ampkit.load_run).parameters] == [*inspect.signature(load_run).parameters]
    assert "see `ampkit.load_run`" in load_run.__doc__
    for name in ("run:", "weights:", "average:", "device:", "FileError", "predict", "classes"):
        assert name in ampkit.load_run.__doc__
    assert same(ampkit.load_run(str(tmp_path)).model.state_dict(), run.model.state_dict())


def test_the_moving_average_is_what_the_run_evaluates(tmp_path):
    run, evaluations = trained(tmp_path, "mlp", "train.ema=0.5")
    found, plain = load_run(tmp_path), load_run(tmp_path, average=False)
    assert (found.averaged, plain.averaged) == (True, False)
    assert repr(found).startswith("Trained(mlp on digits, float32, step 7, moving average, '")
    assert repr(plain).startswith("Trained(mlp on digits, float32, step 7, '")
    assert same(found.model.state_dict(), run.average.module.state_dict())
    assert same(plain.model.state_dict(), run.model.state_dict())
    assert found.evaluate().val_loss == evaluations[-1].val_loss != plain.evaluate().val_loss


def test_the_best_step_is_kept_whatever_came_later_and_over_a_resume(tmp_path):
    worse = ["optimizer.lr=3.0", "train.keep=1", "train.steps=24", "train.eval_every=2", "train.checkpoint_every=5"]
    run, evaluations = trained(tmp_path / "whole", "sgd", *worse)
    losses = {row.step: row.val_loss for row in evaluations if math.isfinite(row.val_loss)}
    best = min(losses, key=losses.get)
    assert best < 24  # else the last one would do
    found = load_run(tmp_path / "whole", "best")
    assert (found.step, found.evaluate().val_loss, run.best) == (best, losses[best], (best, losses[best]))
    assert load_run(tmp_path / "whole").step == 24
    assert len(list((tmp_path / "whole/checkpoints").glob("*.json"))) == 2

    first = fit(recipe("sgd", *worse), tmp_path / "halves" / "checkpoints")
    for row in islice(first, 40):
        if row.step == 13:
            first.stop()
    trained(tmp_path / "halves", "sgd", *worse, resume=True)
    assert load_run(tmp_path / "halves", "best").step == best


def test_images_are_named_and_normalized_as_in_training(tmp_path):
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for number, name in enumerate(("dark", "light")):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                np.save(tmp_path / split / name / f"{i}.npy", draw.integers(0, 60, (8, 8, 3), np.uint8) + 190 * number)
    data = f'data={{name="images", folder="{tmp_path}/train", held_out="{tmp_path}/test", shape=[3, 8, 8], classes=2,'
    data += "mean=[0.4, 0.5, 0.6], std=[0.3], batch_size=4}"
    made = config.load(RECIPES / "digits_cnn.toml", [data, "model.width=4", "train.epochs=20"])
    list(fit(made, tmp_path / "run"))
    found = load_run(tmp_path / "run")
    assert (found.classes, found.mean, found.std) == (("dark", "light"), (0.4, 0.5, 0.6), (0.3,))
    shares = found.predict(found.images([tmp_path / "test/dark/0.npy", tmp_path / "test/light/1.npy"]))
    np.testing.assert_allclose(shares.sum(1).tolist(), [1, 1], rtol=1e-6)
    assert [found.name_of(number) for number in shares.argmax(1).tolist()] == ["dark", "light"]
    tall = draw.integers(0, 256, (10, 8, 3), np.uint8)
    np.save(tmp_path / "tall.npy", tall)
    np.testing.assert_allclose(
        found.images([tmp_path / "tall.npy"])[0].permute(1, 2, 0).numpy(),
        (tall[1:9] / 255 - [0.4, 0.5, 0.6]) / 0.3,
        atol=1e-5,
    )
    with pytest.raises(ConfigError, match="a language model of text, got cnn, of images"):
        found.generate(b"", 1)


def test_generated_bytes_follow_from_the_seed_and_are_the_likeliest_at_temperature_0(tmp_path):
    trained(tmp_path, "text")
    found = load_run(tmp_path)
    first, again, other = (bytes(found.generate(b"import ", 30, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 30
    context = list(b"import ")
    for byte in found.generate(bytes(context), 12, temperature=0):  # longer than block_size, which is 8
        assert byte == int(found(np.array([context[-8:]]))[0, -1].argmax())
        context.append(byte)
    assert bytes(found.generate(b"x", 5, top_k=1)) == bytes(found.generate(b"x", 5, temperature=0))
    for options in ({"temperature": -1.0}, {"top_k": 0}, {"count": -1}):
        with pytest.raises(ArgumentError, match="generate: needs a count and a temperature from 0, top_k from 1"):
            found.generate(b"x", **{"count": 1, **options})


def test_draws_follow_the_distribution(tmp_path):
    trained(tmp_path, "text")
    found = load_run(tmp_path)
    drawn = [next(found.generate(b"a", 1, seed=seed)) for seed in range(500)]
    expected = ampkit.softmax(found(np.array([[97]]))[0, -1], 0).numpy(force=True)
    counts = np.bincount(drawn, minlength=256) / 500
    assert np.abs(np.cumsum(counts) - np.cumsum(expected)).max() < 0.1  # Kolmogorov-Smirnov: p below 1e-4


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(FileError, match="needs the directory of a run, got '.*none', which is none"):
        load_run(tmp_path / "none")
    with pytest.raises(FileError, match="needs a run with a checkpoint, got .*, which has none"):
        load_run(tmp_path)
    with pytest.raises(ArgumentError, match="weights 'last' or 'best'"):
        load_run(tmp_path, "first")
    trained(tmp_path, "mlp")
    best = load_run(tmp_path, "best")
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "other")
    for path in (tmp_path / "other").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AmpkitError, match="can be used"):
        load_run(tmp_path / "other")
    assert best.name_of(3) == "3"


def test_the_directory_of_a_trainer_names_what_works_for_it(tmp_path, capsys):
    model = nn.Linear(3, 1)
    options = {"max_steps": 2, "default_root_dir": tmp_path / "run", "enable_model_summary": False}
    trainer = ampkit.Trainer(model, optim.SGD(model.parameters(), lr=0.1), lambda model, x: model(x).mean(), **options)
    trainer.fit([ampkit.ones(2, 3)])
    with pytest.raises(
        ConfigError, match=r"needs the run of a recipe, .*, got '.*run', of a Trainer\nhelp: "
    ) as caught:
        load_run(tmp_path / "run")
    other = nn.Linear(3, 1)
    exec(
        re.search(r"(model.load_state_dict\(.*?\['model'\]\));", str(caught.value))[1],
        {"model": other, "ampkit": ampkit},
    )
    assert same(other.state_dict(), model.state_dict())
    command = re.search(r"`(ampkit report .*?)`", str(caught.value))[1]
    assert cli.main(command.split()[1:]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "config.toml is missing, as of a Trainer" in said and (tmp_path / "run" / "report.html").exists()
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 2
