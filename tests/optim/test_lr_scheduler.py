import math

import numpy as np
import pytest

from ampkit import Tensor, optim
from ampkit.amp.grad_scaler import GradScaler
from ampkit.base.errors import ArgumentError, DTypeError, StateError
from ampkit.nn import Parameter
from ampkit.optim import lr_scheduler


def make(lr=0.5, kind=optim.SGD, **options):
    p = Parameter(np.zeros(3, np.float32))
    return p, kind([p], lr=lr, **options)


def advance_schedule(optimizer, scheduler, count):
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(count):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        assert scheduler.get_last_lr() == [rates[-1]]
    return rates


def cosine(low, high, n, length):
    return low + (high - low) * (1 + math.cos(math.pi * n / length)) / 2


FORMS = {
    "step": (lambda o: lr_scheduler.StepLR(o, 3, 0.5), lambda n: 0.5 * 0.5 ** (n // 3)),
    "lambda": (lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n), lambda n: 0.5 * 0.9**n),
    "constant": (lambda o: lr_scheduler.ConstantLR(o, 0.2, 4), lambda n: 0.1 if n < 4 else 0.5),
    "linear": (lambda o: lr_scheduler.LinearLR(o, 0.1, 0.9, 5), lambda n: 0.5 * (0.1 + 0.8 * min(n, 5) / 5)),
    "cosine": (lambda o: lr_scheduler.CosineAnnealingLR(o, 6, 0.01), lambda n: cosine(0.01, 0.5, n, 6)),
    "milestones": (
        lambda o: lr_scheduler.MultiStepLR(o, [7, 3, 3], 0.5),
        lambda n: 0.5 * 0.5 ** (2 * (n >= 3) + (n >= 7)),
    ),
    "exponential": (lambda o: lr_scheduler.ExponentialLR(o, 0.8), lambda n: 0.5 * 0.8**n),
    "polynomial": (lambda o: lr_scheduler.PolynomialLR(o, 6, 2.0), lambda n: 0.5 * (1 - min(n, 6) / 6) ** 2),
    "restarts": (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4), lambda n: cosine(0.0, 0.5, n % 4, 4)),
    "longer restarts": (
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2, 0.1),
        lambda n: cosine(0.1, 0.5, *next((n - s, s + 2) for s in (14, 6, 2, 0) if n >= s)),
    ),
    "products": (
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 1 - 0.1 * n if n < 5 else 1.0),
        lambda n: 0.5 * math.prod(1 - 0.1 * k for k in range(1, min(n, 4) + 1)),
    ),
    "chain": (
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o, 0.2, 4), lr_scheduler.ExponentialLR(o, 0.8)], optimizer=o
        ),
        lambda n: (0.1 if n < 4 else 0.5) * 0.8**n,
    ),
    "one cycle": (
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, 11, pct_start=0.5, cycle_momentum=False),
        lambda n: cosine(1.0, 0.04, n, 4.5) if n <= 4.5 else cosine(4e-6, 1.0, min(n, 10) - 4.5, 5.5),
    ),
    "sequence": (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.StepLR(o, 2, 0.1)], milestones=[4]
        ),
        lambda n: 0.5 * (0.1 + 0.9 * n / 4) if n < 4 else 0.5 * 0.1 ** ((n - 4) // 2),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_schedule_follows_its_closed_form(name):
    build, form = FORMS[name]
    _, optimizer = make()
    rates = advance_schedule(optimizer, build(optimizer), 13)
    assert np.allclose(rates, [form(n) for n in range(14)], rtol=1e-12)


def test_a_long_schedule_outgrows_its_table():
    _, optimizer = make(1.0)
    rates = advance_schedule(optimizer, lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n)), 300)
    assert np.allclose(rates, [1 / (1 + n) for n in range(301)])


def test_a_function_is_never_asked_beyond_the_calls():
    asked = []
    _, optimizer = make()
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda n: asked.append(n) or 1.0)
    advance_schedule(optimizer, scheduler, 5)
    assert max(asked) == 5


def test_a_factor_of_a_product_is_asked_for_once():
    asked = []
    _, optimizer = make()
    advance_schedule(optimizer, lr_scheduler.MultiplicativeLR(optimizer, lambda n: asked.append(n) or 1.0), 5)
    assert asked == [1, 2, 3, 4, 5]


def test_one_cycle_moves_momentum_and_betas_the_opposite_way():
    for kind, options, key in ((optim.SGD, {"momentum": 0.9}, "momentum"), (optim.Adam, {}, "betas")):
        p, optimizer = make(kind=kind, **options)
        scheduler = lr_scheduler.OneCycleLR(optimizer, 1.0, 11, pct_start=0.5, anneal_strategy="linear")
        seen = []
        for _ in range(11):
            value = optimizer.param_groups[0][key]
            seen.append(value if key == "momentum" else value[0])
            p.grad = Tensor(np.ones(3, np.float32))
            optimizer.step()
            scheduler.step()
        down = [0.95 - 0.1 * n / 4.5 for n in range(5)]
        assert np.allclose(seen, [*down, *(0.85 + 0.1 * (n - 4.5) / 5.5 for n in range(5, 11))])
        assert np.isfinite(p.array).all()


def test_three_phases_come_back_to_the_start_before_the_end():
    _, optimizer = make()
    scheduler = lr_scheduler.OneCycleLR(optimizer, 1.0, 10, pct_start=0.4, cycle_momentum=False, three_phase=True)
    rates = advance_schedule(optimizer, scheduler, 9)
    assert np.allclose([rates[0], rates[3], rates[6], rates[9]], [0.04, 1.0, 0.04, 4e-6])


def test_only_real_steps_count():
    p, optimizer = make()
    scheduler, scaler = lr_scheduler.StepLR(optimizer, 1, 0.5), GradScaler(init_scale=4.0)
    for gradient, rate in ((1.0, 0.25), (np.inf, 0.25), (1.0, 0.125), (np.nan, 0.125), (1.0, 0.0625)):
        optimizer.zero_grad()
        scaler.scale((p * Tensor(np.full(3, gradient, np.float32))).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == rate
    assert scheduler.last_epoch == 3


def test_a_scheduler_stepped_before_any_optimizer_step_advances_and_warns_once():
    _, optimizer = make()
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    with pytest.warns(UserWarning, match="StepLR.step: needs optimizer.step"):
        scheduler.step()
    scheduler.step()  # warnings are errors
    assert scheduler.last_epoch == 2
    assert optimizer.param_groups[0]["lr"] == 0.125
    optimizer.step()
    optimizer.step()
    scheduler.step()
    assert scheduler.last_epoch == 3


def test_a_schedule_waits_while_all_steps_since_its_last_one_are_skipped():
    p, optimizer = make()
    scheduler, scaler = lr_scheduler.StepLR(optimizer, 1, 0.5), GradScaler(init_scale=4.0)
    found = []
    for gradients in ((np.inf,), (np.inf, 1.0), (np.nan, np.nan), ()):
        for gradient in gradients:
            optimizer.zero_grad()
            scaler.scale((p * Tensor(np.full(3, gradient, np.float32))).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        found.append(scheduler.last_epoch)
    assert found == [0, 1, 1, 2]


def test_its_state_goes_back_and_continues():
    _, a = make()
    first = lr_scheduler.SequentialLR(a, [lr_scheduler.LinearLR(a), lr_scheduler.StepLR(a, 3)], [4])
    advance_schedule(a, first, 5)
    a.step()  # not followed yet
    state = first.state_dict()
    _, b = make()
    second = lr_scheduler.SequentialLR(b, [lr_scheduler.LinearLR(b), lr_scheduler.StepLR(b, 3)], [4])
    second.load_state_dict(state)
    first.step()
    second.step()
    assert second.last_epoch == first.last_epoch == 6
    assert advance_schedule(b, second, 5)[1:] == advance_schedule(a, first, 5)[1:]


class Warmup:
    def __init__(self, over):
        self.over = over

    def __call__(self, n):
        return min(1.0, (n + 1) / self.over)


@pytest.mark.parametrize("kind", [lr_scheduler.LambdaLR, lr_scheduler.MultiplicativeLR])
def test_the_attributes_of_functions_that_are_objects_are_saved_and_those_of_others_are_not(kind):
    function = lambda n: 0.5  # noqa: E731
    groups = lambda: [{"params": [Parameter(np.zeros(3, np.float32))]} for _ in range(2)]  # noqa: E731
    one, other = [kind(o, [Warmup(n), function]) for n in (4, 7) for o in [optim.SGD(groups(), lr=0.5)]]
    held = one.optimizer, other.optimizer
    for _ in held:
        one.optimizer.step()
        one.step()
    state = one.state_dict()
    assert state["lr_lambdas"] == [{"over": 4}, None]
    other.load_state_dict(state)
    assert other.lr_lambdas[0].over == 4 and other.get_last_lr() == one.get_last_lr()
    for wrong in (5, [None], [None, 3]):
        with pytest.raises(ArgumentError, match="lr_lambdas as 2 dicts or None, got"):
            other.load_state_dict({**state, "lr_lambdas": wrong})
    with pytest.raises(ArgumentError, match="last_epoch"):
        other.load_state_dict({**state, "lr_lambdas": [{"over": 9}, None], "last_epoch": "x"})
    assert other.lr_lambdas[0].over == 4
    other.load_state_dict({name: value for name, value in state.items() if name != "lr_lambdas"})


def test_last_epoch_resumes():
    p = Parameter(np.zeros(3, np.float32))
    optimizer = optim.SGD([{"params": [p], "lr": 0.1, "initial_lr": 0.4}])
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5, last_epoch=2)
    assert scheduler.last_epoch == 3
    assert optimizer.param_groups[0]["lr"] == 0.05
    with pytest.raises(StateError, match="initial_lr"):
        lr_scheduler.StepLR(make()[1], 1, last_epoch=2)


@pytest.mark.parametrize(
    ("build", "rates"),
    [
        (lambda o: [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.MultiStepLR(o, [2, 3])], [1, 0.9, 0.081, 0.00729]),
        (lambda o: [lr_scheduler.LinearLR(o, 0.1, 1, 2), lr_scheduler.StepLR(o, 2, 0.5)], [0.1, 0.55, 0.5, 0.5]),
        (
            lambda o: [lr_scheduler.StepLR(o, 1, 0.1), lr_scheduler.LambdaLR(o, lambda n: 1 - n / 4)],
            [1, 0.75, 0.5, 0.25],
        ),
    ],
)
def test_several_schedules_of_an_optimizer_multiply_its_rate_but_for_those_that_set_it(build, rates):
    p = Parameter(np.ones(2, np.float32))
    optimizer = optim.SGD([p], lr=1.0)
    schedulers = build(optimizer)
    found = [optimizer.param_groups[0]["lr"]]
    for _ in rates[1:]:
        (p * p).sum().backward()
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx(rates)
    assert schedulers[-1].get_last_lr() == found[-1:]


def test_a_step_to_an_epoch_sets_the_position_and_may_be_a_fraction():
    _, optimizer = make()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)
    scheduler.step(0.5)
    assert scheduler.get_last_lr() == pytest.approx([0.5 * (1 + math.cos(math.pi / 4)) / 2])
    steps = lr_scheduler.StepLR(make()[1], 2)
    steps.step(5)
    assert (steps.last_epoch, steps.get_last_lr()) == (5, pytest.approx([0.005]))
    with pytest.raises(ArgumentError, match="StepLR.step: needs an epoch from 0, or none, got -1"):
        steps.step(-1)


def test_a_schedule_of_pytorch_s_kind_defines_get_lr():
    class Halving(lr_scheduler.LRScheduler):
        def get_lr(self):
            return [group["lr"] * (0.5 if self.last_epoch else 1) for group in self.optimizer.param_groups]

    class Own(lr_scheduler.LRScheduler):
        def get_lr(self):
            return [base / (1 + self.last_epoch) for base in self.base_lrs]

        def step(self, epoch=None):
            self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
            for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
                group["lr"] = rate
            self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    p = Parameter(np.ones(2, np.float32))
    optimizer = optim.SGD([p], lr=1.0)
    halving = Halving(optimizer)
    for _ in range(2):
        (p * p).sum().backward()
        optimizer.step()
        halving.step()
    assert (halving.get_last_lr(), halving.last_epoch) == ([0.25], 2)
    other = optim.SGD([p], lr=1.0)
    own = Own(other)
    own.step()
    own.step()
    assert (other.param_groups[0]["lr"], own.last_epoch) == (pytest.approx(1 / 3), 2)
    assert own.get_last_lr() == own._last_lr == [pytest.approx(1 / 3)]
    halving._last_lr = [7.0]
    assert halving.get_last_lr() == [7.0]
    halving.step(2)
    assert halving.get_last_lr() == [0.125]


def test_what_cannot_be_a_schedule_is_refused():
    _, optimizer = make()
    for call in (
        lambda: lr_scheduler.StepLR(optimizer, 0),
        lambda: lr_scheduler.LinearLR(optimizer, 0.0),
        lambda: lr_scheduler.LinearLR(optimizer, 2.0),
        lambda: lr_scheduler.LambdaLR(optimizer, [len, len]),
        lambda: lr_scheduler.OneCycleLR(optimizer, 1.0),
        lambda: lr_scheduler.OneCycleLR(optimizer, 1.0, 10, anneal_strategy="no"),
        lambda: lr_scheduler.SequentialLR(optimizer, [lr_scheduler.StepLR(optimizer, 1)], [3]),
        lambda: lr_scheduler.StepLR(optimizer, 1).load_state_dict({"last_epoch": 3}),
        lambda: lr_scheduler.PolynomialLR(optimizer, 0),
        lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 0),
        lambda: lr_scheduler.ReduceLROnPlateau(optimizer, "mean"),
        lambda: lr_scheduler.ReduceLROnPlateau(optimizer, factor=1.0),
        lambda: lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=[0.1, 0.1]),
        lambda: lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=np.ones(3)),
    ):
        with pytest.raises(ArgumentError):
            call()
    with pytest.raises(DTypeError):
        lr_scheduler.StepLR("optimizer", 1)


PLATEAUS = [
    ({"patience": 1}, [3, 2, 2, 2, 2, 2, 2], [1, 1, 1, 0.1, 0.1, 0.01, 0.01]),
    ({"patience": 0, "factor": 0.5, "cooldown": 1}, [2, 2, 2, 2, 2], [1, 0.5, 0.5, 0.25, 0.25]),
    ({"patience": 0, "mode": "max", "min_lr": 0.05}, [1, 2, 2, 2, 2], [1, 1, 0.1, 0.05, 0.05]),
    ({"patience": 0, "threshold": 0.5, "threshold_mode": "abs"}, [2, 1.6, 1.2, 0.6], [1, 0.1, 0.1, 0.1]),
]


@pytest.mark.parametrize(("options", "values", "rates"), PLATEAUS)
def test_the_rate_falls_on_a_plateau(options, values, rates):
    _, optimizer = make(lr=1.0)
    scheduler, seen = lr_scheduler.ReduceLROnPlateau(optimizer, **options), []
    for value in values:
        scheduler.step(Tensor(np.array(value, np.float32)))
        seen += scheduler.get_last_lr()
    assert np.allclose(seen, rates, rtol=1e-12)


def test_a_plateau_goes_on_from_its_state():
    (_, a), (_, b) = make(), make()
    one, two = lr_scheduler.ReduceLROnPlateau(a, patience=1), lr_scheduler.ReduceLROnPlateau(b, patience=1)
    one.step(1.0)
    one.step(1.0)
    two.load_state_dict(one.state_dict())
    two.step(1.0)
    assert two.get_last_lr() == [0.05]
    with pytest.raises(ArgumentError, match="needs the whole state, got one without min_lrs"):
        two.load_state_dict({"best": 1})
    schedule = lr_scheduler.StepLR(b, 1, 0.5)
    two.step(1.0, epoch=9)
    assert two.last_epoch == 9
    assert schedule.get_last_lr() == [0.05]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda o: lr_scheduler.ChainedScheduler([]), "ChainedScheduler: needs schedulers, got an empty list"),
        (
            lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.CosineAnnealingLR(o, 5, 0.1)]),
            "needs schedulers that are factors of lr, got CosineAnnealingLR",
        ),
        (
            lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, 5)], make()[1]),
            "needs schedulers of one optimizer, got one of another",
        ),
        (lambda o: lr_scheduler.MultiplicativeLR(o, [max, max]), "needs 1 functions, one per parameter group, got 2"),
    ],
)
def test_chains_and_products_that_mean_nothing_are_refused(build, message):
    with pytest.raises(ArgumentError, match=message):
        build(make()[1])


def test_a_chain_goes_on_from_its_state():
    def build():
        _, optimizer = make()
        parts = [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 4), lr_scheduler.StepLR(optimizer, 3, 0.5)]
        return optimizer, lr_scheduler.ChainedScheduler(parts)

    optimizer, whole = build()
    rates = advance_schedule(optimizer, whole, 9)
    optimizer, first = build()
    advance_schedule(optimizer, first, 4)
    again, second = build()
    again.load_state_dict(optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    assert advance_schedule(again, second, 5)[1:] == rates[5:]


def test_a_loaded_schedule_knows_its_learning_rate_before_the_next_step():
    _, optimizer = make()
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    advance_schedule(optimizer, scheduler, 3)
    _, other = make()
    second = lr_scheduler.ExponentialLR(other, 0.5)
    second.load_state_dict(scheduler.state_dict())
    assert second.get_last_lr() == [0.0625]
    assert second.state_dict() == scheduler.state_dict()


def test_a_second_schedule_goes_on_from_the_present_rate():
    p = Parameter(np.ones(2, np.float32))
    optimizer = optim.SGD([p], lr=1.0)
    first = lr_scheduler.ExponentialLR(optimizer, 0.5)
    (p * p).sum().backward()
    optimizer.step()
    first.step()
    del first
    second = lr_scheduler.ExponentialLR(optimizer, 0.1)
    assert second.get_last_lr() == [0.5]


def test_a_part_of_a_chain_has_the_product_up_to_it_and_the_last_part_the_chains():
    _, optimizer = make()
    parts = [lr_scheduler.LinearLR(optimizer, 0.4, total_iters=3), lr_scheduler.MultiStepLR(optimizer, [4, 8], 0.1)]
    chain = lr_scheduler.ChainedScheduler(parts)
    found = []
    for _ in range(5):
        found.append([parts[0].get_last_lr()[0], parts[1].get_last_lr()[0]])
        assert parts[1].get_last_lr() == chain.get_last_lr() == [optimizer.param_groups[0]["lr"]]
        optimizer.step()
        chain.step()
    assert np.allclose(found, np.multiply(0.5, [[0.4, 0.4], [0.6, 0.6], [0.8, 0.8], [1, 1], [1, 0.1]]))


def test_a_part_of_a_sequence_keeps_its_last_rate():
    _, optimizer = make()
    parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 9), lr_scheduler.ExponentialLR(optimizer, 0.5)]
    sequence = lr_scheduler.SequentialLR(optimizer, parts, [2])
    found = []
    for _ in range(4):
        found.append([part._last_lr[0] for part in parts])
        optimizer.step()
        sequence.step()
    assert found == [[0.25, 0.5], [0.25, 0.5], [0.25, 0.5], [0.25, 0.25]]


def test_an_epoch_without_a_real_learning_rate_is_refused():
    _, optimizer = make()
    schedule = lr_scheduler.ExponentialLR(optimizer, -0.5)
    schedule.step(2)
    assert schedule.get_last_lr() == [0.125]
    with pytest.raises(ArgumentError, match=r"ExponentialLR.step: needs an epoch with real learning rates, got 1.5"):
        schedule.step(1.5)


@pytest.mark.parametrize("value", [10**400, -(2**31), math.inf, math.nan])
def test_a_count_beyond_31_bits_is_refused(value):
    _, optimizer = make()
    schedule = lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(optimizer, 1)])
    with pytest.raises(ArgumentError, match=r"ChainedScheduler.last_epoch: needs a number below 2\^31"):
        schedule.last_epoch = value
    assert schedule.last_epoch == 0
