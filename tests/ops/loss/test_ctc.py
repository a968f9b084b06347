"""ctc_loss: the sum over all alignments, written out; lengths; what cannot be aligned; bad input in one line."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ampkit import Tensor, nn, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import autocast
from ampkit.testing import assert_close

RNG = np.random.default_rng(0)


def log_probs(*shape):
    scores = RNG.normal(0, 1, shape)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def spelled(path, blank):
    """The labels that a class for each frame stands for: repeats are one, blanks are none."""
    once = [c for i, c in enumerate(path) if i == 0 or path[i - 1] != c]
    return [c for c in once if c != blank]


def summed(x, labels, blank=0):
    """Minus the logarithm of the sum over every path that spells `labels`; and its gradient."""
    frames, classes = x.shape
    total, weights = 0.0, np.zeros_like(x)
    for path in product(range(classes), repeat=frames):
        if spelled(path, blank) == list(labels):
            p = np.exp(x[range(frames), path].sum())
            total += p
            weights[range(frames), path] += p
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.log(total), -weights / total


X = log_probs(5, 3, 4)
TARGETS, LENGTHS, COUNTS = np.array([[1, 1], [2, 3], [3, 9]]), [5, 4, 3], [2, 2, 1]
EACH = [summed(X[:n, i], TARGETS[i, :c]) for i, (n, c) in enumerate(zip(LENGTHS, COUNTS, strict=True))]
LOSSES = np.array([loss for loss, _ in EACH])


def test_the_loss_is_that_of_all_paths_that_spell_the_target():
    given = tensor(X), tensor(TARGETS), LENGTHS, COUNTS
    assert_close(ops.ctc_loss(*given, reduction="none"), LOSSES)
    assert_close(ops.ctc_loss(*given, reduction="sum"), LOSSES.sum())
    assert_close(ops.ctc_loss(*given), (LOSSES / COUNTS).mean())
    assert_close(nn.CTCLoss(reduction="sum")(*given), LOSSES.sum())


def test_the_gradient_is_the_share_of_the_paths_through_a_class_and_zero_beyond_the_end():
    x = tensor(X, requires_grad=True)
    found = grad(ops.ctc_loss(x, tensor(TARGETS), LENGTHS, COUNTS, reduction="sum"), x)[0].numpy(force=True)
    for i, (_, gradient) in enumerate(EACH):
        np.testing.assert_allclose(found[: LENGTHS[i], i], gradient, rtol=1e-10, atol=1e-12)
        assert not found[LENGTHS[i] :, i].any()


def test_targets_in_a_row_lengths_as_tensors_and_one_sequence_alone_give_the_same():
    row, counts = tensor([1, 1, 2, 3, 3]), tensor(np.int32(COUNTS))
    assert_close(ops.ctc_loss(tensor(X), row, tensor(LENGTHS), counts, reduction="none"), LOSSES)
    assert_close(ops.ctc_loss(tensor(X), row, tuple(LENGTHS), counts, reduction="none"), LOSSES)
    for reduction in ("none", "mean", "sum"):
        alone = ops.ctc_loss(tensor(X[:, 0]), tensor([1, 1]), tensor(5), 2, reduction=reduction)
        assert alone.shape == ()
        assert_close(alone, LOSSES[0] / (2 if reduction == "mean" else 1))


def test_any_class_may_be_the_blank():
    x = X[:, :1]
    assert_close(ops.ctc_loss(tensor(x), tensor([[0, 1]]), [5], [2], blank=3), summed(x[:, 0], [0, 1], 3)[0] / 2)


def test_an_empty_target_is_all_blanks_and_no_frames_cost_nothing():
    out = ops.ctc_loss(tensor(X), tensor(TARGETS), [5, 0, 0], [0, 0, 1], reduction="none")
    assert_close(out, np.array([-X[:, 0, 0].sum(), 0, np.inf]))


def test_what_no_alignment_reaches_costs_infinity_or_nothing_with_finite_gradients():
    scores = X.copy()
    scores[:, 1, 3] = -np.inf
    x = tensor(scores, requires_grad=True)
    given = tensor(TARGETS), [2, 4, 3], COUNTS  # two equal labels need three frames
    assert_close(ops.ctc_loss(x, *given, reduction="none"), np.array([np.inf, np.inf, LOSSES[2]]))
    assert np.isinf(ops.ctc_loss(x, *given).item())
    none = ops.ctc_loss(x, *given, reduction="none", zero_infinity=True)
    assert_close(none, np.array([0, 0, LOSSES[2]]))
    gradient = grad(none.sum(), x)[0].numpy(force=True)
    assert not gradient[:, :2].any()
    np.testing.assert_allclose(gradient[:3, 2], EACH[2][1], rtol=1e-10, atol=1e-12)


def test_a_nan_stays_in_its_sequence_and_beyond_the_end_counts_for_nothing():
    scores = X.copy()
    scores[2, 0, 1], scores[4, 1] = np.nan, np.nan
    out = ops.ctc_loss(tensor(scores), tensor(TARGETS), LENGTHS, COUNTS, reduction="none", zero_infinity=True)
    assert_close(out, np.array([np.nan, *LOSSES[1:]]))


def test_long_sequences_keep_their_digits_in_float32():
    x, targets = log_probs(300, 2, 30), RNG.integers(1, 30, (2, 60))
    exact = ops.ctc_loss(tensor(x), tensor(targets), [300, 280], [60, 50], reduction="none")
    found = ops.ctc_loss(tensor(x.astype(float32)), tensor(targets), [300, 280], [60, 50], reduction="none")
    assert_close(found, exact.numpy(force=True).astype(np.float64))


def test_16_bit_log_probs_give_a_float32_loss_in_autocast():
    for dtype in (float16, bfloat16):
        x = tensor(X.astype(dtype))
        with autocast(dtype=dtype):
            assert ops.ctc_loss(x, tensor(TARGETS), LENGTHS, COUNTS).dtype == float32
        assert ops.ctc_loss(x, tensor(TARGETS), LENGTHS, COUNTS).dtype == dtype


T = tensor(TARGETS)
BAD = [
    (ShapeError, r"log_probs \[T, N, C\] or \[T, C\].*got \(5,\)", (tensor(X[:, 0, 0]), T, LENGTHS, COUNTS)),
    (ShapeError, r"targets \[3, S\], or \[sum of.*got \(2, 2\)", (tensor(X), T[:2], LENGTHS, COUNTS)),
    (ShapeError, r"add up to 4, the size of targets, got a sum of 5", (tensor(X), tensor([1] * 4), LENGTHS, COUNTS)),
    (ShapeError, r"input_lengths of shape \(3,\), got \(2,\)", (tensor(X), T, [5, 4], COUNTS)),
    (DTypeError, "target_lengths of integers, got float64", (tensor(X), T, LENGTHS, [2.0, 2.0, 1.0])),
    (DTypeError, "integer targets, got float32", (tensor(X), T.float(), LENGTHS, COUNTS)),
    (RangeError, "input_lengths from 0 to 5, got 6 at position 1", (tensor(X), T, [5, 6, 3], COUNTS)),
    (RangeError, "target_lengths from 0 to 2, got -1 at position 2", (tensor(X), T, LENGTHS, tensor([2, 2, -1]))),
    (
        RangeError,
        r"labels from 0 to 3 other than blank=0, got 9 at position \(2, 1\)",
        (tensor(X), T, LENGTHS, [2, 2, 2]),
    ),
    (RangeError, r"blank=1, got 1 at position \(0, 0\)", (tensor(X), T, LENGTHS, COUNTS, 1)),
    (RangeError, "a blank from 0 to 3, got 4", (tensor(X), T, LENGTHS, COUNTS, 4)),
    (ArgumentError, "reduction 'none', 'mean', 'sum', got 'all'", (tensor(X), T, LENGTHS, COUNTS, 0, "all")),
    (ShapeError, "at least one element for a mean", (Tensor(np.zeros((5, 0, 4))), Tensor(TARGETS[:0]), [], [])),
]


@pytest.mark.cpu
@pytest.mark.parametrize(("kind", "line", "given"), BAD, ids=[line for _, line, _ in BAD])
def test_what_does_not_fit_is_refused_in_one_line(kind, line, given):
    with pytest.raises(kind, match=line):
        ops.ctc_loss(*given)
