"""`linear` by every recipe: gradients, training as a whole, and what keeps its bits when it runs again."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace

import numpy as np
import pytest

import ampkit
from ampkit import GradScaler, Policy, autocast, backends, nn, ops, optim, tensor
from ampkit.base.dtypes import bfloat16
from ampkit.base.errors import ArgumentError, ConfigError, DTypeError, ShapeError
from ampkit.core.policy import delayed
from ampkit.core.policy.recipe import FAMILIES, RECIPES, Operands, Quantization, recipe
from ampkit.ops.linalg.quantization import dequantize, quantize
from ampkit.optim.swa_utils import AveragedModel

NUMBERS = np.random.default_rng(0)
X = NUMBERS.standard_normal((20, 40)).astype(np.float32)
each_recipe = pytest.mark.parametrize("name", RECIPES)


def policy_of(name, **modules):
    family = next(word for word, names in FAMILIES.items() if name in names)
    return Policy(family, recipe=name, modules=modules or None)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(40, 40), nn.Linear(40, 40)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(ops.gelu(self.a(x)))


def model(seed=0):
    ampkit.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 50), nn.GELU(), nn.Linear(50, 30))


def train(of, optimizer, policy, steps, run=lambda of, x: of(x)):
    for _ in range(steps):
        with autocast(policy=policy):
            loss = (run(of, tensor(X)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(name, run=lambda of, x: of(x), make=model, steps=3):
    of = make()
    ampkit.manual_seed(7)
    optimizer = optim.AdamW(of.parameters(), lr=1e-2)
    train(of, optimizer, policy_of(name), steps, run)
    return of, optimizer


def values(of):
    return {name: value.numpy(force=True).copy() for name, value in of.state_dict().items()}


def need_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], name)


def outputs(of, name):
    with ampkit.no_grad(), autocast(policy=policy_of(name)):
        return of(tensor(X)).numpy(force=True)


@each_recipe
def test_gradients_are_the_products_of_the_dequantized_operands(name):
    found, low = recipe(name), lambda array: array.astype(bfloat16).astype(np.float32)
    x, w, b, dy = (NUMBERS.standard_normal(shape).astype(np.float32) for shape in ((20, 40), (30, 40), 30, (20, 30)))
    x, dy = low(x), low(dy)
    layer = nn.Linear(40, 30)
    with ampkit.no_grad():
        layer.weight.copy_(tensor(w)), layer.bias.copy_(tensor(b))
    given = tensor(x.reshape(4, 5, 40), requires_grad=True)
    with autocast(policy=policy_of(name)):
        y = layer(given)
    ampkit.manual_seed(5)
    y.backward(tensor(dy.reshape(4, 5, 30)).bfloat16())

    def product(operands, a, b):
        def value(array, how):
            with backends.device_guard(tensor(0.0).array):
                one = tensor(np.ones((1, 1), np.float32)).array
                back = dequantize(
                    quantize(tensor(np.ascontiguousarray(array)).array, how, one if how.delayed else None)[0]
                )
            return backends.backend_of(back).to_numpy(back).astype(np.float64)

        if operands is None:
            return a.astype(np.float64) @ b.T.astype(np.float64)
        return value(a, operands.first) @ value(b, operands.second).T

    ampkit.manual_seed(5)  # stochastic rounding draws for the gradient of the input first
    wide = w if found.input_gradient is not None else low(w)
    exact = [product(found.forward, x, w) + b, product(found.input_gradient, dy, wide.T)]
    exact.append(product(found.weight_gradient, dy.T, x.T))
    got = [each.numpy(force=True).astype(np.float64) for each in (y, given.grad, layer.weight.grad)]
    for mine, true, rounding in zip(got, exact, (2.0**-8, 2.0**-8, 2.0**-20), strict=True):
        np.testing.assert_allclose(mine.reshape(true.shape), true, rtol=rounding, atol=4 * rounding)
    np.testing.assert_allclose(layer.bias.grad.numpy(force=True), dy.sum(0), rtol=1e-5, atol=1e-5)


@each_recipe
def test_a_model_learns_and_its_evaluation_changes_nothing(name):
    of, _ = trained(name, steps=12)
    before = values(of)
    first, again = outputs(of, name), outputs(of, name)
    need_equal(before, values(of))
    np.testing.assert_array_equal(first, again)
    assert (first.astype(np.float32) ** 2).mean() < 0.6 * (outputs(model(), name).astype(np.float32) ** 2).mean()


@each_recipe
@pytest.mark.parametrize("make", [model, Tied])
def test_recompute_takes_the_same_scales_and_the_same_random_bits(name, make):
    def twice(of, x):
        return ampkit.recompute(lambda x: ampkit.recompute(of, x), x)

    def made():
        ampkit.manual_seed(0)
        return make()

    plain, _ = trained(name, make=made)
    for run in (ampkit.recompute, twice):
        need_equal(values(plain), values(trained(name, run, made)[0]))


@each_recipe
def test_a_resumed_training_has_the_same_bits(name):
    of, optimizer = trained(name, steps=2)
    file = io.BytesIO()
    ampkit.save({"model": of.state_dict(), "optimizer": optimizer.state_dict(), "rng": ampkit.get_rng_state()}, file)
    train(of, optimizer, policy_of(name), 2)
    file.seek(0)
    state, other = ampkit.load(file), model(9)
    again = optim.AdamW(other.parameters(), lr=1e-2)
    other.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])
    ampkit.set_rng_state(state["rng"])
    train(other, again, policy_of(name), 2)
    need_equal(values(of), values(other))


@each_recipe
def test_copies_of_a_model_go_on_alike_and_alone(name):
    of, _ = trained(name)
    before, first = values(of), outputs(of, name)
    for twin in (copy.deepcopy(of), pickle.loads(pickle.dumps(of))):
        need_equal(before, values(twin))
        np.testing.assert_array_equal(outputs(twin, name), first)
        train(twin, optim.SGD(twin.parameters(), lr=0.1), policy_of(name), 1)
    need_equal(before, values(of))


@each_recipe
def test_a_policy_is_the_same_object_after_pickling_copying_and_reading_its_repr(name):
    mine = replace(recipe(name), name="mine", weight_gradient=None)
    for policy in (policy_of(name, head="bfloat16"), Policy("bfloat16", recipe=mine, modules={"a.*": name})):
        assert pickle.loads(pickle.dumps(policy)) is policy is copy.deepcopy(policy)
    assert eval(repr(policy_of(name, head="bfloat16"))) is policy_of(name, head="bfloat16")


@each_recipe
def test_frozen_weights_and_inputs_have_no_gradient_and_no_cost(name):
    of = model()
    of[0].weight.requires_grad_(False)
    train(of, optim.SGD([p for p in of.parameters() if p.requires_grad], lr=0.1), policy_of(name), 2)
    assert of[0].weight.grad is None
    with autocast(policy=policy_of(name)):
        y = nn.functional.linear(tensor(X), of[0].weight)
    assert not y.requires_grad


@each_recipe
def test_a_loss_scale_and_float16_around_it_see_an_overflow(name):
    of, scaler = model(), GradScaler(init_scale=2.0**10)
    optimizer = optim.SGD(of.parameters(), lr=0.1)
    skipped = []
    for bad in (0, np.inf, np.nan):
        x = X.copy()
        x[3, 3] += bad
        with autocast(policy=Policy("float16", recipe=name)):
            loss = (of(tensor(x)) ** 2).mean()
        scaler.scale(loss).backward()
        skipped.append(bool(scaler.step(optimizer).skipped))
        scaler.update()
        optimizer.zero_grad()
    assert skipped == [False, True, True]
    assert all(np.isfinite(value).all() for value in values(of).values())


@each_recipe
def test_a_second_derivative_is_near_the_exact_one(name):
    of, x = model(), tensor(X, requires_grad=True)
    train(of, optim.SGD(of.parameters(), lr=0.0), policy_of(name), 1)  # from which delayed scales follow
    with autocast(policy=policy_of(name)):
        loss = (ops.gelu(of(x)) ** 2).mean()
    (first,) = ampkit.grad(loss, [x], create_graph=True)
    (first.float() ** 2).sum().backward()
    exact, y = model(), tensor(X, requires_grad=True)
    (first,) = ampkit.grad((ops.gelu(exact(y)) ** 2).mean(), [y], create_graph=True)
    (first**2).sum().backward()
    for mine, true in zip(of.parameters(), exact.parameters(), strict=True):
        true = true.grad.numpy(force=True)
        assert np.linalg.norm(mine.grad.numpy(force=True) - true) < 0.5 * np.linalg.norm(true)


@each_recipe
def test_a_second_derivative_beside_a_frozen_input_or_weight_is_near_the_exact_one(name):
    def gradients(policy):
        of = model()
        of[2].weight.requires_grad_(False)
        train(of, optim.SGD(of.parameters(), lr=0.0), policy, 1)
        with autocast(policy=policy):
            loss = (ops.gelu(of(tensor(X))) ** 2).mean()
        asked = [p for p in of.parameters() if p.requires_grad]
        sum((first.float() ** 2).sum() for first in ampkit.grad(loss, asked, create_graph=True)).backward()
        return [p.grad.numpy(force=True) for p in asked]

    for mine, true in zip(gradients(policy_of(name)), gradients(Policy("bfloat16")), strict=True):
        assert np.linalg.norm(mine - true) < 0.5 * np.linalg.norm(true)


@each_recipe
def test_attention_of_nn_runs_by_the_recipe(name):
    ampkit.manual_seed(0)
    layer, x = nn.MultiheadAttention(32, 4, batch_first=True), ampkit.randn(2, 7, 32)
    with autocast(policy=policy_of(name)):
        y, _ = layer(x, x, x)
    y.float().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    exact, _ = layer(x, x, x)
    error = np.linalg.norm((y.float() - exact).numpy(force=True)) / np.linalg.norm(exact.numpy(force=True))
    assert 1e-3 < error < 0.3


def test_what_backward_keeps_is_codes():
    of, sizes = nn.Linear(256, 256, bias=False), {}
    x = tensor(NUMBERS.standard_normal((256, 256)), dtype=ampkit.float32, requires_grad=True)
    for name in ("bfloat16", "mxfp8", "nvfp4", "int8"):
        with autocast(policy=Policy("bfloat16") if name == "bfloat16" else policy_of(name)):
            saved = vars(of(x)._tape_node.saved)
        sizes[name] = sum(array.nbytes for array in saved.values() if hasattr(array, "nbytes"))
    assert sizes["mxfp8"] == 2 * 256 * (256 + 256 // 32)
    assert sizes["nvfp4"] == 2 * 256 * 128 + 256 * 16 + 16 * 16 + 2 * 4
    assert sizes["int8"] == 2 * (256 * 256 + 256 * 4)
    assert sizes["bfloat16"] == 2 * 256 * 256 * 2 or sizes["bfloat16"] > sizes["int8"]


# delayed scaling


def states(of):
    return [delayed.state_of(parameter) for parameter in of.parameters() if parameter.ndim == 2]


def test_a_scale_follows_from_the_largest_magnitude_of_the_steps_that_are_kept():
    layer = nn.Linear(4, 3, bias=False)
    short = Policy("float8", recipe=replace(recipe("delayed"), name="short", history=2, margin=1))
    found = []
    for size in (3.0, 7.0, 1.0, 1.0, 0.0, 0.0):
        with autocast(policy=short):
            layer(tensor(np.full((2, 4), size, np.float32), requires_grad=True)).sum().backward()
        found.append(states(layer)[0].tolist()[delayed.INPUT])
    scales, histories = [row[0] for row in found], [row[1:] for row in found]
    assert histories == [[3, 0], [7, 3], [1, 7], [1, 1], [0, 1], [0, 0]]
    top = np.float32(448)
    wanted = [top / np.float32(largest) / 2 for largest in (3, 7, 7, 1, 1)]
    assert scales == [*wanted, wanted[-1]]  # as it was, where no step had a value


def test_an_infinite_step_leaves_the_scale_alone():
    of, _ = trained("delayed")
    before = [state.copy() for state in states(of)]
    x = X.copy()
    x[0, 0] = np.inf
    with autocast(policy=policy_of("delayed")):
        (of(tensor(x)) ** 2).mean().backward()
    for mine, old in zip(states(of), before, strict=True):
        assert np.isfinite(backends.backend_of(mine).to_numpy(mine)).all()
        assert float(mine[delayed.INPUT, 0]) == float(old[delayed.INPUT, 0])


def test_an_average_of_weights_has_the_scales_of_the_model():
    of = model()
    average = AveragedModel(of)
    train(of, optim.SGD(of.parameters(), lr=0.1), policy_of("delayed"), 3)
    average.update_parameters(of)
    for mine, theirs in zip(states(of), states(average.module), strict=True):
        assert mine is not theirs
        np.testing.assert_array_equal(*(backends.backend_of(each).to_numpy(each) for each in (mine, theirs)))


def test_a_state_is_part_of_the_state_dict_and_may_be_missing_there():
    of, _ = trained("delayed")
    state = of.state_dict()
    assert [name for name in state if name.endswith(delayed.SUFFIX)] == [
        "0.weight.delayed_scaling",
        "2.weight.delayed_scaling",
    ]
    other = model()
    other.load_state_dict(delayed.without_states(state))
    assert states(other) == [None, None]
    with pytest.raises(ShapeError, match=r"a state \[3, 1 \+ history\], got \[2, 5\]"):
        other.load_state_dict({**state, "0.weight.delayed_scaling": ampkit.zeros(2, 5)})
    for scale, largest in ((np.nan, 1), (np.inf, 1), (0, 1), (-1, 1), (1, np.nan), (1, -1)):
        damaged = ampkit.tensor(np.array([[1, 1], [1, 1], [scale, largest]], np.float32))
        with pytest.raises(ArgumentError, match="delayed scaling: needs finite scales above 0, and finite magnitudes"):
            other.load_state_dict({**state, "0.weight.delayed_scaling": damaged})


def test_a_margin_never_makes_a_scale_that_has_no_inverse():
    layer = nn.Linear(4, 3, bias=False)
    for margin, size in ((126, 3e38), (-126, 1e-38)):
        policy = Policy("float8", recipe=replace(recipe("delayed"), name="far", history=1, margin=margin))
        for _ in range(2):
            with autocast(policy=policy), np.errstate(all="ignore"):
                layer(tensor(np.full((2, 4), size, np.float32), requires_grad=True)).sum().backward()
            scales = np.array([row[0] for row in states(layer)[0].tolist()], np.float32)
            assert (np.isfinite(scales) & np.isfinite(1 / scales) & (scales > 0)).all()


def test_delayed_scaling_of_a_weight_that_is_no_parameter_is_refused():
    with autocast(policy=policy_of("delayed")), pytest.raises(ArgumentError, match='use recipe="current"'):
        nn.functional.linear(tensor(X), tensor(np.ones((3, 40), np.float32)))


# bad recipes and policies

MX, NV, BYTES, DELAYED = (recipe(name) for name in ("mxfp8", "nvfp4", "int8", "delayed"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Policy("float8", recipe="mxpf8"), "'mxpf8'\nhelp: did you mean 'mxfp8'"),
        (lambda: Policy("float8", recipe="nvfp4"), 'help: Policy("float4", recipe="nvfp4")'),
        (lambda: Policy("float32", recipe="mxfp8"), "needs float16 or bfloat16, got float32"),
        (lambda: Policy("float8", modules={"head": "mxpf8"}), "'mxpf8'\nhelp: did you mean 'mxfp8'"),
        (lambda: Policy("float8", layer_norm="mxfp8"), 'recipes quantize the products of a module: modules={"blocks'),
        (lambda: autocast(dtype="float8"), 'help: for float8, use autocast(policy=Policy("float8"))'),
        (lambda: autocast(dtype=ampkit.int8), 'help: for int8, use autocast(policy=Policy("int8"))'),
        (lambda: Quantization("float8_e4m3"), "Quantization, format: needs one of float8_e4m3fn"),
        (lambda: Quantization("int8", scale="float8_e8m0fnu"), "Quantization, int8"),
        (lambda: Quantization("float8_e4m3fn", block=(0, 1)), "each an integer from 1 or None"),
        (lambda: Quantization("float8_e4m3fn", block=32), "two extents, each an integer from 1 or None, got 32"),
        (lambda: Quantization("float8_e4m3fn", block=(1, None), delayed=True), "one float32 scale per matrix"),
        (lambda: replace(DELAYED, history=0), "QuantizationRecipe, history: needs an integer from 1, got 0"),
        (
            lambda: replace(DELAYED, margin=200),
            "margin: needs an integer from -126 to 126, got 200",
        ),
        (lambda: replace(MX, name=3), "QuantizationRecipe, name: needs text, got 3"),
        (lambda: replace(MX, forward=MX.forward.first), "needs Operands of two Quantizations, or None"),
        (lambda: replace(MX, forward=Operands("e4m3", "e4m3")), "needs Operands of two Quantizations, or None"),
        (lambda: Quantization("float8_e4m3fn", hadamard=1), "Quantization, hadamard: needs True or False, got 1"),
        (lambda: Quantization("int8", epsilon=float("nan")), "epsilon: needs a finite number from 0, got nan"),
        (lambda: Quantization("int8", epsilon="1"), "epsilon: needs a finite number from 0, got '1'"),
        (lambda: replace(MX, forward=Operands(BYTES.forward.first, MX.forward.second)), "int8 for both operands or"),
        (lambda: replace(NV, weight_gradient=Operands(NV.weight_gradient.first, NV.forward.first)), "Hadamard"),
        (lambda: replace(DELAYED, weight_gradient=recipe("current").weight_gradient), "one way to quantize the input"),
    ],
)
def test_a_recipe_that_cannot_run_is_refused_in_one_line(make, says):
    with pytest.raises((ConfigError, DTypeError)) as found:
        make()
    assert says in str(found.value)
