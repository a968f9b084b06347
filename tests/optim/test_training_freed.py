"""What a training makes is freed as soon as the program drops it, without Python's collector."""

from __future__ import annotations

import copy
import weakref
from functools import partial
from typing import Any

import garbage
import numpy as np
import pytest

import ampkit
from ampkit import nn, optim
from ampkit.optim import lr_scheduler, swa_utils

KINDS = {k: v for k, v in vars(optim).items() if isinstance(v, type) and issubclass(v, optim.Optimizer)}
BASES = {"Optimizer", "Elementwise"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "ConstantLR": {}, "LinearLR": {}, "PolynomialLR": {}, "ExponentialLR": {"gamma": 0.9}, "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2]}, "CosineAnnealingLR": {"T_max": 5}, "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.2}, "OneCycleLR": {"max_lr": 0.1, "total_steps": 10},
    "WarmupStableDecayLR": {"num_warmup_steps": 1, "num_stable_steps": 1, "num_decay_steps": 2},
    "LambdaLR": {"lr_lambda": lambda n: 0.9**n}, "MultiplicativeLR": {"lr_lambda": lambda n: 0.9},
}  # fmt: skip
COMBINED = {
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o), lr_scheduler.StepLR(o, 2)]),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), lr_scheduler.StepLR(o, 2)], [2]),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.05),
}


def new_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))


def loss_of(model: nn.Module) -> ampkit.Tensor:
    with ampkit.autocast(dtype=ampkit.float16):
        return model(ampkit.ones(3, 4)).float().square().mean()


def step(model: nn.Module, optimizer: optim.Optimizer, scaler: ampkit.GradScaler | None = None) -> None:
    scaler = ampkit.GradScaler() if scaler is None else scaler
    scaler.scale(loss_of(model)).backward()
    scaler.unscale_(optimizer)
    optim.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def use(kind: type[Any]) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(4, 2, bias=False)) if kind is optim.Muon else new_model()
    groups = [{"params": model.parameters(), "use_muon": False}] if kind is optim.MuonWithAuxAdam else None
    optimizer = kind(groups or model.parameters())
    if optimizer.needs_closure:
        optimizer.step(lambda: backward(model, optimizer))
    else:
        handle = optimizer.register_step_pre_hook(lambda *args: None)
        step(model, optimizer)
        handle.remove()
        optimizer.register_step_post_hook(lambda *args: None)
        optimizer.add_param_group({"params": [nn.Parameter(ampkit.ones(2, 2))], "use_muon": True})
    optimizer.load_state_dict(optimizer.state_dict())
    copy.deepcopy((model, optimizer))
    assert repr(optimizer) and optimizer.state is not None


def backward(model: nn.Module, optimizer: optim.Optimizer) -> ampkit.Tensor:
    optimizer.zero_grad()
    loss = model(ampkit.ones(3, 4)).square().mean()
    loss.backward()
    return loss


def schedule(make: Any) -> None:
    model = new_model()
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    made = make(optimizer)
    for _ in range(3):
        step(model, optimizer)
        made.step(*([1.0] if isinstance(made, lr_scheduler.ReduceLROnPlateau) else []))
    made.load_state_dict(made.state_dict())
    copy.deepcopy(made)
    assert made.get_last_lr()


def average() -> None:
    model = new_model()
    optimizer, averaged, scaler = optim.AdamW(model.parameters()), swa_utils.AveragedModel(model), ampkit.GradScaler()
    for _ in range(2):
        step(model, optimizer, scaler)
        averaged.update_parameters(model)
    averaged.load_state_dict(averaged.state_dict())
    swa_utils.update_bn([ampkit.ones(3, 4)], averaged)


def test_every_optimizer_is_freed_with_its_model():
    kinds = {name: kind for name, kind in KINDS.items() if name not in BASES}
    assert len(kinds) >= 15
    assert not garbage.left_behind({name: partial(use, kind) for name, kind in kinds.items()})


def test_every_schedule_and_average_is_freed():
    makers = {name: partial(getattr(lr_scheduler, name), **options) for name, options in ARGUMENTS.items()} | COMBINED
    kinds = {name for name, kind in vars(lr_scheduler).items() if isinstance(kind, type)}
    assert kinds - {"LRScheduler", "Optimizer"} <= makers.keys()
    works: dict[str, Any] = {name: partial(schedule, make) for name, make in makers.items()}
    assert not garbage.left_behind(works | {"AveragedModel": average})


@pytest.mark.usefixtures("no_collector")
def test_an_optimizer_holds_its_parameters_and_nothing_holds_an_optimizer():
    p = nn.Parameter(ampkit.ones(3))
    optimizer = optim.AdamW([p])
    scaler = ampkit.GradScaler()
    held = [weakref.ref(p), weakref.ref(optimizer), weakref.ref(optimizer.param_groups[0].arenas[0])]
    scaler.scale((p * 2).sum()).backward()
    scaler.step(optimizer)  # and no update
    del p
    assert held[0]() is not None
    del optimizer
    assert [reference() for reference in held] == [None] * 3
    held = [weakref.ref(scaler)]
    del scaler
    assert held[0]() is None


@pytest.mark.usefixtures("no_collector")
def test_a_step_of_an_optimizer_that_is_dropped_before_the_update_counts():
    scaler, p = ampkit.GradScaler(init_scale=4.0), nn.Parameter(ampkit.ones(3))
    optimizer = optim.SGD([p], 0.1)
    scaler.scale((p * float("inf")).sum()).backward()
    scaler.step(optimizer)
    del optimizer
    scaler.update()
    assert scaler.get_scale() == 2.0


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16], ids=str)
def test_a_parameter_whose_optimizer_is_gone_is_as_it_was_before_it_had_one(dtype):
    p = nn.Parameter(ampkit.ones(3, dtype=dtype))
    first = optim.SGD([p], 0.5)
    (p * 2).sum().backward()
    first.step()
    gradient, moment = p.grad, weakref.ref(first)
    del first
    assert moment() is None
    assert p._arena_segment is None
    assert p.tolist() == [0, 0, 0]
    (p * 2).sum().backward()
    assert p.grad is gradient and gradient.tolist() == [4, 4, 4]
    p.grad = None
    (p.float() * 3).sum().backward()
    assert (p.grad.tolist(), gradient.tolist()) == ([3, 3, 3], [4, 4, 4])
    second = optim.SGD([p], 0.5)
    second.step()
    assert np.array_equal(p.detach().float().numpy(), [-1.5, -1.5, -1.5])
    del second
    nn.ParameterList([p]).double()
