"""Optimizers around optimizers, groups that scripts edit as plain dicts, and steps of one's own; PyTorch's answers."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import ampkit
from ampkit import GradScaler, nn, optim
from ampkit.optim import lr_scheduler


class Wrapper(optim.Optimizer):
    """Holds another optimizer and never calls `super().__init__`, as the wrapper of Accelerate."""

    def __init__(self, inner):
        self.inner = inner

    state = property(lambda self: self.inner.state)
    param_groups = property(
        lambda self: self.inner.param_groups, lambda self, groups: setattr(self.inner, "param_groups", groups)
    )

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)

    def step(self, closure=None):
        return self.inner.step(closure)

    def state_dict(self):
        return self.inner.state_dict()


def parameter(value=2.0):
    return nn.Parameter(ampkit.full((1,), value))


def give(p, value=1.0):
    p.grad = ampkit.full(p.shape, value)


def test_a_wrapper_steps_is_scheduled_and_has_hooks():
    p, seen = parameter(), []
    wrapper = Wrapper(optim.SGD([p], lr=0.5))
    wrapper.register_step_pre_hook(lambda *given: seen.append("pre"))
    schedule = lr_scheduler.StepLR(wrapper, 1, 0.5)
    for _ in range(2):
        give(p)
        wrapper.step()
        schedule.step()
    assert p.tolist() == [1.25] and seen == ["pre", "pre"]
    assert wrapper.param_groups[0]["lr"] == 0.125
    assert wrapper.state_dict()["param_groups"][0]["lr"] == 0.125
    with pytest.raises(AttributeError, match="'Wrapper' object has no attribute 'nothing'"):
        wrapper.nothing  # noqa: B018


@pytest.mark.parametrize("bad", [False, True])
def test_a_scaler_steps_a_wrapper_or_skips_it(bad):
    p = parameter()
    wrapper, scaler = Wrapper(optim.SGD([p], lr=0.5)), GradScaler("cpu", init_scale=4.0)
    schedule = lr_scheduler.StepLR(wrapper, 1, 0.5)
    scaler.scale((p * (float("inf") if bad else 1.0)).sum()).backward()
    scaler.unscale_(wrapper)
    assert scaler.step(wrapper).skipped == bad
    scaler.update()
    schedule.step()
    assert p.tolist() == [2.0 if bad else 1.5]
    assert wrapper.param_groups[0]["lr"] == (0.5 if bad else 0.25)


def test_groups_that_plain_dicts_replace_keep_the_state_of_their_parameters():
    p, q = parameter(), parameter()
    optimizer = optim.SGD([p, q], lr=0.5, momentum=0.5)
    for edit in (
        lambda: setattr(optimizer, "param_groups", [{**group, "lr": 1.0} for group in optimizer.param_groups]),
        lambda: setattr(optimizer, "param_groups", [{"params": [q], "lr": 1.0}, {"params": [p], "lr": 2.0}]),
        lambda: optimizer.param_groups.__setitem__(0, dict(optimizer.param_groups[0])),
    ):
        give(p), give(q)
        optimizer.step()
        edit()
    give(p), give(q)
    optimizer.step()
    # the buffers are 1, 1.5, 1.75, 1.875
    assert q.tolist() == [2 - 0.5 - 1.5 - 1.75 - 1.875]
    assert p.tolist() == [2 - 0.5 - 1.5 - 2 * 1.75 - 2 * 1.875]
    state = optimizer.state_dict()
    assert [group["params"] for group in state["param_groups"]] == [[0], [1]]
    assert state["state"][1]["momentum_buffer"].tolist() == [1.875]


def test_a_group_that_is_appended_and_parameters_that_a_list_gets_are_trained():
    p, q, r, other = (parameter() for _ in range(4))
    optimizer = optim.Adam([p], lr=1.0)
    optimizer.param_groups.append({"params": [q], "lr": 0.5})
    optimizer.param_groups[0]["params"].append(r)
    optimizer.param_groups[0]["params"][0] = other
    for each in (p, q, r, other):
        give(each)
    optimizer.step()
    assert [each.item() for each in (p, q, r, other)] == pytest.approx([2, 1.5, 1, 1], abs=1e-6)
    with pytest.raises(ampkit.ArgumentError, match="each parameter in one group"):
        optimizer.param_groups += [{"params": [q]}]


class SAM(optim.Optimizer):
    """Sharpness-aware minimization (Foret et al. 2021, arXiv:2010.01412) as scripts write it."""

    def __init__(self, params, base, rho=0.5, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    @ampkit.no_grad()
    def climb(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / p.grad.norm()))
        self.zero_grad()

    @ampkit.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()


def test_an_optimizer_that_is_made_of_the_groups_of_another_takes_its_steps():
    p = parameter()
    optimizer = SAM([p], optim.SGD, lr=0.25, momentum=0.5)
    for _ in range(2):
        (p * p).sum().backward()
        optimizer.climb()
        (p * p).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # by hand: gradients at 2 + 0.5 and 0.75 + 0.5, buffers 5 and 5
    assert p.tolist() == [2 - 0.25 * 5 - 0.25 * 5]


class Lookahead(optim.Optimizer):
    """Lookahead (Zhang et al. 2019, arXiv:1907.08610) as scripts write it."""

    def __init__(self, base, k=2, alpha=0.5):
        self.base, self.k, self.alpha, self.count = base, k, alpha, 0
        self.param_groups, self.defaults = base.param_groups, base.defaults
        self.state = {}
        self.slow = [[p.clone().detach() for p in group["params"]] for group in self.param_groups]

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for p, q in zip(group["params"], slow, strict=True):
                    q.data.add_(p.data - q.data, alpha=self.alpha)
                    p.data.copy_(q.data)
        return loss


def test_a_wrapper_that_assigns_groups_and_state_of_its_own_steps():
    p = parameter()
    optimizer = Lookahead(optim.SGD([p], lr=0.5))
    for _ in range(4):
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()
    assert p.tolist() == [1.0]


class Rebinding(optim.Optimizer):
    """A `step` that replaces the data of parameters, and keeps a state."""

    def __init__(self, params, lr=0.5):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                p.data = p.data - group["lr"] * p.grad.data


def test_a_step_that_replaces_data_works_alone_and_with_a_scaler():
    p = parameter()
    optimizer, scaler = Rebinding([p]), GradScaler("cpu", init_scale=4.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert p.tolist() == [0.5] and optimizer.state[p] == {"step": 3}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_of_an_optimizer_whose_groups_were_edited_go_on(duplicate):
    p = parameter()
    optimizer = optim.SGD([p], lr=0.5, momentum=0.5)
    give(p)
    optimizer.step()
    optimizer.param_groups = [{**optimizer.param_groups[0], "lr": 1.0}]
    p.data = p.data.clone()
    twin = duplicate(optimizer)
    (mine,) = twin.param_groups[0]["params"]
    give(mine)
    twin.step()
    assert (mine.tolist(), p.tolist()) == ([0.0], [1.5])


def test_a_disabled_scaler_returns_what_stands_for_the_loss():
    p = nn.Parameter(ampkit.ones(2))
    optimizer, scaler = optim.LBFGS([p]), GradScaler("cpu", enabled=False)

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    result = scaler.step(optimizer, closure)
    assert (float(result), result.item(), f"{result:.1f}", result.skipped) == (2.0, 2.0, "2.0", False)
    assert np.isclose(float(scaler.step(optimizer, closure)), 0, atol=1e-6)
    with pytest.raises(AttributeError, match="'StepResult' object has no attribute 'item'"):
        GradScaler("cpu", enabled=False).step(optim.SGD([p], lr=0.1)).item()


def test_states_that_scripts_move_to_new_parameters_reset_and_store():
    p = nn.Parameter(ampkit.full((2,), 2.0))
    optimizer = optim.SGD([{"params": [p], "name": "points"}], lr=1.0, momentum=0.5)
    give(p)
    optimizer.step()
    group, stored = optimizer.param_groups[0], optimizer.state.get(p)
    del optimizer.state[p]  # as Gaussian splatting adds points
    assert p not in optimizer.state and stored["momentum_buffer"].tolist() == [1, 1]
    more = nn.Parameter(ampkit.cat([p.detach(), ampkit.zeros(1)]))
    stored["momentum_buffer"] = ampkit.cat([stored["momentum_buffer"], ampkit.zeros(1)])
    group["params"][0] = more
    optimizer.state[more] = stored
    give(more)
    optimizer.step()
    assert more.tolist() == [-0.5, -0.5, -1.0] and p.tolist() == [1, 1]
    assert optimizer.state_dict()["state"][0]["momentum_buffer"].tolist() == [1.5, 1.5, 1]
    optimizer.state = {}
    give(more)
    optimizer.step()
    assert more.tolist() == [-1.5, -1.5, -2.0]


NAMES = "SGD Adam AdamW Adagrad Adadelta Adamax ASGD NAdam RAdam RMSprop Rprop Adafactor LAMB Lion LBFGS".split()
KINDS = {name: getattr(optim, name) for name in NAMES if hasattr(optim, name)}


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16])
@pytest.mark.parametrize("name", KINDS)
def test_every_optimizer_steps_the_same_in_memory_that_was_given_to_its_parameters(name, dtype):
    def train(edit):
        ampkit.manual_seed(0)
        model = nn.Linear(4, 3).to(dtype)
        optimizer = KINDS[name](model.parameters(), lr=0.125)

        def closure():
            optimizer.zero_grad()
            loss = model(ampkit.ones(2, 4, dtype=dtype)).float().square().mean()
            loss.backward()
            return loss

        for number in range(4):
            if number == 2:
                edit(model, optimizer)
            optimizer.step(closure)
        return [p.tolist() for p in model.parameters()]

    def clones(model, optimizer):
        for p in model.parameters():
            p.data = p.data.clone()

    def groups(model, optimizer):
        optimizer.param_groups = [dict(group) for group in optimizer.param_groups]

    def masters(model, optimizer):  # of 16-bit parameters, which new memory rounds
        for p in model.parameters():
            p.data.mul_(1)
            p._arena_segment.set_master_weights(p.detach().float().array)

    expected = train(lambda *_: None)
    assert train(groups) == expected
    assert train(clones) == (expected if dtype == ampkit.float32 else train(masters))
