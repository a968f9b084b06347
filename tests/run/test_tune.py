"""The policy search for a recipe: what is trained, how it is judged, and what a recipe takes of it."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

import ampkit
from ampkit import Policy, config
from ampkit.base.errors import ConfigError, DTypeError
from ampkit.config.sections import Amp
from ampkit.debug.policy_search import tuning
from ampkit.debug.policy_search.cost import Cost
from ampkit.debug.policy_search.tuning import as_toml
from ampkit.run import build
from ampkit.run.search import turns
from ampkit.run.search.tune import tune_recipe

MLP = Path(__file__).parents[2] / "recipes" / "digits_mlp.toml"


SHORT = [
    "train.epochs=", "train.eval_every=", "train.steps=8", "train.threads=1", "train.log_every=1",
    'schedule={name="constant"}', "model.hidden=[16, 16]", "data.batch_size=16",
]  # fmt: skip


def recipe(*overrides):
    return config.load(MLP, [*SHORT, *overrides])


@pytest.fixture
def faster(monkeypatch):
    """A machine on which 16 bits save time, the default policy the most; the trainings' errors can be set."""
    errors, result = {}, turns.Training.result

    def timed(self, name, policy, wide):
        found = result(self, name, policy, wide)
        seconds = 1.0 if policy is None else 0.5 + 0.01 * len(policy.modules)
        error = errors.get(name, found.timed.error)
        return found._replace(timed=found.timed._replace(times=(seconds,), error=error))

    monkeypatch.setattr(tuning, "costs", lambda e, choices, b, show: {c: Cost(2e-3, 1e-3, 0) for c in choices.all})
    monkeypatch.setattr(
        tuning, "step_times", lambda e, b, policies, show: [(1.0 - 0.5 * (p is not None),) for p in policies]
    )
    monkeypatch.setattr(turns.Training, "result", timed)
    return errors


@pytest.mark.usefixtures("faster")
def test_the_default_policy_is_taken_where_it_is_the_fastest_and_trains_as_float32_does():
    seen = []
    found = tune_recipe(recipe(), batches=2, show=seen.append)
    assert found.policy == Policy("bfloat16") and found.steps == 8
    assert [each.timed.name for each in found.trained] == ["float32", "default"]
    assert found.trained[0].timed.error == 0 < found.trained[1].timed.error < 0.01
    stages = ["training in float32", "sensitivity", "search", "verification by training"]
    assert list(dict.fromkeys(each.stage for each in seen)) == stages


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize(
    ("given", "asked", "searched"), [("float16", None, "float16"), ("float16", "bfloat16", "bfloat16")]
)
def test_the_dtype_is_the_recipes_unless_another_is_asked_for(given, asked, searched):
    spec = recipe(f"amp.dtype={given}", "amp.policy=fast", 'amp.modules={"1" = "float32"}')
    assert tune_recipe(spec, asked, batches=1).policy == Policy(searched)


@pytest.mark.usefixtures("faster")
def test_each_training_is_that_of_its_recipe_alone_though_they_take_turns():
    found = tune_recipe(recipe("model.dropout=0.5"), "float16", batches=1)
    for each, dtype in zip(found.trained, ("float32", "float16"), strict=True):
        rows = list(turns.fit(recipe(f"amp.dtype={dtype}", "model.dropout=0.5")))
        assert each.val_loss == rows[-1].val_loss
        assert each.loss == pytest.approx(sum(row.loss for row in rows[:-1]) / 8, rel=1e-12)


def test_the_policy_found_is_trained_beside_the_default_one_and_taken_if_it_is_faster(monkeypatch, faster):
    def costs(evaluation, choices, batch, show):
        return {choice: Cost(2e-3, -1e-3 if choice.name == "1" else 1e-3, 0) for choice in choices.all}

    monkeypatch.setattr(tuning, "costs", costs)
    monkeypatch.setattr(tuning, "step_times", lambda e, b, policies, show: [(1.0,), (0.6,), (0.5,)])
    found = tune_recipe(recipe(), batches=1)
    assert [each.timed.name for each in found.trained] == ["float32", "default", "found"]
    assert found.trained[2].timed.policy == Policy("bfloat16", modules={"1": "float32"})
    assert found.policy == Policy("bfloat16")  # the training says that the default policy is faster after all
    faster["default"] = 0.5
    found = tune_recipe(recipe(), batches=1)
    assert found.policy == Policy("bfloat16", modules={"1": "float32"})
    assert found.note.startswith(
        "found: 1.96 times the speed of float32, within an error of 1 %; not the default policy"
    )


def test_a_policy_that_trains_worse_than_predicted_is_tightened(faster):
    faster["default"] = 0.5
    predicted = tune_recipe(recipe(), batches=1).tuning
    most = sum(row.sensitivity.error for row in predicted.rows)
    found = tune_recipe(recipe(), error=most * 1.5, batches=1)
    assert [each.timed.name for each in found.trained] == ["float32", "default", "tightened"]
    assert found.policy == found.trained[2].timed.policy not in (None, Policy("bfloat16"))
    assert found.policy.modules and "not the default policy: its error is 50 %" in found.note


def test_where_every_training_is_worse_float32_is_the_answer_and_the_note_says_so(faster):
    faster |= {"default": math.inf, "tightened": 0.2}
    found = tune_recipe(recipe(), batches=1)
    assert found.policy is None and found.toml() == '[amp]\ndtype = "float32"\n'
    assert found.note == "float32: nothing in bfloat16 saves time within an error of 1 %"
    assert len(found.trained) <= 4


def test_a_training_that_fails_is_a_row_that_says_why():
    training = turns.Training(recipe(), None)
    training.run.model.register_forward_hook(lambda module, args, out: out * math.nan)
    for _ in range(9):
        training.advance()
    result = training.result("default", Policy("bfloat16"), 1.0)
    assert result.timed.error == math.inf and result.failure.startswith("step 1, float32: needs a finite loss")


@pytest.mark.parametrize(
    "policy",
    [
        None,
        Policy("bfloat16"),
        Policy("float16", softmax="low", gelu="float32"),
        Policy("float16", layer_norm="low", modules={"net": "float32", "net.2": "float16", "**": "bfloat16"}),
    ],
    ids=repr,
)
def test_a_recipe_takes_the_lines_and_runs_the_policy(policy):
    section = Amp(**tomllib.loads(as_toml(policy))["amp"])
    spec = recipe().model_copy(update={"amp": section})
    model = ampkit.nn.Sequential(ampkit.nn.Linear(2, 2))
    model.net = ampkit.nn.Sequential(*[ampkit.nn.Linear(2, 2) for _ in range(3)])
    region = build.region(spec, model)
    assert (region._policies["cpu"] if policy else None) is policy


def test_what_a_recipe_cannot_tune_is_refused():
    with pytest.raises(ConfigError, match="amp.parameters: needs float32"):
        tune_recipe(recipe("amp.dtype=bfloat16", "amp.parameters=low"))
    with pytest.raises(DTypeError, match="got int8"):
        tune_recipe(recipe(), "int8")
