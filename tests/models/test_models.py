"""Models: names, sizes, starting values, and their forward against NumPy."""

from __future__ import annotations

import math
from functools import partial

import garbage
import numpy as np
import pytest

from ampkit import models, tensor
from ampkit.base import dtypes
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError, ShapeError
from ampkit.core import random
from ampkit.core.policy import autocast
from ampkit.models.efficientnet import Stage
from ampkit.models.resnet import BasicBlock, Bottleneck
from ampkit.nn import BatchNorm2d, Conv2d, Sequential

RNG = np.random.default_rng(0)
TINY_EFFICIENTNET = (Stage(1, 3, 1, 8, 8, 2), Stage(2, 5, 2, 8, 16, 2))
TINY_VIT = {"patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
TINY_BERT = {
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12
}  # fmt: skip
TINY = {"vocab_size": 11, "block_size": 6, "n_layer": 2, "n_head": 2, "n_embd": 8}


def count(model):
    return sum(p.numel() for p in model.parameters())


def close(got, expected):
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def image(*shape):
    return tensor(RNG.standard_normal(shape).astype(np.float32))


CASES = {
    "mlp": (lambda: models.mlp(64, (32, 16), 10), lambda: image(4, 1, 8, 8), (4, 10)),
    "cnn": (lambda: models.cnn(width=4), lambda: image(4, 1, 8, 8), (4, 10)),
    "resnet18": (lambda: models.resnet18(10, stem="cifar"), lambda: image(2, 3, 8, 8), (2, 10)),
    "resnet50": (lambda: models.resnet50(10), lambda: image(2, 3, 32, 32), (2, 10)),
    "lenet5": (lambda: models.lenet5(image_size=12), lambda: image(2, 1, 12, 12), (2, 10)),
    "convmixer": (lambda: models.convmixer(8, 2, 3), lambda: image(2, 3, 8, 8), (2, 10)),
    "vgg": (lambda: models.VGG((1, 2), widths=(4, 8), hidden=8, num_classes=5), lambda: image(2, 3, 8, 8), (2, 5)),
    "alexnet": (lambda: models.alexnet(5, hidden=8), lambda: image(1, 3, 63, 63), (1, 5)),
    "efficientnet": (
        lambda: models.EfficientNet(TINY_EFFICIENTNET, 0.2, num_classes=5),
        lambda: image(2, 3, 16, 16),
        (2, 5),
    ),
    "wav2letter": (lambda: models.Wav2Letter(5, "mfcc", 3, 4, 6), lambda: image(2, 3, 60), (2, 5, 31)),
    "vit": (lambda: models.vit(8, **TINY_VIT), lambda: image(2, 3, 8, 8), (2, 10)),
    "bert": (lambda: models.bert("tiny", **TINY_BERT), lambda: tensor(RNG.integers(0, 11, (3, 5))), (3, 5, 11)),
    "gpt": (lambda: models.GPT(**TINY), lambda: tensor(RNG.integers(0, 11, (3, 5))), (3, 5, 11)),
}


RUNS = [(name, dtype) for name in CASES for dtype in ("float32", "float16", "bfloat16")]
RUNS = [run for run in RUNS if run[0] != "resnet50" or run[1] == "float32"]  # resnet18 covers the others


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_every_model_runs_and_gives_every_parameter_a_gradient(name, dtype):
    make, data, shape = CASES[name]
    model = make()
    with autocast(dtype=dtype if dtype != "float32" else None, enabled=dtype != "float32"):
        y = model(data())
    assert y.shape == shape
    y.float().square().mean().backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.dtype == dtypes.float32
        assert np.isfinite(parameter.grad.array).all(), path


@pytest.mark.cpu  # plans of products by cublasLt are kept, by the alignment of their operands
def test_every_model_is_freed_when_it_is_dropped():
    def run(make, data):
        with autocast(dtype="bfloat16"):
            make()(data()).float().square().mean().backward()

    small = {name: partial(run, make, data) for name, (make, data, _) in CASES.items() if "resnet" not in name}
    assert not garbage.left_behind(small)


def test_the_sizes_are_those_of_the_papers():
    assert count(models.resnet18()) == 11_689_512
    assert count(models.resnet34()) == 21_797_672
    assert count(models.resnet50()) == 25_557_032
    v, t, d, n = TINY["vocab_size"], TINY["block_size"], TINY["n_embd"], TINY["n_layer"]
    assert count(models.GPT(**TINY)) == (v + t) * d + n * (12 * d * d + 13 * d) + 2 * d


def test_the_state_has_torchvisions_and_gpt2s_names_and_layouts():
    state = {name: tuple(value.shape) for name, value in models.resnet18().state_dict().items()}
    assert list(state)[:6] == [
        "conv1.weight",
        *(f"bn1.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    ]
    assert state["conv1.weight"] == (64, 3, 7, 7)
    assert state["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert "layer4.1.bn2.running_var" in state
    assert list(state)[-2:] == ["fc.weight", "fc.bias"]
    assert "layer1.0.downsample.1.bias" in models.resnet50().state_dict()
    state = {name: tuple(value.shape) for name, value in models.GPT(**TINY).state_dict().items()}
    assert [n for n in state if ".h." not in n] == [
        "transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.weight", "transformer.ln_f.bias",
        "lm_head.weight",
    ]  # fmt: skip
    assert [n.removeprefix("transformer.h.1.") for n in state if ".h.1." in n and n.endswith("weight")] == [
        "ln_1.weight", "attn.c_attn.weight", "attn.c_proj.weight", "ln_2.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"
    ]  # fmt: skip
    assert state["transformer.h.0.attn.c_attn.weight"] == (24, 8)
    assert state["transformer.h.0.mlp.c_fc.weight"] == (32, 8)


def test_the_seed_decides_the_weights():
    def draw():
        random.manual_seed(3)
        return models.cnn(width=4).state_dict()

    assert all(np.array_equal(a.array, b.array) for a, b in zip(draw().values(), draw().values(), strict=True))


@pytest.mark.cpu
def test_mlp_is_products_and_activations():
    model, x = models.mlp(6, [5, 4], 3, activation="tanh", dropout=0.5).double().eval(), RNG.standard_normal((2, 2, 3))
    assert [type(m).__name__ for m in model] == ["Flatten", *["Linear", "Tanh", "Dropout"] * 2, "Linear"]
    y = x.reshape(2, 6)
    for at in (1, 4, 7):
        y = y @ model[at].weight.array.T + model[at].bias.array
        y = y if at == 7 else np.tanh(y)
    close(model(tensor(x)), y)


def test_cnn_takes_images_of_any_size():
    model = models.cnn(3, 5, width=4, stages=3)
    assert model(image(2, 3, 4, 4)).shape == (2, 5)
    assert model(image(2, 3, 9, 12)).shape == (2, 5)


@pytest.mark.parametrize(("kind", "width"), [(BasicBlock, 4), (Bottleneck, 1)])
@pytest.mark.parametrize("shortcut", [False, True])
def test_a_residual_block_adds_its_input_or_the_downsampled_input(kind, width, shortcut):
    stride = 2 if shortcut else 1
    down = Sequential(Conv2d(4, 4, 1, 2, bias=False), BatchNorm2d(4)) if shortcut else None
    block, x = kind(4, width, stride, down).double(), tensor(RNG.standard_normal((2, 4, 6, 6)))
    last = block.bn3 if kind is Bottleneck else block.bn2
    last.weight.data = np.zeros(4)
    last.bias.data = np.full(4, 0.25)
    side = x if down is None else down(x)
    close(block(x), np.maximum(side.detach().numpy() + 0.25, 0))
    assert block(x).shape == (2, 4, 6 // stride, 6 // stride)


@pytest.mark.cpu
def test_resnets_start_kaiming_normal_over_fan_out():
    model = models.resnet18(10, zero_init_residual=True)
    weight = model.layer4[0].conv1.weight.array
    assert weight.std() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert not model.layer1[0].bn2.weight.array.any()
    assert model.layer1[0].bn1.weight.array.all()
    assert models.resnet18(10).layer1[0].bn2.weight.array.all()


def gelu(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def gpt_formula(state, idx, heads):
    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)

    def norm(x, name):
        hat = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return hat * state[f"{name}.weight"] + state.get(f"{name}.bias", 0)

    (n, t), x = idx.shape, state["transformer.wte.weight"][idx] + state["transformer.wpe.weight"][: idx.shape[1]]
    for i in range(TINY["n_layer"]):
        h = f"transformer.h.{i}"
        q, k, v = np.split(
            linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").reshape(n, t, 3 * heads, -1).transpose(0, 2, 1, 3), 3, 1
        )
        scores = np.where(np.tri(t) > 0, q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1]), -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True)) @ v
        x = x + linear(mixed.transpose(0, 2, 1, 3).reshape(n, t, -1), f"{h}.attn.c_proj")
        x = x + linear(gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")), f"{h}.mlp.c_proj")
    return linear(norm(x, "transformer.ln_f"), "lm_head")


@pytest.mark.cpu
@pytest.mark.parametrize("options", [{}, {"tie_weights": False, "bias": False}], ids=["tied", "untied without bias"])
def test_gpt_follows_its_formula(options):
    model, idx = models.GPT(**TINY, **options).double(), RNG.integers(0, 11, (3, 5))
    for parameter in model.parameters():
        parameter.data = RNG.standard_normal(parameter.shape) / 2
    state = {name: value.array for name, value in model.state_dict().items()}
    logits = gpt_formula(state, idx, TINY["n_head"])
    close(model(tensor(idx)), logits)
    targets = RNG.integers(0, 11, (3, 5))
    again, loss = model(tensor(idx), tensor(targets))
    close(again, logits)
    log = logits - logits.max(-1, keepdims=True)
    log -= np.log(np.exp(log).sum(-1, keepdims=True))
    close(loss, -np.take_along_axis(log, targets[..., None], -1).mean())


def test_gpt_ties_the_head_to_the_embedding_unless_told_otherwise():
    tied, untied = models.GPT(**TINY), models.GPT(**TINY, tie_weights=False)
    assert tied.lm_head.weight is tied.transformer.wte.weight
    assert untied.lm_head.weight is not untied.transformer.wte.weight
    assert tied.to(dtypes.float64).lm_head.weight is tied.transformer.wte.weight


@pytest.mark.cpu
def test_gpt_starts_as_gpt2_does():
    model = models.gpt("nano")
    block = model.transformer.h[0]
    assert block.attn.c_attn.weight.array.std() == pytest.approx(0.02, rel=0.02)
    assert model.transformer.wte.weight.array.std() == pytest.approx(0.02, rel=0.02)
    assert block.mlp.c_proj.weight.array.std() == pytest.approx(0.02 / math.sqrt(8), rel=0.02)
    assert not block.mlp.c_fc.bias.array.any()
    assert block.ln_1.weight.array.all()


def test_gpt_weights_of_another_model_load():
    source, target = models.GPT(**TINY), models.GPT(**TINY)
    state = source.state_dict()
    del state["lm_head.weight"]
    target.load_state_dict(state)
    idx = tensor(RNG.integers(0, 11, (1, 6)))
    close(target(idx), source(idx).detach().numpy())


WRONG = [
    (lambda: models.gpt("huge"), ArgumentError, "gpt: needs a preset: nano, small, medium, large, xl, got 'huge'"),
    (lambda: models.gpt(n_embd=30), ArgumentError, "GPT: needs n_embd that n_head divides, got 30 and 4"),
    (lambda: models.resnet18(stem="mnist"), ArgumentError, "ResNet: needs stem 'imagenet' or 'cifar', got 'mnist'"),
    (
        lambda: models.mlp(activation="step"),
        ArgumentError,
        "mlp: needs activation relu, gelu, silu, tanh, sigmoid, got 'step'",
    ),
    (lambda: models.mlp(hidden=(3, 0)), ArgumentError, "mlp: needs hidden[1] as a positive integer, got 0"),
    (lambda: models.cnn(stages=0), ArgumentError, "cnn: needs stages as a positive integer, got 0"),
    (
        lambda: models.GPT(**TINY)(tensor([[1] * 7])),
        ShapeError,
        "GPT: needs idx [N, T] with N >= 1 and 1 <= T <= 6, got shape (1, 7)",
    ),
    (lambda: models.GPT(**TINY)(tensor(np.ones((0, 3), int))), ShapeError, "GPT: needs idx [N, T] with N >= 1"),
    (lambda: models.GPT(**TINY)(tensor([[1.0]])), DTypeError, "GPT: needs idx of integers, got float32"),
    (lambda: models.GPT(**TINY)(tensor([[11]])), AmpkitError, "embedding: needs "),
]


@pytest.mark.parametrize(("make", "kind", "line"), WRONG, ids=[line for *_, line in WRONG])
def test_a_wrong_argument_or_input_gives_one_clear_line(make, kind, line):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(line)
