"""Optimizers whose `step` is the user's own."""

import copy
import pickle

import pytest

import ampkit
from ampkit import nn, ops, optim


class Signs(optim.Optimizer):
    """A user's optimizer with a step of its own."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        with ampkit.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * ops.sign(p.grad))


class Twice(optim.SGD):
    """A user's optimizer that adds to the step it inherits."""

    def step(self, closure=None):
        super().step(closure)
        return "done"


@pytest.mark.parametrize("kind", [Signs, Twice])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_of_its_own_moves_the_schedule(kind, scaled):
    p = nn.Parameter(ampkit.tensor([4.0, -4.0]))
    optimizer = kind([p], lr=1.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scaler = ampkit.GradScaler(enabled=scaled)
    for gradient in (1.0, float("inf") if scaled else 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale(ops.sum(p * gradient)).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    real = 2 if scaled else 3
    assert schedule.last_epoch == int(optimizer.steps) == real
    assert p.tolist() == [4 - (2 - 2.0 ** (1 - real)), -4 - (2 - 2.0 ** (1 - real))]


def test_a_wrapper_around_step_runs_in_the_scaler_too():
    p = nn.Parameter(ampkit.tensor([1.0]))
    optimizer, scaler, calls = optim.SGD([p], lr=1.0), ampkit.GradScaler(), []
    inner = optimizer.step

    def step(*args):
        calls.append(p.item())
        return inner(*args)

    optimizer.step = step
    for gradient in (0.25, float("inf")):
        optimizer.zero_grad()
        scaler.scale(ops.sum(p * gradient)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert calls == [1.0]
    assert p.item() == 0.75


class Heavy(optim.Optimizer):
    """A user's optimizer that keeps state as PyTorch's do."""

    def __init__(self, params, lr=0.5):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        with ampkit.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"], state["average"] = 0, ops.zeros_like(p)
                    state["step"] += 1
                    state["average"].mul_(0.5).add_(p.grad)
                    p.sub_(group["lr"] * state["average"])


def loaded(optimizer):
    other = Heavy([nn.Parameter(p.detach().clone()) for p in optimizer.param_groups[0]["params"]])
    other.load_state_dict(optimizer.state_dict())
    return other


@pytest.mark.parametrize("way", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), loaded])
def test_the_state_of_a_step_of_its_own_is_kept_and_goes_on(way):
    optimizer = Heavy([nn.Parameter(ampkit.tensor([4.0, -4.0]))])

    def step(each):
        (p,) = each.param_groups[0]["params"]
        p.grad = ampkit.ones(2)
        each.step()
        return p.tolist(), each.state[p]["step"], each.state[p]["average"].tolist()

    assert step(optimizer) == ([3.5, -4.5], 1, [1.0, 1.0])
    twin = way(optimizer)
    assert step(optimizer) == step(twin) == ([2.75, -5.25], 2, [1.5, 1.5])
    assert step(optimizer) == step(twin)
    assert optim.SGD([nn.Parameter(ampkit.ones(1))]).state[nn.Parameter(ampkit.ones(1))] == {}


class Halves(optim.Optimizer):
    """A user's optimizer without a learning rate."""

    def __init__(self, params):
        super().__init__(params, {"share": 0.5})

    def step(self, closure=None):
        with ampkit.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(group["share"])


def test_an_optimizer_of_ones_own_may_do_without_a_learning_rate():
    p = nn.Parameter(ampkit.tensor([4.0]))
    optimizer = Halves([p])
    optimizer.step()
    assert p.tolist() == [2]
    with pytest.raises(ampkit.base.errors.ArgumentError, match="StepLR: needs an optimizer with a learning rate, got"):
        optim.lr_scheduler.StepLR(optimizer, 1)
