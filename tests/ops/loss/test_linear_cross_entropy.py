"""linear_cross_entropy against float64, and against linear and cross_entropy beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError, StateError
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


def gradients_of(loss: Any, *inputs: Any) -> list[Any]:
    return [each.numpy(force=True) for each in ampkit.grad(loss, list(inputs))]


@pytest.fixture
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOGITS", 1)


@pytest.mark.usefixtures("_small_slices")
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_the_logits_of_a_slice_are_computed_once_for_a_sum_and_again_in_backward_else(reduction):
    x, w, b, target = arguments()
    called: list[str] = []
    with ampkit.observe.watch(lambda name, inputs, output: called.append(name)):
        loss = ops.linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction)
        forward = called.count("linear")
        loss.sum().backward()
    slices = -(-ROWS // FEATURES)
    assert forward == slices and called.count("linear") == (slices if reduction == "sum" else 2 * slices)
    assert called.count("linear_backward") == slices


@pytest.mark.usefixtures("_small_slices")
def test_second_derivatives_of_a_sum_over_slices():
    x, w, b, target = arguments()
    results = []
    for loss in (ops.linear_cross_entropy(x, w, target, linear_bias=b), by_parts(x, w, target, b)):
        first = ampkit.grad(loss, [x, w, b], create_graph=True)
        total = sum((each * each).sum() for each in first)
        results.append([each.numpy(force=True) for each in first] + gradients_of(total, x, w, b))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("_small_slices")
def test_a_change_in_place_is_an_error_of_second_derivatives_alone():
    x, w, _, target = arguments()
    expected = gradients_of(by_parts(x, w, target, ampkit.zeros(CLASSES, dtype="float64")), x, w)
    loss = ops.linear_cross_entropy(x, w, target)
    with ampkit.no_grad():
        w.mul_(2)
    for one, other in zip(ampkit.grad(loss, [x, w], retain_graph=True), expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-10, atol=1e-12)
    with pytest.raises(StateError, match="changed in place"):
        ampkit.grad(loss, [x, w], create_graph=True)


@pytest.mark.usefixtures("_small_slices")
def test_what_is_frozen_gets_no_gradient_and_hooks_see_one_gradient():
    x, w, b, target = arguments()
    expected = gradients_of(by_parts(x, w, target, b), x, w, b)
    for free in range(3):
        inputs = [each.detach() for each in (x, w, b)]
        inputs[free].requires_grad_()
        seen: list[Any] = []
        inputs[free].register_hook(lambda gradient, seen=seen: seen.append(gradient.numpy()))
        ops.linear_cross_entropy(inputs[0], inputs[1], target, linear_bias=inputs[2]).backward()
        assert len(seen) == 1
        np.testing.assert_allclose(inputs[free].grad.numpy(), expected[free], rtol=1e-10, atol=1e-12)
        assert all(each.grad is None for i, each in enumerate(inputs) if i != free)


@pytest.mark.usefixtures("_small_slices")
def test_a_graph_that_is_retained_gives_its_gradients_again():
    x, w, b, target = arguments()
    loss = 3 * ops.linear_cross_entropy(x, w, target, linear_bias=b)
    first = [each.numpy().copy() for each in ampkit.grad(loss, [x, w, b], retain_graph=True)]
    for one, other in zip(gradients_of(loss, x, w, b), first, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(StateError, match="already freed"):
        loss.backward()


@pytest.mark.usefixtures("_small_slices")
@pytest.mark.parametrize("scale", [1.0, 2.0**16])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_in_float16_neither_underflow_nor_overflow(scale, weighted):
    x, w, b, target = arguments(dtype=ampkit.float32)
    weight = ampkit.tensor(RNG.uniform(0.5, 3e3, CLASSES).astype(np.float32)) if weighted else None
    b = b.detach()
    b[0] = -12.0  # the probability of class 0 is about 1e-6, and 1e-6 / 13 is no number of float16
    target = target.where(target != 0, 1)
    wide = None if weight is None else weight.double()
    expected = gradients_of(by_parts(x.double(), w.double(), target, b.double(), weight=wide), w)[0]
    parameter = nn.Parameter(w.detach())  # whose gradient is float32
    scaler = ampkit.GradScaler(x.device.type, init_scale=scale)
    with ampkit.autocast(x.device.type, dtype=ampkit.float16):
        loss = ops.linear_cross_entropy(x, parameter, target, linear_bias=b, weight=weight)
    found = gradients_of(scaler.scale(loss) / scale, parameter)[0]
    for rows in (found, expected), (found[:1], expected[:1]):  # of all classes, and of class 0
        np.testing.assert_allclose(*rows, rtol=0.01, atol=0.01 * abs(rows[1]).max())


@pytest.mark.usefixtures("_small_slices")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_a_parameter_is_written_to_the_optimizer_s_memory_in_float32(dtype):
    x, w, b, target = arguments(dtype=ampkit.float32)
    weight = nn.Parameter(w.detach().clone().to(dtype))
    optimizer = optim.SGD([weight], lr=0.1)
    optimizer.zero_grad()
    with ampkit.autocast(x.device.type, dtype=ampkit.bfloat16, enabled=dtype == "bfloat16"):
        loss = ops.linear_cross_entropy(x, weight, target, linear_bias=b)
    loss.backward()
    assert weight.grad is not None and weight.grad.dtype == ampkit.float32
    expected = gradients_of(by_parts(x.double(), w.double(), target, b.double()), w)[0]
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=tolerance, atol=tolerance * abs(expected).max())
    optimizer.step()
    changed = (weight.detach().double() - w.detach().to(dtype).double()).numpy()
    np.testing.assert_allclose(changed, -0.1 * weight.grad.numpy(), atol=1e-6 if dtype == "float32" else 1e-2)


@pytest.mark.usefixtures("_small_slices")
def test_with_hooks_on_saved_tensors_the_logits_are_computed_again_in_backward():
    x, w, _, target = arguments()
    expected = gradients_of(ops.linear_cross_entropy(x, w, target), x, w)
    packed: list[Any] = []
    with ampkit.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        loss = ops.linear_cross_entropy(x, w, target)
    for one, other in zip(gradients_of(loss, x, w), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    assert packed


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_compiled_step_has_the_bits_of_an_eager_one(dtype, monkeypatch):
    monkeypatch.setattr(module, "_LOGITS", 1)
    rows, features, classes = 1 << 12, 1 << 8, 50
    target = ampkit.tensor(RNG.integers(0, classes, rows))
    x, w, b = (RNG.standard_normal(shape) for shape in ((rows, features), (classes, features), (classes,)))

    def step(x: Any, w: Any, b: Any) -> list[Any]:
        with ampkit.autocast(dtype=ampkit.bfloat16, enabled=dtype == "bfloat16"):
            loss = ops.linear_cross_entropy((ops.silu(x) * 2 + x).clamp(-3, 3), w, target, linear_bias=b)
        (2 * loss).backward()
        return [loss.detach(), x.grad, w.grad, b.grad]

    results = []
    for run in (step, ampkit.compile(step)):
        given = [nn.Parameter(ampkit.tensor(each.astype(np.float32))) for each in (x, w, b)]
        results.append([each.numpy().tobytes() for each in run(*given)])
    assert results[0] == results[1]


@pytest.mark.cpu
def test_one_slice_of_logits_is_the_most_that_is_held():
    rows, features, classes = 512, 64, 4000
    x, w = made(RNG.standard_normal((rows, features)), ampkit.float32), nn.Parameter(ampkit.randn(classes, features))
    target = ampkit.tensor(RNG.integers(0, classes, rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LOGITS", 64 * classes)
        held = ampkit.cpu.memory_allocated()
        ampkit.cpu.reset_peak_memory_stats()
        ops.linear_cross_entropy(x, w, target).backward()
        peak = ampkit.cpu.max_memory_allocated() - held
    # a slice's logits, the gradient of the weights, that of the input, and two copies of the weights for products
    assert peak <= 64 * classes * 4 + 3 * w.nbytes + 2 * x.nbytes < rows * classes * 4


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


def test_the_mean_of_no_rows_is_refused_as_by_cross_entropy_and_their_sum_is_zero():
    x, w, _, _ = arguments()
    none = x.detach()[:0].requires_grad_(), w, ampkit.tensor(np.zeros(0, int))
    with pytest.raises(ShapeError, match="linear_cross_entropy: needs at least one element for a mean"):
        ops.linear_cross_entropy(*none)
    loss = ops.linear_cross_entropy(*none, reduction="sum")
    loss.backward()
    assert loss.item() == 0
    assert not w.grad.numpy(force=True).any()
    assert ops.linear_cross_entropy(*none, reduction="none").shape == (0,)
