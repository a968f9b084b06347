"""The output layer of a model under a recipe below 16 bits: in 16 bits, unless the run's recipe says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampkit import ConfigError, Policy, config, models, nn, optim
from ampkit.config import saved_recipe
from ampkit.core.policy import region
from ampkit.core.policy.recipe import RECIPES
from ampkit.debug.policy_search.tuning import as_toml
from ampkit.optim.matrix.hidden import output_layer
from ampkit.run import build

RECIPES_DIR = Path(__file__).parents[2] / "recipes"


def policy_of(model, *more, file="digits_mlp"):
    """The policy in which a run of a recipe file calls `model`."""
    recipe = config.load(RECIPES_DIR / f"{file}.toml", ["amp.dtype=float8", "amp.recipe=mxfp8", *more])
    with build.region(recipe, model):
        return region().policies["cpu"]


def quantized(policy, *paths):
    """The recipe of each layer, as it is called inside of the modules above it."""
    found = []
    for path in paths:
        inner, parts = policy, path.split(".")
        for count in range(1, len(parts) + 1):
            inner = inner.in_module(".".join(parts[:count]))
        found.append(inner.recipe and inner.recipe.name)
    return found


def test_it_stays_in_16_bits_by_default_and_is_quantized_where_the_recipe_says_so():
    model = models.GPT(16, 8, n_layer=1, n_head=2, n_embd=8)
    layers = "transformer.h.0.mlp.c_fc", "lm_head"
    assert quantized(policy_of(model), *layers) == ["mxfp8", None]
    assert policy_of(model).in_module("lm_head").dtype.name == "bfloat16"
    assert quantized(policy_of(model, "amp.output_layer=recipe"), *layers) == ["mxfp8", "mxfp8"]
    assert quantized(policy_of(model, "amp.recipe=", "amp.dtype=bfloat16"), *layers) == [None, None]
    float16 = policy_of(model, "amp.dtype=float16")
    assert float16.in_module("lm_head").dtype.name == "float16" and quantized(float16, *layers) == ["mxfp8", None]


@pytest.mark.parametrize("pattern", ["classifier.1", "classifier", "classifier.*", "**"])
def test_an_entry_for_it_or_for_a_module_above_it_counts(pattern):
    model = nn.Module()
    model.features, model.classifier = nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
    assert quantized(policy_of(model), "features", "classifier.1") == ["mxfp8", None]
    assert quantized(policy_of(model, f'amp.modules={{"{pattern}"="rowwise"}}'), "classifier.1") == ["rowwise"]
    other = policy_of(model, 'amp.modules={features="rowwise"}')
    assert quantized(other, "features", "classifier.1") == ["rowwise", None]


def test_a_model_with_nothing_else_to_quantize_is_refused_with_the_cure():
    for model in (nn.Linear(4, 2), nn.Sequential(nn.Flatten(), nn.Linear(4, 2))):
        with pytest.raises(ConfigError, match=r"amp\.output_layer: needs recipe, as the products of the output layer"):
            policy_of(model)
        assert policy_of(model, "amp.output_layer=recipe").recipe is RECIPES["mxfp8"]


def test_the_output_layer_is_the_last_that_multiplies_and_what_muon_leaves_out():
    table = nn.Embedding(5, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2), nn.BatchNorm1d(2), table)
    assert output_layer(model) == "2"
    hidden, others = optim.hidden_matrices(model)
    assert [name for name, _ in hidden] == ["0.weight"]
    assert {"2.weight", "4.weight"} < {name for name, _ in others}
    assert output_layer(nn.Sequential(nn.Linear(4, 4), table)) is None


def test_a_policy_that_quantizes_every_layer_is_written_as_one():
    text = as_toml(Policy("bfloat16", recipe="int8"))
    assert 'output_layer = "recipe"' in text
    assert "output_layer" not in as_toml(Policy("bfloat16", modules={"fc": "int8"}))


def test_checkpoints_of_before_the_key_quantized_it():
    for more, wanted in (
        (["amp.dtype=int8"], "recipe"),
        (["amp.dtype=bfloat16", "amp.recipe=nvfp4"], "recipe"),
        ([], "low"),
    ):
        values = config.load(RECIPES_DIR / "digits_mlp.toml", more).model_dump(mode="json")
        assert values["amp"].pop("output_layer") == "low"
        assert saved_recipe("resume", values).amp.output_layer == wanted
