"""Names of recipes below 16 bits with words for products, as policies, recipe files and command lines have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ampkit
from ampkit import Policy, autocast, config, nn
from ampkit.amp import recipe
from ampkit.base.errors import ConfigError, DTypeError
from ampkit.core.policy import region
from ampkit.debug.planning import parse_policy
from ampkit.debug.policy_search.tuning import as_toml
from ampkit.run import build
from ampkit.run.bench import with_dtype

MX, NV = recipe("mxfp8"), recipe("nvfp4")
MIXED = "mxfp8 forward=nvfp4 weight_gradient=low"


def test_a_product_has_the_operands_of_the_preset_that_its_word_names():
    found = recipe(MIXED)
    assert found == replace(MX, name=MIXED, forward=NV.forward, weight_gradient=None)
    assert recipe("mxfp8  weight_gradient=low forward=nvfp4") == found  # in one order, whichever they are written in
    assert recipe("mxfp8 weight_gradient=mxfp8") is MX  # nothing differs
    assert recipe("delayed input_gradient=low").history == recipe("delayed").history


def test_a_policy_writes_what_it_reads():
    policy = Policy("float8", recipe=MIXED, modules={"head": "nvfp4 input_gradient=low"})
    assert repr(policy) == f'Policy("float8", recipe="{MIXED}", modules={{"head": "nvfp4 input_gradient=low"}})'
    assert eval(repr(policy), {"Policy": Policy}) is parse_policy(repr(policy)) is policy
    assert parse_policy("mxfp8 weight_gradient=low") is Policy("float8", recipe="mxfp8 weight_gradient=low")
    assert Policy("float8", recipe=replace(recipe(MIXED), history=7)) is not Policy("float8", recipe=MIXED)
    mine = replace(MX, name=MIXED)
    assert repr(mine) in repr(Policy("float8", recipe=mine))  # whose name says something else


def test_a_recipe_file_takes_the_name_and_trains_the_products_that_it_says(tmp_path):
    keys = ["amp.dtype=float8", f"amp.recipe={MIXED}", 'amp.modules={"7"="mxfp8 input_gradient=low"}']
    read = config.load("digits_mlp", keys)
    assert read.amp.precision == read.amp.recipe == MIXED
    (tmp_path / "config.toml").write_text(config.dump(read))
    assert config.load(str(tmp_path / "config.toml")) == read
    with build.region(read, build.model(read)):
        assert region().policies["cpu"] is Policy("float8", recipe=MIXED, modules=read.amp.modules)
    assert as_toml(Policy("bfloat16", modules={"7": "mxfp8 input_gradient=low"})).splitlines()[-1] == (
        'modules = { "7" = "mxfp8 input_gradient=low" }'
    )
    assert with_dtype(read, MIXED).amp == read.amp
    assert with_dtype(read, "bfloat16").amp.recipe is None


def test_a_product_in_16_bits_computes_as_without_a_recipe():
    def gradients(name):
        ampkit.manual_seed(0)
        layer, x = nn.Linear(32, 16), ampkit.randn(8, 32).requires_grad_()
        with autocast(policy=Policy("bfloat16", recipe=name)):
            y = layer(x)
        y.float().square().sum().backward()
        return y.tolist(), x.grad.tolist(), layer.weight.grad.tolist()

    wide, mixed, whole = gradients(None), gradients("mxfp8 forward=low input_gradient=low"), gradients("mxfp8")
    assert mixed[:2] == wide[:2] != whole[:2]
    assert mixed[2] != wide[2]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mxfp8 weight_gradients=low", "each of forward, input_gradient, weight_gradient at most once"),
        ("mxfp8 weight_gradients=low", "help: did you mean 'weight_gradient'?"),
        ("mxfp8 forward", "as in weight_gradient=low, got 'forward'"),
        ("mxfp8 forward=low forward=low", "at most once, as in weight_gradient=low, got 'forward=low'"),
        ("mxfp8 forward=mxfp9", "recipe mxfp8, forward: needs low or one of delayed"),
        ("mxfp8 forward=mxfp9", "got 'mxfp9'\nhelp: did you mean 'mxfp8'?"),
        ("mxfp9 forward=low", "needs one of delayed, current"),
        ("delayed forward=current", "one way to quantize the input, whose scale is delayed"),
    ],
)
def test_a_name_that_says_nothing_is_refused_in_one_line(name, says):
    for make in (recipe, lambda text: Policy("float8", recipe=text)):
        with pytest.raises(ConfigError) as found:
            make(name)
        assert says in str(found.value)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["amp.recipe=mxfp8 x"], "amp.recipe: needs each of forward, input_gradient, weight_gradient at most once"),
        (["amp.recipe=mxfp9"], "amp.recipe: needs one of delayed, current"),
        (["amp.recipe=nvfp4 forward=low"], "amp.dtype: needs float4, or 16 bits, for the recipe nvfp4 forward=low"),
        (['amp.modules={a="mxfp8 forward=x"}'], "amp.modules.a: needs low or one of delayed"),
        (['amp.modules={a="x"}'], "amp.modules.a: needs one of float32"),
    ],
)
def test_a_recipe_file_says_which_key_is_wrong(keys, says):
    with pytest.raises(ConfigError, match=says):
        config.load("digits_mlp", ["amp.dtype=float8", *keys])


def test_a_dtype_of_8_bits_is_refused_by_its_name():
    with pytest.raises(DTypeError) as found:
        autocast(dtype=ampkit.float8_e4m3fn)
    assert str(found.value).splitlines() == [
        "Policy: needs float16 or bfloat16, got float8_e4m3fn",
        'help: for float8_e4m3fn, use autocast(policy=Policy("float8"))',
    ]
    with pytest.raises(ConfigError, match="got float8_e5m2"):
        Policy("bfloat16", modules={"head": ampkit.float8_e5m2})
