"""Covariances, histograms, integrals, gradients, windows and positions: values worked by hand, and what is refused."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import ops, tensor
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.testing import assert_close

NAN = math.nan


def drawn(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_covariances_are_numpys():
    x, f, a = drawn(3, 6), np.array([1, 2, 1, 3, 1, 1]), np.abs(drawn(6))
    assert_close(ops.cov(tensor(x)), np.cov(x))
    assert_close(ops.cov(tensor(x[0])), np.cov(x[0]))
    weighted = ops.cov(tensor(x), correction=0, fweights=tensor(f), aweights=tensor(a))
    assert_close(weighted, np.cov(x, ddof=0, fweights=f, aweights=a))
    assert_close(ops.corrcoef(tensor(x)), np.corrcoef(x))
    assert ops.cov(tensor([1, 2, 4])).item() == pytest.approx(7 / 3)


@pytest.mark.parametrize("function", [ops.cov, ops.corrcoef])
def test_in_a_region_covariances_are_computed_in_float32(function):
    x = tensor((drawn(3, 50) + 100).astype(np.float32))
    with ampkit.autocast(dtype=ampkit.bfloat16):
        assert function(x).tolist() == function(x).tolist()
        found = function(x)
    assert (found.dtype, found.tolist()) == (ampkit.float32, function(x).tolist())
    assert function(x.half()).dtype == ampkit.float16


def test_a_histogram_counts_between_edges_and_keeps_the_last():
    x = tensor([1.0, 2.0, 2.0, 3.0, 9.0])
    assert ops.histogram(x, 2, range=(1.0, 3.0)).hist.tolist() == [1.0, 3.0]
    edges = tensor([0.0, 2.0, 4.0])
    weight = tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    hist, found = x.histogram(edges, weight=weight, density=True)
    assert_close(hist, np.array([1 / 20, 9 / 20], np.float32))
    assert found.tolist() == edges.tolist()
    assert [t.tolist() for t in ops.histogram(tensor([2.0, 2.0]), 2)] == [[0.0, 2.0], [1.5, 2.0, 2.5]]
    assert ops.histogram(tensor([NAN, 1.0]), tensor([0.0, 1.0])).hist.tolist() == [1.0]


def test_quantiles_leave_nan_out():
    x = tensor([[1.0, NAN, 3.0, 5.0], [NAN, NAN, NAN, NAN]])
    found = ops.nanquantile(x, tensor([0.0, 0.25, 1.0]), 1)
    assert_close(found, np.array([[1, NAN], [2, NAN], [5, NAN]], np.float32))
    assert ops.nanquantile(x, 0.5).item() == 3.0
    assert x.nanquantile(0.5, keepdim=True).shape == (1, 1)
    assert ops.nanquantile(x, 0.4, interpolation="lower").item() == 1.0


def test_integrals_by_the_trapezoid_rule():
    y = tensor([1.0, 2.0, 4.0])
    assert ops.trapezoid(y).item() == 4.5
    assert ops.trapezoid(y, dx=2).item() == 9.0
    assert ops.trapezoid(y, tensor([0.0, 1.0, 3.0])).item() == 7.5
    assert ops.cumulative_trapezoid(y, tensor([0, 1, 3])).tolist() == [1.5, 7.5]
    assert ops.trapz(tensor([[1, 2], [3, 4]]), dim=0).tolist() == [2.0, 3.0]
    assert ops.trapezoid(ops.ones(3, 1)).tolist() == [0.0, 0.0, 0.0]
    rows = tensor([[1.0, 2.0, 4.0], [2.0, 4.0, 8.0]])
    assert ops.trapezoid(rows, tensor([[0.0, 1.0, 3.0]])).tolist() == [7.5, 15.0]
    assert ops.cumulative_trapezoid(rows, tensor([[0.0], [2.0]]), dim=0).tolist() == [[3.0, 6.0, 12.0]]


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_are_numpys(order):
    x, places = drawn(4, 5), np.array([0.0, 1.0, 3.0, 3.5])
    for got, want in zip(ops.gradient(tensor(x), edge_order=order), np.gradient(x, edge_order=order), strict=True):
        assert_close(got, want)
    (got,) = ops.gradient(tensor(x), spacing=(tensor(places),), dim=0, edge_order=order)
    assert_close(got, np.gradient(x, places, axis=0, edge_order=order))


def test_powers_as_columns_and_of_matrices():
    assert ops.vander(tensor([1, 2, 3])).tolist() == [[1, 1, 1], [4, 2, 1], [9, 3, 1]]
    assert ops.vander(tensor([2.0, 3.0]), 2, increasing=True).tolist() == [[1.0, 2.0], [1.0, 3.0]]
    assert ops.vander(tensor([2.0]), 0).shape == (1, 0)
    x = drawn(2, 3, 3)
    for n in range(6):
        assert_close(ops.matrix_power(tensor(x), n), np.linalg.matrix_power(x, n))


def test_positions_become_places():
    assert [t.tolist() for t in ops.unravel_index(tensor([[3, 5], [0, 1]]), (2, 3))] == [
        [[1, 1], [0, 0]],
        [[0, 2], [0, 1]],
    ]


def test_the_place_of_the_largest_element():
    x = tensor([[1.0, 7.0, 3.0], [4.0, 5.0, 6.0]])
    row, column = ops.unravel_index(x.argmax(), x.shape)
    assert x[row, column].item() == 7.0


def test_slices_are_reduced_where_an_index_names_them():
    x, source = ops.ones(3, 2), tensor([[2.0, 5.0], [4.0, -1.0]])
    assert ops.index_reduce(x, 0, tensor([0, 0]), source, "amax").tolist() == [[4.0, 5.0], [1.0, 1.0], [1.0, 1.0]]
    mean = x.index_reduce(0, tensor([2, 2]), source, "mean", include_self=False)
    assert mean.tolist() == [[1.0, 1.0], [1.0, 1.0], [3.0, 2.0]]
    x.index_reduce_(1, tensor([1]), tensor([[3.0], [3.0], [3.0]]), "prod")
    assert x.tolist() == [[1.0, 3.0]] * 3


def test_windows_are_periodic_or_symmetric():
    assert_close(ops.hann_window(4), np.array([0, 0.5, 1, 0.5], np.float32))
    assert_close(ops.hann_window(5, False), np.hanning(5).astype(np.float32))
    assert_close(ops.hamming_window(5, False), np.hamming(5).astype(np.float32))
    assert_close(ops.blackman_window(5, False), np.blackman(5).astype(np.float32))
    assert_close(ops.bartlett_window(5, False), np.bartlett(5).astype(np.float32))
    assert_close(ops.kaiser_window(5, False, 8.0, dtype=ampkit.float64), np.kaiser(5, 8.0))
    assert ops.hann_window(1).tolist() == [1.0]
    assert ops.hann_window(0).shape == (0,)
    assert ops.hann_window(3, requires_grad=True).requires_grad


def test_tensors_over_values_that_are_there():
    held = bytearray(np.arange(4, dtype=np.float32).tobytes())
    x = ops.frombuffer(held, dtype=ampkit.float32, offset=4, count=2)
    assert x.tolist() == [1.0, 2.0]
    held[4:8] = np.float32(7).tobytes()
    assert x.tolist() == [7.0, 2.0]
    array = np.zeros(2, np.float32)
    with_copy = ops.asarray(array, copy=True)
    array[0] = 1
    assert with_copy.tolist() == [0.0, 0.0]
    assert ops.scalar_tensor(3).dtype == ampkit.float32
    assert ops.asarray([1.0], requires_grad=True).requires_grad


def test_facts_of_dtypes():
    assert (ampkit.iinfo(ampkit.uint8).max, ampkit.iinfo(ampkit.int16).min, ampkit.iinfo("int64").bits) == (
        255,
        -32768,
        64,
    )
    narrow = ampkit.finfo(np.dtype(ml_dtypes.float8_e4m3fn))
    assert (narrow.max, narrow.bits, narrow.dtype) == (448, 8, "float8_e4m3fn")
    assert ampkit.iinfo(np.dtype(np.uint16)).max == 65535
    assert ops.can_cast(ampkit.int64, ampkit.float16) and ops.can_cast(ampkit.float64, ampkit.bfloat16)
    assert not ops.can_cast(ampkit.float32, ampkit.int64) and not ops.can_cast(ampkit.int8, ampkit.bool)
    assert ops.is_signed(ops.ones(1)) and ops.is_nonzero(ops.ones(1)) and ops.is_same_size(ops.ones(2), ops.zeros(2))


X = np.ones((2, 3))


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda: ops.cov(ops.ones(2, 3, 4)), ShapeError, r"cov: needs input \[variables, observations\]"),
    (lambda: ops.cov(ops.ones(2, 1)), ShapeError, "cov: needs more than 1 observations, got 1"),
    (lambda: ops.cov(tensor(X), fweights=ops.ones(3)), ShapeError, r"fweights \[3\], whole numbers, got float32"),
    (lambda: ops.corrcoef(ops.ones(1, 1, 1)), ShapeError, "corrcoef: needs"),
    (lambda: ops.histogram(tensor([1, 2]), 3), DTypeError, "histogram: needs a floating-point tensor, got int64"),
    (lambda: ops.histogram(ops.ones(2), 0), ArgumentError, "needs bins from 1, or edges as a tensor, got 0"),
    (lambda: ops.histogram(ops.ones(2), 3, range=(2, 1)), ArgumentError, "needs range as .low, high."),
    (lambda: ops.histogram(ops.ones(2), 3, weight=ops.ones(3)), ShapeError, r"needs weight of shape \(2,\)"),
    (lambda: ops.nanquantile(ops.ones(0), 0.5), ShapeError, "nanquantile: needs at least one element"),
    (lambda: ops.nanquantile(ops.ones(2), 1.5), RangeError, "needs q from 0 to 1"),
    (lambda: ops.trapezoid(tensor(X), ops.ones(2)), ShapeError, r"needs x of shape \(3,\), or one that .+, got \(2,\)"),
    (lambda: ops.trapezoid(tensor(X), ops.ones(3), dx=1), ArgumentError, "needs x or dx, got both"),
    (lambda: ops.gradient(tensor(X), dim=0, edge_order=2), ShapeError, "needs at least 3 elements along dim 0, got 2"),
    (lambda: ops.gradient(tensor(X), spacing=(1.0,)), ArgumentError, "needs 2 spacings, one per axis, got 1"),
    (lambda: ops.vander(tensor(X)), ShapeError, r"vander: needs a vector \[n\]"),
    (lambda: ops.matrix_power(tensor(X), 2), ShapeError, "matrix_power: needs square matrices"),
    (lambda: ops.matrix_power(ops.ones(2, 2), 0.5), DTypeError, "needs n as an integer, got 0.5"),
    (lambda: ops.unravel_index(tensor([6]), (2, 3)), RangeError, "needs indices from 0 to 5, got 6"),
    (lambda: ops.index_reduce(ops.ones(3), 0, tensor([0]), ops.ones(2), "amax"), ShapeError, "needs index .n. and"),
    (lambda: ops.index_reduce(ops.ones(3), 0, tensor([0]), ops.ones(1), "sum"), ArgumentError, "use index_add"),
    (lambda: ops.hann_window(-1), ArgumentError, "hann_window: needs window_length from 0, got -1"),
    (lambda: ops.frombuffer(b"abc", dtype=ampkit.float32), ArgumentError, "frombuffer: needs a buffer that holds"),
    (lambda: ops.frombuffer(3, dtype=ampkit.float32), DTypeError, "frombuffer: needs a buffer, got a int"),
    (lambda: ampkit.iinfo(ampkit.float32), DTypeError, "iinfo: needs an integer dtype, got float32"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_a_covariance_has_the_wider_dtype_of_input_and_its_weights():
    x, weight = tensor([[1, 2, 4], [1, 0, 1]]), tensor([1.0, 2.0, 1.0])
    assert ops.cov(x.half(), aweights=weight).dtype == ops.cov(x, aweights=weight).dtype == ampkit.float32
    assert ops.cov(x.float(), aweights=weight.double()).dtype == ampkit.float64
    assert ops.cov(x.half()).dtype == ampkit.float16


def test_weights_of_a_covariance_are_not_negative():
    x = tensor([[1.0, 2.0, 4.0], [1.0, 0.0, 1.0]])
    with pytest.raises(ArgumentError, match="^cov: needs aweights from 0, got -1.0 at position 0"):
        ops.cov(x, aweights=tensor([-1.0, 2.0, 1.0]))
    with pytest.raises(ArgumentError, match="^cov: needs fweights from 0, got -2 at position 1"):
        ops.cov(x, fweights=tensor([1, -2, 1]))
