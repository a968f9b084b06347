"""Fractional max pooling: against windows that loops place by the formula of the paper, in float64."""

from __future__ import annotations

from itertools import product
from math import floor

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.testing import gradcheck, gradgradcheck

RNG = np.random.default_rng(0)
POOLS = {2: ops.fractional_max_pool2d, 3: ops.fractional_max_pool3d}


def starts(u, n, k, o):
    step = (n - k) / (o - 1) if o > 1 else 0
    return [*[floor((i + u) * step) - floor(u * step) for i in range(o - 1)], n - k]


def by_loops(x, samples, kernel, out):
    axes, found = len(out), np.empty((*x.shape[:2], *out))
    order = [1, 0] if axes == 2 else [0, 1, 2]
    for n, c in np.ndindex(x.shape[:2]):
        firsts = [starts(samples[n, c, order[a]], x.shape[2 + a], kernel[a], out[a]) for a in range(axes)]
        for place in product(*map(range, out)):
            window = tuple(slice(firsts[a][p], firsts[a][p] + kernel[a]) for a, p in enumerate(place))
            found[(n, c, *place)] = x[n, c][window].max()
    return found


CASES = [((2, 3, 9, 7), (2, 3), (5, 4)), ((1, 2, 8, 8), (3, 3), (1, 6)), ((2, 2, 6, 7, 8), (2, 1, 3), (4, 3, 5))]


@pytest.mark.parametrize(("shape", "kernel", "out"), CASES)
def test_the_windows_are_those_of_the_formula(shape, kernel, out):
    x, samples = RNG.normal(size=shape), RNG.random((*shape[:2], len(out)))
    found, indices = POOLS[len(out)](
        ampkit.tensor(x), kernel, out, return_indices=True, _random_samples=ampkit.tensor(samples)
    )
    np.testing.assert_array_equal(found.cpu().numpy(), by_loops(x, samples, kernel, out))
    flat = x.reshape(*shape[:2], -1)
    at = indices.cpu().numpy().reshape(*shape[:2], -1)
    np.testing.assert_array_equal(np.take_along_axis(flat, at, -1), found.cpu().numpy().reshape(*shape[:2], -1))


@pytest.mark.parametrize("axes", [2, 3])
def test_gradients_go_to_the_largest_elements(axes):
    x = ampkit.tensor(RNG.permutation(2 * 6**axes).reshape(2, *(6,) * axes) / 10.0, requires_grad=True)
    samples = ampkit.tensor(RNG.random((1, 2, axes)))

    def pool(x):
        return POOLS[axes](x, 2, 3, _random_samples=samples)

    assert pool(x).shape == (2, *(3,) * axes)
    assert gradcheck(pool, x)
    assert gradgradcheck(lambda x: pool(x * x), x)


@pytest.mark.parametrize("axes", [2, 3])
def test_draws_for_more_samples_than_there_are_serve_the_first_ones(axes):
    x = ampkit.tensor(RNG.normal(size=(2, *(6,) * axes)))
    draws = ampkit.tensor(RNG.random((3, 2, axes)))
    found = POOLS[axes](x, 2, 3, _random_samples=draws)
    assert found.tolist() == POOLS[axes](x, 2, 3, _random_samples=draws[:1]).tolist()


def test_the_draws_come_from_the_default_stream_and_reach_both_ends():
    x = ampkit.tensor(np.arange(100.0).reshape(1, 1, 10, 10))
    layer = nn.FractionalMaxPool2d(2, output_ratio=0.7)
    ampkit.manual_seed(0)
    first = layer(x)
    assert first.shape == (1, 1, 7, 7)
    assert (first[0, 0, 0, 0].item(), first[0, 0, -1, -1].item()) == (11.0, 99.0)
    ampkit.manual_seed(0)
    assert (layer(x) == first).all()
    assert any((layer(x) != first).any() for _ in range(5))
    assert repr(layer) == "FractionalMaxPool2d(kernel_size=2, output_size=None, output_ratio=0.7)"


def test_nan_infinity_and_empty_batches():
    x = ampkit.tensor(np.full((1, 1, 3, 3), np.nan))
    assert ops.isnan(ops.fractional_max_pool2d(x, 2, 1)).all()
    assert ops.fractional_max_pool2d(x * 0 - np.inf, 2, 1).shape == (1, 1, 1, 1)
    assert ops.fractional_max_pool2d(ampkit.ones(0, 2, 5, 5), 2, 3).shape == (0, 2, 3, 3)
    assert ops.fractional_max_pool2d(ampkit.ones(1, 2, 5, 5), 2, (0, 3)).shape == (1, 2, 0, 3)
    assert ops.fractional_max_pool2d(ampkit.ones(1, 2, 5, 5, dtype=ampkit.float16), 2, 3).dtype == ampkit.float16


@pytest.mark.parametrize(("call", "kind", "message"), [
    (lambda x: ops.fractional_max_pool2d(x, 2), ArgumentError, "output_size, or output_ratio as 2 numbers"),
    (lambda x: ops.fractional_max_pool2d(x, 2, output_ratio=1.5), ArgumentError, "between 0 and 1, got 1.5"),
    (lambda x: ops.fractional_max_pool2d(x, 2, (5, 2)), ShapeError, r"room for \(5, 2\) windows of \(2, 2\)"),
    (lambda x: ops.fractional_max_pool2d(x[:, :0], 2, 2), ShapeError, "a channel"),
    (lambda x: ops.fractional_max_pool3d(x, 2, 2), None, None),
    (lambda x: ops.fractional_max_pool2d(x[0, 0], 2, 2), ShapeError, r"input \[N, C, H, W\]"),
    (lambda x: ops.fractional_max_pool2d(x, 2, 2, _random_samples=x), ShapeError, r"of shape \(2, 3, 2\)"),
    (lambda x: ops.fractional_max_pool2d(x, (2,), 2), ArgumentError, "kernel_size as an integer or 2 of them"),
    (lambda x: ops.fractional_max_pool2d(x, 2, (2,)), ArgumentError, "output_size as an integer or 2 of them"),
    (lambda x: nn.FractionalMaxPool2d(2, 3, 0.5), ArgumentError, "one of output_size and output_ratio, got both"),
    (lambda x: nn.FractionalMaxPool3d(2), ArgumentError, "got neither"),
])  # fmt: skip
def test_wrong_input_is_named(call, kind, message):
    x = ampkit.ones(2, 3, 5, 5)
    if kind is None:
        assert call(x).shape == (2, 2, 2, 2)  # without a batch
        return
    with pytest.raises(kind, match=message):
        call(x)
