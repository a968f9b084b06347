"""Recipes that fine-tune: frozen parts, learning rates by layer, low-rank adapters; Muon and SOAP; wsd."""

from __future__ import annotations

from pathlib import Path

import pytest

import ampkit
from ampkit import config, nn
from ampkit.base.errors import ArgumentError, ConfigError
from ampkit.run import build
from ampkit.run.loop import fit

RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = ["train.epochs=", "train.steps=6", "train.log_every=2", "train.eval_every=", "train.threads=1"]
SHORT += ['schedule={name="constant"}', "model.hidden=[16, 12]", "data.batch_size=16"]


def recipe(*overrides: str):
    return config.load(RECIPES / "digits_mlp.toml", [*SHORT, *overrides])


def bits(model):
    return {name: tensor.detach().cpu().numpy().tobytes() for name, tensor in model.state_dict().items()}


def paths():
    return [path for path, module in build.model(recipe()).named_modules() if isinstance(module, nn.Linear)]


def lora():
    first, second, head = paths()
    return ["lora.r=2", f'lora.target_modules=["{first}", "{second}"]', f'lora.modules_to_save=["{head}"]']


def test_frozen_parts_stay_and_have_no_state():
    first = paths()[0]
    run = fit(recipe(f'finetune.freeze=["{first}"]', "optimizer.name=adamw"))
    before = bits(run.model)
    list(run)
    after = bits(run.model)
    assert {name for name in before if before[name] == after[name]} == {f"{first}.weight", f"{first}.bias"}
    assert len(run.optimizer.state_dict()["state"]) == 4


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "onecycle"])
def test_every_schedule_keeps_the_ratios_of_learning_rates(schedule):
    extra = ", eta_min=0.005, warmup=1" if schedule == "cosine" else ""
    run = fit(recipe("finetune.layer_decay=0.1", "optimizer.lr=0.01", f'schedule={{name="{schedule}"{extra}}}'))
    for _ in range(6):
        top, below, lowest = (group["lr"] for group in run.optimizer.param_groups)
        assert (below, lowest) == pytest.approx((top * 0.1, top * 0.01)) and top >= (0.005 if extra else 0)
        run.advance()


def test_learning_rates_by_layer_follow_the_schedule():
    *_, head = paths()
    keys = ["finetune.layer_decay=0.5", f"finetune.lr_factors={{'{head}'=4.0}}", "optimizer.lr=0.01"]
    run = fit(recipe(*keys, 'schedule={name="linear"}', "train.steps=4"))
    assert [group["lr"] for group in run.optimizer.param_groups] == pytest.approx([0.04, 0.005, 0.0025])
    for _ in range(2):
        run.advance()
    assert [group["lr"] for group in run.optimizer.param_groups] == pytest.approx([0.02, 0.0025, 0.00125])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float16") for name in ("adamw", "muon", "soap", "lora")), ("lora", "float32"), ("muon", "bfloat16")],
)
def test_a_run_goes_on_bit_for_bit(name, dtype, tmp_path):
    keys = [*lora(), "lora.lora_dropout=0.1"] if name == "lora" else [f"optimizer.name={name}"]
    keys += ["finetune.layer_decay=0.5", f"amp.dtype={dtype}", 'schedule={name="wsd", warmup=1, decay=0.5}']
    keys += ["optimizer.precondition_frequency=2"] if name == "soap" else []
    whole = fit(recipe(*keys))
    list(whole)
    part = fit(recipe(*keys), tmp_path)
    for _ in range(3):
        part.advance()
    part.save()
    resumed = fit(recipe(*keys), tmp_path, resume=True)
    list(resumed)
    assert bits(resumed.model) == bits(whole.model) != bits(part.model)


def test_a_run_with_adapters_trains_them_and_loads(tmp_path):
    run = fit(recipe(*lora()), tmp_path / "checkpoints")
    before = bits(run.model)
    list(run)
    changed = {name for name, value in bits(run.model).items() if value != before[name]}
    first, second, head = paths()
    assert changed == {
        *(f"{path}.lora_{letter}.weight" for path in (first, second) for letter in "AB"),
        f"{head}.weight",
        f"{head}.bias",
    }
    whole = fit(recipe())
    list(whole)
    held = [
        sum(t.numel() for e in r.optimizer.state_dict()["state"].values() for t in e.values()) for r in (run, whole)
    ]
    assert held[0] < held[1] / 2
    found = ampkit.load_run(tmp_path)
    assert bits(found.model) == bits(run.model)
    nn.lora.merge_and_unload(found.model)
    assert set(found.model.state_dict()) == set(whole.model.state_dict())


def test_muon_of_a_recipe_trains_hidden_matrices():
    run = fit(recipe("optimizer.name=muon", "optimizer.adam_lr=0.002", "optimizer.lr=0.01"))
    muon, adamw = run.optimizer.param_groups
    assert muon["use_muon"] and [tuple(p.shape) for p in muon["params"]] == [(16, 64), (12, 16)]
    assert (muon["lr"], adamw["lr"]) == (0.01, 0.002)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['finetune.freeze=["*", "*.*"]'], "finetune.freeze: needs parameters that are left to train, got all of them"),
        (
            ['finetune.freeze=["nothing"]'],
            "freeze: needs the path of a module or parameter of the model, got 'nothing'",
        ),
        (["finetune.lr_factors={nothing=2.0}"], "lr_factors: needs the path of a module or parameter of the model"),
        (["lora.r=2", 'lora.target_modules=["nothing"]'], "LoraConfig: needs target_modules of the model"),
        (["lora.r=0"], "lora.r: needs"),
        (["finetune.layer_decay=1.5"], "finetune.layer_decay: needs"),
        (["optimizer.name=muon", 'optimizer.ns_dtype="float64"'], "optimizer.ns_dtype: needs"),
        (['schedule={name="wsd", decay=1.5}'], "schedule.decay: needs"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(overrides, message):
    with pytest.raises((ConfigError, ArgumentError), match=message):
        fit(recipe(*overrides))
