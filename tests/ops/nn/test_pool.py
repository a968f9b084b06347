"""Pooling: ties, NaN, padding that never wins, sums that do not overflow, clear errors."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import float16, float32
from ampkit.base.errors import ArgumentError, OutOfMemoryError, ShapeError
from ampkit.core.autograd.tape import grad


def image(values, dtype=float32, **options):
    return tensor(np.array(values, np.float64)[None, None], dtype=dtype, **options)


def test_the_gradient_of_equal_values_goes_to_the_first():
    x = image([[3, 3], [3, 1]], requires_grad=True)
    (dx,) = grad(ops.max_pool2d(x, 2), [x])
    assert dx.tolist() == [[[[1, 0], [0, 0]]]]


def test_the_gradients_of_overlapping_windows_add_up():
    x = image([[1, 9, 2]], requires_grad=True)
    (dx,) = grad(ops.max_pool2d(x, (1, 2), stride=1).sum(), [x])
    assert dx.tolist() == [[[[0, 2, 0]]]]


def test_nan_wins_wherever_it_stands_and_takes_the_index():
    for place in range(4):
        values = np.arange(4.0)
        values[place] = np.nan
        out, index = ops.max_pool2d(image(values.reshape(2, 2)), 2, return_indices=True)
        assert np.isnan(out.item())
        assert index.item() == place


def test_padding_never_wins_a_maximum():
    out, index = ops.max_pool2d(image([[-5, -6], [-7, -8]]), 2, padding=1, return_indices=True)
    assert out.tolist() == [[[[-5, -6], [-7, -8]]]]
    assert index.tolist() == [[[[0, 1], [2, 3]]]]


def test_indices_point_at_the_values_they_name():
    x = tensor(np.random.default_rng(0).normal(size=(2, 3, 7, 6)))
    out, index = ops.max_pool2d(x, (3, 2), stride=2, padding=1, dilation=(2, 1), ceil_mode=True, return_indices=True)
    flat = np.take_along_axis(x.array.reshape(2, 3, 42), index.array.reshape(2, 3, -1), -1)
    assert np.array_equal(flat.reshape(out.shape), out.array)


def test_integers_are_pooled_as_integers():
    assert ops.max_pool2d(tensor([[[-3, -2], [-9, -4]]]), 2, padding=1).tolist() == [[[-3, -2], [-9, -4]]]


def test_a_mean_is_right_where_its_sum_overflows_float16():
    x = image(np.full((2, 2), 60000.0), float16)
    assert ops.avg_pool2d(x, 2).item() == ops.adaptive_avg_pool2d(x, 1).item() == 60000


def test_padding_counts_as_zeros_unless_told_otherwise():
    x = image([[4, 4], [4, 4]])
    assert ops.avg_pool2d(x, 2, padding=1).tolist() == [[[[1, 1], [1, 1]]]]
    assert ops.avg_pool2d(x, 2, padding=1, count_include_pad=False).tolist() == [[[[4, 4], [4, 4]]]]


def test_what_ceil_mode_adds_beyond_the_edge_never_counts():
    x = image([[6, 6, 6]])
    assert ops.avg_pool2d(x, (1, 2), ceil_mode=True).tolist() == [[[[6, 6]]]]
    assert ops.max_pool2d(x, (1, 2), ceil_mode=True).shape == (1, 1, 1, 2)
    assert ops.max_pool2d(x, (1, 2)).shape == (1, 1, 1, 1)


def test_adaptive_windows_overlap_where_sizes_do_not_divide():
    assert ops.adaptive_avg_pool2d(image([[0, 3, 6, 9, 12]]), (1, 3)).tolist() == [[[[1.5, 6, 10.5]]]]


def test_max_pool_keeps_a_byte_per_window_and_not_its_input():
    saved = ops.max_pool2d(Tensor(np.ones((2, 3, 4, 4), np.float32), True), 2).node.saved
    assert saved.argmax.dtype == np.uint8
    assert saved.argmax.shape == (2, 3, 2, 2)
    assert not hasattr(saved, "input")


def test_pools_of_volumes_are_those_of_images_where_the_depth_is_one():
    x = tensor(np.random.default_rng(0).normal(size=(2, 3, 6, 5)))
    deep = x.unsqueeze(2)
    best, place = ops.max_pool3d(deep, (1, 3, 2), (1, 2, 1), (0, 1, 0), return_indices=True)
    flat, at = ops.max_pool2d(x, (3, 2), (2, 1), (1, 0), return_indices=True)
    assert np.array_equal(best.squeeze(2).array, flat.array)
    assert np.array_equal(place.squeeze(2).array, at.array)
    means = ops.avg_pool3d(deep, (1, 3, 2), (1, 2, 1), (0, 1, 0), ceil_mode=True).squeeze(2)
    assert ops.allclose(means, ops.avg_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True))


def test_adaptive_maxima_stand_where_their_indices_say():
    x = tensor(np.random.default_rng(0).normal(size=(2, 2, 4, 5, 3)))
    best, place = ops.adaptive_max_pool3d(x, (3, 2, 2), return_indices=True)
    flat = np.take_along_axis(x.array.reshape(2, 2, 60), place.array.reshape(2, 2, 12), -1)
    assert np.array_equal(flat.reshape(best.shape), best.array)
    wanted = [x.array[:, :, a:b, c:d, e:f].max((2, 3, 4)) for a, b in ((0, 2), (1, 3), (2, 4))
              for c, d in ((0, 3), (2, 5)) for e, f in ((0, 2), (1, 3))]  # fmt: skip
    assert np.array_equal(np.stack(wanted, -1).reshape(best.shape), best.array)


def test_an_adaptive_maximum_is_nan_where_there_is_one_and_takes_the_first_of_equals():
    best, place = ops.adaptive_max_pool1d(tensor([[5.0, np.nan, 1.0, 2.0, 2.0, 0.0]]), 2, True)
    np.testing.assert_array_equal(best.tolist(), [[np.nan, 2]])
    assert place.tolist() == [[1, 3]]


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_unpooling_puts_the_largest_back(axes):
    pool, unpool = (getattr(ops, f"max_{name}{axes}d") for name in ("pool", "unpool"))
    x = Tensor(np.random.default_rng(0).normal(size=(2, 2, *(5, 4, 6)[:axes])), True)
    best, place = pool(x, 2, return_indices=True)
    back = unpool(best, place, 2, output_size=x.shape)
    kept = back.array != 0
    assert kept.sum() == best.array.size
    assert np.array_equal(back.array[kept], x.array[kept])
    (dx,) = grad([(back * back).sum()], [x])
    np.testing.assert_allclose(dx.numpy(force=True), 2 * back.numpy(force=True))
    assert unpool(best, place, 2).shape[2:] == tuple(2 * n for n in best.shape[2:])


@pytest.mark.parametrize(("p", "found", "gradient"), [(2, 5, [0.6, 0.8]), (1, 7, [1, 1])])
def test_the_power_mean_of_zeros_has_a_gradient_of_zero(p, found, gradient):
    x = image([[0, 0, 3, 4]], requires_grad=True)
    out = ops.lp_pool2d(x, p, (1, 2))
    assert out.tolist() == [[[[0, found]]]]
    (dx,) = grad([out.sum()], [x])
    np.testing.assert_allclose(dx.numpy(force=True), [[[[0, 0, *gradient]]]], rtol=1e-6)


def test_a_power_that_overflows_float16_does_not():
    assert ops.lp_pool2d(image([[300, 400]], float16), 2, (1, 2)).item() == 500


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: ops.max_pool2d(tensor(np.ones((4, 4))), 2),
            ShapeError,
            "max_pool2d: needs input [N, C, H, W] or [C, H, W], got input [4, 4]",
        ),
        (
            lambda: ops.max_pool2d(image([[1, 2]]), 2),
            ShapeError,
            "max_pool2d: needs images of at least 2 x 2 for this kernel and padding, got 1 x 2",
        ),
        (
            lambda: ops.avg_pool2d(image(np.ones((4, 4))), 2, padding=2),
            ArgumentError,
            "avg_pool2d: needs padding of at most half the kernel (2, 2), got (2, 2)",
        ),
        (
            lambda: ops.avg_pool2d(image(np.ones((4, 4))), 2, divisor_override=0),
            ArgumentError,
            "avg_pool2d: needs a divisor_override other than 0, got 0",
        ),
        (
            lambda: ops.adaptive_avg_pool2d(image(np.ones((4, 4))), 0),
            ArgumentError,
            "adaptive_avg_pool2d: needs output_size as an integer or a pair of them, at least 1, got (0, 0)",
        ),
        (
            lambda: ops.adaptive_max_pool3d(tensor(np.ones((1, 2, 3, 4))), (1, 2)),
            ArgumentError,
            "adaptive_max_pool3d: needs output_size as an integer or 3 of them, at least 1, got (1, 2)",
        ),
        (
            lambda: ops.adaptive_max_pool1d(tensor(np.ones((1, 2, 0))), 1),
            ShapeError,
            "adaptive_max_pool1d: needs images of at least one pixel, got input [1, 2, 0]",
        ),
        (
            lambda: ops.avg_pool3d(tensor(np.ones((1, 2, 4))), 2),
            ShapeError,
            "avg_pool3d: needs input [N, C, D, H, W] or [C, D, H, W], got input [1, 2, 4]",
        ),
        (
            lambda: ops.max_unpool2d(image([[1, 2]]), image([[1, 2]]), 2),
            ShapeError,
            "max_unpool2d: needs indices as integers of input's shape (1, 1, 1, 2), got float32 of shape (1, 1, 1, 2)",
        ),
        (
            lambda: ops.max_unpool2d(image([[1, 2]]), image([[1, 2]]).long(), 2, output_size=(2, 7)),
            ArgumentError,
            "max_unpool2d: needs output_size (2, 4), by less than the stride (2, 2) more or less, got (2, 7)",
        ),
        (
            lambda: ops.lp_pool2d(image([[1, 2]]), 0, 1),
            ArgumentError,
            "lp_pool2d: needs norm_type as a number other than 0, got 0",
        ),
    ],
)
def test_wrong_input_is_named(call, kind, message):
    with pytest.raises(kind) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.adaptive_max_pool1d(x, 2**62),
        lambda x: ops.adaptive_avg_pool1d(x, 2**62),
        lambda x: ops.adaptive_max_pool2d(x, 2**31),
        lambda x: ops.interpolate(x, 2**63, mode="linear"),
        lambda x: ops.interpolate(x, scale_factor=1e19, mode="area"),
    ],
)
def test_an_output_larger_than_any_memory_is_refused_at_once(call):
    with pytest.raises((ArgumentError, OutOfMemoryError), match="that memory can hold|size below|within 64 bits"):
        call(Tensor(np.ones((1, 2, 3), np.float32)))
