"""Hooks of optimizers: when they run, what they change, and that a scaler's skipped steps run none."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import DTypeError
from ampkit.optim.optimizer_hooks import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def made(kind=optim.SGD, **options):
    p = nn.Parameter(ampkit.tensor([4.0]))
    optimizer = kind([p], lr=1.0, **options)
    p.grad = ampkit.tensor([1.0])
    return p, optimizer


class Own(optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [optim.SGD, Own])
def test_hooks_run_once_around_a_step_those_of_all_optimizers_outside(kind):
    p, optimizer = made(kind)
    calls = []
    note = lambda name: lambda o, args, kwargs: calls.append((name, o is args[0] is optimizer, p.item()))  # noqa: E731
    handles = [
        optimizer.register_step_pre_hook(note("pre")),
        register_optimizer_step_pre_hook(note("all pre")),
        register_optimizer_step_post_hook(note("all post")),
        optimizer.register_step_post_hook(note("post")),
    ]
    optimizer.step()
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert calls == [("all pre", True, 4.0), ("pre", True, 4.0), ("post", True, 3.0), ("all post", True, 3.0)]
    assert p.item() == 2.0 and int(optimizer.steps) == 2


def test_a_hook_before_a_step_replaces_its_arguments():
    p, optimizer = made()
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, lambda: ampkit.tensor(7.0)), {}))
    assert optimizer.step().item() == 7.0
    optimizer.register_step_pre_hook(lambda o, args, kwargs: 3)
    with pytest.raises(DTypeError, match="SGD.step: needs None or .args, kwargs. from a hook"):
        optimizer.step()
    assert p.item() == 3.0


def test_a_scaler_runs_them_for_the_steps_that_it_does_not_skip():
    p, optimizer = made()
    calls, scaler = [], ampkit.GradScaler()
    optimizer.register_step_post_hook(lambda *given: calls.append(p.item()))
    for gradient in (1.0, np.inf, 0.5):
        optimizer.zero_grad()
        scaler.scale(ops.sum(p * gradient)).backward()
        assert scaler.step(optimizer).skipped == (gradient == np.inf)
        scaler.update()
    assert calls == [3.0, 2.5]


def test_hooks_of_states_change_what_is_saved_and_loaded():
    _, optimizer = made(momentum=0.5)
    calls = []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("before"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: {k: v for k, v in state.items() if k != "extra"})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: calls.append("extra" in state), prepend=True)
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append(o.param_groups[0]["lr"]))
    state = optimizer.state_dict()
    assert state["extra"] == 1
    state["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(state)
    assert calls == ["before", True, 0.25] and state["extra"] == 1


def test_values_under_other_keys_than_parameters_stay_in_the_state_and_go_along():
    _, optimizer = made(momentum=0.5)
    optimizer.state["seen"] = [3]
    optimizer.step()
    optimizer.state["seen"].append(4)
    state = optimizer.state_dict()
    assert state["state"]["seen"] == [3, 4] and set(state["state"]) == {0, "seen"}
    for twin in (made(momentum=0.5)[1], copy.deepcopy(optimizer)):
        twin.load_state_dict(state)
        twin.state["seen"].append(5)
        assert twin.state["seen"] == [3, 4, 5] and optimizer.state["seen"] == [3, 4]
        del twin.state["seen"]
        assert twin.state["seen"] == {} and "seen" not in twin.state_dict()["state"]


def test_a_copy_has_no_hooks_and_one_must_be_callable():
    _, optimizer = made()
    optimizer.register_step_pre_hook(lambda *given: pytest.fail("called"))
    twin = copy.deepcopy(optimizer)
    twin.step()
    for register in (optimizer.register_step_post_hook, register_optimizer_step_pre_hook):
        with pytest.raises(DTypeError, match="hook: needs (a callable, got a int|hook as a function, got 3)"):
            register(3)


def test_a_copy_has_the_state_whatever_hooks_make_of_it():
    _, optimizer = made(optim.Adam)
    optimizer.step()
    optimizer.register_state_dict_post_hook(lambda o, state: "another")
    assert optimizer.state_dict() == "another"
    assert copy.deepcopy(optimizer)._snapshots()[0]["step"] == 1
