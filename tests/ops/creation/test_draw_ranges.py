"""Every random number lies in the range that is documented; `python -m tests.bench.draws` makes 10^8 of each."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.core import random
from tests.bench.draws import DRAWS, DTYPES, violations

FLOATS = (ampkit.float16, ampkit.bfloat16, ampkit.float32, ampkit.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DRAWS)
def test_draws_stay_in_their_range(name, dtype):
    assert not violations(name, dtype, 20_000, seed=3)


class Extremes:
    """Stands in for NumPy's generator: every draw is the largest or the smallest that it gives."""

    def __init__(self, u, normal):
        self.u, self.value = u, normal

    def random(self, size=None, dtype=np.float64):
        return np.full(size, min(self.u, 1 - (2.0**-24 if dtype == np.float32 else 2.0**-53)), dtype)

    def uniform(self, low, high, size):
        return np.full(size, low + (high - low) * self.u)

    def standard_normal(self, size, dtype=np.float64):
        return np.full(size, self.value, dtype)

    def standard_exponential(self, size, dtype=np.float64):
        return np.full(size, 0 if self.u == 0 else 40, dtype)

    def standard_cauchy(self, size):
        return np.full(size, 1e20 if self.u else -1e20)

    def gumbel(self, size):
        return np.full(size, 40 if self.u else -4, np.float64)

    def geometric(self, p, size):
        return np.full(size, 2**63 - 1 if self.u else 1)

    def integers(self, low, high, size):
        return np.full(size, high - 1 if self.u else low)

    def normal(self, mean, std, size):
        return np.full(size, mean + std * np.clip(self.value, -0.3, 0.3), np.float64)


@pytest.mark.parametrize("extremes", [(0.0, -8.0), (1 - 2.0**-53, 8.0)], ids=["smallest", "largest"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DRAWS)
def test_the_smallest_and_the_largest_draw_stay_in_the_range(name, dtype, extremes, monkeypatch):
    monkeypatch.setattr(random, "next_draw", lambda generator=None, *like: Extremes(*extremes))
    assert not violations(name, dtype, 8, seed=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_16_bit_uniform_numbers_are_rounded_down_so_that_equal_bins_are_equally_likely(dtype):
    ampkit.manual_seed(1)
    bins = (ops.rand(200_000, dtype=dtype).float() * 16).long()
    counts = np.bincount(bins.numpy(), minlength=16)
    assert counts.size == 16
    assert abs(counts - 12_500).max() < 5 * np.sqrt(12_500)


def test_float32_uniform_numbers_are_those_of_numpys_generator():
    ampkit.manual_seed(5)
    want = random.generator(5, 0).random(100, np.float32)
    np.testing.assert_array_equal(ops.rand(100).numpy(), want)
    ampkit.manual_seed(5)
    np.testing.assert_array_equal(ops.empty(100).uniform_(-0.3, 0.7).numpy(), -0.3 + 1.0 * want)


def test_a_range_without_a_number_gives_its_lower_bound():
    assert (ops.empty(50, dtype=ampkit.bfloat16).uniform_(1, 1.001) == 1).all()
    assert (ops.empty(50).uniform_(2.5, 2.5) == 2.5).all()


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: ops.empty(2).uniform_(0, np.inf), ArgumentError),
        (lambda: ops.empty(2, dtype=ampkit.float16).uniform_(0, 1e5), ArgumentError),
        (lambda: nn.init.uniform_(ops.empty(2, dtype=ampkit.float16), 0, 1e5), ArgumentError),
        (lambda: ops.rand(2, dtype=ampkit.int64), DTypeError),
        (lambda: ops.randn(2, dtype=ampkit.int64), DTypeError),
        (lambda: ops.zeros(2, dtype=ampkit.int64).exponential_(), DTypeError),
        (lambda: ops.zeros(2, dtype=ampkit.int64).normal_(), DTypeError),
        (lambda: ops.randint(0, 257, (2,), dtype=ampkit.uint8), ArgumentError),
        (lambda: ops.randint(-1, 5, (2,), dtype=ampkit.uint8), ArgumentError),
        (lambda: ops.randint(0, 3, (2,), dtype=ampkit.bool), ArgumentError),
        (lambda: ops.randint(2049, 2050, (2,), dtype=ampkit.float16), ArgumentError),
        (lambda: ops.randint(70_000, 80_000, (2,), dtype=ampkit.float16), ArgumentError),
    ],
)
def test_ranges_that_a_dtype_does_not_hold_are_refused(call, kind):
    with pytest.raises(kind):
        call()


def test_random_integers_without_bounds_reach_the_largest_of_their_dtype():
    assert ops.zeros(20_000, dtype=ampkit.uint8).random_().max() == 255
    assert ops.zeros(20_000, dtype=ampkit.int8).random_().max() == 127


@pytest.mark.parametrize("scale", [1.0, 1e-320, 1e306])
@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_never_takes_an_outcome_of_weight_0(replacement, scale):
    weights = ampkit.tensor(np.array([0, 3, 0, 1, 2, 0]) * scale, dtype=ampkit.float64)
    for _ in range(50):
        found = ops.multinomial(weights, 3, replacement)
        assert set(found.tolist()) <= {1, 3, 4}


def test_multinomial_without_replacement_takes_every_positive_weight_however_small():
    weights = ampkit.tensor([1e300, 0, 1e-300, 0], dtype=ampkit.float64)
    assert set(ops.multinomial(weights, 2).tolist()) == {0, 2}
