"""Schedules that go up and down, and the one of averaging: their values by hand, and who drives the optimizer."""

import pytest

import ampkit
from ampkit import nn, optim
from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.optim.lr_scheduler import CyclicLR, ExponentialLR
from ampkit.optim.swa_utils import SWALR


def sgd(**options):
    return optim.SGD([nn.Parameter(ampkit.ones(2))], lr=0.5, **options)


def stepped(optimizer, schedule, count):
    rows = []
    for _ in range(count):
        optimizer.param_groups[0]["params"][0].grad = ampkit.ones(2)
        optimizer.step()
        schedule.step()
        rows.append(optimizer.param_groups[0]["lr"])
    return rows


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, [2, 3, 2, 1, 2, 3]),
        ({"step_size_down": 1}, [2, 3, 1, 2, 3, 1]),
        ({"mode": "triangular2"}, [2, 3, 2, 1, 1.5, 2]),
        ({"mode": "exp_range", "gamma": 0.5}, [1.5, 1.5, 1.125, 1, 1 + 2**-5, 1 + 2**-5]),
        ({"scale_fn": lambda x: 1 / x}, [2, 3, 2, 1, 1.5, 2]),
        ({"scale_fn": lambda n: 2.0 - n, "scale_mode": "iterations"}, [2, 1, 0, 1, -2, -7]),
    ],
    ids=["triangular", "asymmetric", "triangular2", "exp_range", "scale_fn of cycles", "scale_fn of iterations"],
)
def test_a_cycle_goes_from_base_lr_to_max_lr_and_back(options, rows):
    optimizer = sgd()
    schedule = CyclicLR(optimizer, 1.0, 3.0, 2, cycle_momentum=False, **options)
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert stepped(optimizer, schedule, 6) == pytest.approx(rows)


def test_a_cycle_moves_momentum_the_opposite_way():
    optimizer = sgd(momentum=0.5)
    schedule = CyclicLR(optimizer, 1.0, 3.0, 2)
    found = []
    for _ in range(4):
        stepped(optimizer, schedule, 1)
        found.append(optimizer.param_groups[0]["momentum"])
    assert found == pytest.approx([0.85, 0.8, 0.85, 0.9])
    adam = optim.Adam([nn.Parameter(ampkit.ones(2))])
    stepped(adam, CyclicLR(adam, 1.0, 3.0, 2), 1)
    assert adam.param_groups[0]["betas"] == pytest.approx((0.85, 0.999))


@pytest.mark.parametrize(
    ("strategy", "rows"), [("linear", [0.4, 0.3, 0.2, 0.1, 0.1]), ("cos", [0.44142, 0.3, 0.15858, 0.1])]
)
def test_swa_goes_from_the_rate_of_the_moment_to_its_own(strategy, rows):
    optimizer = sgd()
    schedule = SWALR(optimizer, 0.1, 4, strategy)
    assert stepped(optimizer, schedule, len(rows)) == pytest.approx(rows, abs=1e-5)
    assert optimizer.param_groups[0]["swa_lr"] == 0.1


def test_swa_takes_over_from_another_schedule_at_its_first_step():
    optimizer = sgd()
    before, after = ExponentialLR(optimizer, 0.5), SWALR(optimizer, 0.0625, 2, "linear")
    assert stepped(optimizer, before, 1) == [0.25]
    assert stepped(optimizer, after, 2) == pytest.approx([0.15625, 0.0625])
    resumed = sgd()
    resumed.load_state_dict(optimizer.state_dict())
    again = SWALR(resumed, 0.5, 9)
    again.load_state_dict(after.state_dict())
    assert stepped(resumed, again, 2) == stepped(optimizer, after, 2) == [0.0625, 0.0625]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda o: CyclicLR(o, 1.0, 2.0, mode="square"), ArgumentError, "needs mode 'triangular'"),
        (lambda o: CyclicLR(o, 1.0, 2.0, 0), ArgumentError, "needs step_size_up as an integer >= 1"),
        (lambda o: CyclicLR(o, [1.0, 2.0], 2.0), ArgumentError, "needs base_lr for 1 parameter groups, got 2"),
        (lambda o: CyclicLR(o, 1.0, 2.0, scale_mode="step"), ArgumentError, "needs scale_mode 'cycle'"),
        (lambda o: SWALR(o, 1.0, -1), ArgumentError, "needs anneal_epochs as an integer >= 0"),
        (lambda o: SWALR(o, 1.0, anneal_strategy="x"), ArgumentError, "needs anneal_strategy 'cos' or 'linear'"),
        (lambda o: SWALR(3, 1.0), DTypeError, "SWALR: needs optimizer as an Optimizer, got 3"),
    ],
)
def test_values_out_of_range_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(sgd())
