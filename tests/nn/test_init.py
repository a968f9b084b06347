"""nn.init: the moments and bounds of each distribution, and the stream it draws from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import tensor
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core import random
from ampkit.nn import BatchNorm2d, Conv1d, Conv2d, Embedding, LayerNorm, Linear, MultiheadAttention, Parameter, init


def blank(*shape, dtype=dtypes.float32):
    return Parameter(np.full(shape, np.nan, dtype))


@pytest.fixture(autouse=True)
def seeded():
    random.manual_seed(0)


UNIFORM = [
    (lambda t: init.uniform_(t, -3, 3), 3),
    (lambda t: init.xavier_uniform_(t, gain=2), 2 * math.sqrt(6 / (200 * 9 + 300 * 9))),
    (lambda t: init.kaiming_uniform_(t, a=math.sqrt(5)), 1 / math.sqrt(200 * 9)),
    (lambda t: init.kaiming_uniform_(t, mode="fan_out", nonlinearity="relu"), math.sqrt(6 / (300 * 9))),
]
NORMAL = [
    (lambda t: init.normal_(t, 0, 0.5), 0.5),
    (lambda t: init.xavier_normal_(t), math.sqrt(2 / (200 * 9 + 300 * 9))),
    (lambda t: init.kaiming_normal_(t), math.sqrt(2 / (200 * 9))),
    (lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / (300 * 9))),
]


@pytest.mark.parametrize(("fill", "bound"), UNIFORM)
def test_uniform_draws_fill_their_bounds_evenly(fill, bound):
    weight = blank(300, 200, 3, 3)
    assert fill(weight) is weight
    values = weight.array.astype(np.float64)
    assert np.abs(values).max() == pytest.approx(bound, rel=1e-3)
    assert values.mean() == pytest.approx(0, abs=bound / 100)
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.01)


@pytest.mark.parametrize(("fill", "std"), NORMAL)
def test_normal_draws_have_their_deviation(fill, std):
    values = fill(blank(300, 200, 3, 3)).array.astype(np.float64)
    assert values.mean() == pytest.approx(0, abs=std / 100)
    assert values.std() == pytest.approx(std, rel=0.01)
    assert np.mean(np.abs(values) < std) == pytest.approx(0.6827, abs=0.005)


def test_truncated_normal_draws_stay_inside():
    values = init.trunc_normal_(blank(500, 100), mean=1, std=2, a=0, b=4).array
    assert values.min() >= 0
    assert values.max() <= 4
    low, high = (
        -0.5,
        1.5,
    )  # in deviations; the mean of a truncated normal is (phi(low) - phi(high)) / mass beside the center
    density = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in (low, high)]
    mass = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    assert values.mean() == pytest.approx(1 + 2 * (density[0] - density[1]) / mass, abs=0.02)
    with pytest.raises(ArgumentError, match="near the mean"):
        init.trunc_normal_(blank(2, 2), std=0.01, a=5, b=6)
    for given in ({"a": math.nan}, {"mean": math.nan}, {"std": math.nan}, {"mean": math.inf}):
        with pytest.raises(ArgumentError, match="near the mean"):
            init.trunc_normal_(blank(2, 2), **given)


@pytest.mark.parametrize("shape", [(5, 12), (12, 5), (6, 2, 3)])
def test_orthogonal_rows_or_columns_are_orthonormal(shape):
    flat = init.orthogonal_(blank(*shape), gain=2).array.reshape(shape[0], -1).astype(np.float64)
    flat = flat if shape[0] <= flat.shape[1] else flat.T
    assert np.allclose(flat @ flat.T, 4 * np.eye(len(flat)), atol=1e-5)


def test_constants():
    assert init.constant_(blank(2), 3).tolist() == [3, 3]
    assert init.ones_(blank(1)).item() == 1
    assert init.zeros_(blank(1)).item() == 0
    assert init.eye_(blank(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_the_seed_decides_the_values_in_every_dtype():
    wide = init.normal_(blank(10, dtype=dtypes.float64))
    random.manual_seed(0)
    narrow = init.normal_(blank(10, dtype=dtypes.bfloat16))
    assert np.array_equal(wide.array.astype(dtypes.bfloat16), narrow.array)
    assert not np.array_equal(narrow.array, init.normal_(blank(10, dtype=dtypes.bfloat16)).array)
    stream = random.Stream(0)
    assert np.array_equal(init.normal_(blank(10, dtype=dtypes.float64), generator=stream).array, wide.array)


def test_gains_are_pytorchs():
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("leaky_relu", 1) == 1
    assert init.calculate_gain("linear") == init.calculate_gain("conv_transpose3d") == 1
    with pytest.raises(ArgumentError, match=r"calculate_gain: needs one of .*'gelu'"):
        init.calculate_gain("gelu")


@pytest.mark.parametrize("fill", [init.kaiming_uniform_, init.kaiming_normal_])
def test_a_tensor_without_elements_stays_with_a_warning(fill):
    with pytest.warns(UserWarning, match=r"nothing to initialize in a tensor of shape \(0, 3\)"):
        assert fill(blank(0, 3)).shape == (0, 3)


def test_what_cannot_be_initialized_is_refused():
    with pytest.raises(ShapeError, match="two axes or more"):
        init.kaiming_uniform_(blank(3))
    with pytest.raises(ArgumentError, match="'fan_in' or 'fan_out'"):
        init.kaiming_normal_(blank(3, 3), mode="fan")
    with pytest.raises(ArgumentError, match="a <= b"):
        init.uniform_(blank(3), 1, 0)


@pytest.mark.cpu
def test_layers_start_from_pytorchs_distributions():
    linear, conv = Linear(400, 300), Conv2d(50, 60, 3)
    for layer, fan in ((linear, 400), (conv, 450)):
        for values in (layer.weight.array, layer.bias.array):
            assert np.abs(values).max() == pytest.approx(fan**-0.5, rel=0.05)
            assert np.abs(values).max() <= fan**-0.5
    table = Embedding(300, 200, padding_idx=-1).weight.array
    assert table[:-1].std() == pytest.approx(1, rel=0.01)
    assert not table[-1].any()
    attention = MultiheadAttention(200, 4)
    assert np.abs(attention.in_proj_weight.array).max() == pytest.approx(math.sqrt(6 / 800), rel=1e-3)
    assert not attention.in_proj_bias.array.any()
    assert not attention.out_proj.bias.array.any()
    for norm in (LayerNorm(3), BatchNorm2d(3)):
        assert norm.weight.tolist() == [1, 1, 1]
        assert norm.bias.tolist() == [0, 0, 0]
    assert BatchNorm2d(2).running_var.tolist() == [1, 1]
    assert BatchNorm2d(2).running_mean.tolist() == [0, 0]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_dirac_weight_hands_the_channels_on(groups):
    layer = Conv1d(4, 4, 3, padding=1, groups=groups, bias=False)
    assert init.dirac_(layer.weight, groups) is layer.weight
    x = tensor(np.arange(20, dtype=np.float32).reshape(1, 4, 5))
    assert layer(x).tolist() == x.tolist()
    with pytest.raises(ShapeError, match="dirac_: needs a tensor of three to five axes"):
        init.dirac_(tensor(np.zeros((2, 2))))
    with pytest.raises(ArgumentError, match="dirac_: needs groups that divide 4, got 3"):
        init.dirac_(layer.weight, 3)


def test_a_sparse_weight_has_its_share_of_zeros_in_each_column():
    made = init.sparse_(tensor(np.ones((10, 6))), 0.25, std=2.0)
    assert (made.numpy() == 0).sum(0).tolist() == [3] * 6
    assert 1.0 < made.numpy()[made.numpy() != 0].std() < 3.0
    with pytest.raises(ArgumentError, match="sparse_: needs a sparsity from 0 to 1, got 2"):
        init.sparse_(made, 2)


def test_a_range_from_0_to_minus_0_is_0():
    assert init.uniform_(tensor([1.0, 1.0]), 0.0, -0.0).tolist() == [0, 0]
