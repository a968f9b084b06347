"""linear_cross_entropy against float64, and against linear and cross_entropy beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.ops.loss import linear_cross_entropy as module

RNG = np.random.default_rng(0)
ROWS, FEATURES, CLASSES = 13, 6, 11


@pytest.fixture(params=[1 << 23, 1], ids=["one slice", "slices"])
def _slices(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOGITS", request.param)


def made(values: Any, dtype: Any = ampkit.float64) -> Any:
    return ampkit.tensor(values, dtype=dtype).requires_grad_()


def arguments(rest: tuple[int, ...] = (), dtype: Any = ampkit.float64) -> tuple[Any, Any, Any, Any]:
    shapes = (ROWS, FEATURES), (CLASSES, *rest, FEATURES), (CLASSES, *rest)
    x, w, b = (made(RNG.standard_normal(shape), dtype) for shape in shapes)
    return x, w, b, ampkit.tensor(RNG.integers(0, CLASSES, (ROWS, *rest)))


def by_parts(x: Any, w: Any, target: Any, b: Any, **options: Any) -> Any:
    logits = ops.linear(x, w.reshape(-1, FEATURES), b.reshape(-1)).reshape(ROWS, *w.shape[:-1])
    return ops.cross_entropy(logits, target, **options)


@pytest.mark.usefixtures("_slices")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("rest", [(), (3,)], ids=["rows", "more axes"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_those_of_linear_and_cross_entropy(reduction, rest, smoothing, weighted):
    x, w, b, target = arguments(rest)
    target[2] = -100
    weight = made(RNG.uniform(0.5, 2.0, CLASSES)) if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    inputs = [x, w, b, *([weight] if weighted else [])]
    found, expected = (
        ops.linear_cross_entropy(x, w, target, linear_bias=b, **options),
        by_parts(x, w, target, b, **options),
    )
    np.testing.assert_allclose(found.numpy(force=True), expected.numpy(force=True), rtol=1e-12)
    dy = ampkit.ones_like(found)
    for one, other in zip(ampkit.grad(found, inputs, dy), ampkit.grad(expected, inputs, dy), strict=True):
        np.testing.assert_allclose(one.numpy(force=True), other.numpy(force=True), rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("_slices")
def test_probabilities_and_second_derivatives():
    x, w, b, _ = arguments()
    target = made(RNG.dirichlet(np.ones(CLASSES), ROWS))
    found, expected = ops.linear_cross_entropy(x, w, target, linear_bias=b), by_parts(x, w, target, b)
    np.testing.assert_allclose(found.numpy(force=True), expected.numpy(force=True), rtol=1e-12)
    for one, other in zip(ampkit.grad(found, [x, target]), ampkit.grad(expected, [x, target]), strict=True):
        np.testing.assert_allclose(one.numpy(force=True), other.numpy(force=True), rtol=1e-10, atol=1e-12)


def test_one_sample_has_no_axis_of_samples():
    x, w, b, target = arguments()
    found = ops.linear_cross_entropy(x[0], w, target[0], linear_bias=b, reduction="none")
    expected = by_parts(x, w, target, b, reduction="none")[0]
    np.testing.assert_allclose(found.numpy(force=True), expected.numpy(force=True), rtol=1e-12)


@pytest.mark.usefixtures("_slices")
def test_ignored_labels_alone_give_nan_and_no_gradient():
    x, w, _, target = arguments()
    target = ampkit.full_like(target, 5)
    found = ops.linear_cross_entropy(x, w, target, ignore_index=5)
    assert np.isnan(found.item())
    assert not ampkit.grad(ops.linear_cross_entropy(x, w, target, ignore_index=5, reduction="sum"), [x])[0].any()


@pytest.mark.usefixtures("_slices")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_autocast_it_is_linear_in_16_bits_and_a_loss_in_float32(dtype):
    x, w, b, target = arguments(dtype=ampkit.float32)
    with ampkit.autocast(x.device.type, dtype=getattr(ampkit, dtype)):
        found, expected = ops.linear_cross_entropy(x, w, target, linear_bias=b), by_parts(x, w, target, b)
    assert found.dtype == ampkit.float32
    np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-5)
    (one,), (other,) = ampkit.grad(found, [w]), ampkit.grad(expected, [w])
    np.testing.assert_allclose(one.numpy(force=True), other.numpy(force=True), rtol=0.05, atol=2e-3)


def test_bad_arguments_are_refused():
    x, w, b, target = arguments()
    lce = ops.linear_cross_entropy
    with pytest.raises(ShapeError, match="linear_weight of 6 features, as input has, got 5"):
        lce(x, w[:, :5], target)
    with pytest.raises(ShapeError, match=r"target of shape \(13,\), got \(12,\)"):
        lce(x, w, target[:12])
    with pytest.raises(ShapeError, match=r"linear_bias of shape \(11,\), got \(3,\)"):
        lce(x, w, target, linear_bias=b[:3])
    with pytest.raises(ShapeError, match=r"input \[N, F\] and linear_weight"):
        lce(x[None], w, target)
    with pytest.raises(DTypeError, match="options as None or LinearCrossEntropyOptions, got 1"):
        lce(x, w, target, options=1)
    with pytest.raises(ArgumentError, match="linear_cross_entropy: needs reduction"):
        lce(x, w, target, reduction="best")
    if x.device.type == "cpu":
        target[3] = 11
        with pytest.raises(RangeError, match="linear_cross_entropy: needs labels from 0 to 10 .* got 11 at position 3"):
            lce(x, w, target)
