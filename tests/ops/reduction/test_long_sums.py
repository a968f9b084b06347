"""Sums, means, variances and norms keep float32's accuracy at any size and at any offset; the truth is float64.

Long arrays repeat a short pattern, whose float64 statistics are those of the whole. Errors are counted in roundings of
float32, EPS, of the sum of sizes. At most 64 additions follow each other in a blocked sum, and four such levels hold 16
million elements: 256 errors of half a rounding each, of either sign, come to the root of 256 halves, 8 roundings.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.tape import grad
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.dispatch import reference_only

pytestmark = pytest.mark.cpu  # the GPU's kernels: tests/kernels/cuda/test_summation_accuracy.py
EPS = float(np.finfo(np.float32).eps)
SUM = 8  # roundings of a blocked sum
PERIOD = 1 << 12
MILLIONS = pytest.mark.parametrize("offset", [0, 1000])
BOTH = pytest.mark.parametrize("kernels", [False, True], ids=["reference", "kernels"])


def pattern(rows, columns, offset, seed=0):
    """Numbers from `offset` to offset + 1: [rows, columns] that repeat along the longer axis; the period in float64."""
    along = 0 if rows > columns else 1
    size = (PERIOD, columns) if along == 0 else (rows, PERIOD)
    once = np.random.default_rng(seed).random(size, np.float32) + np.float32(offset)
    times = (rows // PERIOD, 1) if along == 0 else (1, columns // PERIOD)
    return np.tile(once, times), once.astype(np.float64), along


def kappa(once, along):
    """How much larger than the deviation the mean is, plus 1: what rounding the mean costs."""
    return 1 + np.abs(once.mean(along)).max() / once.std(along).min()


def run(kernels, function, *arrays, **params):
    with nullcontext() if kernels else reference_only():
        return function(*[tensor(a) for a in arrays], **params).numpy(force=True).astype(np.float64)


def off(got, want, size=None):
    """The largest error, in roundings of `size`, by default the truth's."""
    return np.max(np.abs(got - want) / np.abs(want if size is None else size)) / EPS


REDUCTIONS = {
    "sum": (ops.sum, lambda x, along, times: x.sum(along) * times, SUM),
    "mean": (ops.mean, lambda x, along, times: x.mean(along), SUM),
    "norm": (ops.norm, lambda x, along, times: np.sqrt((x * x).sum(along) * times), SUM),
    "size": (lambda x, dim: ops.norm(x, 1, dim), lambda x, along, times: np.abs(x).sum(along) * times, SUM),
    "logsumexp": (
        ops.logsumexp,
        lambda x, along, times: np.log(np.exp(x - x.max()).sum(along) * times) + x.max(),
        SUM,
    ),
}


@MILLIONS
@BOTH
@pytest.mark.parametrize("shape", [(1 << 18, 4), (4, 1 << 18)], ids=["tall", "long"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_million_elements_are_reduced_to_a_few_roundings(name, shape, kernels, offset):
    op, truth, roundings = REDUCTIONS[name]
    x, once, along = pattern(*shape, offset)
    got = run(kernels, lambda t: op(t, dim=along), x)
    assert off(got, truth(once, along, shape[along] // PERIOD)) < roundings


@MILLIONS
@BOTH
@pytest.mark.parametrize("shape", [(1 << 18, 4), (4, 1 << 18)], ids=["tall", "long"])
def test_a_variance_of_a_million_elements_is_not_moved_by_their_mean(shape, kernels, offset):
    # (kappa eps)^2: the rounding of the mean, squared, is in the sum of squares. Chan, Golub, LeVeque 1983, eq. 1.6.
    x, once, along = pattern(*shape, offset)
    for op, want in ((ops.var, once.var(along)), (ops.std, once.std(along))):
        got = run(kernels, lambda t, op=op: op(t, dim=along, correction=0), x)
        assert off(got, want) < SUM + kappa(once, along) ** 2 * EPS


def test_16_million_elements_are_summed_to_a_few_roundings():
    x, once, _ = pattern(1 << 23, 2, 1)
    assert off(run(True, ops.sum, x, dim=0), once.sum(0) * (len(x) // PERIOD)) < SUM


@MILLIONS
@BOTH
@pytest.mark.parametrize("shape", [(1 << 18, 4), (4, 1 << 18)], ids=["tall", "long"])
def test_running_sums_and_softmax_are_those_of_float64_at_every_place(shape, kernels, offset):
    x, once, along = pattern(*shape, offset)
    times = shape[along] // PERIOD
    ends = np.moveaxis(run(kernels, ops.cumsum, x, dim=along), along, 0)[PERIOD - 1 :: PERIOD]
    # Two levels of at most 4096 additions.
    assert off(ends, once.sum(along) * np.arange(1, times + 1)[:, None]) < np.sqrt(2 * 4096) / 2
    powers = np.exp(once - once.max())
    got = np.moveaxis(run(kernels, ops.softmax, x, dim=along), along, 0)[-PERIOD:]
    # Two roundings more for each of exp and the quotient.
    assert off(got, np.moveaxis(powers / powers.sum(along, keepdims=True) / times, along, 0)) < SUM + 4


def test_one_row_of_16_million_elements_is_normalized_to_the_rounding_of_its_mean():
    x, once, _ = pattern(1, 1 << 24, 1)
    got = ops.layer_norm(tensor(x), x.shape[1:])[:, -PERIOD:].numpy(force=True)
    want = (once - once.mean()) / np.sqrt(once.var() + 1e-5)
    assert np.abs(got - want).max() < SUM * kappa(once, 1) * EPS


@MILLIONS
@BOTH
@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize"])
def test_long_rows_are_normalized_to_the_rounding_of_their_mean(name, kernels, offset):
    x, once, _ = pattern(2, 1 << 19, offset)
    square = np.sqrt((once * once).mean(1, keepdims=True))
    centered = (once - once.mean(1, keepdims=True)) / np.sqrt(once.var(1, keepdims=True) + 1e-5)
    op, want, most = {
        "layer_norm": (lambda t: ops.layer_norm(t, t.shape[1:]), centered, SUM * kappa(once, 1)),
        "group_norm": (lambda t: ops.group_norm(t.reshape(2, 4, -1), 1), centered, SUM * kappa(once, 1)),
        "instance_norm": (lambda t: ops.instance_norm(t.reshape(1, 2, -1)), centered, SUM * kappa(once, 1)),
        "rms_norm": (lambda t: ops.rms_norm(t, t.shape[1:]), once / square, SUM),
        "normalize": (ops.normalize, once / square / np.sqrt(x.shape[1]), SUM),
    }[name]
    got = run(kernels, op, x).reshape(2, -1, PERIOD)
    assert np.abs(got - want[:, None]).max() / np.abs(want).max() < most * EPS


@MILLIONS
@BOTH
@pytest.mark.parametrize("shape", [(1 << 18, 4), (4, 4, 1 << 16)], ids=["rows", "images"])
def test_batch_statistics_of_a_million_elements_are_those_of_float64(shape, kernels, offset):
    # The condition of a variance is 2 kappa: Chan, Golub, LeVeque 1983, section 2.
    x = np.random.default_rng(0).random(shape, np.float32) + np.float32(offset)
    mean, var = (tensor(np.zeros(4, np.float32)) for _ in range(2))
    axes, wide = (0, *range(2, len(shape))), x.astype(np.float64)
    run(kernels, lambda t: ops.batch_norm(t, mean, var, training=True, momentum=1.0), x)
    means, variances = wide.mean(axes), wide.var(axes, ddof=1)
    assert off(mean.numpy(force=True), means) < SUM
    assert off(var.numpy(force=True), variances) < SUM + (means / np.sqrt(variances)).max()


@pytest.mark.parametrize("offset", [0, 3.9, 4.1, 1000])
def test_batch_statistics_in_bfloat16_are_good_to_5e_6_of_a_variance(offset):
    # 3.9 deviations are summed by squares where a CPU multiplies bfloat16, 4.1 are not: see kernels/nn/batch_norm.py.
    x = (np.random.default_rng(0).standard_normal((1 << 16, 16), np.float32) + np.float32(offset)).astype(bfloat16)
    mean, var = (tensor(np.zeros(16, np.float32)) for _ in range(2))
    ops.batch_norm(Tensor(x), mean, var, training=True, momentum=1.0)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(var.numpy(), wide.var(0, ddof=1), rtol=5e-6)
    np.testing.assert_allclose(mean.numpy(), wide.mean(0), rtol=SUM * EPS, atol=SUM * EPS)


def gradients(name, x, dy):
    """Those of weight and bias, and what they are sums of."""
    width = x.shape[1]
    weight, bias = (tensor(np.full(width, v, np.float32), requires_grad=True) for v in (1, 0))
    x = tensor(x, requires_grad=True)
    out = {
        "layer_norm": lambda: ops.layer_norm(x, width, weight, bias),
        "rms_norm": lambda: ops.rms_norm(x, width, weight) + bias,
        "group_norm": lambda: ops.group_norm(x, 1, weight, bias),
        "batch_norm": lambda: ops.batch_norm(x, None, None, weight, bias, True),
        "add_layer_norm": lambda: ops.layer_norm_of_sum(x, x, width, weight, bias),
        "linear": lambda: ops.linear(x * weight, tensor(np.eye(width, dtype=np.float32)), bias),
        "broadcasting": lambda: x * weight + bias,
    }[name]()
    return [g.numpy(force=True) for g in grad(out, [weight, bias], tensor(dy))]


@MILLIONS
@BOTH
@pytest.mark.parametrize(
    "name", ["layer_norm", "rms_norm", "group_norm", "batch_norm", "add_layer_norm", "linear", "broadcasting"]
)
def test_gradients_of_scales_are_sums_over_any_number_of_rows(name, kernels, offset):
    x, once, _ = pattern(1 << 18, 4, 0)
    dy, gradient, _ = pattern(1 << 18, 4, offset, seed=1)
    times = len(x) // PERIOD
    with nullcontext() if kernels else reference_only():
        dw, db = gradients(name, x, dy)
    hat = {
        "rms_norm": once / np.sqrt((once * once).mean(1, keepdims=True) + EPS),
        "batch_norm": (once - once.mean(0)) / np.sqrt(once.var(0) + 1e-5),
        "linear": once,
        "broadcasting": once,
    }.get(name)
    if hat is None:
        eps = 1e-5 / 4 if name == "add_layer_norm" else 1e-5  # of 2 x
        hat = (once - once.mean(1, keepdims=True)) / np.sqrt(once.var(1, keepdims=True) + eps)
    assert off(db, gradient.sum(0) * times) < 2 * SUM
    assert off(dw, (gradient * hat).sum(0) * times, np.abs(gradient * hat).sum(0) * times) < 2 * SUM


@BOTH
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "cross_entropy", "classes", "nll_loss"])
def test_losses_are_means_over_any_number_of_elements(name, kernels):
    x, once, _ = pattern(1 << 18, 4, 0)
    labels = np.arange(len(x)) % 4
    own = np.take_along_axis(once, (np.arange(PERIOD) % 4)[:, None], 1)
    losses = np.log(np.exp(once).sum(1, keepdims=True)) - own
    place = tensor(labels)
    zeros = tensor(np.zeros_like(x))
    op, want = {
        "mse_loss": (lambda t: ops.mse_loss(t, zeros), (once**2).mean()),
        "l1_loss": (lambda t: ops.l1_loss(t, zeros), once.mean()),
        "cross_entropy": (lambda t: ops.cross_entropy(t, place), losses.mean()),
        "classes": (lambda t: ops.cross_entropy(t.T.contiguous()[:1], tensor(np.zeros(1, np.int64))), None),
        "nll_loss": (lambda t: ops.nll_loss(t, place), -own.mean()),
    }[name]
    if want is None:
        want = np.log(np.exp(once[:, 0]).sum() * (len(x) // PERIOD)) - once[0, 0]
    assert off(run(kernels, op, x), want) < SUM


@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_blocked_sum_is_the_sum_in_every_order_of_memory(axis, order):
    x = np.random.default_rng(0).random((67, 130, 200)).astype(np.float32).transpose(order)[:, ::2]
    for keepdims in (False, True):
        got, want = blocked_sum(x, axis, keepdims), x.astype(np.float64).sum(axis, keepdims=keepdims)
        assert np.shape(got) == np.shape(want) and off(got, want) < SUM


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1 << 13, 0), (1, 1, 600), (600, 1, 1)])
def test_a_blocked_sum_of_nothing_or_along_axes_of_one_is_numpy_s(shape):
    x = np.ones(shape, np.float32)
    for axis in (None, 0, 1, -1):
        np.testing.assert_array_equal(blocked_sum(x, axis), x.sum(axis))


def test_what_is_not_finite_stays_so_in_a_blocked_sum():
    x = np.ones((1 << 13, 3), np.float32)
    x[100, 0], x[5000, 1], x[70, 2], x[8000, 2] = np.inf, np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        found = blocked_sum(x, 0)
    np.testing.assert_array_equal(found, np.array([np.inf, np.nan, np.nan], np.float32))


def test_the_tape_sums_what_broadcasting_repeated_to_a_few_roundings():
    x, once, _ = pattern(1 << 18, 4, 1000)
    for run_ in (sum_over, sum_over.reference.run):
        assert off(run_(x, (0,))[0], once.sum(0) * (len(x) // PERIOD)) < SUM
