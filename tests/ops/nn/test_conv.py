"""Convolution: one rounding, blocks that change nothing, adjoints, clear errors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base import conv_geometry
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.tape import grad

RANDOM = np.random.default_rng(0)


def positive(dtype, *shape):
    return tensor(RANDOM.uniform(0.1, 0.6, shape), dtype=dtype)


def normal(*shape):
    return Tensor(RANDOM.normal(size=shape), requires_grad=True)


def ulps(got, exact):
    """The largest distance of `got` from `exact` rounded once, in units in the last place."""
    a, b = (x.view(np.int16).astype(int) for x in (got, exact.astype(got.dtype)))
    return np.abs(np.where(a < 0, -(a & 0x7FFF), a) - np.where(b < 0, -(b & 0x7FFF), b)).max()


def exact_conv(x, w):
    """A stride-1 convolution in float64, written out."""
    high, wide = (n - k + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True))
    out = np.zeros((len(x), len(w), high, wide))
    for i, j in product(range(w.shape[2]), range(w.shape[3])):
        out += np.einsum("nchw,oc->nohw", x[:, :, i : i + high, j : j + wide], w[:, :, i, j], optimize=True)
    return out


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
def test_conv2d_is_within_one_ulp_of_the_exact_sum_rounded_once(dtype):
    x, w, b = positive(dtype, 2, 500, 5, 4), positive(dtype, 3, 500, 3, 3), positive(dtype, 3)
    exact = exact_conv(x.array.astype(float), w.array.astype(float)) + b.array.astype(float).reshape(-1, 1, 1)
    assert ulps(ops.conv2d(x, w, b).array, exact) <= 1


def test_the_bias_is_added_before_the_rounding():
    x, w = tensor(np.full((1, 2, 1, 1), 40000.0), dtype=float16), tensor(np.ones((1, 2, 1, 1)), dtype=float16)
    b = tensor([-32000.0], dtype=float16)  # 80000 alone would be infinite
    assert ops.conv2d(x, w, b).item() == 48000


def everything(x, w, b, **params):
    y = ops.conv2d(x, w, b, **params)
    dy = Tensor(np.random.default_rng(1).normal(size=y.shape))
    return [y, *grad(y, [x, w, b], [dy])]


@pytest.mark.parametrize("params", [{}, {"padding": 2, "stride": 2}, {"padding": "same"}, {"groups": 2, "dilation": 2}])
def test_building_the_columns_in_small_blocks_changes_nothing(params, monkeypatch):
    x, w, b = normal(2, 4, 9, 8), normal(6, 4 // params.get("groups", 1), 3, 3), normal(6)
    whole = everything(x, w, b, **params)
    for block in (1, 2000, 4000):  # a row at a time; some rows, with a rest
        monkeypatch.setattr(conv_geometry, "BLOCK", block)
        for part, full in zip(everything(x, w, b, **params), whole, strict=True):
            np.testing.assert_allclose(part.array, full.array, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wanted", list(product([True, False], repeat=3))[:-1])
def test_every_combination_of_inputs_that_require_grad_works(wanted):
    for op, shapes in (
        (ops.conv2d, ((2, 3, 4, 5), (4, 3, 2, 2), (4,))),
        (ops.conv_transpose2d, ((2, 3, 4, 5), (3, 4, 2, 2), (4,))),
    ):
        full = [normal(*shape) for shape in shapes]
        want = grad(op(*full).sum(), full)
        some = [Tensor(t.array, needs) for t, needs in zip(full, wanted, strict=True)]
        found = iter(grad(op(*some).sum(), [t for t in some if t.requires_grad]))
        for expected, needs in zip(want, wanted, strict=True):
            if needs:
                np.testing.assert_allclose(next(found).array, expected.array)


def test_a_frozen_weight_keeps_no_input_and_a_frozen_input_no_weight():
    x, w = normal(2, 3, 4, 4), normal(4, 3, 2, 2)
    assert not hasattr(ops.conv2d(x, w.detach()).node.saved, "input")
    assert not hasattr(ops.conv2d(x.detach(), w).node.saved, "weight")


@pytest.mark.parametrize(
    "params", [{}, {"stride": 2, "padding": 1}, {"stride": (3, 1), "padding": (0, 2), "dilation": (1, 2)}]
)
def test_conv_transpose2d_is_the_adjoint_of_conv2d(params):
    w = normal(4, 3, 3, 2)
    y = ops.conv2d(normal(2, 3, 7, 8), w, **params)
    x = ops.conv_transpose2d(y, w, **params)
    other = Tensor(RANDOM.normal(size=x.shape))
    maps = ops.conv2d(other, w, **params)
    np.testing.assert_allclose((maps.array * y.array).sum(), (other.array * x.array).sum())


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_convolution_with_a_kernel_of_ones_sums_its_windows(axes):
    x, conv = normal(2, 3, *(4, 3, 5)[:axes]), getattr(ops, f"conv{axes}d")
    found = conv(x, Tensor(np.ones((1, 3, *(2, 2, 3)[:axes])))).array[:, 0]
    views = np.lib.stride_tricks.sliding_window_view(x.array, (2, 2, 3)[:axes], tuple(range(2, 2 + axes)))
    np.testing.assert_allclose(found, views.sum((1, *range(-axes, 0))))


@pytest.mark.parametrize("axes", [1, 3])
def test_transposed_convolutions_of_sequences_and_volumes_are_adjoints_too(axes):
    conv, back = getattr(ops, f"conv{axes}d"), getattr(ops, f"conv_transpose{axes}d")
    x, w = normal(2, 4, *(6, 5, 4)[:axes]), normal(6, 2, *(3, 2, 1)[:axes])
    y = conv(x, w, stride=2, padding=(1, 0, 0)[:axes], groups=2)
    more = [(n + 2 * p - k) % 2 for n, p, k in zip(x.shape[2:], (1, 0, 0), (3, 2, 1), strict=False)]
    images = back(y, w, stride=2, padding=(1, 0, 0)[:axes], output_padding=tuple(more), groups=2)
    assert images.shape == x.shape
    np.testing.assert_allclose((images.array * x.array).sum(), (y.array * y.array).sum())


@pytest.mark.parametrize("arguments", [((2, 3), 1, 0, 1), (2, 2, (1, 0), (1, 2))])
def test_fold_is_the_adjoint_of_unfold(arguments):
    x = normal(2, 3, 5, 6)
    columns = ops.unfold(x, *arguments)
    other = Tensor(RANDOM.normal(size=columns.shape))
    images = ops.fold(other, (5, 6), *arguments)
    np.testing.assert_allclose((columns.array * other.array).sum(), (x.array * images.array).sum())


def test_fold_sums_overlaps_in_more_than_16_bits():
    side = 47  # one pixel lies in all 47 * 47 = 2209 windows; float16 counts by one only to 2048
    middle = ops.fold(tensor(np.ones((1, side**2, side**2)), dtype=float16), (2 * side - 1, 2 * side - 1), side)
    assert middle.array[0, 0, side - 1, side - 1] == np.float16(side**2)


def test_one_image_gives_what_a_batch_of_it_gives():
    x, w = normal(3, 5, 6), normal(4, 3, 3, 3)
    assert np.array_equal(ops.conv2d(x, w).array, ops.conv2d(Tensor(x.array[None]), w).array[0])
    line, kernel = normal(3, 7), normal(4, 3, 3)
    assert np.array_equal(ops.conv1d(line, kernel).array, ops.conv1d(Tensor(line.array[None]), kernel).array[0])


@pytest.mark.parametrize("kernel", [(2, 2), (3, 4), (1, 5)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_padding_same_keeps_the_size_for_even_kernels_too(kernel, dilation):
    x = tensor(np.ones((1, 1, 6, 7)), dtype=float32)
    out = ops.conv2d(x, tensor(np.ones((1, 1, *kernel)), dtype=float32), padding="same", dilation=dilation)
    assert out.shape == x.shape


def test_padding_same_puts_the_odd_zero_at_the_end():
    out = ops.conv1d(tensor([[1.0, 2.0, 3.0]]), tensor([[[1.0, 1.0]]]), padding="same")
    assert out.tolist() == [[3, 5, 3]]


def test_the_output_of_the_reference_is_contiguous():
    assert ops.conv2d(normal(4, 3, 5, 5), normal(6, 3, 3, 3)).array.flags.c_contiguous


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: ops.conv2d(t(2, 5, 8, 8), t(4, 3, 3, 3)),
            "conv2d: needs input [N, 3, H, W] for weight [4, 3, 3, 3], got input [2, 5, 8, 8]",
        ),
        (
            lambda t: ops.conv2d(t(2, 5, 8, 8), t(4, 3, 3, 3), groups=2),
            "conv2d: needs input [N, 6, H, W] for weight [4, 3, 3, 3] in 2 groups, got input [2, 5, 8, 8]",
        ),
        (
            lambda t: ops.conv2d(t(8, 8), t(4, 3, 3, 3)),
            "conv2d: needs input [N, C, H, W] or [C, H, W], got input [8, 8]",
        ),
        (lambda t: ops.conv2d(t(2, 3, 8, 8), t(4, 3, 3)), "conv2d: needs weight of 4 axes, got weight [4, 3, 3]"),
        (
            lambda t: ops.conv2d(t(2, 3, 8, 8), t(4, 3, 3, 3), t(3)),
            "conv2d: needs bias [4] for weight [4, 3, 3, 3], got bias [3]",
        ),
        (
            lambda t: ops.conv2d(t(2, 3, 2, 8), t(4, 3, 5, 3), padding=1),
            "conv2d: needs images of at least 3 x 1 for this kernel and padding, got 2 x 8",
        ),
        (
            lambda t: ops.conv1d(t(2, 5, 8), t(4, 3, 3)),
            "conv1d: needs input [N, 3, L] for weight [4, 3, 3], got input [2, 5, 8]",
        ),
        (
            lambda t: ops.conv_transpose2d(t(2, 5, 8, 8), t(4, 3, 3, 3)),
            "conv_transpose2d: needs input [N, 4, H, W] for weight [4, 3, 3, 3], got input [2, 5, 8, 8]",
        ),
        (
            lambda t: ops.conv3d(t(2, 5, 8, 8, 8), t(4, 3, 3, 3, 3)),
            "conv3d: needs input [N, 3, D, H, W] for weight [4, 3, 3, 3, 3], got input [2, 5, 8, 8, 8]",
        ),
        (
            lambda t: ops.conv3d(t(3, 2, 8, 8), t(4, 3, 3, 3, 3)),
            "conv3d: needs images of at least 3 x 3 x 3 for this kernel and padding, got 2 x 8 x 8",
        ),
        (
            lambda t: ops.conv_transpose1d(t(2, 5, 8), t(4, 3, 3)),
            "conv_transpose1d: needs input [N, 4, L] for weight [4, 3, 3], got input [2, 5, 8]",
        ),
        (
            lambda t: ops.fold(t(2, 12, 9), (5, 6), 2),
            "fold: needs input [..., a multiple of 4, 20] for images (5, 6), got input [2, 12, 9]",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ShapeError) as error:
        call(lambda *shape: tensor(np.ones(shape), dtype=float32))
    assert str(error.value) == message


@pytest.mark.parametrize(
    "params",
    [
        {"stride": 0},
        {"stride": 1.5},
        {"padding": -1},
        {"padding": "full"},
        {"padding": "same", "stride": 2},
        {"dilation": (1, 2, 3)},
        {"groups": 0},
        {"groups": 3},
    ],
)
def test_arguments_out_of_range_are_refused(params):
    with pytest.raises(ArgumentError, match="conv2d: needs"):
        ops.conv2d(tensor(np.ones((1, 2, 8, 8)), dtype=float32), tensor(np.ones((4, 2, 3, 3)), dtype=float32), **params)


def test_an_output_padding_as_long_as_the_stride_is_refused():
    with pytest.raises(ArgumentError, match="output_padding smaller than stride"):
        ops.conv_transpose2d(normal(1, 2, 3, 3), normal(2, 2, 2, 2), stride=2, output_padding=2)


def test_conv_tbc_is_conv1d_with_time_first():
    draws = np.random.default_rng(0)
    x, weight, bias = (tensor(draws.normal(size=size)) for size in ((7, 2, 3), (3, 3, 4), 4))
    want = ops.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=1).permute(2, 0, 1)
    out = ops.conv_tbc(x, weight, bias, 1)
    assert out.shape == (7, 2, 4)
    assert out.tolist() == want.tolist()
    with pytest.raises(ShapeError, match=r"conv_tbc: needs weight \[K, C, O\], got \[4\]"):
        ops.conv_tbc(x, bias, bias)
