"""Cross entropy in blocks of rows: its values are those of float64, and what is not finite stays so."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import RangeError
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.ops.loss.known_gradients import gradients_of
from ampkit.testing import GRADIENT_TOLERANCE, TOLERANCE, Case, assert_close, check_precision, integers, normal, uniform

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

N, C = 700, 97
CASES = [
    Case("cross_entropy", normal(N, C), integers(0, C, N)),
    Case("cross_entropy", normal(N, C), integers(0, C, N), reduction="sum"),
    Case("cross_entropy", normal(N, C), integers(0, C, N), reduction="none"),
    Case("cross_entropy", normal(N, C), integers(0, C, N), ignore_index=3),
    Case("cross_entropy", normal(N, C), integers(0, C, N), ignore_index=3, reduction="none"),
    Case("cross_entropy", normal(N, C), integers(0, C, N), uniform(0.5, 2, C), ignore_index=3),
    Case("cross_entropy", normal(N, C), integers(0, C, N), uniform(0.5, 2, C), label_smoothing=0.1),
    Case("cross_entropy", normal(N, C), integers(0, C, N), label_smoothing=0.1),
    Case("cross_entropy", normal(2, 40000), integers(0, 40000, 2)),
    Case("cross_entropy", normal(70000, 1), integers(0, 1, 70000)),
    Case("cross_entropy", normal(3, 21, 17, 40), integers(0, 21, 3, 17, 40), ignore_index=2),
    Case("cross_entropy", normal(3, 21, 17, 40), integers(0, 21, 3, 17, 40), uniform(0.5, 2, 21), label_smoothing=0.2),
    Case("cross_entropy", normal(2, 700, 9), integers(0, 700, 2, 9), reduction="none", label_smoothing=0.2),
    Case("cross_entropy", normal(5000), integers(0, 5000)),
]


def _run(values, labels, gradient=None, **params):
    x = Tensor(values, requires_grad=True)
    loss = ops.cross_entropy(x, Tensor(labels), **params)
    gradient = None if gradient is None else Tensor(gradient.astype(loss.dtype))
    return loss.detach(), grad(loss, [x], gradient)[0]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_losses_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    check_precision(case, dtype)


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_kernels_are_what_runs(case, dtype, monkeypatch):
    (loss,) = case(*case.tensors(dtype))
    assert loss.node.kernel.name == "cross_entropy_cpu"
    node, primitive = loss.node, loss.node.op.backward_primitive
    params = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0, **case.params}
    selected = primitive.select("cpu", loss.array, node.saved, (dtype, None, None), **params)
    assert selected.name == "cross_entropy_backward_cpu"


WILD = {
    "NaN": [(0, np.nan)],
    "NaN at the end": [(-1, np.nan)],
    "inf": [(5, np.inf)],
    "-inf": [(5, -np.inf)],
    "only -inf": [(slice(None), -np.inf)],
    "inf and NaN": [(5, np.inf), (6, np.nan)],
    "the label unlikely": [(7, -200.0)],
    "the label impossible": [(7, -np.inf)],
    "the label sure": [(7, 300.0)],
    "another label sure": [(8, 1e4)],
    "far from 0": [(slice(None), 1e4)],
}


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_what_is_not_finite_or_far_apart_comes_out_as_in_the_reference(dtype, reduction, ignored):
    rng = np.random.default_rng(0)
    values, labels = rng.standard_normal((N, C)), rng.integers(0, C, N)
    for row, changes in enumerate(WILD.values()):
        labels[3 * row] = 7
        for at, value in changes:
            values[3 * row, at] = value
    ignore = 7 if ignored else -100
    gradient = rng.standard_normal(N) if reduction == "none" else None
    given = values.astype(dtype), labels, gradient
    found = _run(*given, reduction=reduction, ignore_index=ignore)
    with reference_only():
        truth = _run(*given, reduction=reduction, ignore_index=ignore)
    for got, want, (rtol, _) in zip(found, truth, (TOLERANCE[dtype], GRADIENT_TOLERANCE[dtype]), strict=True):
        np.testing.assert_allclose(got.numpy().astype(float), want.numpy().astype(float), rtol=rtol, atol=1e-5)
    bad = np.isnan(found[1].numpy().astype(float))
    np.testing.assert_array_equal(np.flatnonzero(bad.any(1)), [0, 3, 6, 12, 15])
    assert (bad.any(1) == bad.all(1)).all()


@pytest.mark.parametrize("wild", [np.nan, -np.nan, np.inf], ids=["nan", "-nan", "inf"])
def test_no_place_in_a_row_hides_what_is_not_finite(wild):
    values = np.random.default_rng(0).standard_normal((260, 260)).astype(np.float32)
    np.fill_diagonal(values, wild)
    loss, gradients = _run(values, np.full(260, 17), np.ones(260), reduction="none")
    assert np.isnan(loss.numpy()).all()
    assert np.isnan(gradients.numpy()).all()


def test_a_batch_of_ignored_labels_has_no_loss_and_no_gradient():
    values = np.ones((N, C), np.float32)
    loss, gradients = _run(values, np.full(N, -100))
    assert np.isnan(loss.numpy())
    assert (gradients.numpy() == 0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels_of_few_bits_and_of_any_strides_are_read(reduction):
    rng = np.random.default_rng(0)
    values, labels = rng.standard_normal((N, C)).astype(np.float32), rng.integers(0, C, N)
    expected = _run(values, labels, np.ones(N if reduction == "none" else ()), reduction=reduction)
    for given in (labels.astype(np.uint8), labels.astype(np.int32), np.repeat(labels, 2)[::2]):
        found = _run(values, given, np.ones(N if reduction == "none" else ()), reduction=reduction)
        np.testing.assert_array_equal(found[0].numpy(), expected[0].numpy())
        np.testing.assert_array_equal(found[1].numpy(), expected[1].numpy())


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("shape", [(N, C), (7, C, 100)], ids=["rows", "columns"])
def test_the_gradient_can_take_the_memory_of_the_scores(shape, dtype):
    rng = np.random.default_rng(0)
    values, labels = rng.standard_normal(shape).astype(dtype), rng.integers(0, C, (shape[0], *shape[2:]))
    scores = Tensor(values.copy(), True)
    node = ops.cross_entropy(scores, Tensor(labels), label_smoothing=0.1).node
    dy = np.ones((), np.float32)
    (expected, *_) = gradients_of(node, dy, (dtype, None, None), (None,))
    (found, *_) = gradients_of(node, dy, (dtype, None, None), (scores.array,))
    assert found is scores.array and expected is not found
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("label", [C, -1])
def test_a_label_that_is_no_class_is_named_with_its_position(label):
    labels = np.zeros(N, int)
    labels[40] = label
    with pytest.raises(RangeError, match=f"{label} at position 40"):
        ops.cross_entropy(Tensor(np.ones((N, C), np.float32)), Tensor(labels))


def test_a_gradient_of_a_weight_of_classes_is_left_to_the_reference():
    rng = np.random.default_rng(0)
    values, labels = rng.standard_normal((N, C)).astype(np.float32), Tensor(rng.integers(0, C, N))

    def run():
        x, weight = Tensor(values, True), Tensor(np.linspace(0.5, 2, C, dtype=np.float32), True)
        loss = ops.cross_entropy(x, labels, weight)
        return loss, *grad(loss, [x, weight])

    found = run()
    with reference_only():
        truth = run()
    assert found[0].node.kernel is not truth[0].node.kernel
    for got, want in zip(found, truth, strict=True):
        assert_close(got, want)
