"""debug.lab: which layers survive which format below 16 bits, measured against the 16-bit policy."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import ampkit
from ampkit import debug, nn, ops
from ampkit.base.errors import ArgumentError, ConfigError, NonFiniteError
from ampkit.core.policy.recipe import recipe
from ampkit.debug.policy_search.format_policy import Cost
from ampkit.debug.policy_search.formats import FormatLoss, Laboratory, LayerLoss
from ampkit.debug.policy_search.sensitivity import Sensitivity


class Rescaled(nn.Module):
    """A linear layer whose weight has rows of magnitudes from 1 to 2^-45, and whose output does not show it."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        scale = ampkit.tensor(2.0 ** (-3.0 * np.arange(width)), dtype=ampkit.float32)
        with ampkit.no_grad():
            self.linear.weight.mul_(scale[:, None])
            self.linear.bias.zero_()
        self.register_buffer("undo", 1 / scale)

    def forward(self, input):
        return self.linear(input).float() * self.undo


def model_and_batches(planted):
    ampkit.manual_seed(0)
    layers = [nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)]
    layers[planted] = Rescaled(16)
    model = nn.Sequential(*(each for layer in layers for each in (layer, nn.GELU())), nn.Linear(16, 4))
    draw = np.random.default_rng(0)
    batches = [
        (ampkit.tensor(draw.standard_normal((32, 16)).astype("f")), ampkit.tensor(draw.integers(0, 4, 32)))
        for _ in range(2)
    ]
    return model, batches


def loss(model, x, t):
    return ops.cross_entropy(model(x), t)


def test_an_output_layer_that_loses_all_is_left_out_of_what_the_others_lose():
    _, batches = model_and_batches(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), Rescaled(16))
    found = debug.lab(model, batches, loss, formats=["current"])
    assert found.output == "2.linear" and "without 2.linear" in str(found)
    others, whole = found.formats[0].inner, found.formats[0].sensitivity
    alone = {row.layer: row.sensitivity for row in found.layers}
    assert others.error < whole.error / 10
    assert others == alone["0"]  # the one other layer
    assert debug.lab(nn.Sequential(nn.Linear(16, 4)), batches, loss, formats=["current"]).output is None


@pytest.mark.parametrize("planted", [0, 1, 2])
def test_the_layer_that_one_scale_per_matrix_spoils_is_found(planted):
    model, batches = model_and_batches(planted)
    found = debug.lab(model, batches, loss, formats=["current", "rowwise"])
    assert found.sensitive("current")[0] == f"{2 * planted}.linear"
    assert found.ranking() == ["rowwise", "current"]  # a scale for each row mends it
    row = next(row for row in found.layers if (row.layer, row.recipe) == (f"{2 * planted}.linear", "current"))
    assert row.products["forward"].flushed[1] > 0.3  # of the weight
    assert row.products["forward"].flushed[0] < 0.1  # of the input


def test_fewer_bits_lose_more_and_every_product_is_judged():
    model, batches = model_and_batches(1)
    found = debug.lab(model, batches, loss, formats=["nvfp4", "mxfp8"])
    assert found.ranking() == ["mxfp8", "nvfp4"]
    assert {row.layer for row in found.layers} == {"0", "2.linear", "4", "6"}
    for row in found.layers:
        assert set(row.products) == {"forward", "weight_gradient", *(["input_gradient"] if row.layer != "0" else [])}
    assert all(set(each.products) == {"forward", "input_gradient", "weight_gradient"} for each in found.formats)
    text = str(found)
    assert "2.linear" in text and "all layers" in text and "mxfp8" in text


def test_values_beyond_a_scale_that_was_rounded_down_are_saturated():
    # The factor of all is 1/6, and the scale of the first row 6.2, in E4M3 6: the format ends at 6.
    batches = [(ampkit.tensor([[6.0, 1.0, 0.0, -6.2], [448.0, 1.0, 2.0, 3.0]]).repeat(1, 4),)]
    model = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 1))
    with ampkit.no_grad():
        model[0].weight.fill_(0.01)
    found = debug.lab(model, batches, lambda m, x: m(x).float().square().mean(), formats=["nvfp4", "mxfp8"])
    by_recipe = {row.recipe: row.products["forward"] for row in found.layers if row.layer == "0"}
    assert by_recipe["nvfp4"].saturated == (4 / 28, 0.0)
    assert by_recipe["mxfp8"].saturated == (0.0, 0.0)


def test_what_layers_keep_and_what_cards_gain_stands_beside_their_errors():
    model, batches = model_and_batches(1)
    found = debug.lab(model, batches, loss, formats=["mxfp8", "int8"])
    whole = found.kept()
    assert whole == sum(2 * (32 * 16 + (each.weight.numel() if i else 0)) for i, each in enumerate(linears(model)))
    assert 0.5 < found.kept("mxfp8") / whole < 0.7 and found.kept("mxfp8") == sum(
        row.cost.kept for row in found.layers if row.recipe == "mxfp8"
    )
    cards = {name: cells for name, cells, _ in found.cards()}
    order = found.ranking()
    assert cards["B200 (step)"][order.index("mxfp8")] == "1.16 x" and cards["B300"][order.index("int8")] == "-"
    assert cards["B200 (step), peak memory"][order.index("mxfp8")] == "1.00 x"
    assert "H200" not in cards  # where neither was measured
    assert "kept for backward" in str(found) and "B200 (step), peak memory" in str(found)


def linears(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def test_a_product_that_stays_in_16_bits_is_left_out():
    model, batches = model_and_batches(1)
    found = debug.lab(model, batches, loss, formats=["rowwise_with_gw_hp"])
    assert set(found.formats[0].products) == {"forward", "input_gradient"}


def test_the_model_its_gradients_and_the_random_stream_stay_as_they_were():
    model, batches = model_and_batches(1)
    before, state = [p.detach().numpy().copy() for p in model.parameters()], ampkit.get_rng_state()
    debug.lab(model, batches, loss, formats=["nvfp4", "delayed"])  # with random bits, and with a history
    assert all((p.detach().numpy() == kept).all() for p, kept in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert ampkit.get_rng_state() == state
    assert set(model.state_dict()) == set(dict(model.named_parameters())) | {"2.undo"}


# Of each recipe: the work and the bytes kept by a layer, of 16 and 16 in 16 bits.
COSTS = {"mxfp8": Cost(8, 9), "current": Cost(8, 8), "nvfp4": Cost(4, 5)}


def laboratory(errors):
    rows = [LayerLoss(layer, name, Sensitivity(error, 0.0), {}, COSTS[name]) for (layer, name), error in errors.items()]
    names = dict.fromkeys(name for _, name in errors)
    recipes = {name: recipe(name) for name in names}
    wide = {layer: Cost(16, 16) for layer, _ in errors}
    formats = tuple(FormatLoss(name, Sensitivity(0.0, 0.0), {}) for name in names)
    return Laboratory("bfloat16", recipes, wide, tuple(rows), formats)


ERRORS = {
    ("a", "mxfp8"): 0.001, ("a", "current"): 0.002, ("a", "nvfp4"): 0.02,
    ("b", "mxfp8"): 0.002, ("b", "current"): 0.002, ("b", "nvfp4"): 0.004,
}  # fmt: skip


def policy(modules):
    alike = modules == {"a": "mxfp8", "b": "mxfp8"}
    return ampkit.Policy("bfloat16", recipe="mxfp8") if alike else ampkit.Policy("bfloat16", modules=modules)


@pytest.mark.parametrize(
    ("budget", "modules"),
    [
        (0.0005, {}),
        (0.0015, {"a": "mxfp8"}),
        (0.0049, {"a": "mxfp8", "b": "mxfp8"}),  # saves 16 of 32; nvfp4 in b alone 12
        (0.005, {"a": "mxfp8", "b": "nvfp4"}),
    ],
)
def test_the_policy_has_the_least_work_within_the_budget(budget, modules, monkeypatch):
    for _ in range(2):
        assert laboratory(ERRORS).policy(budget) is policy(modules)
        monkeypatch.setitem(sys.modules, "scipy", None)  # greedily


@pytest.mark.parametrize(
    ("memory", "modules"),
    [
        (1.0, {}),
        (0.8, {"a": "mxfp8"}),  # 25 of 32
        (0.66, {"a": "mxfp8", "b": "mxfp8"}),  # 18
        (0.5, {"a": "mxfp8", "b": "nvfp4"}),  # 14
    ],
)
def test_the_policy_errs_least_within_the_memory(memory, modules):
    pytest.importorskip("scipy", reason="without SciPy, of the extra tune, the search is greedy")
    assert laboratory(ERRORS).policy(memory=memory) is policy(modules)


def test_memory_that_no_format_attains_is_refused_with_what_they_need():
    with pytest.raises(ArgumentError, match="needs a share of at least 0.313 of what layers keep in 16 bits, got 0.1"):
        laboratory(ERRORS).policy(memory=0.1)


class Divided(nn.Sequential):
    """Two layers, their output divided by a difference from `rounded`, which the first one meets in a format."""

    rounded = 0.0

    def forward(self, x):
        hidden = self[0](x).float()
        return self[1](hidden).float() / (hidden.sum(1, keepdim=True) - self.rounded)


def test_a_layer_that_a_format_makes_infinite_takes_another_format_or_none():
    ampkit.manual_seed(0)
    x, model = ampkit.randn(8, 16), Divided(nn.Linear(16, 16), nn.Linear(16, 4))
    with ampkit.no_grad(), ampkit.autocast(policy=ampkit.Policy("float8", recipe="mxfp8")):
        model.rounded = model[0](x).float().sum(1, keepdim=True)
    found = debug.lab(model, [(x,)], lambda m, x: m(x).square().mean(), formats=["mxfp8", "current"])
    assert found.ranking() == ["current", "mxfp8"] and "not finite" in str(found)
    assert found.policy(1e-12) is ampkit.Policy("bfloat16")
    assert found.choice(None, 0.6)[1] == {"0": "current", "1": "current"}


def test_recipes_that_cost_alike_are_not_mixed():
    found = laboratory({("a", "mxfp8"): 1e-3, ("a", "current"): 2e-3, ("b", "mxfp8"): 3e-3, ("b", "current"): 1e-3})
    assert found.policy(1.0) is ampkit.Policy("bfloat16", recipe="current")


def test_the_search_measures_what_it_takes_and_what_that_saves():
    model, batches = model_and_batches(1)
    found = debug.tune_formats(model, batches, loss, formats=["current", "nvfp4"], error=0.05)
    assert found.policy is found.found.policy(found.predicted)
    assert 0 < found.measured <= 0.05
    assert 0.25 <= found.work < 1 and 0.25 < found.kept < 1
    assert "2.linear" in str(found) and repr(found.policy) in str(found)
    least = debug.tune_formats(model, batches, loss, formats=["current", "nvfp4"], memory=0.6)
    assert least.kept <= 0.6 and least.memory == 0.6
    with pytest.raises(ArgumentError, match="a budget of the loss or of memory, got both"):
        debug.tune_formats(model, batches, loss, error=0.1, memory=0.5)


def test_a_layer_costs_the_bits_of_its_products_and_what_it_keeps():
    model, batches = model_and_batches(1)
    found = debug.lab(model, batches, loss, formats=["mxfp8", "nvfp4", "rowwise_with_gw_hp"])
    first = {row.recipe: row.cost for row in found.layers if row.layer == "0"}  # without a gradient of its input
    adds, values = 2 * 32 * 16 * 16, 32 * 16
    assert found.wide["0"] == Cost(adds, 2 * values)
    assert first["mxfp8"] == Cost(adds / 2, values + values // 32)
    assert first["nvfp4"] == Cost(adds / 4, values // 2 + values // 16)
    assert first["rowwise_with_gw_hp"] == Cost(adds * 3 / 4, 2 * values)


def test_layers_that_agree_have_the_recipe_of_the_policy():
    assert laboratory(ERRORS).policy(0.024) is ampkit.Policy("bfloat16", recipe="nvfp4")


def test_a_recipe_of_ones_own_is_measured_and_chosen():
    model, batches = model_and_batches(1)
    mine = replace(recipe("mxfp8"), name="mine", weight_gradient=None)
    found = debug.lab(model, batches, loss, formats=[mine])
    assert mine.bits == 8 and recipe("nvfp4").bits == 4
    assert found.policy(1.0) is ampkit.Policy("bfloat16", recipe=mine)


def test_a_budget_is_above_0():
    with pytest.raises(ArgumentError, match="a budget above 0 of the loss, or of memory, got 0"):
        laboratory(ERRORS).policy(0)
    with pytest.raises(ArgumentError, match="got both"):
        laboratory(ERRORS).policy(0.1, memory=0.5)


def test_bad_input_is_refused():
    model, batches = model_and_batches(0)
    with pytest.raises(ArgumentError, match="at least one batch and one format, got 0 and 6"):
        debug.lab(model, [], loss)
    with pytest.raises(ConfigError, match="got 'mxfp9'"):
        debug.lab(model, batches, loss, formats=["mxfp9"])
    with pytest.raises(ArgumentError, match="a model with a module that calls `linear`, got none"):
        debug.lab(nn.Conv1d(1, 1, 1), [(batches[0][0][:, None],)], lambda m, x: m(x).sum())
    with pytest.raises(
        ArgumentError, match=r"got a Linear itself\nhelp: wrap it, so that it has a path: nn.Sequential"
    ):
        debug.lab(nn.Linear(16, 4), batches, loss)
    with pytest.raises(ArgumentError, match="formats as a list of names, got 'mxfp8'"):
        debug.lab(model, batches, loss, formats="mxfp8")
    with ampkit.no_grad():
        model[0].linear.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="finite in bfloat16"):
        debug.lab(model, batches, loss, formats=[recipe("mxfp8")])


def test_a_product_outside_of_the_policy_is_no_layer_of_it():
    class Wide(nn.Linear):
        def forward(self, input):
            with ampkit.autocast(enabled=False):
                return super().forward(input.float())

    model, batches = model_and_batches(1)
    model[4] = Wide(16, 16)
    found = debug.lab(model, batches, loss, formats=["mxfp8"])
    assert {row.layer for row in found.layers} == {"0", "2.linear", "6"} == set(found.wide)


def test_a_module_with_a_weight_and_modules_in_it_is_judged_by_its_own_products():
    class Around(nn.Linear):
        def __init__(self):
            super().__init__(16, 16)
            self.inner = Rescaled(16)

        def forward(self, input):
            return super().forward(self.inner(input))

    model, batches = model_and_batches(1)
    model[2] = Around()
    found = debug.lab(model, batches, loss, formats=["current"])
    errors = {row.layer: row.sensitivity.error for row in found.layers}
    assert errors["2"] < 0.2 * errors["2.inner.linear"]
