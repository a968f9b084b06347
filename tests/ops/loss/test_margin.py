"""Margin losses over classes: their formulas written out in loops, and bad input in one line."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import nn, ops, tensor
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.testing import assert_close

RNG = np.random.default_rng(0)
X, Y, WEIGHT = RNG.normal(0, 2, (4, 5)), np.array([0, 3, 3, 4]), RNG.uniform(0.5, 2, 5)
LABELS = np.array([[1, 3, -1, 2, 2], [-1, 0, 1, 2, 3], [4, 4, 0, -1, -1], [0, 1, 2, 3, 4]])


def reductions(loss, *given):
    """What a loss gives under its three reductions."""
    for reduction in ("none", "mean", "sum"):
        loss.reduction = reduction
        yield loss(*map(tensor, given))


def all_close(loss, each, *given):
    for got, want in zip(reductions(loss, *given), (each, each.mean(), each.sum()), strict=True):
        assert_close(got, np.asarray(want))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("margin", [1.0, 0.3])
def test_multi_margin_loss_sums_what_the_other_classes_come_too_near(p, margin):
    each = [
        sum(max(0, margin - x[y] + x[i]) ** p for i in range(5) if i != y) * WEIGHT[y] / 5
        for x, y in zip(X, Y, strict=True)
    ]
    all_close(nn.MultiMarginLoss(p, margin, tensor(WEIGHT)), np.array(each), X, Y)
    all_close(nn.MultiMarginLoss(p, margin), np.array(each) / WEIGHT[Y], X, Y)
    assert_close(ops.multi_margin_loss(tensor(X[1]), tensor(3), p, margin, tensor(WEIGHT)), np.array(each[1]))


def test_multilabel_margin_loss_counts_labels_up_to_the_first_minus_one():
    each = []
    for x, row in zip(X, LABELS, strict=True):
        named = row[: [*(row < 0), True].index(True)]
        each.append(sum(max(0, 1 - x[y] + x[i]) for y in named for i in set(range(5)) - set(named)) / 5)
    all_close(nn.MultiLabelMarginLoss(), np.array(each), X, LABELS)
    assert each[1] == each[3] == 0
    assert_close(ops.multilabel_margin_loss(tensor(X[2]), tensor(LABELS[2])), np.array(each[2]))


def test_multilabel_soft_margin_loss_averages_the_cross_entropies_of_the_classes():
    t = RNG.integers(0, 2, (4, 5)).astype(np.float64)
    cross = -(t * np.log(1 / (1 + np.exp(-X))) + (1 - t) * np.log(1 / (1 + np.exp(X))))
    all_close(nn.MultiLabelSoftMarginLoss(tensor(WEIGHT)), (cross * WEIGHT).mean(1), X, t)
    all_close(nn.MultiLabelSoftMarginLoss(), cross.mean(1), X, t)
    assert ops.multilabel_soft_margin_loss(tensor([[-2000.0]]), tensor([[1.0]])).item() == 2000


def test_triplets_are_compared_by_any_distance():
    a, b, c = RNG.normal(size=(3, 4, 5))
    city = lambda x, y: (x - y).abs().sum(-1)  # noqa: E731
    near, far, across = (abs(x - y).sum(-1) for x, y in ((a, b), (a, c), (b, c)))
    all_close(nn.TripletMarginWithDistanceLoss(distance_function=city), np.maximum(near - far + 1, 0), a, b, c)
    each = np.maximum(near - np.minimum(far, across) + 2, 0)
    all_close(nn.TripletMarginWithDistanceLoss(distance_function=city, margin=2.0, swap=True), each, a, b, c)
    given = [tensor(x) for x in (a, b, c)]
    assert_close(ops.triplet_margin_with_distance_loss(*given), ops.triplet_margin_loss(*given).numpy(force=True))


MULTI, LABEL, SOFT = ops.multi_margin_loss, ops.multilabel_margin_loss, ops.multilabel_soft_margin_loss
BAD = [
    (ShapeError, r"input \[N, C\] or \[C\].*got \(4, 5\) and \(3,\)", lambda x: MULTI(x, tensor([0, 1, 2]))),
    (ShapeError, "a weight for each of 5 classes", lambda x: MULTI(x, tensor(Y), weight=tensor(np.ones(1)))),
    (RangeError, "labels from 0 to 4, got -1 at position 0", lambda x: MULTI(x, tensor([-1, 0, 0, 0]))),
    (ArgumentError, "p 1 or 2, got 3", lambda x: MULTI(x, tensor(Y), 3)),
    (DTypeError, "integer labels, got float32", lambda x: MULTI(x, tensor([1.0, 0, 0, 0]))),
    (ShapeError, r"target \[4, 5\]", lambda x: LABEL(x, tensor(Y))),
    (
        RangeError,
        r"labels from -1 to 4, got 5 at position \(0, 2\)",
        lambda x: LABEL(x, tensor([[0, -1, 5, 0, 0]] * 4)),
    ),
    (ArgumentError, "reduction 'none', 'mean', 'sum', got 'all'", lambda x: LABEL(x, tensor(LABELS), reduction="all")),
    (ShapeError, r"a target of the input's shape \(4, 5\)", lambda x: SOFT(x, x[:2])),
    (ShapeError, "at least one element for a mean", lambda x: SOFT(x[:0], x[:0])),
    (ArgumentError, "a positive margin, got 0", lambda x: ops.triplet_margin_with_distance_loss(x, x, x, margin=0)),
    (ArgumentError, "p 1 or 2, got 3", lambda x: nn.MultiMarginLoss(3)),
]


@pytest.mark.cpu
@pytest.mark.parametrize(("kind", "line", "call"), BAD, ids=[line for _, line, _ in BAD])
def test_what_does_not_fit_is_refused_in_one_line(kind, line, call):
    with pytest.raises(kind, match=line):
        call(tensor(X))
