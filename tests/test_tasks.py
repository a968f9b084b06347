"""Tasks: the losses of answers of every form, and how many targets are guessed right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import config, tasks, tensor
from ampkit.train import EvalRow, fit

DRAW = np.random.RandomState(0)


def by_hand(logits, targets):
    """(mean loss, right, counted) over rows [n, classes] of float64."""
    counted = targets != -100
    logits, targets = logits[counted].astype(np.float64), targets[counted]
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(targets)), targets]
    return loss.mean(), (logits.argmax(1) == targets).sum(), len(targets)


def test_a_class_per_image():
    logits, targets = DRAW.randn(6, 5).astype(np.float32), DRAW.randint(0, 5, 6)
    assert tasks.CLASSIFY.score(tensor(logits), tensor(targets)) == pytest.approx(by_hand(logits, targets))


def test_tokens_that_are_not_to_be_guessed_do_not_count():
    logits, targets = DRAW.randn(2, 7, 5).astype(np.float32), DRAW.randint(0, 5, (2, 7))
    targets[:, 2:] = -100
    expected = by_hand(logits.reshape(-1, 5), targets.ravel())
    assert expected[2] == 4
    assert tasks.WRITE.score(tensor(logits), tensor(targets)) == pytest.approx(expected)
    assert tasks.WRITE.loss(tensor(logits), tensor(targets)).item() == pytest.approx(expected[0], rel=1e-6)


@pytest.mark.parametrize("shape", [(4, 5), (4,)])
def test_a_class_per_pixel_or_step_of_time_has_the_classes_along_axis_1(shape):
    logits, targets = DRAW.randn(2, 3, *shape).astype(np.float32), DRAW.randint(0, 3, (2, *shape))
    expected = by_hand(np.moveaxis(logits, 1, -1).reshape(-1, 3), targets.ravel())
    assert tasks.PLACES.score(tensor(logits), tensor(targets)) == pytest.approx(expected)


def test_a_second_answer_adds_half_of_its_loss_and_is_not_scored():
    logits, targets = DRAW.randn(2, 2, 3, 4, 5).astype(np.float32), DRAW.randint(0, 3, (2, 4, 5))
    answer = {"out": tensor(logits[0]), "aux": tensor(logits[1])}
    main, aux = (by_hand(np.moveaxis(each, 1, -1).reshape(-1, 3), targets.ravel()) for each in logits)
    assert tasks.PLACES.loss(answer, tensor(targets)).item() == pytest.approx(main[0] + 0.5 * aux[0], rel=1e-6)
    assert tasks.PLACES.score(answer, tensor(targets)) == pytest.approx(main)


@pytest.mark.parametrize(
    ("model", "data", "first", "per_step"),
    [
        # Logits are nearly equal at first: the loss is the logarithm of the number of classes.
        (
            "name='bert', vocab_size=16, hidden_size=8",
            "name='synthetic_masked', length=8",
            math.log(16),
            (32, "tokens"),
        ),
        (
            "name='fcn_resnet50', width=2, depth=0.1, aux_loss=true",
            "name='synthetic_maps', shape=[1, 16, 16], classes=3",
            None,
            (4, "samples"),
        ),
        (
            "name='wav2letter', width=4, wide=4",
            "name='synthetic_speech', length=2000, classes=5",
            math.log(5),
            (4, "samples"),
        ),
        (
            "name='wav2letter', width=4, wide=4, input_type='mfcc', num_features=3",
            "name='synthetic_speech', length=40, classes=5",
            math.log(5),
            (4, "samples"),
        ),
    ],
)
def test_a_recipe_trains_and_evaluates_its_model_on_its_task(tmp_path, model, data, first, per_step):
    path = tmp_path / "recipe.toml"
    path.write_text(
        f"model = {{{model}}}\ndata = {{{data}, count=10, batch_size=4}}\n[train]\nsteps = 2\nthreads = 1\n"
    )
    run = fit(config.load(path))
    assert (run.per_step, run.unit) == per_step
    rows = list(run)
    assert isinstance(rows[-1], EvalRow)
    assert 0 <= rows[-1].accuracy <= 1
    if first is not None:
        assert rows[0].loss == pytest.approx(first, abs=0.1)
