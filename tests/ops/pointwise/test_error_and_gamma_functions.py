"""Special functions against high precision: hand-worked values, functional equations, Python's own."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from ampkit import Tensor, ops, special, tensor
from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.core.autograd.tape import grad
from ampkit.testing import assert_close, gradcheck


def off(got, want):
    """The largest error in units of the last place."""
    want = np.asarray(want, np.float64)
    return np.max(np.abs(got.numpy().astype(np.float64) - want) / np.spacing(np.abs(want).astype(got.dtype)))


@pytest.mark.parametrize(("dtype", "end"), [(np.float64, 26), (np.float32, 9)])
def test_the_complement_of_erf_keeps_its_digits_where_erf_is_one(dtype, end):
    x = np.linspace(-6, end, 4001).astype(dtype)
    assert off(ops.erfc(tensor(x)), [math.erfc(v) for v in x]) <= 8
    assert ops.erfc(tensor([math.inf, -math.inf, 40.0])).tolist() == [0, 2, 0]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_inverse_of_erf_undoes_it_also_beside_one(dtype):
    x = np.linspace(-3.5, 3.5, 2001)
    there = np.array([math.erf(v) for v in x]).astype(dtype)
    got = ops.erfinv(tensor(there)).numpy().astype(np.float64)
    again = np.array([math.erf(v) for v in got])
    gradient = 2 / math.sqrt(math.pi) * np.exp(-got * got)
    assert np.max(np.abs(again - there) / (np.abs(got * gradient) * np.finfo(dtype).eps + 1e-17)) < 4
    assert ops.erfinv(tensor([1.0, -1.0, 0.0])).tolist() == [math.inf, -math.inf, 0]
    assert math.isnan(ops.erfinv(tensor(1.5)).item())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_lgamma_is_precise_also_at_its_zeros_and_below_zero(dtype):
    x = np.concatenate([np.linspace(0.01, 40, 999), [1e4, 1e20]]).astype(dtype)
    inner = np.abs(x - 1.5) > 1.2  # off its zeros Python's is as precise
    assert off(ops.lgamma(tensor(x[inner])), [math.lgamma(v) for v in x[inner]]) <= 16
    small = np.array(
        [2.0**-k for k in range(12, 23)]
    )  # lgamma(1 + z) = -euler z + zeta(2) / 2 z^2 - zeta(3) / 3 z^3...
    zeta = math.pi**2 / 6, 1.2020569031595943, math.pi**4 / 90, 1.0369277551433699
    series = -0.5772156649015329 * small + sum(z / k * (-small) ** k for k, z in enumerate(zeta, 2))
    assert off(ops.lgamma(tensor((1 + small).astype(dtype))), series) <= 16
    below = np.linspace(-9.9, -0.1, 50).astype(dtype)
    np.testing.assert_allclose(ops.lgamma(tensor(below)).numpy(), [math.lgamma(v) for v in below], rtol=2e-4, atol=1e-6)
    assert ops.lgamma(tensor([1.0, 2.0, 0.0, -3.0, -math.inf])).tolist() == [0, 0, math.inf, math.inf, math.inf]


def test_polygamma_obeys_its_recurrence_and_knows_its_values_at_one():
    x = np.linspace(0.3, 9, 88)
    for n in range(4):
        step = (-1) ** n * math.factorial(n) / x ** (n + 1)
        rise = ops.polygamma(n, tensor(x + 1)).numpy() - ops.polygamma(n, tensor(x)).numpy()
        np.testing.assert_allclose(rise, step, rtol=1e-11)
    at_one = [-0.5772156649015329, math.pi**2 / 6, -2 * 1.2020569031595943]
    assert [ops.polygamma(n, Tensor(np.float64([1.0]))).item() for n in range(3)] == pytest.approx(at_one, rel=1e-14)
    assert ops.digamma(Tensor(np.float64([-0.5]))).item() == pytest.approx(0.03648997397857652, rel=1e-13)
    assert ops.digamma(tensor([0.0])).item() == -math.inf
    with pytest.raises(ArgumentError, match="polygamma: needs n from 0, got -1"):
        ops.polygamma(-1, tensor([1.0]))


def test_sinc_and_its_gradient_keep_their_digits_beside_zero():
    y = np.array([0.0, 1e-9, 1e-3, 0.05, 0.2999, 0.3001]) / math.pi
    x = Tensor(y, requires_grad=True)
    out = ops.sinc(x)
    assert out.tolist()[0] == 1
    z = np.longdouble(math.pi) * y
    series = -z / 3 + z**3 / 30 - z**5 / 840 + z**7 / 45360 - z**9 / 3991680 + z**11 / 518918400
    np.testing.assert_allclose(grad(out.sum(), x)[0].numpy(), math.pi * series.astype(np.float64), rtol=2e-13)


def test_steps_signs_and_choices_at_their_edges():
    x = tensor([-1.0, 0.0, 2.0, math.nan])
    assert ops.heaviside(x, tensor([5.0])).tolist() == [0, 5, 1, 0]
    assert ops.fmax(x, tensor(1.0)).tolist() == [1, 1, 2, 1]
    assert ops.fmin(x, tensor(1.0)).tolist() == [-1, 0, 1, 1]
    assert ops.signbit(tensor([-0.0, 0.0, -2.0])).tolist() == [True, False, True]
    assert ops.copysign(tensor([1, -2]), tensor([-0.0, 3.0])).tolist() == [-1, 2]
    turned = Tensor(np.array([2.0, -3.0]), True)
    assert grad(ops.copysign(1.5, turned).sum(), turned, allow_unused=True) == (None,)
    assert ops.frac(tensor([-1.5, 2.25])).tolist() == [-0.5, 0.25]
    assert ops.xlogy(tensor([0.0, 2.0]), tensor([0.0, 1.0])).tolist() == [0, 0]
    assert (tensor([1, -5]) << 2).tolist() == [4, -20]
    assert (tensor([9, -5]) >> 1).tolist() == [4, -3]
    assert ops.float_power(tensor([2, 3]), 2).dtype == np.float64
    with pytest.raises(DTypeError, match="bitwise_left_shift: needs integers or bool"):
        tensor([1.0]) << 2


# ampkit.special


def test_pytorchs_address_of_special_functions_has_the_same_objects():
    assert special.expit is ops.sigmoid
    assert special.gammaln is ops.lgamma
    assert special.psi is ops.digamma


def test_entropies_areas_and_products_with_logarithms():
    x = tensor([-1.0, 0.0, 0.5])
    assert special.entr(x).tolist() == [-math.inf, 0.0, pytest.approx(0.5 * math.log(2))]
    areas = [NormalDist().cdf(v) for v in (-1, 0, 2)]
    assert_close(special.ndtr(tensor([-1.0, 0.0, 2.0], dtype="float64")), np.array(areas))
    assert special.xlog1py(tensor([0.0, 2.0]), tensor([-1.0, 1.0])).tolist() == [0.0, pytest.approx(2 * math.log(2))]
    assert math.isnan(special.xlog1py(0.0, tensor(math.nan)).item())
    wanted = math.log(math.pi) / 2 + math.lgamma(3.0) + math.lgamma(2.5)
    assert special.multigammaln(tensor(3.0), 2).item() == pytest.approx(wanted)


@pytest.mark.parametrize("function", [
    special.entr, special.ndtr, lambda x: special.xlog1py(x, x), lambda x: special.multigammaln(x + 1, 3),
])  # fmt: skip
def test_their_gradients_are_those_of_differences(function):
    gradcheck(function, tensor([0.3, 0.8, 2.0], dtype="float64", requires_grad=True))


def test_polygamma_of_negative_numbers_obeys_its_recurrence_and_has_poles_at_whole_ones():
    x = np.array([-0.5, -1.3, -7.75, -30.25])
    for n in range(6):
        rise = ops.polygamma(n, tensor(x + 1)).numpy() - ops.polygamma(n, tensor(x)).numpy()
        want = (-1) ** n * math.factorial(n) / x ** (n + 1)
        assert_close(rise, want, (1e-9, 1e-9))
    poles = tensor([-1.0, -2.0])
    assert [ops.polygamma(n, poles).tolist() for n in (1, 2, 3)] == [[math.inf] * 2, [-math.inf] * 2, [math.inf] * 2]
    assert ops.polygamma(2, tensor(np.array([-0.5]))).item() == pytest.approx(-0.828796644, rel=1e-9)  # psi''(1/2) + 16


def test_the_gradient_of_log_ndtr_has_all_digits_far_from_0():
    points = np.array([-300.0, -50, -20, -5, -0.66, 0, 2, 8, 12])
    found = []
    for dtype in (np.float32, np.float64):
        x = tensor(points.astype(dtype), requires_grad=True)
        special.log_ndtr(x).sum().backward()
        found.append(x.grad.numpy(force=True))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert found[1][0] == pytest.approx(300 + 1 / 300, rel=1e-8)  # |x| + 1 / |x| - ...
