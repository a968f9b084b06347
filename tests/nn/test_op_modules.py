"""Modules that call one op: values against the functional, constructors, and the errors they raise."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import ArgumentError, ShapeError

DRAW = np.random.default_rng(0)
FLAT = ampkit.tensor(DRAW.normal(size=(3, 4)) * 3)
LINE = ampkit.tensor(DRAW.normal(size=(2, 3, 9)))
IMAGE = ampkit.tensor(DRAW.normal(size=(2, 4, 6, 5)))

LAYERS = [
    (nn.ReLU6(True), FLAT, ops.relu6),
    (nn.Hardtanh(-0.5, 2.0), FLAT, lambda x: ops.hardtanh(x, -0.5, 2.0)),
    (nn.Hardsigmoid(), FLAT, ops.hardsigmoid),
    (nn.Hardswish(), FLAT, ops.hardswish),
    (nn.SELU(), FLAT, ops.selu),
    (nn.CELU(0.5), FLAT, lambda x: ops.celu(x, 0.5)),
    (nn.Threshold(0.1, 20.0), FLAT, lambda x: ops.threshold(x, 0.1, 20.0)),
    (nn.LogSigmoid(), FLAT, ops.logsigmoid),
    (nn.Softsign(), FLAT, ops.softsign),
    (nn.Tanhshrink(), FLAT, ops.tanhshrink),
    (nn.Hardshrink(0.7), FLAT, lambda x: ops.hardshrink(x, 0.7)),
    (nn.Softshrink(0.7), FLAT, lambda x: ops.softshrink(x, 0.7)),
    (nn.PReLU(4, 0.125).double(), FLAT, lambda x: ops.where(x > 0, x, x * 0.125)),
    (nn.GLU(0), ops.cat([FLAT, FLAT]), lambda x: FLAT * ops.sigmoid(FLAT)),
    (nn.Softmin(1), FLAT, lambda x: ops.softmax(-x, 1)),
    (nn.Softmax2d(), IMAGE, lambda x: ops.softmax(x, 1)),
    (nn.MaxPool1d(3, 2, 1), LINE, lambda x: ops.max_pool2d(x.unsqueeze(2), (1, 3), (1, 2), (0, 1)).squeeze(2)),
    (nn.AvgPool1d(2), LINE, lambda x: x[..., :8].reshape(2, 3, 4, 2).mean(-1)),
    (nn.AdaptiveAvgPool1d(3), LINE, lambda x: x.reshape(2, 3, 3, 3).mean(-1)),
    (nn.Unfold(2, stride=2), IMAGE, lambda x: ops.unfold(x, 2, stride=2)),
    (nn.Fold((6, 5), 2), ops.unfold(IMAGE, 2), lambda x: ops.fold(x, (6, 5), 2)),
    (nn.ConstantPad1d((1, 2), 3.5), LINE, lambda x: ops.pad(x, (1, 2), value=3.5)),
    (nn.ConstantPad2d(1, 2.0), IMAGE, lambda x: ops.pad(x, (1, 1, 1, 1), value=2.0)),
    (nn.ConstantPad3d((1, 0, 0, 2, 1, 1), -1), IMAGE, lambda x: ops.pad(x, (1, 0, 0, 2, 1, 1), value=-1)),
    (nn.ReflectionPad1d(2), LINE, lambda x: ops.cat([x[..., [2, 1]], x, x[..., [-2, -3]]], -1)),
    (nn.ReflectionPad2d((1, 0, 0, 2)), IMAGE, lambda x: ops.pad(x, (1, 0, 0, 2), "reflect")),
    (nn.ReflectionPad3d(1), IMAGE, lambda x: ops.pad(x, (1,) * 6, "reflect")),
    (nn.ReplicationPad1d((1, 3)), LINE, lambda x: x[..., [0, *range(9), 8, 8, 8]]),
    (nn.ReplicationPad2d(2), IMAGE, lambda x: ops.pad(x, (2,) * 4, "replicate")),
    (nn.ReplicationPad3d(1), IMAGE, lambda x: ops.pad(x, (1,) * 6, "replicate")),
    (nn.CircularPad1d((2, 1)), LINE, lambda x: x[..., [7, 8, *range(9), 0]]),
    (nn.CircularPad2d(1), IMAGE, lambda x: ops.pad(x, (1,) * 4, "circular")),
    (nn.CircularPad3d((0, 1, 0, 0, 2, 1)), IMAGE, lambda x: ops.pad(x, (0, 1, 0, 0, 2, 1), "circular")),
    (nn.AdaptiveMaxPool1d(3), LINE, lambda x: x.reshape(2, 3, 3, 3).amax(-1)),
    (nn.AdaptiveMaxPool2d((3, None)), IMAGE, lambda x: ops.max_pool2d(x, (2, 1))),
    (nn.AdaptiveMaxPool3d((1, 3, 1)), IMAGE, lambda x: ops.adaptive_max_pool3d(x, (1, 3, 1))),
    (nn.LPPool1d(2, 3), LINE, lambda x: (x * x).reshape(2, 3, 3, 3).sum(-1).sqrt()),
    (nn.LPPool2d(2, (6, 1)), IMAGE, lambda x: (x * x).sum(2, True).sqrt()),
    (nn.MaxPool3d(2), IMAGE, lambda x: ops.max_pool3d(x, 2)),
    (nn.AvgPool3d((1, 2, 1)), IMAGE, lambda x: ops.avg_pool2d(x, (2, 1))),
    (nn.AdaptiveAvgPool3d((None, 3, 1)), IMAGE, lambda x: ops.adaptive_avg_pool2d(x, (3, 1))),
    (nn.PixelShuffle(2), IMAGE, lambda x: ops.pixel_shuffle(x, 2)),
    (nn.PixelUnshuffle(2), IMAGE[..., :4], lambda x: ops.pixel_unshuffle(x, 2)),
    (nn.ChannelShuffle(2), IMAGE, lambda x: x[:, [0, 2, 1, 3]]),
    (nn.Upsample(scale_factor=2), LINE, lambda x: x.repeat_interleave(2, -1)),
    (nn.UpsamplingNearest2d((12, 5)), IMAGE, lambda x: x.repeat_interleave(2, 2)),
    (nn.UpsamplingBilinear2d((6, 9)), IMAGE, lambda x: ops.interpolate(x, (6, 9), mode="bilinear", align_corners=True)),
    (nn.ZeroPad1d(2), LINE, lambda x: ops.pad(x, (2, 2))),
    (nn.ZeroPad2d((1, 0, 2, 0)), IMAGE, lambda x: ops.pad(x, (1, 0, 2, 0))),
    (nn.ZeroPad3d(1), IMAGE, lambda x: ops.pad(x, (1,) * 6)),
]


@pytest.mark.parametrize(("layer", "x", "function"), LAYERS, ids=[repr(layer) for layer, *_ in LAYERS])
def test_a_layer_computes_its_function(layer, x, function):
    expected = function(x).array
    assert np.allclose(layer(x.clone()).detach().array, expected, rtol=1e-12, atol=1e-14)
    assert repr(layer).startswith(type(layer).__name__ + "(")


def test_distances_compare_two_inputs():
    other = FLAT.flip(0)
    lengths = ((FLAT * FLAT).sum(1) * (other * other).sum(1)).sqrt()
    cosine = (FLAT * other).sum(1) / lengths
    assert np.allclose(nn.CosineSimilarity()(FLAT, other).array, cosine.array)
    gap = nn.PairwiseDistance(1.0, eps=0.0, keepdim=True)(FLAT, other)
    assert np.allclose(gap.array, np.abs(FLAT.array - other.array).sum(1, keepdims=True))


def test_the_divergence_has_four_reductions():
    log, p = ops.log_softmax(FLAT, 1), ops.softmax(FLAT * 0.5, 1)
    total = nn.KLDivLoss(reduction="sum")(log, p).item()
    assert nn.KLDivLoss(reduction="batchmean")(log, p).item() == pytest.approx(total / 3)
    assert nn.KLDivLoss()(log, p).item() == pytest.approx(total / 12)
    assert nn.KLDivLoss(log_target=True, size_average=False)(log, p.log()).item() == pytest.approx(total)
    with pytest.raises(ArgumentError, match="needs reduction 'mean', 'batchmean', 'sum' or 'none', got 'avg'"):
        nn.KLDivLoss(reduction="avg")


@pytest.mark.cpu
def test_a_transposed_convolution_undoes_the_shape_of_one():
    down, up = nn.Conv2d(4, 6, 3, stride=2).double(), nn.ConvTranspose2d(6, 4, 3, stride=2).double()
    assert up.weight.shape == (6, 4, 3, 3)
    assert up.bias.shape == (4,)
    small = down(IMAGE)
    assert up(small).shape == (2, 4, 5, 5)
    assert up(small, output_size=IMAGE.shape).shape == IMAGE.shape
    exact = ops.conv_transpose2d(small, up.weight, up.bias, 2, output_padding=(1, 0))
    assert np.array_equal(up(small, output_size=(6, 5)).array, exact.array)
    assert nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2).weight.shape == (4, 3, 3, 3)
    with pytest.raises(ArgumentError, match=r"needs an output_size from \(5, 5\) to \(6, 6\), got \(7, 5\)"):
        up(small, output_size=(7, 5))


@pytest.mark.cpu
@pytest.mark.parametrize("axes", [1, 3])
def test_transposed_convolutions_have_an_output_size_in_one_axis_and_three(axes):
    up = getattr(nn, f"ConvTranspose{axes}d")(4, 6, 3, stride=2, padding=1, groups=2).double()
    op = getattr(ops, f"conv_transpose{axes}d")
    x, size = ampkit.tensor(np.ones((2, 4, *(3, 2, 4)[:axes]))), (5, 4, 7)[:axes]
    exact = op(x, up.weight, up.bias, 2, 1, tuple([n % 2 == 0 for n in size]), 2)
    assert up.weight.shape == (4, 3, *(3,) * axes)
    assert np.array_equal(up(x, output_size=size).array, exact.array)
    assert up(x).shape[2:] == (5, 3, 7)[:axes]
    with pytest.raises(ArgumentError, match=f"ConvTranspose{axes}d: needs an output_size from"):
        up(x, output_size=(9,) * axes)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, "same", "valid"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_padding_mode_pads_by_what_is_inside(axes, padding, mode):
    layer = getattr(nn, f"Conv{axes}d")(2, 3, (2, 3, 1)[:axes], padding=padding, padding_mode=mode).double()
    x = ampkit.tensor(np.random.default_rng(0).normal(size=(2, 2, *(4, 5, 3)[:axes])))
    each = {1: [1] * 6, "valid": [0] * 6, "same": [0, 0, 1, 1, 0, 1]}[padding]
    around = ops.pad(x, each[-2 * axes :], mode)
    exact = getattr(ops, f"conv{axes}d")(around, layer.weight, layer.bias)
    assert ops.allclose(layer(x), exact, 1e-12)
    assert repr(layer).endswith(f"padding_mode={mode})")


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_layers_that_unpool_undo_those_that_pool(axes):
    pool = getattr(nn, f"MaxPool{axes}d")(2, return_indices=True)
    x = ampkit.tensor(np.random.default_rng(0).normal(size=(2, 2, *(4, 5, 3)[:axes])))
    best, places = pool(x)
    back = getattr(nn, f"MaxUnpool{axes}d")(2)(best, places, output_size=x.shape)
    again, same = pool(ops.where(back == 0, x, back))
    assert ops.equal(again, best)
    assert ops.equal(same, places)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout1d, (50, 8, 3)), (nn.Dropout2d, (50, 8, 3, 2)), (nn.Dropout3d, (8, 3, 2, 2))]
)
def test_whole_channels_are_dropped(layer, shape):
    ampkit.manual_seed(0)
    kept = 2 if layer is not nn.Dropout3d else 1
    out = layer(0.5)(ampkit.ones(shape)).array.reshape(*shape[:kept], -1)
    assert set(np.unique(out)) == {0, 2}
    assert (out == out[..., :1]).all()
    assert np.array_equal(layer(0.5).eval()(ampkit.ones(shape)).array, np.ones(shape))
    with pytest.raises(ShapeError, match=f"dropout{layer.__name__[-2:]}: needs input"):
        layer()(ampkit.ones(2))


def test_a_parametric_gradient_learns():
    layer = nn.PReLU(3)
    out = layer(ampkit.tensor([[-1.0, 2.0, -3.0]]))
    assert out.tolist() == [[-0.25, 2.0, -0.75]]
    out.sum().backward()
    assert layer.weight.grad.tolist() == [-1.0, 0.0, -3.0]
    with pytest.raises(ShapeError, match=r"prelu: needs weight \[1\] or \[4\], one per channel"):
        layer(ampkit.ones(2, 4))


def test_what_cannot_be_a_layer_is_refused():
    for make in (
        lambda: nn.Hardtanh(1.0, 1.0),
        lambda: nn.ZeroPad2d((1, 2)),
        lambda: nn.PReLU(0),
    ):
        with pytest.raises(ArgumentError):
            make()
    with pytest.raises(ShapeError, match="glu: needs an even length along dim -1"):
        nn.GLU()(ampkit.ones(2, 3))
    with pytest.raises(ShapeError, match="Softmax2d: needs input"):
        nn.Softmax2d()(ampkit.ones(2, 3))


@pytest.mark.parametrize("kind", [nn.Softmax, nn.LogSoftmax, nn.Softmin])
@pytest.mark.parametrize(("shape", "dim"), [((3,), 0), ((2, 3), 1), ((2, 3, 2), 0), ((2, 3, 2, 2), 1)])
def test_softmax_without_dim_takes_pytorchs_and_warns(kind, shape, dim):
    x = ampkit.linspace(-1, 1, int(np.prod(shape))).reshape(shape) ** 3
    with pytest.warns(UserWarning, match=rf"{kind.__name__} without dim takes {dim} here"):
        found = kind()(x)
    assert found.tolist() == kind(dim)(x).tolist()
