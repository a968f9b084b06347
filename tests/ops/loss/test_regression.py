"""Losses: labels that do not count, extremes, and bad input in one line."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import autocast
from ampkit.testing import assert_close

LOGITS = np.random.default_rng(0).normal(size=(4, 3))


def _cross_entropy64(x, labels):
    return -(x - np.log(np.exp(x).sum(1, keepdims=True)))[np.arange(len(labels)), labels]


def _gradient(loss, x):
    return grad(loss, x)[0].array


@pytest.mark.cpu
def test_cross_entropy_is_minus_the_log_probability_of_the_label():
    labels = np.array([0, 2, 1, 1])
    want = _cross_entropy64(LOGITS, labels)
    assert_close(ops.cross_entropy(Tensor(LOGITS), tensor(labels), reduction="none"), want)
    assert_close(ops.cross_entropy(Tensor(LOGITS), tensor(labels)), want.mean())
    logs = ops.log_softmax(Tensor(LOGITS), 1)
    assert_close(ops.nll_loss(logs, tensor(labels)), want.mean())


@pytest.mark.cpu
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_and_the_same_labels_as_probabilities_give_the_same(smoothing):
    labels = np.array([0, 2, 1, 1])
    x, y = Tensor(LOGITS, requires_grad=True), Tensor(LOGITS, requires_grad=True)
    one = ops.cross_entropy(x, tensor(labels), label_smoothing=smoothing)
    two = ops.cross_entropy(y, Tensor(np.eye(3)[labels]), label_smoothing=smoothing)
    assert_close(one, two)
    assert_close(_gradient(one, x), _gradient(two, y))


@pytest.mark.cpu
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ignored_labels_take_no_part_whatever_their_logits(reduction):
    spoilt = np.vstack([LOGITS, np.full((1, 3), np.nan)])
    x = Tensor(spoilt)
    loss = ops.cross_entropy(x, tensor([0, 2, -100, 1, -100]), Tensor(np.array([1.0, 2, 3])), reduction=reduction)
    kept = _cross_entropy64(LOGITS[[0, 1, 3]], [0, 2, 1]) * [1, 3, 2]
    want = {"none": np.insert(kept, [2, 3], 0), "mean": kept.sum() / 6, "sum": kept.sum()}[reduction]
    assert_close(loss, want)


@pytest.mark.cpu
def test_an_ignored_label_gets_no_gradient():
    x = Tensor(LOGITS, requires_grad=True)
    gradient = _gradient(ops.cross_entropy(x, tensor([0, 9, 1, 1]), ignore_index=9, label_smoothing=0.1), x)
    assert np.array_equal(gradient[1], [0, 0, 0])
    assert np.all(gradient[[0, 2, 3]] != 0)


@pytest.mark.cpu
def test_the_mean_over_no_counting_label_is_nan():
    assert np.isnan(ops.cross_entropy(Tensor(LOGITS), tensor([-100] * 4)).array)


def test_huge_logits_give_a_finite_loss_and_nan_stays_nan():
    x = tensor([[1e4, 0.0], [0.0, 1e4], [np.nan, 0.0]])
    assert_close(ops.cross_entropy(x, tensor([0, 0, 0]), reduction="none"), np.float32([0, 1e4, np.nan]))


@pytest.mark.cpu
def test_cross_entropy_beside_a_large_shift_keeps_its_digits():
    x = (1e4 + LOGITS).astype(np.float32)
    assert_close(
        ops.cross_entropy(Tensor(x), tensor([0, 2, 1, 1])), _cross_entropy64(x.astype(float) - 1e4, [0, 2, 1, 1]).mean()
    )


@pytest.mark.cpu
def test_losses_of_16_bit_inputs_are_float32_in_autocast():
    x, labels = Tensor(LOGITS.astype(np.float16)), tensor([0, 2, 1, 1])
    with autocast(dtype=bfloat16):
        for loss in (ops.cross_entropy(x, labels), ops.mse_loss(x, x), ops.binary_cross_entropy_with_logits(x, x)):
            assert loss.dtype == float32
    assert ops.cross_entropy(x, labels).dtype == float16
    exact = _cross_entropy64(x.array.astype(np.float64), [0, 2, 1, 1]).mean()
    with autocast(dtype=float16):
        assert_close(ops.cross_entropy(x, labels), exact)


@pytest.mark.cpu
@pytest.mark.parametrize("function", [ops.cross_entropy, ops.nll_loss])
@pytest.mark.parametrize("bad", [3, -1])
def test_a_label_out_of_range_is_named_with_its_place_and_the_classes(function, bad):
    with pytest.raises(
        RangeError, match=rf"labels from 0 to 2 \(3 classes\) or ignore_index=-100, got {bad} at position 2"
    ):
        function(Tensor(LOGITS), tensor([0, -100, bad, 7]))
    with pytest.raises(RangeError, match=r"at position \(1, 0\)"):
        function(Tensor(np.ones((2, 3, 2))), tensor([[0, 1], [bad, 1]]))


@pytest.mark.cpu
def test_labels_of_another_shape_or_dtype_are_refused():
    x = Tensor(LOGITS)
    with pytest.raises(ShapeError, match=r"got \(4, 3\) and \(3,\)\nhelp: classes are axis 1"):
        ops.cross_entropy(x, tensor([0, 1, 2]))
    with pytest.raises(ShapeError, match=r"shape \(4, 3\), got \(4,\)\nhelp: labels are integers"):
        ops.cross_entropy(x, Tensor(np.ones(4)))
    with pytest.raises(DTypeError, match="integer labels, got bool"):
        ops.cross_entropy(x, tensor([True, False, True, True]))
    with pytest.raises(ShapeError, match=r"a weight for each of 3 classes, got shape \(4,\)"):
        ops.cross_entropy(x, tensor([0, 1, 2, 0]), Tensor(np.ones(4)))
    with pytest.raises(ArgumentError, match="label_smoothing from 0 to 1, got 2"):
        ops.cross_entropy(x, tensor([0, 1, 2, 0]), label_smoothing=2)


PAIRS = [
    ops.mse_loss,
    ops.l1_loss,
    ops.smooth_l1_loss,
    ops.huber_loss,
    ops.binary_cross_entropy_with_logits,
    ops.binary_cross_entropy,
    ops.kl_div,
]


@pytest.mark.parametrize("function", PAIRS, ids=lambda f: f.__name__)
def test_a_target_of_another_shape_an_empty_mean_and_an_unknown_reduction_are_refused(function):
    half = Tensor(np.full((3, 1), 0.5))
    with pytest.raises(ShapeError, match=r"a target of the input's shape \(3, 1\), got \(3,\)"):
        function(half, Tensor(np.full(3, 0.5)))
    with pytest.raises(
        ShapeError, match=r"at least one element for a mean, got shape \(0, 2\)\nhelp: skip empty batches"
    ):
        function(Tensor(np.ones((0, 2))), Tensor(np.ones((0, 2))))
    with pytest.raises(ArgumentError, match=r"reduction 'none', 'mean', 'sum'.*, got 'avg'"):
        function(half, half, reduction="avg")
    assert function(Tensor(np.ones((0, 2))), Tensor(np.ones((0, 2))), reduction="sum").array == 0


@pytest.mark.cpu
@pytest.mark.parametrize("function", [ops.cross_entropy, ops.nll_loss])
def test_a_mean_over_an_empty_batch_is_refused(function):
    with pytest.raises(ShapeError, match="at least one element for a mean"):
        function(Tensor(np.ones((0, 3))), tensor(np.zeros(0, np.int64)))
    with pytest.raises(ArgumentError, match="got 'batchmean'"):
        function(Tensor(LOGITS), tensor([0, 1, 2, 0]), reduction="batchmean")


@pytest.mark.parametrize("function", PAIRS, ids=lambda f: f.__name__)
def test_nan_in_the_data_is_nan_in_the_loss(function):
    x = Tensor(np.array([0.5, np.nan, 0.5]))
    assert np.array_equal(np.isnan(function(x, Tensor(np.full(3, 0.5)), reduction="none").array), [False, True, False])


@pytest.mark.cpu
def test_binary_cross_entropy_with_logits_is_finite_for_every_logit():
    x = tensor([1000.0, -1000.0, 1000.0, -1000.0], requires_grad=True)
    loss = ops.binary_cross_entropy_with_logits(x, tensor([1.0, 0.0, 0.0, 1.0]), reduction="none")
    assert np.array_equal(loss.array, [0, 0, 1000, 1000])
    (gradient,) = grad(loss, x, Tensor(np.ones(4, np.float32)))
    assert np.array_equal(gradient.array, [0, 0, 1, -1])


def test_binary_cross_entropy_is_banned_in_autocast_with_the_cure():
    half = tensor([0.5])
    assert_close(ops.binary_cross_entropy(half, half), np.float32(np.log(2)))
    with autocast(dtype=float16), pytest.raises(DTypeError, match="binary_cross_entropy_with_logits"):
        ops.binary_cross_entropy(half, half)


def test_binary_cross_entropy_bounds_its_logarithms_and_refuses_what_is_no_probability():
    ends, wrong = tensor([0.0, 1.0]), tensor([1.0, 0.0])
    assert ops.binary_cross_entropy(ends, wrong, reduction="none").tolist() == [100, 100]
    with pytest.raises(RangeError, match=r"inputs from 0 to 1, got 1\.5 at position 1"):
        ops.binary_cross_entropy(tensor([0.5, 1.5]), wrong)


def test_weights_that_do_not_broadcast_are_refused():
    x = Tensor(LOGITS)
    with pytest.raises(ShapeError, match=r"pos_weight that broadcasts to \(4, 3\), got \(4,\)"):
        ops.binary_cross_entropy_with_logits(x, x, pos_weight=Tensor(np.ones(4)))


def test_kl_div_of_a_zero_probability_is_zero():
    assert_close(ops.kl_div(tensor([-1.0, -2.0]), tensor([0.0, 1.0]), reduction="none"), np.float32([0, 2]))


@pytest.mark.parametrize("loss", [ops.cross_entropy, ops.nll_loss])
def test_a_batch_of_ignored_labels_alone_has_a_gradient_of_zero(loss):
    x = tensor(np.ones((2, 3), np.float32), requires_grad=True)
    out = loss(x, tensor([-100, -100]))
    out.backward()
    assert np.isnan(out.item())  # the mean of nothing, as in PyTorch
    assert x.grad.tolist() == [[0.0] * 3] * 2


def test_probabilities_have_no_index_to_ignore():
    with pytest.raises(ArgumentError, match="cross_entropy: needs ignore_index with labels, got 1 with probabilities"):
        ops.cross_entropy(tensor([[1.0, 2.0]]), tensor([[0.5, 0.5]]), ignore_index=1)
