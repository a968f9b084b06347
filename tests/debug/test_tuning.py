"""The policy search: choices, sensitivity, cost, the 0/1 programme, and what it finds."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest

import ampkit
from ampkit import Policy, autocast, backends, debug, nn, ops
from ampkit.base.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError, StateError
from ampkit.base.search import search
from ampkit.debug.policy_search import cost, tuning
from ampkit.debug.policy_search.choices import Choice, Choices, policy_of
from ampkit.debug.policy_search.cost import Cost
from ampkit.debug.policy_search.sensitivity import Evaluation


class Cancel(nn.Module):
    """Adds a number and subtracts it again: in 16 bits little is left of the values."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        return (self.linear(x) + 300.0) - 300.0


class Large(nn.Module):
    """A product of 1e5, which float16 does not hold, made small again."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 32)

    def forward(self, x):
        with_sign = self.up(x.float() * 1e6)
        return with_sign.float() * 1e-6


def loss(model, x, labels):
    return ops.cross_entropy(model(x), labels)


def batches(count=2):
    draw = np.random.default_rng(0)
    return [
        (ampkit.tensor(draw.standard_normal((64, 8)).astype("f4")), ampkit.tensor(draw.integers(0, 4, 64)))
        for _ in range(count)
    ]


def model_with(*layers):
    ampkit.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), *layers, nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )


@pytest.fixture
def faster(monkeypatch):
    """A machine on which every choice saves a millisecond in 16 bits, and a step with more of them is faster."""

    def costs(evaluation, choices, batch, show):
        return {choice: Cost(2e-3, 1e-3, 0) for choice in choices.all}

    def step_times(evaluation, batch, policies, show):
        return [(1.0 if p is None else 0.5 + 0.01 * len(p.modules) - 0.1 * len(p.overrides),) for p in policies]

    monkeypatch.setattr(tuning, "costs", costs)
    monkeypatch.setattr(tuning, "step_times", step_times)


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_layer_that_subtracts_large_numbers_stays_in_float32_and_all_others_do_not(dtype):
    found = debug.tune(model_with(Cancel()), batches(), loss, dtype, error=0.002)
    assert found.policy == Policy(dtype, modules={"2": "float32"})
    assert {row.choice.name for row in found.rows if not row.low} == {"2.linear"}
    assert found.note.startswith("found: 1.96 times the speed of float32") and "not the default policy" in found.note


@pytest.mark.usefixtures("faster")
def test_a_layer_that_overflows_in_float16_stays_in_float32_and_takes_bfloat16():
    model = model_with(Large())
    found = debug.tune(model, batches(), loss, "float16")
    assert found.policy == Policy("float16", modules={"2": "float32"})
    assert next(row for row in found.rows if not row.low).sensitivity.error == math.inf
    assert "not finite" in str(found)
    assert debug.tune(model, batches(), loss, "bfloat16").policy == Policy("bfloat16")


@pytest.mark.usefixtures("faster")
def test_a_smaller_error_leaves_fewer_choices_in_16_bits_and_none_float32():
    model = model_with(nn.Linear(32, 32))
    most = debug.tune(model, batches(), loss, "bfloat16", error=1.0).measured
    tuned = [debug.tune(model, batches(), loss, "bfloat16", error=e) for e in (1.0, 0.3 * most, 1e-9)]
    lows = [sum(row.low for row in found.rows) for found in tuned]
    assert lows[0] == 4 > lows[1] > lows[2] == 0
    found = debug.tune(model, batches(), loss, "bfloat16", error=1e-9)
    assert found.policy is None and found.note == "float32: nothing in bfloat16 saves time within an error of 1e-07 %"
    assert found.toml() == '[amp]\ndtype = "float32"\n'


@pytest.mark.usefixtures("faster")
def test_choices_that_err_more_together_than_alone_are_searched_again(monkeypatch):
    model = model_with(nn.Linear(32, 32))
    whole = Evaluation.sensitivity

    def worse(self, batches, policy):
        found = whole(self, batches, policy)
        return found._replace(loss=1.0) if policy == Policy("bfloat16") else found

    monkeypatch.setattr(Evaluation, "sensitivity", worse)
    alone = debug.tune(model, batches(), loss, "bfloat16", error=1.0).rows
    most = sum(row.sensitivity.error for row in alone)
    found = debug.tune(model, batches(), loss, "bfloat16", error=1.5 * most)
    assert found.policy not in (None, Policy("bfloat16"))
    assert found.policies[1].error > 1 and found.policies[2].error < 1.5 * most


@pytest.mark.usefixtures("faster")
def test_choices_that_err_less_together_than_alone_get_a_larger_limit(monkeypatch):
    model = model_with(nn.Linear(32, 32))
    alone = [row.sensitivity.error for row in debug.tune(model, batches(), loss, "bfloat16", error=1.0).rows]
    monkeypatch.setattr(tuning, "_EARNED", 0.0)  # the search alone is looked at
    first = search([1.0] * 4, alone, limit := 0.8 * sum(alone))[0]
    found = debug.tune(model, batches(), loss, "bfloat16", error=limit)
    assert sum(first) == 3 and sum(row.low for row in found.rows) == 4
    assert found.predicted > limit >= found.measured == found.policies[1].error


def test_where_16_bits_are_slower_everything_stays_in_float32(monkeypatch):
    monkeypatch.setattr(tuning, "costs", lambda e, choices, b, s: {c: Cost(1e-3, -1e-3, 10) for c in choices.all})
    monkeypatch.setattr(tuning, "step_times", lambda e, b, policies, s: [(1.0,), (2.0,)])
    found = debug.tune(model_with(nn.Linear(32, 32)), batches(), loss, "bfloat16")
    assert found.policy is None and not any(row.low for row in found.rows)
    assert found.note == "float32: bfloat16 is not faster on this machine, at best 0.50 times its speed"


@pytest.mark.usefixtures("faster")
def test_an_op_that_stores_float32_by_default_is_a_choice():
    found = debug.tune(model_with(nn.LayerNorm(32)), batches(), loss, "bfloat16", error=0.1)
    assert found.policy == Policy("bfloat16", layer_norm="low")


@pytest.mark.usefixtures("faster")
def test_an_op_is_judged_beside_16_bits_since_a_module_in_float32_keeps_it_in_float32():
    block = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh())
    found = debug.tune(model_with(block), batches(), loss, "bfloat16")
    assert next(row for row in found.rows if row.choice.name == "layer_norm").sensitivity.gradient > 1e-4


def test_the_search_really_measures_and_leaves_the_model_as_it_was():
    model = model_with(nn.BatchNorm1d(32), nn.Dropout(0.5))
    before = {name: value.numpy(force=True).tolist() for name, value in model.state_dict().items()}
    state, seen = ampkit.get_rng_state(), []
    found = debug.tune(model, batches(), loss, show=seen.append)
    assert ampkit.get_rng_state() == state
    assert {name: value.numpy(force=True).tolist() for name, value in model.state_dict().items()} == before
    assert all(p.grad is None for p in model.parameters())
    assert list(dict.fromkeys(each.stage for each in seen)) == ["sensitivity", "cost", "search", "time"]
    assert all(0 <= each.done <= each.total for each in seen)
    assert [each.name for each in found.policies][:2] == ["float32", "default"]
    assert all(0 < row.sensitivity.error < 0.1 and row.cost.float32 > 0 for row in found.rows)
    assert str(found).endswith(repr(found.policy) if found.policy else "float32, without autocast")


def test_the_sensitivity_is_the_relative_difference_of_losses_and_gradients():
    model, (batch,) = nn.Linear(8, 4), batches(1)
    evaluation, results = Evaluation(model, loss), []
    for policy in (None, Policy("bfloat16")):
        with autocast(policy=policy, enabled=policy is not None):
            value = loss(model, *batch)
        value.backward()
        gradients = np.concatenate([p.grad.numpy(force=True).ravel() for p in model.parameters()])
        results.append((value.item(), gradients.astype(np.float64)))
        model.zero_grad()
    (wide, g), (low, h) = results
    found = evaluation.sensitivity([batch], Policy("bfloat16"))
    assert found.loss == pytest.approx(abs(wide - low) / wide, rel=1e-6)
    assert found.gradient == pytest.approx(np.linalg.norm(g - h) / np.linalg.norm(g), rel=1e-4)
    assert found.error == found.loss + found.gradient**2 / 19


def test_float16_gradients_are_scaled_so_that_they_do_not_vanish():
    model, (batch,) = nn.Linear(8, 4), batches(1)
    found = Evaluation(model, lambda model, *batch: 1e-7 * loss(model, *batch)).sensitivity([batch], Policy("float16"))
    assert 0 < found.gradient < 1e-2


# choices and policies


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(ops.softmax(ops.matmul(self.qkv(x), x.mT), -1) @ x)


class Outer(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(blocks))
        self.weight = nn.Parameter(ampkit.randn(4, 4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        with autocast(enabled=False):
            return ops.linear(ops.mm(x.float()[0], self.weight), self.weight)


def choices_of(model, x):
    return Choices(model, lambda: ops.exp(model(x)).sum(), ampkit.bfloat16)


def test_the_choices_are_the_modules_with_products_and_the_ops_that_really_run():
    found = choices_of(Outer(), ampkit.randn(1, 4, 4))
    blocks = [f"blocks.{i}{part}" for i in range(2) for part in ("", ".out", ".qkv")]
    assert sorted(c.name for c in found.all if not c.is_op) == blocks
    assert {c.name: c.low_by_default for c in found.all if c.is_op} == {"softmax": False, "exp": False}
    assert next(c.ops for c in found.all if c.name == "blocks.1") == ("matmul",)


def test_repeated_blocks_are_one_choice_where_there_are_many():
    found = choices_of(Outer(blocks=12), ampkit.randn(1, 4, 4))
    assert sorted(c.name for c in found.all if not c.is_op) == ["blocks.*", "blocks.*.out", "blocks.*.qkv"]
    out = next(c for c in found.all if c.name == "blocks.*.out")
    assert found.policy([out]) == Policy("bfloat16", modules={"blocks.*": "float32", "blocks.*.out": "bfloat16"})


def test_a_product_in_the_models_own_forward_is_a_choice_by_op():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(ampkit.randn(4, 4))

        def forward(self, x):
            return ops.matmul(x, self.weight)

    found = choices_of(Plain(), ampkit.randn(4, 4))
    matmul = next(c for c in found.all if c.name == "matmul")
    assert matmul.is_op and matmul.low_by_default
    assert found.policy([c for c in found.all if c is not matmul]) == Policy("bfloat16", matmul="float32", exp="low")


@pytest.mark.parametrize("blocks", [1, 2, 12])
def test_a_policy_runs_exactly_the_choices_it_was_made_of_in_16_bits(blocks):
    model, x = Outer(blocks), ampkit.randn(1, 4, 4)
    choices = choices_of(model, x)
    modules = [c for c in choices.all if not c.is_op]
    for low in itertools.chain.from_iterable(
        itertools.combinations(modules, n) for n in range(1, min(len(modules), 4))
    ):
        seen = {}

        def note(event, seen=seen):
            choice = event.op and choices.of(event.op, choices.path())
            if event.phase == "forward" and choice and not choice.is_op:
                seen.setdefault(choice, set()).add(event.output.dtype.name)

        policy = choices.policy(low)
        with ampkit.core.module_path.follow(), ampkit.base.observe.observing(note), autocast(policy=policy):
            model(x)
        assert seen == {c: {"bfloat16" if c in low else "float32"} for c in modules}, policy
        assert policy == eval(repr(policy), {"Policy": Policy})


def test_a_policy_says_no_more_than_it_has_to():
    names = ["a.0.x", "a.0.y", "a.1.x", "b", "b.c"]
    choices = [Choice(name, False, True, ()) for name in names]

    def of(*low):
        return policy_of(choices, [c for c in choices if c.name in low], ampkit.float16)

    assert of(*names) == Policy("float16")
    assert of("b", "b.c") == Policy("float16", modules={"a": "float32"})
    assert of("a.0.x", "a.1.x", "b.c") == Policy(
        "float16", modules={"a.0.y": "float32", "b": "float32", "b.c": "float16"}
    )
    assert of() is None


# cost


def test_the_time_of_casts_and_of_what_follows_a_product_belongs_to_it(monkeypatch):
    model, (batch,) = nn.ModuleDict({"first": nn.Linear(8, 32), "last": nn.Linear(32, 4)}), batches(1)
    model.forward = lambda x: model.last(ops.relu(model.first(x)))
    device = type(backends.backend_of(batch[0].array))
    monkeypatch.setattr(device, "elapsed_time", lambda *events: 1.0)  # every kernel takes a second
    monkeypatch.setattr(cost, "_difference", lambda pairs: pairs[0][1])  # the seconds in 16 bits
    evaluation = Evaluation(model, loss)
    choices = Choices(model, lambda: loss(model, *batch), ampkit.bfloat16)
    found = {choice.name: each for choice, each in cost.costs(evaluation, choices, batch, lambda *at: None).items()}
    assert found["first"].float32 == 4  # linear, relu and their backwards
    assert found["first"].seconds == 5  # the cast of the input, which is no parameter and so not kept
    assert found["last"].float32 == 4  # linear and cross_entropy
    assert found["first"].bytes == 64 * 8 * 2 + 64 * 32 * 2  # its input, and the output that relu kept


def test_a_difference_within_the_noise_counts_as_none_and_bytes_decide():
    assert cost._difference([(3.0, 1.0), (3.1, 1.1), (2.9, 1.0)]) == pytest.approx(2.0)
    assert cost._difference([(3.0, 1.0), (1.0, 3.0), (2.0, 2.1)]) == 0
    assert Cost(1.0, 0.0, 10).value > 0 > Cost(1.0, 0.0, -10).value
    assert Cost(1.0, 1e-6, -1000).value > 0


# search


@pytest.mark.parametrize("solver", ["milp", "greedy"])
def test_the_search_takes_what_saves_the_most_within_the_limit(solver, monkeypatch):
    if solver == "greedy":
        monkeypatch.setitem(sys.modules, "scipy", None)
    else:
        pytest.importorskip("scipy", reason="milp needs SciPy, of the extra tune")
    draw = np.random.default_rng(0)
    for _ in range(30):
        values, errors = draw.uniform(-0.2, 1, 9), draw.exponential(1e-3, 9) * draw.integers(0, 2, 9)
        errors[3], limit = math.inf, 3e-3
        taken, found = search(values, errors, limit)
        assert found == solver
        assert errors[taken].sum() <= limit * (1 + 1e-6)
        best = max(
            sum(values[list(items)])
            for n in range(10)
            for items in itertools.combinations(range(9), n)
            if sum(errors[list(items)]) <= limit
        )
        assert values[taken].sum() >= (1 - 1e-6 if solver == "milp" else 0.5) * best
    assert search([], [], 1.0)[0] == search([1.0], [2.0], 1.0)[0][1:] == []


# bad input


def bad_loss(model, x, labels):
    with autocast(dtype="bfloat16"):
        return loss(model, x, labels)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"batches": []}, ArgumentError, "at least one batch"),
        ({"error": 0}, ArgumentError, "an error above 0, got 0"),
        ({"error": "1%"}, ArgumentError, "an error above 0"),
        ({"dtype": "int8"}, DTypeError, "float16 or bfloat16, got int8"),
        ({"dtype": "float32"}, DTypeError, "float16 or bfloat16, got float32"),
        ({"loss": bad_loss}, StateError, "enters no autocast region"),
        ({"loss": lambda model, x, labels: model(x)}, ShapeError, "a loss of one floating-point number"),
        ({"loss": lambda model, x, labels: model(x).argmax()}, ShapeError, r"got int64 \[\]"),
        ({"model": lambda x: x}, ArgumentError, "a module as `model`, got a function"),
        (
            {"loss": lambda model, x, labels: loss(model, x, labels) / 0},
            NonFiniteError,
            "finite in float32, in batch 0",
        ),
        ({"model": nn.ReLU(), "loss": lambda model, x, labels: model(x).sum()}, ArgumentError, "can run in 16 bits"),
        ({"model": nn.Linear(8, 4).bfloat16()}, DTypeError, "parameters in float32, got bfloat16"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(arguments, error, says):
    options = {"model": nn.Linear(8, 4), "batches": batches(1), "loss": loss} | arguments
    with pytest.raises(error, match=says):
        debug.tune(**options)


def test_a_policy_that_half_of_the_steps_do_not_find_faster_is_not_taken():
    wide = tuning.Timed("float32", None, 0.0, (1.0, 2.0, 1.0, 2.0, 1.0))
    noisy = tuning.Timed("default", Policy("bfloat16"), 0.0, (0.5, 2.1, 0.9, 2.1, 0.9))
    best, note = tuning.decide(0.01, [wide, noisy])
    assert best is wide
    assert note.endswith("not faster on this machine, at best 1.11 times (0.95 to 1.11 in half of the steps) its speed")
    fast = noisy._replace(times=(0.5, 1.0, 0.4, 1.3, 0.4))
    best, note = tuning.decide(0.01, [wide, fast])
    assert best is fast
    assert note.startswith("default: 2.00 times (2.00 to 2.50 in half of the steps) the speed of float32, and nothing")
