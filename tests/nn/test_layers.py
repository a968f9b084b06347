"""Layers against NumPy formulas, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import Tensor, nn, tensor
from ampkit.base import dtypes
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError, ShapeError
from ampkit.core import random
from ampkit.core.policy import autocast

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape)


def filled(layer):
    """`layer` in float64, every parameter drawn from N(0, 1)."""
    layer.double()
    for parameter in layer.parameters():
        parameter.data = normal(*parameter.shape)
    return layer


def run(layer, *arrays):
    return layer(*map(tensor, arrays)).detach().numpy()


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.cpu
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_a_product_and_a_sum(bias):
    layer, x = filled(nn.Linear(5, 3, bias)), normal(2, 4, 5)
    close(run(layer, x), x @ layer.weight.array.T + (layer.bias.array if bias else 0))


def correlate(x, w, stride, padding, dilation, groups):
    (n, _, *size), (out, each, *kernel) = x.shape, w.shape
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    ends = [(s + 2 * p - span) // t + 1 for s, p, span, t in zip(size, padding, spans, stride, strict=True)]
    y = np.zeros((n, out, *ends))
    for o in range(out):
        group = o // (out // groups)
        for at in np.ndindex(*ends):
            window = tuple(
                slice(i * t, i * t + span, d) for i, t, span, d in zip(at, stride, spans, dilation, strict=True)
            )
            y[(slice(None), o, *at)] = (
                (x[(slice(None), slice(group * each, (group + 1) * each), *window)] * w[o]).reshape(n, -1).sum(1)
            )
    return y


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("kernel", "options", "full"),
    [
        (3, {}, ((1, 1), (0, 0), (1, 1), 1)),
        ((3, 2), {"stride": (2, 1), "padding": (1, 0)}, ((2, 1), (1, 0), (1, 1), 1)),
        (3, {"padding": "same", "dilation": 2, "groups": 2}, ((1, 1), (2, 2), (2, 2), 2)),
    ],
)
def test_conv2d_correlates(kernel, options, full):
    layer, x = filled(nn.Conv2d(4, 6, kernel, **options)), normal(2, 4, 6, 7)
    close(run(layer, x), correlate(x, layer.weight.array, *full) + layer.bias.array[:, None, None])


@pytest.mark.cpu
def test_conv1d_correlates():
    layer, x = filled(nn.Conv1d(4, 6, 3, stride=2, padding=1, bias=False)), normal(2, 4, 7)
    close(run(layer, x), correlate(x, layer.weight.array, (2,), (1,), (1,), 1))


@pytest.mark.cpu
def test_embedding_picks_rows_and_leaves_the_padding_row_without_gradient():
    layer = filled(nn.Embedding(5, 3, padding_idx=1))
    rows = layer(tensor([[0, 1], [4, 4]]))
    close(rows.detach().numpy(), layer.weight.array[[[0, 1], [4, 4]]])
    rows.backward(Tensor(np.ones((2, 2, 3))))
    assert layer.weight.grad.array[:, 0].tolist() == [1, 0, 0, 0, 2]


def test_embedding_from_pretrained_is_frozen():
    layer = nn.Embedding.from_pretrained(tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert layer(tensor(1)).tolist() == [3.0, 4.0]
    assert not layer.weight.requires_grad
    assert nn.Embedding.from_pretrained(tensor([[1.0]]), freeze=False).weight.requires_grad


def standard(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.mark.cpu
def test_layer_norm_rms_norm_and_group_norm_normalize_within_a_sample():
    x = normal(2, 6, 3, 5)
    layer = filled(nn.LayerNorm((3, 5)))
    close(run(layer, x), standard(x, (2, 3)) * layer.weight.array + layer.bias.array)
    layer = filled(nn.RMSNorm(5, eps=1e-3))
    close(run(layer, x), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * layer.weight.array)
    layer = filled(nn.GroupNorm(2, 6))
    grouped = standard(x.reshape(2, 2, -1), 2).reshape(x.shape)
    close(run(layer, x), grouped * layer.weight.array[:, None, None] + layer.bias.array[:, None, None])
    assert list(dict(nn.LayerNorm(3, bias=False).named_parameters())) == ["weight"]
    assert not list(nn.GroupNorm(1, 2, affine=False).parameters())


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("layer", "shape", "axes"),
    [
        (nn.BatchNorm1d, (6, 4), 0),
        (nn.BatchNorm1d, (6, 4, 3), (0, 2)),
        (nn.BatchNorm2d, (6, 4, 3, 2), (0, 2, 3)),
        (nn.BatchNorm3d, (6, 4, 3, 2, 2), (0, 2, 3, 4)),
    ],
)
def test_batch_norm_uses_the_batch_while_training_and_the_running_statistics_after(layer, shape, axes):
    norm, x = filled(layer(4, momentum=0.25)), normal(*shape)
    along = (4, *[1] * (len(shape) - 2))
    scale, shift = norm.weight.array.reshape(along), norm.bias.array.reshape(along)
    close(run(norm, x), standard(x, axes) * scale + shift)
    mean, var = 0.25 * x.mean(axes), 0.75 + 0.25 * x.var(axes, ddof=1)
    close(norm.running_mean.array, mean)
    close(norm.running_var.array, var)
    assert norm.num_batches_tracked.item() == 1
    norm.eval()
    close(run(norm, x), (x - mean.reshape(along)) / np.sqrt(var.reshape(along) + 1e-5) * scale + shift)
    assert norm.num_batches_tracked.item() == 1


@pytest.mark.cpu
def test_batch_norm_without_momentum_averages_over_all_batches():
    norm, batches = nn.BatchNorm1d(3, momentum=None).double(), [normal(5, 3) for _ in range(3)]
    for x in batches:
        run(norm, x)
    close(norm.running_mean.array, np.mean([x.mean(0) for x in batches], 0))
    close(norm.running_var.array, np.mean([x.var(0, ddof=1) for x in batches], 0))
    norm.reset_running_stats()
    assert norm.num_batches_tracked.item() == 0
    assert norm.running_mean.tolist() == [0, 0, 0]


def test_batch_norm_without_running_statistics_uses_the_batch_always():
    norm, x = nn.BatchNorm1d(3, track_running_stats=False).double().eval(), normal(5, 3)
    close(run(norm, x), standard(x, 0))
    assert "running_mean" not in norm.state_dict()


def test_a_batch_that_is_not_finite_leaves_the_running_statistics_alone():
    norm, x = nn.BatchNorm1d(3).double(), normal(5, 3)
    x[0, 0] = np.inf
    run(norm, x)
    assert norm.running_mean.tolist() == [0, 0, 0]
    assert norm.running_var.tolist() == [1, 1, 1]


def erf(x):
    return np.vectorize(math.erf)(x)


ACTIVATIONS = [
    (nn.ReLU(), lambda x: np.maximum(x, 0)),
    (nn.SiLU(), lambda x: x / (1 + np.exp(-x))),
    (nn.Mish(), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    (nn.Tanh(), np.tanh),
    (nn.Sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
    (nn.LeakyReLU(0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    (nn.ELU(0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    (nn.Softplus(2), lambda x: np.log1p(np.exp(2 * x)) / 2),
    (nn.GELU(), lambda x: x * (1 + erf(x / math.sqrt(2))) / 2),
    (nn.GELU("tanh"), lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2),
    (nn.Softmax(1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    (nn.LogSoftmax(-1), lambda x: x - np.log(np.exp(x).sum(1, keepdims=True))),
    (nn.Identity(3, unused=True), lambda x: x),
    (nn.Flatten(0), lambda x: x.reshape(-1)),
    (nn.Unflatten(1, (2, 2)), lambda x: x.reshape(3, 2, 2)),
]


@pytest.mark.parametrize(("layer", "formula"), ACTIVATIONS, ids=[repr(layer) for layer, _ in ACTIVATIONS])
def test_layers_without_parameters_follow_their_formula(layer, formula):
    x = normal(3, 4)
    close(run(layer, x), formula(x))


def test_pools_reduce_windows():
    x = normal(2, 3, 6, 8)
    windows = x.reshape(2, 3, 3, 2, 4, 2)
    close(run(nn.MaxPool2d(2), x), windows.max((3, 5)))
    close(run(nn.AvgPool2d(2), x), windows.mean((3, 5)))
    close(run(nn.AdaptiveAvgPool2d((3, None)), x), x.reshape(2, 3, 3, 2, 8).mean(3))
    close(run(nn.AdaptiveAvgPool2d(1), x), x.mean((2, 3), keepdims=True))
    assert run(nn.MaxPool2d(3, 2, padding=1), x).shape == (2, 3, 3, 4)


def test_dropout_scales_what_it_keeps_and_only_while_training():
    random.manual_seed(0)
    layer, x = nn.Dropout(0.25), np.ones((100, 100))
    y = run(layer, x)
    assert set(np.unique(y)) == {0, 1 / 0.75}
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.02)
    assert np.array_equal(run(layer.eval(), x), x)


LABELS = np.array([0, 2, 1, -100])


def negative_log(x):
    return -(x - np.log(np.exp(x).sum(1, keepdims=True)))[range(3), LABELS[:3]]


LOSSES = [
    (nn.CrossEntropyLoss(), LABELS, lambda x, t: negative_log(x).mean()),
    (
        nn.CrossEntropyLoss(tensor([1.0, 2.0, 3.0], dtype="float64"), reduction="sum"),
        LABELS,
        lambda x, t: (negative_log(x) * [1, 3, 2]).sum(),
    ),
    (nn.MSELoss(), normal(4, 3), lambda x, t: ((x - t) ** 2).mean()),
    (nn.L1Loss(reduction="sum"), normal(4, 3), lambda x, t: np.abs(x - t).sum()),
    (nn.HuberLoss(reduction="none", delta=9), normal(4, 3), lambda x, t: (x - t) ** 2 / 2),
    (nn.SmoothL1Loss(beta=9), normal(4, 3), lambda x, t: ((x - t) ** 2 / 18).mean()),
    (nn.BCEWithLogitsLoss(), RNG.random((4, 3)), lambda x, t: (np.log1p(np.exp(x)) - t * x).mean()),
]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("loss", "target", "formula"), LOSSES, ids=[f"{type(loss).__name__} {loss.reduction}" for loss, *_ in LOSSES]
)
def test_losses_follow_their_formula(loss, target, formula):
    x = normal(4, 3)
    rows = x[:3] if isinstance(loss, nn.CrossEntropyLoss) else x
    close(run(loss, x, target), formula(rows, target))


def test_nll_and_bce_are_what_cross_entropies_are_made_of():
    x = normal(4, 3)
    close(run(nn.NLLLoss(), run(nn.LogSoftmax(1), x), LABELS), negative_log(x[:3]).mean())
    close(run(nn.BCELoss(), run(nn.Sigmoid(), x), np.ones((4, 3))), np.log1p(np.exp(-x)).mean())
    with (
        autocast(dtype=dtypes.float16),
        pytest.raises(DTypeError, match=r"BCEWithLogitsLoss|binary_cross_entropy_with_logits"),
    ):
        nn.BCELoss()(tensor([0.5]), tensor([1.0]))


def test_the_weight_of_a_loss_is_a_buffer():
    assert list(nn.CrossEntropyLoss(tensor([1.0, 2.0])).state_dict()) == ["weight"]
    assert list(nn.CrossEntropyLoss().state_dict()) == []


def test_inside_autocast_products_are_16_bit_and_norms_float32():
    x = tensor(normal(2, 4).astype(np.float32))
    with autocast(dtype=dtypes.bfloat16):
        assert nn.Linear(4, 3)(x).dtype == dtypes.bfloat16
        assert nn.LayerNorm(4)(nn.Linear(4, 4)(x)).dtype == dtypes.float32
        assert nn.MultiheadAttention(4, 2, batch_first=True)(x, x, x)[0].dtype == dtypes.bfloat16


WRONG = [
    (lambda: nn.Linear(0, 3), ArgumentError, "Linear: needs in_features as a positive integer, got 0"),
    (lambda: nn.Linear(2, 2.5), DTypeError, "Linear: needs out_features as an integer, got 2.5"),
    (lambda: nn.Linear(2, 2, dtype=dtypes.int64), DTypeError, "Parameter: needs a floating-point dtype, got int64"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), ArgumentError, "Conv2d: needs channels that groups divides"),
    (lambda: nn.Conv2d(3, 4, (3, 3, 3)), ArgumentError, "Conv2d: needs kernel_size as a positive integer or 2 of them"),
    (lambda: nn.Conv2d(3, 4, 3, padding=-1), ArgumentError, "Conv2d: needs padding as 2 integers >= 0"),
    (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), ArgumentError, "Conv2d: needs stride 1 with padding='same'"),
    (
        lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"),
        ArgumentError,
        "Conv2d: needs padding_mode 'zeros', 'reflect', 'replicate', 'circular', got 'mirror'",
    ),
    (
        lambda: nn.ConvTranspose3d(3, 4, 3, padding_mode="circular"),
        ArgumentError,
        "ConvTranspose3d: needs padding_mode 'zeros', got 'circular'",
    ),
    (
        lambda: nn.ConvTranspose1d(3, 4, 3, padding="same"),
        ArgumentError,
        "ConvTranspose1d: needs padding as 1 integers",
    ),
    (lambda: nn.Conv3d(3, 4, (3, 3)), ArgumentError, "Conv3d: needs kernel_size as a positive integer or 3 of them"),
    (lambda: nn.ReplicationPad2d((1, 2)), ArgumentError, "ReplicationPad2d: needs padding as an integer or 4 of them"),
    (lambda: nn.SyncBatchNorm(4, process_group=(0, 1)), DTypeError, "SyncBatchNorm: needs a ProcessGroup of ampkit"),
    (lambda: nn.Embedding(3, 4, padding_idx=3), ArgumentError, "Embedding: needs padding_idx from -3 to 2, got 3"),
    (lambda: nn.GroupNorm(2, 3), ArgumentError, "GroupNorm: needs num_channels that num_groups divides, got 3 and 2"),
    (lambda: nn.Dropout(1.5), ArgumentError, "Dropout: needs a probability p from 0 to 1, got 1.5"),
    (lambda: nn.GELU("erf"), ArgumentError, "GELU: needs approximate 'none' or 'tanh', got 'erf'"),
    (lambda: nn.MSELoss(reduction="avg"), ArgumentError, "MSELoss: needs reduction 'mean', 'sum' or 'none', got 'avg'"),
    (
        lambda: nn.MultiheadAttention(5, 2),
        ArgumentError,
        "MultiheadAttention: needs embed_dim that num_heads divides, got 5 and 2",
    ),
]


@pytest.mark.parametrize(("make", "kind", "line"), WRONG, ids=[line for *_, line in WRONG])
def test_a_wrong_argument_gives_one_clear_line(make, kind, line):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(line)


MISFITS = [
    (nn.Linear(4, 2), (3, 5)),
    (nn.Conv2d(3, 2, 3), (1, 4, 5, 5)),
    (nn.Conv2d(3, 2, 3), (1, 3, 2, 2)),
    (nn.LayerNorm(4), (3, 5)),
    (nn.BatchNorm1d(4), (3, 4, 2, 2)),
    (nn.BatchNorm2d(4), (3, 5, 2, 2)),
    (nn.BatchNorm3d(4), (3, 4, 2, 2)),
    (nn.BatchNorm1d(4), (1, 4)),
    (nn.MaxPool2d(3), (1, 1, 2, 2)),
]


@pytest.mark.cpu
@pytest.mark.parametrize(("layer", "shape"), MISFITS, ids=[f"{layer} {shape}" for layer, shape in MISFITS])
def test_a_misfit_input_gives_one_clear_line(layer, shape):
    with pytest.raises(ShapeError) as caught:
        layer(tensor(np.ones(shape, np.float32)))
    line, _, rest = str(caught.value).partition("\n")
    assert ": needs " in line
    assert not rest or rest.startswith("help: ")


@pytest.mark.cpu
@pytest.mark.parametrize("layer", [nn.Linear(4, 2), nn.LayerNorm(4), nn.ReLU(), nn.BatchNorm1d(4).eval()], ids=str)
def test_an_empty_batch_passes_through_where_nothing_is_averaged(layer):
    y = layer(tensor(np.ones((0, 4), np.float32)))
    assert y.shape[0] == 0
    y.sum().backward() if y.requires_grad else None
    assert all(not p.grad.array.any() for p in layer.parameters())


def test_a_mean_over_an_empty_batch_is_refused():
    with pytest.raises(AmpkitError, match="cross_entropy: needs"):
        nn.CrossEntropyLoss()(tensor(np.ones((0, 3), np.float32)), tensor(np.ones(0, np.int64)))


def test_wrong_dtypes_are_refused():
    with pytest.raises(DTypeError, match="linear: needs operands of one dtype"):
        nn.Linear(4, 2)(tensor(np.ones((3, 4))))
    with pytest.raises(AmpkitError, match="embedding: needs"):
        nn.Embedding(4, 2)(tensor([1.0]))
    with pytest.raises(DTypeError, match="needs Tensors and numbers, got ndarray"):
        nn.Linear(4, 2)(np.ones((3, 4), np.float32))


@pytest.mark.parametrize(
    ("layer", "count", "name"),
    [
        (nn.BatchNorm1d(2), 1, "input"),
        (nn.BatchNorm2d(2), 1, "input"),
        (nn.MultiheadAttention(2, 1), 3, "query"),
    ],
    ids=["BatchNorm1d", "BatchNorm2d", "MultiheadAttention"],
)
@pytest.mark.parametrize("stray", [5, "x", None, [1.0]], ids=repr)
def test_layers_that_look_at_shapes_first_refuse_what_is_no_tensor(layer, count, name, stray):
    with pytest.raises(DTypeError, match=f"^{type(layer).__name__}: needs a Tensor for `{name}`, got"):
        layer(*[stray] * count)


# embeddings


def test_max_norm_scales_the_rows_that_are_used_in_place():
    layer = nn.Embedding(3, 2, max_norm=2.5)
    layer.weight.data = np.array([[3, 4], [0.3, 0.4], [6, 8]])
    out = layer(tensor([[0, 1], [0, 0]]))
    assert np.allclose(out[0].tolist(), [[1.5, 2], [0.3, 0.4]])
    assert np.allclose(layer.weight.tolist(), [[1.5, 2], [0.3, 0.4], [6, 8]])
    bag = nn.EmbeddingBag(3, 2, max_norm=7, norm_type=1, mode="sum")
    bag.weight.data = np.array([[3, 4], [0.3, 0.4], [6, 8]])
    assert np.allclose(bag(tensor([[0, 2]])).tolist(), [[6, 8]])


def test_scale_grad_by_freq_divides_by_the_uses_in_the_batch():
    layer = nn.Embedding(3, 1, scale_grad_by_freq=True)
    (layer(tensor([[0, 1], [0, 0]])) * tensor([[[1.0], [2.0]], [[3.0], [5.0]]])).sum().backward()
    assert layer.weight.grad.tolist() == [[3], [2], [0]]
    bag = nn.EmbeddingBag(3, 1, scale_grad_by_freq=True, mode="sum")
    bag(tensor([[0, 1], [0, 0]])).sum().backward()
    assert bag.weight.grad.tolist() == [[1], [1], [0]]


def test_an_embedding_of_integers_is_frozen():
    layer = nn.Embedding.from_pretrained(tensor([[1, 2], [3, 4]]))
    assert layer(tensor([1])).tolist() == [[3, 4]]
    assert not layer.weight.requires_grad
