"""Tasks: the losses of answers of every form, and what their judges find."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import config, tensor
from ampkit.run import metrics, step
from ampkit.run.loop import EvalRow, fit

DRAW = np.random.RandomState(0)


def by_hand(logits, targets):
    """(mean loss, share that is right) over rows [n, classes] of float64."""
    counted = targets != -100
    logits, targets = logits[counted].astype(np.float64), targets[counted]
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(targets)), targets]
    return loss.mean(), (logits.argmax(1) == targets).mean()


def evaluated(objective, *batches):
    metric = objective.metric()
    for answer, *targets in batches:
        metric.update(*objective.metric_inputs(answer, *map(tensor, targets)))
    return metric.compute()


def test_a_class_per_image():
    logits, targets = DRAW.randn(6, 5).astype(np.float32), DRAW.randint(0, 5, 6)
    assert evaluated(step.IMAGE_CLASSES, (tensor(logits), targets))[:2] == pytest.approx(by_hand(logits, targets))


def test_batches_of_several_sizes_weigh_by_the_targets_that_count():
    logits, targets = DRAW.randn(9, 5).astype(np.float32), DRAW.randint(0, 5, 9)
    targets[[1, 6, 7, 8]] = -100  # all of the last batch
    batches = [(tensor(logits[part]), targets[part]) for part in (slice(0, 4), slice(4, 6), slice(6, 9))]
    found = evaluated(step.IMAGE_CLASSES, *batches)
    assert found[:2] == pytest.approx(by_hand(logits, targets))
    assert found.mean_iou is found.char_error_rate is None


def test_tokens_that_are_not_to_be_guessed_do_not_count():
    logits, targets = DRAW.randn(2, 7, 5).astype(np.float32), DRAW.randint(0, 5, (2, 7))
    targets[:, 2:] = -100
    expected = by_hand(logits.reshape(-1, 5), targets.ravel())
    assert evaluated(step.TOKENS, (tensor(logits), targets))[:2] == pytest.approx(expected)
    assert step.TOKENS.loss(tensor(logits), tensor(targets)).item() == pytest.approx(expected[0], rel=1e-6)


def test_a_class_per_pixel_is_judged_by_the_mean_intersection_over_union_too():
    wanted = np.array([[[0, 0, 1, 1, 0]], [[2, 2, -100, 0, 2]]])
    guessed = np.array([[[0, 1, 1, 1, 0]], [[2, 0, 3, 0, 4]]])  # class 3 is guessed only where nothing counts
    logits = np.moveaxis(np.eye(6, dtype=np.float32)[guessed], 3, 1)
    # 0: both 3, either 5. 1: both 2, either 3. 2: both 1, either 3. 4 is guessed alone. 3 and 5 do not occur.
    expected = (3 / 5 + 2 / 3 + 1 / 3 + 0) / 4
    for parts in ([slice(0, 2)], [slice(0, 1), slice(1, 2)]):
        found = evaluated(step.PIXEL_CLASSES, *((tensor(logits[part]), wanted[part]) for part in parts))
        assert found.mean_iou == pytest.approx(expected)
        assert found.accuracy == pytest.approx(6 / 9)


def test_nothing_to_judge_is_no_number():
    nothing = evaluated(step.PIXEL_CLASSES, (tensor(np.ones((1, 3, 2, 2), np.float32)), np.full((1, 2, 2), -100)))
    assert all(math.isnan(score) for score in nothing[:3])
    assert all(math.isnan(score) for score in evaluated(step.IMAGE_CLASSES)[:2])


def test_a_second_answer_adds_half_of_its_loss_and_is_not_evaluated():
    logits, targets = DRAW.randn(2, 2, 3, 4, 5).astype(np.float32), DRAW.randint(0, 3, (2, 4, 5))
    answer = {"out": tensor(logits[0]), "aux": tensor(logits[1])}
    main, aux = (by_hand(np.moveaxis(each, 1, -1).reshape(-1, 3), targets.ravel()) for each in logits)
    assert step.PIXEL_CLASSES.loss(answer, tensor(targets)).item() == pytest.approx(main[0] + 0.5 * aux[0], rel=1e-6)
    assert evaluated(step.PIXEL_CLASSES, (answer, targets))[:2] == pytest.approx(main)


def test_a_transcript_costs_its_ctc_loss_and_is_judged_by_its_wrong_letters():
    # Two steps of time for one letter: it is said in both, or in one beside a blank.
    chances = DRAW.dirichlet(np.ones(3), (2, 3)).astype(np.float32)
    chances[0, 2] = (0.1, 0.2, 0.7)  # beyond the end of the first
    targets = np.array([2, 3]), np.array([[1, 0], [2, 1]]), np.array([1, 2])
    first, second = chances.astype(np.float64)
    one = first[0, 1] * first[1, 1] + first[0, 0] * first[1, 1] + first[0, 1] * first[1, 0]
    paths = ((2, 1, 0), (2, 0, 1), (0, 2, 1), (2, 2, 1), (2, 1, 1))
    two = sum(np.prod(second[range(3), path]) for path in paths)
    expected = (-math.log(one) - math.log(two) / 2) / 2
    answer = tensor(np.log(np.moveaxis(chances, 2, 1)))
    assert step.LETTERS.loss(answer, *map(tensor, targets)).item() == pytest.approx(expected, rel=1e-5)
    found = evaluated(step.LETTERS, (answer, *targets))
    assert found.val_loss == pytest.approx(expected, rel=1e-5)
    assert found.accuracy is None
    assert found.char_error_rate in {errors / 3 for errors in range(6)}


@pytest.mark.parametrize(
    ("path", "wanted", "errors"),
    [
        ([0, 1, 1, 0, 1, 2, 0], [1, 1, 2], 0),
        ([1, 1, 1, 2, 2, 0, 0], [1, 1, 2], 1),  # without a blank between, one letter
        ([3, 0, 1, 0, 2, 0, 3], [1, 2], 2),
        ([0, 0, 0, 0, 0, 0, 0], [1, 2, 3], 3),
        ([1, 2, 3, 1, 2, 3, 1], [], 7),
        ([4, 0, 3, 0, 2, 0, 1], [1, 2, 3, 4], 4),
    ],
)
def test_letters_are_put_in_left_out_or_exchanged(path, wanted, errors):
    def found(steps, more):
        paths, letters = np.array([path + [5] * steps]), np.array([wanted + [0] * more])
        return metrics.edit_distances(paths, np.array([7]), letters, np.array([len(wanted)])).tolist()

    assert found(0, 0) == found(2, 3) == [errors]  # whatever follows the end of either


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
            "name='synthetic_speech', length=5120, classes=5",
            None,
            (4, "samples"),
        ),
        (
            "name='wav2letter', width=4, wide=4, input_type='mfcc', num_features=3",
            "name='synthetic_speech', length=40, classes=5",
            None,
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
    assert (rows[-1].accuracy if rows[-1].char_error_rate is None else rows[-1].char_error_rate) >= 0
    assert (rows[-1].mean_iou is None) == ("fcn" not in model)
    if first is not None:
        assert rows[0].loss == pytest.approx(first, abs=0.1)
