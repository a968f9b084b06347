"""What optimizers refuse: one line each, and nothing has changed."""

import numpy as np
import pytest

import ampkit
from ampkit import nn, optim
from ampkit.core.errors import ArgumentError, DTypeError, StateError


def adam():
    p = nn.Parameter(ampkit.ones(3))
    optimizer = optim.Adam([p], lr=0.5)
    p.grad = ampkit.ones(3)
    optimizer.step()
    return optimizer


ONE = [{"params": [0]}]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "needs a dict with 'state' and 'param_groups', got None"),
        ({"state": {}, "param_groups": [{"lr": 1.0}]}, "needs 'param_groups' as dicts with 'params'"),
        ({"state": {}, "param_groups": "x"}, "needs 'param_groups' as dicts with 'params'"),
        ({"state": [1], "param_groups": ONE}, "'state' as a dict"),
        (
            {"state": {0: {"step": float("nan")}}, "param_groups": ONE},
            r"needs the step of parameter 0 \[3\] .*, got nan",
        ),
        ({"state": {0: {"step": "x"}}, "param_groups": ONE}, "as a count from 0, got 'x'"),
        ({"state": {0: {"step": -1}}, "param_groups": ONE}, "as a count from 0, got -1"),
        ({"state": {0: {"exp_avg": np.ones(2)}}, "param_groups": ONE}, r"in the shape of parameter 0 \[3\]"),
        ({"state": {0: {"speed": np.ones(3)}}, "param_groups": ONE}, "needs state exp_avg"),
        ({"state": {}, "param_groups": [{"params": [0], "lr": -1}]}, "needs lr >= 0, got -1"),
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_changes_nothing(state, message):
    optimizer = adam()
    before = optimizer.state_dict()
    with pytest.raises(ArgumentError, match=message):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert {k: v.tolist() for k, v in after["state"][0].items()} == {
        k: v.tolist() for k, v in before["state"][0].items()
    }


@pytest.mark.parametrize(
    ("key", "value"), [("lr", -1), ("lr", "x"), ("weight_decay", -1), ("eps", None), ("betas", (0.9, 1.0))], ids=str
)
def test_options_out_of_range_are_refused_when_they_are_assigned(key, value):
    optimizer = adam()
    group = optimizer.param_groups[0]
    before = group[key]
    with pytest.raises(ArgumentError, match=r"Adam: needs .*, got "):
        group[key] = value
    assert group[key] == before


def test_a_group_keeps_its_parameters_and_what_an_update_reads():
    group = adam().param_groups[0]
    with pytest.raises(StateError, match="got other parameters"):
        group["params"] = []
    with pytest.raises(StateError, match="got one without 'lr'"):
        del group["lr"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.step(3), "Adam.step: needs a closure or nothing, got a int"),
        (lambda o: optim.clip_grad_norm_(3, 1.0), "clip_grad_norm_: needs Tensors, got int"),
        (lambda o: optim.clip_grad_value_([3], 1.0), "clip_grad_value_: needs Tensors, got int"),
    ],
)
def test_arguments_of_another_kind_are_refused(call, message):
    with pytest.raises(DTypeError, match=message):
        call(adam())


def test_a_scaler_s_state_is_a_dict():
    with pytest.raises(ArgumentError, match=r"GradScaler.load_state_dict: needs the dict of state_dict\(\), got a int"):
        ampkit.GradScaler().load_state_dict(3)
