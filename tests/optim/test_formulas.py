"""Optimizers beyond SGD and Adam: their formulas in float64, states, skipped steps, 16-bit parameters."""

import copy

import numpy as np
import pytest
from optimizer_cases import CASES, adafactor

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError
from ampkit.base.registry import OPTIMIZERS
from ampkit.core.dispatch import reference_only

SHAPES = [(7, 5), (5,), (2, 3, 4), (), (260, 270)]


VARIANTS = [(case.kind, case.formula, options) for case in CASES if case.formula for options in case.options]
NAMES = [f"{kind.__name__}-{options}" for kind, _, options in VARIANTS]
KINDS = [(case.kind, case.formula, case.options[-1]) for case in CASES]
STATES = {case.kind.__name__: case.state for case in CASES}
DECOUPLED = [variant for variant in VARIANTS if variant[2].get("decoupled_weight_decay")]


def test_every_optimizer_of_recipes_has_a_case():
    others = {"sgd", "adam", "adamw", "muon", "soap"}  # with tests in files of their own
    assert set(OPTIMIZERS) == {name.lower() for name in STATES} | others


def values(tensor):
    return tensor.detach().cpu().numpy().copy()


def drawn(dtype=np.float32, shapes=SHAPES):
    rng = np.random.default_rng(0)
    return [nn.Parameter(ampkit.tensor(rng.standard_normal(s).astype(dtype))) for s in shapes], rng


def give(parameters, row):
    for p, g in zip(parameters, row, strict=True):
        p.grad = None if g is None else ampkit.tensor(np.asarray(g, values(p).dtype), device=p.device)


def rows_of(rng, count, shapes=SHAPES):
    # The second parameter takes no part in every third step.
    sizes = 10.0 ** rng.uniform(-2, 1, (count, len(shapes)))
    return [
        [None if i == 1 and k % 3 == 1 else rng.standard_normal(s) * sizes[k, i] for i, s in enumerate(shapes)]
        for k in range(count)
    ]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kind", "formula", "options"), VARIANTS, ids=NAMES)
def test_it_follows_its_formula(kind, formula, options, dtype, maximize):
    parameters, rng = drawn(dtype)
    wanted = [values(p).astype(np.float64) for p in parameters]
    states, counts = [{} for _ in SHAPES], [0] * len(SHAPES)
    extra = {"spacing": float(np.finfo(dtype).eps)} if formula is adafactor else {}
    optimizer = kind(parameters, **options, maximize=maximize)
    for row in rows_of(rng, 6):
        row = [None if g is None else g.astype(dtype) for g in row]
        give(parameters, row)
        optimizer.step()
        for i, g in enumerate(row):
            if g is not None:
                counts[i] += 1
                g = (-1 if maximize else 1) * g.astype(np.float64)
                wanted[i] = formula(wanted[i], states[i], g, counts[i], **options, **extra)
    for p, want in zip(parameters, wanted, strict=True):
        atol = (2e-6 if dtype is np.float32 else 1e-13) * max(1.0, np.abs(want).max())
        assert np.allclose(values(p), want, rtol=0, atol=atol)
    for p, state in zip(parameters, states, strict=True):
        for name, want in state.items():
            found = values(optimizer.state[p][name])
            assert found.shape == np.shape(want)
            atol = (1e-5 if dtype is np.float32 else 1e-13) * np.abs(want).max()
            assert np.allclose(found, want, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float16, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "formula", "options"), KINDS, ids=STATES)
def test_its_state_has_pytorchs_names_and_goes_on_bit_for_bit(kind, formula, options, dtype):
    rows = [row[:2] for row in rows_of(np.random.default_rng(1), 6)]
    first, second = ([p.to(dtype).detach() for p in drawn()[0][:2]] for _ in range(2))
    first, second = ([nn.Parameter(p) for p in ps] for ps in (first, second))
    one = kind(first, **options)
    for row in rows[:3]:
        grad(first, row)
        one.step()
    state = one.state_dict()
    master = [] if dtype == ampkit.float32 else ["master"]
    assert sorted(state["state"][0]) == sorted(STATES[kind.__name__] + master)
    two = kind(second, lr=0.7)
    for p, q in zip(first, second, strict=True):
        q.data = p.detach()
    two.load_state_dict(state)
    for row in rows[3:]:
        for parameters, optimizer in ((first, one), (second, two)):
            grad(parameters, row)
            optimizer.step()
    assert [values(p).tobytes() for p in first] == [values(p).tobytes() for p in second]


def grad(parameters, row):
    for p, g in zip(parameters, row, strict=True):
        p.grad = None
        if g is not None:
            ops.sum(p.float() * ampkit.tensor(np.float32(g), device=p.device)).backward()


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float16], ids=str)
@pytest.mark.parametrize(("kind", "formula", "options"), [*KINDS, *DECOUPLED])
def test_a_skipped_step_changes_nothing(kind, formula, options, dtype):
    parameters = [nn.Parameter(p.to(dtype).detach()) for p in drawn()[0][:3]]
    optimizer, scaler = kind(parameters, **options), ampkit.GradScaler(init_scale=8.0, growth_interval=100)

    def snapshot():
        state = optimizer.state_dict()["state"]
        entries = [values(v).tobytes() for entry in state.values() for v in entry.values()]
        return entries, [values(p).tobytes() for p in parameters]

    def step(size):
        optimizer.zero_grad()
        scaler.scale(sum(ops.sum(p.float() * size) for p in parameters)).backward()
        skipped = scaler.step(optimizer).skipped
        scaler.update()
        return skipped

    fresh = snapshot()
    assert step(float("inf"))
    assert snapshot() == fresh
    assert not step(0.5)
    moved = snapshot()
    assert moved != fresh
    assert step(float("nan"))
    assert snapshot() == moved
    assert not step(0.5)
    assert snapshot() != moved


@pytest.mark.parametrize(("kind", "formula", "options"), KINDS, ids=STATES)
def test_a_skipped_step_of_the_reference_changes_nothing_either(kind, formula, options):
    with reference_only():
        test_a_skipped_step_changes_nothing(kind, formula, options, ampkit.float32)


@pytest.mark.parametrize(("kind", "formula", "options"), KINDS, ids=STATES)
def test_a_16_bit_parameter_is_the_rounding_of_its_float32_master(kind, formula, options):
    wide = nn.Parameter(ampkit.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)).half().float())
    low = nn.Parameter(wide.detach().half())
    for p in (wide, low):
        optimizer = kind([p], **options)
        for k in range(4):
            grad([p], [np.cos(np.arange(12.0) + k).reshape(3, 4)])
            optimizer.step()
    assert np.array_equal(values(optimizer.state[low]["master"]), values(wide))
    assert np.array_equal(values(low), values(wide).astype(np.float16))


@pytest.mark.parametrize(("kind", "formula", "options"), KINDS, ids=STATES)
def test_the_16_bit_copy_of_a_weight_is_rewritten(kind, formula, options):
    ampkit.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = kind(layer.parameters(), **options)
    x = ampkit.ones(2, 4)
    for _ in range(2):
        with ampkit.autocast(dtype=ampkit.bfloat16):
            loss = ops.sum(layer(x).float())
        loss.backward()
        optimizer.step()
    with ampkit.autocast(dtype=ampkit.bfloat16):
        cached = layer(x)
        fresh = ops.linear(x.bfloat16(), layer.weight.detach().clone().bfloat16(), layer.bias.detach().clone())
    assert cached.tolist() == fresh.tolist()


@pytest.mark.parametrize(("kind", "formula", "options"), KINDS, ids=STATES)
def test_a_second_group_has_options_of_its_own(kind, formula, options):
    parameters = drawn()[0][:2]
    before = [values(p) for p in parameters]
    optimizer = kind([parameters[0]], **options)
    rest = {"step_sizes": (0.0, 1.0)} if kind is optim.Rprop else {}  # whose lr is only where it begins
    optimizer.add_param_group({"params": [parameters[1]], "lr": 0.0, **rest})
    give(parameters, [np.ones(SHAPES[0]), np.ones(SHAPES[1])])
    optimizer.step()
    assert not np.array_equal(values(parameters[0]), before[0])
    assert np.array_equal(values(parameters[1]), before[1])
    assert [group["lr"] for group in optimizer.param_groups][1] == 0.0


@pytest.mark.parametrize(("kind", "formula", "options"), KINDS, ids=STATES)
def test_a_schedule_moves_its_learning_rate(kind, formula, options):
    p = nn.Parameter(ampkit.ones(3, 2))
    optimizer = kind([p], **{**options, "lr": 0.5})
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(2):
        give([p], [np.ones((3, 2))])
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (optim.Adagrad, {"lr_decay": -1}, "Adagrad: needs lr_decay >= 0, got -1"),
        (optim.Adagrad, {"initial_accumulator_value": -1}, "Adagrad: needs initial_accumulator_value >= 0"),
        (optim.RMSprop, {"alpha": -0.1}, "RMSprop: needs alpha >= 0"),
        (optim.RMSprop, {"momentum": "x"}, "RMSprop: needs momentum >= 0, got 'x'"),
        (optim.Lion, {"betas": (0.9, 1.0)}, "Lion: needs two betas in"),
        (optim.Lion, {"lr": -1}, "Lion: needs lr >= 0, got -1"),
        (optim.LAMB, {"betas": 0.9}, "LAMB: needs two betas in"),
        (optim.LAMB, {"weight_decay": float("nan")}, "LAMB: needs weight_decay >= 0, got nan"),
        (optim.Adamax, {"betas": (0.9,)}, "Adamax: needs two betas in"),
        (optim.RAdam, {"betas": (0.9, 2)}, "RAdam: needs two betas in"),
        (optim.Adafactor, {"eps": 1e-8}, "Adafactor: needs two eps"),
        (optim.Adafactor, {"eps": (None, -1.0)}, "Adafactor, eps: needs each >= 0, got -1.0"),
        (optim.Adafactor, {"d": 0.5}, "Adafactor: needs d >= 1, got 0.5"),
        (optim.Adafactor, {"beta2_decay": 0.8}, "Adafactor: needs beta2_decay <= 0, got 0.8"),
        (optim.NAdam, {"momentum_decay": -1}, "NAdam: needs momentum_decay >= 0, got -1"),
        (optim.Adadelta, {"rho": 1.5}, r"Adadelta: needs rho in \[0, 1\], got 1.5"),
        (optim.Rprop, {"etas": (1.5, 0.5)}, r"Rprop: needs etas\[0\] in \(0, 1\), got 1.5"),
        (optim.Rprop, {"step_sizes": (1,)}, "Rprop: needs two step_sizes >= 0, got"),
        (optim.Rprop, {"step_sizes": (2.0, 1.0)}, r"Rprop: needs step_sizes\[0\] <= step_sizes\[1\]"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, message):
    with pytest.raises(ArgumentError, match=message):
        kind([nn.Parameter(ampkit.ones(2))], **options)


def test_a_lamb_step_is_the_same_share_of_every_parameter():
    parameters = [nn.Parameter(ampkit.full((4,), size)) for size in (1e-3, 1e3)]
    optimizer = optim.LAMB(parameters, lr=0.125, weight_decay=0.0)
    give(parameters, [np.full(4, 7.0), np.full(4, 1e-2)])
    optimizer.step()
    assert np.allclose(values(parameters[0]), 1e-3 * 0.875, rtol=1e-5)
    assert np.allclose(values(parameters[1]), 1e3 * 0.875, rtol=1e-5)


def test_a_lamb_step_of_a_parameter_of_zeros_is_adams():
    p = nn.Parameter(ampkit.zeros(3))
    optimizer = optim.LAMB([p], lr=0.125)
    give([p], [np.array([2.0, -3.0, 0.5])])
    optimizer.step()
    assert np.allclose(values(p), [-0.125, 0.125, -0.125], rtol=1e-5)


def test_a_centered_variance_is_never_below_zero():
    p = nn.Parameter(ampkit.zeros(1000))
    optimizer = optim.RMSprop([p], lr=1e-3, alpha=0.5, centered=True, eps=1e-3)
    for _ in range(60):
        give([p], [np.linspace(1, 2, 1000)])
        optimizer.step()
    assert np.isfinite(values(p)).all()


def test_the_factored_moments_of_adafactor_are_a_row_and_a_column():
    p = nn.Parameter(ampkit.ones(300, 200))
    optimizer = optim.Adafactor([p])
    give([p], [np.ones((300, 200))])
    optimizer.step()
    assert {k: tuple(v.shape) for k, v in optimizer.state[p].items() if k != "step"} == {
        "row_var": (300, 1),
        "col_var": (1, 200),
    }


@pytest.mark.parametrize("shape", [(4,), (3, 4)], ids=str)
def test_the_least_mean_square_of_adafactors_paper_takes_gradients_of_zero(shape):
    p = nn.Parameter(ampkit.ones(shape))
    optimizer = optim.Adafactor([p], eps=(1e-30, 1e-3))  # its square is nothing in float32
    for value in (0.0, 1.0):
        give([p], [np.full(shape, value)])
        optimizer.step()
        assert np.isfinite(values(p)).all() and (values(p) == 1).all() == (value == 0)


@pytest.mark.parametrize("kind", [optim.Adafactor, optim.ASGD, optim.NAdam, optim.LAMB])
def test_a_parameter_without_elements_steps_and_its_state_loads(kind):
    parameters = [nn.Parameter(ampkit.ones(0, 3)), nn.Parameter(ampkit.ones(2, 3))]
    optimizer = kind(parameters)
    give(parameters, [np.ones((0, 3)), np.ones((2, 3))])
    optimizer.step()
    twins = [nn.Parameter(p.detach().clone()) for p in parameters]
    other = kind(twins)
    other.load_state_dict(optimizer.state_dict())
    for each, ps in ((optimizer, parameters), (other, twins), (copy.deepcopy(optimizer), None)):
        ps = ps or each.param_groups[0]["params"]
        give(ps, [np.ones((0, 3)), np.ones((2, 3))])
        each.step()
    assert np.array_equal(values(parameters[1]), values(twins[1]))


def test_a_factor_of_another_shape_is_refused_and_nothing_changes():
    p = nn.Parameter(ampkit.ones(3, 4))
    optimizer = optim.Adafactor([p])
    give([p], [np.ones((3, 4))])
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["row_var"] = ampkit.ones(4, 1)
    with pytest.raises(ArgumentError, match=r"needs state row_var, col_var .*, got row_var \[4, 1\]"):
        optimizer.load_state_dict(state)
    assert values(optimizer.state[p]["row_var"]).shape == (3, 1)


def test_a_sum_that_pytorch_saves_before_the_first_step_of_adagrad_counts_once():
    steps = []
    for state in ({}, {0: {"step": ampkit.tensor(0.0), "sum": ampkit.tensor([0.5])}}):
        p = nn.Parameter(ampkit.ones(1))
        optimizer = optim.Adagrad([p], lr=0.1, initial_accumulator_value=0.5)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        for _ in range(2):
            p.grad = ampkit.full((1,), 0.3)
            optimizer.step()
            steps.append(p.item())
    assert steps[:2] == steps[2:] == pytest.approx([0.96094333, 0.92456298], rel=1e-6)  # PyTorch 2.13's, lr_decay 0
