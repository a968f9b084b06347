"""Copies of optimizers: deepcopy, pickle and state_dict go on as the original would, bit for bit."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim

KINDS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "lamb": lambda p: optim.LAMB(p, lr=0.01),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.01),
}
WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda item: pickle.loads(pickle.dumps(item))}


def model_in(dtype):
    ampkit.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype=dtype)


def train(model, optimizer, steps, schedule=None):
    for k in range(steps):
        x = ampkit.tensor(np.sin(np.arange(20.0) + k).reshape(4, 5)).to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        ops.sum(ops.square(model(x)).float()).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def bits(model):
    return [p.detach().numpy().tobytes() for p in model.parameters()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float16, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_as_the_original_does(kind, dtype, way):
    model = model_in(dtype)
    optimizer = KINDS[kind](model.named_parameters())
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    train(model, optimizer, 3, schedule)
    before = bits(model)
    twin, twin_optimizer, twin_schedule = WAYS[way]((model, optimizer, schedule))
    assert twin_schedule.optimizer is twin_optimizer
    assert [p._dotted_name for p in twin.parameters()] == [p._dotted_name for p in model.parameters()]
    train(twin, twin_optimizer, 4, twin_schedule)
    assert bits(model) == before  # the original is on its own
    train(model, optimizer, 4, schedule)
    assert bits(twin) == bits(model) != before
    assert twin_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert int(twin_optimizer.steps) == int(optimizer.steps) == 7


def test_a_copy_keeps_the_gradients_of_its_parameters():
    model = model_in(ampkit.float32)
    optimizer = KINDS["sgd"](model.parameters())
    train(model, optimizer, 1)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    for each in (optimizer, twin_optimizer):
        each.step()
    assert bits(twin) == bits(model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_restores_what_16_bits_do_not_show(kind):
    model, other = model_in(ampkit.float16), model_in(ampkit.float16)
    optimizer = KINDS[kind](model.parameters())
    train(model, optimizer, 3)
    resumed = KINDS[kind](other.parameters())
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 5)
    train(other, resumed, 5)
    assert bits(other) == bits(model)


def test_a_master_that_does_not_round_to_the_weights_gives_way_to_them():
    p = nn.Parameter(ampkit.tensor([1.0, 1.0]).half())
    optimizer = optim.SGD([p], lr=0.0)
    optimizer.load_state_dict(
        {"state": {0: {"master": ampkit.tensor([1.0001, 2.0])}}, "param_groups": optimizer.state_dict()["param_groups"]}
    )
    p.grad = ampkit.tensor([0.0, 0.0])
    optimizer.step()
    found = optimizer.state_dict()["state"][0]["master"]
    np.testing.assert_array_equal(found.numpy(), np.array([1.0001, 1.0], np.float32))


def test_weights_swapped_out_and_in_again_keep_their_master():
    p = nn.Parameter(ampkit.tensor([1.0]).half())
    optimizer = optim.SGD([p], lr=2.0**-12)
    before = p.detach().clone()
    for _ in range(4):  # each step is a quarter of what float16 resolves below 1
        p.grad = ampkit.tensor([1.0 / 2])
        optimizer.step()
        with ampkit.no_grad():
            held = p.detach().clone()
            p.copy_(before + 1)
            p.copy_(held)
    assert p.item() == 1 - 2.0**-11


@pytest.mark.parametrize("scaled", [False, True])
def test_an_optimizer_goes_with_the_last_name_for_it_and_its_parameters_are_free_again(scaled):
    model = model_in("float32")
    gc.collect()
    gc.disable()
    try:
        optimizer = optim.Adam(model.parameters())
        schedule = optim.lr_scheduler.StepLR(optimizer, 1)
        scaler = ampkit.GradScaler(enabled=scaled)
        scaler.scale(ops.sum(model(ampkit.ones(4, 5)))).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        gone = weakref.ref(optimizer)
        del optimizer, schedule
        assert gone() is None
    finally:
        gc.enable()
    assert model.to(ampkit.float16)[0].weight.dtype == ampkit.float16


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_schedule_drives_the_copy_of_its_optimizer(way):
    model = model_in("float32")
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    twin, twins_optimizer, twins_schedule = WAYS[way]((model, optimizer, schedule))
    assert twins_optimizer.schedule is twins_schedule
    train(twin, twins_optimizer, 1, twins_schedule)
    assert (optimizer.param_groups[0]["lr"], twins_optimizer.param_groups[0]["lr"]) == (1.0, 0.5)


def test_a_parameter_that_is_listed_again_has_its_first_number_in_the_state_dict():
    optimizer = optim.SGD([{"params": [nn.Parameter(ops.ones(2))]}, {"params": [nn.Parameter(ops.ones(3))]}], lr=0.1)
    optimizer.param_groups.extend(optimizer.param_groups)
    assert [group["params"] for group in optimizer.state_dict()["param_groups"]] == [[0], [1], [0], [1]]


def test_threads_that_cast_a_parameter_first_at_once_use_one_copy(monkeypatch):
    parameter = nn.Parameter(ampkit.tensor([[1.5, -2.0]]))
    optimizer = optim.SGD([parameter], lr=0.1)
    (arena,) = optimizer.param_groups[0].arenas
    calls, products, made = [], [], arena._aligned_zeros

    def product():
        with ampkit.autocast(parameter.device.type, dtype="float16"):
            return ops.linear(ampkit.ones(1, 2), parameter).item()

    def interrupted(dtype):  # by another thread, which casts the parameter meanwhile
        calls.append(dtype)
        if len(calls) == 1:
            products.append(product())
        return made(dtype)

    monkeypatch.setattr(arena, "_aligned_zeros", interrupted)
    products += [product(), product()]
    assert len(calls) == 2
    assert products == [-0.5] * 3
