"""Norms of single samples against NumPy formulas; running statistics; bad input in one line."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import nn, ops, tensor
from ampkit.base.dtypes import bfloat16, float16
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.policy import autocast
from ampkit.testing import assert_close

RNG = np.random.default_rng(0)
KINDS = [(nn.InstanceNorm1d, (7,)), (nn.InstanceNorm2d, (4, 3)), (nn.InstanceNorm3d, (2, 3, 2))]


def normed(x, eps=1e-5):
    over = tuple(range(2, x.ndim))
    return (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + eps)


@pytest.mark.parametrize(("kind", "size"), KINDS, ids=lambda v: getattr(v, "__name__", ""))
def test_every_channel_of_every_sample_is_normed_by_itself(kind, size):
    x, weight, bias = RNG.normal(2, 3, (4, 3, *size)), RNG.normal(size=3), RNG.normal(size=3)
    assert list(kind(3).state_dict()) == []
    layer = kind(3, affine=True).double()
    layer.weight.data, layer.bias.data = weight, bias
    want = normed(x) * weight.reshape(3, *(1,) * len(size)) + bias.reshape(3, *(1,) * len(size))
    assert_close(layer(tensor(x)), want)
    assert_close(layer(tensor(x[1])), want[1])
    assert_close(layer.eval()(tensor(x)), want)


def test_running_statistics_move_towards_the_average_over_the_samples_and_serve_in_eval():
    x, layer = RNG.normal(1, 2, (4, 3, 5)), nn.InstanceNorm1d(3, momentum=0.3, track_running_stats=True).double()
    assert list(layer.state_dict()) == ["running_mean", "running_var", "num_batches_tracked"]
    assert_close(layer(tensor(x)), normed(x))
    mean, var = 0.3 * x.mean(2).mean(0), 0.7 + 0.3 * x.var(2, ddof=1).mean(0)
    assert_close(layer.running_mean, mean)
    assert_close(layer.running_var, var)
    assert_close(layer.eval()(tensor(x)), (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5))
    layer.train()(tensor(x * np.inf))
    assert_close(layer.running_mean, mean)


def test_the_answer_is_in_the_dtype_of_the_input_also_in_autocast():
    for dtype in (float16, bfloat16):
        x = tensor(RNG.normal(size=(2, 3, 8)).astype(dtype))
        with autocast(dtype=dtype):
            assert nn.InstanceNorm1d(3, affine=True)(x).dtype == dtype


def test_local_response_norm_divides_by_what_the_neighbours_do():
    x, (size, alpha, beta, k) = RNG.normal(size=(2, 6, 3)), (4, 0.5, 0.6, 0.8)
    want = np.empty_like(x)
    for c in range(6):
        squares = (x[:, max(0, c - 2) : c + 2] ** 2).sum(1)
        want[:, c] = x[:, c] / (k + alpha * squares / size) ** beta
    assert_close(nn.LocalResponseNorm(size, alpha, beta, k)(tensor(x)), want)
    assert_close(nn.CrossMapLRN2d(size, alpha, beta, k)(tensor(x[..., None])), want[..., None])


BAD = [
    (ShapeError, r"InstanceNorm2d: needs input \[N, 3, H, W\] or \[3, H, W\]", lambda x: nn.InstanceNorm2d(3)(x)),
    (ShapeError, r"InstanceNorm1d: needs .* got shape \(2, 3, 4\)", lambda x: nn.InstanceNorm1d(4)(x)),
    (ShapeError, "more than one position for the statistics", lambda x: ops.instance_norm(x[:, :, :1])),
    (ShapeError, r"weight of shape \(3,\)", lambda x: ops.instance_norm(x, weight=x[0, 0])),
    (ArgumentError, "running_mean and running_var, got None", lambda x: ops.instance_norm(x, use_input_stats=False)),
    (ShapeError, r"input of shape \[N, C, ...\], got \(3,\)", lambda x: ops.local_response_norm(x[0, :, 0], 2)),
    (ShapeError, r"CrossMapLRN2d: needs input \[N, C, H, W\], got shape \(2, 3, 4\)", lambda x: nn.CrossMapLRN2d(3)(x)),
    (ArgumentError, "size as a positive integer, got 0", lambda x: ops.local_response_norm(x, 0)),
]


@pytest.mark.parametrize(("kind", "line", "call"), BAD, ids=[line for _, line, _ in BAD])
def test_what_does_not_fit_is_refused_in_one_line(kind, line, call):
    with pytest.raises(kind, match=line):
        call(tensor(RNG.normal(size=(2, 3, 4))))
