"""Recorded updates: gradients through the step of an optimizer."""

import copy

import numpy as np
import pytest

import ampkit
from ampkit import optim
from ampkit.base.errors import ArgumentError, DTypeError, StateError
from ampkit.testing import gradcheck

KINDS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"maximize": True},
    "NAdam": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "RAdam": {"weight_decay": 0.1},
    "Adamax": {},
    "Adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.2},
    "Adadelta": {"weight_decay": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "ASGD": {"t0": 1.0},
}
START = [0.3, -0.7, 1.1]


def trained(kind, start, lr, steps=4, **options):
    """The weights after some steps whose losses depend on them, recorded."""
    p = start.clone()
    optimizer = getattr(optim, kind)([p], lr=lr, differentiable=True, **options)
    for _ in range(steps):
        loss = (double([1.0, 3.0, 0.5], False) * ampkit.cos(p)).sum()
        (p.grad,) = ampkit.autograd.grad(loss, [p], create_graph=True)
        optimizer.step()
    return p


def double(values, grad=True):
    return ampkit.tensor(values, dtype=ampkit.float64, requires_grad=grad)


@pytest.mark.parametrize("kind", KINDS)
def test_the_values_are_those_of_plain_steps(kind):
    p = ampkit.nn.Parameter(double(START))
    optimizer = getattr(optim, kind)([p], lr=0.05, **KINDS[kind])
    for _ in range(4):
        optimizer.zero_grad()
        (double([1.0, 3.0, 0.5], False) * ampkit.cos(p)).sum().backward()
        optimizer.step()
    recorded = trained(kind, double(START), 0.05, **KINDS[kind])
    np.testing.assert_allclose(recorded.tolist(), p.tolist(), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_to_the_first_weights_and_to_the_learning_rate(kind):
    def final(start, lr):
        return trained(kind, start, lr, **KINDS[kind])

    assert gradcheck(final, [double(START), double(0.05)])


@pytest.mark.parametrize(("kind", "options"), [
    ("SGD", {"momentum": 0.5}),
    ("SGD", {"weight_decay": 0.1}), ("AdamW", {"weight_decay": 0.1}), ("Adam", {"eps": 0.1}),
])  # fmt: skip
def test_gradients_flow_to_other_hyperparameters(kind, options):
    ((name, value),) = options.items()
    assert gradcheck(lambda x: trained(kind, double(START), 0.05, **{name: x}), [double(value)])


@pytest.mark.parametrize("name", ["momentum", "weight_decay"])
def test_a_hyperparameter_of_zero_has_a_gradient_too(name):
    x = double(0.0)
    trained("SGD", double(START), 0.05, **{name: x}).sum().backward()
    ahead, here = (trained("SGD", double(START), 0.05, **{name: step}).sum().item() for step in (1e-6, 0.0))
    np.testing.assert_allclose(x.grad.item(), (ahead - here) / 1e-6, rtol=1e-4)


def test_gradients_flow_to_betas():
    assert gradcheck(lambda a, b: trained("Adam", double(START), 0.05, betas=(a, b)), [double(0.9), double(0.99)])


def test_groups_have_their_own_learning_rates_and_a_new_one_takes_its_place():
    one, two = (double(START).clone() for _ in range(2))
    rates = [double(0.1), double(0.2)]
    optimizer = optim.SGD([{"params": [one], "lr": rates[0]}, {"params": [two]}], lr=0.5, differentiable=True)
    optimizer.param_groups[1]["lr"] = rates[1]
    assert optimizer.param_groups[1]["lr"] is rates[1]
    one.grad, two.grad = double([1.0] * 3, False), double([2.0] * 3, False)
    optimizer.step()
    (one.sum() + two.sum()).backward()
    assert [rate.grad.item() for rate in rates] == [-3.0, -6.0]
    optimizer.zero_grad()
    assert one.grad is None and two.grad is None


def test_weights_in_16_bits_are_computed_in_float32():
    p = ampkit.tensor(START, dtype=ampkit.bfloat16, requires_grad=True).clone()
    optimizer = optim.Adam([p], lr=0.1, differentiable=True)
    p.grad = ampkit.ones(3, dtype=ampkit.bfloat16)
    optimizer.step()
    assert p.dtype == ampkit.bfloat16 and optimizer.state[p]["exp_avg"].dtype == ampkit.float32


def test_a_state_is_saved_detached_and_loaded():
    p = double(START).clone()
    optimizer = optim.Adam([p], lr=0.1, differentiable=True)
    (p.grad,) = ampkit.autograd.grad((p * p).sum(), [p], create_graph=True)
    optimizer.step()
    saved = optimizer.state_dict()
    assert saved["state"][0]["step"].item() == 1 and not saved["state"][0]["exp_avg"].requires_grad
    other = optim.Adam([double(START).clone()], lr=0.1, differentiable=True)
    other.load_state_dict(saved)
    assert other.state_dict()["state"][0]["exp_avg_sq"].tolist() == saved["state"][0]["exp_avg_sq"].tolist()
    plain = optim.Adam([ampkit.nn.Parameter(double(START))], lr=0.1)
    plain.load_state_dict(saved)
    assert plain.state_dict()["state"][0]["exp_avg"].tolist() == saved["state"][0]["exp_avg"].tolist()


def test_a_copy_steps_like_its_original():
    p = double(START, False)
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9, differentiable=True)
    p.grad = double([1.0] * 3, False)
    optimizer.step()
    twin = copy.deepcopy(optimizer)
    (other,) = twin.param_groups[0]["params"]
    other.grad = p.grad.clone()
    optimizer.step()
    twin.step()
    assert other is not p and other.tolist() == p.tolist()


def test_a_leaf_that_requires_grad_is_refused_before_anything_changes():
    inside, leaf = double(START).clone(), double(START)
    optimizer = optim.SGD([inside, leaf], lr=0.1, differentiable=True)
    inside.grad, leaf.grad = double([1.0] * 3, False), double([1.0] * 3, False)
    with pytest.raises(StateError, match="SGD.step: needs tensors of a graph with differentiable=True, got a leaf"):
        optimizer.step()
    assert inside.tolist() == START


def test_what_does_not_go_together_is_refused():
    p = double(START).clone()
    with pytest.raises(ArgumentError, match="`fused` does not support `differentiable`"):
        optim.Adam([p], fused=True, differentiable=True)
    with pytest.raises(ArgumentError, match="LAMB, parameter group: needs differentiable=False in every"):
        optim.LAMB([{"params": [double(START)], "differentiable": True}])
    with pytest.raises(StateError, match="parameter group: .*got another kind of update"):
        optim.SGD([double(START)]).param_groups[0]["differentiable"] = True
    scaler = ampkit.GradScaler()
    optimizer = optim.SGD([p], lr=0.1, differentiable=True)
    scaler.scale((p * p).sum()).backward()
    with pytest.raises(StateError, match="differentiable=True"):
        scaler.step(optimizer)


def test_a_schedule_sets_learning_rates_that_are_numbers_alone():
    p = double(START).clone()
    optimizer = optim.SGD([p], lr=0.5, differentiable=True)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        p.grad = double([1.0] * 3, False)
        optimizer.step()
        schedule.step()
    np.testing.assert_allclose(p.tolist(), np.array(START) - 0.75)
    optimizer = optim.SGD([double(START).clone()], lr=double(0.5), differentiable=True)
    with pytest.raises(DTypeError, match="StepLR: needs a learning rate that is a number, got a tensor that requires"):
        optim.lr_scheduler.StepLR(optimizer, 1)
