"""Sums of the GPU's kernels keep float32's accuracy at any length, run by the emulation; the truth is float64.

A thread adds up at most a few hundred numbers in a row, in levels: errors of either sign come to the root of their
count, some eight roundings. Here a million elements of three values, whose errors in a plain sum all have one sign;
their mean is a thousand times their spread.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, ops
from ampkit.backends.cuda.launch.rows import RUN, WARPS, RowPlan, back_grid, weight_columns, weight_sums
from ampkit.base.dtypes import float32
from ampkit.core.autograd.tape import grad
from ampkit.kernels.cuda.nn.batch_norm import RUN as RUN_OF_BATCH
from ampkit.kernels.cuda.nn.batch_norm import THREADS, Layout

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
EPS = float(np.finfo(np.float32).eps)
SUM = 8  # roundings
N = 1 << 20
X = np.resize(np.array([1000.1, 1000.7, 1001.3], np.float32), N)
WIDE = X.astype(np.float64)
KAPPA = 1 + WIDE.mean() / WIDE.std()
POWERS = np.exp(WIDE - WIDE.max())


def off(got, want):
    return np.max(np.abs(np.asarray(got, np.float64) / want - 1)) / EPS


OPS = {
    "var": (ops.var, WIDE.var(ddof=1), SUM + KAPPA),
    "rms_norm": (lambda x: ops.rms_norm(x, N), WIDE / np.sqrt((WIDE * WIDE).mean()), SUM),
    "nll_loss": (lambda x: ops.nll_loss(x.reshape(-1, 1), (x * 0).long()), -WIDE.mean(), SUM),
    "softmax": (lambda x: ops.softmax(x, 0), POWERS / POWERS.sum(), SUM + 4),  # of exp and the quotient
    "cross_entropy": (
        lambda x: ops.cross_entropy(x.reshape(1, -1), (x[:1] * 0).long()),
        np.log(POWERS.sum()) + WIDE.max() - WIDE[0],
        SUM,
    ),
    "cumsum of rows": (lambda x: ops.cumsum(x[: N // 4], 0), np.cumsum(WIDE[: N // 4]), SUM),
    "cumsum of columns": (lambda x: ops.cumsum(x.reshape(-1, 4), 0), np.cumsum(WIDE.reshape(-1, 4), 0), SUM),
}


@pytest.mark.parametrize("name", OPS)
def test_kernels_sum_a_million_elements_to_a_few_roundings(name, device):
    op, want, most = OPS[name]
    assert off(op(Tensor(device.asarray(X))).numpy(force=True), want) < most


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "batch_norm"])
def test_kernels_normalize_a_million_elements_to_the_rounding_of_their_mean(name, device):
    op = {
        "layer_norm": lambda x: ops.layer_norm(x, N),
        "group_norm": lambda x: ops.group_norm(x.reshape(1, 4, -1), 1),
        "batch_norm": lambda x: ops.batch_norm(x.reshape(1, 1, -1), None, None, training=True),
    }[name]
    got = op(Tensor(device.asarray(X))).numpy(force=True).reshape(-1)
    assert np.abs(got - (WIDE - WIDE.mean()) / np.sqrt(WIDE.var() + 1e-5)).max() < SUM * KAPPA * EPS


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_gradients_of_a_million_elements_share_a_sum_to_a_few_roundings(name, device):
    x = Tensor(device.asarray(X), True)
    (found,) = grad(getattr(ops, name)(x, 0), [x], x.detach())
    out = POWERS / POWERS.sum()
    want = (WIDE - (WIDE * out).sum()) * out if name == "softmax" else WIDE - out * WIDE.sum()
    size = WIDE * out if name == "softmax" else WIDE + out * WIDE.sum()
    assert np.max(np.abs(found.numpy(force=True) - want) / size) < (SUM + 4) * EPS


def test_gradients_of_a_channel_are_sums_over_any_number_of_places(device):
    x, bias = (Tensor(device.asarray(a), True) for a in (X.reshape(1, 2, -1), np.zeros(2, np.float32)))
    weight = Tensor(device.asarray(np.ones(2, np.float32)))
    (found,) = grad(ops.group_norm(x, 1, weight, bias), [bias], x.detach())
    assert off(found.numpy(force=True), WIDE.reshape(2, -1).sum(1)) < SUM


def test_the_gradient_of_a_bias_is_a_sum_over_any_number_of_rows(device):
    rows = X[: 1 << 18].reshape(-1, 4)
    bias = Tensor(device.asarray(np.zeros(4, np.float32)), True)
    weight, x = (Tensor(device.asarray(np.ones(shape, np.float32))) for shape in ((4, 4), rows.shape))
    (found,) = grad(ops.linear(x, weight, bias), [bias], Tensor(device.asarray(rows)))
    assert off(found.numpy(force=True), rows.astype(np.float64).sum(0)) < SUM


def test_sums_over_rows_are_blocked_where_a_thread_has_a_column(device):
    dy = X[: 1 << 18].reshape(-1, 4)
    ones = [device.asarray(np.full((len(dy), 1), value, np.float32)) for value in (0, 1)]
    parts = [device.asarray(np.zeros((2, 4), np.float32)) for _ in range(2)]
    weight_columns(device.asarray(dy), device.asarray(np.ones_like(dy)), ones, parts)
    for found in parts:
        assert off(found.get().sum(0, np.float64), dy.astype(np.float64).sum(0)) < SUM


def test_parts_of_sums_over_rows_are_blocked_in_their_turn(device):
    parts = X.reshape(-1, 4)
    (found,) = weight_sums([device.asarray(parts)], [float32], [None], (4,))
    assert off(found.get(), parts.astype(np.float64).sum(0)) < SUM


@pytest.mark.parametrize("how", [(1, 4, False), (8, 1, False), (8, 1, True), (8, 2, True), (8, 0, True)])
def test_rows_are_shared_out_so_that_no_warp_adds_up_many(how, device):
    for rows in (1, 8192, 1 << 20, 1 << 24):
        x = np.broadcast_to(device.asarray(np.zeros(8, np.float32)), (rows, 8))
        grid = back_grid(x, x, 8, RowPlan(*how), 2)
        assert grid.sums and grid.blocks * (1 if how[2] else WARPS) * RUN >= rows


@pytest.mark.parametrize("channels", [1, 64, 4096])
@pytest.mark.parametrize("last", [False, True])
def test_a_batch_is_shared_out_so_that_no_thread_adds_up_many(channels, last):
    x = np.broadcast_to(np.float32(0), (1 << 10, channels, (1 << 30) // channels >> 10))
    layout = Layout(x)
    layout.last, layout.samples, layout.spatial = (
        last,
        x.size // channels if last else x.shape[0],
        1 if last else x.shape[2],
    )
    at_once, width, share = layout.walk()
    accesses = layout.samples if last else layout.values // at_once
    assert share * (THREADS // width) * RUN_OF_BATCH >= accesses
