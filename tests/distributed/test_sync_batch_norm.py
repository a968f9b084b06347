"""SyncBatchNorm on ranks with batches of different sizes equals batch_norm of the whole batch."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import ShapeError
from ampkit.distributed.sync_batch_norm import sync_batch_norm

pytestmark = pytest.mark.no_gpu
RNG = np.random.default_rng(0)
CUTS = {1: [0, 9], 2: [0, 2, 9], 3: [0, 5, 6, 9], 4: [0, 3, 3, 7, 9]}  # of 4 ranks one has no sample


def run(layer, x, upstream, relu=False):
    y = layer(x)
    (y * upstream).sum().backward()
    return y.detach(), x.grad


def on_parts(size, x, upstream, layers):
    cuts = CUTS[size]

    def program(group):
        rank = group.rank()
        part = slice(cuts[rank], cuts[rank + 1])
        layers[rank].process_group = group
        return run(layers[rank], ampkit.tensor(x[part], requires_grad=True), ampkit.tensor(upstream[part]))

    return on_ranks(size, program)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("shape", [(9, 3), (9, 3, 5), (9, 3, 2, 4), (9, 3, 2, 2, 2)])
def test_values_gradients_and_running_statistics_are_those_of_the_whole_batch(size, shape):
    x, upstream = RNG.normal(3.0, 2.0, shape), RNG.normal(size=shape)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    whole, layers = kind(3, dtype="float64"), [nn.SyncBatchNorm(3, dtype="float64") for _ in range(size)]
    for layer in (whole, *layers):
        with ampkit.no_grad():
            layer.weight.copy_(ampkit.tensor([0.5, 1.5, -2.0]))
            layer.bias.copy_(ampkit.tensor([1.0, 0.0, -1.0]))
    y, dx = run(whole, ampkit.tensor(x, requires_grad=True), ampkit.tensor(upstream))
    parts = on_parts(size, x, upstream, layers)
    np.testing.assert_allclose(np.concatenate([each[0].numpy() for each in parts]), y.numpy(), 1e-12, 1e-12)
    np.testing.assert_allclose(np.concatenate([each[1].numpy() for each in parts]), dx.numpy(), 1e-10, 1e-12)
    for name in ("weight", "bias"):
        total = sum(getattr(layer, name).grad.numpy() for layer in layers)
        np.testing.assert_allclose(total, getattr(whole, name).grad.numpy(), 1e-10, err_msg=name)
    for layer in layers:
        np.testing.assert_allclose(layer.running_mean.numpy(), whole.running_mean.numpy(), 1e-12)
        np.testing.assert_allclose(layer.running_var.numpy(), whole.running_var.numpy(), 1e-12)
        assert layer.num_batches_tracked.item() == 1
        assert layer.running_var.numpy().tobytes() == layers[0].running_var.numpy().tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_keep_their_statistics_in_float32(dtype):
    x = ampkit.tensor(RNG.normal(300.0, 1.0, (9, 3, 8)).astype(np.float32)).to(dtype)
    upstream = ampkit.tensor(RNG.normal(size=(9, 3, 8)).astype(np.float32)).to(dtype)
    expected = ops.batch_norm(x.double(), None, None, training=True).numpy()

    def program(group):
        part = slice(0, 4) if group.rank() == 0 else slice(4, 9)
        mine = x[part].detach().requires_grad_()
        y = sync_batch_norm(mine, None, None, None, None, True, 0.1, 1e-5, group)
        (y * upstream[part]).sum().backward()
        assert y.dtype.name == mine.grad.dtype.name == dtype
        return y.detach().double().numpy(), mine.grad

    found = np.concatenate([y for y, _ in on_ranks(2, program)])
    np.testing.assert_allclose(found, expected, atol=1.6e-2 if dtype == "bfloat16" else 2e-3)


def test_second_derivatives_pass_through_the_statistics_of_all_ranks():
    x, upstream = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 2))

    def penalty(layer, x, upstream):
        (dx,) = ampkit.grad((layer(x) ** 2 * upstream).sum(), [x], create_graph=True)
        (dx**2).sum().backward()
        return x.grad.numpy()

    layer = partial(ops.batch_norm, running_mean=None, running_var=None, training=True)
    whole = penalty(layer, ampkit.tensor(x, requires_grad=True), ampkit.tensor(upstream))

    def program(group):
        part = slice(0, 2) if group.rank() == 0 else slice(2, 6)
        layer = lambda x: sync_batch_norm(x, None, None, None, None, True, 0.1, 1e-5, group)  # noqa: E731
        return penalty(layer, ampkit.tensor(x[part], requires_grad=True), ampkit.tensor(upstream[part]))

    np.testing.assert_allclose(np.concatenate(on_ranks(2, program)), whole, 1e-8)


def test_one_value_per_channel_on_all_ranks_together_is_refused():
    def program(group):
        with pytest.raises(ShapeError, match="on all ranks together, got 1"):
            nn.SyncBatchNorm(2, process_group=group)(ampkit.ones(1 - group.rank(), 2))

    on_ranks(2, program)


def test_conversion_keeps_tensors_modes_and_everything_else():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, eps=0.1, momentum=None), nn.ReLU(), nn.BatchNorm1d(4))
    model[1].eval()
    tensors = dict(model.state_dict())
    ids = {name: id(parameter) for name, parameter in model.named_parameters()}
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert [type(layer).__name__ for layer in model] == ["Conv2d", "SyncBatchNorm", "ReLU", "SyncBatchNorm"]
    assert (model[1].eps, model[1].momentum, model[1].training, model[3].training) == (0.1, None, False, True)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == ids
    assert list(model.state_dict()) == list(tensors)
    alone = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3))
    x = ampkit.randn(4, 3, 2, 2)
    assert (alone(x) == nn.BatchNorm2d(3)(x)).all().item()
