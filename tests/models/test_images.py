"""LeNet-5, ConvMixer, VGG, AlexNet: their layers in order, starting values, that they learn, and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import models, ops, optim, tensor
from ampkit.base import dtypes
from ampkit.base.errors import AmpkitError, ArgumentError, ShapeError
from ampkit.core import random
from ampkit.core.policy import autocast

RNG = np.random.default_rng(0)


def image(*shape):
    return tensor(RNG.standard_normal(shape).astype(np.float32))


def losses(model, x, y, lr=1e-2, steps=8):
    optimizer, found = optim.AdamW(model.parameters(), lr=lr), []
    for _ in range(steps):
        loss = ops.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def small_vgg(**options):
    return models.VGG((1, 1), widths=(4, 8), hidden=16, num_classes=10, **options)


LEARNERS = {
    "lenet5": (lambda: models.lenet5(3, image_size=12), (8, 3, 12, 12)),
    "convmixer": (lambda: models.convmixer(16, 2, 3, 4), (8, 3, 12, 12)),
    "vgg": (lambda: small_vgg(dropout=0.0, batch_norm=True), (8, 3, 12, 12)),
    "alexnet": (lambda: models.alexnet(10, dropout=0.0, hidden=16), (2, 3, 63, 63)),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_few_steps_on_one_batch_lower_the_loss(name):
    random.manual_seed(0)
    make, shape = LEARNERS[name]
    steps, lr = (8, 1e-3) if name == "alexnet" else (20, 1e-2)
    found = losses(make(), image(*shape), tensor(np.arange(shape[0])), lr, steps)
    assert found[-1] < 0.8 * found[0]


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_in_autocast_the_logits_are_low(name, dtype):
    make, shape = LEARNERS[name]
    with autocast(dtype=dtype):
        assert make()(image(*shape)).dtype == dtype


@pytest.mark.cpu
def test_lenet5_is_two_convolutions_two_means_and_three_products():
    model = models.lenet5(2, 4, 12).double()
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    x = RNG.standard_normal((3, 2, 12, 12))

    def conv(x, name, padding):
        x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
        windows = np.lib.stride_tricks.sliding_window_view(x, (5, 5), (2, 3))
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        y = np.tanh(np.einsum("nchwij,ocij->nohw", windows, weight) + bias[:, None, None])
        n, c, h, w = y.shape
        return y.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5))

    y = conv(conv(x, "conv1", 2), "conv2", 0).reshape(3, -1)
    for name in ("fc1", "fc2", "fc3"):
        y = y @ state[f"{name}.weight"].T + state[f"{name}.bias"]
        y = y if name == "fc3" else np.tanh(y)
    np.testing.assert_allclose(model(tensor(x)).detach().numpy(), y, rtol=1e-9, atol=1e-12)


def test_lenet5_takes_mnist_padded_and_the_papers_size_as_it_is():
    assert models.lenet5()(image(1, 1, 28, 28)).shape == (1, 10)
    assert models.lenet5(image_size=32)(image(1, 1, 32, 32)).shape == (1, 10)
    assert models.lenet5().fc1.weight.shape == models.lenet5(image_size=32).fc1.weight.shape == (120, 400)


def test_convmixer_has_the_names_of_its_papers_code():
    names = {".".join(name.split(".")[:-1]) for name in models.convmixer(8, 2, 3).state_dict()}
    layer = ("0.fn.0", "0.fn.2", "1", "3")
    assert names == {"0", "2", *(f"3.{part}" for part in layer), *(f"4.{part}" for part in layer), "7"}
    assert models.convmixer(8, 2, 3).state_dict()["3.0.fn.0.weight"].shape == (8, 1, 3, 3)


def test_convmixer_takes_images_of_any_size():
    model = models.convmixer(8, 1, 3, 4)
    assert model(image(2, 3, 4, 4)).shape == model(image(2, 3, 9, 17)).shape == (2, 10)


@pytest.mark.cpu
def test_a_layer_of_convmixer_adds_its_depthwise_part():
    model, x = models.convmixer(8, 1, 3).double().eval(), tensor(RNG.standard_normal((2, 8, 5, 5)))
    inner, bias = model[3][0].fn, RNG.standard_normal(8)
    inner[2].weight.data, inner[2].bias.data = np.zeros(8), bias
    np.testing.assert_allclose(model[3][0](x).detach().numpy(), x.numpy() + bias[:, None, None], rtol=1e-12)


@pytest.mark.cpu
def test_vgg_starts_kaiming_normal_and_its_products_small():
    model = small_vgg()
    assert model.features[0].weight.array.std() == pytest.approx(math.sqrt(2 / (4 * 9)), rel=0.2)
    assert model.classifier[0].weight.array.std() == pytest.approx(0.01, rel=0.05)
    assert not any(p.array.any() for name, p in model.named_parameters() if name.endswith("bias"))


WRONG = [
    (lambda: models.lenet5(image_size=8), ArgumentError, "LeNet5: needs image_size of at least 12, got 8"),
    (
        lambda: models.lenet5()(image(1, 1, 32, 32)),
        ShapeError,
        "LeNet5: needs images [N, 1, 28, 28], got [1, 1, 32, 32]",
    ),
    (lambda: models.convmixer(kernel_size=4), ArgumentError, "convmixer: needs an odd kernel_size, got 4"),
    (lambda: models.convmixer(depth=0), ArgumentError, "convmixer: needs depth as a positive integer, got 0"),
    (lambda: models.VGG((1, 0)), ArgumentError, "VGG: needs depths[1] as a positive integer, got 0"),
    (lambda: models.VGG((1, 1)), ArgumentError, "VGG: needs as many depths as widths, got 2 and 5"),
    (lambda: models.alexnet(0), ArgumentError, "AlexNet: needs num_classes as a positive integer, got 0"),
    (lambda: small_vgg()(image(1, 4, 8, 8)), AmpkitError, "conv2d: needs "),
    (lambda: models.alexnet(5, hidden=8)(image(1, 3, 32, 32)), AmpkitError, "max_pool2d: needs "),
]


@pytest.mark.parametrize(("make", "kind", "line"), WRONG, ids=[line for *_, line in WRONG])
def test_a_wrong_argument_or_input_gives_one_clear_line(make, kind, line):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(line)
