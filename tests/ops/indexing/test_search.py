"""Distinct values, counts and places; stacks, diagonals, quantiles and more: values known beforehand, and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError

X = ampkit.tensor([[3, 1, 3], [0, 1, 0]])
NAN = float("nan")


def lists(found):
    return [t.tolist() for t in found]


def test_distinct_values_know_where_they_came_from_and_how_often():
    assert ops.unique(X).tolist() == [0, 1, 3]
    assert lists(ops.unique(X, return_inverse=True, return_counts=True)) == [
        [0, 1, 3], [[2, 1, 2], [0, 1, 0]], [2, 2, 2],
    ]  # fmt: skip
    rows = ampkit.tensor([[1, 2], [0, 5], [1, 2]])
    assert lists(ops.unique(rows, return_inverse=True, dim=0)) == [[[0, 5], [1, 2]], [1, 0, 1]]
    assert ops.unique(ampkit.tensor([1.5, 1.5, -1.0], dtype="bfloat16")).tolist() == [-1.0, 1.5]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.int16, np.int8, np.bool_])
def test_distinct_integers_near_and_far_from_each_other(dtype):
    random, limits = np.random.default_rng(0), np.iinfo(dtype if dtype is not np.bool_ else np.uint8)
    for low, high in ((0, 100), (limits.min, limits.max), (limits.max - 90, limits.max), (limits.min, limits.min + 9)):
        values = random.integers(low, high, (50, 40), np.int64, endpoint=True).astype(dtype)
        found = ops.unique(ampkit.tensor(values))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.numpy(force=True), np.unique(values))


def test_whole_numbers_are_counted_or_their_weights_summed():
    assert ops.bincount(ampkit.tensor([3, 0, 3]), minlength=6).tolist() == [1, 0, 0, 2, 0, 0]
    summed = ops.bincount(ampkit.tensor([1, 0, 1]), ampkit.tensor([0.5, 2.0, 0.25]))
    assert (summed.tolist(), summed.dtype.name) == ([2.0, 0.75], "float32")


def test_places_of_what_is_not_zero():
    assert ops.nonzero(X).tolist() == [[0, 0], [0, 1], [0, 2], [1, 1]] == ops.argwhere(X).tolist()
    assert lists(X.nonzero(as_tuple=True)) == [[0, 0, 0, 1], [0, 1, 2, 1]]
    assert ops.nonzero(ampkit.tensor(5)).shape == (1, 0)


@pytest.mark.parametrize("shape", [(50,), (60, 70), (0, 3), (3, 0), (20, 1, 30, 9)])
def test_places_and_elements_of_a_mask_are_in_row_major_order(shape):
    values = np.random.default_rng(0).integers(-1, 2, shape)
    for array in (values, values.astype(np.float32), values > 0, np.asfortranarray(values > 0)):
        found = ops.nonzero(ampkit.tensor(array))
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found.numpy(force=True), np.argwhere(array))
    x = ampkit.tensor(values)
    for turned in (x, x.transpose(0, -1)):
        picked = turned[turned > 0], ops.masked_select(turned, turned < 1)
        host = turned.numpy(force=True)
        for a, b in zip(picked, (host[host > 0], host[host < 1]), strict=True):
            np.testing.assert_array_equal(a.numpy(force=True), b)


@pytest.mark.cpu
def test_membership_and_places_in_order():
    assert ops.isin(X, ampkit.tensor([1, 7])).tolist() == [[False, True, False], [False, True, False]]
    assert ops.isin(ampkit.tensor([1.0, 2.0]), 2.0, invert=True).tolist() == [True, False]
    rising = ampkit.tensor([1.0, 2.0, 2.0, 5.0])
    values = ampkit.tensor([2.0, 9.0, 0.0])
    assert ops.searchsorted(rising, values).tolist() == [1, 4, 0] == ops.bucketize(values, rising).tolist()
    assert ops.searchsorted(rising, values, right=True).tolist() == [3, 4, 0]
    assert ops.searchsorted(rising, 2.0, side="right").item() == 3
    turned = ampkit.tensor([[5.0, 1.0], [4.0, 8.0]])
    order = ampkit.tensor([[1, 0], [0, 1]])
    assert ops.searchsorted(turned, ampkit.tensor([[3.0], [9.0]]), sorter=order, out_int32=True).tolist() == [[1], [2]]


def test_triangles_have_places():
    assert ops.tril_indices(2, 3, 0).tolist() == [[0, 1, 1], [0, 0, 1]]
    assert ops.triu_indices(2, 3, 1).tolist() == [[0, 0, 1], [1, 2, 2]]


def test_the_median_is_the_lower_middle_and_nan_wins():
    x = ampkit.tensor([[4.0, 1.0, 3.0, 2.0], [NAN, 1.0, 2.0, 3.0]])
    values, places = ops.median(x, 1)
    assert values.tolist()[0] == 2.0
    assert math.isnan(values.tolist()[1])
    assert places.tolist() == [3, 0]
    assert ops.median(ampkit.tensor([5, 1, 3])).item() == 3


def test_quantiles_lie_between_the_elements():
    x = ampkit.tensor([4.0, 1.0, 2.0, 3.0])
    assert ops.quantile(x, 0.5).item() == 2.5
    found = {"lower": 2.0, "higher": 3.0, "nearest": 3.0, "midpoint": 2.5, "linear": 2.8}
    for word, value in found.items():
        assert ops.quantile(x, 0.6, interpolation=word).item() == pytest.approx(value)
    assert ops.quantile(x.reshape(2, 2), ampkit.tensor([0.0, 1.0]), 1, True).tolist() == [
        [[1.0], [2.0]],
        [[4.0], [3.0]],
    ]
    assert ops.quantile(x.half(), 0.5).dtype == ampkit.float16
    assert math.isnan(ops.quantile(ampkit.tensor([1.0, NAN]), 0.5).item())


def test_moments_come_in_pairs():
    x = ampkit.tensor([[1.0, 3.0], [2.0, 6.0]])
    assert lists(ops.var_mean(x, 1)) == [[2.0, 8.0], [2.0, 4.0]]
    assert lists(ops.std_mean(x, 1, correction=0)) == [[1.0, 2.0], [2.0, 4.0]]
    assert lists(ops.var_mean(x, False)) == [3.5, 3.0]


def test_diagonals_stacks_and_grids():
    x = ampkit.tensor([[1, 2, 3], [4, 5, 6]])
    assert ops.diagonal(x).tolist() == [1, 5] == x.diag().tolist()
    assert ops.diag(ampkit.tensor([1, 2]), 1).tolist() == [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
    assert ops.trace(x).item() == 6
    assert ops.hstack([x, x]).shape == (2, 6)
    assert ops.vstack([x, x[0]]).tolist()[2] == [1, 2, 3]
    assert ops.column_stack([ampkit.tensor([1, 2]), ampkit.tensor([3, 4])]).tolist() == [[1, 3], [2, 4]]
    assert ops.atleast_3d(ampkit.tensor([1, 2])).shape == (1, 2, 1)
    assert lists(ops.meshgrid(ampkit.arange(2), ampkit.arange(3))) == [[[0, 0, 0], [1, 1, 1]], [[0, 1, 2], [0, 1, 2]]]
    assert ops.broadcast_shapes((2, 1), 3, (1,)) == (2, 3)


def test_extremes_of_sums_of_exponentials_and_of_angles():
    low = ampkit.tensor([-math.inf, 0.0, 800.0])
    assert ops.logaddexp(low, low).tolist() == pytest.approx([-math.inf, math.log(2), 800.0 + math.log(2)])
    zero = ampkit.zeros(1, 3, requires_grad=True)
    cosine = ops.cosine_similarity(zero, ampkit.ones(1, 3))
    cosine.sum().backward()
    assert cosine.tolist() == [0.0]
    assert np.isfinite(zero.grad.array).all()


def test_the_smaller_summand_of_logaddexp_keeps_its_digits():
    ahead, behind = ampkit.tensor([0.0, 0.0], requires_grad=True), ampkit.tensor([-12.3, -20.1], requires_grad=True)
    out = ops.logaddexp(ahead, behind)
    np.testing.assert_allclose(out.tolist(), np.log1p(np.exp([-12.3, -20.1])), rtol=1e-6)
    out.sum().backward()
    np.testing.assert_allclose(behind.grad.tolist(), 1 / (1 + np.exp([12.3, 20.1])), rtol=1e-5)
    high = ampkit.tensor([math.inf, math.inf], requires_grad=True)
    ops.logaddexp(high, ampkit.tensor([math.inf, 1.0])).sum().backward()
    assert high.grad.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["logsumexp", "logaddexp"])
def test_gradients_of_logarithms_of_sums_add_up_to_one_in_16_bits(name, dtype):
    x = ampkit.tensor([[100.0], [100.5]], dtype=dtype, requires_grad=True)
    out = ops.logsumexp(x, 0) if name == "logsumexp" else ops.logaddexp(x[0], x[1])
    out.backward()
    np.testing.assert_allclose(x.grad.float().reshape(-1).tolist(), 1 / (1 + np.exp([0.5, -0.5])), rtol=4e-3)


def test_numbers_take_the_place_of_nan_and_infinity():
    odd = ampkit.tensor([NAN, math.inf, -math.inf, 2.0], dtype="float16")
    assert odd.nan_to_num().tolist() == [0.0, 65504.0, -65504.0, 2.0]
    assert odd.nan_to_num(1.0, 5.0, -5.0).tolist() == [1.0, 5.0, -5.0, 2.0]
    assert odd.nan_to_num_() is odd
    assert ops.fmod(ampkit.tensor([-7, 7]), 4).tolist() == [-3, 3]


def test_values_are_written_to_named_slices():
    x = ampkit.zeros(2, 3)
    assert x.index_fill(1, ampkit.tensor([2]), 5.0).tolist() == [[0.0, 0.0, 5.0]] * 2
    assert x.index_copy(0, ampkit.tensor([1]), ampkit.ones(1, 3)).tolist() == [[0.0] * 3, [1.0] * 3]
    mask = ampkit.tensor([[True, False, True], [False, False, True]])
    assert x.masked_scatter(mask, ampkit.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]
    assert ops.take(ampkit.tensor([[1, 2], [3, 4]]), ampkit.tensor([3, 0])).tolist() == [4, 1]


def test_other_names_are_the_same_operations():
    assert ops.concatenate([X, X]).tolist() == ops.cat([X, X]).tolist()
    assert ops.greater is ops.gt
    assert ops.arctan2 is ops.atan2
    assert ops.numel(X) == 6
    assert ops.is_tensor(X)
    assert not ops.is_floating_point(X)


WRONG = [
    (lambda: ops.bincount(X), ShapeError, "a vector"),
    (lambda: ops.bincount(ampkit.tensor([-1])), RangeError, "from 0"),
    (lambda: ops.bincount(ampkit.tensor([1.0])), DTypeError, "integers"),
    (lambda: ops.searchsorted(X, ampkit.tensor([1])), ShapeError, r"input \[2, m\]"),
    (lambda: ops.searchsorted(X, X, side="left", right=True), ArgumentError, "side"),
    (lambda: ops.quantile(X, 0.5), DTypeError, "floating-point"),
    (lambda: ops.quantile(X.float(), 1.5), RangeError, "q from 0 to 1"),
    (lambda: ops.quantile(X.float(), 0.5, interpolation="cubic"), ArgumentError, "interpolation"),
    (lambda: ops.median(ampkit.zeros(0)), ShapeError, "at least one element"),
    (lambda: ops.diagonal(X[0]), ShapeError, "two different axes"),
    (lambda: ops.diag(ampkit.zeros(1, 1, 1)), ShapeError, "one axis or two"),
    (lambda: ops.trace(X[0]), ShapeError, "a matrix"),
    (lambda: ops.meshgrid(X), ShapeError, "vectors"),
    (lambda: ops.meshgrid(X[0], indexing="ji"), ArgumentError, "indexing"),
    (lambda: ops.broadcast_shapes((2,), (3,)), ShapeError, "shapes that broadcast"),
    (lambda: ops.cross(ampkit.ones(2), ampkit.ones(2)), ShapeError, "length 3"),
    (lambda: ops.tensordot(X, X, 1), ShapeError, "tensordot: needs shapes that broadcast"),
    (lambda: ops.tensordot(X, X, 3), ArgumentError, "tensordot: needs dims from 0 to 2, got 3"),
    (lambda: ops.tensordot(X, X, ([0], [0, 1])), ShapeError, "as many axes of a as of b, got 1 and 2"),
    (lambda: ops.inner(X, X[:, :1]), ShapeError, "inner: needs last axes of equal lengths"),
    (lambda: ops.pairwise_distance(X, X, math.nan), ArgumentError, "p as a number"),
    (lambda: ops.cosine_similarity(X, X[0], 0), ShapeError, "with axis 0"),
    (lambda: ops.pixel_shuffle(ampkit.ones(3, 2, 2), 2), ShapeError, "divides"),
    (lambda: ops.interpolate(ampkit.ones(1, 2, 3)), ArgumentError, "size or scale_factor, got neither"),
    (lambda: ops.interpolate(ampkit.ones(2, 3), 2), ShapeError, "needs input"),
    (lambda: ops.interpolate(ampkit.ones(1, 2, 3), 2, mode="bilinear"), ArgumentError, "for 3 axes"),
    (lambda: ops.interpolate(ampkit.ones(1, 2, 3), 2, align_corners=True), ArgumentError, "align_corners left out"),
    (
        lambda: ops.interpolate(ampkit.ones(1, 2, 3), 2, antialias=True),
        ArgumentError,
        "antialias=False, or mode bilinear",
    ),
    (lambda: ops.interpolate(ampkit.ones(1, 2, 3), 2, mode="bicubic"), ArgumentError, "bicubic for 4"),
    (
        lambda: ops.interpolate(X[None].long(), 2, mode="linear"),
        DTypeError,
        "a floating-point tensor for mode 'linear'",
    ),
    (lambda: ops.pad(X, (3, 0), "reflect"), ShapeError, "at most 2 more in mode 'reflect' beside 3, got"),
    (lambda: ops.pad(X, (4, 0), "circular"), ShapeError, "at most 3 more in mode 'circular' beside 3, got"),
    (lambda: ops.pad(X, (1, 0), "mirror"), ArgumentError, "mode 'constant', 'reflect', 'replicate' or 'circular'"),
    (lambda: ops.pad(X, (1, 0), "replicate", 1.0), ArgumentError, "no value but with mode 'constant'"),
    (lambda: ops.interpolate(ampkit.ones(1, 2, 3), (2, 2)), ArgumentError, "a positive integer, or 1 of them"),
    (lambda: ops.index_copy(X, 0, ampkit.tensor([0]), X), ShapeError, "source of shape"),
    (lambda: ops.masked_scatter(X, X > 0, X[0]), ShapeError, "a source of 4 elements"),
    (lambda: ops.index_fill(X, 0, ampkit.tensor([2]), 0), RangeError, "indices from 0 to 1"),
]


@pytest.mark.cpu
@pytest.mark.parametrize(("call", "kind", "line"), WRONG, ids=[line for *_, line in WRONG])
def test_what_does_not_fit_is_refused(call, kind, line):
    with pytest.raises(kind, match=line):
        call()


def test_neighbours_that_are_equal_become_one():
    x = ops.tensor([1, 1, 2, 2, 2, 1])
    values, places, counts = x.unique_consecutive(return_inverse=True, return_counts=True)
    assert (values.tolist(), places.tolist(), counts.tolist()) == ([1, 2, 1], [0, 0, 1, 1, 1, 2], [2, 3, 1])
    grid = ops.tensor([[1, 1, 2], [1, 1, 2], [3, 3, 2]])
    assert ops.unique_consecutive(grid, dim=0).tolist() == [[1, 1, 2], [3, 3, 2]]
    assert ops.unique_consecutive(grid, dim=1).tolist() == [[1, 2], [1, 2], [3, 2]]
    assert ops.unique_consecutive(ops.tensor([[5, 5], [5, 6]])).tolist() == [5, 6]
    assert ops.unique_consecutive(ops.tensor([7]), return_counts=True)[1].tolist() == [1]
    assert ops.unique_consecutive(ops.zeros(0)).shape == (0,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_number_is_sought_in_the_dtype_of_the_sequence(dtype):
    rows = ampkit.tensor([0.1, 0.3, NAN], dtype=dtype)
    for number in (0.3, np.float32(0.3), np.float64(0.3)):
        assert ops.searchsorted(rows, number if dtype != "float64" else 0.3).item() == 1
        assert ops.bucketize(number if dtype != "float64" else 0.3, rows, right=True).item() == 2
    assert ops.searchsorted(rows, NAN).item() == 2  # NaN is sorted last
    assert ops.searchsorted(ampkit.tensor([1, 2], dtype="uint8"), -1).item() == 0
