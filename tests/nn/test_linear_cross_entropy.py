"""LinearCrossEntropyLoss: a Linear and the cross entropy of its output, as one layer."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, tensor
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.testing import assert_close

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("out_features", [(), (3, 2)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_it_is_the_cross_entropy_of_a_linear_layer(out_features, bias, probabilities):
    options = {} if probabilities else {"ignore_index": 1, "label_smoothing": 0.1}
    per_class = tensor(RNG.uniform(0.5, 2, 4))
    loss = nn.LinearCrossEntropyLoss(
        5, 4, out_features=out_features, bias=bias, dtype=ampkit.float64, weight=per_class, **options
    )
    assert list(loss.state_dict()) == ["weight", "linear.weight", "linear.bias"][: 2 + bias]
    x = tensor(RNG.normal(size=(6, 5)), requires_grad=True)
    drawn = RNG.random((6, 4, *out_features)) if probabilities else RNG.integers(0, 4, (6, *out_features))
    found = loss(x, tensor(drawn))
    found.backward()
    again = x.detach().requires_grad_()
    logits = ops.linear(again, loss.linear.weight.detach(), None if not bias else loss.linear.bias.detach())
    wanted = ops.cross_entropy(logits.reshape(6, 4, *out_features), tensor(drawn), per_class, **options)
    wanted.backward()
    assert_close(found, wanted.detach().numpy())
    assert_close(x.grad, again.grad.numpy())


def test_options_for_slices_change_nothing_and_one_row_is_a_batch_of_none():
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2, chunking_method=None)
    loss = nn.LinearCrossEntropyLoss(5, 4, reduction="none", options=options)
    x = ops.randn(3, 5)
    labels = tensor([0, 3, 2])
    rows = loss(x, labels)
    assert rows.shape == (3,)
    loss.options = None
    assert loss(x, labels).tolist() == rows.tolist()
    assert_close(loss(x[1], labels[1]), rows[1].detach().numpy())
    said = "num_classes=4, out_features=(), reduction=none, ignore_index=None, label_smoothing=0.0, options=None"
    assert said in repr(loss)


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: nn.LinearCrossEntropyLoss(5, 4, weight=ops.ones(5)), ShapeError, r"needs weight \[4\], got \[5\]"),
    (lambda: nn.LinearCrossEntropyLoss(5, 4, label_smoothing=2.0), ArgumentError, "label_smoothing from 0 to 1"),
    (lambda: nn.LinearCrossEntropyLoss(5, 4, reduction="best"), ArgumentError, "needs reduction"),
    (lambda: nn.LinearCrossEntropyLoss(5, 4, out_features=4), DTypeError, "out_features as a tuple of sizes, got 4"),
    (lambda: nn.LinearCrossEntropyLoss(5, 4, out_features=(2, 0)), ArgumentError, "out_features"),
    (lambda: nn.LinearCrossEntropyLoss(5, 0), ArgumentError, "num_classes as a positive integer"),
    (lambda: nn.LinearCrossEntropyLoss(0, 4), ArgumentError, "in_features as a positive integer"),
    (lambda: nn.LinearCrossEntropyLoss(5, 4)(ops.ones(2, 6), tensor([0, 1])), ShapeError, "features"),
    (lambda: nn.LinearCrossEntropyLoss(5, 4)(ops.ones(1, 5), tensor([4])), RangeError, "from 0 to 3"),
])  # fmt: skip
def test_what_does_not_fit_is_named(call, error, says):
    with pytest.raises(error, match=says):
        call()
