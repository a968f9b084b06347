"""AdaptiveLogSoftmaxWithLoss against the softmax of all its classes, written out."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, tensor
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.testing import assert_close, gradcheck

RNG = np.random.default_rng(0)
CUTOFFS = [4, 7]


def layer(**options):
    return nn.AdaptiveLogSoftmaxWithLoss(8, 12, CUTOFFS, div_value=2.0, dtype=ampkit.float64, **options)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def log_probabilities(made, x):
    weights = {name: value.numpy() for name, value in made.state_dict().items()}
    head = log_softmax(x @ weights["head.weight"].T + weights.get("head.bias", 0.0))
    found = [head[:, :4]]
    for i in range(2):
        hidden = x @ weights[f"tail.{i}.0.weight"].T
        found.append(log_softmax(hidden @ weights[f"tail.{i}.1.weight"].T) + head[:, 4 + i, None])
    return np.concatenate(found, 1)


@pytest.mark.parametrize("head_bias", [False, True])
def test_values_are_those_of_the_softmax_over_all_classes(head_bias):
    made = layer(head_bias=head_bias)
    assert [tuple(w.shape) for w in made.tail.parameters()] == [(4, 8), (3, 4), (2, 8), (5, 2)]
    x, labels = RNG.normal(size=(9, 8)), RNG.integers(0, 12, 9)
    truth = log_probabilities(made, x)
    np.testing.assert_allclose(np.exp(truth).sum(1), 1.0)
    output, loss = made(tensor(x), tensor(labels))
    assert_close(output, truth[np.arange(9), labels])
    assert_close(loss, -truth[np.arange(9), labels].mean())
    assert_close(made.log_prob(tensor(x)), truth)
    assert made.predict(tensor(x)).tolist() == truth.argmax(1).tolist()
    one = made(tensor(x[0]), tensor(labels[0]))
    assert one.output.shape == () and made.predict(tensor(x[0])).item() == truth[0].argmax()
    assert_close(one.loss, -truth[0, labels[0]])


@pytest.mark.parametrize("labels", [[0, 5, 11, 3], [1, 2, 3, 0], [9, 9, 8, 11]])
def test_gradients_are_those_of_differences(labels):
    made = layer(head_bias=True)
    x = tensor(RNG.normal(size=(4, 8)), requires_grad=True)
    assert gradcheck(lambda x, *weights: made(x, tensor(labels)).output, (x, *made.parameters()))
    made(x, tensor(labels)).loss.backward()
    used = {0 if label < 4 else 1 if label < 7 else 2 for label in labels}
    assert [made.tail[i][0].weight.grad is not None for i in range(2)] == [1 in used, 2 in used]


def test_under_autocast_products_have_16_bits_and_probabilities_32():
    made, x = nn.AdaptiveLogSoftmaxWithLoss(8, 12, CUTOFFS, div_value=2.0), ops.randn(5, 8)
    labels = tensor([0, 5, 11, 3, 8])
    with ampkit.autocast(dtype=ampkit.bfloat16):
        output, loss = made(x, labels)
        loss.backward()
    assert output.dtype == loss.dtype == made.head.weight.grad.dtype == ampkit.float32
    np.testing.assert_allclose(output.numpy(force=True), made(x, labels).output.numpy(force=True), rtol=0.02, atol=0.02)
    assert made.log_prob(x[:0]).shape == (0, 12)


X, LABELS = ops.ones(2, 8), tensor([0, 11])


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [7, 4]), ArgumentError, "needs cutoffs as growing integers between"),
    (lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 12]), ArgumentError, "0 and n_classes, 12"),
    (lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, []), ArgumentError, "needs cutoffs"),
    (lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 7]), ArgumentError, "needs div_value that leaves the last of 2"),
    (lambda: layer()(ops.ones(2, 7).double(), LABELS), ShapeError, r"needs input \[N, 8\] or \[8\], got \[2, 7\]"),
    (lambda: layer()(X.double(), tensor([0])), ShapeError, r"needs target of shape \[2\], got \[1\]"),
    (lambda: layer()(X.double(), tensor([0, 12])), RangeError, "needs targets from 0 to 11, got 0 to 12"),
    (lambda: layer()(X.double(), tensor([0.0, 1.0])), DTypeError, "needs a target of integers"),
])  # fmt: skip
def test_what_does_not_fit_is_named(call, error, says):
    with pytest.raises(error, match=says):
        call()
