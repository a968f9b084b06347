import numpy as np
import pytest

from ampkit import Tensor, optim
from ampkit.base.errors import ArgumentError, DTypeError, StateError
from ampkit.nn import Parameter

SHAPES = [(7, 5), (5,), (300, 301), ()]


def formula(p, gradients, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False):
    """SGD in float64; None is a step in which the parameter took no part."""
    p, buffer = p.astype(np.float64), None
    for g in gradients:
        if g is None:
            continue
        d = (-1 if maximize else 1) * g.astype(np.float64) + weight_decay * p
        if momentum:
            buffer = d if buffer is None else momentum * buffer + (1 - dampening) * d
            d = d + momentum * buffer if nesterov else buffer
        p = p - lr * d
    return p


def series(rng, shape, count, absent):
    return [
        None if absent and k % 3 == 1 else (rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 1)).astype(np.float32)
        for k in range(count)
    ]


def train(optimizer, parameters, gradients):
    for row in zip(*gradients, strict=True):
        optimizer.zero_grad()
        for p, g in zip(parameters, row, strict=True):
            if g is not None:
                p.grad = Tensor(g.astype(p._arena_segment.gradient.dtype))
        optimizer.step()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
        {"momentum": 0.9, "nesterov": True, "maximize": True},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
        {"maximize": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_follows_its_formula(options, dtype):
    rng = np.random.default_rng(0)
    parameters = [Parameter(rng.standard_normal(s).astype(dtype)) for s in SHAPES]
    gradients = [series(rng, s, 9, absent=i == 1) for i, s in enumerate(SHAPES)]
    wanted = [formula(p.array, g, 0.1, **options) for p, g in zip(parameters, gradients, strict=True)]
    train(optim.SGD(parameters, lr=0.1, **options), parameters, gradients)
    for p, want in zip(parameters, wanted, strict=True):
        assert np.allclose(p.array, want, rtol=0, atol=(1e-6 if dtype is np.float32 else 1e-14) * np.abs(want).max())


def test_lr_reads_as_a_float_and_writes_to_the_device():
    p = Parameter(np.zeros(2, np.float32))
    optimizer = optim.SGD([p], lr=0.5)
    group = optimizer.param_groups[0]
    buffer = group.device["lr"]
    group["lr"] = 0.25
    assert group["lr"] == 0.25
    assert type(group["lr"]) is float
    assert group.device["lr"] is buffer
    p.grad = Tensor(np.ones(2, np.float32))
    optimizer.step()
    assert np.array_equal(p.array, [-0.25, -0.25])
    assert dict(group)["lr"] == 0.25
    assert "lr" in group
    assert group.get("nothing") is None


def test_step_returns_what_the_closure_returned():
    p = Parameter(np.zeros(2, np.float32))
    optimizer = optim.SGD([p], lr=1.0)

    def closure():
        p.grad = Tensor(np.ones(2, np.float32))
        return "loss"

    assert optimizer.step(closure) == "loss"
    assert np.array_equal(p.array, [-1, -1])


def test_zero_grad_can_leave_zeros_that_take_part_in_the_step():
    p = Parameter(np.ones(2, np.float32))
    optimizer = optim.SGD([p], lr=1.0, weight_decay=0.5)
    p.grad = Tensor(np.ones(2, np.float32))
    optimizer.zero_grad(set_to_none=False)
    assert np.array_equal(p.grad.array, [0, 0])
    optimizer.step()
    assert np.array_equal(p.array, [0.5, 0.5])
    optimizer.zero_grad()
    assert p.grad is None


def test_a_state_dict_has_pytorchs_layout_and_goes_back():
    def make():
        return [Parameter(np.full(3, i, np.float32)) for i in range(2)]

    ps, qs = make(), make()
    a = optim.SGD([{"params": [ps[0]]}, {"params": [ps[1]], "lr": 0.5}], lr=0.1, momentum=0.9)
    b = optim.SGD([{"params": [qs[0]]}, {"params": [qs[1]]}], lr=0.3)
    ps[1].grad = Tensor(np.full(3, 2.0, np.float32))
    a.step()
    state = a.state_dict()
    assert list(state["state"]) == [1]
    assert list(state["state"][1]) == ["momentum_buffer"]
    assert state["param_groups"][1]["params"] == [1]
    assert state["param_groups"][1]["lr"] == 0.5
    a.step()
    assert np.array_equal(state["state"][1]["momentum_buffer"].array, np.full(3, 2.0))
    b.load_state_dict(state)
    assert b.param_groups[1]["lr"] == 0.5
    assert b.param_groups[0]["momentum"] == 0.9
    assert np.array_equal(b.state[qs[1]]["momentum_buffer"].array, np.full(3, 2.0))
    assert qs[0] not in b.state


def test_a_state_dict_that_does_not_fit_changes_nothing():
    p = Parameter(np.zeros(3, np.float32))
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9)
    good = optimizer.state_dict()
    for bad in (
        {"state": {}},
        {**good, "param_groups": good["param_groups"] * 2},
        {
            **good,
            "state": {0: {"momentum_buffer": np.zeros(4)}},
            "param_groups": [{**good["param_groups"][0], "lr": 9.0}],
        },
        {**good, "param_groups": [{**good["param_groups"][0], "lr": -1.0}]},
    ):
        with pytest.raises(ArgumentError):
            optimizer.load_state_dict(bad)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    "options",
    [{"lr": -1}, {"lr": float("nan")}, {"lr": True}, {"momentum": -0.1}, {"weight_decay": -1}, {"nesterov": True}],
    ids=str,
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ArgumentError, match="SGD"):
        optim.SGD([Parameter(np.zeros(2, np.float32))], **options)


def test_a_bad_learning_rate_is_refused_later_too():
    optimizer = optim.SGD([Parameter(np.zeros(2, np.float32))], lr=0.1)
    group = optimizer.param_groups[0]
    with pytest.raises(ArgumentError):
        group["lr"] = float("nan")
    assert group["lr"] == 0.1


def test_parameters_of_the_wrong_kind_are_refused():
    p = Parameter(np.zeros(2, np.float32))
    with pytest.raises(ArgumentError, match="empty list"):
        optim.SGD([])
    with pytest.raises(DTypeError, match=r"model.parameters\(\)"):
        optim.SGD(p)
    with pytest.raises(DTypeError, match="Parameters, or leaves of floats, got a Tensor"):
        optim.SGD([Tensor(np.zeros(2, np.int64))])
    with pytest.raises(DTypeError, match="floating-point"):
        optim.SGD([Parameter(np.zeros(2, np.int64), requires_grad=False)])
    with pytest.raises(ArgumentError, match="in two"):
        optim.SGD([{"params": [p]}, {"params": [p]}])
    assert p._arena_segment is None


def test_named_parameters_give_their_names():
    p = Parameter(np.zeros(2, np.float32))
    optim.SGD([("head.bias", p)])
    assert p._dotted_name == "head.bias"


def test_stepping_on_scaled_gradients_raises():
    p = Parameter(np.zeros(2, np.float32))
    optimizer = optim.SGD([p])
    p.accumulate(np.ones(2, np.float32), tag=object())
    with pytest.raises(StateError, match=r"1 of 1 still scaled.*\nhelp: call scaler.step"):
        optimizer.step()
